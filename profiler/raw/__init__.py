"""CUDA C that asks a device for its ceilings: `sources` says what there is, `nvrtc` compiles it, `module` loads it."""
