"""ResNet-50 and ResNet-152.

He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016 (arXiv 1512.03385), as
torchvision.models.resnet50 builds them. That is version 1.5: a block that halves the extents does so in its 3 x 3
convolution, not in the 1 x 1 before it, which costs more operations and reads all of its input. ReLU and the residual
sums are in place, as in torchvision, whose names the layers have; where one module runs three times in a block (relu)
a number tells the runs apart.
"""

from __future__ import annotations

from oracle.layers import Elementwise, Loss, Norm
from oracle.model import GraphBuilder, ModelGraph
from oracle.windows import Conv, Pool
from oracle.zoo.parts import IMAGENET_CLASSES, IMAGENET_SAMPLES, IMAGENET_SHAPE, add_linear, add_relu

_EXPANSION = 4
_WIDTHS = (64, 128, 256, 512)


def resnet50() -> ModelGraph:
    """ResNet-50 on ImageNet: 25,557,032 parameters.

    >>> resnet50().params
    25557032
    """
    return _resnet("resnet50", (3, 4, 6, 3))


def resnet152() -> ModelGraph:
    """ResNet-152 on ImageNet: 60,192,808 parameters.

    >>> resnet152().params
    60192808
    """
    return _resnet("resnet152", (3, 8, 36, 3))


def _resnet(name: str, blocks: tuple[int, ...]) -> ModelGraph:
    build = GraphBuilder(name, IMAGENET_SHAPE)
    _add_convolution(build, ("conv1", "bn1"), Conv.of(build.shape(), 64, 7, stride=2, padding=3, bias=False))
    add_relu(build, "relu")
    build.add("maxpool", Pool.of("max", build.shape(), 3, stride=2, padding=1))
    for stage, (width, count) in enumerate(zip(_WIDTHS, blocks, strict=True), start=1):
        for block in range(count):
            _add_bottleneck(build, f"layer{stage}.{block}", width, stride=2 if stage > 1 and block == 0 else 1)
    build.add("avgpool", Pool.of("avg", build.shape(), build.shape()[1:]))
    add_linear(build, "fc", IMAGENET_CLASSES)
    build.add("loss", Loss("cross_entropy", build.shape()))
    return build.graph(IMAGENET_SAMPLES, f"He et al. 2016 (arXiv 1512.03385), v1.5 as torchvision.models.{name}")


def _add_convolution(build: GraphBuilder, names: tuple[str, str], conv: Conv, *inputs: str) -> str:
    """Append a convolution and the batch normalisation that follows it."""
    build.add(names[0], conv, *inputs)
    return build.add(names[1], Norm("batch", conv.output_shape))


def _add_bottleneck(build: GraphBuilder, name: str, width: int, stride: int) -> None:
    """Append 1 x 1, 3 x 3 and 1 x 1 convolutions beside a shortcut, which is projected where the shapes differ."""
    entry, shape = build.nodes[-1].name, build.shape()
    filters = _EXPANSION * width
    _add_convolution(build, (f"{name}.conv1", f"{name}.bn1"), Conv.of(shape, width, 1, bias=False))
    add_relu(build, f"{name}.relu1")
    spatial = Conv.of(build.shape(), width, 3, stride=stride, padding=1, bias=False)
    _add_convolution(build, (f"{name}.conv2", f"{name}.bn2"), spatial)
    add_relu(build, f"{name}.relu2")
    branch = _add_convolution(build, (f"{name}.conv3", f"{name}.bn3"), Conv.of(build.shape(), filters, 1, bias=False))
    shortcut = entry
    if shape != build.shape():
        projection = Conv.of(shape, filters, 1, stride=stride, bias=False)
        names = (f"{name}.downsample.0", f"{name}.downsample.1")
        shortcut = _add_convolution(build, names, projection, entry)
    build.add(f"{name}.add", Elementwise("add", build.shape(), inplace=True), branch, shortcut)
    add_relu(build, f"{name}.relu3")
