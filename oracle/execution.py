"""How a model is trained: everything beside shapes that changes which kernels run."""

from __future__ import annotations

from dataclasses import dataclass

from oracle.errors import OutOfRange, UnknownName

PRECISIONS = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
"""Name -> bytes per item of weights and activations. tf32 stores four bytes and multiplies with ten mantissa bits."""

MEMORY_FORMATS = ("channels_first", "channels_last")


@dataclass(frozen=True)
class Optimizer:
    """What one optimizer keeps and does per parameter.

    Args:
        states: float32 items kept per parameter besides the weight and its gradient.
        words_moved: items read plus written per parameter and update.
        flop: operations per parameter and update.
    """

    states: int
    words_moved: int
    flop: int


OPTIMIZERS = {
    # read w, g; write w; w -= lr * g
    "sgd": Optimizer(states=0, words_moved=3, flop=2),
    # read w, g, m; write w, m; m = mu m + g; w -= lr m
    "sgd_momentum": Optimizer(states=1, words_moved=5, flop=4),
    # read w, g, m, v; write w, m, v (Kingma, Ba, 2015)
    "adam": Optimizer(states=2, words_moved=7, flop=12),
    "adamw": Optimizer(states=2, words_moved=7, flop=14),
}


@dataclass(frozen=True)
class Execution:
    """Precision, memory format and optimizer of a training run.

    Args:
        precision: a name in `PRECISIONS`.
        memory_format: one of `MEMORY_FORMATS`.
        optimizer: a name in `OPTIMIZERS`.
        recomputed_segments: into how many segments a device's layers are cut whose activations are not kept but
            computed again in backward (Chen et al., 2016, arXiv 1604.06174); 0 keeps all activations.

    >>> Execution().kernel_key
    'fp32/channels_first'
    """

    precision: str = "fp32"
    memory_format: str = "channels_first"
    optimizer: str = "sgd_momentum"
    recomputed_segments: int = 0

    def __post_init__(self) -> None:
        for what, name, known in (
            ("precision", self.precision, tuple(PRECISIONS)),
            ("memory format", self.memory_format, MEMORY_FORMATS),
            ("optimizer", self.optimizer, tuple(OPTIMIZERS)),
        ):
            if name not in known:
                raise UnknownName(what, name, known)
        if self.recomputed_segments < 0:
            raise OutOfRange(f"segments to recompute are zero or more, not {self.recomputed_segments}")

    @property
    def item_bytes(self) -> int:
        """Bytes of one weight or activation."""
        return PRECISIONS[self.precision]

    @property
    def parameter_bytes(self) -> int:
        """Bytes of one parameter, of its gradient and of each of its optimizer states.

        Float32 in every precision: automatic mixed precision casts weights on use and keeps the originals (torch.amp).
        """
        return 4

    @property
    def optimizer_cost(self) -> Optimizer:
        """What the optimizer keeps and does per parameter."""
        return OPTIMIZERS[self.optimizer]

    @property
    def kernel_key(self) -> str:
        """What forward and backward kernels depend on."""
        return f"{self.precision}/{self.memory_format}"

    @property
    def update_key(self) -> str:
        """What update kernels depend on."""
        return f"{self.precision}/{self.optimizer}"
