"""The command that predicts steps."""

from __future__ import annotations

from typing import Annotated

import typer

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
    Json,
    LinkText,
    MemoryFormat,
    NetworkEnvironment,
    NetworkName,
    Optimizer,
    Precision,
    Recompute,
    Strategy,
)


def predict(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="alexnet, vgg16, resnet50, resnet152, cosmoflow, a .json or .net file, or MODULE:FACTORY in Python.",
        ),
    ],
    calibration: CalibrationName = None,
    batch: Batch = None,
    batch_per_device: BatchPerDevice = None,
    devices: Devices = "1",
    strategy: Strategy = None,
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
    db: Db = None,
    json: Json = False,
) -> None:
    """Predict training steps and epochs; needs no GPU.

    Prices every layer of the model from a stored calibration. Runs on any machine, without torch.
    """
    from service.predicting import predict as use_case
    from service.requests import PredictRequest, parse_devices, parse_memory

    request = PredictRequest(
        models=tuple(models),
        calibration=calibration,
        strategy=strategy,
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
    )
    with open_reader(db) as store:
        result = use_case(store, request)
    show("predict", result, json)
