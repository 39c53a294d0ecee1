"""Every real log at hand, counted by hand against the file; skipped where the folder of real logs is absent.

Rows are counted as they stand in the file: a row of nccl-tests with two placements is one row. What a log does not
say (its device, its nodes) stays unknown; what it gets wrong (its caption, its number of ranks) is corrected by its
own numbers.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from profiler.importers.base import Assumptions, Verdict
from profiler.importers.files import import_file

COMPLETE, INCOMPLETE, FAILED = Verdict

# file: (format, rows taken, rows dropped, ranks, verdict)
EXPECTED = {
    # Four blocks of training of 100 steps each; no run_stop.
    "mlperf_mllog_excerpt.txt": ("mlperf_log", 4, 0, (), INCOMPLETE),
    # 35 members, of which 11 are empty or N/A and 4 are not about the machine (submitter, division, status, cooling).
    "mlperf_system_description_b200x8.txt": ("mlperf_system", 20, 0, (), COMPLETE),
    # Dies behind the head of the table.
    "nccl1_p100x8_fail_oldest_layout.txt": ("nccl_tests", 0, 0, (), FAILED),
    "nccl_4090_hash_lost_fail.txt": ("nccl_tests", 0, 0, (), FAILED),
    # 1, 2, 4, 8 GiB.
    "nccl_a100x16_2node_roce_v2179.txt": ("nccl_tests", 4, 0, (16,), COMPLETE),
    # 8 B to 4 GiB by factors of two: 2^3 to 2^32.
    "nccl_a100x16_dgx_2node_hdr_allreduce.txt": ("nccl_tests", 30, 0, (16,), COMPLETE),
    # 2^3 to 2^31, no end.
    "nccl_a100x16_p4de_2node_efa_allreduce_prefixed.txt": ("nccl_tests", 29, 0, (16,), INCOMPLETE),
    # Six rows and an end; the head is cut off.
    "nccl_a100x24_3node_hdr_stepbytes_tail.txt": ("nccl_tests", 6, 0, (24,), INCOMPLETE),
    # Five rows of size 0, then 2^5 to 2^33.
    "nccl_a100x8_allgather_old_na.txt": ("nccl_tests", 29, 5, (8,), COMPLETE),
    "nccl_a100x8_alltoall_old_na.txt": ("nccl_tests", 29, 5, (8,), COMPLETE),
    "nccl_a100x8_reducescatter_old_na.txt": ("nccl_tests", 29, 5, (8,), COMPLETE),
    # One device: a copy, no transfer.
    "nccl_b200x1_alltoall_half.txt": ("nccl_tests", 0, 2, (1,), COMPLETE),
    "nccl_b200x8_allreduce.txt": ("nccl_tests", 1, 0, (8,), COMPLETE),
    "nccl_gb200x72_nvl72_allreduce.txt": ("nccl_tests", 5, 0, (72,), COMPLETE),
    # The first line is the end of a row whose size is missing.
    "nccl_h100_2node_rankprefix_split_rows.txt": ("nccl_tests", 10, 1, (24,), INCOMPLETE),
    "nccl_h100pcie_x2_nvlinkbridge.txt": ("nccl_tests", 2, 0, (2,), INCOMPLETE),
    "nccl_h100x8_allreduce_half_graph.txt": ("nccl_tests", 6, 0, (8,), COMPLETE),
    # Captioned as 64 devices: 356.01 / 179.88 = 1.9792 = 2 * 95 / 96. Sizes beyond what the head announces.
    "nccl_h100x96_ib_allreduce_elided.txt": ("nccl_tests", 5, 0, (96,), INCOMPLETE),
    # 2^10 to 2^33.
    "nccl_h200x16_a3ultra_allgather.txt": ("nccl_tests", 24, 0, (16,), COMPLETE),
    "nccl_h200x64_8node_allreduce_half_1.txt": ("nccl_tests", 1, 0, (64,), COMPLETE),
    # busbw / algbw = 1.998: about 1,023 ranks, too many to tell from the ratio, and no list of devices.
    "nccl_multinode_oom_after_rows.txt": ("nccl_tests", 0, 5, (), FAILED),
    # 2^20 to 2^29; the head is cut off.
    "nccl_reducescatter_8gpu_2node_destroy_lines.txt": ("nccl_tests", 10, 0, (8,), INCOMPLETE),
    # Three blocks of five collectives, and 72 choices (lines 29 to 100).
    "nccl_tuning_table_2_29.txt": ("nccl_tuning", 15 + 72, 0, (), COMPLETE),
    # Only Broadcast; the rest of the table is cut off.
    "nccl_tuning_table_t4_2node_old.txt": ("nccl_tuning", 1, 0, (), INCOMPLETE),
    "nccl_v100x8_allgather_wrong_failed.txt": ("nccl_tests", 0, 1, (8,), FAILED),
    # Cut off in front of the first matrix.
    "nvbandwidth_json_gb200_head.txt": ("nvbandwidth", 0, 1, (), INCOMPLETE),
    "nvidia_smi_q_x_a10g_v12.txt": ("nvidia_smi_xml", 1, 0, (), COMPLETE),
    "nvidia_smi_q_x_t4_v11.txt": ("nvidia_smi_xml", 1, 0, (), COMPLETE),
    # 2^0 to 2^25.
    "osu_bw_a100_nvlink.txt": ("osu", 26, 0, (2,), COMPLETE),
    # 2^1 to 2^23; both ends print the last one.
    "perftest_ib_write_bw_allsizes.txt": ("perftest", 23, 1, (), COMPLETE),
    "perftest_ib_write_bw_loopback.txt": ("perftest", 1, 1, (), COMPLETE),
    "perftest_json_unquoted.txt": ("perftest", 1, 0, (), COMPLETE),
    # 1, 2, 4, 8, 16 GiB.
    "rccl_16gpu_2node_allreduce.txt": ("nccl_tests", 5, 0, (16,), COMPLETE),
    "rccl_tests_jsonl.txt": ("rccl_jsonl", 4, 0, (4,), COMPLETE),
    "superbench_gpu_copy_bw.txt": ("superbench", 57, 0, (), COMPLETE),
    "superbench_results_summary_jsonl.txt": ("superbench", 2, 0, (8,), COMPLETE),
    # 8 devices and 3 of 10 network cards.
    "topo_m_h100x8_hgx.txt": ("nvidia_smi_topo", 8 + 3, 0, (), INCOMPLETE),
    # 79 kernels, 16 copies, 3 fills.
    "torch_profiler_trace_simple_add.txt": ("torch_trace", 79 + 16 + 3, 0, (), COMPLETE),
    "torch_profiler_trace_triton.txt": ("torch_trace", 1, 0, (), COMPLETE),
}


@pytest.fixture(scope="session")
def logs(shared: Path) -> Path:
    """The folder of real logs."""
    folder = shared / "logs"
    if not folder.is_dir():
        pytest.skip(f"real logs are not at hand: no folder {folder}")
    return folder


@pytest.mark.parametrize("name", EXPECTED)
def test_a_real_log_is_read_as_counted_by_hand(logs: Path, name: str) -> None:
    report = import_file(logs / name).report
    found = (report.format, report.rows_taken, report.rows_dropped, report.ranks, report.verdict)
    assert found == EXPECTED[name]


def test_every_real_log_is_counted(logs: Path) -> None:
    assert {path.name for path in logs.iterdir()} - {"README.md"} == set(EXPECTED)


# file: (collective, nodes, device, bytes of the first row, seconds of its first placement)
FIRST_ROWS = {
    "nccl_a100x16_2node_roce_v2179.txt": ("all_reduce", 2, "NVIDIA A100-SXM4-40GB", 1073741824, 10887.4e-6),
    "nccl_a100x8_allgather_old_na.txt": ("all_gather", 1, "A100-SXM4-40GB", 32, 35.03e-6),
    "nccl_a100x8_alltoall_old_na.txt": ("all_to_all", 1, "A100-SXM4-40GB", 32, 89.00e-6),
    "nccl_a100x8_reducescatter_old_na.txt": ("reduce_scatter", 1, "A100-SXM4-40GB", 32, 35.06e-6),
    "nccl_h100_2node_rankprefix_split_rows.txt": ("all_reduce", None, "unknown", 1048576, 1626.5e-6),
    "nccl_h200x16_a3ultra_allgather.txt": ("all_gather", None, "unknown", 1024, 54.07e-6),
    "nccl_h200x64_8node_allreduce_half_1.txt": ("all_reduce", 8, "NVIDIA H200", 1731821448, 10655e-6),
    "rccl_16gpu_2node_allreduce.txt": ("all_reduce", 2, "unknown", 1073741824, 5753.0e-6),
    # A byte at 1.01 MB/s (1e6 B/s).
    "osu_bw_a100_nvlink.txt": ("p2p", None, "unknown", 1, 1 / 1.01e6),
}


@pytest.mark.parametrize("name", FIRST_ROWS)
def test_first_row_of_a_real_log(logs: Path, name: str) -> None:
    first = import_file(logs / name).measurements[0]
    case = first.case
    *about, seconds = FIRST_ROWS[name]
    assert [case["collective"], case["nodes"], first.device, case["bytes"]] == about
    assert first.median_s == pytest.approx(seconds)


def test_ranks_that_the_ratio_leaves_open_are_taken_from_the_caller(logs: Path) -> None:
    result = import_file(logs / "nccl_multinode_oom_after_rows.txt", Assumptions(ranks=1024))
    assert (result.report.rows_taken, result.report.ranks) == (5, (1024,))
    # 19.4 ms for 1 GiB and 20.2 ms for 2 GiB: the first row holds the set-up of connections.
    assert ["first-row-slow" in m.flags for m in result.measurements] == [True, True] + [False] * 8
    # 64 ranks would have a ratio of 1.969.
    assert import_file(logs / "nccl_multinode_oom_after_rows.txt", Assumptions(ranks=64)).report.rows_taken == 0


def test_mebibytes_that_are_called_megabytes(logs: Path) -> None:
    # 8 MiB at "24056.72 MB/sec" are 8 / 24056.72 s only if MB is MiB: 332.5 us.
    first = import_file(logs / "perftest_ib_write_bw_loopback.txt").measurements[0]
    assert first.median_s == pytest.approx(8 / 24056.72)


def test_facts_of_real_machines(logs: Path) -> None:
    (topology,) = import_file(logs / "topo_m_h100x8_hgx.txt").facts
    assert topology.values["links"]["GPU0-GPU7"] == "NV18"
    assert topology.values["links"]["GPU3-NIC5"] == "PIX"
    (device,) = import_file(logs / "nvidia_smi_q_x_t4_v11.txt").facts
    assert device.values["memory_bytes"] == 15360 * 2**20
    assert (device.values["power_limit_w"], device.values["clock_hz"]) == (70.0, 585e6)
    tuning = import_file(logs / "nccl_tuning_table_t4_2node_old.txt").facts
    simple = next(fact for fact in tuning if fact.subject == "broadcast/ring/simple")
    assert (simple.values["latency_s"], simple.values["bandwidth_bytes_per_s"]) == pytest.approx((18e-6, 9e9))


# file: (format, rows taken, rows dropped), with the drops by reason in the comment
TABLES = {
    "collectives.csv.gz": ("tidy_collectives", 27719, 0),
    # Eleven steps of "inf" ms.
    "steps.csv.gz": ("tidy_steps", 8856, 11),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_real_table_is_read_whole(shared: Path, name: str) -> None:
    report = import_file(shared / "data" / name).report
    assert (report.format, report.rows_taken, report.rows_dropped) == TABLES[name]
