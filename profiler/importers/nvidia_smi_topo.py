"""`nvidia-smi topo -m`: how devices, network cards and processors are joined, as one fact.

The original is separated by tabs, with doubled tabs between the columns at the end; pasted copies have blanks instead
and are read where the cells are unambiguous (no cell of the matrix holds a blank). Links are kept by the tool's own
names: NV# (# NVLinks bonded), PIX, PXB, PHB, NODE, SYS, C2C.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from profiler.importers.base import Fact, Importer, Item, Log, Verdict
from profiler.importers.source import Source

_NAME = re.compile(r"(?:GPU|NIC)\d+|(?:mlx|bnxt|irdma|hns|efa|rdma|hfi|rocep|ibp|mthca|cxi)[\w:.-]*")
_LINK = re.compile(r"NV\d+|PIX|PXB|PHB|NODE|SYS|C2C|X|N/A")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LEGEND = re.compile(r"(NIC\d+):\s*(\S+)")
MANY_DEVICES = 1024


class _Matrix:
    """The rows read so far, and the columns of the head."""

    def __init__(self, columns: list[str]) -> None:
        self.columns = columns
        self.links: dict[str, list[str]] = {}
        self.affinity: dict[str, dict[str, str]] = {}
        self.cards: dict[str, str] = {}

    def add(self, name: str, line: str) -> str | None:
        """Take a row; why not, or None."""
        cells = [cell.strip() for cell in line.split("\t")[1:]] if "\t" in line else line.split()[1:]
        links, rest = cells[: len(self.columns)], cells[len(self.columns) :]
        if len(links) < len(self.columns) or not all(_LINK.fullmatch(cell) for cell in links):
            return f"{len(links)} cells of {len(self.columns)}, or a cell that is no link: cut off?"
        if name in self.links:
            return "the device has a row already"
        if name not in self.columns or links[self.columns.index(name)] != "X":
            return "the X is not where the device meets itself"
        self.links[name] = links
        named = [cell for cell in rest if cell and cell != "N/A"]
        if name.startswith("GPU") and named:
            keys = ("cpu_affinity", "numa_node")
            self.affinity[name] = dict(zip(keys, named, strict=False))
        return None

    def asymmetric(self) -> list[tuple[str, str]]:
        """Pairs whose two cells differ: a damaged matrix."""
        return [
            (a, b)
            for a, row in self.links.items()
            for b, link in zip(self.columns, row, strict=True)
            if b in self.links and self.links[b][self.columns.index(a)] != link
        ]


def _read(source: Source, log: Log) -> Iterator[Item]:
    matrix: _Matrix | None = None
    for number, raw in source.lines():
        line = _COLOUR.sub("", raw)
        words = line.split()
        if not words:
            continue
        if matrix is None:
            names = [word for word in words if _NAME.fullmatch(word)]
            if names and words[0] == names[0] and len(names) <= MANY_DEVICES and not _LINK.fullmatch(words[-1]):
                matrix = _Matrix(names)
            else:
                log.skip(number, line, "no part of the matrix")
        elif _NAME.fullmatch(words[0]):
            why = matrix.add(words[0], line)
            if why:
                log.drop(number, line, why)
            else:
                log.take()
        elif match := _LEGEND.match(line.strip()):
            matrix.cards[match[1]] = match[2]
        else:
            log.skip(number, line, "the legend, or no part of the matrix")
    if matrix is not None:
        yield from _facts(matrix, log)


def _facts(matrix: _Matrix, log: Log) -> Iterator[Fact]:
    missing = [name for name in matrix.columns if name not in matrix.links]
    if missing:
        log.warn(f"the matrix is cut off: no row of {', '.join(missing[:10])}")
        log.judge(Verdict.INCOMPLETE)
    if pairs := matrix.asymmetric():
        log.warn(f"the matrix is damaged: {pairs[0][0]} and {pairs[0][1]} disagree about their link")
        log.judge(Verdict.FAILED)
        return
    pairs_of = {
        f"{a}-{b}": link
        for k, a in enumerate(matrix.columns)
        if a in matrix.links
        for b, link in zip(matrix.columns[k + 1 :], matrix.links[a][k + 1 :], strict=True)
    }
    gpus = [name for name in matrix.columns if name.startswith("GPU")]
    values = {
        "devices": gpus,
        "network_cards": [name for name in matrix.columns if name not in gpus],
        "links": pairs_of,
        "affinity": matrix.affinity,
        "card_names": matrix.cards,
    }
    yield Fact("topology", f"{len(gpus)} devices", values)


def _recognises(head: str) -> bool:
    plain = _COLOUR.sub("", head)
    return bool(re.search(r"^\s*GPU0\s.*(GPU1|CPU Affinity|NIC0|mlx)", plain, re.MULTILINE)) and bool(
        re.search(r"^\s*GPU0\s+X\s", plain, re.MULTILINE)
    )


IMPORTER = Importer("nvidia_smi_topo", _recognises, _read)
