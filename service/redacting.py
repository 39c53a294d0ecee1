"""Calibrations and networks without what could tell whose they are, to be given away.

Kept is what is on a list: versions, counts, switches and algorithms, each only where its value looks like one, since a
variable may hold anything (a path with a user's name, a host). The rest of a device's environment is left out, that of
a network becomes digests under this user's own key (`service.hosts`): equal values stay equal, so that environments
still tell curves apart, and nobody can try names against them. The name and what it says of the fabric beside the
device become digests as well, notes are left out. The device's own name and all numbers stay: they are given away.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from calibration.link_sources import label
from calibration.link_values import AffinePiece, CurveKey, LinkCalibration, LinkCurve
from oracle.constants import Calibration, checked_text
from oracle.errors import BadInput
from profiler.collectives.environment import COLLECTIVE_VARIABLES
from profiler.environment import CUDA_VARIABLES, VARIABLES
from service.hosts import host_key

HARDWARE = frozenset(["cpu", "gpu"])
"""Names of products, which stay as they are."""

KEPT = frozenset(
    [
        *("cores", "core_quota", "os", "python", "torch", "threads", "cpu_capability", "onednn", "mkl"),
        *("onednn_enabled", "deterministic", "compute_capability", "multiprocessors", "gpu_memory_bytes", "l2_bytes"),
        *("driver", "cuda", "cudnn", "cublas", "cudnn_enabled", "cudnn_benchmark", "cudnn_deterministic"),
        *("reduced_fp16_sums", "reduced_bf16_sums", "backend", "nccl", "nodes", "world_ranks", "node_set"),
        *VARIABLES,
        *CUDA_VARIABLES,
        *COLLECTIVE_VARIABLES,
    ]
)
"""What of an environment keeps its name; its value stays only if it is a number, a version or one of `WORDS`."""

WORDS = frozenset(
    [
        *("true", "false", "none", "default", "gloo", "nccl", "avx2", "avx512", "amx"),
        *("ring", "tree", "nvls", "nvlstree", "collnet", "pat", "ll", "ll128", "simple"),
    ]
)

_KERNEL = r"(matmul|conv2d|copy) [\dx]+"
_FORM = re.compile(rf"(pattern|spacing|api)=(one_way|one_way_window|exchange|ring|cupy|pause [\d.]+ ms|{_KERNEL})")
"""How a collective was called, in our own words, which tell no site."""

_VERSION = re.compile(r"(Linux )?\d+(\.\d+){0,2}(\+cpu|\+cu\d+|\+rocm[\d.]+|-Product)?")
_SETTING = re.compile(r"(?:^|, )([A-Za-z_]\w*)=")
_LEFT_OUT = (
    "exported with --redact: names, paths and whatever else could tell the site are digests; {count} notes left out"
)


@dataclass(frozen=True)
class Redaction:
    """How to redact.

    Args:
        key: of the digests, a secret.
        name: that the calibration gets; None makes one.
    """

    key: bytes
    name: str | None = None

    def __post_init__(self) -> None:
        if self.name is not None:
            checked_text("name", self.name)

    def digest(self, text: str) -> str:
        """What stands for a text.

        >>> Redaction(b"k").digest("node17")
        'redacted-32534ba8'
        """
        return f"redacted-{hashlib.blake2b(text.encode(), key=self.key[:64], digest_size=4).hexdigest()}"

    def name_of(self, name: str) -> str:
        """The name under which a calibration is given away."""
        return self.digest(name) if self.name is None else self.name

    def setting(self, name: str, value: str) -> tuple[str, str]:
        """One entry of an environment.

        >>> Redaction(b"k").setting("nccl", "2.21.5"), Redaction(b"k").setting("NCCL_ALGO", "Ring")
        (('nccl', '2.21.5'), ('NCCL_ALGO', 'Ring'))
        >>> Redaction(b"k").setting("NCCL_TOPO_FILE", "/home/ann/node17.xml")
        ('NCCL_TOPO_FILE', 'redacted-60971c0d')
        """
        if name in HARDWARE:
            return name, value
        if name not in KEPT:
            return self.digest(name), self.digest(value)
        plain = _VERSION.fullmatch(value) or value.lower() in WORDS
        return name, value if plain else self.digest(value)

    def settings(self, text: str) -> str:
        """A text as `calibration.link_sources.label` writes it, entry by entry."""
        found = list(_SETTING.finditer(text))
        if not text or not found or found[0].start() > 0:
            return self.digest(text) if text else ""
        ends = [*(match.start() for match in found[1:]), len(text)]
        pairs = [(match[1], text[match.end() : end]) for match, end in zip(found, ends, strict=True)]
        if len({name for name, _ in pairs}) < len(pairs):
            return self.digest(text)
        return label(dict(self.setting(name, value) for name, value in pairs))

    def form(self, text: str) -> str:
        """How a collective was called, as it is where it is in our own words.

        >>> Redaction(b"k").form("pattern=one_way, spacing=pause 1 ms")
        'pattern=one_way, spacing=pause 1 ms'
        """
        ours = all(_FORM.fullmatch(part) for part in text.split(", "))
        return text if ours or not text else self.digest(text)

    def kernel(self, text: str) -> str:
        """What ran beside a collective, as it is where it is one of our own kernels."""
        return text if re.fullmatch(_KERNEL, text) else self.digest(text)

    def plain(self, values: Mapping[str, str]) -> dict[str, str]:
        """The entries of an environment that stay as they are."""
        return {name: value for name, value in values.items() if self.setting(name, value) == (name, value)}


def redaction(wanted: bool, name: str | None) -> Redaction | None:
    """How a command wants it redacted, if at all.

    Raises:
        BadInput: a name alone.
    """
    if not wanted:
        if name is not None:
            raise BadInput("--as goes with --redact; 'stepgauge load FILE --name NAME' gives another name too")
        return None
    return Redaction(host_key(), name)


def redacted_calibration(calibration: Calibration, how: Redaction) -> Calibration:
    """A device's calibration without what could tell the site."""
    return replace(
        calibration,
        name=how.name_of(calibration.name),
        environment=how.plain(calibration.environment),
        validity_key=how.digest(calibration.validity_key),
        notes=(_LEFT_OUT.format(count=len(calibration.notes)),),
    )


def redacted_network(network: LinkCalibration, how: Redaction) -> LinkCalibration:
    """A network without what could tell the site."""
    device, *others = network.fabric.split(", ")
    return replace(
        network,
        name=how.name_of(network.name),
        fabric=", ".join([device, *map(how.digest, others)]),
        curves=tuple(_curve(curve, how) for curve in network.curves),
        laws=tuple(
            replace(law, environment=how.settings(law.environment), form=how.form(law.form)) for law in network.laws
        ),
        overlap=tuple(
            replace(item, environment=how.settings(item.environment), kernel=how.kernel(item.kernel))
            for item in network.overlap
        ),
        overheads=tuple(replace(item, environment=how.settings(item.environment)) for item in network.overheads),
        notes=(_LEFT_OUT.format(count=len(network.notes)),),
    )


def _curve(curve: LinkCurve, how: Redaction) -> LinkCurve:
    own = curve.key
    environment, job = how.settings(own.environment), how.settings(own.job)
    key: CurveKey = replace(own, environment=environment, job=job, form=how.form(own.form))
    pieces = tuple(_piece(piece, how) for piece in curve.pieces)
    return replace(curve, key=key, alpha_beta=_piece(curve.alpha_beta, how), pieces=pieces)


def _piece(piece: AffinePiece, how: Redaction) -> AffinePiece:
    words = piece.label.lower().split("/")
    return piece if not piece.label or set(words) <= WORDS else replace(piece, label=how.digest(piece.label))
