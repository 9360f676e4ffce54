"""Rules about the checkpoint, its files, and the GPUs it is spread over. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.profiles.lint_model import Complaint, Rule
from opsctl.profiles.lint_quantization import quantization
from opsctl.profiles.lint_subject import Subject, whole

_SHOWN = 3
_MOST_RANKS = 1024


def _attention_ranks(s: Subject) -> int | None:
    """Ranks that share the attention heads; None when it cannot be told."""
    if s.size("attn-cp-size") > 1 or s.size("dcp-size") > 1:
        return None
    split = s.size("attn-dp-size")
    if s.has("enable-dp-attention"):
        split = s.size("dp-size")
    tp = s.size("tp-size")
    return tp // split if tp % split == 0 else None


def _heads(s: Subject) -> Iterator[Complaint]:
    ranks, heads = _attention_ranks(s), whole(s.target.get("num_attention_heads"))
    if ranks is None or ranks == 1 or heads is None or heads < 1:
        return
    if heads % ranks:
        what = f"{heads} attention heads cannot be split over {ranks} ranks"
        yield Complaint(s.key("tp-size"), what, _fitting(heads, ranks))
        return
    shared = whole(s.target.get("num_key_value_heads"))
    if shared is None or shared < 1 or s.target.get("kv_lora_rank"):
        return
    if shared % ranks and ranks % shared:
        what = f"{shared} key/value heads cannot be split over {ranks} ranks"
        yield Complaint(s.key("tp-size"), what, _fitting(shared, ranks))


def _fitting(heads: int, ranks: int) -> str:
    sizes = range(1, min(ranks, heads, _MOST_RANKS) + 1)
    return f"use {max(size for size in sizes if heads % size == 0)} ranks, which divides {heads}"


def _gpus(s: Subject) -> Iterator[Complaint]:
    visible = _visible(s)
    if visible is None or not s.host.here:
        return
    replicas = 1 if s.attention_dp else s.size("dp-size")
    needed = s.size("tp-size") * s.size("pp-size") * replicas
    needed = -(-needed // s.size("nnodes"))
    if needed > visible:
        gpus = "1 GPU" if visible == 1 else f"{visible} GPUs"
        yield Complaint(s.key("tp-size"), f"the profile needs {needed} GPUs, and sees {gpus}")


def _visible(s: Subject) -> int | None:
    """GPUs the engine will see."""
    named = s.variable("CUDA_VISIBLE_DEVICES")
    if named is not None:
        chosen = len([word for word in named.split(",") if word.strip()])
        return chosen if s.host.gpu_count is None else min(chosen, s.host.gpu_count)
    return s.host.gpu_count or None


def _shards(s: Subject) -> Iterator[Complaint]:
    for key, missing in (
        ("model", s.host.missing_shards),
        ("draft_model", s.host.missing_draft_shards),
    ):
        if missing:
            more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
            yield Complaint(key, f"not there: {', '.join(missing[:_SHOWN])}{more}")


def _absent(s: Subject) -> Iterator[Complaint]:
    for key in ("model", "draft_model"):
        if s.host.here and key in s.host.absent:
            yield Complaint(key, f"{getattr(s.profile, key)} is not a directory here")


def _elsewhere(s: Subject) -> Iterator[Complaint]:
    for key in ("model", "draft_model"):
        if not s.host.here and key in s.host.absent:
            what = (
                f"{getattr(s.profile, key)} is not here, so nothing could be checked that needs "
                "its config.json"
            )
            yield Complaint(key, what)


def _architecture(s: Subject) -> Iterator[Complaint]:
    known = s.catalogue.models
    if known and s.architectures and known.isdisjoint(s.architectures):
        what = f"SGLang {s.catalogue.version} has no model {s.architectures[0]} of its own"
        yield Complaint("model", what)


def _other_quantization(s: Subject) -> Iterator[Complaint]:
    flag = s.text("quantization")
    found = quantization(s.host.checkpoint, s.host.quantization)
    if flag is None or found is None or not found.method:
        return
    wants_fp4, is_fp4 = "fp4" in flag, found.weights == "fp4"
    if (wants_fp4 and found.weights in ("int4", "fp8", "int8")) or (
        is_fp4 and flag in ("awq", "gptq", "awq_marlin", "gptq_marlin", "fp8", "w8a8_int8")
    ):
        what = f"the checkpoint is {found.method} ({found.weights}), not {flag}"
        yield Complaint(s.key("quantization"), what)


RULES = (
    Rule(
        "tp-does-not-divide",
        "error",
        "Every rank takes the same number of heads; SGLang ends with an AssertionError.",
        "Use a size that divides the heads.",
        "0.5.23 `srt/models/deepseek_v2.py:2057`, `llama.py:183`",
        _heads,
    ),
    Rule(
        "too-few-gpus",
        "error",
        "A rank without a GPU ends the start.",
        "Lower `tp-size`, or make more GPUs visible.",
        "NVML; CUDA_VISIBLE_DEVICES of the profile",
        _gpus,
    ),
    Rule(
        "missing-shards",
        "error",
        "The download is incomplete; SGLang notices after it has loaded the rest.",
        "Complete the download.",
        "model.safetensors.index.json of the checkpoint",
        _shards,
    ),
    Rule(
        "model-missing",
        "error",
        "There is nothing to load.",
        "Correct the path; see that its disk is mounted.",
        "the file system",
        _absent,
    ),
    Rule(
        "model-not-here",
        "warning",
        "The lint runs on another machine than the engine, or the path is wrong.",
        "Run it where the model is.",
        "the file system",
        _elsewhere,
    ),
    Rule(
        "model-architecture",
        "warning",
        "SGLang falls back to the Transformers implementation, which is slow, or ends.",
        "Use an SGLang that has the model.",
        "`srt/models` of the installed SGLang",
        _architecture,
    ),
    Rule(
        "other-quantization",
        "error",
        "SGLang refuses a checkpoint that is quantized in another way than the flag says.",
        "Remove `quantization`; SGLang reads it from the checkpoint.",
        "0.5.23 `srt/configs/model_config.py`",
        _other_quantization,
    ),
)
