"""Rules between keys, each named; `docs/reference/configuration.md` lists them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from opsctl.config.extends import suggestion
from opsctl.config.names import looks_secret
from opsctl.config.schema import Config, LaunchProfile
from opsctl.config.tree import Origin
from opsctl.config.units import format_duration
from opsctl.errors import Problem

Complaint = tuple[str, str]
"""Key path and what is wrong with it."""


@dataclass(frozen=True)
class Rule:
    """One demand on the whole configuration; a broken one is an error, or only a warning."""

    name: str
    text: str
    check: Callable[[Config], Iterable[Complaint]]
    warning: bool = False


def apply_rules(
    config: Config, origins: Mapping[str, Origin]
) -> tuple[list[Problem], list[Problem]]:
    """Problems and warnings, at the position of the key or of the nearest key above it."""
    problems: list[Problem] = []
    warnings: list[Problem] = []
    for rule in RULES:
        found = warnings if rule.warning else problems
        for key, what in rule.check(config):
            found.append(_nearest(origins, key).problem(key, f"{what} [{rule.name}]"))
    return problems, warnings


def _nearest(origins: Mapping[str, Origin], key: str) -> Origin:
    while key not in origins:
        key = key.rpartition(".")[0]
    return origins[key]


def launchable(config: Config) -> tuple[str, ...]:
    """Profiles that can be started; one without a model that others extend is only their base."""
    bases = {profile.extends for profile in config.profiles.values()}
    return tuple(
        name for name, profile in config.profiles.items() if profile.model or name not in bases
    )


def with_single_profile(config: Config) -> Config:
    """The same, with `serve.profile` filled in when there is only one profile to choose."""
    names = launchable(config)
    if config.serve.profile or len(names) != 1:
        return config
    serve = config.serve.model_copy(update={"profile": names[0]})
    return config.model_copy(update={"serve": serve})


def _some_profile(config: Config) -> Iterator[Complaint]:
    if not config.profiles and not config.provision.opsctl_service.instances:
        yield "profiles", "at least one launch profile is needed"


def _references(config: Config) -> Iterator[tuple[str, str]]:
    yield "serve.profile", config.serve.profile
    yield "auto_spec.speculative", config.auto_spec.speculative
    yield "auto_spec.baseline", config.auto_spec.baseline
    yield "auto_spec.always", config.auto_spec.always
    for window in config.auto_spec.maintenance:
        yield "auto_spec.maintenance", window.profile


def _known_profiles(config: Config) -> Iterator[Complaint]:
    if not config.profiles:
        return
    for key, name in _references(config):
        if name and name not in config.profiles:
            yield key, f"there is no profile {name!r}" + suggestion(name, config.profiles)
    if not config.serve.profile and not config.auto_spec.baseline:
        yield "serve.profile", f"say which one to start: {', '.join(config.profiles)}"


def _models(config: Config) -> Iterator[Complaint]:
    used = {name for _, name in _references(config)}
    for name, profile in config.profiles.items():
        if not profile.model and (name in used or name in launchable(config)):
            yield f"profiles.{name}.model", "the engine needs a model"


def _pair(config: Config) -> Iterator[Complaint]:
    speculative, baseline = config.auto_spec.speculative, config.auto_spec.baseline
    if bool(speculative) != bool(baseline):
        missing = "baseline" if speculative else "speculative"
        yield f"auto_spec.{missing}", "`speculative` and `baseline` are set together or not at all"
    elif speculative and speculative == baseline:
        yield "auto_spec.baseline", "must be another profile than `speculative`"


def _always(config: Config) -> Iterator[Complaint]:
    auto = config.auto_spec
    if auto.policy == "always" and not auto.always:
        yield "auto_spec.policy", "the policy `always` needs a profile in `auto_spec.always`"
    pair = {auto.speculative, auto.baseline}
    for window in auto.maintenance:
        if window.profile and auto.baseline and window.profile not in pair | {auto.always}:
            yield (
                "auto_spec.maintenance",
                f"{window.profile} is neither `speculative` nor `baseline` nor `always`",
            )


def _watched(config: Config) -> tuple[LaunchProfile | None, LaunchProfile | None]:
    profiles = config.profiles
    return profiles.get(config.auto_spec.speculative), profiles.get(config.auto_spec.baseline)


def _on(value: object) -> bool:
    return value is not None and value is not False


def _speculation(config: Config) -> Iterator[Complaint]:
    speculative, baseline = _watched(config)
    if speculative is not None and not _on(speculative.flags.get("speculative-algorithm")):
        yield "auto_spec.speculative", "this profile sets no flag `speculative-algorithm`"
    if baseline is None:
        return
    name = config.auto_spec.baseline
    for flag, value in baseline.flags.items():
        if flag.startswith("speculative-") and _on(value):
            yield f"profiles.{name}.flags.{flag}", "the baseline profile must not speculate"
    if baseline.draft_model:
        yield f"profiles.{name}.draft_model", "the baseline profile must not load a draft"


def _order(
    key: str, small: float, words: str, other: str, large: float, *, equal: bool = True
) -> Iterator[Complaint]:
    if small > large or (small == large and not equal):
        yield (
            key,
            f"{format_duration(small)} must {words} `{other}` ({format_duration(large)})",
        )


def _timeouts(inner: str) -> Callable[[Config], Iterator[Complaint]]:
    def check(config: Config) -> Iterator[Complaint]:
        for name, profile in config.profiles.items():
            value = getattr(profile.timeouts, inner)
            key = f"profiles.{name}.timeouts.{inner}"
            yield from _order(key, value, "not exceed", "start", profile.timeouts.start)

    return check


def _positive(config: Config) -> Iterator[Complaint]:
    for name, profile in config.profiles.items():
        for key in ("start", "stage", "probe", "release"):
            if getattr(profile.timeouts, key) <= 0:
                yield f"profiles.{name}.timeouts.{key}", "must be more than 0"
    health, restart, gateway = config.serve.health, config.serve.restart, config.serve.gateway
    values = {
        "serve.health.hang_after": health.hang_after,
        "serve.health.probe_every": health.probe_every,
        "serve.health.probe_timeout": health.probe_timeout,
        "serve.restart.backoff_first": restart.backoff_first,
        "serve.restart.budget_window": restart.budget_window,
        "serve.gateway.heartbeat_every": gateway.heartbeat_every,
    }
    for key, value in values.items():
        if value <= 0:
            yield key, "must be more than 0"


def _marks(config: Config) -> Iterator[Complaint]:
    marks = config.auto_spec.sustained_load
    if marks.low >= marks.high:
        yield (
            "auto_spec.sustained_load.low",
            f"{marks.low:g} must be less than `high` ({marks.high:g}), or load at the mark "
            "would switch to and fro",
        )


def _heartbeat(config: Config) -> Iterator[Complaint]:
    gateway = config.serve.gateway
    yield from _order(
        "serve.gateway.heartbeat_every",
        gateway.heartbeat_every,
        "not exceed",
        "heartbeat_after",
        gateway.heartbeat_after,
    )


def _probe(config: Config) -> Iterator[Complaint]:
    health = config.serve.health
    yield from _order(
        "serve.health.probe_timeout",
        health.probe_timeout,
        "not exceed",
        "probe_every",
        health.probe_every,
    )


def _backoff(config: Config) -> Iterator[Complaint]:
    restart = config.serve.restart
    yield from _order(
        "serve.restart.backoff_first",
        restart.backoff_first,
        "not exceed",
        "backoff_max",
        restart.backoff_max,
    )


def _hold(config: Config) -> Iterator[Complaint]:
    hold = config.serve.gateway.hold
    if hold.requests == 0:
        return
    for name in launchable(config):
        timeouts = config.profiles[name].timeouts
        least = timeouts.stop + timeouts.release
        if hold.time <= least:
            yield (
                "serve.gateway.hold.time",
                f"{format_duration(hold.time)} must exceed stop + release of profile {name!r} "
                f"({format_duration(least)}), or a switch loses the requests it holds",
            )
            return


def _listen(config: Config) -> Iterator[Complaint]:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):([0-9]{1,5})", config.serve.listen)
    if match is None or int(match[2]) > 65535:
        yield "serve.listen", "must be HOST:PORT, such as 127.0.0.1:8000 or [::1]:8000"
    elif config.serve.engine_port and int(match[2]) == config.serve.engine_port:
        yield "serve.engine_port", "the gateway already listens on this port"


def _explicit_cap(config: Config) -> Iterator[Complaint]:
    for name, profile in config.profiles.items():
        speculates = _on(profile.flags.get("speculative-algorithm"))
        if speculates and not _on(profile.flags.get("max-running-requests")):
            yield (
                f"profiles.{name}.flags",
                "no `max-running-requests`: SGLang then silently caps a speculative engine at 48",
            )


def _literal_secret(config: Config) -> Iterator[Complaint]:
    for name, profile in config.profiles.items():
        for variable, value in profile.environment.items():
            if isinstance(value, str) and value and looks_secret(variable):
                yield (
                    f"profiles.{name}.environment.{variable}",
                    "looks like a secret; refer to it: {env: NAME} or {file: PATH}",
                )


RULES = (
    Rule(
        "some-profile",
        "There is at least one launch profile, unless `provision` names instances instead.",
        _some_profile,
    ),
    Rule(
        "known-profiles",
        "`serve.profile`, `auto_spec.speculative`, `.baseline`, `.always` and `maintenance` name "
        "profiles; `serve.profile` may be left out when there is only one, or a pair.",
        _known_profiles,
    ),
    Rule(
        "model",
        "A profile names a `model`, unless it only serves as the base of others.",
        _models,
    ),
    Rule("listen", "`serve.listen` is HOST:PORT, and not `serve.engine_port`.", _listen),
    Rule("positive", "Intervals and the time-outs of a start are more than 0.", _positive),
    Rule("stage-within-start", "`timeouts.stage` <= `timeouts.start`.", _timeouts("stage")),
    Rule("probe-within-start", "`timeouts.probe` <= `timeouts.start`.", _timeouts("probe")),
    Rule(
        "hold-outlasts-switch",
        "`serve.gateway.hold.time` > `timeouts.stop` + `timeouts.release` of every profile.",
        _hold,
    ),
    Rule("heartbeat", "`heartbeat_every` <= `heartbeat_after`.", _heartbeat),
    Rule("probe-interval", "`health.probe_timeout` <= `health.probe_every`.", _probe),
    Rule("backoff", "`restart.backoff_first` <= `restart.backoff_max`.", _backoff),
    Rule("marks", "`sustained_load.low` < `sustained_load.high`.", _marks),
    Rule("pair", "`auto_spec.speculative` and `.baseline` come together and differ.", _pair),
    Rule(
        "always",
        "The policy `always` has a profile; a forced window names one that the watchdog knows.",
        _always,
    ),
    Rule(
        "speculation",
        "The speculative profile sets `speculative-algorithm`; the baseline profile has no draft "
        "and no `speculative-*` flag.",
        _speculation,
    ),
    Rule(
        "explicit-cap",
        "A speculative profile sets `max-running-requests`; SGLang's own default for it is 48.",
        _explicit_cap,
        warning=True,
    ),
    Rule(
        "literal-secret",
        "Environment variables that look like secrets (`*_TOKEN`, `*_KEY`, `*_SECRET`, "
        "`*PASSWORD*`) are references.",
        _literal_secret,
        warning=True,
    ),
)
