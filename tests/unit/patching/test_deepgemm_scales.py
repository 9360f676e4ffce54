"""The constants that decide how SGLang prepares weights for DeepGEMM, by architecture."""

from __future__ import annotations

import builtins
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from opsctl.patching.diff import apply_strictly
from opsctl.patching.series import load
from tests.support.extracted import extract
from tests.support.released import RELEASES, released_or_skip

CONFIGURER = "sglang/srt/layers/deep_gemm_wrapper/configurer.py"
NAMES = ("_compute_enable_deep_gemm", "ENABLE_JIT_DEEPGEMM", "DEEPGEMM_BLACKWELL")
SCALES, ALIGNED = "DEEPGEMM_SCALE_UE8M0", "DEEPGEMM_NEED_TMA_ALIGNED_SCALES"
PATCHED, FIXED = ["0.5.9", "0.5.10", "0.5.11", "0.5.12"], [f"0.5.{n}" for n in range(13, 20)]
ASKS_DEEPGEMM = [v for v in RELEASES["sglang"] if v not in {*PATCHED, *FIXED}]


def source(release: str, patched: bool = False) -> str:
    text = (released_or_skip("sglang", release) / CONFIGURER).read_bytes()
    if patched:
        file = load().patch("deepgemm-scales").file_for(release)
        assert file is not None
        (change,) = file.changes
        assert change.path == CONFIGURER
        text = apply_strictly(text, change)
    return text.decode()


def constants(text: str, sm: int, *, installed: bool = True, wanted: bool = True) -> dict[str, Any]:
    """What the module computes on an architecture, where DeepGEMM is installed or not."""
    given = {
        "__builtins__": {**vars(builtins), "__import__": deep_gemm(installed)},
        "envs": SimpleNamespace(SGLANG_ENABLE_JIT_DEEPGEMM=SimpleNamespace(get=lambda: wanted)),
        "get_device_sm": lambda: sm,
        "get_platform": lambda: SimpleNamespace(is_sm100=sm in (100, 103)),
        "is_sm100_supported": lambda: sm in (100, 103),
        "is_blackwell_supported": lambda: sm >= 100,
        "_is_cuda": True,
        "_is_musa": False,
    }
    optional = [name for name in (ALIGNED, "_sm120_deep_gemm_apis_available") if name in text]
    chosen = [*NAMES, SCALES, *optional]
    made = extract(text, *chosen, given=given)
    return {name: made[name] for name in chosen if name.isupper()}


def deep_gemm(installed: bool) -> Any:
    def imported(name: str, *rest: Any) -> Any:
        if name != "deep_gemm":
            return __import__(name, *rest)
        if not installed:
            raise ImportError(name)
        return ModuleType(name)

    return imported


@pytest.mark.parametrize("release", PATCHED)
def test_unpatched_sm120_gets_the_scales_of_sm100(release: str) -> None:
    made = constants(source(release), 120)

    assert made["DEEPGEMM_BLACKWELL"]
    assert made[SCALES]


@pytest.mark.parametrize("release", PATCHED)
def test_patched_deepgemm_is_off_on_sm120(release: str) -> None:
    made = constants(source(release, patched=True), 120)

    assert made.pop(ALIGNED, True)
    assert set(made.values()) == {False}


@pytest.mark.parametrize("release", PATCHED)
def test_that_is_what_the_environment_variable_does(release: str) -> None:
    patched = constants(source(release, patched=True), 120)

    assert patched == constants(source(release), 120, wanted=False)


@pytest.mark.parametrize("release", PATCHED)
@pytest.mark.parametrize("sm", [80, 89, 90, 100, 103])
@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("wanted", [True, False])
def test_other_architectures_decide_as_before(
    release: str, sm: int, installed: bool, wanted: bool
) -> None:
    before, after = (
        constants(source(release, patched), sm, installed=installed, wanted=wanted)
        for patched in (False, True)
    )

    assert after == before


@pytest.mark.parametrize("release", PATCHED)
def test_sm100_keeps_its_scales(release: str) -> None:
    assert constants(source(release, patched=True), 100)[SCALES]


@pytest.mark.parametrize("release", FIXED)
def test_from_0_5_13_on_deepgemm_is_off_on_sm120_without_a_patch(release: str) -> None:
    made = constants(source(release), 120)

    assert not made["ENABLE_JIT_DEEPGEMM"]
    assert not made[SCALES]
    assert reason(release) == "SGLang 0.5.13 and later leave DeepGEMM off on SM120 themselves"


@pytest.mark.parametrize("release", ASKS_DEEPGEMM)
def test_from_0_5_20_on_it_is_off_where_deepgemm_lacks_the_functions(release: str) -> None:
    made = constants(source(release), 120)

    assert not made["ENABLE_JIT_DEEPGEMM"]
    assert not made[SCALES]
    assert "look for DeepGEMM's SM120 functions" in reason(release)


def reason(release: str) -> str:
    otherwise = load().patch("deepgemm-scales").otherwise(release)
    assert otherwise is not None
    return otherwise.why
