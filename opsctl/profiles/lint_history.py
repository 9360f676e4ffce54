"""Flags and variables that SGLang gave up, with what took their place; and flags of forks. Pure."""

from __future__ import annotations

from collections.abc import Mapping

_GRAPHS = "see `--cuda-graph-backend-prefill`; prefill graphs are on where they are known to work"
_CONTEXT_PARALLEL = "`enable-prefill-cp`; the split is chosen by SGLang"

REPLACED: Mapping[str, str] = {
    "cuda-graph-max-bs": "cuda-graph-max-bs-decode",
    "cuda-graph-bs": "cuda-graph-bs-decode",
    "disable-piecewise-cuda-graph": "disable-prefill-cuda-graph",
    "piecewise-cuda-graph-max-tokens": "cuda-graph-max-bs-prefill",
    "piecewise-cuda-graph-tokens": "cuda-graph-bs-prefill",
    "nsa-prefill-backend": "dsa-prefill-backend",
    "nsa-decode-backend": "dsa-decode-backend",
    "mamba-scheduler-strategy": "mamba-radix-cache-strategy",
    "speculative-dflash-draft-window-size": "speculative-draft-window-size",
    "enable-deepep-waterfill": "enable-waterfill",
    "stream-output": "incremental-streaming-output",
}
"""Removed flag and the flag that does the same now."""

GIVEN_UP: Mapping[str, str] = {
    "enable-piecewise-cuda-graph": _GRAPHS,
    "enforce-piecewise-cuda-graph": _GRAPHS,
    "piecewise-cuda-graph-compiler": _GRAPHS,
    "cuda-graph-tc-compiler": _GRAPHS,
    "enable-breakable-cuda-graph": "`cuda-graph-backend-prefill: breakable`",
    "nsa-prefill-cp-mode": _CONTEXT_PARALLEL,
    "dsa-prefill-cp-mode": _CONTEXT_PARALLEL,
    "prefill-cp-mode": _CONTEXT_PARALLEL,
    "enable-nsa-prefill-context-parallel": _CONTEXT_PARALLEL,
    "enable-dsa-prefill-context-parallel": _CONTEXT_PARALLEL,
    "enable-prefill-context-parallel": _CONTEXT_PARALLEL,
    "torchao-config": "use a checkpoint that is quantized, or `quantization`",
    "enable-nan-detection": "remove it",
    "custom-sigquit-handler": "remove it; it was only for programs that embed SGLang",
    "collect-tokens-histogram": "remove it; the histograms are part of the metrics",
    "multi-item-scoring-delimiter": "remove it",
    "enable-double-sparsity": "remove it with the `ds-*` flags; double sparsity is gone",
}
"""Removed flag and what to do instead."""

_PCIE = (
    "remove it; SGLang 0.5.22 and later have the environment variable "
    "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE for the same purpose"
)
FORKS: Mapping[str, str] = {
    "enable-pcie-oneshot-allreduce": _PCIE,
    "enable-pcie-oneshot-allreduce-fusion": _PCIE,
    "pcie-oneshot-allreduce-max-size": "remove it; upstream has SGLANG_PCIE_IPC_MAX_NUMEL",
}
"""Flags seen in launch commands for this hardware that no release of SGLang ever had."""

FORK_CHOICES: Mapping[str, str] = {
    "b12x": "b12x is a fork's backend; upstream has flashinfer_cutlass and triton for SM120",
}
"""Values seen in launch commands for this hardware that no release of SGLang ever had."""

GONE_VARIABLES: Mapping[str, str] = {
    "SGLANG_ENABLE_SPEC_V2": (
        "remove it: spec v2 is the only worker now, and `1` is what it always does"
    ),
    "SGLANG_FLASHINFER_FP4_GEMM_BACKEND": "use the flag `fp4-gemm-backend`",
    "SGLANG_ENABLE_FLASHINFER_FP8_GEMM": "use the flag `fp8-gemm-backend`",
    "SGLANG_SUPPORT_CUTLASS_BLOCK_FP8": "use the flag `fp8-gemm-backend`",
    "SGLANG_CUTLASS_MOE": "use the flag `moe-runner-backend: cutlass`",
    "SGLANG_ENABLE_GRPC": "use SGLang's own gRPC flags",
    "SGLANG_DISABLE_TP_MEMORY_INBALANCE_CHECK": (
        "write SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK=0, which every release knows"
    ),
}
"""Removed variable and what to do instead."""

IGNORED_SINCE: Mapping[str, int] = {"SGLANG_ENABLE_SPEC_V2": 14}
"""Variables that the source still names from 0.5.N on, but only to say that they are gone."""
