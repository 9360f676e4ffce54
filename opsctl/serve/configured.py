"""What the configuration means for the state machine and for the engine that runs."""

from __future__ import annotations

from opsctl.config.schema import Config, Timeouts
from opsctl.engine.start import RunningEngine
from opsctl.profiles.fingerprint import fingerprint
from opsctl.serve.failures import RestartRules
from opsctl.serve.state import Rules


def engine_notes(engine: RunningEngine, config: Config) -> list[str]:
    """What a new configuration does not change for the engine that runs."""
    profile = config.profiles.get(engine.name)
    if profile is None:
        return [f"profile {engine.name!r} is gone from the configuration; its engine serves on"]
    if fingerprint(profile) != engine.fingerprint:
        return [f"profile {engine.name!r} has changed; its engine serves on as it was started"]
    return []


def rules(config: Config, mechanism: str | None = None) -> Rules:
    """The state machine's rules, from the configuration.

    `mechanism` is the watchdog's; None without one, and then `serve.mechanism` says.
    """
    by = config.serve.mechanism if mechanism in (None, "in_engine") else mechanism
    restart, auto = config.serve.restart, config.auto_spec
    named = (config.serve.profile, auto.baseline, auto.speculative)
    return Rules(
        restart=RestartRules(
            backoff_first=restart.backoff_first,
            backoff_max=restart.backoff_max,
            quarantine_after=restart.quarantine_after,
            quarantine_for=restart.quarantine_for,
            budget=restart.budget,
            budget_window=restart.budget_window,
        ),
        drain=lambda name: _drain_limit(config, name),
        gated=lambda name: by == "gated_restart",
        cut_on_drain_timeout=config.serve.on_drain_timeout == "cut",
        fallbacks=tuple(dict.fromkeys(name for name in named if name in config.profiles)),
    )


def _drain_limit(config: Config, name: str) -> float:
    profile = config.profiles.get(name)  # a reload may have removed it
    return (profile.timeouts if profile is not None else Timeouts()).drain
