"""Rules for what needs one of opsctl's patches. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.profiles.lint_model import Complaint, Rule
from opsctl.profiles.lint_rules_sm120 import FUSION
from opsctl.profiles.lint_subject import Setting, Subject

_SYMM_MEM = "enable-torch-symm-mem"


def _used(s: Subject) -> Iterator[tuple[str, Setting]]:
    """The applied patches whose path the profile turns on, and by which flag."""
    for name, flags in (("allreduce-fusion", FUSION), ("torch-symm-mem", (_SYMM_MEM,))):
        setting = s.setting(*flags)
        if s.sm120 and setting is not None and s.patched(name):
            yield name, setting


def _missing(s: Subject) -> Iterator[Complaint]:
    for name, why in s.host.patches.missing.items():
        fix = f"opsctl patch apply {s.host.patches.environment} --only {name}"
        yield Complaint("requires_patches", f"{name} is {why}", fix)


def _undeclared(s: Subject) -> Iterator[Complaint]:
    for name, setting in _used(s):
        if name not in s.profile.requires_patches:
            what = f"`--{setting.written}` works because the patch {name} is applied"
            yield Complaint(setting.key, what, f"requires_patches: [{name}]")


def _unmeasured(s: Subject) -> Iterator[Complaint]:
    for name, setting in _used(s):
        yield Complaint(setting.key, f"{name}: measure before trusting")


RULES = (
    Rule(
        "patch-missing",
        "error",
        "The profile names patches in `requires_patches` without which it is not to be started.",
        "Apply them; `opsctl patch status` tells more.",
        "`opsctl patch`",
        _missing,
    ),
    Rule(
        "patch-undeclared",
        "warning",
        "After SGLang is installed anew the patch is gone, and the flag crashes or does nothing.",
        "Name it in `requires_patches`.",
        "`opsctl patch`",
        _undeclared,
    ),
    Rule(
        "patch-unmeasured",
        "info",
        "Upstream saw the fused and the symmetric-memory all-reduce lose on PCIe boards.",
        "Measure it beside the plain profile: `opsctl bench run`, then `opsctl bench compare`.",
        "sglang#32330; a report of 8 GPUs across two sockets: -4 to -16 %",
        _unmeasured,
    ),
)
