"""All strategies priced and ranked: choices, ties, refusals, the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from oracle.estimate import DRAWS
from oracle.execution import Execution
from oracle.layer import Phase
from oracle.layers import Linear, Loss
from oracle.links import LinkTimer
from oracle.loading import load_model
from oracle.machine import Cluster, Link, Tier
from oracle.model import GraphBuilder, ModelGraph
from oracle.plan import Job
from oracle.predictor import Predictor
from oracle.pricing import IdealTimer, LayerCall, Method, Prices
from oracle.search import Option, grids, pareto, rank, variants
from oracle.strategies import STRATEGIES, strategy
from oracle.strategies.choices import parse_strategy
from oracle.strategies.data import Data
from oracle.strategies.hybrid import Hybrid
from oracle.windows import Conv

NODES = Cluster("nodes", "any", (Tier("node", Link(1e-6, 1e10), 4), Tier("all", Link(1e-5, 1e9))))
IDEAL = IdealTimer.of_rate(1e12)
PREDICTOR = Predictor(IDEAL, LinkTimer)


@dataclass(frozen=True)
class UncertainTimer:
    """An ideal device whose rate is uncertain by 20 %, common to all calls."""

    def price(self, calls: Sequence[LayerCall]) -> Prices:
        middle = IDEAL.price(calls).middle_s
        common = np.exp(0.2 * np.random.default_rng(7).standard_normal(DRAWS))
        return Prices(middle, middle[:, None] * common, (Method.FITTED,) * len(calls))


def net() -> ModelGraph:
    build = GraphBuilder("net", (4, 16, 16))
    build.add("conv1", Conv.of((4, 16, 16), 8, 3, padding=1))
    build.add("conv2", Conv.of((8, 16, 16), 8, 3, padding=1))
    build.add("fc", Linear(2048, 8))
    build.add("loss", Loss("cross_entropy", (8,)))
    return build.graph(dataset_samples=1000)


def job(devices: int = 8, batch: int = 64, cluster: Cluster = NODES) -> Job:
    return Job(net(), batch, devices, cluster)


def step_s(option: Option) -> float:
    assert option.projection.step is not None
    return option.projection.step.middle


def test_every_strategy_is_ranked_or_refused_with_a_reason() -> None:
    ranking = rank(PREDICTOR, job())
    names = [option.strategy.name for option in ranking.options] + [item.strategy for item in ranking.refused]
    assert sorted(names) == sorted(STRATEGIES)
    assert all(item.reason for item in ranking.refused)
    assert "serial training can use 1 device" in next(r.reason for r in ranking.refused if r.strategy == "serial")


def test_options_come_fastest_first_and_are_the_fastest_of_their_strategy() -> None:
    ranking = rank(PREDICTOR, job())
    times = [step_s(option) for option in ranking.options]
    assert times == sorted(times)
    for option in ranking.options:
        rivals = [o for o in ranking.tried if o.strategy.name == option.strategy.name]
        assert step_s(option) == min(map(step_s, rivals))


@pytest.mark.parametrize("name", STRATEGIES)
def test_no_choice_is_slower_than_the_default(name: str) -> None:
    default = PREDICTOR.project(job(), strategy(name))
    ranking = rank(PREDICTOR, job(), [name])
    if default.step is None or default.reason:
        return
    assert step_s(ranking.options[0]) <= default.step.middle * (1 + 1e-12)


def test_what_does_not_fit_is_refused_with_the_batch_that_does() -> None:
    small = replace(NODES, memory_bytes=300_000.0)
    ranking = rank(PREDICTOR, job(4, 1024, small), ["filter"])
    assert not ranking.options
    (refusal,) = ranking.refused
    assert "does not fit" in refusal.reason
    assert "the largest global batch that fits is" in refusal.reason


def with_room_for(share: float, what: Job, name: str) -> Job:
    """The job on devices with a share of the memory that the strategy's default needs."""
    memory = PREDICTOR.project(what, strategy(name)).memory
    assert memory is not None
    return replace(what, cluster=replace(what.cluster, memory_bytes=share * memory.total_bytes))


def test_gradients_are_accumulated_in_the_fewest_passes_that_fit() -> None:
    tight = with_room_for(0.6, job(4, 4096), "data")
    (option,) = rank(PREDICTOR, tight, ["data"]).options
    assert option.projection.feasible
    assert isinstance(option.strategy, Data)
    assert option.strategy.accumulation == 2
    assert parse_strategy(option.label) == option.strategy


def test_groups_accumulate_as_devices_do() -> None:
    ranking = rank(PREDICTOR, with_room_for(0.2, job(4, 4096), "data+filter"), ["data+filter"])
    assert any(isinstance(o.strategy, Hybrid) and o.strategy.outer.accumulation > 1 for o in ranking.tried)


def test_activations_are_computed_again_where_nothing_is_accumulated() -> None:
    build = GraphBuilder("deep", (64,))
    for index in range(16):
        build.add(f"fc{index}", Linear(64, 64))
    build.add("loss", Loss("cross_entropy", (64,)))
    what = replace(job(4, 4096), model=build.graph())
    (option,) = rank(PREDICTOR, with_room_for(0.7, what, "filter"), ["filter"]).options
    assert option.recomputed_segments == 4  # the root of 17 layers
    assert option.projection.feasible
    assert step_s(option) > step_s(rank(PREDICTOR, what, ["filter"]).options[0])


def test_where_a_variant_fits_nothing_is_saved() -> None:
    for option in rank(PREDICTOR, with_room_for(1.01, job(4, 4096), "data"), ["data"]).tried:
        assert "accumulation" not in option.label
        assert not option.recomputed_segments


@pytest.mark.parametrize(
    ("name", "recompute", "says"),
    [
        ("data", 0, "recomputation and accumulation do not help"),
        ("filter", 0, "recomputation does not help"),
        ("data", 2, "accumulation does not help"),
        ("filter", 2, "fits is"),
    ],
)
def test_what_cannot_be_saved_is_said(name: str, recompute: int, says: str) -> None:
    tight = replace(job(4, 1024), execution=Execution(recomputed_segments=recompute))
    tight = replace(tight, cluster=replace(tight.cluster, memory_bytes=150_000.0))
    (refusal,) = rank(PREDICTOR, tight, [name]).refused
    assert says in refusal.reason
    assert refusal.reason.count("help") == ("help" in says)


def test_of_equal_options_the_front_keeps_the_first() -> None:
    ranking = rank(PREDICTOR, job(1))
    assert pareto(ranking.tried)[0].label == "serial"


def test_a_tie_is_a_difference_that_straddles_zero() -> None:
    # Compute is shared, so strategies with the same compute differ by transfers that are certain: no tie...
    uncertain = Predictor(UncertainTimer(), LinkTimer)
    ranking = rank(uncertain, job(4), ["data", "zero"])
    first, second = (option.projection.step for option in ranking.options)
    assert first is not None
    assert second is not None
    # ...although each alone is uncertain by far more than they differ.
    assert first.interval()[1] > second.interval()[0]
    straddles = (second - first).interval()[0] <= 0
    assert ranking.options[1].tied is straddles
    assert ranking.options[0].tied is False


def test_the_front_has_nothing_that_another_option_beats() -> None:
    tried = [option for devices in (1, 2, 4, 8) for option in rank(PREDICTOR, job(devices)).tried]
    front = pareto(tried)
    assert 0 < len(front) < len(tried)
    for kept in front:
        for other in tried:
            worse = other.seconds_per_sample >= kept.seconds_per_sample or other.memory_bytes >= kept.memory_bytes
            assert worse or other.projection.job.devices >= kept.projection.job.devices
    fastest = min(tried, key=lambda option: option.seconds_per_sample)
    assert fastest.seconds_per_sample == front[0].seconds_per_sample


def test_grids_have_all_devices_and_fit_the_sample() -> None:
    what = Job(load_model("cosmoflow"), 8, 8, Cluster.of_link("any", Link(1e-6, 1e9)))
    found = grids(what)
    # Cuts of a cube into 8: 2 + 2 + 2 and 4 + 2 faces per block's rows are the fewest, 8 along one axis the most.
    assert {(2, 2, 2), (4, 2)} <= set(found)
    assert (8,) not in found
    assert all(np.prod(grid) == 8 for grid in found)


def test_one_device_needs_no_choices() -> None:
    assert variants(job(1), strategy("spatial")) == (strategy("spatial"),)


def test_updates_are_what_phases_say() -> None:
    # A search prices updates as well, one call for all layers: an infinitely fast forward and backward leaves it.
    timer = IdealTimer(lambda call: 1.0 if call.phase is Phase.UPDATE else 0.0)
    ranking = rank(Predictor(timer, LinkTimer), job(2), ["data", "filter"])
    assert {round(step_s(option)) for option in ranking.options} == {1}
