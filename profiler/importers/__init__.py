"""Reads what people already have on disk: one small module per format, each with an `IMPORTER`.

`PROBING` is the registry, in the order in which a file's first characters are tried: what only one tool prints goes
before what several tools could print, documents before lines, and the loose table of nccl-tests last, because a log
of almost anything may hold one. A module is imported when its turn comes.
"""

PROBING = (
    "nvidia_smi_xml",
    "torch_trace",
    "nccl_tests_json",
    "nvbandwidth",
    "mlperf_system",
    "perftest",
    "rccl_jsonl",
    "superbench",
    "mlperf_log",
    "tidy_collectives",
    "tidy_kernels",
    "tidy_steps",
    "nvidia_smi_topo",
    "osu",
    "nccl_tests",
    "nccl_tuning",
)
"""Modules of this package, in the order in which they are asked whether a file is theirs."""
