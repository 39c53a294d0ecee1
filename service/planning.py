"""The commands that choose and explain strategies; `cli.py` adds them to the others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from service.console import execution_of, open_store, show
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
    Optimizer,
    Peak,
    Plot,
    Power,
    Precision,
    Price,
    Recompute,
    Strategies,
    Strategy,
)

if TYPE_CHECKING:
    from service.figures import Rates


def advise(
    model: Model,
    calibration: CalibrationName = None,
    batch: Batch = None,
    batch_per_device: BatchPerDevice = None,
    devices: Devices = "1",
    strategy: Strategies = None,
    cluster: ClusterFile = None,
    link: LinkText = None,
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
    """Rank all strategies for a model and a number of devices.

    Says what holds the fastest and what would change it, and why the others cannot be used.
    """
    from service.advising import advise as use_case
    from service.requests import PlanRequest, parse_devices, parse_memory

    _plot_suffix(plot)
    request = PlanRequest(
        model=model,
        calibration=calibration,
        strategies=tuple(strategy or ()),
        devices=parse_devices(devices),
        batch=batch,
        batch_per_device=batch_per_device,
        cluster=cluster,
        link=link,
        memory_bytes=parse_memory(memory),
        dataset_samples=dataset_samples,
        execution=execution_of(precision, memory_format, optimizer, recompute),
        rates=_rates(epochs, power, price, peak),
    )
    with open_store(db) as store:
        result = use_case(store, request)
    if plot is not None:
        from service.plotting import plot_advice

        plot_advice(result, plot)
    show("advise", result, json)


def scale(
    model: Model,
    calibration: CalibrationName = None,
    batch: Batch = None,
    batch_per_device: BatchPerDevice = None,
    devices: Devices = "1..1024",
    strategy: Strategies = None,
    cluster: ClusterFile = None,
    link: LinkText = None,
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
    """Predict how strategies scale over devices.

    With --batch the work is fixed (strong scaling), with --batch-per-device it grows (weak scaling).
    """
    from service.advising import scale as use_case
    from service.requests import PlanRequest, parse_devices, parse_memory

    _plot_suffix(plot)
    request = PlanRequest(
        model=model,
        calibration=calibration,
        strategies=tuple(strategy or ()),
        devices=parse_devices(devices),
        batch=batch,
        batch_per_device=batch_per_device,
        cluster=cluster,
        link=link,
        memory_bytes=parse_memory(memory),
        dataset_samples=dataset_samples,
        execution=execution_of(precision, memory_format, optimizer, recompute),
        rates=_rates(epochs, power, price, peak),
    )
    with open_store(db) as store:
        result = use_case(store, request)
    if plot is not None:
        from service.plotting import plot_scaling

        plot_scaling(result, plot)
    show("scale", result, json)


def explain(
    model: Model,
    calibration: CalibrationName = None,
    batch: Batch = None,
    batch_per_device: BatchPerDevice = None,
    devices: Devices = "1",
    strategy: Strategy = None,
    cluster: ClusterFile = None,
    link: LinkText = None,
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
    """Break one prediction down by layer, phase and transfer.

    Says what holds the step, how large each share is and why, and what would change it.
    """
    from service.advising import explain as use_case
    from service.requests import PlanRequest, parse_devices, parse_memory

    _plot_suffix(plot)
    request = PlanRequest(
        model=model,
        calibration=calibration,
        strategies=() if strategy is None else (strategy,),
        devices=parse_devices(devices),
        batch=batch,
        batch_per_device=batch_per_device,
        cluster=cluster,
        link=link,
        memory_bytes=parse_memory(memory),
        dataset_samples=dataset_samples,
        execution=execution_of(precision, memory_format, optimizer, recompute),
        rates=_rates(epochs, power, price, peak),
    )
    with open_store(db) as store:
        result = use_case(store, request)
    if plot is not None:
        from service.plotting import plot_explanation

        plot_explanation(result, plot)
    show("explain", result, json)


PLANNING = (advise, scale, explain)
"""The commands of this file."""


def _rates(epochs: int, power_w: float | None, price: float | None, peak_tflops: float | None) -> Rates:
    from oracle.units import tera
    from service.figures import Rates

    return Rates(epochs, power_w, price, None if peak_tflops is None else tera(peak_tflops))


def _plot_suffix(plot: Path | None) -> None:
    """Refuse a picture that cannot be drawn before anything is computed for it."""
    if plot is not None:
        from service.plotting import check_plot

        check_plot(plot)
