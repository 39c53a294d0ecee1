"""What a user may call a model, and what is said to everything else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oracle.errors import BadInput, UnknownName
from oracle.loading import MAX_FILE_BYTES, load_model

TABLE = "Input|50x3x8x8\nCONV|3x8x8|3x4x3x3|4x8x8|0.5\nFC|4x8x8|4x10x8x8|10x1x1\n"


@pytest.mark.parametrize("suffix", [".json", ".JSON"])
def test_a_graph_is_read_back_from_its_json(tmp_path: Path, suffix: str) -> None:
    graph = load_model("alexnet")
    path = tmp_path / f"mine{suffix}"
    path.write_text(graph.to_json())
    assert load_model(str(path)) == graph


@pytest.mark.parametrize("suffix", [".net", ".net_sc", ".net_256", ".NET"])
def test_a_layer_table_is_read_under_each_of_its_suffixes(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"small{suffix}"
    path.write_text(TABLE)
    graph = load_model(str(path))
    assert (graph.name, graph.params) == (path.name, 4 * 27 + 2560)


def test_a_byte_order_mark_and_foreign_line_ends_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "small.net"
    path.write_bytes(b"\xef\xbb\xbf" + TABLE.replace("\n", "\r\n").encode())
    assert load_model(str(path)).dataset_samples == 50


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("resnet51", "'resnet50'"),
        ("ResNet50", "'resnet50'"),
        ("vgg", "'vgg16'"),
        ("cosmoflow-512", "'cosmoflow512'"),
    ],
)
def test_an_unknown_name_is_answered_with_the_closest(name: str, hint: str) -> None:
    with pytest.raises(UnknownName, match=f"unknown model '{name}'; did you mean {hint}.*known: alexnet.*FILE.json"):
        load_model(name)


@pytest.mark.parametrize("name", ["", ".", "/", "model.txt", "bert", "a\0b", "x" * 10_000])
def test_what_is_neither_a_name_nor_a_model_file_is_unknown(name: str) -> None:
    with pytest.raises(UnknownName):
        load_model(name)


CONTENTS = {
    "empty": b"",
    "binary": b"\x7fELF\x00\x01\xff\xfe",
    "Latin-1": "Modèle".encode("latin-1"),
    "zeros": bytes(1000),
    "a picture": b"\x89PNG\r\n\x1a\n",
    "too long": b"#" * (MAX_FILE_BYTES + 1),
    "one endless line": b"|" * MAX_FILE_BYTES,
    "something else": b'{"weights": []}',
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=list(CONTENTS))
@pytest.mark.parametrize("suffix", [".json", ".net"])
def test_a_file_that_is_no_model_is_refused_in_one_line(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"bad{suffix}"
    path.write_bytes(content)
    with pytest.raises(BadInput, match="bad") as caught:
        load_model(str(path))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("suffix", [".json", ".net"])
def test_a_path_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"folder{suffix}").mkdir()
    (tmp_path / f"file{suffix}").write_text("")
    os.mkfifo(tmp_path / f"pipe{suffix}")
    (tmp_path / f"loop{suffix}").symlink_to(tmp_path / f"loop{suffix}")
    for name in ("missing", "fold\ner", "folder", f"file{suffix}/below", "pipe", "loop", "a\0b", "x" * 5000):
        with pytest.raises(BadInput) as caught:
            load_model(str(tmp_path / f"{name}{suffix}"))
        assert str(caught.value).isprintable()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_permission_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text("{}")
    path.chmod(0)
    with pytest.raises(BadInput, match=r"cannot read model .*: Permission denied"):
        load_model(str(path))


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs /proc")
def test_a_file_whose_reading_fails_is_refused_in_one_line(tmp_path: Path) -> None:
    # a regular file that opens, and whose first byte cannot be read
    path = tmp_path / "mine.json"
    path.symlink_to("/proc/self/mem")
    with pytest.raises(BadInput, match=r"cannot read model .*: Input/output error"):
        load_model(str(path))
