"""The kernels that `allreduce-fusion-jit` lets FlashInfer build really compile for SM120.

Whether they run, and how fast, only a host with such GPUs can tell.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.nvcc import Cubin, cubin
from tests.support.released import released_or_skip

pytestmark = pytest.mark.slow

OLDEST, NEWEST, PINNED_LAST = "0.6.3", "0.6.15.post1", "0.7.2"
"""The first and the last release that need the patch, and one that carries its own fix."""

EMPTY = 1024
"""Bytes below which a kernel does nothing: an empty one has 256, the smallest other 4,352."""

STANDARD = "".join(f"#include <{name}>\n" for name in ("array", "iostream", "sstream", "string"))

FUSION = (
    STANDARD
    + """
#include "flashinfer/comm/trtllm_allreduce_fusion.cuh"
namespace ar = flashinfer::trtllm_allreduce_fusion;
#define LAUNCHER(Pattern, T, Ranks, Fp32)                                                   \\
  template cudaError_t                                                                      \\
  ar::allreduce_fusion_kernel_launcher<ar::AllReduceFusionPattern::Pattern, T, Ranks, Fp32>( \\
      ar::AllReduceFusionParams<T> const&, bool);
#define SUMS(Pattern, T, Ranks) LAUNCHER(Pattern, T, Ranks, true) LAUNCHER(Pattern, T, Ranks, false)
#define WORLDS(Pattern, T) SUMS(Pattern, T, 2) SUMS(Pattern, T, 4) SUMS(Pattern, T, 8)
#define TYPES(Pattern) WORLDS(Pattern, __nv_bfloat16) WORLDS(Pattern, half)
TYPES(kAllReduce)
TYPES(kARResidualRMSNorm)
"""
)
"""What SGLang calls: two patterns, two types, three world sizes, sums in fp32 or not."""

OLDER = (
    STANDARD
    + """
#include "flashinfer/comm/trtllm_allreduce.cuh"
using namespace flashinfer::trtllm_allreduce;
template __global__ void
reduce_fusion::lamport_style_one_shot_all_reduce_norm_kernel<1, half, 2>(AllReduceParams<half>);
"""
)

LOGGING = """#pragma once
#include <memory>
namespace spdlog {
namespace level { enum level_enum { off }; }
namespace sinks {
struct stdout_color_sink_mt {
  void set_pattern(const char*) {}
  void set_level(level::level_enum) {}
};
}
struct logger { logger(const char*, std::shared_ptr<sinks::stdout_color_sink_mt>) {} };
inline void set_default_logger(std::shared_ptr<logger>) {}
inline void set_level(level::level_enum) {}
template <class... A> void trace(A&&...) {}
template <class... A> void debug(A&&...) {}
template <class... A> void info(A&&...) {}
template <class... A> void warn(A&&...) {}
template <class... A> void error(A&&...) {}
template <class... A> void critical(A&&...) {}
}
"""
"""Stands in for the logging library, which runs on the host only."""


def compiled(source: str, version: str, folder: Path, architecture: str) -> Cubin:
    """Compile against the kernel headers of a FlashInfer release."""
    headers = released_or_skip("flashinfer-python", version) / "flashinfer" / "data" / "include"
    sinks = folder / "spdlog" / "sinks"
    sinks.mkdir(parents=True, exist_ok=True)
    (folder / "spdlog" / "spdlog.h").write_text(LOGGING)
    (sinks / "stdout_color_sinks.h").write_text("#include <spdlog/spdlog.h>\n")
    return cubin(source, folder, [folder, headers], architecture)


@pytest.mark.parametrize("version", [OLDEST, NEWEST, PINNED_LAST])
def test_the_kernels_that_sglang_calls_compile_for_sm120_and_have_a_body(
    version: str, tmp_path: Path
) -> None:
    made = compiled(FUSION, version, tmp_path, "120a")
    assert made.architecture == 120
    one_shot = [name for name in made.kernels if "kernel_oneshot_lamport" in name]
    two_shot = [name for name in made.kernels if "kernel_twoshot_sync" in name]
    assert (len(one_shot), len(two_shot)) == (48, 24)  # one-shot: each completion trigger too
    assert min(made.kernels.values()) > EMPTY


@pytest.mark.parametrize(
    ("version", "architecture", "empty"),
    [(NEWEST, "120a", True), (NEWEST, "90a", False), (PINNED_LAST, "120a", False)],
)
def test_the_older_kernel_that_stays_refused_is_empty_for_sm120_before_its_fix(
    version: str, architecture: str, empty: bool, tmp_path: Path
) -> None:
    made = compiled(OLDER, version, tmp_path, architecture)
    assert made.architecture == int(architecture.removesuffix("a"))
    (size,) = made.kernels.values()
    assert (size <= EMPTY) == empty
