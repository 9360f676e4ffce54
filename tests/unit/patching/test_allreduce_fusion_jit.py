"""What `allreduce-fusion-jit` makes of FlashInfer, run with stand-ins in every release."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from tests.support import patched
from tests.support.extracted import extract
from tests.support.released import RELEASES

PATCH, PACKAGE = "allreduce-fusion-jit", "flashinfer-python"
JIT = "flashinfer/jit/comm.py"
CONTEXT = "flashinfer/compilation_context.py"
SYMMETRIC = "flashinfer/comm/mnnvl.py"
ALL_REDUCE = "flashinfer/comm/trtllm_ar.py"
MIB = 1 << 20

PATCHED = (
    "0.6.3", "0.6.7.post2", "0.6.8.post1", "0.6.11.post1", "0.6.12", "0.6.14", "0.6.15.post1"
)  # fmt: skip
LATER = tuple(version for version in RELEASES[PACKAGE] if version not in PATCHED)
REFUSING_MEMORY = PATCHED[:3]


def source(version: str, path: str, *, patch: bool) -> str:
    """Return a module of FlashInfer with or without the patch."""
    return patched.after(PATCH, version, path) if patch else patched.before(PACKAGE, version, path)


def built(
    version: str, capability: tuple[int, int], *, patch: bool, module: str = "trtllm_comm"
) -> tuple[str, list[str], list[str]]:
    """Ask for a JIT module on a GPU: its name, its sources, and the flags for nvcc.

    The list of architectures is made by the release's own compilation context, which raises
    where it finds none.
    """
    cuda = SimpleNamespace(device_count=lambda: 1, get_device_capability=lambda device: capability)
    given = {
        "os": os,
        "torch": SimpleNamespace(cuda=cuda),
        "logger": logging.getLogger(),
        "_nvcc_supports_sm107": lambda: False,
    }
    toolkit = SimpleNamespace(is_cuda_version_at_least=lambda version: True)
    modules = {"flashinfer": SimpleNamespace(), "flashinfer.jit": SimpleNamespace()}
    text = patched.before(PACKAGE, version, CONTEXT)
    environment = {k: v for k, v in os.environ.items() if k != "FLASHINFER_CUDA_ARCH_LIST"}
    with (
        mock.patch.dict(sys.modules, modules | {"flashinfer.jit.cpp_ext": toolkit}),
        mock.patch.dict(os.environ, environment, clear=True),
    ):
        context = extract(text, "CompilationContext", given=given)["CompilationContext"]()

    def gen_jit_spec(
        name: str, sources: list[Path], extra_cuda_cflags: list[str]
    ) -> tuple[str, list[str], list[str]]:
        return name, [path.name for path in sources], extra_cuda_cflags

    generator = f"gen_{module}_module"
    namespace = extract(
        source(version, JIT, patch=patch),
        generator,
        given={
            "current_compilation_context": context,
            "jit_env": SimpleNamespace(FLASHINFER_CSRC_DIR=Path("csrc")),
            "gen_jit_spec": gen_jit_spec,
        },
    )
    result: tuple[str, list[str], list[str]] = namespace[generator]()
    return result


@pytest.mark.parametrize("version", PATCHED)
def test_the_kernels_are_built_for_sm120_under_a_name_that_no_prebuilt_module_has(
    version: str,
) -> None:
    with pytest.raises(RuntimeError, match=r"No supported CUDA architectures"):
        built(version, (12, 0), patch=False)
    name, sources, flags = built(version, (12, 0), patch=True)
    assert name == "trtllm_comm_sm120"
    assert sources == built(version, (9, 0), patch=False)[1]
    assert [flag for flag in flags if "gencode" in flag and "sm_120" in flag]
    assert not [flag for flag in flags if "gencode" in flag and "sm_120" not in flag]


@pytest.mark.parametrize("capability", [(9, 0), (10, 0), (10, 3)])
@pytest.mark.parametrize("version", PATCHED)
def test_sm90_and_sm100_get_the_module_they_got_before(
    version: str, capability: tuple[int, int]
) -> None:
    with_patch = built(version, capability, patch=True)
    assert with_patch == built(version, capability, patch=False)
    assert with_patch[0] == "trtllm_comm"


@pytest.mark.parametrize("patch", [False, True])
@pytest.mark.parametrize("capability", [(8, 9), (11, 0)])
@pytest.mark.parametrize("version", PATCHED)
def test_other_gpus_are_refused_as_before(
    version: str, capability: tuple[int, int], patch: bool
) -> None:
    with pytest.raises(RuntimeError, match=r"No supported CUDA architectures"):
        built(version, capability, patch=patch)


@pytest.mark.parametrize("version", LATER)
def test_releases_without_a_patch_build_the_kernels_for_sm120_themselves(version: str) -> None:
    name, _, flags = built(version, (12, 0), patch=False)
    assert name == "trtllm_comm"
    assert [flag for flag in flags if "sm_120" in flag]


@pytest.mark.parametrize("version", ["0.6.14", "0.6.15.post1"])
def test_the_multi_node_module_is_still_refused_on_sm120(version: str) -> None:
    with pytest.raises(RuntimeError, match=r"No supported CUDA architectures"):
        built(version, (12, 0), patch=True, module="trtllm_mnnvl_comm")


def reduced_by_older_kernels(version: str, major: int) -> int:
    """Call the all-reduce that SGLang does not use; how often its kernels were launched."""
    calls: list[tuple[object, ...]] = []
    kernels = SimpleNamespace(trtllm_custom_all_reduce=lambda *args: calls.append(args))
    cuda = SimpleNamespace(get_device_capability=lambda device: (major, 0))
    given = {
        "deprecated": lambda message: lambda function: function,
        "torch": SimpleNamespace(cuda=cuda),
        "get_trtllm_comm_module": lambda: kernels,
    }
    name = "trtllm_custom_all_reduce"
    function = extract(source(version, ALL_REDUCE, patch=True), name, given=given)[name]
    function(SimpleNamespace(device=0), *range(21))
    return len(calls)


@pytest.mark.parametrize("version", PATCHED)
def test_the_older_all_reduce_whose_kernels_are_empty_for_sm120_is_refused(version: str) -> None:
    with pytest.raises(RuntimeError, match=r"no kernels for SM12x"):
        reduced_by_older_kernels(version, 12)
    for major in (9, 10):
        assert reduced_by_older_kernels(version, major) == 1


class Board:
    """A GPU's driver as far as symmetric memory asks it; every call is written down."""

    def __init__(self, *, multicast: bool) -> None:
        self.multicast = multicast
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            return mock.MagicMock()
        self.asked.append(name)
        answers = {
            "cuDeviceGetAttribute": int(self.multicast),
            "cuMemGetAllocationGranularity": 2 * MIB,
            "cuMulticastGetGranularity": 512 * MIB,
        }
        if name == "cuMulticastGetGranularity" and not self.multicast:
            raise RuntimeError("CUDA_ERROR_NOT_SUPPORTED")
        return lambda *arguments: answers.get(name, 0)


def allocated(
    version: str, board: Board, *, patch: bool, enable_multicast: bool
) -> tuple[int, int, list[str]]:
    """Make a symmetric buffer of 224 MiB: its size, its alignment, and what was asked."""
    text = source(version, SYMMETRIC, patch=patch)
    exchanger = mock.MagicMock()
    given = {
        "cuda": board,
        "checkCudaErrors": lambda result: result,
        "logging": mock.MagicMock(),
        "sys": sys,
        "SIGNAL_PAD_SIZE": 2048,
        "is_mnnvl_fabric_supported": lambda device: False,
        "PosixFDHandleExchanger": lambda *arguments: exchanger,
        "alloc_and_copy_to_cuda": lambda pointers: 0,
        "round_up": lambda x, y: -(-x // y) * y,
    }
    runtime = mock.MagicMock()
    modules = {
        "flashinfer": SimpleNamespace(),
        "flashinfer.utils": SimpleNamespace(has_cuda_cudart=lambda: True),
        "cuda": SimpleNamespace(cudart=runtime),
        "cuda.cudart": runtime,
    }
    made = extract(text, "SymmDeviceMemory", given=given)["SymmDeviceMemory"]
    made._allocate_unicast_buffers = lambda self, prop: board.asked.append("unicast")
    made._setup_multicast = lambda self, prop: board.asked.append("multicast")
    made.__del__ = lambda self: None
    with mock.patch.dict(sys.modules, modules):
        memory = made(224 * MIB, 8, 0, 0, mock.MagicMock(), enable_multicast, False)
    return memory.allocation_size, memory._mc_granularity, board.asked


@pytest.mark.parametrize("version", REFUSING_MEMORY)
def test_a_board_without_multicast_gets_a_buffer_that_asks_for_none(version: str) -> None:
    with pytest.raises(RuntimeError, match="does not support multicasting"):
        allocated(version, Board(multicast=False), patch=False, enable_multicast=False)
    size, alignment, asked = allocated(
        version, Board(multicast=False), patch=True, enable_multicast=False
    )
    assert (size, alignment) == (226 * MIB, 2 * MIB)
    assert "unicast" in asked
    assert not {"multicast", "cuMulticastGetGranularity"} & {*asked}


@pytest.mark.parametrize("version", REFUSING_MEMORY)
def test_a_board_without_multicast_is_still_refused_a_multicast_buffer(version: str) -> None:
    with pytest.raises(RuntimeError, match="does not support multicasting"):
        allocated(version, Board(multicast=False), patch=True, enable_multicast=True)


@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("version", REFUSING_MEMORY)
def test_a_board_with_multicast_gets_the_very_same_allocation_as_before(
    version: str, wanted: bool
) -> None:
    before = allocated(version, Board(multicast=True), patch=False, enable_multicast=wanted)
    after = allocated(version, Board(multicast=True), patch=True, enable_multicast=wanted)
    assert after == before
    assert after[0] == 512 * MIB
