"""Every rule fires where it should, and not one step beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from opsctl.config.load import load_text
from opsctl.config.schema import Config, LaunchProfile
from opsctl.profiles.catalogue import KNOWN_VERSIONS, shipped
from opsctl.profiles.lint import NOTES, RULES, Finding, Host, errors, lint
from opsctl.profiles.lint_model import Patches

SM120 = Host(compute_capability=(12, 0), gpu_count=8)
EAGLE3: dict[str, Any] = {
    "speculative-algorithm": "EAGLE3",
    "speculative-num-steps": 3,
    "speculative-eagle-topk": 1,
    "speculative-num-draft-tokens": 4,
    "max-running-requests": 32,
}
TREE = EAGLE3 | {"speculative-eagle-topk": 4, "speculative-num-draft-tokens": 8}
ADAPTIVE = EAGLE3 | {"speculative-adaptive": True}
KIMI = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "text_config": {
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "kv_lora_rank": 512,
        "hidden_size": 7168,
        "n_routed_experts": 384,
        "max_position_embeddings": 262144,
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
        },
    },
}
NVFP4 = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "n_routed_experts": 256,
    "num_attention_heads": 128,
    "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "max_position_embeddings": 131072,
}
DRAFT = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 4096,
    "max_position_embeddings": 131072,
}
PAIR = """
profiles:
  baseline: {model: m, flags: {max-running-requests: 64}}
  eagle3:
    model: m
    draft_model: d
    flags: {speculative-algorithm: EAGLE3, max-running-requests: 32}
serve: {profile: baseline}
auto_spec: {speculative: eagle3, baseline: baseline, sustained_load: {high: 16, low: 8}}
"""


@dataclass(frozen=True)
class Case:
    """A profile, and what of it is looked at."""

    patch: int = 23
    flags: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    host: Host = SM120
    profile: Mapping[str, Any] = field(default_factory=dict)
    config: Config | None = None
    name: str = "p"
    alone: bool = False
    """Without other releases to ask."""

    def lint(self) -> tuple[Finding, ...]:
        keys = {"model": "org/model", "draft_model": "org/draft", **self.profile}
        profile = LaunchProfile.model_validate(
            {**keys, "flags": dict(self.flags), "environment": dict(self.environment)}
        )
        others = () if self.alone else tuple(map(shipped, KNOWN_VERSIONS))
        catalogue = shipped(f"0.5.{self.patch}")
        return lint(self.name, profile, catalogue, self.host, config=self.config, others=others)


def host(**facts: Any) -> Host:
    return Host(**{"compute_capability": (12, 0), "gpu_count": 8, **facts})


def allowing(code: str) -> Config:
    text = PAIR.replace("{profile: baseline}", f"{{profile: baseline, allow_findings: [{code}]}}")
    return load_text(text, name="test", environment={}).config


def marks(high: float = 16, cap: int = 64) -> Config:
    text = PAIR.replace("high: 16", f"high: {high:g}").replace("requests: 64", f"requests: {cap}")
    return load_text(text, name="test", environment={}).config


NO_DRAFT = {"draft_model": None}
ADAPTIVE_FILE = ADAPTIVE | {"speculative-adaptive-config": "/etc/steps.json"}
GOOD_FILE = {"1": {"candidate_steps": [1, 3]}, "8": {"candidate_steps": [0]}}

FUSION = {"enable-flashinfer-allreduce-fusion": True}
SYMM_MEM = {"enable-torch-symm-mem": True}
BLOCKED = Patches(
    missing={"torch-symm-mem": "applicable"}, environment="--python /opt/v/bin/python"
)


def patched(name: str) -> Host:
    return host(patches=Patches(applied=frozenset({name})))


FIRES: list[tuple[str, Case, str]] = [
    # --- patches
    ("patch-missing", Case(host=host(patches=BLOCKED)), "requires_patches"),
    ("patch-undeclared", Case(14, FUSION, host=patched("allreduce-fusion")), "flags.enable-fl"),
    ("patch-undeclared", Case(9, SYMM_MEM, host=patched("torch-symm-mem")), "flags.enable-torch"),
    ("patch-unmeasured", Case(23, FUSION, host=patched("allreduce-fusion")), "flags.enable-fl"),
    # --- flags
    ("removed-flag", Case(20, {"cuda-graph-max-bs": 8}), "flags.cuda-graph-max-bs"),
    ("removed-flag", Case(23, {"nsa-decode-backend": "fa3"}), "flags.nsa-decode-backend"),
    ("removed-flag", Case(23, {"cuda-graph-max-bs": 8}, alone=True), "flags.cuda-graph-max-bs"),
    ("removed-flag", Case(14, {"enable-piecewise-cuda-graph": True}, alone=True), "flags.enable-p"),
    ("fork-flag", Case(23, {"enable-pcie-oneshot-allreduce": True}), "flags.enable-pcie"),
    ("ambiguous-flag", Case(23, {"cuda-graph-max": 8}), "flags.cuda-graph-max"),
    ("ambiguous-flag", Case(9, {"pp": 2}), "flags.pp"),
    ("flag-too-new", Case(10, {"speculative-adaptive": True}), "flags.speculative-adaptive"),
    ("unknown-flag", Case(23, {"tensor-paralel-size": 8}), "flags.tensor-paralel-size"),
    ("abbreviated-flag", Case(23, {"tp": 8}), "flags.tp"),
    ("deprecated-flag", Case(23, {"disable-cuda-graph": True}), "flags.disable-cuda-graph"),
    ("same-flag-twice", Case(23, {"tp-size": 8, "tensor-parallel-size": 4}), "flags.tensor-"),
    ("switch-with-value", Case(23, {"trust-remote-code": "yes"}), "flags.trust-remote-code"),
    ("flag-without-value", Case(23, {"tp-size": True}), "flags.tp-size"),
    ("bad-choice", Case(23, {"attention-backend": "flashinfr"}), "flags.attention-backend"),
    ("bad-choice", Case(23, {"attention-backend": "cutlass_mla"}), "flags.attention-backend"),
    ("bad-choice", Case(9, EAGLE3 | {"speculative-algorithm": "DFLASH"}), "flags.speculative-a"),
    ("unknown-algorithm", Case(23, {"speculative-algorithm": "EAGEL3"}), "flags.speculative-"),
    ("bad-value", Case(23, {"tp-size": "eight"}), "flags.tp-size"),
    ("bad-value", Case(23, {"mem-fraction-static": "0,9"}), "flags.mem-fraction-static"),
    ("bad-value", Case(23, {"tp-size": [4, 8]}), "flags.tp-size"),
    # --- environment
    ("removed-variable", Case(14, environment={"SGLANG_ENABLE_SPEC_V2": "1"}), "environment.SGL"),
    ("removed-variable", Case(23, environment={"SGLANG_K3_GEMM_AR": "1"}), "environment.SGL"),
    ("variable-too-new", Case(9, environment={"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": "1"}), "env"),
    ("unknown-variable", Case(23, environment={"SGLANG_ENABLE_PCI_IPC_ALLREDUCE": "1"}), "env"),
    ("deprecated-variable", Case(23, environment={"SGLANG_ENABLE_CP_V2": "1"}), "environment.S"),
    ("bad-variable-value", Case(9, environment={"SGLANG_ENABLE_JIT_DEEPGEMM": "off"}), "env"),
    (
        "file-missing",
        Case(
            environment={"NCCL_GRAPH_FILE": "/g.xml"},
            host=host(absent=frozenset({"environment.NCCL_GRAPH_FILE"})),
        ),
        "environment.NCCL_GRAPH_FILE",
    ),
    ("spec-v2-off", Case(9, EAGLE3), "environment"),
    ("spec-v2-off", Case(10, EAGLE3 | {"speculative-algorithm": "NEXTN"}), "environment"),
    ("spec-v2-off", Case(10, EAGLE3, {"SGLANG_ENABLE_SPEC_V2": "0"}), "environment.SGLANG_ENABLE"),
    ("spec-v2-tree", Case(9, TREE, {"SGLANG_ENABLE_SPEC_V2": "1"}), "flags.speculative-eagle-topk"),
    ("simulated-acceptance", Case(23, environment={"SGLANG_SIMULATE_ACC_LEN": "3"}), "environment"),
    (
        "expandable-weight-cache",
        Case(
            flags={"weight-cache-mode": "client"},
            environment={"PYTORCH_CUDA_ALLOC_CONF": "a:1, expandable_segments:True"},
        ),
        "environment.PYTORCH_CUDA_ALLOC_CONF",
    ),
    (
        "expandable-segments",
        Case(
            flags={"enable-memory-saver": True},
            environment={"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
        ),
        "environment.PYTORCH_ALLOC_CONF",
    ),
    # --- SM120
    ("sm120-fusion-crash", Case(14, {"enable-flashinfer-allreduce-fusion": True}), "flags.enable"),
    ("sm120-fusion-crash", Case(23, {"flashinfer-allreduce-fusion-backend": "trtllm"}), "flags"),
    ("sm120-fusion-ignored", Case(13, {"enable-flashinfer-allreduce-fusion": True}), "flags"),
    ("sm120-multicast", Case(23, {"flashinfer-allreduce-fusion-backend": "mnnvl"}), "flags.flash"),
    ("sm120-symm-mem-crash", Case(13, {"enable-torch-symm-mem": True}), "flags.enable-torch"),
    ("sm120-symm-mem-off", Case(14, {"enable-torch-symm-mem": True}), "flags.enable-torch"),
    ("sm120-nvlink-only", Case(23, {"enable-nccl-nvls": True}), "flags.enable-nccl-nvls"),
    ("sm120-trtllm-mla", Case(9, {"attention-backend": "trtllm_mla"}), "flags.attention-backend"),
    ("sm120-trtllm-mla", Case(23, {"decode-attention-backend": "trtllm_mla"}), "flags.decode"),
    ("sm120-no-kernels", Case(23, {"prefill-attention-backend": "fa3"}), "flags.prefill"),
    ("sm120-no-kernels", Case(23, {"attention-backend": "flashmla"}), "flags.attention-backend"),
    ("sm120-fa4", Case(23, {"attention-backend": "fa4"}), "flags.attention-backend"),
    ("sm120-sm100-attention", Case(23, {"attention-backend": "cutedsl_mla"}), "flags.attention"),
    ("sm120-sm100-attention", Case(14, {"attention-backend": "tokenspeed_mla"}), "flags.attention"),
    ("sm120-trtllm-mha", Case(23, {"attention-backend": "trtllm_mha"}), "flags.attention-backend"),
    ("sm120-trtllm-mha", Case(9, {"decode-attention-backend": "trtllm_mha"}), "flags.decode"),
    ("sm120-sm100-runner", Case(23, {"moe-runner-backend": "flashinfer_trtllm"}), "flags.moe"),
    ("sm120-deepgemm", Case(9, host=host(checkpoint=NVFP4)), "environment"),
    ("sm120-implicit-runner", Case(23, host=host(checkpoint=NVFP4)), "flags"),
    (
        "sm120-implicit-runner",
        Case(9, {"moe-runner-backend": "auto"}, host=host(checkpoint=NVFP4)),
        "flags.moe-runner-backend",
    ),
    ("sm120-implicit-fp4-gemm", Case(12, host=host(checkpoint=NVFP4)), "flags"),
    (
        "hidden-fp8-kv",
        Case(
            host=host(
                checkpoint=NVFP4,
                quantization={"quantization": {"kv_cache_quant_algo": "FP8"}},
            )
        ),
        "flags",
    ),
    (
        "sm120-fp8-kv-int4",
        Case(23, {"kv-cache-dtype": "fp8_e4m3"}, host=host(checkpoint=KIMI)),
        "flags.kv-cache-dtype",
    ),
    ("sm120-implicit-attention", Case(host=host(checkpoint=KIMI)), "flags"),
    ("pcie-ipc-unused", Case(22, {"tp-size": 8}), "environment"),
    (
        "pcie-ipc-with-fusion",
        Case(
            flags={"flashinfer-allreduce-fusion-backend": "trtllm", "tp-size": 8},
            environment={"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": "1"},
        ),
        "environment.SGLANG_ENABLE_PCIE_IPC_ALLREDUCE",
    ),
    ("pcie-ipc-inert", Case(21, {"tp-size": 8}, {"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": "1"}), "env"),
    ("pcie-ipc-inert", Case(23, {"tp-size": 6}, {"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": "1"}), "env"),
    # --- speculation
    ("draft-not-set", Case(flags=EAGLE3, profile=NO_DRAFT), "flags.speculative-algorithm"),
    ("speculation-off", Case(flags={}), "draft_model"),
    ("speculation-off", Case(flags={"speculative-num-steps": 3}, profile=NO_DRAFT), "flags.spec"),
    ("hidden-request-cap", Case(flags={"speculative-algorithm": "EAGLE3"}), "flags.speculative-a"),
    ("small-decode-graphs", Case(flags=EAGLE3 | {"cuda-graph-max-bs-decode": 8}), "flags.cuda-gr"),
    ("small-decode-graphs", Case(19, EAGLE3 | {"cuda-graph-bs": [1, 2, 4]}), "flags.cuda-graph-bs"),
    (
        "draft-tokens-adjusted",
        Case(flags=EAGLE3 | {"speculative-num-draft-tokens": 16}),
        "flags.speculative-num-draft-tokens",
    ),
    (
        "half-tree",
        Case(flags={"speculative-algorithm": "EAGLE3", "speculative-eagle-topk": 1}),
        "flags.speculative-eagle-topk",
    ),
    (
        "tree-incomplete",
        Case(flags={"speculative-algorithm": "EAGLE3", "speculative-num-steps": 3}),
        "flags.speculative-num-steps",
    ),
    (
        "paged-tree",
        Case(13, TREE | {"page-size": 16, "attention-backend": "triton"}),
        "flags.speculative-eagle-topk",
    ),
    ("large-tree", Case(flags=TREE | {"speculative-num-draft-tokens": 32}), "flags.speculative-n"),
    ("weight-cache-speculation", Case(flags=EAGLE3 | {"weight-cache-mode": "daemon"}), "flags.we"),
    (
        "weight-cache-quantization",
        Case(flags={"weight-cache-mode": "client"}, host=host(checkpoint=KIMI)),
        "flags.weight-cache-mode",
    ),
    (
        "draft-window",
        Case(
            flags=EAGLE3,
            host=host(checkpoint=LLAMA, draft=DRAFT | {"max_position_embeddings": 2048}),
        ),
        "draft_model",
    ),
    (
        "draft-architecture",
        Case(flags=EAGLE3, host=host(draft={"architectures": ["LlamaForCausalLMEagle9"]})),
        "draft_model",
    ),
    ("kimi-eagle3-hooks", Case(9, EAGLE3, host=host(checkpoint=KIMI)), "flags.speculative-algo"),
    (
        "mla-draft-too-new",
        Case(11, EAGLE3, host=host(draft={"architectures": ["Eagle3DeepseekV2ForCausalLM"]})),
        "draft_model",
    ),
    (
        "draft-hidden-size",
        Case(flags=EAGLE3, host=host(checkpoint=KIMI, draft=DRAFT)),
        "draft_model",
    ),
    # --- adaptive
    ("adaptive-excluded", Case(flags=ADAPTIVE | {"speculative-eagle-topk": 4}), "flags.specul"),
    ("adaptive-excluded", Case(flags=ADAPTIVE | {"enable-dp-attention": True}), "flags.specul"),
    ("adaptive-excluded", Case(flags=ADAPTIVE | {"attn-dp-size": 2}), "flags.speculative-adapt"),
    ("adaptive-excluded", Case(flags=ADAPTIVE | {"enable-pdmux": True}), "flags.speculative-ada"),
    ("adaptive-excluded", Case(flags=ADAPTIVE | {"enable-multi-layer-eagle": True}), "flags.spe"),
    ("adaptive-excluded", Case(flags=ADAPTIVE | {"enable-two-batch-overlap": True}), "flags.spe"),
    ("adaptive-excluded", Case(flags=ADAPTIVE | {"speculative-algorithm": "NGRAM"}), "flags.spe"),
    ("adaptive-excluded", Case(11, ADAPTIVE), "flags.speculative-adaptive"),
    (
        "adaptive-excluded",
        Case(18, {k: v for k, v in ADAPTIVE.items() if k != "speculative-eagle-topk"}),
        "flags.speculative-adaptive",
    ),
    (
        "adaptive-file-unused",
        Case(flags=EAGLE3 | {"speculative-adaptive-config": "/etc/steps.json"}),
        "flags.speculative-adaptive-config",
    ),
    ("adaptive-file", Case(flags=ADAPTIVE_FILE, host=host(adaptive=[1])), "flags.speculative-ad"),
    ("adaptive-file", Case(flags=ADAPTIVE_FILE, host=host(adaptive={"ema_alpha": 0.1})), "flags"),
    ("adaptive-file", Case(13, ADAPTIVE_FILE, host=host(adaptive=GOOD_FILE)), "flags.speculat"),
    (
        "adaptive-file",
        Case(flags=ADAPTIVE_FILE, host=host(adaptive={"1": {"candidate_steps": [1, "3"]}})),
        "flags.speculative-adaptive-config",
    ),
    (
        "adaptive-file",
        Case(flags=ADAPTIVE_FILE, host=host(adaptive_problem="is not JSON")),
        "flags.speculative-adaptive-config",
    ),
    (
        "adaptive-file",
        Case(12, ADAPTIVE_FILE, host=host(adaptive={"candidate_steps": [3]})),
        "flags.speculative-adaptive-config",
    ),
    ("adaptive-steps", Case(flags=ADAPTIVE | {"speculative-num-steps": 4}), "flags.speculative-n"),
    ("adaptive-steps", Case(19, ADAPTIVE | {"speculative-num-steps": 5}), "flags.speculative-n"),
    (
        "adaptive-steps",
        Case(flags=ADAPTIVE_FILE | {"speculative-num-steps": 5}, host=host(adaptive=GOOD_FILE)),
        "flags.speculative-num-steps",
    ),
    (
        "adaptive-no-zero",
        Case(flags=ADAPTIVE_FILE, host=host(adaptive={"1": {"candidate_steps": [1, 3]}})),
        "flags.speculative-adaptive-config",
    ),
    # --- checkpoint and GPUs
    ("tp-does-not-divide", Case(flags={"tp-size": 6}, host=host(checkpoint=KIMI)), "flags.tp-size"),
    (
        "tp-does-not-divide",
        Case(
            flags={"tp-size": 4},
            host=host(checkpoint=LLAMA | {"num_key_value_heads": 3}),
        ),
        "flags.tp-size",
    ),
    ("too-few-gpus", Case(flags={"tp-size": 16}), "flags.tp-size"),
    ("too-few-gpus", Case(flags={"tp-size": 4, "pp-size": 4}), "flags.tp-size"),
    ("too-few-gpus", Case(flags={"tp-size": 4, "dp-size": 4}), "flags.tp-size"),
    ("too-few-gpus", Case(flags={"tp-size": 8}, environment={"CUDA_VISIBLE_DEVICES": "0,1"}), "f"),
    ("missing-shards", Case(host=host(missing_shards=("model-2.safetensors",))), "model"),
    ("missing-shards", Case(host=host(missing_draft_shards=("a", "b", "c", "d"))), "draft_model"),
    ("model-missing", Case(host=host(absent=frozenset({"model"}))), "model"),
    ("model-not-here", Case(host=host(absent=frozenset({"draft_model"}), here=False)), "draft"),
    ("model-architecture", Case(host=host(checkpoint={"architectures": ["NewForCausalLM"]})), "m"),
    (
        "other-quantization",
        Case(flags={"quantization": "modelopt_fp4"}, host=host(checkpoint=KIMI)),
        "flags.quantization",
    ),
    # --- watchdog
    ("unknown-code", Case(config=allowing("unknown-flg")), "serve.allow_findings"),
    ("threshold-by-queue", Case(flags=EAGLE3, config=marks(100), name="eagle3"), "auto_spec."),
    (
        "small-baseline",
        Case(flags={"max-running-requests": 64}, config=marks(100), name="baseline"),
        "flags.max-running-requests",
    ),
    ("stale-load", Case(12, EAGLE3, config=marks(), name="eagle3"), "flags"),
]

DECLARED = {"requires_patches": ["allreduce-fusion"]}
QUIET: list[tuple[str, Case]] = [
    ("patch-missing", Case(23, FUSION, host=patched("allreduce-fusion"), profile=DECLARED)),
    (
        "patch-undeclared",
        Case(14, FUSION, host=patched("allreduce-fusion"), profile=DECLARED),
    ),
    ("patch-undeclared", Case(14, FUSION, host=patched("torch-symm-mem"))),
    ("patch-unmeasured", Case(14, host=patched("allreduce-fusion"))),
    ("sm120-fusion-crash", Case(14, FUSION, host=patched("allreduce-fusion"))),
    ("sm120-fusion-ignored", Case(9, FUSION, host=patched("allreduce-fusion"))),
    ("sm120-symm-mem-crash", Case(13, SYMM_MEM, host=patched("torch-symm-mem"))),
    ("sm120-symm-mem-off", Case(14, SYMM_MEM, host=patched("torch-symm-mem"))),
    (
        "sm120-deepgemm",
        Case(
            12,
            host=host(checkpoint=NVFP4, patches=Patches(applied=frozenset({"deepgemm-scales"}))),
        ),
    ),
    (
        "kimi-eagle3-hooks",
        Case(
            9,
            EAGLE3,
            host=host(checkpoint=KIMI, patches=Patches(applied=frozenset({"kimi-k25-eagle3"}))),
        ),
    ),
    ("removed-flag", Case(19, {"cuda-graph-max-bs": 8})),
    ("removed-flag", Case(23, {"cuda-graph-max-bs-decode": 8})),
    ("removed-flag", Case(9, {"enable-breakable-cuda-graph": True})),
    ("removed-flag", Case(9, {"enable-piecewise-cuda-graph": True}, alone=True)),
    ("fork-flag", Case(23, {"enable-pcie-oneshot": True})),
    ("ambiguous-flag", Case(23, {"cuda-graph-max-bs": 8})),
    ("ambiguous-flag", Case(23, {"tp-size": 8})),
    ("flag-too-new", Case(11, {"speculative-adaptive": True})),
    ("unknown-flag", Case(10, {"speculative-adaptive": True})),
    ("unknown-flag", Case(23, {"tensor-paralel-size": False})),
    ("abbreviated-flag", Case(23, {"tp-size": 8, "tensor-parallel-size": None})),
    ("deprecated-flag", Case(9, {"disable-cuda-graph": True})),
    ("same-flag-twice", Case(23, {"tp-size": 8, "tensor-parallel-size": None})),
    ("switch-with-value", Case(23, {"trust-remote-code": True})),
    ("flag-without-value", Case(23, {"tp-size": 8})),
    ("bad-choice", Case(23, {"attention-backend": "flashinfer"})),
    ("bad-choice", Case(9, {"attention-backend": "cutlass_mla"}, host=Host())),
    ("unknown-algorithm", Case(23, {"speculative-algorithm": "eagle3"})),
    ("bad-value", Case(23, {"tp-size": "8", "mem-fraction-static": 1})),
    ("removed-variable", Case(13, environment={"SGLANG_ENABLE_SPEC_V2": "1"})),
    ("removed-variable", Case(23, environment={"SGLANG_ENABLE_SPEC_V2": ""})),
    ("variable-too-new", Case(22, environment={"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": "1"})),
    ("unknown-variable", Case(23, environment={"NCCL_P2P_LEVL": "SYS", "SGL_FORCE_SHUTDOWN": "1"})),
    ("unknown-variable", Case(14, environment={"SGLANG_ENABLE_SPEC_V2": "1"})),
    ("deprecated-variable", Case(18, environment={"SGLANG_ENABLE_CP_V2": "1"})),
    ("bad-variable-value", Case(9, environment={"SGLANG_ENABLE_JIT_DEEPGEMM": "No"})),
    ("bad-variable-value", Case(9, environment={"SGLANG_ENABLE_JIT_DEEPGEMM": {"env": "X"}})),
    ("file-missing", Case(environment={"NCCL_GRAPH_FILE": "/g.xml"})),
    (
        "file-missing",
        Case(host=host(absent=frozenset({"environment.NCCL_GRAPH_FILE"}), here=False)),
    ),
    ("spec-v2-off", Case(9, EAGLE3, {"SGLANG_ENABLE_SPEC_V2": "1"})),
    ("spec-v2-off", Case(11, EAGLE3)),
    ("spec-v2-off", Case(9, TREE)),
    ("spec-v2-tree", Case(11, TREE, {"SGLANG_ENABLE_SPEC_V2": "1"})),
    ("spec-v2-tree", Case(9, TREE)),
    ("expandable-weight-cache", Case(flags={"weight-cache-mode": "client"})),
    (
        "expandable-weight-cache",
        Case(
            flags={"weight-cache-mode": "client"},
            environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"},
        ),
    ),
    (
        "expandable-segments",
        Case(environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    ),
    (
        "sm120-fusion-crash",
        Case(23, {"flashinfer-allreduce-fusion-backend": "auto"}, host=Host((10, 0))),
    ),
    ("sm120-fusion-crash", Case(13, {"enable-flashinfer-allreduce-fusion": True})),
    (
        "sm120-fusion-crash",
        Case(
            23,
            {
                "enable-flashinfer-allreduce-fusion": True,
                "enforce-disable-flashinfer-allreduce-fusion": True,
            },
        ),
    ),
    ("sm120-fusion-ignored", Case(14, {"enable-flashinfer-allreduce-fusion": True})),
    ("sm120-multicast", Case(23, {"flashinfer-allreduce-fusion-backend": "trtllm"})),
    ("sm120-symm-mem-crash", Case(14, {"enable-torch-symm-mem": True})),
    ("sm120-symm-mem-off", Case(13, {"enable-torch-symm-mem": True})),
    ("sm120-nvlink-only", Case(23, {"enable-nccl-nvls": True}, host=Host((9, 0)))),
    ("sm120-trtllm-mla", Case(23, {"attention-backend": "trtllm_mla"}, host=Host((10, 0)))),
    ("sm120-trtllm-mla", Case(23, {"attention-backend": "triton"})),
    ("sm120-no-kernels", Case(23, {"attention-backend": "flashinfer"})),
    ("sm120-fa4", Case(23, {"attention-backend": "fa4"}, host=Host((10, 0)))),
    ("sm120-sm100-attention", Case(23, {"attention-backend": "cutedsl_mla"}, host=Host())),
    ("sm120-trtllm-mha", Case(10, {"decode-attention-backend": "trtllm_mha"})),
    ("sm120-sm100-runner", Case(23, {"moe-runner-backend": "flashinfer_cutlass"})),
    ("sm120-deepgemm", Case(13, host=host(checkpoint=NVFP4))),
    (
        "sm120-deepgemm",
        Case(9, {}, {"SGLANG_ENABLE_JIT_DEEPGEMM": "0"}, host=host(checkpoint=NVFP4)),
    ),
    ("sm120-deepgemm", Case(9, host=host(checkpoint=KIMI))),
    ("sm120-implicit-runner", Case(23, host=host(checkpoint=KIMI))),
    (
        "sm120-implicit-runner",
        Case(23, {"moe-runner-backend": "triton"}, host=host(checkpoint=NVFP4)),
    ),
    ("sm120-implicit-fp4-gemm", Case(13, host=host(checkpoint=NVFP4))),
    ("hidden-fp8-kv", Case(host=host(checkpoint=NVFP4))),
    ("sm120-fp8-kv-int4", Case(23, {"kv-cache-dtype": "bf16"}, host=host(checkpoint=KIMI))),
    ("sm120-fp8-kv-int4", Case(23, {"kv-cache-dtype": "fp8_e4m3"}, host=host(checkpoint=NVFP4))),
    ("sm120-implicit-attention", Case(host=host(checkpoint=LLAMA))),
    ("pcie-ipc-unused", Case(21, {"tp-size": 8})),
    ("pcie-ipc-unused", Case(23, {"tp-size": 1})),
    ("pcie-ipc-unused", Case(23, {"tp-size": 8}, {"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": "0"})),
    ("pcie-ipc-with-fusion", Case(23, {"tp-size": 8}, {"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": "1"})),
    ("pcie-ipc-inert", Case(22, {"tp-size": 8}, {"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": "1"})),
    ("draft-not-set", Case(flags={"speculative-algorithm": "EAGLE"}, profile=NO_DRAFT)),
    ("speculation-off", Case(flags=EAGLE3)),
    ("speculation-off", Case(profile=NO_DRAFT)),
    ("hidden-request-cap", Case(flags=EAGLE3)),
    ("small-decode-graphs", Case(flags=EAGLE3 | {"cuda-graph-max-bs-decode": 32})),
    ("small-decode-graphs", Case(flags={"cuda-graph-max-bs-decode": 1}, profile=NO_DRAFT)),
    ("draft-tokens-adjusted", Case(flags=EAGLE3)),
    ("draft-tokens-adjusted", Case(flags=TREE)),
    ("half-tree", Case(flags={"speculative-algorithm": "EAGLE3"})),
    ("tree-incomplete", Case(flags=EAGLE3 | {"speculative-num-draft-tokens": None})),
    ("paged-tree", Case(14, TREE | {"page-size": 16, "attention-backend": "triton"})),
    ("paged-tree", Case(13, TREE | {"page-size": 1, "attention-backend": "triton"})),
    (
        "large-tree",
        Case(flags=TREE | {"speculative-num-draft-tokens": 32, "max-running-requests": 2}),
    ),
    ("weight-cache-speculation", Case(flags=EAGLE3 | {"weight-cache-mode": "off"})),
    (
        "weight-cache-quantization",
        Case(flags={"weight-cache-mode": "client"}, host=host(checkpoint=LLAMA)),
    ),
    ("draft-window", Case(flags=EAGLE3, host=host(checkpoint=LLAMA, draft=DRAFT))),
    (
        "draft-window",
        Case(
            flags=EAGLE3 | {"context-length": 2048},
            host=host(checkpoint=LLAMA, draft=DRAFT | {"max_position_embeddings": 2048}),
        ),
    ),
    ("draft-architecture", Case(flags=EAGLE3, host=host(draft=DRAFT))),
    (
        "draft-architecture",
        Case(11, EAGLE3, host=host(draft={"architectures": ["Eagle3DeepseekV2ForCausalLM"]})),
    ),
    ("kimi-eagle3-hooks", Case(10, EAGLE3, host=host(checkpoint=KIMI))),
    (
        "mla-draft-too-new",
        Case(12, EAGLE3, host=host(draft={"architectures": ["Eagle3DeepseekV2ForCausalLM"]})),
    ),
    ("draft-hidden-size", Case(flags=EAGLE3, host=host(checkpoint=LLAMA, draft=DRAFT))),
    ("adaptive-excluded", Case(12, ADAPTIVE)),
    ("adaptive-excluded", Case(11, ADAPTIVE, {"SGLANG_ENABLE_SPEC_V2": "0"})),
    ("adaptive-excluded", Case(flags=ADAPTIVE | {"speculative-algorithm": "NEXTN"})),
    (
        "adaptive-excluded",
        Case(flags={"speculative-algorithm": "EAGLE3", "speculative-adaptive": True}),
    ),
    ("adaptive-file-unused", Case(flags=ADAPTIVE_FILE)),
    ("adaptive-file", Case(flags=ADAPTIVE_FILE, host=host(adaptive=GOOD_FILE))),
    ("adaptive-file", Case(12, ADAPTIVE_FILE, host=host(adaptive={"candidate_steps": [1, 3]}))),
    ("adaptive-file", Case(flags=ADAPTIVE_FILE, host=host(adaptive_problem="x", here=False))),
    ("adaptive-steps", Case(flags=ADAPTIVE | {"speculative-num-steps": 5})),
    ("adaptive-steps", Case(13, ADAPTIVE | {"speculative-num-steps": 5})),
    ("adaptive-no-zero", Case(flags=ADAPTIVE_FILE, host=host(adaptive=GOOD_FILE))),
    ("tp-does-not-divide", Case(flags={"tp-size": 8}, host=host(checkpoint=KIMI))),
    (
        "tp-does-not-divide",
        Case(
            flags={"tp-size": 6, "dp-size": 6, "enable-dp-attention": True},
            host=host(checkpoint=KIMI),
        ),
    ),
    ("tp-does-not-divide", Case(flags={"tp-size": 16}, host=host(checkpoint=LLAMA))),
    ("too-few-gpus", Case(flags={"tp-size": 8})),
    ("too-few-gpus", Case(flags={"tp-size": 16, "nnodes": 2})),
    ("too-few-gpus", Case(flags={"tp-size": 8, "dp-size": 8, "enable-dp-attention": True})),
    ("too-few-gpus", Case(flags={"tp-size": 16}, host=host(here=False))),
    ("model-missing", Case(host=host(absent=frozenset({"model"}), here=False))),
    ("model-not-here", Case(host=host(absent=frozenset({"model"})))),
    ("model-architecture", Case(host=host(checkpoint=KIMI))),
    (
        "other-quantization",
        Case(flags={"quantization": "compressed-tensors"}, host=host(checkpoint=KIMI)),
    ),
    (
        "other-quantization",
        Case(flags={"quantization": "modelopt_fp4"}, host=host(checkpoint=NVFP4)),
    ),
    ("unknown-code", Case(config=allowing("unknown-flag"))),
    ("threshold-by-queue", Case(flags=EAGLE3, config=marks(32), name="eagle3")),
    ("small-baseline", Case(flags={"max-running-requests": 64}, config=marks(64), name="baseline")),
    ("stale-load", Case(13, EAGLE3, config=marks(), name="eagle3")),
    ("stale-load", Case(12, EAGLE3 | {"decode-log-interval": 8}, config=marks(), name="eagle3")),
    ("stale-load", Case(12, EAGLE3, config=marks(), name="other")),
]

WITHOUT_A_CASE = {"refused-flag", "other-release"}
"""No shipped release has one: tested with a made catalogue below."""


def label(case: tuple[Any, ...]) -> str:
    return f"{case[0]}-0.5.{case[1].patch}"


@pytest.mark.parametrize(("code", "case", "key"), FIRES, ids=map(label, FIRES))
def test_fires(code: str, case: Case, key: str) -> None:
    found = [finding for finding in case.lint() if finding.code == code]
    assert found, f"{code} did not fire; found {[x.code for x in case.lint()]}"
    assert found[0].key.startswith(key)
    assert found[0].message and found[0].fix and found[0].source and found[0].at is None


@pytest.mark.parametrize(("code", "case"), QUIET, ids=map(label, QUIET))
def test_does_not_fire_next_door(code: str, case: Case) -> None:
    assert [finding for finding in case.lint() if finding.code == code] == []


ONLY_SM120 = [x for x in FIRES if x[0].startswith(("sm120", "pcie")) or x[0] == "hidden-fp8-kv"]


@pytest.mark.parametrize(("code", "case", "key"), ONLY_SM120, ids=map(label, ONLY_SM120))
@pytest.mark.parametrize("capability", [None, (10, 0), (9, 0)], ids=str)
def test_what_is_wrong_on_sm120_only_is_not_told_elsewhere(
    code: str, case: Case, key: str, capability: tuple[int, int] | None
) -> None:
    elsewhere = replace(case, host=replace(case.host, compute_capability=capability))
    assert [finding for finding in elsewhere.lint() if finding.code == code] == []


FLAT = {"candidate_steps": [1, 3]}
ZERO = {"1": {"candidate_steps": [0, 3]}}
WITHOUT_TOPK = {k: v for k, v in ADAPTIVE.items() if k != "speculative-eagle-topk"}
BOUNDARIES: list[tuple[str, Case, bool]] = [
    ("adaptive-excluded", Case(18, WITHOUT_TOPK), True),
    ("adaptive-excluded", Case(19, WITHOUT_TOPK), False),
    ("adaptive-file", Case(12, ADAPTIVE_FILE, host=host(adaptive=FLAT)), False),
    ("adaptive-file", Case(13, ADAPTIVE_FILE, host=host(adaptive=FLAT)), True),
    ("adaptive-file", Case(13, ADAPTIVE_FILE, host=host(adaptive=ZERO)), True),
    ("adaptive-file", Case(14, ADAPTIVE_FILE, host=host(adaptive=ZERO)), False),
    ("adaptive-file", Case(12, ADAPTIVE_FILE, host=host(adaptive={"ema_alpha": 0.1})), False),
    ("adaptive-file", Case(13, ADAPTIVE_FILE, host=host(adaptive={"1": {}})), True),
    ("adaptive-file", Case(12, ADAPTIVE_FILE, host=host(adaptive={"candidate_steps": [3]})), True),
    (
        "adaptive-file",
        Case(13, ADAPTIVE_FILE, host=host(adaptive={"1": {"candidate_steps": [3]}})),
        False,
    ),
    ("adaptive-steps", Case(13, ADAPTIVE | {"speculative-num-steps": 2}), False),
    ("adaptive-steps", Case(14, ADAPTIVE | {"speculative-num-steps": 2}), True),
    ("adaptive-steps", Case(19, ADAPTIVE | {"speculative-num-steps": 5}), True),
    ("adaptive-steps", Case(20, ADAPTIVE | {"speculative-num-steps": 5}), False),
    ("adaptive-steps", Case(14, ADAPTIVE | {"speculative-num-steps": 0}), False),
    ("adaptive-no-zero", Case(13, ADAPTIVE), False),
    ("adaptive-no-zero", Case(14, ADAPTIVE_FILE, host=host(adaptive={"1": FLAT})), True),
    ("adaptive-no-zero", Case(14, ADAPTIVE), False),
    ("sm120-deepgemm", Case(12, host=host(checkpoint=NVFP4)), True),
    ("sm120-deepgemm", Case(13, host=host(checkpoint=NVFP4)), False),
    ("spec-v2-tree", Case(10, TREE, {"SGLANG_ENABLE_SPEC_V2": "1"}), True),
]


@pytest.mark.parametrize(("code", "case", "fires"), BOUNDARIES, ids=map(label, BOUNDARIES))
def test_a_rule_holds_for_the_releases_it_says(code: str, case: Case, fires: bool) -> None:
    assert any(finding.code == code for finding in case.lint()) is fires


@pytest.mark.parametrize(("patch", "words"), [(12, "may choose an SM100"), (13, "left to SGLang")])
def test_the_runner_of_nvfp4_experts_is_told_as_the_release_chooses_it(
    patch: int, words: str
) -> None:
    found = Case(patch, host=host(checkpoint=NVFP4)).lint()
    [finding] = [x for x in found if x.code == "sm120-implicit-runner"]
    assert words in finding.message


def test_every_rule_has_a_case_that_fires_and_one_that_does_not() -> None:
    codes = {rule.code for rule in RULES} - WITHOUT_A_CASE
    assert codes - {code for code, _, _ in FIRES} == set()
    assert codes - {code for code, _ in QUIET} - {"simulated-acceptance", "missing-shards"} == set()
    assert {code for code, *_ in (*FIRES, *QUIET)} - codes == set(), "a case of no rule"


def test_codes_are_stable_words_and_used_once() -> None:
    codes = [rule.code for rule in (*RULES, *NOTES)]
    assert len(codes) == len(set(codes))
    assert all(code == code.lower() and " " not in code for code in codes)


def changed(change: Callable[[Any], Any]) -> tuple[Finding, ...]:
    catalogue = change(shipped("0.5.23"))
    profile = LaunchProfile(model="m", flags={"tp-size": 8})
    return lint("p", profile, catalogue, Host())


def test_a_flag_that_the_release_only_knows_to_stop_at_is_an_error() -> None:
    def refuse(catalogue: Any) -> Any:
        flag = replace(catalogue.flags["tp-size"], refused=True, deprecated="use --other")
        return replace(catalogue, flags={**catalogue.flags, "tp-size": flag})

    [finding] = changed(refuse)
    assert (finding.code, finding.severity) == ("refused-flag", "error")
    assert finding.fix == "use --other"


@pytest.mark.parametrize("version", ["0.5.24", "0.5.8", "0.6.0", "0.0.0.dev1", "unknown"])
def test_a_release_the_rules_were_not_checked_with_is_said(version: str) -> None:
    [finding] = changed(lambda catalogue: replace(catalogue, version=version))
    assert (finding.code, finding.severity, finding.key) == ("other-release", "info", "python")


def test_a_plain_good_profile_has_no_findings() -> None:
    assert Case(flags={"tp-size": 8}, profile=NO_DRAFT, host=Host()).lint() == ()


def test_a_simulated_profile_is_not_linted_against_sglang() -> None:
    case = Case(flags={"no-such": True}, profile={"engine": "simulated"})
    [finding] = case.lint()
    assert (finding.code, finding.severity) == ("simulated-engine", "info")


def test_the_new_name_of_a_removed_flag_is_given_and_the_last_release_that_had_it() -> None:
    [finding] = [x for x in Case(23, {"cuda-graph-max-bs": 8}).lint() if x.severity == "error"]
    assert "0.5.19 was the last" in finding.message
    assert finding.fix == "write `cuda-graph-max-bs-decode`"


def test_a_near_name_is_suggested() -> None:
    [finding] = [x for x in Case(flags={"tensor-paralel-size": 8}).lint() if x.severity == "error"]
    assert finding.fix == "did you mean `tensor-parallel-size`?"


def test_the_cap_is_told_per_rank() -> None:
    flags = {"speculative-algorithm": "EAGLE3", "dp-size": 8}
    [finding] = [x for x in Case(flags=flags).lint() if x.code == "hidden-request-cap"]
    assert "48 requests" in finding.message and "6 on each of 8 ranks" in finding.message


def test_allowed_errors_do_not_stand_in_the_way() -> None:
    found = Case(23, {"cuda-graph-max-bs": 8, "attention-backend": "trtllm_mla"}).lint()
    assert {x.code for x in errors(found)} == {"removed-flag", "sm120-trtllm-mla"}
    assert [x.code for x in errors(found, allowed=["removed-flag"])] == ["sm120-trtllm-mla"]


def test_the_window_of_the_draft_is_told_in_numbers() -> None:
    case = Case(
        flags=EAGLE3,
        host=host(checkpoint=LLAMA, draft=DRAFT | {"max_position_embeddings": 2048}),
    )
    [finding] = [x for x in case.lint() if x.code == "draft-window"]
    assert "2048" in finding.message and "131072" in finding.message


def test_no_secret_is_in_a_finding() -> None:
    case = Case(
        23,
        environment={"HF_TOKEN": "hunter2", "SGLANG_TOKEN_KEY": "hunter2", "SGLANG_X": "hunter2"},
    )
    assert "hunter2" not in repr(case.lint())
