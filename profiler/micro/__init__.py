"""The microbenchmarks by name: one per kind of layer, and one for updates; each imported only when it is used."""

MICROS = (
    "conv",
    "linear",
    "norm",
    "pool",
    "elementwise",
    "concat",
    "embedding",
    "attention",
    "matmul",
    "loss",
    "other",
    "optimizer",
)
"""`profiler.micro.NAME.MICRO` builds a case's inputs and the closure that is timed (see `profiler.micro.base`)."""
