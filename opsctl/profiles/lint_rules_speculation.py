"""Rules about speculative decoding: drafts, trees, hidden limits. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from opsctl.profiles.lint_model import Complaint, Rule
from opsctl.profiles.lint_quantization import quantization
from opsctl.profiles.lint_subject import (
    HIDDEN_CAP,
    Subject,
    architectures,
    text_config,
    whole,
)

NEEDS_DRAFT = frozenset({"EAGLE3", "STANDALONE", "DFLASH"})
"""Always a second checkpoint; EAGLE and NEXTN may find their draft inside the target."""
DRAFT_ONLY = (
    "speculative-num-steps",
    "speculative-eagle-topk",
    "speculative-num-draft-tokens",
    "speculative-adaptive",
)
KIMI_K25 = "KimiK25ForConditionalGeneration"
MLA_DRAFT = "Eagle3DeepseekV2ForCausalLM"
LARGE_TREE = 16
_TREE_BACKENDS = ("flashinfer", "fa3", "triton")
_GRAPH_FLAGS = ("cuda-graph-max-bs-decode", "cuda-graph-max-bs")
_GRAPH_LISTS = ("cuda-graph-bs-decode", "cuda-graph-bs")


def _no_draft(s: Subject) -> Iterator[Complaint]:
    if s.algorithm in NEEDS_DRAFT and not s.profile.draft_model:
        what = f"{s.algorithm} drafts with a model of its own, and `draft_model` is not set"
        yield Complaint(s.key("speculative-algorithm"), what)


def _no_algorithm(s: Subject) -> Iterator[Complaint]:
    if s.algorithm is not None:
        return
    if s.profile.draft_model:
        yield Complaint("draft_model", "there is a draft, and no `speculative-algorithm` uses it")
    for name in DRAFT_ONLY:
        if s.has(name):
            what = f"`{name}` has no effect without `speculative-algorithm`"
            yield Complaint(s.key(name), what)


def _hidden_cap(s: Subject) -> Iterator[Complaint]:
    if s.algorithm is None or s.has("max-running-requests"):
        return
    ranks = s.size("attn-dp-size") if s.has("attn-dp-size") else s.size("dp-size")
    each = f", {max(HIDDEN_CAP // ranks, 1)} on each of {ranks} ranks" if ranks > 1 else ""
    what = f"SGLang will decode at most {HIDDEN_CAP} requests at once{each}"
    yield Complaint(s.key("speculative-algorithm"), what)


def graph_limit(s: Subject) -> tuple[str, int] | None:
    """The largest batch that decodes in a CUDA graph, where a flag says so, and its key."""
    for name in _GRAPH_LISTS:
        setting = s.setting(name)
        if setting is not None and isinstance(setting.value, list | tuple):
            sizes = [size for size in map(whole, setting.value) if size is not None]
            return (setting.key, max(sizes)) if sizes else None
    for name in _GRAPH_FLAGS:
        number = s.number(name)
        if number is not None:
            return s.key(name), number
    return None


def _small_graphs(s: Subject) -> Iterator[Complaint]:
    limit, running = graph_limit(s), s.capacity
    if s.algorithm is None or limit is None or running is None or limit[1] >= running:
        return
    yield Complaint(
        limit[0],
        f"batches of more than {limit[1]} leave the CUDA graphs, and up to {running} requests "
        "may run",
        f"raise it to {running}, or lower `max-running-requests` to {limit[1]}",
    )


def _draft_tokens(s: Subject) -> Iterator[Complaint]:
    tokens, steps = s.number("speculative-num-draft-tokens"), s.steps
    if not s.eagle or s.topk != 1 or s.has("speculative-adaptive"):
        return
    if tokens is not None and steps is not None and tokens != steps + 1:
        yield Complaint(
            s.key("speculative-num-draft-tokens"),
            f"with topk 1 SGLang takes {steps + 1} draft tokens (steps + 1), not {tokens}",
            f"write {steps + 1}, or set `speculative-num-steps` to {tokens - 1}",
        )


def _half_tree(s: Subject) -> Iterator[Complaint]:
    parts = ("speculative-eagle-topk", "speculative-num-draft-tokens")
    named = [name for name in parts if s.has(name)]
    if not s.eagle or s.has("speculative-num-steps") or s.has("speculative-adaptive"):
        return
    if named:
        what = f"`{named[0]}` without `speculative-num-steps` ends in an AssertionError"
        yield Complaint(s.key(named[0]), what)


def _no_tokens(s: Subject) -> Iterator[Complaint]:
    if not s.eagle or s.has("speculative-adaptive") or not s.has("speculative-num-steps"):
        return
    missing = [
        name
        for name in ("speculative-eagle-topk", "speculative-num-draft-tokens")
        if not s.has(name)
    ]
    if missing and s.topk != 1:
        what = f"`speculative-num-steps` is set and {' and '.join(missing)} is not"
        yield Complaint(s.key("speculative-num-steps"), what)


def _paged_tree(s: Subject) -> Iterator[Complaint]:
    page, backend = s.number("page-size") or 1, s.text("attention-backend")
    if s.eagle and (s.topk or 1) > 1 and page > 1 and backend is not None:
        allowed = ("flashinfer", "fa3") if s.before(14) else _TREE_BACKENDS
        if backend not in allowed:
            what = f"a tree with `page-size` {page} is refused with `attention-backend` {backend}"
            fix = f"use page size 1, or one of {', '.join(allowed)}"
            yield Complaint(s.key("speculative-eagle-topk"), what, fix)


def _large_tree(s: Subject) -> Iterator[Complaint]:
    tokens, running = s.number("speculative-num-draft-tokens"), s.capacity
    if s.eagle and (s.topk or 1) > 1 and (tokens or 0) >= LARGE_TREE and (running or 0) > 8:
        yield Complaint(
            s.key("speculative-num-draft-tokens"),
            f"{tokens} draft tokens for each of up to {running} requests are verified in every "
            "step",
        )


def _weight_cache(s: Subject) -> Iterator[Complaint]:
    mode = s.text("weight-cache-mode")
    if mode in (None, "off"):
        return
    key = s.key("weight-cache-mode")
    if s.algorithm is not None:
        yield Complaint(key, "SGLang refuses the weight cache together with speculation")


def _weight_cache_quantization(s: Subject) -> Iterator[Complaint]:
    found = quantization(s.host.checkpoint, s.host.quantization)
    if s.text("weight-cache-mode") in (None, "off") or found is None:
        return
    if found.method and not found.block_fp8:
        what = f"the weight cache refuses {found.method} checkpoints"
        yield Complaint(s.key("weight-cache-mode"), what)


def _draft_window(s: Subject) -> Iterator[Complaint]:
    draft = whole(text_config(s.host.draft).get("max_position_embeddings"))
    context = s.number("context-length") or whole(s.target.get("max_position_embeddings"))
    if s.algorithm is None or draft is None or context is None or draft >= context:
        return
    yield Complaint(
        "draft_model",
        f"the draft was made for {draft} tokens (max_position_embeddings), the target serves "
        f"{context}: acceptance falls to about 1 beyond it",
    )


def _draft_architecture(s: Subject) -> Iterator[Complaint]:
    if s.algorithm is None or not s.catalogue.models or _mla_draft_too_new(s):
        return
    named = architectures(s.host.draft)
    if named and s.catalogue.models.isdisjoint(named):
        what = f"SGLang {s.catalogue.version} has no model {named[0]} to draft with"
        yield Complaint("draft_model", what)


def _mla_draft_too_new(s: Subject) -> bool:
    return s.before(12) and MLA_DRAFT in architectures(s.host.draft)


def _kimi_hooks(s: Subject) -> Iterator[Complaint]:
    lacking = s.before(10) and not s.patched("kimi-k25-eagle3")
    if s.algorithm == "EAGLE3" and lacking and KIMI_K25 in s.architectures:
        what = f"SGLang {s.catalogue.version} has no EAGLE-3 hooks in Kimi K2.5"
        yield Complaint(s.key("speculative-algorithm"), what)


def _mla_draft(s: Subject) -> Iterator[Complaint]:
    if s.algorithm is not None and _mla_draft_too_new(s):
        what = f"SGLang {s.catalogue.version} has no {MLA_DRAFT} (an EAGLE-3 draft with MLA)"
        yield Complaint("draft_model", what)


def _draft_hidden_size(s: Subject) -> Iterator[Complaint]:
    draft, target = text_config(s.host.draft), s.target
    if s.algorithm is None or not draft or not target or s.algorithm == "STANDALONE":
        return
    ours, theirs = _hidden(target), _hidden(draft)
    if s.algorithm == "EAGLE3" and ours and theirs and ours != theirs:
        named = whole(draft.get("target_hidden_size"))
        if named != ours:
            what = f"the draft has hidden size {theirs}, the target {ours}"
            yield Complaint("draft_model", what)


def _hidden(config: Mapping[str, Any]) -> int | None:
    return whole(config.get("hidden_size"))


RULES = (
    Rule(
        "draft-not-set",
        "error",
        "The algorithm needs a draft checkpoint; the start ends without one.",
        "Set `draft_model`.",
        "0.5.23 `arg_groups/speculative_hook.py`",
        _no_draft,
    ),
    Rule(
        "speculation-off",
        "warning",
        "Without an algorithm nothing speculates.",
        "Set `speculative-algorithm`, or remove what belongs to it.",
        "0.5.23 `arg_groups/speculative_hook.py:handle_speculative_decoding`",
        _no_algorithm,
    ),
    Rule(
        "hidden-request-cap",
        "warning",
        "Speculation sets `max-running-requests` to 48 when the profile does not, for all "
        "data-parallel ranks together; more requests wait in the queue.",
        "Set `max-running-requests`.",
        "0.5.9-0.5.23 `_handle_eagle_family`; sglang#34290, #33199",
        _hidden_cap,
    ),
    Rule(
        "small-decode-graphs",
        "warning",
        "A batch larger than the largest captured graph decodes without one, which is much slower.",
        "Capture graphs up to `max-running-requests`.",
        "SafeAILab/EAGLE#298, sglang#6949",
        _small_graphs,
    ),
    Rule(
        "draft-tokens-adjusted",
        "warning",
        "A chain of N steps has N + 1 tokens; SGLang corrects the number and says so in its log.",
        "Write steps + 1.",
        "0.5.9-0.5.23 `_handle_eagle_family`",
        _draft_tokens,
    ),
    Rule(
        "half-tree",
        "error",
        "Steps, topk and draft tokens are given together or not at all.",
        "Set all three.",
        "0.5.9-0.5.23 `_handle_eagle_family`",
        _half_tree,
    ),
    Rule(
        "tree-incomplete",
        "error",
        "SGLang compares what is not set with a number: a TypeError ends the start.",
        "Set steps, topk and draft tokens.",
        "0.5.9-0.5.23 `_handle_eagle_family`",
        _no_tokens,
    ),
    Rule(
        "paged-tree",
        "error",
        "A draft tree with pages of more than one token needs a backend that knows it; SGLang "
        "ends with a ValueError.",
        "Use page size 1, or flashinfer.",
        "0.5.9 `srt/server_args.py:2452`, 0.5.14 `_handle_eagle_family`",
        _paged_tree,
    ),
    Rule(
        "large-tree",
        "info",
        "A tree that pays for one request costs more than it gives for many.",
        "Measure with the requests you expect; often topk 1 wins.",
        "SafeAILab/EAGLE#298, sglang#5274",
        _large_tree,
    ),
    Rule(
        "weight-cache-speculation",
        "error",
        "The weight cache does not hold the draft; a ValueError ends the start.",
        "Set `weight-cache-mode: off`.",
        "0.5.23 `arg_groups/model_path_hook.py:281`",
        _weight_cache,
    ),
    Rule(
        "weight-cache-quantization",
        "error",
        "Only unquantized and block-FP8 weights may be shared.",
        "Set `weight-cache-mode: off`.",
        "0.5.23 `srt/weight_cache/protocol.py:IPC_QUANT_ALLOWLIST`; sglang#38306",
        _weight_cache_quantization,
    ),
    Rule(
        "draft-window",
        "warning",
        "Beyond the draft's own context, acceptance was seen to fall from 2.3 to 1.1: speculation "
        "is then pure cost.",
        "Use a draft for this context, or switch to the baseline for long ones.",
        "sglang#6783, vllm-project/speculators#684",
        _draft_window,
    ),
    Rule(
        "draft-architecture",
        "error",
        "The release has no implementation of the draft's architecture.",
        "Use another draft, or an SGLang that has it.",
        "`srt/models` of the installed SGLang",
        _draft_architecture,
    ),
    Rule(
        "kimi-eagle3-hooks",
        "error",
        "0.5.9 has no `set_eagle3_layers_to_capture` for Kimi K2.5.",
        "Use SGLang 0.5.10 or later, or `opsctl patch apply --only kimi-k25-eagle3`.",
        "0.5.9 `srt/models/kimi_k25.py`",
        _kimi_hooks,
    ),
    Rule(
        "mla-draft-too-new",
        "error",
        "EAGLE-3 drafts with MLA came with 0.5.12.",
        "Use SGLang 0.5.12 or later, or a draft with LlamaForCausalLMEagle3.",
        "0.5.12 `srt/models/kimi_k25_eagle3.py`",
        _mla_draft,
    ),
    Rule(
        "draft-hidden-size",
        "warning",
        "An EAGLE-3 draft reads the target's hidden states; another size mostly means another "
        "target.",
        "Check that the draft was trained for this model.",
        "config.json of both checkpoints",
        _draft_hidden_size,
    ),
)
