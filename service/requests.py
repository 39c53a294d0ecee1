"""What the use cases are asked, as values checked before anything is measured or predicted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from oracle.constants import checked_text
from oracle.errors import BadInput, OutOfRange
from oracle.execution import Execution
from oracle.units import parse_bytes
from service.figures import Rates

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
class Target:
    """What is to be trained, how, on which machine; the part that predictions and advice share.

    Args:
        calibration: its name; None takes the newest.
        devices: device counts, one after the other.
        batch: the global batch, or batch_per_device: the samples on each device. Exactly one of the two.
        cluster: a YAML file, or link: `latency,bandwidth` such as `9us,50GB/s`.
        network: a stored network whose curves price the transfers; without a cluster its devices are of one tier.
        environment: which of the network's environments.
        memory_bytes: of one device; None takes what the cluster file or the calibration says.
        dataset_samples: samples per epoch; None takes the model's own.
    """

    calibration: str | None = None
    devices: tuple[int, ...] = (1,)
    batch: int | None = None
    batch_per_device: int | None = None
    cluster: Path | None = None
    link: str | None = None
    network: str | None = None
    environment: str | None = None
    memory_bytes: float | None = None
    dataset_samples: int | None = None
    execution: Execution = field(default_factory=Execution)

    def __post_init__(self) -> None:
        self._check_batch()
        self._check_devices()
        self._check_network()
        self._check_memory()

    def _check_batch(self) -> None:
        if self.batch is None and self.batch_per_device is None:
            raise BadInput("give a batch: --batch (over all devices) or --batch-per-device")
        if self.batch is not None and self.batch_per_device is not None:
            raise BadInput("give either --batch or --batch-per-device, not both")
        for what, batch in (("--batch", self.batch), ("--batch-per-device", self.batch_per_device)):
            if batch is not None and batch < 1:
                raise OutOfRange(f"{what} must be at least 1, not {batch}")

    def _check_devices(self) -> None:
        if not self.devices:
            raise BadInput("name at least one number of devices")
        for devices in self.devices:
            if devices < 1:
                raise OutOfRange(f"--devices must be at least 1, not {devices}")

    def _check_network(self) -> None:
        if self.link is not None and (self.cluster is not None or self.network is not None):
            other = "--network" if self.cluster is None else "--cluster"
            raise BadInput(f"give either {other} or --link, not both")
        if self.environment is not None and self.network is None:
            raise BadInput("--environment chooses among those of a --network")
        named = (self.cluster, self.link, self.network)
        if max(self.devices) > 1 and all(network is None for network in named):
            raise BadInput(
                f"{max(self.devices)} devices need a network: --cluster FILE.yaml, --link LATENCY,BANDWIDTH "
                "(such as 9us,50GB/s), or a stored one, --network NAME"
            )

    def _check_memory(self) -> None:
        if self.memory_bytes is not None and not 0 < self.memory_bytes < math.inf:
            raise OutOfRange(f"--memory must be more than zero bytes, not {self.memory_bytes}")

    def global_batch(self, devices: int) -> int:
        """The global batch at a number of devices."""
        return self.batch if self.batch is not None else (self.batch_per_device or 0) * devices


@dataclass(frozen=True)
class PredictRequest(Target):
    """Predict training steps from a stored calibration.

    Args:
        models: what `service.models.find_model` reads.
        strategy: what `oracle.strategies.choices.parse_strategy` reads; None takes serial for one device and data for
            more.
    """

    models: tuple[str, ...] = ()
    strategy: str | None = None

    def __post_init__(self) -> None:
        if not self.models:
            raise BadInput("name at least one model")
        super().__post_init__()


@dataclass(frozen=True)
class PlanRequest(Target):
    """Compare strategies for a model, or explain one.

    Args:
        model: what `service.models.find_model` reads.
        strategies: what `oracle.strategies.choices.parse_strategy` reads; none takes all, or the default one.
        rates: what the devices cost.
    """

    model: str = ""
    strategies: tuple[str, ...] = ()
    rates: Rates = field(default_factory=Rates)


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


def parse_devices(text: str) -> tuple[int, ...]:
    """Read `1,2,4`, or `1..1024` for the first number, twice that, and so on up to the last.

    Raises:
        BadInput: anything but whole numbers between commas or two dots.

    >>> parse_devices("1,2,4"), parse_devices("3..20")
    ((1, 2, 4), (3, 6, 12, 20))
    """
    parts = text.split(",")
    try:
        return tuple(dict.fromkeys(chain.from_iterable(_doubling(*map(int, p.split("..", 1))) for p in parts)))
    except ValueError:
        raise BadInput(
            f"--devices takes whole numbers between commas, such as 1,2,4, or 1..1024, not '{text}'"
        ) from None


def _doubling(first: int, last: int | None = None) -> Iterator[int]:
    if last is None:
        yield first
        return
    if not 1 <= first <= last:
        raise OutOfRange(f"--devices goes from at least 1 up, not from {first} to {last}")
    while first < last:
        yield first
        first *= 2
    yield last


def parse_memory(text: str | None) -> float | None:
    """Read `--memory 16GiB`; None where nothing was given."""
    return None if text is None else parse_bytes(text)


def parse_model_batch(text: str) -> tuple[str, int]:
    """Read `resnet50:8`: a model and the samples of one step.

    Raises:
        BadInput: no `:`, or no whole number behind it.

    >>> parse_model_batch("resnet50:8")
    ('resnet50', 8)
    """
    model, colon, batch = text.rpartition(":")
    if not colon or not model or not (batch.isascii() and batch.isdecimal()) or len(batch) > 15:
        raise BadInput(f"write a model and a batch, such as resnet50:8, not '{text}'")
    if int(batch) < 1:
        raise OutOfRange(f"the batch of {model} must be at least 1, not {batch}")
    return model, int(batch)


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
