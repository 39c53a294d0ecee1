"""What the use cases that measure are asked, as values checked before anything is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from oracle.constants import checked_text
from oracle.errors import BadInput, OutOfRange
from oracle.execution import Execution
from service.requests import parse_devices, parse_model_batch

MOST_PROCESSES = 20
"""Beyond what any run has visits for."""

Progress = Callable[[int, int, str], None]
"""Told how many of how many things are done, and what is being done now."""


def silent(done: int, total: int, text: str) -> None:
    """Show no progress."""


@dataclass(frozen=True)
class Questions:
    """What will be asked of a calibration, so that the very shapes are measured.

    Args:
        models: what `service.models.find_model` reads, each with its samples on one device or None.
        strategies: what `oracle.strategies.choices.parse_strategy` reads, with all choices that a search would try
            where none is given; none takes serial for one device and data for more.
        devices: device counts.
        batch, batch_per_device: for the models without samples of their own.
    """

    models: tuple[tuple[str, int | None], ...]
    strategies: tuple[str, ...] = ()
    devices: tuple[int, ...] = (1,)
    batch: int | None = None
    batch_per_device: int | None = None

    def __post_init__(self) -> None:
        if self.batch is not None and self.batch_per_device is not None:
            raise BadInput("give either --batch or --batch-per-device, not both")
        for model, samples in self.models:
            if samples is None and self.batch is None and self.batch_per_device is None:
                raise BadInput(f"say how large a batch of {model} is: {model}:8, --batch or --batch-per-device")

    def global_batch(self, samples: int | None, devices: int) -> int:
        """The global batch of a model with so many samples of its own at a number of devices."""
        if samples is None and self.batch is not None:
            return self.batch
        return (samples or self.batch_per_device or 0) * devices


@dataclass(frozen=True)
class MeasureRequest:
    """Measure a device.

    Args:
        device: the kind of device, a name in `profiler.backends`.
        budget_s: seconds of all that the command does; None takes the default of quick or full.
        quick: fewer cases.
        seed: orders the cases and draws the inputs.
        questions: measure what these need; None measures the default models.
        resume: go on with the newest unfinished run of the device and the execution, where there is one.
        run_id: go on with this one.
        processes: how many processes measure, one after the other; None takes what the budget has time for.
        force: go on where `doctor` says that something else than the device would be measured.
    """

    device: str = "cpu"
    budget_s: float | None = None
    quick: bool = False
    seed: int = 0
    execution: Execution = field(default_factory=Execution)
    questions: Questions | None = None
    resume: bool = False
    run_id: str | None = None
    processes: int | None = None
    force: bool = False

    def __post_init__(self) -> None:
        if self.budget_s is not None and not self.budget_s > 0:
            raise OutOfRange(f"a budget is a positive time, not {self.budget_s} s")
        if self.processes is not None and not 1 <= self.processes <= MOST_PROCESSES:
            raise OutOfRange(f"1 to {MOST_PROCESSES} processes can measure one after the other, not {self.processes}")


@dataclass(frozen=True)
class CalibrateRequest(MeasureRequest):
    """Measure a device and fit its constants.

    Args:
        name: of the calibration; None makes one from the device and the date.
        prior: let stored calibrations of other devices inform kernel families with few shapes.
    """

    name: str | None = None
    prior: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name is not None:
            checked_text("name", self.name)


@dataclass(frozen=True)
class ValidateRequest:
    """Run real steps beside their prediction.

    Args:
        models: names and the samples of one step.
        calibration: its name; None takes the newest.
        device: the kind of device that they run on.
        budget_s: seconds of measuring for each model.
    """

    models: tuple[tuple[str, int], ...]
    calibration: str | None = None
    device: str = "cpu"
    budget_s: float = 20.0
    execution: Execution = field(default_factory=Execution)

    def __post_init__(self) -> None:
        _checked_steps(self.models, self.budget_s)


def _checked_steps(models: tuple[object, ...], budget_s: float) -> None:
    if not models:
        raise BadInput("name at least one model with its batch, such as resnet50:8")
    if not budget_s > 0:
        raise OutOfRange(f"a budget is a positive time, not {budget_s} s")


@dataclass(frozen=True)
class ProfileRequest:
    """Time the layers of models inside real steps.

    Args:
        models: names and the samples of one step; without samples a factory's own example inputs are taken.
        calibration: what a new one is made from; None takes the newest where a name is given.
        name: of the new calibration; None makes none.
        device: the kind of device that they run on.
        budget_s: seconds of measuring for each model, after warm-up.
    """

    models: tuple[tuple[str, int | None], ...]
    calibration: str | None = None
    name: str | None = None
    device: str = "cpu"
    budget_s: float = 30.0
    execution: Execution = field(default_factory=Execution)

    def __post_init__(self) -> None:
        _checked_steps(self.models, self.budget_s)
        if self.name is not None:
            checked_text("name", self.name)
        elif self.calibration is not None:
            raise BadInput("--calibration says what a new calibration is made from; give it a --name")


def parse_model(text: str) -> tuple[str, int | None]:
    """Read `resnet50:8` or `resnet50`: a model, and the samples of one step where they are given.

    >>> parse_model("resnet50:8"), parse_model("nets:make_net")
    (('resnet50', 8), ('nets:make_net', None))
    """
    _, colon, batch = text.rpartition(":")
    return parse_model_batch(text) if colon and batch.isdecimal() else (text, None)


def parse_strategies(text: str | None) -> tuple[str, ...]:
    """Read `data,filter`: names between commas, each with the choices that follow it.

    >>> parse_strategies("data,buckets=25MiB,filter")
    ('data,buckets=25MiB', 'filter')
    """
    names: list[str] = []
    for part in (text or "").split(","):
        if "=" in part and names:
            names[-1] += f",{part}"
        elif part:
            names.append(part)
    return tuple(names)


def parse_questions(
    models: list[str] | None, strategies: str | None, devices: str, batch: int | None, batch_per_device: int | None
) -> Questions | None:
    """Read `--for` and what belongs to it; None where there is no `--for`.

    Raises:
        BadInput: strategies or a batch for no model, or a model without a batch.
    """
    if not models:
        if strategies or batch or batch_per_device or devices != "1":
            raise BadInput("--strategies, --devices, --batch and --batch-per-device say more of --for MODEL; give that")
        return None
    return Questions(
        models=tuple(parse_model(text) for text in models),
        strategies=parse_strategies(strategies),
        devices=parse_devices(devices),
        batch=batch,
        batch_per_device=batch_per_device,
    )
