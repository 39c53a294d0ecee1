"""AlexNet in one tower.

The net of Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014 (arXiv 1404.5997), as
torchvision.models.alexnet builds it: no grouped convolutions, no local response normalisation, ReLU in place. Its
adaptive average pooling to 6 x 6 is left out, because it changes nothing for crops of 224 x 224.
"""

from __future__ import annotations

from oracle.layers import Loss
from oracle.model import GraphBuilder, ModelGraph
from oracle.windows import Conv, Pool
from oracle.zoo.parts import IMAGENET_CLASSES, IMAGENET_SAMPLES, IMAGENET_SHAPE, add_dropout, add_linear, add_relu

# filters, kernel, stride, padding, and whether a pooling follows
_CONVOLUTIONS = (
    (64, 11, 4, 2, True),
    (192, 5, 1, 2, True),
    (384, 3, 1, 1, False),
    (256, 3, 1, 1, False),
    (256, 3, 1, 1, True),
)


def alexnet() -> ModelGraph:
    """AlexNet on ImageNet: 61,100,840 parameters.

    >>> alexnet().params
    61100840
    """
    build = GraphBuilder("alexnet", IMAGENET_SHAPE)
    for number, (filters, kernel, stride, padding, pooled) in enumerate(_CONVOLUTIONS, start=1):
        build.add(f"conv{number}", Conv.of(build.shape(), filters, kernel, stride=stride, padding=padding))
        add_relu(build, f"relu{number}")
        if pooled:
            build.add(f"pool{number}", Pool.of("max", build.shape(), 3, stride=2))
    for number in (6, 7):
        add_dropout(build, f"dropout{number}")
        add_linear(build, f"fc{number}", 4096)
        add_relu(build, f"relu{number}")
    add_linear(build, "fc8", IMAGENET_CLASSES)
    build.add("loss", Loss("cross_entropy", build.shape()))
    return build.graph(IMAGENET_SAMPLES, "Krizhevsky 2014 (arXiv 1404.5997), one tower as torchvision.models.alexnet")
