"""What a running instance knows of engines that move their own draft steps.

Which engine does is a fact of its start: one that was adopted, or started before the surfaces were
measured, does not, and one whose SGLang fell back to fixed steps only seems to. While such an
engine serves, the watchdog switches profiles as if there were no other way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace

from opsctl.autospec.adaptive import AdaptiveError
from opsctl.autospec.load import LoadSample
from opsctl.config.schema import FlagValue
from opsctl.engine.start import RunningEngine
from opsctl.serve.in_engine import InEngine, watcher
from opsctl.serve.steps import Report, Steps, Verdict, table

TO_BLAME = frozenset(
    {"out_of_memory", "bad_flags", "exited", "start_timeout", "stage_timeout", "probe_failed"}
)
"""Kinds of failed starts that the flags may be to blame for."""


class Adapting:
    """Adds the flags, follows the steps, and says what was observed of the engine that serves."""

    def __init__(self, record: Callable[..., None]) -> None:
        self.planned: InEngine | None = None
        """What engines of the speculative profile are started with; None: nothing is added."""
        self.observed = ""
        """Why the engine that serves does not move its own steps; empty when it does."""
        self.changed: Callable[[], None] = lambda: None
        """Called when `observed` has changed, where it is planned that engines do."""
        self.steps: Steps | None = None
        """The steps of the engine that serves; None when they are fixed."""
        self._record = record
        self._engine: RunningEngine | None = None
        self._told: Verdict = "unknown"
        self._given_up = ""
        self._unwatched = ""
        self._starting = ""
        """Profile of an engine that is starting with the flags."""

    def flags_for(self, profile: str) -> Mapping[str, FlagValue]:
        """Return what is added to a launch of `profile`, and record it."""
        planned, self._starting = self.planned, ""
        if planned is None or self._given_up or profile != planned.profile:
            return {}
        self._starting = profile
        self._record(
            "engine_adapts",
            profile=profile,
            file=str(planned.path),
            slots=table(planned.slots),
            flags=dict(planned.flags),
        )
        return planned.flags

    def start_failed(self, kind: str) -> None:
        """Let the next start go without the flags when one with them came to nothing.

        The engine needs more memory with them: graphs and attention states of every candidate.
        """
        if self._starting and kind in TO_BLAME:
            self._record("adaptive_given_up", profile=self._starting, kind=kind)
            self._given_up = f"an engine of {self._starting} did not start with it ({kind})"
            self._starting = ""
            self._observe()

    def follow(self, engine: RunningEngine) -> None:
        """Begin to follow an engine that has begun to serve."""
        if engine is self._engine:
            return
        self._engine, self.steps, self._told = engine, None, "unknown"
        self._starting = ""
        self._unwatched = "the engine that serves was started without it"
        try:
            self.steps = watcher(engine, os.environ.get("HOME"))
        except AdaptiveError as error:
            self._unwatched = error.message
            self._record("adaptive_unreadable", profile=engine.name, why=error.message)
        self._judge()

    def see(self, now: float, report: Report, at_engine: int) -> None:
        """See `Steps.see`."""
        if self.steps is not None:
            self.steps.see(now, report, at_engine)
            self._judge()

    def for_policy(self, sample: LoadSample) -> LoadSample:
        """Return what a policy may be told: the load, not the speed of no profile in particular.

        With zero steps the accept length is 1 and the speed that of the baseline; a policy that
        took them for the speculative profile's would expect the wrong speed of it ever after.
        """
        if self.steps is None or self.steps.verdict == "static":
            return sample
        return replace(sample, accept_length=None, generated=None)

    def forget(self) -> None:
        """Try again with the next engine: the configuration or SGLang may have changed."""
        self._given_up = ""

    def describe(self) -> dict[str, object] | None:
        """Return what `opsctl status` shows; None for an engine with fixed steps."""
        if self.steps is None:
            return None
        return {"verdict": self.steps.verdict, "why": self.steps.sentence()}

    def _judge(self) -> None:
        steps = self.steps
        if steps is not None and steps.verdict != self._told:
            self._told = steps.verdict
            name = "" if self._engine is None else self._engine.name
            if steps.verdict == "static":
                self._record("adaptive_static", profile=name, evidence=steps.evidence)
                self._given_up = steps.sentence()
            else:
                self._record("adaptive_follows", profile=name, evidence=steps.evidence)
                self._given_up = ""
        self._observe()

    def _observe(self) -> None:
        before, self.observed = self.observed, self._seen()
        if self.observed != before and self.planned is not None:
            self.changed()

    def _seen(self) -> str:
        if self._given_up or self.steps is None:
            return self._given_up or self._unwatched
        return self.steps.sentence() if self.steps.verdict == "static" else ""
