"""The registry of importers: every format has a sample here, and says what it left out."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from oracle.errors import BadInput
from profiler.case import call_from_case
from profiler.importers import PROBING
from profiler.importers.base import Assumptions, ImportResult, Item, Limits, Verdict
from profiler.importers.files import content_sha256, import_file, importers, stream_file

FOLDER = Path(__file__).parents[1] / "data" / "importers"
COMPLETE, INCOMPLETE, FAILED = Verdict

# (file, format, rows taken, rows dropped, results, ranks, verdict); results are measurements and facts. A row of
# nccl-tests has two results: out of place and in place.
SAMPLES = [
    ("nccl_tests.txt", "nccl_tests", 3, 0, 6, (16,), COMPLETE),
    # Two rows of size 0; NCCL's message sits inside of a row, which is put together again.
    ("nccl_old_allgather.txt", "nccl_tests", 2, 2, 4, (8,), COMPLETE),
    # Two processes' tables, row parts mixed, told apart by mpirun's tags.
    ("nccl_tags_two_runs_interleaved.txt", "nccl_tests", 6, 0, 12, (4, 16), COMPLETE),
    # The same without tags: nobody can say which row is whose.
    ("nccl_two_writers.txt", "nccl_tests", 0, 6, 0, (), COMPLETE),
    # Row 2 is wrong out of place only, row 3 in both placements: 1 + 0 of their results, 2 of the first row.
    ("nccl_wrong_failed.txt", "nccl_tests", 2, 1, 3, (8,), FAILED),
    ("nccl_truncated_crlf.txt", "nccl_tests", 2, 1, 4, (8,), INCOMPLETE),
    # A run, its second cycle without a head, and a broadcast that dies after two rows: 3 + 3 + 2.
    ("nccl_several_runs.txt", "nccl_tests", 8, 0, 16, (8,), FAILED),
    # An extra first column (number, word), placeholders, and a time of which one digit was changed.
    ("nccl_handmade.txt", "nccl_tests", 1, 4, 1, (8,), INCOMPLETE),
    ("nccl_one_device.txt", "nccl_tests", 0, 2, 0, (1,), COMPLETE),
    ("nccl_shared_device.txt", "nccl_tests", 2, 0, 4, (2,), COMPLETE),
    ("nccl_mixed_devices.txt", "nccl_tests", 2, 0, 4, (4,), COMPLETE),
    ("nccl_per_iteration_pod.txt", "nccl_tests", 3, 0, 6, (8,), COMPLETE),
    ("nccl_old_convention.txt", "nccl_tests", 3, 0, 6, (8,), COMPLETE),
    # The in-place time of the last result is the text "nan".
    ("nccl_tests_json.json", "nccl_tests_json", 3, 0, 5, (8,), COMPLETE),
    ("rccl_jsonl.jsonl", "rccl_jsonl", 2, 1, 2, (8,), COMPLETE),
    ("osu.txt", "osu", 3, 1, 3, (2,), COMPLETE),
    ("osu_allreduce_full.txt", "osu", 0, 3, 0, (), COMPLETE),
    # 2 table rows and 2 choices; facts: 3 + 4 cells that are not zero, 2 choices, the environment.
    ("nccl_tuning.txt", "nccl_tuning", 4, 1, 10, (), COMPLETE),
    # Kernels: 2 all_reduce + 1 all_gather + 1 other; results: 2 transfers and 3 names of kernels.
    ("torch_trace.json", "torch_trace", 4, 3, 5, (8,), COMPLETE),
    ("nvidia_smi_topo.txt", "nvidia_smi_topo", 3, 0, 1, (), COMPLETE),
    ("nvidia_smi_xml.xml", "nvidia_smi_xml", 1, 0, 1, (), COMPLETE),
    # One test case adds up, one does not, one was waived; facts: two cells and the machine.
    ("nvbandwidth.json", "nvbandwidth", 1, 2, 3, (), COMPLETE),
    ("nvbandwidth_text.txt", "nvbandwidth", 1, 1, 2, (), INCOMPLETE),
    ("perftest.txt", "perftest", 2, 1, 2, (), COMPLETE),
    # Three sizes, of which one contradicts itself; the second line is cut off; facts: what else the node said.
    ("superbench.jsonl", "superbench", 1, 1, 3, (8,), INCOMPLETE),
    ("mlperf_system.json", "mlperf_system", 4, 1, 1, (), COMPLETE),
    ("mlperf_log.txt", "mlperf_log", 1, 1, 2, (), COMPLETE),
    ("tidy_collectives.csv", "tidy_collectives", 2, 3, 2, (8,), INCOMPLETE),
    ("tidy_kernels.csv", "tidy_kernels", 5, 6, 5, (), COMPLETE),
    ("tidy_steps.csv", "tidy_steps", 1, 2, 1, (), COMPLETE),
]
NAMES = [sample[0] for sample in SAMPLES]
DOCUMENTS = ("nccl_tests_json", "torch_trace", "nvbandwidth", "mlperf_system", "nvidia_smi_xml")


def read(name: str, assume: Assumptions = Assumptions()) -> ImportResult:
    return import_file(FOLDER / name, assume)


@pytest.mark.parametrize("sample", SAMPLES, ids=NAMES)
def test_a_sample_is_read_as_counted_by_hand(
    sample: tuple[str, str, int, int, int, tuple[int, ...], Verdict],
) -> None:
    result = read(sample[0])
    report = result.report
    results = len(result.measurements) + len(result.facts)
    found = (report.format, report.rows_taken, report.rows_dropped, results, report.ranks, report.verdict)
    assert found == sample[1:]


def test_every_importer_has_a_sample_that_it_recognises() -> None:
    assert {sample[1] for sample in SAMPLES} == set(PROBING)


def test_every_importer_bears_its_modules_name() -> None:
    assert [importer.name for importer in importers()] == list(PROBING)


@pytest.mark.parametrize("name", NAMES)
def test_every_importer_says_which_line_it_left_out_and_why(name: str) -> None:
    report = read(name).report
    lines = len((FOLDER / name).read_text(encoding="utf-8").splitlines())
    assert len(report.dropped) >= report.rows_dropped
    for entry in (*report.dropped, *report.skipped):
        assert entry.reason
        assert entry.text
        assert 0 <= entry.line <= max(lines, 10)


@pytest.mark.parametrize("name", [sample[0] for sample in SAMPLES if sample[1] not in DOCUMENTS])
def test_a_line_that_nobody_knows_is_reported(name: str, tmp_path: Path) -> None:
    junk = tmp_path / name
    text = (FOLDER / name).read_bytes()
    junk.write_bytes(text + b"\n@@ nobody knows this line @@\n")
    report = import_file(junk).report
    number = len(text.splitlines()) + 1 + text.endswith(b"\n")
    listed = [entry.line for entry in (*report.dropped, *report.skipped) if "nobody knows this line" in entry.text]
    assert listed == [number]


@pytest.mark.parametrize("name", NAMES)
def test_a_compressed_copy_is_the_same_file(name: str, tmp_path: Path) -> None:
    copy = tmp_path / f"{name}.gz"
    copy.write_bytes(gzip.compress((FOLDER / name).read_bytes()))
    assert import_file(copy) == read(name)
    assert content_sha256(copy) == read(name).report.sha256


@pytest.mark.parametrize("name", NAMES)
def test_results_are_positive_times_of_the_files_run(name: str) -> None:
    result = read(name)
    for measurement in result.measurements:
        assert all(0 < sample < 1e5 for sample in measurement.device_s)
        assert measurement.run_id == f"import-{result.report.sha256[:16]}"
        assert measurement.inner >= 1
        json.dumps(measurement.case)
    json.dumps([asdict(fact) for fact in result.facts])


@pytest.mark.parametrize("name", NAMES)
def test_secrets_paths_and_host_names_are_never_kept(name: str) -> None:
    result = read(name)
    kept = repr((result.measurements, result.facts))
    for secret in ("hunter2", "somebody", "secret-host", "host-0", "alpha1", "1234567890", "GPU-aaaa"):
        assert secret not in kept


def test_host_names_become_a_digest_that_depends_on_the_key() -> None:
    sets = {
        read("nccl_tests.txt", Assumptions(host_key=key)).measurements[0].environment.identity["node_set"]
        for key in (b"", b"one", b"two")
    }
    assert len(sets) == 3


def test_bytes_are_the_whole_buffer() -> None:
    # all_gather of 32,768 floats from each of 8 ranks: 32,768 * 4 * 8 bytes.
    case = read("nccl_old_allgather.txt").measurements[0].case
    assert case["bytes"] == 32768 * 4 * 8
    # 100 items in, 800 out, 2 bytes each.
    trace = read("torch_trace.json").measurements[1].case
    assert (trace["collective"], trace["bytes"], trace["dtype"]) == ("all_gather", 1600, "bf16")


def test_times_are_seconds_and_calls_are_iterations() -> None:
    first = read("nccl_tests.txt").measurements[0]
    assert first.device_s == pytest.approx((40.0e-6,))
    assert first.inner == 20
    # 8 * 65536 bits at 349.53 Gb/s: 1.5 us.
    assert read("perftest.txt").measurements[0].median_s == pytest.approx(1.5e-6, rel=1e-3)
    # 25,600 samples in batches of 256 in 5 s: 100 steps of 50 ms.
    assert read("mlperf_log.txt").measurements[0].median_s == pytest.approx(0.05)


ROW = "4194304      1048576    float    sum     -1    70.00   59.92  112.35      0    70.70   59.33  111.24      0"


@pytest.mark.parametrize("at", [k for k, character in enumerate(ROW) if character.isdigit()])
def test_a_digit_that_was_changed_is_found_by_the_row_itself(tmp_path: Path, at: int) -> None:
    changed = ROW[:at] + str((int(ROW[at]) + 5) % 10) + ROW[at + 1 :]
    text = (FOLDER / "nccl_tests.txt").read_text()
    assert ROW in text
    path = tmp_path / "changed.txt"
    path.write_text(text.replace(ROW, changed))
    result = import_file(path)
    times = {
        m.case["in_place"]: m.median_s * 1e6 for m in result.measurements if m.case["bytes"] not in (1 << 20, 1 << 21)
    }
    # What is still taken is within the tolerance of half a percent of what was there, and of its size.
    assert all(m.case["bytes"] in (1 << 20, 1 << 21, 1 << 22) for m in result.measurements)
    for in_place, time_us in times.items():
        assert time_us == pytest.approx(70.70 if in_place else 70.00, rel=0.008)


@pytest.mark.parametrize(
    ("name", "words", "flag"),
    [
        ("nccl_shared_device.txt", "two ranks on one device", "shared-device"),
        ("nccl_shared_device.txt", "few iterations", "few-iterations"),
        ("nccl_mixed_devices.txt", "mixed devices", "mixed-devices"),
        ("nccl_truncated_crlf.txt", "the run was cut off", "run-incomplete"),
        ("nccl_wrong_failed.txt", "3 results out of bounds", "run-failed"),
        ("torch_trace.json", "contain the wait", "includes-waiting"),
    ],
)
def test_what_spoils_a_run_is_a_warning_and_a_flag(name: str, words: str, flag: str) -> None:
    result = read(name)
    assert any(words in warning for warning in result.report.warnings)
    assert all(flag in measurement.flags for measurement in result.measurements)


def test_what_a_log_leaves_open_is_refused_or_assumed_but_not_guessed() -> None:
    # The average of the third row is not between its bounds.
    result = read("osu_allreduce_full.txt", Assumptions(ranks=16, nodes=4, device="A"))
    assert (result.report.rows_taken, result.report.ranks) == (2, (16,))
    assert result.measurements[0].device == "A"
    assert result.measurements[0].case["nodes"] == 4


def test_a_contradiction_with_the_caller_is_a_warning_and_the_log_wins() -> None:
    result = read("nccl_old_convention.txt", Assumptions(ranks=4))
    assert result.report.ranks == (8,)
    assert "the caller says 4 ranks, the bandwidths say 8" in result.report.warnings


def test_kernel_rows_become_layers_where_the_oracle_has_them() -> None:
    by_micro = {measurement.micro: measurement for measurement in read("tidy_kernels.csv").measurements}
    assert set(by_micro) == {"conv", "conv_backward", "linear", "bmm", "elementwise"}
    conv = by_micro["conv"]
    call = call_from_case(conv.case, conv.phase)
    assert (call.layer.output_shape, call.samples, str(call.phase)) == ((64, 112, 112), 8, "backward_data")
    # W^T dY with m = 1760, n = 16, k = 1024: 16 samples of a layer from 1760 to 1024 features.
    linear = by_micro["linear"]
    product = call_from_case(linear.case, linear.phase)
    assert (product.layer.input_items, product.layer.output_items, product.samples) == (1760, 1024, 16)
    assert (linear.phase, linear.execution) == ("backward_data", "fp16/channels_first")
    assert by_micro["bmm"].case == {"gm": 64, "gn": 64, "gk": 32, "batch": 12}


@pytest.mark.parametrize(
    ("column", "cell"),
    [("stride_h", "two"), ("dilation_w", "1.5"), ("groups", "all"), ("oW", "-7"), ("pad_h", "x" * 60)],
)
def test_a_cell_that_is_no_number_never_passes_for_an_absent_one(column: str, cell: str, tmp_path: Path) -> None:
    head = "op,phase,dtype,N,C,H,W,K,R,S,time_ms"
    row = "conv2d,fwd,fp32,1,3,8,8,4,3,3,1.0"
    path = tmp_path / "kernels.csv"
    path.write_text(f"{head},{column}\n{row},{cell}\n{row},\n")
    report = import_file(path).report
    # The empty cell of the second row takes the default.
    assert (report.rows_taken, [dropped.line for dropped in report.dropped]) == (1, [2])
    assert report.dropped[0].reason == f"{column} '{cell[:40]}' is no whole number"


def test_cut_json_keeps_its_whole_results(tmp_path: Path) -> None:
    text = (FOLDER / "nccl_tests_json.json").read_text()
    cut = tmp_path / "cut.json"
    cut.write_text(text[: text.index('"size": 4194304')])
    report = import_file(cut).report
    assert (report.rows_taken, report.verdict) == (2, FAILED)


HOSTILE = {
    "binary": b"# nThread 1 nGpus 8 minBytes 8\x00\x01\x02",
    "empty": b"",
    "prose": b"Dear diary,\n",
    "long line": b"# nThread 1 minBytes " + b"9" * 300_000,
    "deep": b'{"traceEvents": [' + b"[" * 100_000,
    "deep result": b'{"nccl_version": 1, "results": [' + b'{"a":' * 100_000,
    "deep line": b'{"algBw":1,"busBw":1,"size":1,"name":""}\n' + b"[" * 100_000,
    "long value": b'{"traceEvents": ["' + b"a" * 3_000_000,
    "huge content": b"# Out of bounds values : 0 OK\n" * 200_000,
    "bomb": gzip.compress(bytes(50_000_000)),
    "bomb of lines": gzip.compress(b"size time algbw busbw\n" * 2_000_000),
    "cut gzip": gzip.compress(b"size time algbw busbw\n" * 100)[:-20],
    "no gzip": b"\x1f\x8b\x08 no gzip at all",
    "csv": b"collective,bytes,nranks,time_us\n" + b'"' + b"a\n" * 100_000,
    "two columns of a name": b"collective,bytes,bytes,nranks,time_us\n",
}
BACKTRACK = {
    "host": "NCCL INFO " + "a" * 900_000,
    "columns": "size " * 150_000 + "algbw busbw",
    "title": "OSU MPI x" + " " * 900_000 + "x",
    "command": "a_" * 450_000,
    "spaces": "# Rank 0" + " " * 900_000 + "x",
    "tags": "[0" * 450_000,
}


@pytest.mark.parametrize("name", BACKTRACK)
@pytest.mark.parametrize("sample", ["nccl_tests.txt", "osu.txt", "perftest.txt", "nccl_tuning.txt", "mlperf_log.txt"])
def test_a_long_line_of_one_pattern_is_read_without_backtracking(sample: str, name: str, tmp_path: Path) -> None:
    # Quadratic time on 900,000 characters would be hours: this test would not end.
    path = tmp_path / sample
    path.write_bytes((FOLDER / sample).read_bytes() + f"\n@@ {BACKTRACK[name]}\n".encode())
    assert import_file(path).report.format == sample.split(".", maxsplit=1)[0]


SMALL = Limits(file_bytes=4_000_000, line_bytes=200_000, value_bytes=1_000_000, results=1000, listed=100)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_ends_in_one_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / "hostile"
    path.write_bytes(HOSTILE[name])
    with pytest.raises(BadInput) as error:
        import_file(path, limits=SMALL)
    assert "\n" not in str(error.value)


def test_what_is_no_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    sparse = tmp_path / "sparse"
    with sparse.open("wb") as stream:
        stream.truncate(2 << 30)  # two GiB that are not on the disk
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (sparse, pipe, tmp_path, tmp_path / "absent", Path("/dev/zero"), Path("a\0b")):
        with pytest.raises(BadInput):
            import_file(path)


def test_more_results_than_the_limit_are_refused_but_can_be_streamed(tmp_path: Path) -> None:
    path = tmp_path / "many.csv"
    path.write_text("collective,bytes,nranks,dtype,time_us\n" + "all_reduce,1048576,8,float,40\n" * 1500)
    with pytest.raises(BadInput, match="1000 results"):
        import_file(path, limits=SMALL)
    seen: list[Item] = []
    report = stream_file(path, seen.append, limits=SMALL)
    assert report.rows_taken == len(seen) == 1500


def test_listed_lines_are_bounded_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "noise.txt"
    path.write_text((FOLDER / "nccl_tests.txt").read_text() + "noise\n" * 5000)
    report = import_file(path, limits=SMALL).report
    assert (len(report.skipped), report.lines_skipped) == (100, 5000)


def test_importing_needs_no_heavy_library() -> None:
    code = (
        "import sys; from profiler.importers.files import import_file; "
        f"import_file({str(FOLDER / 'tidy_kernels.csv')!r}); "
        "sys.exit(bool({'torch', 'scipy', 'sqlalchemy', 'sklearn'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=FOLDER.parents[2]).returncode == 0
