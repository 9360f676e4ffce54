"""Rules about single flags: does this release know them, and their values. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from opsctl.profiles.catalogue_model import Flag
from opsctl.profiles.lint_history import FORK_CHOICES, FORKS, GIVEN_UP, REPLACED
from opsctl.profiles.lint_model import Complaint, Rule
from opsctl.profiles.lint_subject import Setting, Subject, whole

ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "UNO")
"""Of the newest release, where the flag is free text; plugins may add more."""
_ARGPARSE = "argparse, as SGLang's `srt/server_args.py` uses it"
_SHOWN = 8
_LONGEST = 60


def _unresolved(s: Subject) -> Iterator[Setting]:
    return (x for x in s.settings if x.resolution.kind in ("unknown", "ambiguous"))


def _understood(s: Subject) -> Iterator[tuple[Setting, Flag]]:
    for setting in s.settings:
        if setting.resolution.flag is not None:
            yield setting, setting.resolution.flag


def _removed_name(s: Subject, setting: Setting) -> bool:
    """Whether the flag is gone; without other releases to ask, the tables of removals tell."""
    name = setting.written
    if s.others:
        return any(name in other.flags for other in s.older)
    return name in GIVEN_UP or (name in REPLACED and REPLACED[name] in s.catalogue.flags)


def _removed(s: Subject) -> Iterator[Complaint]:
    for setting in _unresolved(s):
        if setting.written in FORKS or not _removed_name(s, setting):
            continue
        name = setting.written
        last = [x.version for x in s.older if name in x.flags]
        until = f"; {last[-1]} was the last release that had it" if last else ""
        new = REPLACED.get(name)
        fix = f"write `{new}`" if new else GIVEN_UP.get(name, "remove it")
        yield Complaint(
            setting.key, f"SGLang {s.catalogue.version} has no flag `--{name}`{until}", fix
        )


def _fork(s: Subject) -> Iterator[Complaint]:
    for setting in _unresolved(s):
        if setting.written in FORKS:
            what = f"no release of SGLang has a flag `--{setting.written}`"
            yield Complaint(setting.key, what, FORKS[setting.written])


def _ambiguous(s: Subject) -> Iterator[Complaint]:
    for setting in _unresolved(s):
        if setting.resolution.kind == "ambiguous" and not _removed_name(s, setting):
            names = _listed(setting.resolution.candidates)
            what = f"`--{setting.written}` could be any of {names}: argparse refuses it"
            yield Complaint(setting.key, what, "write the flag in full")


def _unknown(s: Subject) -> Iterator[Complaint]:
    for setting in _unresolved(s):
        if setting.resolution.kind != "unknown" or setting.written in FORKS:
            continue
        if not _removed_name(s, setting) and _first(s, setting) is None:
            near = get_close_matches(setting.written, list(s.catalogue.flags), n=1, cutoff=0.75)
            what = f"SGLang {s.catalogue.version} has no flag `--{setting.written}`"
            yield Complaint(
                setting.key, what, f"did you mean `{near[0]}`?" if near else "remove it"
            )


def _first(s: Subject, setting: Setting) -> str | None:
    """The first release after this one that has the flag."""
    return next((x.version for x in s.newer if x.resolve(setting.written).kind != "unknown"), None)


def _too_new(s: Subject) -> Iterator[Complaint]:
    for setting in _unresolved(s):
        first = _first(s, setting)
        unknown = setting.resolution.kind == "unknown"
        if first is not None and unknown and not _removed_name(s, setting):
            what = (
                f"SGLang {s.catalogue.version} does not have `--{setting.written}` yet; "
                f"{first} does"
            )
            yield Complaint(setting.key, what, f"remove it, or use SGLang {first} or later")


def _abbreviated(s: Subject) -> Iterator[Complaint]:
    for setting, flag in _understood(s):
        if setting.resolution.kind == "abbreviation":
            what = f"`--{setting.written}` is read as `--{setting.resolution.candidates[0]}`"
            yield Complaint(setting.key, what, f"write `{flag.name}`")


def _refused(s: Subject) -> Iterator[Complaint]:
    for setting, flag in _understood(s):
        if flag.refused:
            what = f"SGLang {s.catalogue.version} stops at `--{setting.written}`"
            yield Complaint(setting.key, what, flag.deprecated or "remove it")


def _deprecated(s: Subject) -> Iterator[Complaint]:
    for setting, flag in _understood(s):
        if flag.deprecated and not flag.refused:
            yield Complaint(
                setting.key, f"`--{setting.written}` is deprecated", _sentence(flag.deprecated)
            )


def _twice(s: Subject) -> Iterator[Complaint]:
    seen: dict[str, Setting] = {}
    for setting, flag in _understood(s):
        if flag.name in seen:
            first = seen[flag.name].written
            what = f"`--{setting.written}` and `--{first}` are one flag; the last one wins"
            yield Complaint(setting.key, what)
        seen[flag.name] = setting


def _switch_value(s: Subject) -> Iterator[Complaint]:
    for setting, flag in _understood(s):
        if flag.kind != "value" and setting.value is not True:
            what = f"`--{setting.written}` is a switch and takes no value"
            yield Complaint(setting.key, what, "write `true`, or `false` to leave it out")


def _no_value(s: Subject) -> Iterator[Complaint]:
    for setting, flag in _understood(s):
        if flag.kind == "value" and setting.value is True and not flag.bare:
            kind = f" of type {flag.type}" if flag.type else ""
            yield Complaint(setting.key, f"`--{setting.written}` needs a value{kind}")


def _choice(s: Subject) -> Iterator[Complaint]:
    for setting, flag in _understood(s):
        if flag.kind != "value" or flag.choices is None or not flag.choices:
            continue
        for text in _texts(setting):
            if text not in flag.choices:
                near = get_close_matches(text, flag.choices, n=1)
                hint = f"did you mean `{near[0]}`? " if near else ""
                hint = f"{FORK_CHOICES[text]}. " if text in FORK_CHOICES else hint
                what = f"{_short(text)} is not a choice of `--{setting.written}`"
                yield Complaint(setting.key, what, f"{hint}Choices: {_listed(flag.choices)}")


def _algorithm(s: Subject) -> Iterator[Complaint]:
    setting = s.setting("speculative-algorithm")
    flag = setting.resolution.flag if setting is not None else None
    if setting is None or flag is None or flag.choices or s.algorithm is None:
        return  # argparse tells, and the rule about choices
    if s.algorithm not in ALGORITHMS:
        near = get_close_matches(s.algorithm, ALGORITHMS, n=1)
        fix = f"did you mean {near[0]}?" if near else f"one of {', '.join(ALGORITHMS)}"
        yield Complaint(setting.key, f"{s.algorithm} is not an algorithm of SGLang's own", fix)


def _value(s: Subject) -> Iterator[Complaint]:
    for setting, flag in _understood(s):
        if flag.kind != "value" or setting.value is True:
            continue
        texts = list(_texts(setting))
        if len(texts) > 1 and not flag.many:
            yield Complaint(setting.key, f"`--{setting.written}` takes one value, not a list")
        for text in texts:
            if not _fits(text, flag.type):
                yield Complaint(setting.key, f"{_short(text)} is not a value of type {flag.type}")


def _fits(text: str, kind: str | None) -> bool:
    if kind == "int":
        return whole(text) is not None
    if kind == "float":
        try:
            float(text)
        except ValueError:
            return False
    return True


def _texts(setting: Setting) -> Iterator[str]:
    value = setting.value
    if isinstance(value, list | tuple):
        yield from map(str, value)
    elif value is not True and not isinstance(value, Mapping):
        yield str(value)


def _short(text: str) -> str:
    return repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _sentence(text: str) -> str:
    return " ".join(text.split())


RULES = (
    Rule(
        "removed-flag",
        "error",
        "The release no longer has the flag; SGLang ends with exit code 2 after its imports.",
        "Use the flag that took its place.",
        "flags of every release, read from the wheels",
        _removed,
    ),
    Rule(
        "fork-flag",
        "error",
        "Only a fork of SGLang has the flag; upstream ends with exit code 2.",
        "Remove it.",
        "flags of every release, read from the wheels; a fork's launch commands",
        _fork,
    ),
    Rule(
        "ambiguous-flag",
        "error",
        "argparse accepts a beginning of a flag only when one spelling begins like that.",
        "Write the flag in full.",
        _ARGPARSE,
        _ambiguous,
    ),
    Rule(
        "flag-too-new",
        "error",
        "A later release has the flag; this one ends with exit code 2.",
        "Remove it, or use a later SGLang.",
        "flags of every release, read from the wheels",
        _too_new,
    ),
    Rule(
        "unknown-flag",
        "error",
        "SGLang ends with exit code 2, `unrecognized arguments`.",
        "Correct the name.",
        _ARGPARSE,
        _unknown,
    ),
    Rule(
        "abbreviated-flag",
        "info",
        "argparse takes the beginning of a flag for the flag. A later release that adds another "
        "one with the same beginning refuses it (`--cuda-graph-max-bs` since 0.5.20).",
        "Write the flag in full.",
        _ARGPARSE,
        _abbreviated,
    ),
    Rule(
        "refused-flag",
        "error",
        "The release knows the flag only to stop at it.",
        "Use what the message names.",
        "the flag's own definition in the installed SGLang",
        _refused,
    ),
    Rule(
        "deprecated-flag",
        "warning",
        "The flag still works and will go in a later release.",
        "Use what the message names.",
        "the flag's own definition in the installed SGLang",
        _deprecated,
    ),
    Rule(
        "same-flag-twice",
        "warning",
        "Two spellings of one flag: argparse takes the last one, the other has no effect.",
        "Remove one of the two.",
        _ARGPARSE,
        _twice,
    ),
    Rule(
        "switch-with-value",
        "error",
        "A switch takes no value; what follows it is an unrecognized argument.",
        "Write `true`.",
        _ARGPARSE,
        _switch_value,
    ),
    Rule(
        "flag-without-value",
        "error",
        "argparse expects an argument and ends with exit code 2.",
        "Give it a value.",
        _ARGPARSE,
        _no_value,
    ),
    Rule(
        "bad-choice",
        "error",
        "argparse refuses the value with exit code 2.",
        "Use one of the choices.",
        _ARGPARSE,
        _choice,
    ),
    Rule(
        "unknown-algorithm",
        "warning",
        "From 0.5.12 on the algorithm is free text for argparse; a name that neither SGLang nor a "
        "plugin knows ends the start later.",
        "Correct the name, unless a plugin brings it.",
        "0.5.23 `arg_groups/fields/spec.py`",
        _algorithm,
    ),
    Rule(
        "bad-value",
        "error",
        "argparse cannot read the value and ends with exit code 2.",
        "Give it a value of its type.",
        _ARGPARSE,
        _value,
    ),
)
