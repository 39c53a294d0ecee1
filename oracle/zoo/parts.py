"""What several networks of the zoo share."""

from __future__ import annotations

from oracle.layer import Shape
from oracle.layers import Elementwise, Linear
from oracle.model import GraphBuilder

IMAGENET_SAMPLES = 1_281_167
"""Training images of ILSVRC 2012 (Russakovsky et al., IJCV 115(3), 2015)."""

IMAGENET_CLASSES = 1000
"""Classes of ILSVRC 2012."""

IMAGENET_SHAPE: Shape = (3, 224, 224)
"""One training crop: RGB, 224 x 224."""


def add_relu(build: GraphBuilder, name: str, *, inplace: bool = True) -> str:
    """Append a ReLU of the last result and return its name."""
    return build.add(name, Elementwise("relu", build.shape(), inplace=inplace))


def add_dropout(build: GraphBuilder, name: str) -> str:
    """Append a dropout of the last result and return its name."""
    return build.add(name, Elementwise("dropout", build.shape()))


def add_linear(build: GraphBuilder, name: str, out_features: int) -> str:
    """Append a fully connected layer that flattens the last result, and return its name."""
    return build.add(name, Linear(build.nodes[-1].layer.output_items, out_features))
