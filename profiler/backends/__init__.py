"""The kinds of devices by name, each imported only when it is used (see `profiler.backends.base`)."""

BACKENDS = {
    "cpu": "profiler.backends.cpu",
    "cuda": "profiler.backends.cuda",
    "simulated": "profiler.backends.simulated",
}
"""Kind -> the module whose `BACKEND(index)` opens the device."""
