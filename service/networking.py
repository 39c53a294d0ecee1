"""The commands on networks and on files that people already have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.console import open_reader, open_store, show
from service.options import CalibrationName, Db, Dtypes, Json, NetworkEnvironment, NetworkName, NoPrior


def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Logs, tables or traces; plain or gzip.")],
    collective: Annotated[str | None, typer.Option(help="Such as all_reduce, where the log does not say.")] = None,
    ranks: Annotated[int | None, typer.Option(help="Of the run, where the log does not say.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Of the run, where the log does not say.")] = None,
    device: Annotated[str | None, typer.Option(help="Name of the device, where the log does not say.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="List dropped rows line by line.")] = False,
    db: Db = None,
    json: Json = False,
) -> None:
    """Store what other tools measured, and say what was left out.

    Recognises logs of nccl-tests, rccl-tests, OSU, perftest and others by their content. The same file twice adds
    nothing.
    """
    from service.importing import ImportRequest, import_files

    request = ImportRequest(tuple(files), collective, ranks, nodes, device, verbose)
    with open_store(db) as store:
        result = import_files(store, request)
    show("import", result, json)
    for file in result.refused:
        typer.echo(f"error: {file.error_line}", err=True)
    if result.refused:
        raise typer.Exit(2)


def fit(
    sources: Annotated[
        list[str], typer.Option("--from", metavar="SOURCE", help="A run, or a file that was imported; repeatable.")
    ],
    name: Annotated[str, typer.Option(help="Name of the new calibration.")],
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Only such: device=A100, flag=calib, ranks<=32; repeatable."),
    ] = None,
    job: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="What marks one job of a scaling study, such as tag; repeatable."),
    ] = None,
    no_prior: NoPrior = False,
    db: Db = None,
    json: Json = False,
) -> None:
    """Fit stored measurements: a network's or a device's.

    Collectives become a network for 'predict --network', kernels a calibration like that of 'calibrate'. Different
    devices are refused, different environments stay apart.
    """
    from service.fitting import FitRequest, fit_stored

    request = FitRequest(tuple(sources), name, tuple(where or ()), tuple(job or ()), prior=not no_prior)
    with open_store(db) as store:
        result = fit_stored(store, request)
    show("fit", result, json)


def price(
    file: Annotated[Path, typer.Argument(metavar="FILE.csv", help="Rows of collectives or kernels; see the README.")],
    calibration: CalibrationName = None,
    network: NetworkName = None,
    environment: NetworkEnvironment = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the rows with predicted_s, lo_s, hi_s, method.")
    ] = None,
    where: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN=VALUE", help="Only such rows: tag=a, nranks<=32; repeatable.")
    ] = None,
    by: Annotated[
        str | None, typer.Option(metavar="COLUMN,...", help="Groups of the scores. Default: collective, or op.")
    ] = None,
    db: Db = None,
    json: Json = False,
) -> None:
    """Price every row of a table, and score rows with a time.

    Collectives (collective, bytes, nranks, nnodes, dtype) need a --network, kernels (op, phase, dtype and a shape) a
    --calibration.
    """
    from service.row_pricing import PriceRequest, price_table

    groups = () if by is None else tuple(by.split(","))
    request = PriceRequest(file, calibration, network, environment, out, tuple(where or ()), groups)
    with open_reader(db) as store:
        result = price_table(store, request)
    show("price", result, json)


def collect(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Where ranks kept their files.")],
    name: Annotated[str | None, typer.Option(help="Fit them to a network of this name. Default: store only.")] = None,
    db: Db = None,
    json: Json = False,
) -> None:
    """Store what ranks on a cluster measured, and fit it.

    Says what is cut short, missing or of another run. The same files twice add nothing.
    """
    from service.collecting import collect_folders

    with open_store(db) as store:
        result = collect_folders(store, folders, name)
    show("collect", result, json)


def plan_measurement(
    cluster: Annotated[Path, typer.Option("--cluster", metavar="FILE", help="The network, tier by tier, in YAML.")],
    max_nodes: Annotated[int, typer.Option("--max-nodes", help="Of one job.")] = 8,
    budget: Annotated[str, typer.Option(metavar="TIME", help="Longest time of measuring in one job.")] = "30min",
    device: Annotated[str, typer.Option("--device", help="cuda (NCCL) or cpu (Gloo).")] = "cuda",
    dtypes: Dtypes = None,
    folder: Annotated[
        Path, typer.Option("--folder", metavar="DIR", help="For the files of all ranks; every node must see it.")
    ] = Path("collectives"),
    sbatch: Annotated[
        Path | None, typer.Option("--sbatch", metavar="FILE", help="Write a batch script for Slurm, one for each job.")
    ] = None,
    json: Json = False,
) -> None:
    """Say what to measure on a cluster, and how to start it.

    Runs on a login node, without torch: on how many nodes, for how long, and why, from the tiers of a cluster file.
    """
    from oracle.units import parse_seconds
    from service.measurement_plan import PlanRequest, write_scripts
    from service.measurement_plan import plan_measurement as use_case

    types = tuple(part.strip() for part in (dtypes or "fp32").split(","))
    plan = use_case(PlanRequest(cluster, max_nodes, parse_seconds(budget), device, types, folder))
    show("plan-measurement", plan if sbatch is None else write_scripts(plan, sbatch), json)
