"""What is wrong with a launch profile, for one SGLang and one kind of GPU. Pure.

Everything it needs comes as values: the catalogue of the installed SGLang, what is known of the
host, the checkpoints' own config files. `lint_gather` reads those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from opsctl.config.schema import Config, LaunchProfile
from opsctl.profiles import (
    lint_adaptive,
    lint_rules_checkpoint,
    lint_rules_environment,
    lint_rules_flags,
    lint_rules_patches,
    lint_rules_sm120,
    lint_rules_speculation,
    lint_rules_watchdog,
)
from opsctl.profiles.catalogue_model import Catalogue
from opsctl.profiles.lint_model import Complaint, Finding, Host, Rule
from opsctl.profiles.lint_subject import Subject, release_of

__all__ = [
    "NOTES",
    "RULES",
    "Finding",
    "Host",
    "errors",
    "lint",
    "needs_history",
    "note",
    "simulated",
]

_OLDEST, _NEWEST = (0, 5, 9), (0, 5, 23)


def _other_release(s: Subject) -> Iterator[Complaint]:
    if not _OLDEST <= release_of(s.catalogue.version) <= _NEWEST:
        what = f"the rules were checked with SGLang 0.5.9 to 0.5.23, not {s.catalogue.version}"
        yield Complaint("python", what)


def _unknown_code(s: Subject) -> Iterator[Complaint]:
    known = {rule.code for rule in RULES}
    for code in () if s.config is None else s.config.serve.allow_findings:
        if code not in known:
            near = get_close_matches(code, known, n=1)
            fix = f"did you mean {near[0]}?" if near else "remove it"
            yield Complaint("serve.allow_findings", f"no finding has the code {code!r}", fix)


RULES: tuple[Rule, ...] = (
    Rule(
        "unknown-code",
        "warning",
        "`serve.allow_findings` names a code that does not exist, so it allows nothing.",
        "Correct the code.",
        "this lint",
        _unknown_code,
    ),
    Rule(
        "other-release",
        "info",
        "Flags and variables are read from the installation and are right; which combinations "
        "break may have changed.",
        "Read the other findings with care.",
        "this lint",
        _other_release,
    ),
    *lint_rules_flags.RULES,
    *lint_rules_environment.RULES,
    *lint_rules_sm120.RULES,
    *lint_rules_patches.RULES,
    *lint_rules_speculation.RULES,
    *lint_adaptive.RULES,
    *lint_rules_checkpoint.RULES,
    *lint_rules_watchdog.RULES,
)
"""Every rule, in the order in which findings are told."""


def _nothing(s: Subject) -> Iterator[Complaint]:
    return iter(())


NOTES: tuple[Rule, ...] = (
    Rule(
        "simulated-engine",
        "info",
        "The profile starts opsctl's simulated engine, which has a few flags of its own.",
        "Nothing to do.",
        "`engine: simulated`",
        _nothing,
    ),
    Rule(
        "assumed-release",
        "info",
        "No SGLang was found for the profile's `python`.",
        "Give `--sglang PATH` or `--sglang-version`, or run it where SGLang is installed.",
        "this lint",
        _nothing,
    ),
)
"""What the lint says of itself."""


def lint(
    name: str,
    profile: LaunchProfile,
    catalogue: Catalogue,
    host: Host,
    *,
    config: Config | None = None,
    others: Sequence[Catalogue] = (),
) -> tuple[Finding, ...]:
    """Everything the rules find, in their order; `at` is left empty.

    `config` lets rules look at the watchdog's marks. `others` are further releases, oldest first:
    with them, an unknown flag or variable is told to be gone or to come later.
    """
    if profile.engine == "simulated":
        return (simulated(name),)
    subject = Subject(name, profile, catalogue, host, config, others)
    return tuple(
        Finding(
            rule.severity,
            rule.code,
            name,
            complaint.key,
            complaint.message,
            complaint.fix or rule.fix,
            rule.source,
        )
        for rule in RULES
        for complaint in rule.check(subject)
    )


def needs_history(profile: LaunchProfile, catalogue: Catalogue) -> bool:
    """Whether other releases can explain something: a flag or variable this one does not know."""
    subject = Subject("", profile, catalogue, Host())
    unresolved = any(x.resolution.flag is None for x in subject.settings)
    return unresolved or any(lint_rules_environment.foreign(subject))


def errors(findings: Sequence[Finding], *, allowed: Sequence[str] = ()) -> tuple[Finding, ...]:
    """The findings that stand in the way of a start; `allowed` codes do not."""
    return tuple(x for x in findings if x.severity == "error" and x.code not in allowed)


def note(code: str, profile: str, key: str, message: str) -> Finding:
    """A finding that is about the lint and not about the profile."""
    [rule] = [rule for rule in NOTES if rule.code == code]
    return Finding(rule.severity, code, profile, key, message, rule.fix, rule.source)


def simulated(name: str) -> Finding:
    """Says that a simulated profile is not checked against SGLang."""
    what = "the engine is simulated: nothing was checked against SGLang"
    return note("simulated-engine", name, "engine", what)
