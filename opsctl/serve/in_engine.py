"""One engine that moves its own draft steps: how it is started, and what watches it.

opsctl writes SGLang's adaptive file from the surfaces and adds two flags to the speculative
profile's own. The profile stays as it is configured, and so does its fingerprint: its surface is
still its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from opsctl.autospec import adaptive_files
from opsctl.autospec.adaptive import Adaptive, AdaptiveError, Slot
from opsctl.config.flags import canonical
from opsctl.config.names import expand_home
from opsctl.config.schema import Config, FlagValue
from opsctl.engine.capability import ADAPTIVE, ADAPTIVE_FILE, STEPS, steps_of
from opsctl.engine.start import RunningEngine
from opsctl.serve.steps import Report, Steps, Verdict, table


@dataclass(frozen=True)
class InEngine:
    """What is added to the launches of one profile."""

    profile: str
    slots: tuple[Slot, ...]
    path: Path
    flags: Mapping[str, FlagValue]

    def flags_for(self, profile: str) -> Mapping[str, FlagValue]:
        """Return what is added to a launch of `profile`; nothing to any other one."""
        return self.flags if profile == self.profile else {}

    def facts(self) -> dict[str, object]:
        """Return what is recorded of such a launch."""
        return {
            "profile": self.profile,
            "file": str(self.path),
            "slots": table(self.slots),
            "flags": dict(self.flags),
        }


def prepare(config: Config, slots: Adaptive, state_dir: Path) -> InEngine:
    """Write the adaptive file and return what starts an engine with it; raises OSError.

    SGLang refuses to start with `speculative-num-steps` that no slot names, so where others were
    measured to be better everywhere, the most of those replace it.
    """
    name = config.auto_spec.speculative
    path = adaptive_files.save(state_dir, name, slots).absolute()
    flags: dict[str, FlagValue] = {ADAPTIVE: True, ADAPTIVE_FILE: str(path)}
    candidates = {step for slot in slots.slots for step in slot.steps}
    if steps_of(config.profiles[name]) not in candidates:
        flags[STEPS] = max(candidates)
    return InEngine(name, slots.slots, path, flags)


def watcher(engine: RunningEngine, home: str | None = None) -> Steps | None:
    """Return what follows the draft steps of an engine; None when it has no adaptive file.

    That is one of opsctl's, or one that its profile names. Raises AdaptiveError when the file,
    which the engine could read at its start, cannot be read any more.
    """
    own = {canonical(key): value for key, value in engine.profile.flags.items()}
    flags = own | dict(engine.extra_flags)
    path, steps = flags.get(ADAPTIVE_FILE), flags.get(STEPS)
    if not flags.get(ADAPTIVE) or not isinstance(path, str):
        return None
    slots = adaptive_files.read(Path(expand_home(path, home)))
    configured = steps if isinstance(steps, int) and not isinstance(steps, bool) else _middle(slots)
    found = Steps(slots, configured)
    if engine.adaptive_off:
        found.told(engine.adaptive_off)
    return found


class Follower:
    """Watches the draft steps of one engine, and tells when the verdict on them changes.

    `steps` is None for an engine that has no adaptive file, or one that cannot be read any more.
    """

    def __init__(self, engine: RunningEngine, record: Callable[..., None]) -> None:
        self._profile = engine.name
        self._record = record
        self._told: Verdict = "unknown"
        self.steps: Steps | None = None
        try:
            self.steps = watcher(engine, os.environ.get("HOME"))
        except AdaptiveError as error:
            record("adaptive_unreadable", profile=engine.name, why=error.message)
        self._tell()

    def see(self, now: float, report: Report) -> None:
        """Take in what the engine's metrics say."""
        if self.steps is not None:
            self.steps.see(now, report)
            self._tell()

    def _tell(self) -> None:
        steps = self.steps
        if steps is None or steps.verdict == self._told:
            return
        self._told = steps.verdict
        event = "adaptive_static" if steps.verdict == "static" else "adaptive_follows"
        self._record(event, profile=self._profile, evidence=steps.evidence)


def _middle(slots: tuple[Slot, ...]) -> int:
    """What SGLang starts with when no flag says it."""
    candidates = sorted({step for slot in slots for step in slot.steps})
    return candidates[len(candidates) // 2]
