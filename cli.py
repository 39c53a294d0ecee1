"""The command line: parse, call one use case, print. Heavy imports wait until a command needs them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, NoReturn, cast

import typer

from oracle.errors import MissingDependency, StepgaugeError

COMMANDS: dict[str, str] = {
    "doctor": "measuring_commands:doctor",
    "calibrate": "measuring_commands:calibrate",
    "measure": "measuring_commands:measure",
    "trace": "model_commands:trace",
    "profile": "model_commands:profile",
    "list": "catalogue_commands:list_",
    "show": "catalogue_commands:show",
    "predict": "prediction_commands:predict",
    "advise": "planning:advise",
    "scale": "planning:scale",
    "explain": "planning:explain",
    "validate": "model_commands:validate",
    "compare": "catalogue_commands:compare",
    "export": "catalogue_commands:export",
    "load": "catalogue_commands:load",
    "import": "networking:import_",
    "fit": "networking:fit",
    "price": "networking:price",
    "collect": "networking:collect",
    "plan-measurement": "networking:plan_measurement",
    "ceilings": "ceiling_commands:ceilings",
}
"""Command -> module of `service` and function; a command loads its own alone."""

PRICING = frozenset(["list", "show", "predict", "advise", "scale", "explain", "compare", "export", "price"])
"""The commands that read calibrations and price with them, and neither measure nor fit."""

MEASURING = ("torch", "sklearn", "scipy")
"""Libraries of the extra [measure]: predicting works without them."""

LONGEST_ERROR = 1000

USAGE = cast("type[typer.BadParameter]", next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException"))
"""The base of Typer's own errors, wherever the installed Typer keeps it."""


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"stepgauge {version('stepgauge')}")
        except PackageNotFoundError:
            typer.echo("stepgauge, not installed (run from a source folder)")
        raise typer.Exit


def stepgauge(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version.")
    ] = False,
) -> None:
    """Measure your devices once, then predict how long a training step will take."""


def application(asked: Sequence[str] = ()) -> typer.Typer:
    """The command that is asked for, or all of them: to describe them to Typer takes longer than to predict.

    Args:
        asked: what the command line begins with.
    """
    app = typer.Typer(
        name="stepgauge",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Measure your devices once, then predict how long a training step will take.",
    )
    app.callback()(stepgauge)
    for name in COMMANDS.keys() & asked or COMMANDS:
        module, _, function = COMMANDS[name].partition(":")
        app.command(name)(getattr(import_module(f"service.{module}"), function))
    return app


def main() -> None:
    """Run the command line; what stepgauge refuses is one line on standard error and exit code 2."""
    asked = sys.argv[1:2]
    _prepare_process(prices=bool(PRICING.intersection(asked)))
    try:
        app = application(asked)
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except BrokenPipeError:
        _drop_output()
        sys.exit(1)
    except OSError as error:
        _drop_output()
        _refuse(StepgaugeError(f"{error.filename or 'the output'}: {error.strerror}"))
    except ModuleNotFoundError as error:
        if error.name not in MEASURING:
            raise
        _refuse(MissingDependency(error.name, "measure"))
    except StepgaugeError as error:
        _refuse(error)
    except USAGE as error:
        _refuse(StepgaugeError(error.format_message()))
    except (KeyboardInterrupt, typer.Abort):
        sys.stderr.write("interrupted; what was measured is kept\n")
        sys.exit(130)


def _prepare_process(*, prices: bool) -> None:
    """Set what the interpreter has for its whole process: its output, its signals, and NumPy's threads.

    Matrices that prices come from have a few hundred rows, of which threads make nothing faster; they took a third of a
    prediction's CPU time to start and to wait for one another, and more where others use the cores. The variable is
    read when NumPy is loaded; who has set it knows better.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal's encoding lacks is no error
    with suppress(ValueError):  # only the main thread may
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a scheduler's end of time is an interruption
    if prices:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _drop_output() -> None:
    """Keep the interpreter from flushing, at its end, to where nothing can be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse(error: StepgaugeError) -> NoReturn:
    """End with the error on one line; a name or a file that it quotes may hold line breaks."""
    text = str(error)
    if len(text) > LONGEST_ERROR:
        text = f"{text[:LONGEST_ERROR]}..."
    line = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    sys.stderr.write(f"error: {line}\n")
    sys.exit(2)


if __name__ == "__main__":
    main()
