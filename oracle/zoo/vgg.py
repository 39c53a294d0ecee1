"""VGG-16.

Configuration D of Simonyan, Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", ICLR 2015
(arXiv 1409.1556), as torchvision.models.vgg16 builds it: ReLU in place. Its adaptive average pooling to 7 x 7 is left
out, because it changes nothing for crops of 224 x 224.
"""

from __future__ import annotations

from oracle.layers import Loss
from oracle.model import GraphBuilder, ModelGraph
from oracle.windows import Conv, Pool
from oracle.zoo.parts import IMAGENET_CLASSES, IMAGENET_SAMPLES, IMAGENET_SHAPE, add_dropout, add_linear, add_relu

# filters and convolutions of each block
_BLOCKS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


def vgg16() -> ModelGraph:
    """VGG-16 on ImageNet: 138,357,544 parameters.

    >>> vgg16().params
    138357544
    """
    build = GraphBuilder("vgg16", IMAGENET_SHAPE)
    for block, (filters, convolutions) in enumerate(_BLOCKS, start=1):
        for number in range(1, convolutions + 1):
            build.add(f"conv{block}_{number}", Conv.of(build.shape(), filters, 3, padding=1))
            add_relu(build, f"relu{block}_{number}")
        build.add(f"pool{block}", Pool.of("max", build.shape(), 2))
    for number in (6, 7):
        add_linear(build, f"fc{number}", 4096)
        add_relu(build, f"relu{number}")
        add_dropout(build, f"dropout{number}")
    add_linear(build, "fc8", IMAGENET_CLASSES)
    build.add("loss", Loss("cross_entropy", build.shape()))
    return build.graph(IMAGENET_SAMPLES, "Simonyan, Zisserman 2015 (arXiv 1409.1556), as torchvision.models.vgg16")
