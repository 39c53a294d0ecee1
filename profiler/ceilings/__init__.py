"""What a device can do at most, and what every call costs at least: one question, one small closure.

`probe` is the values and the loop, `products`, `streams`, `launches`, `copies` and `updates` ask through torch on every
device, `raw` asks NVIDIA devices with kernels of its own, `data_sheets` says what the vendor promises.
"""
