"""The parts of `device_check.sh`: each a process with a time limit of its own, each some rows of the table at the end.

What is correct is said as `ok` or `WRONG`; what could not be done as `failed`, `late` (the limit) or `not there`; a
number that nothing is compared with is only shown.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CLI = (sys.executable, str(ROOT / "cli.py"))
LIMIT_S = 570.0


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    part: str
    what: str
    verdict: str
    found: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Part:
    """One command.

    Args:
        limit_s, short_s: how long it may take, and in a short run.
        command: what to run.
        rows: what its output, as JSON, says; `what`, verdict and finding of each.
    """

    name: str
    limit_s: float
    short_s: float
    command: tuple[str, ...]
    rows: Callable[[Any], Iterable[tuple[str, str, str]]]


@dataclass(frozen=True)
class Options:
    """What was asked."""

    device: str
    short: bool
    out: Path

    @property
    def patience(self) -> int:
        """How many times the limits of a GPU's machine: a dry run on a CPU may share its cores with others."""
        return 3 if self.device == "cpu" else 1

    @property
    def store(self) -> str:
        """Where everything is stored."""
        return str(self.out / "store.sqlite")


def parts(options: Options) -> list[Part]:
    """All of them, in order: what is right first, then what is fast, then what is predicted."""
    where = ("--device", options.device, "--db", options.store, "--json")
    here = (sys.executable, str(ROOT / "benchmarks" / "device_correctness.py"))
    sustain, budget = ("0s", 40) if options.short else ("1s", 120)
    # --force: what doctor refuses is in the table already, and the numbers are wanted all the same
    calibrate = (*CLI, "calibrate", "--name", "device-check", "--force")
    step = "alexnet:8" if options.device == "cpu" else "resnet50:32"
    return [
        Part("doctor", 30, 30, (*CLI, "doctor", *where), doctor_rows),
        Part(
            "correctness",
            90,
            90,
            (*here, "--device", options.device, "--seconds", str(75 * options.patience)),
            correctness_rows,
        ),
        Part("state", 20, 20, (*here_part("state"), options.device), state_rows),
        Part("ceilings", 150, 60, (*CLI, "ceilings", "--sustain", sustain, *where), ceiling_rows),
        Part("launches", 30, 30, (*here_part("launches"), options.device), launch_rows),
        Part(
            "calibrate",
            180,
            80,
            (*calibrate, "--for", step, "--budget", f"{budget * options.patience}s", *where),
            calibrate_rows,
        ),
        Part(
            "validate",
            90,
            60,
            (*CLI, "validate", step, "--calibration", "device-check", "--budget", "10s", *where),
            validate_rows,
        ),
        *_profiles(options, step, where),
        Part("collective", 40, 40, (*here_part("collective"), options.device), collective_rows),
    ]


def here_part(name: str) -> tuple[str, ...]:
    """A part that is a function of `device_parts.py`."""
    return (sys.executable, str(ROOT / "benchmarks" / "device_parts.py"), name)


def _profiles(options: Options, step: str, where: Sequence[str]) -> Iterator[Part]:
    runs = {"fp32": ()} if options.device == "cpu" else PROFILES
    for name, extra in runs.items():
        command = (*CLI, "profile", step, *extra, *where)
        yield Part(f"profile {name}", 40, 40, command, profile_rows)


PROFILES: dict[str, tuple[str, ...]] = {
    "fp32": (),
    "tf32": ("--precision", "tf32"),
    "bf16": ("--precision", "bf16"),
    "bf16 channels_last": ("--precision", "bf16", "--memory-format", "channels_last"),
}


def doctor_rows(said: Any) -> Iterator[tuple[str, str, str]]:
    worst = [finding for finding in said["findings"] if finding["level"] != "ok"]
    yield "findings", "ok" if said["usable"] else "failed", f"{len(said['findings'])}, {len(worst)} not ok"
    for finding in worst:
        yield finding["subject"], finding["level"], finding["text"]


def correctness_rows(said: Any) -> Iterator[tuple[str, str, str]]:
    ran = [item for item in said if item["error"] is not None]
    wrong = [item for item in ran if not item["good"]]
    largest = max((item["error"] for item in ran), default=0.0)
    yield "cases", "WRONG" if wrong else "ok", f"{len(ran)} ran, {len(wrong)} wrong, largest error {largest:.1e}"
    for item in wrong:
        yield item["text"], "WRONG", f"error {item['error']:.1e} above {item['tolerance']:.0e}"
    refused: dict[str, int] = {}
    for item in said:
        if item["error"] is None:
            refused[item["reason"][:90]] = refused.get(item["reason"][:90], 0) + 1
    for reason, count in refused.items():
        yield f"{count} cases", "not there", reason


def state_rows(said: Any) -> Iterator[tuple[str, str, str]]:
    if "error" in said:
        yield "NVML", "not there", said["error"]
        return
    yield "fields", "ok", f"{len(said['known'])} known: {', '.join(said['known'])}"
    for reason in said["unread"]:
        yield "unread", "", reason


def ceiling_rows(said: Any) -> Iterator[tuple[str, str, str]]:
    best: dict[str, Any] = {}
    for item in said["ceilings"]:
        known = best.get(item["question"])
        better = known is None or (item["burst"] > known["burst"]) == (item["unit"] != "s")
        best[item["question"]] = item if better else known
    for name, item in best.items():
        later = f", sustained {item['sustained']:.4g}" if item["sustained"] else ""
        promise = f", {item['burst'] / item['data_sheet']:.0%} of the data sheet" if item["data_sheet"] else ""
        # Nothing runs above its peak: what does was not measured, or the peak is another device's.
        verdict = "WRONG" if item["data_sheet"] and item["burst"] > 1.05 * item["data_sheet"] else "ok"
        yield name, verdict, f"{item['burst']:.4g} {item['unit']}{later}{promise}"
    for item in said["unanswered"]:
        yield item["question"], "not there", item["reason"]


def launch_rows(said: Any) -> Iterator[tuple[str, str, str]]:
    yield "hold", "", said["hold"]
    for name, seconds in said["seconds"].items():
        yield name, "", f"{seconds * 1e6:.2f} us"


def calibrate_rows(said: Any) -> Iterator[tuple[str, str, str]]:
    yield "shapes", "ok", f"{said['measured']} measured, {len(said['unmeasured'])} not, {said['elapsed_s']:.0f} s"
    for note in said["notes"][:6]:
        yield "note", "", note


def validate_rows(said: Any) -> Iterator[tuple[str, str, str]]:
    for step in said["steps"]:
        numbers = f"predicted {step['predicted_s'] * 1e3:.1f} ms, measured {step['measured_s'] * 1e3:.1f} ms"
        inside = "inside" if step["inside"] else "outside"
        yield f"{step['model']}:{step['batch']}", "", f"{numbers}, {step['difference']:+.1%}, {inside} 80 %"


def profile_rows(said: Any) -> Iterator[tuple[str, str, str]]:
    numbers = {name: value for name, value in said.items() if isinstance(value, int | float)}
    yield "step", "ok", ", ".join(f"{name} {value:.4g}" for name, value in list(numbers.items())[:8])


def collective_rows(said: Any) -> Iterator[tuple[str, str, str]]:
    for item in said:
        yield item["what"], "ok" if item["right"] else "WRONG", f"{item['seconds'] * 1e6:.1f} us"


def run(part: Part, options: Options, limit_s: float, log: Any) -> list[Row]:
    """Run one part; whatever happens becomes a row."""
    begun_s = time.monotonic()
    log.write(f"\n== {part.name}: {' '.join(part.command)}\n")
    log.flush()
    process = subprocess.Popen(
        part.command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT, start_new_session=True
    )
    try:
        out, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return [Row(part.name, "", "late", f"ended after {limit_s:.0f} s", limit_s)]
    seconds = time.monotonic() - begun_s
    log.write(out)
    log.flush()
    try:
        said = json.loads(out)
        return [Row(part.name, *row, seconds) for row in part.rows(said)]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        reason = _reason(options) or str(error)
        verdict = "not there" if "No such command" in reason else _failure(process.returncode)
        return [Row(part.name, "", verdict, reason, seconds)]


def _failure(code: int) -> str:
    return f"failed ({signal.Signals(-code).name})" if code < 0 else f"failed ({code})"


def _reason(options: Options) -> str:
    """The last line that the part wrote to the log."""
    lines = (options.out / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()
    said = [line for line in lines if line.strip() and not line.startswith("==")]
    return said[-1][:200] if said and not lines[-1].startswith("==") else ""


def table(rows: Sequence[Row]) -> str:
    """The rows in columns."""
    shown, last = [("part", "what", "verdict", "found", "s")], ""
    for row in rows:
        first = row.part != last
        name, seconds = (row.part, f"{row.seconds:.0f}") if first else ("", "")
        shown.append((name, row.what[:44], row.verdict, row.found[:150], seconds))
        last = row.part
    widths = [max(len(line[column]) for line in shown) for column in range(3)]
    return "\n".join(
        "  ".join(
            (*(cell.ljust(width) for cell, width in zip(line[:3], widths, strict=True)), line[3], line[4])
        ).rstrip()
        for line in shown
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--short", action="store_true", help="less of everything")
    parser.add_argument(
        "--limit", type=float, default=LIMIT_S, metavar="SECONDS", help="for all parts; three times it on a CPU"
    )
    parser.add_argument("--only", action="append", metavar="PART", help="a part, by the start of its name; repeatable")
    given = parser.parse_args()
    options = Options(given.device, given.short, Path(os.environ.get("OUT", "device-check")).resolve())
    options.out.mkdir(parents=True, exist_ok=True)
    for file in options.out.glob("store.sqlite*"):
        file.unlink()
    end_s = time.monotonic() + options.patience * given.limit
    rows: list[Row] = []
    with (options.out / "log.txt").open("w", encoding="utf-8") as log:
        for part in parts(options):
            if given.only and not any(part.name.startswith(name) for name in given.only):
                continue
            own_s = options.patience * (part.short_s if options.short else part.limit_s)
            limit_s = min(own_s, end_s - time.monotonic())
            if limit_s < 1:
                rows.append(Row(part.name, "", "late", "no time was left for it"))
                continue
            sys.stderr.write(f"{part.name}\n")
            rows += run(part, options, limit_s, log)
            (options.out / "results.json").write_text(json.dumps([vars(row) for row in rows], indent=1))
    text = table(rows)
    (options.out / "table.txt").write_text(text + "\n", encoding="utf-8")
    print(text)
    return int(any(row.verdict == "WRONG" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
