"""How a model is trained: everything beside shapes that changes which kernels run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from oracle.errors import BadInput, OutOfRange, UnknownName

PRECISIONS = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
"""Name -> bytes per item of weights and activations. tf32 stores four bytes and multiplies with ten mantissa bits."""

MEMORY_FORMATS = ("channels_first", "channels_last")

ATTENTIONS = ("any", "math", "flash", "efficient", "cudnn")
"""Implementations of scaled dot-product attention in torch; `any` is what torch picks by itself."""

UPDATES = ("any", "for_loop", "foreach", "fused")
"""How an optimizer walks over its tensors: one by one, in lists, in one kernel; `any` is what torch picks by itself."""


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
    """Precision, memory format, optimizer and implementations of a training run.

    The keys below name everything that changes which kernels run, or how they are timed; what is as by default is left
    out of them, so that keys written before an option existed stay what they were.

    Args:
        precision: a name in `PRECISIONS`.
        memory_format: one of `MEMORY_FORMATS`.
        optimizer: a name in `OPTIMIZERS`.
        recomputed_segments: into how many segments a device's layers are cut whose activations are not kept but
            computed again in backward (Chen et al., 2016, arXiv 1604.06174); 0 keeps all activations.
        attention: one of `ATTENTIONS`.
        update: one of `UPDATES`.
        cudnn_benchmark: cuDNN tries its convolutions out on the first call of a shape and takes the fastest.
        autocast: the time of a 16-bit kernel includes casting its float32 weights, as in the first use of a step.
        graph: kernels are launched from a CUDA graph, so that the host's part is divided out.
        warm: kernels run on inputs that the cache holds, and not on rotating ones.

    >>> Execution().kernel_key
    'fp32/channels_first'
    >>> Execution(attention="flash", graph=True).kernel_key, Execution(update="fused").update_key
    ('fp32/channels_first/attention=flash/graph', 'fp32/sgd_momentum/update=fused')
    """

    precision: str = "fp32"
    memory_format: str = "channels_first"
    optimizer: str = "sgd_momentum"
    recomputed_segments: int = 0
    attention: str = "any"
    update: str = "any"
    cudnn_benchmark: bool = False
    autocast: bool = False
    graph: bool = False
    warm: bool = False

    def __post_init__(self) -> None:
        for what, name, known in (
            ("precision", self.precision, tuple(PRECISIONS)),
            ("memory format", self.memory_format, MEMORY_FORMATS),
            ("optimizer", self.optimizer, tuple(OPTIMIZERS)),
            ("attention", self.attention, ATTENTIONS),
            ("implementation of updates", self.update, UPDATES),
        ):
            if name not in known:
                raise UnknownName(what, name, known)
        if self.autocast and self.item_bytes != 2:
            raise BadInput(f"autocast casts weights to bf16 or fp16, not to {self.precision}")
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

    @cached_property
    def kernel_key(self) -> str:
        """What forward and backward kernels depend on."""
        return "/".join((self.precision, self.memory_format, *self._options(_KERNEL_OPTIONS)))

    @cached_property
    def update_key(self) -> str:
        """What update kernels depend on."""
        return "/".join((self.precision, self.optimizer, *self._options(_UPDATE_OPTIONS)))

    def _options(self, names: tuple[str, ...]) -> list[str]:
        """The options that differ from the default: `name` where they are on, else `name=value`."""
        values = {name: getattr(self, name) for name in names}
        return [
            name if value is True else f"{name}={value}"
            for name, value in values.items()
            if value not in (False, "any")
        ]


_KERNEL_OPTIONS = ("attention", "cudnn_benchmark", "autocast", "graph", "warm")
_UPDATE_OPTIONS = ("update", "graph", "warm")


def execution_from_key(key: str, *, update: bool) -> Execution:
    """The execution behind a `kernel_key`, or behind an `update_key`.

    Raises:
        BadInput: the key has another form; UnknownName: it names something unknown.

    >>> execution_from_key("bf16/channels_last/cudnn_benchmark", update=False).cudnn_benchmark
    True
    """
    precision, *rest = key.split("/")
    if not rest:
        raise BadInput(f"'{key}' is no execution; it reads like fp32/{MEMORY_FORMATS[0]}")
    known = _UPDATE_OPTIONS if update else _KERNEL_OPTIONS
    options: dict[str, Any] = {"optimizer" if update else "memory_format": rest[0]}
    for option in rest[1:]:
        name, given, value = option.partition("=")
        if name not in known or bool(given) == (name not in _NAMED_OPTIONS):
            raise UnknownName("option of an execution", option, known)
        options[name] = value if given else True
    return Execution(precision, **options)


_NAMED_OPTIONS = ("attention", "update")
