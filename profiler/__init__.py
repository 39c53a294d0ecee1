"""Measures: every result is a `Measurement`; torch, CuPy and NVML live here only."""
