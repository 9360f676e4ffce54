"""What the lint is made of: findings, the host as far as it is known, rules. Plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from opsctl.profiles.lint_subject import Subject

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, doubtful or worth knowing about a launch profile."""

    severity: Severity
    code: str
    """Stable word; `docs/reference/lint.md` explains each one."""
    profile: str
    key: str
    """Inside the profile (`flags.tp-size`, `model`), or of the configuration (`auto_spec...`)."""
    message: str
    fix: str
    source: str
    """Where it is known from: file of SGLang, issue or report."""
    at: str | None = None
    """file:line:col, filled in by who knows where the key was written."""


@dataclass(frozen=True)
class Patches:
    """What `opsctl patch` tells of the SGLang that a profile runs in."""

    applied: frozenset[str] = frozenset()
    missing: Mapping[str, str] = field(default_factory=dict)
    """Patches that the profile requires and that are not there, and why."""
    environment: str = ""
    """How a command line names it."""


@dataclass(frozen=True)
class Host:
    """What is known of the machine and of the files the profile names. None is unknown."""

    compute_capability: tuple[int, int] | None = None
    gpu_count: int | None = None
    checkpoint: Mapping[str, Any] | None = None
    """config.json of the target model."""
    draft: Mapping[str, Any] | None = None
    """config.json of the draft model."""
    quantization: Mapping[str, Any] | None = None
    """hf_quant_config.json of the target model."""
    missing_shards: tuple[str, ...] = ()
    """Files the target's index names that are not there or are empty."""
    missing_draft_shards: tuple[str, ...] = ()
    absent: frozenset[str] = frozenset()
    """Keys of the profile (`model`, `environment.NCCL_GRAPH_FILE`) whose path is not here."""
    adaptive: object = None
    """Content of the file of `speculative-adaptive-config`, as JSON gives it."""
    adaptive_problem: str = ""
    """Why that file could not be read, in words."""
    patches: Patches = Patches()
    here: bool = True
    """The engine will run on this machine: a path that is not here is an error, not a surprise."""


@dataclass(frozen=True)
class Complaint:
    """What a rule found; the code, severity and source come from the rule."""

    key: str
    message: str
    fix: str = ""
    """Instead of the rule's own, where it can be said more exactly."""


@dataclass(frozen=True)
class Rule:
    """One demand on a launch profile."""

    code: str
    severity: Severity
    why: str
    """What happens otherwise, for the reference page."""
    fix: str
    source: str
    check: Callable[[Subject], Iterable[Complaint]] = field(repr=False)
