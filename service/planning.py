"""The commands that choose and explain strategies."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from service.console import execution_of, open_reader, show
from service.options import (
    Batch,
    BatchPerDevice,
    CalibrationName,
    ClusterFile,
    DatasetSamples,
    Db,
    DeviceMemory,
    Devices,
    Epochs,
    Json,
    LinkText,
    MemoryFormat,
    Model,
    NetworkEnvironment,
    NetworkName,
    Optimizer,
    Peak,
    Plot,
    Power,
    Precision,
    Price,
    Recompute,
    Strategies,
)

if TYPE_CHECKING:
    from service.figures import Rates


def _command(name: str, text: str, default_devices: str) -> Callable[..., None]:
    """A command of this file: they ask for the same things and differ in what they answer.

    Args:
        name: of the command, of its use case in `service.advising` and of its picture in `service.plotting`.
        text: its help.
        default_devices: what it looks at where nobody says how many devices there are.
    """

    def command(
        model: Model,
        calibration: CalibrationName = None,
        batch: Batch = None,
        batch_per_device: BatchPerDevice = None,
        devices: Devices = default_devices,
        strategy: Strategies = None,
        cluster: ClusterFile = None,
        link: LinkText = None,
        network: NetworkName = None,
        environment: NetworkEnvironment = None,
        memory: DeviceMemory = None,
        dataset_samples: DatasetSamples = None,
        precision: Precision = "fp32",
        memory_format: MemoryFormat = "channels_first",
        optimizer: Optimizer = "sgd_momentum",
        recompute: Recompute = 0,
        epochs: Epochs = 1,
        power: Power = None,
        price: Price = None,
        peak: Peak = None,
        plot: Plot = None,
        db: Db = None,
        json: Json = False,
    ) -> None:
        from service.advising import USE_CASES
        from service.plotting import PLOTS, check_plot
        from service.requests import PlanRequest, parse_devices, parse_memory

        if plot is not None:  # refused before anything is computed for it
            check_plot(plot)
        request = PlanRequest(
            model=model,
            calibration=calibration,
            strategies=tuple(strategy or ()),
            devices=parse_devices(devices),
            batch=batch,
            batch_per_device=batch_per_device,
            cluster=cluster,
            link=link,
            network=network,
            environment=environment,
            memory_bytes=parse_memory(memory),
            dataset_samples=dataset_samples,
            execution=execution_of(precision, memory_format, optimizer, recompute),
            rates=_rates(epochs, power, price, peak),
        )
        with open_reader(db) as store:
            result = USE_CASES[name](store, request)
        if plot is not None:
            PLOTS[name](result, plot)
        show(name, result, json)

    command.__name__, command.__doc__ = name, text
    return command


advise = _command(
    "advise",
    """Rank all strategies for a model and a number of devices.

    Says what holds the fastest and what would change it, and why the others cannot be used.
    """,
    "1",
)
scale = _command(
    "scale",
    """Predict how strategies scale over devices.

    With --batch the work is fixed (strong scaling), with --batch-per-device it grows (weak scaling).
    """,
    "1..1024",
)
explain = _command(
    "explain",
    """Break one prediction down by layer, phase and transfer.

    Says what holds the step, how large each share is and why, and what would change it.
    """,
    "1",
)


def _rates(epochs: int, power_w: float | None, price: float | None, peak_tflops: float | None) -> Rates:
    from oracle.units import tera
    from service.figures import Rates

    return Rates(epochs, power_w, price, None if peak_tflops is None else tera(peak_tflops))
