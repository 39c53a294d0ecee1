"""What `calibrate` and `measure` do with --collectives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from oracle.errors import BadInput
from service.console import open_store, progress_bar, show

if TYPE_CHECKING:
    from service.collecting import CollectivesRequest


def collectives_request(budget: str | None, lists: Mapping[str, str | None], **fields: Any) -> CollectivesRequest:
    """The request that the options of a command make.

    Args:
        budget: a time.
        lists: texts of names separated by commas.
        fields: the others, as `CollectivesRequest` has them.
    """
    from oracle.units import parse_seconds
    from service.collecting import CollectivesRequest

    given = {name: tuple(part.strip() for part in text.split(",")) for name, text in lists.items() if text}
    return CollectivesRequest(budget_s=None if budget is None else parse_seconds(budget), **{**fields, **given})


def run_collectives(request: CollectivesRequest, fit: bool, db: str | None, json: bool) -> None:
    """Measure collectives and print what came of it; as one rank of many only rank 0 prints, and no store is opened."""
    from service.collecting import launched_rank, measure_here, take_part

    rank = launched_rank()
    if rank is None:
        with open_store(db) as store, progress_bar() as progress:
            result = measure_here(store, request, fit, progress)
    elif rank == 0:
        with progress_bar() as progress:
            result = take_part(request, progress)
    else:
        take_part(request)
        return
    show("collectives", result, json)


def refuse_strangers(collectives: bool, theirs: Mapping[str, object], kernels: Mapping[str, object]) -> None:
    """Refuse options of the other kind of measurement.

    Args:
        collectives: whether those are measured.
        theirs: options that only collectives have, by name.
        kernels: options that only kernels have.

    Raises:
        BadInput: one was given.
    """
    for name, value in (kernels if collectives else theirs).items():
        if value:
            raise BadInput(f"--{name} goes {'without' if collectives else 'with'} --collectives")
