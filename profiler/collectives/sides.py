"""What the times of a collective beside a kernel are called in the case of a measurement. Needs no torch."""

MICRO = "overlap"
"""The microbenchmark of measurements whose case says, as `timed`, which of the four times they are."""

COLLECTIVE_ALONE, KERNEL_ALONE = "collective alone", "kernel alone"
COLLECTIVE_BESIDE, KERNEL_BESIDE = "collective beside kernel", "kernel beside collective"
