"""CosmoFlow: four cosmological parameters of a volume of dark matter.

Mathuriya et al., "CosmoFlow: Using Deep Learning to Learn the Universe at Scale", SC18 (arXiv 1808.04728), as the
layer table of ParaDL (HPDC 2021) has it for 4 x 512^3: seven convolutions without padding, six with an average
pooling after them, three fully connected layers; ReLU, and the mean squared error. 1,584 samples.

Volumes of 256^3 and 128^3 run through the same list. Without padding they shrink to a single voxel early, and a
window that is larger than what is left cannot run: such convolutions (with their ReLU) and poolings are dropped.
256^3 loses the sixth pooling and the seventh convolution; 128^3 the fifth and sixth pooling and the sixth and seventh
convolution. Both then have 256 features, not 128, before the first fully connected layer. (ParaDL's table for 256^3
keeps all layers by padding even kernels on one side only, which torch's convolutions do not offer.)
"""

from __future__ import annotations

from oracle.layers import Loss
from oracle.model import GraphBuilder, ModelGraph
from oracle.windows import Conv, Pool
from oracle.zoo.parts import add_linear, add_relu

_SAMPLES = 1584

# filters, kernel, stride
_CONVOLUTIONS = ((16, 3, 1), (32, 3, 1), (64, 3, 2), (128, 3, 1), (256, 2, 1), (256, 2, 1), (128, 2, 1))
_POOL = 2


def cosmoflow512() -> ModelGraph:
    """CosmoFlow on volumes of 512^3: 2,131,252 parameters.

    >>> cosmoflow512().params
    2131252
    """
    return _cosmoflow("cosmoflow512", 512)


def cosmoflow256() -> ModelGraph:
    """CosmoFlow on volumes of 256^3, without the layers that have no room left."""
    return _cosmoflow("cosmoflow256", 256)


def cosmoflow128() -> ModelGraph:
    """CosmoFlow on volumes of 128^3, without the layers that have no room left."""
    return _cosmoflow("cosmoflow128", 128)


def _cosmoflow(name: str, extent: int) -> ModelGraph:
    build = GraphBuilder(name, (4, extent, extent, extent))
    for number, (filters, kernel, stride) in enumerate(_CONVOLUTIONS, start=1):
        if min(build.shape()[1:]) >= kernel:
            build.add(f"conv{number}", Conv.of(build.shape(), filters, kernel, stride=stride))
            add_relu(build, f"relu{number}", inplace=False)
        if number < len(_CONVOLUTIONS) and min(build.shape()[1:]) >= _POOL:
            build.add(f"pool{number}", Pool.of("avg", build.shape(), _POOL))
    for number, features in enumerate((2048, 256), start=1):
        add_linear(build, f"fc{number}", features)
        add_relu(build, f"relu_fc{number}", inplace=False)
    add_linear(build, "fc3", 4)
    build.add("loss", Loss("mse", build.shape()))
    return build.graph(_SAMPLES, "Mathuriya et al. 2018 (arXiv 1808.04728), as ParaDL's layer table (HPDC 2021)")
