"""Launch commands as people publish them for this hardware, and what the lint says to each.

Taken from field reports and from public wikis and repositories; paths, names and keys are
paraphrased. Each is linted as on 8 RTX PRO 6000, with the release its authors had or are about to
upgrade to, and all findings are listed: what is not there must not fire.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from opsctl.profiles.catalogue import KNOWN_VERSIONS, shipped
from opsctl.profiles.importer import parse
from opsctl.profiles.lint import Finding, Host, lint

KIMI_INT4: dict[str, Any] = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "text_config": {
        "num_attention_heads": 64,
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
KIMI_DRAFT: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 7168,
    "max_position_embeddings": 262144,
}
MLA_DRAFT = KIMI_DRAFT | {"architectures": ["Eagle3DeepseekV2ForCausalLM"]}
SHORT_DRAFT = KIMI_DRAFT | {"max_position_embeddings": 4096}
GLM_NVFP4: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "num_attention_heads": 64,
    "n_routed_experts": 256,
    "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
}
QWEN_NVFP4: dict[str, Any] = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "text_config": {"num_attention_heads": 32, "num_key_value_heads": 2, "num_experts": 512},
    "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
}


@dataclass(frozen=True)
class Published:
    """One command, the release it is linted for, and everything that is to be found."""

    id: str
    patch: int
    command: str
    expected: str
    """Codes, in the order in which they are told."""
    checkpoint: dict[str, Any] | None = None
    draft: dict[str, Any] | None = None


COMMANDS = [
    Published(
        "Kimi K2.5 INT4, baseline, from a wiki, 0.5.9",
        9,
        """NCCL_P2P_LEVEL=SYS NCCL_IB_DISABLE=1 python -m sglang.launch_server \\
           --model-path /models/kimi-k2.5 --tp 8 --trust-remote-code --mem-fraction-static 0.90 \\
           --tool-call-parser kimi_k2 --reasoning-parser kimi_k2 --host 0.0.0.0 --port 30000""",
        "abbreviated-flag sm120-implicit-attention",
        KIMI_INT4,
    ),
    Published(
        "the same with EAGLE-3 as the cookbook has it, still on 0.5.9",
        9,
        """SGLANG_ENABLE_SPEC_V2=1 sglang serve --model-path /models/kimi-k2.5 --tp 8 \\
           --trust-remote-code --speculative-algorithm EAGLE3 --speculative-num-steps 3 \\
           --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 \\
           --speculative-draft-model-path /models/kimi-k2.5-eagle3""",
        "abbreviated-flag sm120-implicit-attention hidden-request-cap kimi-eagle3-hooks",
        KIMI_INT4,
        KIMI_DRAFT,
    ),
    Published(
        "its MLA draft on 0.5.11",
        11,
        """sglang serve --model-path /models/kimi-k2.5 --tp-size 8 --trust-remote-code \\
           --speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 1 \\
           --speculative-num-draft-tokens 4 --max-running-requests 64 \\
           --speculative-draft-model-path /models/kimi-k2.5-eagle3-mla""",
        "sm120-implicit-attention mla-draft-too-new",
        KIMI_INT4,
        MLA_DRAFT,
    ),
    Published(
        "the cookbook's command after an upgrade to 0.5.23",
        23,
        """SGLANG_ENABLE_SPEC_V2=1 sglang serve --model-path /models/kimi-k2.5 --tp-size 8 \\
           --trust-remote-code --attention-backend triton --speculative-algorithm EAGLE3 \\
           --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 \\
           --max-running-requests 64 --cuda-graph-max-bs 64 \\
           --speculative-draft-model-path /models/kimi-k2.5-eagle3-mla""",
        "removed-flag removed-variable pcie-ipc-unused",
        KIMI_INT4,
        MLA_DRAFT,
    ),
    Published(
        "everything switched on: fusion, symmetric memory (reference host, 0.5.13)",
        13,
        """python -m sglang.launch_server --model-path /models/kimi-k2.5 --tp-size 8 \\
           --attention-backend triton --enable-flashinfer-allreduce-fusion \\
           --enable-torch-symm-mem --trust-remote-code""",
        "sm120-fusion-ignored sm120-symm-mem-crash",
        KIMI_INT4,
    ),
    Published(
        "the same on 0.5.14: the other one crashes",
        14,
        """python -m sglang.launch_server --model-path /models/kimi-k2.5 --tp-size 8 \\
           --attention-backend triton --enable-flashinfer-allreduce-fusion \\
           --enable-torch-symm-mem --trust-remote-code""",
        "deprecated-flag sm120-fusion-crash sm120-symm-mem-off",
        KIMI_INT4,
    ),
    Published(
        "a B200 command on SM120: trtllm_mla, mnnvl, FP8 KV",
        23,
        """sglang serve --model-path /models/kimi-k2.5 --tp-size 8 --kv-cache-dtype fp8_e4m3 \\
           --attention-backend trtllm_mla --flashinfer-allreduce-fusion-backend mnnvl""",
        "sm120-fusion-crash sm120-multicast sm120-trtllm-mla sm120-fp8-kv-int4 pcie-ipc-unused",
        KIMI_INT4,
    ),
    Published(
        "GLM-5 NVFP4 of the fork: b12x, one-shot all-reduce",
        9,
        """SGLANG_ENABLE_SPEC_V2=True SGLANG_ENABLE_JIT_DEEPGEMM=0 SGLANG_ENABLE_DEEP_GEMM=0 \\
           NCCL_GRAPH_FILE=/etc/nccl/graph.xml NCCL_IB_DISABLE=1 NCCL_P2P_LEVEL=SYS \\
           OMP_NUM_THREADS=8 SAFETENSORS_FAST_GPU=1 python3 -m sglang.launch_server \\
           --model-path /models/glm-5-nvfp4-mtp --tp 8 --trust-remote-code --kv-cache-dtype bf16 \\
           --tool-call-parser glm47 --reasoning-parser glm45 --quantization modelopt_fp4 \\
           --enable-pcie-oneshot-allreduce --mem-fraction-static 0.85 --cuda-graph-max-bs 32 \\
           --host 0.0.0.0 --port 5000 --served-model-name glm-5 --max-running-requests 64 \\
           --model-loader-extra-config '{"enable_multithread_load": true, "num_threads": 16}' \\
           --enable-metrics --chunked-prefill-size 16384 --attention-backend flashinfer \\
           --fp4-gemm-backend b12x --moe-runner-backend b12x \\
           --json-model-override-args '{"index_topk_pattern": "FFSF"}'""",
        "fork-flag abbreviated-flag bad-choice bad-choice unknown-variable",
        GLM_NVFP4,
    ),
    Published(
        "GLM-5.1 NVFP4 with MTP and NSA backends, carried over to 0.5.23",
        23,
        """export SGLANG_ENABLE_SPEC_V2=True
           export SGLANG_ENABLE_JIT_DEEPGEMM=0
           export NCCL_P2P_LEVEL=SYS
           python3 -m sglang.launch_server --model-path /models/glm-5.1-nvfp4 \\
             --served-model-name glm-5 --tensor-parallel-size 8 --quantization modelopt_fp4 \\
             --kv-cache-dtype fp8_e4m3 --trust-remote-code --nsa-prefill-backend triton \\
             --nsa-decode-backend triton --page-size 64 --attention-backend nsa \\
             --moe-runner-backend flashinfer_cutlass --cuda-graph-max-bs 4 \\
             --speculative-algorithm EAGLE --speculative-num-steps 3 \\
             --speculative-num-draft-tokens 4 --speculative-eagle-topk 1 \\
             --max-running-requests 4 --mem-fraction-static 0.76""",
        "removed-flag removed-flag removed-flag removed-variable pcie-ipc-unused",
        GLM_NVFP4,
    ),
    Published(
        "Qwen3.5 NVFP4 on 4 GPUs with NEXTN, docker run, 0.5.10",
        10,
        """docker run --gpus '"device=0,1,2,3"' --ipc=host --shm-size=8g --network=host -d \\
           -v /data/hf:/cache/huggingface -e NCCL_P2P_LEVEL=SYS \\
           -e SGLANG_ENABLE_SPEC_V2=True example/sglang:cu130 \\
           python3 -m sglang.launch_server --model vendor/qwen3.5-nvfp4 \\
           --tensor-parallel-size 4 --quantization modelopt_fp4 --kv-cache-dtype fp8_e4m3 \\
           --trust-remote-code --cuda-graph-max-bs 64 --max-running-requests 64 \\
           --speculative-algo NEXTN --speculative-num-steps 5 --speculative-eagle-topk 1 \\
           --speculative-num-draft-tokens 6 --mamba-scheduler-strategy extra_buffer \\
           --mem-fraction-static 0.93 --enable-pcie-oneshot-allreduce \\
           --attention-backend flashinfer --sleep-on-idle""",
        "fork-flag abbreviated-flag sm120-deepgemm sm120-implicit-runner sm120-implicit-fp4-gemm",
        QWEN_NVFP4,
    ),
    Published(
        "NEXTN whose unit file lost its Environment= lines (field report 22)",
        9,
        """python -m sglang.launch_server --model-path /models/glm-5 --tp-size 8 \\
           --speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1 \\
           --speculative-num-draft-tokens 4 --max-running-requests 32""",
        "spec-v2-off",
    ),
    Published(
        "MiniMax NVFP4 on 2 GPUs, 0.5.9",
        9,
        """SGL_DISABLE_TP_MEMORY_INBALANCE_CHECK=True NCCL_P2P_LEVEL=4 \\
           SGLANG_ENABLE_JIT_DEEPGEMM=0 python3 -m sglang.launch_server \\
           --model vendor/minimax-nvfp4 --served-model-name minimax --enable-torch-compile \\
           --trust-remote-code --tp 2 --mem-fraction-static 0.93 --max-running-requests 16 \\
           --quantization modelopt_fp4 --attention-backend flashinfer \\
           --moe-runner-backend flashinfer_cutlass --sleep-on-idle --host 0.0.0.0 --port 5000""",
        "abbreviated-flag deprecated-variable sm120-implicit-fp4-gemm",
        None,
    ),
    Published(
        "MiniMax FP8 on 8 GPUs with expert parallelism: nothing to say on 0.5.16",
        16,
        """NCCL_P2P_LEVEL=4 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True \\
           python -m sglang.launch_server --model-path /models/minimax --tp-size 8 --ep-size 8 \\
           --mem-fraction-static 0.8 --tool-call-parser minimax-m2 \\
           --reasoning-parser minimax-append-think --served-model-name llm --trust-remote-code \\
           --fp8-gemm-backend triton --moe-runner-backend triton --sleep-on-idle""",
        "",
    ),
    Published(
        "expandable segments with the fork's all-reduce (field report, wiki's warning)",
        23,
        """PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python -m sglang.launch_server \\
           --model-path /models/minimax --tp-size 4 --enable-pcie-oneshot-allreduce \\
           --pcie-oneshot-allreduce-max-size auto""",
        "fork-flag fork-flag expandable-segments pcie-ipc-unused",
    ),
    Published(
        "FlashAttention 3 and the trtllm runner, from a tuning log",
        22,
        """python -m sglang.launch_server --model-path /models/qwen --tp-size 4 \\
           --attention-backend fa3 --moe-runner-backend flashinfer_trtllm""",
        "sm120-no-kernels sm120-sm100-runner pcie-ipc-unused",
    ),
    Published(
        "all-reduce fusion beside symmetric memory of NCCL, 0.5.20",
        20,
        """python -m sglang.launch_server --model-path /models/qwen --tp-size 4 \\
           --enable-symm-mem --flashinfer-allreduce-fusion-backend auto""",
        "sm120-fusion-crash sm120-nvlink-only",
    ),
    Published(
        "the largest tree for the smallest graph (field report 24)",
        13,
        """python -m sglang.launch_server --model-path /models/llama --tp-size 1 \\
           --speculative-algorithm EAGLE3 --speculative-draft-model-path /models/llama-eagle3 \\
           --speculative-num-steps 6 --speculative-eagle-topk 10 \\
           --speculative-num-draft-tokens 32 --cuda-graph-max-bs 2 --max-running-requests 64""",
        "small-decode-graphs large-tree",
    ),
    Published(
        "a draft for 4k behind a target of 256k (field report 26)",
        15,
        """python -m sglang.launch_server --model-path /models/kimi-k2.5 --tp-size 8 \\
           --attention-backend triton --speculative-algorithm EAGLE3 \\
           --speculative-draft-model-path /models/kimi-eagle3 --speculative-num-steps 3 \\
           --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --max-running-requests 64""",
        "draft-window",
        KIMI_INT4,
        SHORT_DRAFT,
    ),
    Published(
        "eight replicas that silently run six requests each (field report 27)",
        19,
        """python -m sglang.launch_server --model-path /models/small --dp-size 8 \\
           --speculative-algorithm EAGLE3 --speculative-draft-model-path /models/small-eagle3 \\
           --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4""",
        "hidden-request-cap",
    ),
    Published(
        "adaptive speculation with a tree (field report 29)",
        16,
        """python -m sglang.launch_server --model-path /models/kimi-k2.5 --tp-size 8 \\
           --speculative-algorithm EAGLE3 --speculative-draft-model-path /models/kimi-eagle3 \\
           --speculative-num-steps 3 --speculative-eagle-topk 2 \\
           --speculative-num-draft-tokens 8 --speculative-adaptive --max-running-requests 48""",
        "adaptive-excluded",
    ),
    Published(
        "weight cache for fast switches, with a draft and INT4",
        23,
        """python -m sglang.launch_server --model-path /models/kimi-k2.5 --tp-size 8 \\
           --attention-backend triton --weight-cache-mode client --speculative-algorithm EAGLE3 \\
           --speculative-draft-model-path /models/kimi-eagle3 --speculative-num-steps 3 \\
           --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --max-running-requests 64""",
        "pcie-ipc-unused weight-cache-speculation weight-cache-quantization",
        KIMI_INT4,
        KIMI_DRAFT,
    ),
    Published(
        "NVFP4 with everything on auto and a hidden FP8 cache (field report 5)",
        23,
        "sglang serve --model-path /models/deepseek-nvfp4 --tp-size 8 --attention-backend triton",
        "sm120-implicit-runner hidden-fp8-kv pcie-ipc-unused",
        GLM_NVFP4
        | {
            "architectures": ["DeepseekV3ForCausalLM"],
            "quantization_config": {
                "quant_method": "modelopt",
                "quant_algo": "NVFP4",
                "kv_cache_scheme": {"num_bits": 8, "type": "float"},
            },
        },
    ),
    Published(
        "four replicas of a dense model, docker run, flags twice",
        23,
        """docker run --gpus all --shm-size 32g -p 8000:8000 -e OMP_NUM_THREADS=1 \\
           -v ~/.cache/huggingface:/cache/huggingface --ipc=host lmsysorg/sglang:latest \\
           python3 -m sglang.launch_server --model-path Qwen/QwQ-32B --host 0.0.0.0 --port 8000 \\
           --trust-remote-code --attention-backend flashinfer --quantization fp8 --dp-size 4 \\
           --tp 2 --pp-size 1 --schedule-policy fcfs --schedule-conservativeness 0.1 \\
           --max-running-requests 64 --mem-fraction-static 0.7""",
        "abbreviated-flag pcie-ipc-unused",
    ),
    Published(
        "a variable set but empty (field report 10) is removed, not exported",
        18,
        """NCCL_GRAPH_FILE= NCCL_P2P_LEVEL=SYS python -m sglang.launch_server \\
           --model-path /models/qwen --tp-size 8 --attention-backend flashinfer""",
        "",
    ),
    Published(
        "what is meant to be written for 0.5.23",
        23,
        """SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1 NCCL_P2P_LEVEL=SYS \\
           python -m sglang.launch_server --model-path /models/kimi-k2.5 --tp-size 8 \\
           --trust-remote-code --attention-backend triton --kv-cache-dtype bf16 \\
           --max-running-requests 128 --cuda-graph-max-bs-decode 128 \\
           --speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 1 \\
           --speculative-num-draft-tokens 4 --speculative-adaptive \\
           --speculative-draft-model-path /models/kimi-k2.5-eagle3-mla""",
        "",
        KIMI_INT4,
        MLA_DRAFT,
    ),
    Published(
        "one RTX 5090 with a small model",
        23,
        """python -m sglang.launch_server --model-path Qwen/Qwen3-8B \\
           --attention-backend flashinfer \\
           --mem-fraction-static 0.85 --max-running-requests 32""",
        "",
    ),
]


def findings(published: Published) -> tuple[Finding, ...]:
    imported = parse(published.command)
    host = Host(
        compute_capability=(12, 0),
        gpu_count=8,
        checkpoint=published.checkpoint,
        draft=published.draft,
    )
    others = tuple(map(shipped, KNOWN_VERSIONS))
    catalogue = shipped(f"0.5.{published.patch}")
    return lint(imported.name, imported.profile, catalogue, host, others=others)


@pytest.mark.parametrize("published", COMMANDS, ids=lambda p: p.id)
def test_a_published_command_has_exactly_these_findings(published: Published) -> None:
    found = findings(published)
    told = "\n".join(f"{x.severity} {x.key}: {x.message}" for x in found)
    assert [x.code for x in found] == published.expected.split(), told
