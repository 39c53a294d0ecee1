"""Every raw kernel compiles for every architecture, and its machine code holds the instructions it is named for."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

import pytest

from oracle.errors import BadInput, MissingDependency
from profiler.raw import mma
from profiler.raw.nvrtc import Compiled, find_nvrtc
from profiler.raw.sources import FMA_CHAINS, FMA_STEPS, Kernel, fma_kernels, mma_kernels, text

ARCHITECTURES = (70, 75, 80, 86, 89, 90, 100)
DISASSEMBLED = ARCHITECTURES[1:]
"""nvdisasm 13 no longer reads Volta's code."""

PACKAGES = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvdisasm")


@pytest.fixture(scope="module", autouse=True)
def _compilers() -> None:
    """The extra [dev] brings them, so that `make check` never skips this."""
    for package in PACKAGES:
        try:
            distribution(package)
        except PackageNotFoundError:
            pytest.skip(f"{package} is not installed")


@pytest.fixture
def machine_code(tmp_path: Path) -> Callable[[Compiled, str], Counter[str]]:
    """The instructions of one function, without their modifiers, and how often each occurs."""
    package = find_spec("nvidia")
    assert package is not None
    roots = package.submodule_search_locations or ()
    disassembler = next(path for root in roots for path in Path(root).glob("*/bin/nvdisasm"))

    def disassemble(compiled: Compiled, function: str) -> Counter[str]:
        file = tmp_path / "kernel.cubin"
        file.write_bytes(compiled.cubin)
        done = subprocess.run([disassembler, "-c", file], capture_output=True, text=True, check=True)
        body = re.search(rf"^\.text\.{function}:(.*?)(?=^\.text\.|\Z)", done.stdout, re.MULTILINE | re.DOTALL)
        assert body is not None
        return Counter(re.findall(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+ )?([A-Z0-9]+)", body[1], re.MULTILINE))

    return disassemble


@cache
def built(source: str, architecture: str) -> Compiled:
    """Each source once for each architecture: the tests share what the compiler made of it."""
    return find_nvrtc(int(architecture.rstrip("a"))).compile(source, architecture)


def compiled(kernel: Kernel) -> Compiled:
    return built(kernel.source, kernel.architecture)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_kernel_compiles_to_its_instruction(architecture: int) -> None:
    for kernel in (*fma_kernels(architecture), *mma_kernels(architecture)):
        result = compiled(kernel)
        assert result.cubin.startswith(b"\x7fELF")
        assert f".entry {kernel.name}(" in result.ptx
    for name, functions in {"memory.cu": ("read", "write", "copy", "triad", "empty"), "hold.cu": ("hold",)}.items():
        result = built(text(name), str(architecture))
        assert all(f".entry {function}(" in result.ptx for function in functions)


@pytest.mark.parametrize("architecture", DISASSEMBLED)
def test_no_multiply_add_is_optimised_away(
    architecture: int, machine_code: Callable[[Compiled, str], Counter[str]]
) -> None:
    names = {"fma_fp32": "FFMA", "fma_fp64": "DFMA", "fma_fp16x2": "HFMA2", "fma_bf16x2": "HFMA2"}
    for kernel in fma_kernels(architecture):
        found = machine_code(compiled(kernel), kernel.name)
        # One round of the loop, and the chains added up at the end.
        assert found[names[kernel.name]] >= FMA_CHAINS * FMA_STEPS + FMA_CHAINS - 1
        assert found[names[kernel.name]] < FMA_CHAINS * FMA_STEPS + 2 * FMA_CHAINS


@pytest.mark.parametrize("architecture", DISASSEMBLED)
def test_tensor_core_kernels_hold_tensor_core_instructions(
    architecture: int, machine_code: Callable[[Compiled, str], Counter[str]]
) -> None:
    units = {"fp16": "H", "bf16": "H", "tf32": "H", "int8": "I", "fp8": "Q", "fp64": "D"}
    for kernel in mma_kernels(architecture):
        way, _, kind = kernel.name.partition("_")
        found = machine_code(compiled(kernel), kernel.name)
        if way == "wgmma":
            assert found[f"{units[kind]}GMMA"] == mma.STEPS
            # One wait a round: the compiler has not put one behind every instruction.
            assert found["WARPGROUP"] == 2
        else:
            instructions = found[f"{units[kind]}MMA"]
            parts = 2 if kernel.name == "mma_fp64" and architecture == 90 else 1
            assert instructions in (mma.STEPS * mma.CHAINS, parts * mma.STEPS * mma.CHAINS)


def test_streams_load_sixteen_bytes_past_the_first_cache(
    machine_code: Callable[[Compiled, str], Counter[str]],
) -> None:
    result = built(text("memory.cu"), "90")
    assert result.ptx.count("ld.global.cg.v4.f32") >= 4 + 4 + 8
    # read: four loads; copy: four and four stores; triad: eight and four
    for function, loads, stores in (("read", 4, 0), ("copy", 4, 4), ("triad", 8, 4)):
        found = machine_code(result, function)
        assert found["LDG"] % loads == 0
        assert found["LDG"] > 0
        assert (found["STG"] > 0) == (stores > 0 or function == "read")


def test_one_round_of_volta_multiplies_four_pairs_of_fragments() -> None:
    (kernel,) = mma_kernels(70)
    # 8 steps x 4 chains x four 8x8x4 products of a multiply and an add
    assert kernel.flop_per_round == 8 * 4 * 4 * 2 * 8 * 8 * 4
    assert compiled(kernel).ptx.count("mma.sync.aligned.m8n8k4") == 8 * 4


def test_what_the_compiler_refuses_is_one_line() -> None:
    with pytest.raises(BadInput, match=r"refuses a kernel for sm_90: .*undefined_name"):
        find_nvrtc(90).compile("__global__ void f(int* x) { *x = undefined_name; }", "90")


def test_an_architecture_that_no_library_knows_names_what_is_missing() -> None:
    with pytest.raises(MissingDependency, match="sm_35"):
        find_nvrtc(35)
