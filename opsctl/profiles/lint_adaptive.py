"""Rules about SGLang's own adaptive speculation and its configuration file. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from opsctl.profiles.lint_model import Complaint, Rule
from opsctl.profiles.lint_subject import EAGLE, Subject

_FLAG, _FILE = "speculative-adaptive", "speculative-adaptive-config"
_SOURCE = "`srt/speculative/adaptive_spec_params.py`"


def _on(s: Subject) -> bool:
    return s.has(_FLAG) and s.since(11)


def exclusion(s: Subject) -> str | None:
    """Why SGLang would turn adaptive speculation off, in the order in which it looks."""
    return next(_exclusions(s), None)


def _exclusions(s: Subject) -> Iterator[str]:
    if s.algorithm not in EAGLE:
        yield f"the algorithm is {s.algorithm or 'not set'}, and only EAGLE and EAGLE3 adapt"
    if s.topk is None and s.before(19):
        yield "`speculative-eagle-topk` has to be set, to 1"
    if s.topk not in (None, 1):
        yield f"`speculative-eagle-topk` is {s.topk}, and only 1 adapts"
    if s.attention_dp:
        yield "attention is data-parallel"
    old_worker = s.enabled("SGLANG_ENABLE_SPEC_V2") is False or s.has("disable-overlap-schedule")
    if s.before(12) and not old_worker:
        yield "0.5.11 adapts only with the old worker (SGLANG_ENABLE_SPEC_V2=0)"
    for name in ("enable-multi-layer-eagle", "enable-two-batch-overlap", "enable-pdmux"):
        if s.has(name):
            yield f"`{name}` is set"


def _excluded(s: Subject) -> Iterator[Complaint]:
    why = exclusion(s) if _on(s) else None
    if why is not None:
        yield Complaint(s.key(_FLAG), f"SGLang turns adaptive speculation off: {why}")


def _unused_file(s: Subject) -> Iterator[Complaint]:
    if s.has(_FILE) and not s.has(_FLAG):
        what = f"`{_FILE}` has no effect without `{_FLAG}`"
        yield Complaint(s.key(_FILE), what, f"add `{_FLAG}: true`")


def slots(s: Subject) -> dict[int, Mapping[str, Any]]:
    """The settings of each batch size; a flat file (0.5.11, 0.5.12) counts as one for all."""
    content = s.host.adaptive
    if not isinstance(content, Mapping):
        return {}
    if s.before(13):
        return {1: content}
    return {
        int(key): entry
        for key, entry in content.items()
        if isinstance(key, str) and key.isascii() and key.isdigit() and isinstance(entry, Mapping)
    }


def candidates(s: Subject) -> frozenset[int] | None:
    """Steps that the engine will build; None when the file is unknown."""
    if s.has(_FILE):
        steps = {x for entry in slots(s).values() for x in _steps(entry)}
        return frozenset(steps) if s.host.adaptive is not None and steps else None
    if s.before(14):
        return frozenset({1, 3, 7})
    return frozenset({0, 1, 3, 5, 7}) if s.since(20) else frozenset({0, 1, 3, 7})


def _steps(entry: Mapping[str, Any]) -> list[int]:
    found = entry.get("candidate_steps")
    if not isinstance(found, list | tuple):
        return []
    return [x for x in found if isinstance(x, int) and not isinstance(x, bool)]


def _bad_file(s: Subject) -> Iterator[Complaint]:
    if not _on(s) or exclusion(s) is not None:
        return
    key, content = s.key(_FILE), s.host.adaptive
    if s.host.adaptive_problem and s.host.here:
        yield Complaint(key, f"the adaptive configuration {s.host.adaptive_problem}")
    if content is None:
        return
    if not isinstance(content, Mapping):
        yield Complaint(key, "the adaptive configuration is not a JSON object")
    elif s.since(13) and not slots(s):
        yield Complaint(
            key,
            "the adaptive configuration has no batch size as a key",
            'write it as {"1": {"candidate_steps": [1, 3]}, "8": {"candidate_steps": [1]}}',
        )
    for size, entry in sorted(slots(s).items()):
        yield from _bad_slot(s, key, size, entry)


def _bad_slot(s: Subject, key: str, size: int, entry: Mapping[str, Any]) -> Iterator[Complaint]:
    steps = _steps(entry)
    where = f"from batch size {size} on: " if s.since(13) else ""
    named = entry.get("candidate_steps")
    if named is None and s.before(13):
        return  # the default
    if not steps or not isinstance(named, list | tuple) or len(steps) != len(named):
        yield Complaint(key, f"{where}`candidate_steps` must be a list of whole numbers")
    elif min(steps) < 0 or (s.before(14) and min(steps) == 0):
        least = "1 or more; zero steps came with 0.5.14" if s.before(14) else "0 or more"
        yield Complaint(key, f"{where}candidate step {min(steps)}: must be {least}")
    elif s.before(13) and len(set(steps)) < 2:
        yield Complaint(key, f"SGLang {s.catalogue.version} needs two different candidate steps")


def _not_a_candidate(s: Subject) -> Iterator[Complaint]:
    known = candidates(s) if _on(s) and exclusion(s) is None else None
    if known is None or s.steps is None or s.steps in known or s.before(14):
        return  # before, the nearest or middle candidate is taken, or the steps are added
    listed = ", ".join(map(str, sorted(known)))
    yield Complaint(
        s.key("speculative-num-steps"),
        f"`speculative-num-steps` {s.steps} is not a candidate of the adaptive configuration "
        f"({listed})",
        f"use one of {listed}, or leave the flag out",
    )


def _no_zero(s: Subject) -> Iterator[Complaint]:
    known = candidates(s) if _on(s) and exclusion(s) is None else None
    if known is not None and s.since(14) and 0 not in known:
        what = "no batch size has a zero-step candidate: the engine drafts under any load"
        yield Complaint(s.key(_FILE, _FLAG), what)


RULES = (
    Rule(
        "adaptive-excluded",
        "warning",
        "SGLang writes one warning and goes on with fixed steps: the profile does not do what it "
        "says.",
        "Remove what excludes it, or switch between two profiles instead.",
        f"{_SOURCE}:adaptive_unsupported_reason; sglang#23705",
        _excluded,
    ),
    Rule(
        "adaptive-file-unused",
        "warning",
        "Only `--speculative-adaptive` turns it on.",
        "Add `speculative-adaptive: true`.",
        _SOURCE,
        _unused_file,
    ),
    Rule(
        "adaptive-file",
        "error",
        "SGLang ends at start when it cannot use the file. Steps of 0 are accepted since 0.5.14, "
        "batch sizes as keys since 0.5.13; before that the file is flat.",
        "Correct the file.",
        f"{_SOURCE}:_load_adaptive_config",
        _bad_file,
    ),
    Rule(
        "adaptive-steps",
        "error",
        "A ValueError ends the start.",
        "Use a candidate.",
        "0.5.23 `arg_groups/speculative_hook.py:_init_adaptive_speculative_params`",
        _not_a_candidate,
    ),
    Rule(
        "adaptive-no-zero",
        "info",
        "With a zero-step candidate for large batches the engine stops drafting under load, with "
        "no restart.",
        'Give large batches `"candidate_steps": [0]`.',
        f"0.5.14 {_SOURCE}",
        _no_zero,
    ),
)
