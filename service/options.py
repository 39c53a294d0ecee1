"""The options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

STRATEGY_NAMES = (
    "serial, data, spatial, pipeline, filter, channel, owt, zero, and data+ any of the last six "
    "(data+filter, data+spatial...)"
)
"""What a strategy may be called: written out, because help texts must not load the strategies."""

Db = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="URL",
        help="Database: a file or an SQLAlchemy URL. Default: $STEPGAUGE_DB, else your data folder.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
CalibrationName = Annotated[
    str | None, typer.Option("--calibration", metavar="NAME", help="A stored calibration. Default: the newest.")
]
Device = Annotated[str, typer.Option("--device", help="Kind of device: cpu, cuda, or simulated (a made-up one).")]
RealDevice = Annotated[str, typer.Option("--device", help="Kind of device: cpu or cuda.")]
Precision = Annotated[str, typer.Option("--precision", help="fp32, tf32, bf16 or fp16.")]
MemoryFormat = Annotated[str, typer.Option("--memory-format", help="channels_first or channels_last.")]
Optimizer = Annotated[str, typer.Option("--optimizer", help="sgd, sgd_momentum, adam or adamw.")]
Recompute = Annotated[
    int,
    typer.Option(
        "--recompute", metavar="SEGMENTS", help="Keep no activations inside so many segments; compute them again."
    ),
]
Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="alexnet, vgg16, resnet50, resnet152, cosmoflow, a .json or .net file, or MODULE:FACTORY in Python.",
    ),
]
Batch = Annotated[int | None, typer.Option("--batch", help="Samples of one step over all devices.")]
BatchPerDevice = Annotated[int | None, typer.Option("--batch-per-device", help="Samples of one step on each device.")]
Devices = Annotated[str, typer.Option("--devices", help="Device counts, such as 1,2,4 or 1..1024 (doubling).")]
ClusterFile = Annotated[
    Path | None, typer.Option("--cluster", metavar="FILE", help="The network, tier by tier, in YAML.")
]
LinkText = Annotated[str | None, typer.Option("--link", help="The network as latency,bandwidth: 9us,50GB/s.")]
DeviceMemory = Annotated[
    str | None, typer.Option("--memory", metavar="SIZE", help="Memory of one device, such as 16GiB.")
]
DatasetSamples = Annotated[
    int | None, typer.Option("--dataset-samples", help="Samples per epoch. Default: the model's own.")
]
Strategy = Annotated[
    str | None,
    typer.Option(
        "--strategy",
        metavar="NAME[,CHOICE=VALUE...]",
        help=f"{STRATEGY_NAMES}; choices such as data,buckets=25MiB or data+filter,group=4. "
        "Default: serial, and data beyond one device.",
    ),
]
Strategies = Annotated[
    list[str] | None,
    typer.Option(
        "--strategy",
        metavar="NAME[,CHOICE=VALUE...]",
        help=f"{STRATEGY_NAMES}; repeatable. Default: all of them; to explain, data.",
    ),
]
Epochs = Annotated[int, typer.Option("--epochs", help="Epochs of the whole training.")]
Power = Annotated[
    float | None, typer.Option("--power", metavar="WATTS", help="Mean power of one device and its share of the node.")
]
Price = Annotated[float | None, typer.Option("--price", metavar="PRICE", help="Of one device for an hour.")]
Peak = Annotated[
    float | None, typer.Option("--peak", metavar="TFLOPS", help="Dense peak of one device in TFLOP/s, for the MFU.")
]
Plot = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE", help="Draw it into a .png, .svg or .html; needs matplotlib.")
]
NetworkName = Annotated[
    str | None, typer.Option("--network", metavar="NAME", help="A stored network; its curves price the transfers.")
]
NetworkEnvironment = Annotated[
    str | None, typer.Option("--environment", metavar="TEXT", help="Which environment of the network, or a part of it.")
]
For = Annotated[
    list[str] | None,
    typer.Option(
        "--for", metavar="MODEL[:BATCH]", help="Measure what this model needs at this batch per device; repeatable."
    ),
]
ForStrategies = Annotated[
    str | None,
    typer.Option("--strategies", metavar="NAME,NAME...", help=f"... under these strategies: {STRATEGY_NAMES}."),
]
Budget = Annotated[
    str | None, typer.Option("--budget", metavar="TIME", help="How long all of it may take, such as 90s or 10min.")
]
NoPrior = Annotated[
    bool, typer.Option("--no-prior", help="Kernels: learn nothing from the stored calibrations of other devices.")
]
Quick = Annotated[bool, typer.Option("--quick", help="Fewer cases: 5 minutes instead of 15.")]
Seed = Annotated[int, typer.Option("--seed", help="Order of the cases and random inputs.")]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume", help="Go on with the newest unfinished run of this device, or with the files of --collectives."
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Go on where doctor refuses; the result says so.")]
Processes = Annotated[
    int | None,
    typer.Option(
        "--processes",
        metavar="N",
        help="Fresh processes that measure in turn. Default: 3 from four minutes on, else 1.",
    ),
]
RunId = Annotated[str | None, typer.Option("--run", metavar="RUN", help="Go on with this run.")]
Collectives = Annotated[
    bool, typer.Option("--collectives", help="Measure collectives between processes; the next options are theirs.")
]
Ranks = Annotated[
    int | None, typer.Option("--ranks", help="Processes to start on this machine. Default: 2, or the launcher's.")
]
Largest = Annotated[
    str | None, typer.Option("--largest", metavar="SIZE", help="Largest message. Default: 64MiB, on GPUs 1GiB.")
]
Groups = Annotated[
    str | None,
    typer.Option(
        "--groups", metavar="KIND,...", help="all, node, across (one rank of each node), first:N (the first N)."
    ),
]
Dtypes = Annotated[str | None, typer.Option("--dtypes", metavar="TYPE,...", help="Such as fp32,bf16. Default: fp32.")]
Only = Annotated[
    str | None, typer.Option("--only", metavar="NAME,...", help="Such as all_reduce,p2p. Default: every collective.")
]
Concurrent = Annotated[bool, typer.Option("--concurrent", help="Measure groups also all at once: contention.")]
Spacing = Annotated[
    str | None,
    typer.Option(
        "--spacing",
        metavar="NAME,...",
        help="Between calls: back_to_back, pause (1 ms), compute. Default: back_to_back.",
    ),
]
Cupy = Annotated[bool, typer.Option("--cupy", help="Also through CuPy, GPUs of this machine: what torch adds.")]
Beside = Annotated[
    str | None,
    typer.Option(
        "--beside",
        metavar="NAME,...",
        help="Also while kernels run, and what each costs the other: matmul, conv2d, copy.",
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--folder", metavar="DIR", help="Where each rank keeps its file; needed under torchrun, srun, mpirun."
    ),
]
