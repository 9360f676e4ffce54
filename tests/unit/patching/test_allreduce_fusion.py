"""What `allreduce-fusion` makes of SGLang's decisions, run with stand-ins in every release."""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from opsctl.patching.series import load
from tests.support import patched
from tests.support.extracted import extract
from tests.support.released import RELEASES

PATCH = "allreduce-fusion"
COMMUNICATOR = "sglang/srt/layers/communicator.py"
ADD_NORM = "sglang/srt/layers/layer_boundary/residual/add_norm.py"
FUSION = "sglang/srt/layers/flashinfer_comm_fusion.py"
APPLIES, APPLIES_SINCE_22 = "apply_flashinfer_allreduce_fusion", "flashinfer_ar_fusion_applies"
SIZES = "_flashinfer_trtllm_workspace_allocation_sizes"

SGLANG = RELEASES["sglang"]
OTHERS = (8, 9, 10)
BACKENDS = ("auto", "trtllm", "mnnvl", "cutedsl")


def number(version: str) -> int:
    """Return 9 for 0.5.9."""
    return int(version.removeprefix("0.5."))


WITH_RESOLVER = [version for version in SGLANG if number(version) >= 14]
WITH_PREFLIGHT = [version for version in SGLANG if number(version) >= 11]
WITHOUT_RESOLVER = [version for version in SGLANG if number(version) < 14]


@dataclass(frozen=True)
class Host:
    """What the decisions look at: the GPU, what was asked, and how the run is laid out."""

    major: int = 12
    backend: str | None = "auto"
    nodes: int = 1
    batch: int = 16
    attention_dp: bool = False
    unavailable: bool = False
    flashinfer: bool = True

    def given(self) -> dict[str, Any]:
        """Return stand-ins for everything the functions look up."""
        asked = SimpleNamespace(
            enable_flashinfer_allreduce_fusion=self.backend is not None,
            flashinfer_allreduce_fusion_backend=self.backend,
            nnodes=self.nodes,
            attn_cp_size=1,
        )
        platform = SimpleNamespace(
            is_sm90=self.major == 9, is_sm100=self.major == 10, is_sm120=self.major == 12
        )
        return {
            "_is_cuda": True,
            "_is_flashinfer_available": self.flashinfer,
            "is_sm90_supported": lambda: platform.is_sm90,
            "is_sm100_supported": lambda: platform.is_sm100,
            "is_sm120_supported": lambda: platform.is_sm120,
            "get_platform": lambda: platform,
            "is_dp_attention_enabled": lambda: self.attention_dp,
            "is_flashinfer_allreduce_unavailable": lambda: self.unavailable,
            "uses_cutedsl_ar_fusion": lambda: self.backend == "cutedsl",
            "get_global_server_args": lambda: asked,
            "get_server_args": lambda: asked,
            "get_exec": lambda: SimpleNamespace(comm=asked),
            "get_parallel": lambda: asked,
        }


def applies(version: str, host: Host, *, patch: bool) -> bool:
    """Run the gate in front of the fused all-reduce."""
    path = COMMUNICATOR if number(version) < 21 else ADD_NORM
    text = source(version, path, patch=patch)
    gate = APPLIES if number(version) < 22 else APPLIES_SINCE_22
    flags = ["_is_sm90_supported", "_is_sm100_supported", *(["_is_sm120_supported"] * patch)]
    limit = "FUSE_ALLREDUCE_MAX_BATCH_SIZE"
    return bool(extract(text, *flags, limit, gate, given=host.given())[gate](host.batch))


def resolved(version: str, host: Host, *, patch: bool) -> str | None:
    """Run the choice of the backend; raises what the release raises."""
    resolve = "resolve_flashinfer_allreduce_fusion_backend"
    names = ["_mnnvl_supported", "_resolve_backend", resolve]
    text = source(version, FUSION, patch=patch)
    given = host.given()
    function = extract(text, *names, given=given)[resolve]
    takes_arguments = bool(inspect.signature(function).parameters)
    result: str | None = function(*[given["get_server_args"]()] * takes_arguments)
    return result


def source(version: str, path: str, *, patch: bool) -> str:
    """Return a module of SGLang with or without the patch."""
    if patch:
        return patched.after(PATCH, version, path)
    return patched.before("sglang", version, path)


def outcome(call: Callable[[], object]) -> object:
    """Return what a call gives, or the error it raises, for comparison."""
    try:
        return call()
    except (ValueError, RuntimeError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("version", SGLANG)
def test_the_gate_admits_sm120_when_the_fusion_was_asked_for(version: str) -> None:
    assert not applies(version, Host(), patch=False)
    for batch in (1, 2048):
        assert applies(version, Host(batch=batch), patch=True)


@pytest.mark.parametrize(
    "host",
    [
        Host(backend=None),
        Host(batch=0),
        Host(batch=2049),
        Host(attention_dp=True),
        Host(flashinfer=False),
    ],
    ids=["nobody-asked", "nothing-to-do", "too-many-tokens", "attention-dp", "no-flashinfer"],
)
@pytest.mark.parametrize("version", SGLANG)
def test_the_gate_keeps_its_other_conditions_on_sm120(version: str, host: Host) -> None:
    assert not applies(version, host, patch=True)


@pytest.mark.parametrize("version", SGLANG[1:])
def test_the_gate_closes_on_sm120_after_the_workspace_could_not_be_made(version: str) -> None:
    assert not applies(version, Host(unavailable=True), patch=True)


@pytest.mark.parametrize("version", WITHOUT_RESOLVER)
def test_where_nothing_else_refuses_several_nodes_the_gate_does_on_sm120(version: str) -> None:
    assert not applies(version, Host(nodes=2), patch=True)


@pytest.mark.parametrize("major", OTHERS)
@pytest.mark.parametrize("version", SGLANG)
def test_the_gate_decides_as_before_on_every_other_gpu(version: str, major: int) -> None:
    for backend, nodes, batch, dp, gone in itertools.product(
        (None, "auto"), (1, 2), (0, 1, 2048, 2049), (False, True), (False, True)
    ):
        host = Host(major, backend, nodes, batch, dp, gone)
        assert applies(version, host, patch=True) == applies(version, host, patch=False)


@pytest.mark.parametrize("version", WITH_RESOLVER)
def test_sm120_takes_the_trtllm_backend_alone(version: str) -> None:
    assert resolved(version, Host(backend="auto"), patch=True) == "trtllm"
    assert resolved(version, Host(backend="trtllm"), patch=True) == "trtllm"
    for backend in ("mnnvl", "cutedsl"):
        with pytest.raises(ValueError, match=f"no {backend} backend for SM120"):
            resolved(version, Host(backend=backend), patch=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("version", WITH_RESOLVER)
def test_several_nodes_are_refused_on_sm120(version: str, backend: str) -> None:
    with pytest.raises(ValueError, match="SM120 is single-node only"):
        resolved(version, Host(backend=backend, nodes=2), patch=True)


@pytest.mark.parametrize("version", WITH_RESOLVER)
def test_without_the_patch_sm120_is_refused_and_without_the_flag_it_has_no_backend(
    version: str,
) -> None:
    with pytest.raises(ValueError, match="requires SM90 or SM10X"):
        resolved(version, Host(), patch=False)
    assert resolved(version, Host(backend=None), patch=True) is None


@pytest.mark.parametrize("major", OTHERS)
@pytest.mark.parametrize("version", WITH_RESOLVER)
def test_other_gpus_get_the_backend_or_the_error_they_got_before(version: str, major: int) -> None:
    for backend, nodes in itertools.product((None, *BACKENDS), (1, 2)):
        host = Host(major, backend, nodes)
        with_patch = outcome(lambda host=host: resolved(version, host, patch=True))
        assert with_patch == outcome(lambda host=host: resolved(version, host, patch=False))


MIB = 1 << 20


class Driver:
    """The part of the CUDA driver that the preflight asks; a PCIe board fails on multicast."""

    CUresult = SimpleNamespace(CUDA_SUCCESS="success")
    CUmemAllocationGranularity_flags = SimpleNamespace(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED=1)
    CUmulticastGranularity_flags = SimpleNamespace(CU_MULTICAST_GRANULARITY_RECOMMENDED=1)
    CUmulticastObjectProp = SimpleNamespace

    def __init__(self, *, multicast: bool) -> None:
        self.multicast = multicast
        self.asked_for_multicast = 0

    def cuMemGetAllocationGranularity(self, prop: object, flags: int) -> tuple[str, int]:  # noqa: N802
        return "success", 2 * MIB

    def cuMulticastGetGranularity(self, prop: object, flags: int) -> tuple[str, int]:  # noqa: N802
        self.asked_for_multicast += 1
        return ("success", 512 * MIB) if self.multicast else ("not supported", 0)


def workspace_sizes(version: str, host: Host, driver: Driver, *, patch: bool) -> list[int]:
    """Run the computation of the workspace: 8 ranks, 2048 tokens of 7168 values in bf16."""
    torch = SimpleNamespace(float32="float32", dtype=str)
    given = host.given() | {"torch": torch, "ceil_align": lambda x, y: -(-x // y) * y}
    function = extract(source(version, FUSION, patch=patch), SIZES, given=given)[SIZES]
    imported = SimpleNamespace(get_global_server_args=given["get_global_server_args"])
    modules = {"sglang": SimpleNamespace(), "sglang.srt": SimpleNamespace()}
    with mock.patch.dict(sys.modules, modules | {"sglang.srt.server_args": imported}):
        prop = SimpleNamespace(requestedHandleTypes=1)
        sizes: list[int] = function(driver, prop, 8, 2048, 7168, "bfloat16")
    return sizes


@pytest.mark.parametrize("version", WITH_PREFLIGHT)
def test_the_preflight_on_sm120_asks_nothing_that_a_pcie_board_fails(version: str) -> None:
    with pytest.raises(RuntimeError, match="cuMulticastGetGranularity failed"):
        workspace_sizes(version, Host(), Driver(multicast=False), patch=False)
    driver = Driver(multicast=False)
    # 224 MiB, 16 KiB and 672 MiB, each up to 2 MiB, plus the signal pad, up to 2 MiB
    wanted = [226 * MIB, 4 * MIB, 674 * MIB]
    assert workspace_sizes(version, Host(), driver, patch=True) == wanted
    assert driver.asked_for_multicast == 0


@pytest.mark.parametrize("version", sorted({*WITH_PREFLIGHT} & {*WITHOUT_RESOLVER}))
def test_on_several_nodes_the_preflight_of_old_releases_fails_as_before(version: str) -> None:
    with pytest.raises(RuntimeError, match="cuMulticastGetGranularity failed"):
        workspace_sizes(version, Host(nodes=2), Driver(multicast=False), patch=True)


@pytest.mark.parametrize("multicast", [False, True])
@pytest.mark.parametrize("major", OTHERS)
@pytest.mark.parametrize("version", WITH_PREFLIGHT)
def test_other_gpus_ask_for_multicast_as_before(version: str, major: int, multicast: bool) -> None:
    one, other = Driver(multicast=multicast), Driver(multicast=multicast)
    host = Host(major)
    with_patch = outcome(lambda: workspace_sizes(version, host, one, patch=True))
    assert with_patch == outcome(lambda: workspace_sizes(version, host, other, patch=False))
    assert one.asked_for_multicast == other.asked_for_multicast > 0


@pytest.mark.parametrize("version", SGLANG)
def test_nothing_that_turns_the_fusion_on_by_itself_is_touched(version: str) -> None:
    file = load().patch(PATCH).file_for(version)
    assert file is not None
    assert {change.path for change in file.changes} <= {COMMUNICATOR, ADD_NORM, FUSION}
