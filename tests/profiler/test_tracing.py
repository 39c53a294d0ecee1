"""Modules as graphs: their parameters, their operations and their edges are torch's own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from benchmarks import third_party  # noqa: E402
from oracle.errors import BadInput, MissingDependency  # noqa: E402
from oracle.layer import Phase  # noqa: E402
from oracle.layers import Attention, Concat, Elementwise, Embedding, Linear, Loss, Norm  # noqa: E402
from oracle.loading import load_model  # noqa: E402
from oracle.model import INPUT, ModelGraph  # noqa: E402
from oracle.operations import Matmul, Other  # noqa: E402
from oracle.windows import Conv, Pool  # noqa: E402
from profiler.torch_model import GraphModule, random_batch  # noqa: E402
from profiler.tracing.factory import Factory, Input, load_factory, parse_input  # noqa: E402
from profiler.tracing.trace import Traced, objective, trace  # noqa: E402

MODELS: dict[str, Callable[[], Any]] = {
    "resnet18": partial(third_party.resnet18, width=8, extent=64),
    "vgg": third_party.vgg,
    "densenet": third_party.densenet,
    "unet": third_party.unet,
    "resnet3d": partial(third_party.resnet3d, width=4, extent=16),
    "depthwise": third_party.depthwise,
    "encoder": partial(third_party.encoder, width=64, depth=2, vocabulary=100, tokens=12),
    "decoder": third_party.decoder,
    "pyramid": third_party.pyramid,
}
WHOLE = {"resnet18", "vgg", "resnet3d"}
"""The models that consist of known kinds only."""


def traced(make: Callable[[], Any], *inputs: Input, samples: int | None = None) -> Traced:
    return trace(Factory("nets.py:net", make), inputs, samples)


def module_of(make: Callable[[], Any]) -> Traced:
    """Trace a module on samples of (4, 6)."""
    return traced(make, Input((4, 6)))


def counted(make: Callable[[], Any]) -> tuple[int, int, int]:
    """Samples, and what torch's counter says of forward and backward, with attention as two and four products."""
    example = Factory("nets.py:net", make).example()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss = objective(example.module(*example.args, **example.kwargs), "net")
        forward = counter.get_total_flops()
        loss.backward()  # type: ignore[no-untyped-call]
    return example.samples, int(forward), int(counter.get_total_flops() - forward)


def counted_of_grouped_weights(graph: ModelGraph, samples: int) -> float:
    """What torch's counter counts too much: it takes the weight gradients of grouped convolutions `groups` times."""
    grouped = [node.layer for node in graph.nodes if isinstance(node.layer, Conv) and node.layer.groups > 1]
    return sum((layer.groups - 1) * layer.work(Phase.BACKWARD_WEIGHT, samples).flop for layer in grouped)


def flop_of(graph: ModelGraph, samples: int, *, backward: bool) -> float:
    """FLOP of what torch counts: products, convolutions, attention, and whatever else the trace found FLOP in."""
    total = 0.0
    for node in graph.nodes:
        layer = node.layer
        if isinstance(layer, Other):
            total += samples * (layer.backward_flop if backward else layer.flop)
        elif isinstance(layer, Conv | Linear | Matmul | Attention):
            phases = (Phase.BACKWARD_DATA, Phase.BACKWARD_WEIGHT) if backward else (Phase.FORWARD,)
            for phase in set(phases) & set(layer.phases):
                if phase is not Phase.BACKWARD_DATA or graph.needs_data_gradient[node.name]:
                    # A fused attention computes its scores once more in backward: five products instead of four.
                    share = 4 / 5 if backward and isinstance(layer, Attention) else 1
                    total += share * layer.work(phase, samples).flop
    return total


@pytest.mark.parametrize("name", MODELS)
def test_parameters_and_flop_are_those_that_torch_counts(name: str) -> None:
    found = traced(MODELS[name]).graph
    module = Factory("nets.py:net", MODELS[name]).example().module
    assert found.params == sum(param.numel() for param in module.parameters())
    samples, forward, backward = counted(MODELS[name])
    assert flop_of(found, samples, backward=False) == pytest.approx(forward, rel=1e-12)
    excess = counted_of_grouped_weights(found, samples)
    assert flop_of(found, samples, backward=True) == pytest.approx(backward - excess, rel=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_what_has_no_kind_is_named_and_nothing_else(name: str) -> None:
    found = traced(MODELS[name])
    others = [node.layer for node in found.graph.nodes if isinstance(node.layer, Other) and node.layer.phases]
    said = [note for note in found.notes if note.startswith("no layer kind for")]
    assert bool(others) == bool(said) == (name not in WHOLE)
    for layer in others:
        assert layer.operations in said[0]


@pytest.mark.parametrize("name", MODELS)
def test_a_traced_graph_survives_json_and_trains(name: str) -> None:
    found = traced(MODELS[name]).graph
    assert ModelGraph.from_json(found.to_json()) == found
    result = GraphModule(found)(*random_batch(found, 2, torch.device("cpu")))
    result.sum().backward()


@pytest.mark.parametrize("name", ["alexnet", "resnet50", "cosmoflow128"])
def test_tracing_the_module_of_a_graph_gives_the_graph(name: str) -> None:
    graph = load_model(name)
    found = traced(lambda: (GraphModule(graph), random_batch(graph, 2, torch.device("cpu")))).graph
    assert found.sample_shape == graph.sample_shape
    places = {node.name: f"layers.{index}" for index, node in enumerate(graph.nodes)} | {INPUT: INPUT}
    assert [node.name for node in found.nodes] == list(places.values())[:-1]
    for ours, theirs in zip(found.nodes, graph.nodes, strict=True):
        assert ours.layer == theirs.layer
        assert ours.inputs == tuple(places[name] for name in theirs.inputs)


def test_skips_of_a_unet_are_edges() -> None:
    graph = traced(third_party.unet).graph
    joins = [node for node in graph.nodes if isinstance(node.layer, Concat)]
    assert [node.layer.input_shapes for node in joins] == [((16, 16, 16), (16, 16, 16)), ((8, 32, 32), (16, 32, 32))]
    assert [node.inputs for node in joins] == [("down2.5", "up2"), ("down1.5", "upsample_nearest2d")]


def test_a_sum_in_place_reads_branch_and_skip() -> None:
    graph = traced(MODELS["resnet18"]).graph
    first = next(node for node in graph.nodes if isinstance(node.layer, Elementwise) and node.layer.op == "add")
    assert first.inputs == ("net.blocks.0.bn2", "net.stem.3")
    assert first.layer == Elementwise("add", (8, 16, 16), inplace=True)


def test_a_decoder_has_products_softmax_and_a_tied_projection() -> None:
    graph = traced(third_party.decoder).graph
    # 2 heads of 64, 32 tokens: scores (32, 64) x (64, 32), mixed (32, 32) x (32, 64).
    products = [node.layer for node in graph.nodes if isinstance(node.layer, Matmul)]
    assert products == [Matmul(2, 32, 64, 32), Matmul(2, 32, 32, 64)] * 2
    assert graph.nodes[-1].layer == Linear(128, 512, rows=32, bias=False, tied=True)
    assert isinstance(graph.nodes[0].layer, Embedding)
    assert Elementwise("softmax", (2, 32, 32)) in [node.layer for node in graph.nodes]


def test_an_encoder_ends_in_its_loss_and_holds_its_positions() -> None:
    graph = traced(MODELS["encoder"]).graph
    assert graph.nodes[-1].layer == Loss("cross_entropy", (12, 100))
    (positions,) = [node.layer for node in graph.nodes if node.layer.kind == "other" and node.layer.params]
    assert positions.params == 12 * 64
    assert sum(isinstance(node.layer, Attention) for node in graph.nodes) == 2


def test_a_convolution_that_is_used_again_holds_its_weights_once() -> None:
    graph = traced(third_party.pyramid).graph
    convs = [node.layer for node in graph.nodes if isinstance(node.layer, Conv)]
    # 16 pixels, halved after the first and the third use: 16, 8, 8, and 4 end the loop.
    assert [(layer.extents, layer.tied) for layer in convs] == [
        ((16, 16), False),
        ((16, 16), False),
        ((8, 8), True),
        ((8, 8), True),
    ]


def test_what_depends_on_values_is_refused_in_one_line_with_its_place() -> None:
    with pytest.raises(BadInput) as refused:
        traced(third_party.router)
    assert "cannot be traced: at third_party.py:" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_error_of_the_module_is_said_with_its_place() -> None:
    with pytest.raises(BadInput, match=r"fails on these inputs, at .*: RuntimeError"):
        traced(lambda: nn.Linear(5, 3), Input((4,)))


class RootMeanSquare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale


def test_operations_without_a_kind_are_one_layer_for_each_module() -> None:
    graph = module_of(lambda: nn.Sequential(nn.Linear(6, 6), RootMeanSquare(), nn.Linear(6, 6, bias=False))).graph
    assert [(node.name, node.layer.kind) for node in graph.nodes] == [("0", "linear"), ("1", "other"), ("2", "linear")]
    norm = graph.nodes[1].layer
    assert isinstance(norm, Other)
    assert (norm.operations, norm.weights, norm.output_shape) == ("pow+mean+add+rsqrt+mul", (6,), (4, 6))
    # per sample of 24 items in 4 rows: pow 24 + 24, mean 24 + 4, add 4 + 4, rsqrt 4 + 4, mul 24 + 4 + 24,
    # mul 24 + 24, and the scale's 6 a step (of 7 samples, rounded up)
    assert norm.moved == 48 + 28 + 8 + 8 + 52 + 48 + 1


class Sliced(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.entry, self.left, self.right = nn.Linear(6, 6), nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Any:
        first, second = self.entry(x).chunk(2, dim=-1)
        return torch.cat([self.left(first), self.right(second)], -1)


def test_parts_of_a_tensor_are_views_that_cost_nothing_forward() -> None:
    graph = module_of(Sliced).graph
    views = [node for node in graph.nodes if isinstance(node.layer, Other) and not node.layer.moved]
    assert {node.layer.output_items for node in views} == {12}
    assert graph.nodes[-1].layer == Concat((3, 3), (4,))
    assert {name.partition(".")[0] for name in graph.nodes[-1].inputs} == {"left", "right"}


class Overwritten(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.part = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Any:
        y = self.fc(x) * 2
        y[:, :2] += self.part(x[:, :2])
        return functional.relu(y)


def test_writing_into_a_part_makes_a_new_whole() -> None:
    graph = module_of(Overwritten).graph
    (last,) = (node for node in graph.nodes if node.name.startswith("relu"))
    before, names = set(), [last.name]
    inputs = {node.name: node.inputs for node in graph.nodes}
    while names:
        name = names.pop()
        before.add(name)
        names += [source for source in inputs.get(name, ()) if source not in before]
    assert {"fc", "part.mm"} <= before


class Sum(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Any:
        return sum(part(x) for part in self.parts) * scale


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Any:
        return x * self.scale


def norm_wrapped() -> Any:
    return nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))


def test_weights_that_are_computed_belong_to_the_computation() -> None:
    graph = module_of(norm_wrapped).graph
    assert graph.params == 6 * 6 + 6 + 6
    (linear,) = (node.layer for node in graph.nodes if isinstance(node.layer, Linear))
    assert linear.tied
    assert linear.bias


def test_torchs_own_attention_is_attention_where_it_returns_no_weights() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)  # with dropout, for which a CPU has no fused kernel
    graph = traced(lambda: layer, Input((5, 16))).graph
    assert Attention(2, 5, 5, 8) in [node.layer for node in graph.nodes]
    assert graph.params == sum(param.numel() for param in layer.parameters())


@pytest.mark.parametrize(
    ("module", "shape", "layer"),
    [
        (nn.Conv1d(4, 4, 3, padding=1, groups=2), (4, 9), Conv.of((4, 9), 4, 3, padding=1, groups=2)),
        (nn.ConvTranspose2d(4, 2, 2, stride=2), (4, 5, 5), Conv.of((4, 5, 5), 2, 2, stride=2, transposed=True)),
        (nn.MaxPool3d(2), (2, 4, 4, 4), Pool.of("max", (2, 4, 4, 4), 2)),
        (nn.AvgPool2d(3, 2, 1), (2, 8, 8), Pool.of("avg", (2, 8, 8), 3, stride=2, padding=1)),
        (nn.AdaptiveMaxPool2d(2), (2, 8, 8), Pool.of("max", (2, 8, 8), 4)),
        (nn.GroupNorm(2, 4), (4, 5, 5), Norm("group", (4, 5, 5), groups=2)),
        (nn.InstanceNorm2d(4, affine=True), (4, 5, 5), Norm("instance", (4, 5, 5))),
        (nn.LayerNorm((4, 5)), (4, 5), Norm("layer", (20,))),
        (nn.BatchNorm1d(4), (4,), Norm("batch", (4,))),
        (nn.Softmax(-1), (4, 5), Elementwise("softmax", (4, 5))),
        (nn.Dropout(0.1), (4,), Elementwise("dropout", (4,))),
        (nn.SiLU(), (4,), Elementwise("silu", (4,))),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)  # fmt: skip
def test_a_module_is_the_layer_that_it_names(module: nn.Module, shape: tuple[int, ...], layer: Any) -> None:
    # A parameter in front, so that modules without one have something to train.
    graph = traced(lambda: nn.Sequential(Scaled(), module), Input(shape)).graph
    assert [node.layer for node in graph.nodes if node.layer.kind != "other"] == [layer]


def test_frozen_and_unread_parameters_are_said() -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen, self.trained, self.spare = (
                nn.Linear(6, 6).requires_grad_(False),
                nn.Linear(6, 6),
                nn.Linear(2, 2),
            )

        def forward(self, x: Tensor) -> Any:
            return self.trained(self.frozen(x))

    notes = module_of(Partly).notes
    assert any("42 parameters are frozen" in note for note in notes)
    assert any("6 parameters take no part in forward" in note for note in notes)


def test_a_factory_that_asks_for_values_is_built_in_memory() -> None:
    found = module_of(lambda: Sum(*[nn.Linear(6, int(width.item())) for width in torch.linspace(6, 6, 2)]))
    assert found.graph.params == 2 * 42
    assert any("built in memory" in note for note in found.notes)


def test_tracing_takes_no_memory_for_weights() -> None:
    # 40,000 x 40,000 weights are 6.4 GB in float32, and as much for their gradient.
    graph = traced(lambda: nn.Linear(40_000, 40_000), Input((40_000,))).graph
    assert graph.params == 40_000 * 40_001


def test_the_batch_of_the_trace_does_not_change_the_graph() -> None:
    one, other = (traced(partial(third_party.unet, samples=samples)).graph for samples in (2, 5))
    assert [node.name for node in one.nodes] == [node.name for node in other.nodes]
    known = [(a.layer, b.layer) for a, b in zip(one.nodes, other.nodes, strict=True) if a.layer.kind != "other"]
    assert all(a == b for a, b in known)


def test_inputs_by_name_and_several_inputs_are_read() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(6, 6)

        def forward(self, x: Tensor, mask: Tensor) -> Any:
            return self.fc(x) * mask

    found = traced(lambda: (Two(), {"x": torch.randn(2, 4, 6), "mask": torch.ones(2, 4, 6)}))
    assert found.graph.sample_shape == (4, 6)
    assert "input_2" in {name for node in found.graph.nodes for name in (node.name, *node.inputs)}


def test_inputs_are_read_from_text() -> None:
    assert parse_input("3x224x224") == Input((3, 224, 224))
    assert parse_input("128:int64") == Input((128,), "int64")
    for wrong in ("", "3x", "ax3", "3:int7", "0x3", "-1"):
        with pytest.raises(BadInput, match="--input"):
            parse_input(wrong)


def test_factories_are_found_in_files_and_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "helpers_of_nets.py").write_text("WIDTH = 3\n")
    file = tmp_path / "nets_of_mine.py"
    file.write_text(
        "from helpers_of_nets import WIDTH\nfrom torch import nn\ndef net():\n    return nn.Linear(WIDTH, 2)\n"
    )
    assert trace(load_factory(f"{file}:net"), [Input((3,))]).graph.params == 8
    monkeypatch.chdir(tmp_path)
    assert trace(load_factory("nets_of_mine:net"), [Input((3,))]).graph.params == 8
    with pytest.raises(BadInput, match="no callable 'nets'; it has"):
        load_factory(f"{file}:nets")
    with pytest.raises(BadInput, match="there is no file"):
        load_factory(f"{tmp_path}/none.py:net")
    with pytest.raises(BadInput, match="there is no module 'none_of_these'"):
        load_factory("none_of_these:net")
    file.write_text("import a_package_that_nobody_has\n")
    with pytest.raises(MissingDependency, match="a_package_that_nobody_has"):
        load_factory(f"{file}:net")
    file.write_text("1 / 0\n")
    with pytest.raises(BadInput, match=r"importing .* failed: ZeroDivisionError"):
        load_factory(f"{file}:net")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: 3, "returns int, not a torch.nn.Module"),
        (lambda: 1 / 0, "failed: ZeroDivisionError"),
        (lambda: sys.exit(0), "failed: SystemExit: 0"),
        (lambda: nn.Linear(2, 2), "returns no example inputs"),
        (lambda: (nn.Linear(2, 2), 7), "without a tensor"),
        (lambda: (nn.ReLU(), torch.ones(2, 2)), "depends on a trainable parameter"),
    ],
)
def test_a_factory_that_gives_nothing_to_trace_is_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        traced(make)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_module_is_refused() -> None:
    with pytest.raises(BadInput, match="scripted module"):
        traced(lambda: (torch.jit.script(nn.Linear(2, 2)), torch.ones(2, 2)))


class Exits(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        sys.exit(0)


def test_a_forward_that_ends_the_process_is_refused() -> None:
    with pytest.raises(BadInput, match="SystemExit"):
        traced(lambda: (Exits(2, 2), torch.ones(2, 2)))


class Talks(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        sys.stdout.write("forward")
        return super().forward(x)


def test_what_a_factory_and_its_module_print_is_no_result(capsys: pytest.CaptureFixture[str]) -> None:
    def make() -> Any:
        sys.stdout.write("factory")
        return Talks(2, 2), torch.ones(2, 2)

    traced(make)
    said = capsys.readouterr()
    assert said.out == ""
    assert "factory" in said.err
    assert "forward" in said.err


def test_inputs_that_no_tensor_can_hold_are_refused() -> None:
    with pytest.raises(BadInput, match=r"making the inputs of nets\.py:net failed"):
        traced(lambda: nn.Linear(2, 2), Input((2**31 - 1,) * 3))
    with pytest.raises(BadInput, match=r"making the inputs of nets\.py:net failed"):
        traced(lambda: (nn.Linear(2, 2), torch.ones(2, 2)), samples=10**21)
    with pytest.raises(BadInput, match="an extent that no tensor has"):
        parse_input("9" * 5000)


def test_names_of_factories_are_read_without_torch() -> None:
    code = "import sys; import service.models; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
