"""Rules about the engine's environment variables. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from opsctl.profiles.catalogue_model import Catalogue
from opsctl.profiles.lint_history import GONE_VARIABLES, IGNORED_SINCE
from opsctl.profiles.lint_model import Complaint, Rule
from opsctl.profiles.lint_subject import TRUE, Subject, release_of

FALSE = frozenset({"0", "false", "no", "n"})
FILES = (
    "NCCL_GRAPH_FILE",
    "NCCL_TOPO_FILE",
    "NCCL_CONF_FILE",
    "TRITON_PTXAS_PATH",
    "SGLANG_NCCL_SO_PATH",
)
"""Variables whose value is a file that has to be there."""
DIRECTORIES = ("CUDA_HOME", "SGLANG_MOE_CONFIG_DIR")
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def foreign(s: Subject) -> Iterator[str]:
    """SGLang's own variables that this release neither reads nor warns of."""
    known = s.catalogue.environment.keys() | s.catalogue.deprecated_environment.keys()
    return (name for name in s.variables if name.startswith("SGLANG_") and name not in known)


def _deprecated(s: Subject) -> Iterator[Complaint]:
    for name in s.variables:
        told = s.catalogue.deprecated_environment.get(name)
        if told is not None:
            what = f"SGLang {s.catalogue.version} warns of {name}"
            yield Complaint(f"environment.{name}", what, GONE_VARIABLES.get(name) or told)


def _removed(s: Subject) -> Iterator[Complaint]:
    unread = frozenset(foreign(s))
    for name in s.variables:
        if not _gone(s, name, unread):
            continue
        last = [x.version for x in s.older if _reads(x, name)]
        until = f"; {last[-1]} was the last release that heeded it" if last else ""
        what = f"SGLang {s.catalogue.version} does not heed {name} any more{until}"
        yield Complaint(f"environment.{name}", what, GONE_VARIABLES.get(name, "remove it"))


def _gone(s: Subject, name: str, unread: frozenset[str]) -> bool:
    if name in IGNORED_SINCE:
        return s.since(IGNORED_SINCE[name])
    return name in unread and any(_reads(x, name) for x in s.older)


def _reads(catalogue: Catalogue, name: str) -> bool:
    ignored = release_of(catalogue.version) >= (0, 5, IGNORED_SINCE.get(name, 999))
    return name in catalogue.environment and not ignored


def _too_new(s: Subject) -> Iterator[Complaint]:
    for name in foreign(s):
        first = next((x.version for x in s.newer if name in x.environment), None)
        if first is not None and not any(_reads(x, name) for x in s.older):
            what = f"SGLang {s.catalogue.version} does not read {name} yet; {first} does"
            yield Complaint(f"environment.{name}", what, f"use SGLang {first} or later")


def _unknown(s: Subject) -> Iterator[Complaint]:
    for name in foreign(s):
        if name in IGNORED_SINCE or any(name in x.environment for x in s.others):
            continue
        near = get_close_matches(name, list(s.catalogue.environment), n=1, cutoff=0.8)
        what = f"SGLang {s.catalogue.version} reads no variable {name}"
        yield Complaint(
            f"environment.{name}", what, f"did you mean {near[0]}?" if near else "remove it"
        )


def _bad_switch(s: Subject) -> Iterator[Complaint]:
    for name, value in s.variables.items():
        default = s.catalogue.environment.get(name)
        if value is None or default is None or default.lower() not in ("true", "false"):
            continue
        if value.strip().lower() not in TRUE | FALSE:
            what = f"{name}: {value!r} is neither true nor false, so SGLang takes {default}"
            yield Complaint(f"environment.{name}", what, 'write "1" or "0"')


def _file_missing(s: Subject) -> Iterator[Complaint]:
    for name in (*FILES, *DIRECTORIES):
        if s.host.here and f"environment.{name}" in s.host.absent:
            what = f"{name}: {s.variable(name)} does not exist here"
            yield Complaint(f"environment.{name}", what)


def _spec_v2_off(s: Subject) -> Iterator[Complaint]:
    if s.eagle and s.since(9) and s.before(11) and not s.enabled("SGLANG_ENABLE_SPEC_V2"):
        if (s.topk or 1) > 1:
            return  # a tree needs the old worker
        key = "environment.SGLANG_ENABLE_SPEC_V2"
        yield Complaint(
            key if "SGLANG_ENABLE_SPEC_V2" in s.variables else "environment",
            f"SGLang {s.catalogue.version} turns its overlap scheduler off for {s.algorithm} "
            "unless SGLANG_ENABLE_SPEC_V2 is 1",
        )


def _spec_v2_tree(s: Subject) -> Iterator[Complaint]:
    if s.eagle and s.before(11) and s.enabled("SGLANG_ENABLE_SPEC_V2") and (s.topk or 1) > 1:
        yield Complaint(
            s.key("speculative-eagle-topk"),
            f"with SGLANG_ENABLE_SPEC_V2=1, SGLang {s.catalogue.version} refuses a tree "
            f"(`speculative-eagle-topk` {s.topk})",
        )


def _simulated_acceptance(s: Subject) -> Iterator[Complaint]:
    name = "SGLANG_SIMULATE_ACC_LEN"
    if name in s.variables:
        yield Complaint(f"environment.{name}", f"{name} makes SGLang accept wrong tokens")


def expandable(s: Subject) -> str | None:
    """The variable that turns on expandable segments, if one does."""
    for name in _ALLOCATOR:
        for field in (s.variable(name) or "").split(","):
            key, _, value = field.partition(":")
            if key.strip() == "expandable_segments" and value.strip().lower() == "true":
                return name
    return None


def _expandable_error(s: Subject) -> Iterator[Complaint]:
    name = expandable(s)
    if name is not None and s.text("weight-cache-mode") not in (None, "off"):
        what = "expandable segments cannot be shared over CUDA IPC, which the weight cache does"
        yield Complaint(f"environment.{name}", what)


def _expandable_warning(s: Subject) -> Iterator[Complaint]:
    name = expandable(s)
    if name is None:
        return
    key = f"environment.{name}"
    if s.text("disaggregation-transfer-backend") == "mooncake" and s.text(
        "disaggregation-mode"
    ) not in (None, "null"):
        yield Complaint(key, "Mooncake cannot register memory of expandable segments")
    if s.has("enable-memory-saver"):
        yield Complaint(key, "torch_memory_saver does not work with expandable segments")
    fork = s.setting("enable-pcie-oneshot-allreduce")
    if fork is not None:
        yield Complaint(key, "the fork's one-shot all-reduce breaks with expandable segments")


RULES = (
    Rule(
        "deprecated-variable",
        "warning",
        "SGLang warns of the variable; it may still work, or do nothing any more.",
        "Use what the message names.",
        "`srt/environ.py` of the installed SGLang",
        _deprecated,
    ),
    Rule(
        "removed-variable",
        "warning",
        "The release does not read the variable any more: what it turned on or off is decided "
        "otherwise now.",
        "Remove it.",
        "`srt/environ.py` of every release",
        _removed,
    ),
    Rule(
        "variable-too-new",
        "warning",
        "A later release reads the variable; this one ignores it without a word.",
        "Use a later SGLang.",
        "`srt/environ.py` of every release",
        _too_new,
    ),
    Rule(
        "unknown-variable",
        "warning",
        "SGLang ignores variables it does not know without a word.",
        "Correct the name.",
        "`srt/environ.py` of the installed SGLang",
        _unknown,
    ),
    Rule(
        "bad-variable-value",
        "warning",
        "SGLang warns once, early in its log, and takes the default.",
        'Write "1" or "0".',
        "0.5.23 `srt/environ.py:EnvBool`",
        _bad_switch,
    ),
    Rule(
        "file-missing",
        "error",
        "NCCL and Triton fail at a file that is named and not there.",
        "Correct the path, or remove the variable.",
        "rtx6kpro wiki, July 2026: a launch fails with a bad NCCL_GRAPH_FILE",
        _file_missing,
    ),
    Rule(
        "spec-v2-off",
        "warning",
        "In 0.5.9 and 0.5.10 the overlap scheduler is off while speculating unless the variable "
        "is set; with NEXTN a build for this hardware loaded the model twice and ran out of "
        "memory.",
        "Set SGLANG_ENABLE_SPEC_V2 to 1.",
        "0.5.9 `srt/server_args.py:2370`; rtx6kpro wiki, March 2026",
        _spec_v2_off,
    ),
    Rule(
        "spec-v2-tree",
        "error",
        "Spec v2 of 0.5.9 and 0.5.10 drafts one token a step; a tree ends the start with a "
        "ValueError.",
        "Set `speculative-eagle-topk` to 1, or remove SGLANG_ENABLE_SPEC_V2.",
        "0.5.9 `srt/server_args.py:2380`",
        _spec_v2_tree,
    ),
    Rule(
        "simulated-acceptance",
        "warning",
        "The variable is for measurements: drafted tokens are accepted unchecked, answers are "
        "wrong.",
        "Remove it from a profile that serves people.",
        "0.5.23 `srt/environ.py`, `speculative_hook.py`",
        _simulated_acceptance,
    ),
    Rule(
        "expandable-weight-cache",
        "error",
        "The weight cache's daemon refuses to start.",
        "Remove expandable_segments:True.",
        "0.5.18 `srt/weight_cache/daemon.py:333`",
        _expandable_error,
    ),
    Rule(
        "expandable-segments",
        "warning",
        "Memory of expandable segments cannot be exported the way these need it.",
        "Remove expandable_segments:True.",
        "0.5.23 `srt/disaggregation/mooncake/utils.py`; torch_memory_saver; a fork's users",
        _expandable_warning,
    ),
)
