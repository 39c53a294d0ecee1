"""Memory of serial training steps beside torch's own tracker: `python -m benchmarks.memory_accuracy`.

The tracker runs every operation on fake tensors (shapes without data), so that steps of any size run on any machine. It
sees every tensor and none of the overheads that lie outside tensors.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from oracle.autograd import AUTOGRAD
from oracle.execution import Execution
from oracle.layers import Attention, Concat, Elementwise, Embedding, Linear, Loss, Norm
from oracle.loading import load_model
from oracle.machine import Cluster
from oracle.memory import Memory, memory_of
from oracle.model import GraphBuilder, ModelGraph
from oracle.plan import Job
from oracle.strategies import strategy
from oracle.units import format_bytes
from oracle.windows import Conv, Pool
from profiler.torch_model import GraphModule, random_batch


def unet(width: int = 64, depth: int = 4, extent: int = 128) -> ModelGraph:
    """A U-Net (Ronneberger et al., 2015) with padded convolutions and batch normalisation; it restores its image."""
    build = GraphBuilder("unet", (3, extent, extent))
    skips: list[str] = []
    for level in range(depth):
        skips.append(_two_convolutions(build, f"down{level}", width << level))
        build.add(f"pool{level}", Pool.of("max", build.shape(), 2))
    _two_convolutions(build, "bottom", width << depth)
    for level in reversed(range(depth)):
        up = build.add(f"up{level}", Conv.of(build.shape(), width << level, 2, stride=2, transposed=True))
        channels = (width << level,) * 2
        build.add(f"join{level}", Concat(channels, build.shape()[1:]), skips[level], up)
        _two_convolutions(build, f"right{level}", width << level)
    build.add("head", Conv.of(build.shape(), 3, 1))
    build.add("loss", Loss("mse", build.shape()))
    return build.graph()


def _two_convolutions(build: GraphBuilder, name: str, filters: int) -> str:
    for part in "ab":
        build.add(f"{name}{part}", Conv.of(build.shape(), filters, 3, padding=1, bias=False))
        build.add(f"{name}{part}_norm", Norm("batch", build.shape()))
        build.add(f"{name}{part}_relu", Elementwise("relu", build.shape(), inplace=True))
    return build.nodes[-1].name


def transformer(width: int = 512, blocks: int = 6, tokens: int = 256, vocabulary: int = 16_384) -> ModelGraph:
    """A transformer encoder, normalised before each part (Xiong et al., 2020), that predicts every token."""
    build = GraphBuilder("transformer", (tokens,))
    build.add("table", Embedding(vocabulary, width, tokens))
    for block in range(blocks):
        _encoder_block(build, f"block{block}_", width, tokens)
    build.add("norm", Norm("layer", (tokens, width)))
    build.add("head", Linear(width, vocabulary, tokens, bias=False))
    build.add("loss", Loss("cross_entropy", (tokens, vocabulary)))
    return build.graph()


def _encoder_block(build: GraphBuilder, name: str, width: int, tokens: int) -> None:
    entry, shape, heads = build.nodes[-1].name, (tokens, width), width // 64
    normed = build.add(f"{name}norm1", Norm("layer", shape))
    rows = [build.add(f"{name}{part}", Linear(width, width, tokens), normed) for part in ("q", "k", "v")]
    build.add(f"{name}attention", Attention(heads, tokens, tokens, width // heads), *rows)
    attended = build.add(f"{name}out", Linear(width, width, tokens))
    middle = build.add(f"{name}add1", Elementwise("add", shape), entry, attended)
    build.add(f"{name}norm2", Norm("layer", shape))
    build.add(f"{name}fc1", Linear(width, 4 * width, tokens))
    build.add(f"{name}gelu", Elementwise("gelu", (tokens, 4 * width)))
    build.add(f"{name}fc2", Linear(4 * width, width, tokens))
    build.add(f"{name}add2", Elementwise("add", shape), middle, f"{name}fc2")


NETS: dict[str, tuple[Callable[[], ModelGraph], tuple[int, int]]] = {
    "alexnet": (lambda: load_model("alexnet"), (32, 256)),
    "vgg16": (lambda: load_model("vgg16"), (8, 64)),
    "resnet50": (lambda: load_model("resnet50"), (16, 64)),
    "unet": (unet, (4, 32)),
    "transformer": (transformer, (4, 32)),
}
"""Name -> its graph and two batches: one where weights weigh most, one where activations do."""

OPTIMIZERS: dict[str, Callable[[GraphModule], torch.optim.Optimizer]] = {
    "sgd_momentum": lambda module: torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9),
    "adam": lambda module: torch.optim.Adam(module.parameters()),
}


@dataclass(frozen=True)
class Row:
    """One step, tracked and predicted."""

    net: str
    optimizer: str
    samples: int
    tracked_bytes: int
    predicted: Memory

    @property
    def error(self) -> float:
        """Relative to the tracker; negative where the prediction is below it."""
        return self.predicted.total_bytes / self.tracked_bytes - 1


def row(net: str, optimizer: str, samples: int) -> Row:
    """Track and predict one step."""
    graph = NETS[net][0]()
    return Row(net, optimizer, samples, tracked_bytes(graph, optimizer, samples), predicted(graph, optimizer, samples))


def tracked_bytes(graph: ModelGraph, optimizer: str, samples: int) -> int:
    """The peak of the second training step, as torch's tracker counts it."""
    device = torch.device("cpu")
    with FakeTensorMode():
        module = GraphModule(graph)
        update = OPTIMIZERS[optimizer](module)
        sample, target = random_batch(graph, samples, device)

        def step() -> None:
            update.zero_grad()
            module(sample, target).backward()
            update.step()

        step()  # the first makes the optimizer's states, and need not be tracked, which is slow
        update.zero_grad()
        tracker = MemTracker()
        tracker.track_external(module, update, sample, target)
        with tracker:
            step()
        peak = tracker.get_tracker_snapshot("peak")[device]
    return int(peak["Total"])


def predicted(graph: ModelGraph, optimizer: str, samples: int) -> Memory:
    """The same step, predicted."""
    job = Job(graph, samples, 1, Cluster("here", "cpu"), Execution(optimizer=optimizer))
    return memory_of(strategy("serial").plan(job), AUTOGRAD)


def main() -> None:
    """Print every row, the median and the worst."""
    print(f"{'net':<12} {'optimizer':<13} {'batch':>5} {'tracked':>10} {'predicted':>10} {'error':>7}  largest kinds")
    errors = []
    for net, (_, batches) in NETS.items():
        for optimizer in OPTIMIZERS:
            for samples in batches:
                found = row(net, optimizer, samples)
                errors.append(found.error)
                sizes = f"{format_bytes(found.tracked_bytes):>10} {format_bytes(found.predicted.total_bytes):>10}"
                kinds = sorted(found.predicted.by_kind_bytes.items(), key=lambda item: -item[1])[:3]
                largest = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in kinds)
                print(f"{net:<12} {optimizer:<13} {samples:>5} {sizes} {found.error:>+7.2%}  {largest}", flush=True)
    worst = max(errors, key=abs)
    spread = statistics.pstdev(math.log1p(error) for error in errors)
    print(f"median {statistics.median(map(abs, errors)):.2%}, worst {worst:+.2%}, lowest {min(errors):+.2%}")
    print(f"standard deviation of ln(predicted / tracked): {spread:.4f}")


if __name__ == "__main__":
    main()
