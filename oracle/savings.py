"""What makes a job fit into memory at the price of time: activations computed again, and gradients accumulated.

Recomputation (Chen et al., 2016, arXiv 1604.06174) costs a second forward and holds next to no activations, under any
strategy. Accumulation costs the launches of more and smaller passes and holds the activations of one of them; only data
parallelism, alone or around groups, has passes. Memory falls with every further pass and the step grows, so the fewest
passes that fit are the best; their number is doubled until they fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from oracle.memory import MemoryRule, memory_of
from oracle.plan import Job, Strategy
from oracle.strategies.data import Data
from oracle.strategies.hybrid import Hybrid
from oracle.whatif import recomputation


def savings(job: Job, strategy: Strategy, rule: MemoryRule) -> Iterator[tuple[Job, Strategy]]:
    """Variants that fit of a strategy that can be planned and does not: with passes, recomputation, or both."""
    again = recomputation(job, strategy)
    for asked in (job, *([again.job] if again else [])):
        for passes in _in_passes(asked, strategy):
            if memory_of(passes.plan(asked), rule).fits:
                yield asked, passes
                break


def no_help(job: Job, strategy: Strategy) -> str:
    """What does not make a job fit, as a sentence; empty where there was nothing to try."""
    ways = ["recomputation"] if recomputation(job, strategy) else []
    ways += ["accumulation"] if isinstance(strategy, Data | Hybrid) else []
    return f"{' and '.join(ways)} {'does' if len(ways) == 1 else 'do'} not help" if ways else ""


def _in_passes(job: Job, strategy: Strategy) -> Iterator[Strategy]:
    """The strategy itself, and with its passes doubled as long as every one of them has samples for all devices."""
    while strategy.limit(job).refusal(strategy.name, job) is None:
        yield strategy
        if isinstance(strategy, Data):
            strategy = replace(strategy, accumulation=2 * strategy.accumulation)
        elif isinstance(strategy, Hybrid):
            outer = replace(strategy.outer, accumulation=2 * strategy.outer.accumulation)
            strategy = replace(strategy, outer=outer)
        else:
            return
