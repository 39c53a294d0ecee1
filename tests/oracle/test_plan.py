"""Jobs, and what a graph runs in a step."""

from __future__ import annotations

from collections import Counter

import pytest

from oracle.errors import OutOfRange
from oracle.layer import Phase
from oracle.layers import Elementwise, Embedding, Linear, Norm
from oracle.machine import Cluster, Link, parse_link
from oracle.model import INPUT, GraphBuilder, ModelGraph
from oracle.plan import Job, Limit, StepPart, stage_of
from oracle.windows import Conv

CLUSTER = Cluster.of_link("any", Link(1e-6, 1e9), 8)


def residual() -> ModelGraph:
    """conv1 - relu - conv2 - add(conv2, relu) - fc; the result of relu is read twice."""
    build = GraphBuilder("residual", (4, 8, 8))
    build.add("conv1", Conv.of((4, 8, 8), 4, 3, padding=1))
    build.add("relu", Elementwise("relu", (4, 8, 8)))
    build.add("conv2", Conv.of((4, 8, 8), 4, 3, padding=1))
    build.add("add", Elementwise("add", (4, 8, 8)), "conv2", "relu")
    build.add("fc", Linear(256, 10))
    return build.graph(dataset_samples=100)


def counted(model: ModelGraph) -> Counter[tuple[str, Phase, StepPart]]:
    counts: Counter[tuple[str, Phase, StepPart]] = Counter()
    for task in stage_of(Job(model, 2, 1, CLUSTER), model.nodes, 2).tasks:
        assert task.call.samples == 2
        counts[task.call.layer.kind, task.call.phase, task.part] += task.count
    return counts


def test_the_tasks_of_a_residual_net_by_hand() -> None:
    assert counted(residual()) == {
        ("conv", Phase.FORWARD, StepPart.FORWARD): 2,
        ("conv", Phase.BACKWARD_DATA, StepPart.BACKWARD_DATA): 1,  # nobody needs the gradient of the pixels
        ("conv", Phase.BACKWARD_WEIGHT, StepPart.BACKWARD_WEIGHT): 2,
        ("elementwise", Phase.FORWARD, StepPart.FORWARD): 2,  # relu and add
        ("elementwise", Phase.BACKWARD_DATA, StepPart.BACKWARD_DATA): 1,  # relu; the sum passes its gradient on
        ("elementwise", Phase.FORWARD, StepPart.BACKWARD_DATA): 1,  # the two gradients of relu's result
        ("linear", Phase.FORWARD, StepPart.FORWARD): 1,
        ("linear", Phase.BACKWARD_DATA, StepPart.BACKWARD_DATA): 1,
        ("linear", Phase.BACKWARD_WEIGHT, StepPart.BACKWARD_WEIGHT): 1,
        ("parameters", Phase.UPDATE, StepPart.UPDATE): 1,  # those of all layers in one call
    }


def test_equal_calls_are_one_task_with_a_count() -> None:
    forward = [
        task
        for task in stage_of(Job(residual(), 2, 1, CLUSTER), residual().nodes, 2).tasks
        if task.part is StepPart.FORWARD
    ]
    # conv1 and conv2 have the same shape.
    assert sorted(task.count for task in forward) == [1, 1, 1, 2]


def test_gradients_of_an_input_read_twice_are_not_added_up() -> None:
    build = GraphBuilder("siamese", (8,))
    build.add("a", Linear(8, 4), INPUT)
    build.add("b", Linear(8, 4), INPUT)
    build.add("sum", Elementwise("add", (4,)), "a", "b")
    kinds = counted(build.graph())
    assert kinds["elementwise", Phase.FORWARD, StepPart.BACKWARD_DATA] == 0
    assert kinds["linear", Phase.BACKWARD_DATA, StepPart.BACKWARD_DATA] == 0


def test_a_first_normalisation_still_computes_its_parameters_gradients() -> None:
    build = GraphBuilder("normed", (4, 8, 8))
    build.add("bn", Norm("batch", (4, 8, 8)))
    assert counted(build.graph())["norm", Phase.BACKWARD_DATA, StepPart.BACKWARD_DATA] == 1
    build = GraphBuilder("plain", (4, 8, 8))
    build.add("bn", Norm("batch", (4, 8, 8), affine=False))
    build.add("fc", Linear(256, 2))
    assert counted(build.graph())["norm", Phase.BACKWARD_DATA, StepPart.BACKWARD_DATA] == 0


def test_a_table_of_vectors_has_no_gradient_of_its_tokens() -> None:
    build = GraphBuilder("words", (16,))
    build.add("table", Embedding(100, 8, 16))
    build.add("norm", Norm("layer", (16, 8)))
    parts = counted(build.graph())
    assert parts["embedding", Phase.BACKWARD_WEIGHT, StepPart.BACKWARD_WEIGHT] == 1
    assert parts["norm", Phase.BACKWARD_DATA, StepPart.BACKWARD_DATA] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"global_batch": 0}, "a global batch has at least one sample, not 0"),
        ({"devices": 0}, "training needs at least one device, not 0"),
        ({"devices": 9}, "cluster 'link' has 8 devices, not 9"),
        ({"dataset_samples": 0}, "a data set has at least one sample, not 0"),
    ],
)
def test_jobs_that_cannot_be_are_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(OutOfRange, match=message):
        Job(**{"model": residual(), "global_batch": 8, "devices": 2, "cluster": CLUSTER, **change})  # type: ignore[arg-type]


def test_an_epoch_reads_every_sample_and_so_rounds_its_steps_up() -> None:
    assert Job(residual(), 30, 1, CLUSTER).steps_per_epoch == 4  # 100 samples of the model's own data set
    assert Job(residual(), 30, 1, CLUSTER, dataset_samples=30).steps_per_epoch == 1
    build = GraphBuilder("unknown", (8,))
    build.add("fc", Linear(8, 4))
    assert Job(build.graph(), 30, 1, CLUSTER).steps_per_epoch is None


def test_a_limit_says_what_is_possible_and_why() -> None:
    job = Job(residual(), 8, 8, Cluster.of_link("any", parse_link("1us,1GB/s")))
    assert Limit(8, "why").refusal("data", job) is None
    assert Limit(4, "why").refusal("data", job) == "data parallelism can use 1 to 4 devices for residual, not 8 (why)"
    assert Limit(8, "why", refused="8 is no multiple of 3").refusal("data", job) == (
        "data parallelism cannot use 8 devices for residual (8 is no multiple of 3)"
    )
    assert Limit(1, "why").refusal("serial", job) == "serial training can use 1 device for residual, not 8 (why)"
