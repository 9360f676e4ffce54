"""One engine that moves its own draft steps: how it is started, and what watches it.

opsctl writes SGLang's adaptive file from the surfaces and adds two flags to the speculative
profile's own. The profile stays as it is configured, and so does its fingerprint: its surface is
still its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from opsctl.autospec import adaptive_files
from opsctl.autospec.adaptive import Adaptive, Slot
from opsctl.config.flags import canonical
from opsctl.config.names import expand_home
from opsctl.config.schema import Config, FlagValue
from opsctl.engine.capability import ADAPTIVE, ADAPTIVE_FILE, STEPS, steps_of
from opsctl.engine.start import RunningEngine
from opsctl.serve.steps import Steps


@dataclass(frozen=True)
class InEngine:
    """What is added to the launches of `profile`, and to no other."""

    profile: str
    slots: tuple[Slot, ...]
    path: Path
    flags: Mapping[str, FlagValue]


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


def _middle(slots: tuple[Slot, ...]) -> int:
    """What SGLang starts with when no flag says it."""
    candidates = sorted({step for slot in slots for step in slot.steps})
    return candidates[len(candidates) // 2]
