"""The scheduler's decisions and arithmetic, with the time passed in.

Continuous batching as SGLang does it: prefill goes before decode and is cut into chunks; requests
are admitted first in, first out, while a slot and KV space are free; one decode step gives every
running sequence one token, or as many as its draft was accepted for.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from random import Random
from typing import Protocol

from opsctl.engine.simulated.surface import Surface

CATCH_UP = 0.25
"""Seconds the simulation may lag behind the clock and still make up for. Beyond it (the process
was stopped, or the host is overloaded) the lost time stays lost, as it would for a real GPU."""


@dataclass(frozen=True)
class Job:
    """One request as the scheduler sees it: counts, no text."""

    rid: str
    prompt_tokens: int
    max_new_tokens: int
    accept_length: float = 1.0
    finish: str = "length"
    seed: int = 0


@dataclass(frozen=True)
class Emission:
    """Tokens `first` .. `first + count - 1` of one request, out of one step."""

    rid: str
    first: int
    count: int
    finish: str | None
    steps: int


@dataclass(frozen=True)
class Pace:
    """How long steps take. `scale` multiplies every duration; 0.1 is ten times as fast."""

    surface: Surface
    prefill_rate: float
    reference_accept_length: float = 1.0
    scale: float = 1.0

    def prefill(self, tokens: int) -> float:
        """Return the seconds of a prefill step over `tokens` tokens."""
        return self.scale * tokens / self.prefill_rate

    def decode(self, running: int, context: float) -> float:
        """Return the seconds of a decode step over `running` sequences.

        The surface gives tokens per second at the reference accept length; what varies with the
        prompts is how many tokens come out of a step, not how long it takes.
        """
        rate = self.surface.tokens_per_second(running, context)
        return self.scale * running * self.reference_accept_length / rate


@dataclass(frozen=True)
class Limits:
    """What bounds a batch."""

    max_running: int
    max_total_tokens: int
    prefill_chunk: int = 8192
    draft_tokens: int = 1


class Steps(Protocol):
    """Chooses how many tokens are drafted for a batch, and learns from what was accepted."""

    def steps(self, batch: int) -> int:
        """Return the draft steps for a batch of this size."""
        ...

    def verified(self, accepted: list[int], batch: int) -> None:
        """Take in how many drafts of each request were accepted."""
        ...


@dataclass(frozen=True)
class Adapting:
    """Draft steps that move with the batch; `plain` is the pace of no draft at all."""

    chosen: Steps
    plain: Pace


class Sequence:
    """A request in the scheduler."""

    __slots__ = ("generated", "job", "prefilled", "rng", "steps")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.prefilled = 0
        self.generated = 0
        self.steps = 0
        self.rng = Random(job.seed)  # noqa: S311  # a simulation, not a secret

    @property
    def reserved(self) -> int:
        """KV slots it may come to need."""
        return self.job.prompt_tokens + self.job.max_new_tokens

    @property
    def used(self) -> int:
        """KV slots it holds now."""
        return self.prefilled + self.generated

    def emit(self, wanted: int) -> Emission:
        """Add up to `wanted` tokens."""
        count = min(wanted, self.job.max_new_tokens - self.generated)
        first = self.generated
        self.generated += count
        self.steps += 1
        done = self.generated >= self.job.max_new_tokens
        return Emission(self.job.rid, first, count, self.job.finish if done else None, self.steps)


@dataclass
class Totals:
    """Counters since the start."""

    prefill_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_tokens: int = 0
    decode_steps: int = 0
    prefill_steps: int = 0
    verify_steps: int = 0
    verify_tokens: int = 0
    moments: tuple[float, ...] = (0.0,) * 6

    def note_step(self, batch: int, seconds: float, generated: int) -> None:
        """Count a decode step; `moments` are SGLang's sums of 1, b, t, b*b, b*t and tokens over
        the steps, with b the batch size and t the microseconds."""
        self.decode_steps += 1
        size, micros = float(batch), seconds * 1e6
        step = (1.0, size, micros, size * size, size * micros, float(generated))
        self.moments = tuple(map(sum, zip(self.moments, step, strict=True)))


class Core:
    """One batch, one queue, and the step in progress."""

    def __init__(self, pace: Pace, limits: Limits, adapting: Adapting | None = None) -> None:
        self.pace = pace
        self.limits = limits
        self.adapting = adapting
        self.draft_tokens = limits.draft_tokens
        """Tokens that a decode step verifies at most, the bonus token included."""
        self.waiting: deque[Sequence] = deque()
        self.prefilling: list[Sequence] = []
        self.running: list[Sequence] = []
        self._joined = 0
        self.totals = Totals()
        self.paused = False
        self._due: float | None = None
        self._chunks: list[tuple[Sequence, int]] = []
        self._step_seconds = 0.0

    @property
    def due(self) -> float | None:
        """When the step in progress ends; None when there is none."""
        return self._due

    @property
    def idle(self) -> bool:
        """Whether there is no request at all."""
        return not (self.waiting or self.prefilling or self.running)

    @property
    def said_to_run(self) -> int:
        """Requests that SGLang says are running: it counts those it prefills a step later."""
        return max(len(self.running) - self._joined, 0)

    @property
    def used_tokens(self) -> int:
        """KV slots in use."""
        return sum(sequence.used for sequence in (*self.prefilling, *self.running))

    def submit(self, job: Job, now: float) -> None:
        """Queue a request."""
        self.waiting.append(Sequence(job))
        self._begin(now)

    def abort(self, rid: str) -> bool:
        """Drop a request wherever it is; says whether it was there."""
        for group in (self.waiting, self.prefilling, self.running):
            for sequence in group:
                if sequence.job.rid == rid:
                    group.remove(sequence)
                    return True
        return False

    def pause(self, paused: bool, now: float) -> None:
        """Stop starting steps, or go on."""
        self.paused = paused
        self._begin(now)

    def retract(self) -> None:
        """Put every sequence back to the head of the queue; it keeps its tokens."""
        for sequence in reversed((*self.running, *self.prefilling)):
            sequence.prefilled = 0
            self.waiting.appendleft(sequence)
        self.running, self.prefilling, self._chunks = [], [], []

    def advance(self, now: float) -> list[Emission]:
        """Complete every step that has ended by `now` and begin the next ones."""
        out: list[Emission] = []
        while self._due is not None and self._due <= now:
            ended, self._due = self._due, None
            out.extend(self._complete())
            self._begin(ended if now - ended <= CATCH_UP else now)
        return out

    def _begin(self, at: float) -> None:
        if self._due is not None or self.paused:
            return
        self._admit()
        if self.prefilling:
            self._chunks = self._next_chunks()
            seconds = self.pace.prefill(sum(tokens for _, tokens in self._chunks))
        elif self.running:
            context = sum(sequence.used for sequence in self.running) / len(self.running)
            seconds = self._decode_pace().decode(len(self.running), context)
        else:
            return
        self._step_seconds = seconds
        self._due = at + seconds

    def _decode_pace(self) -> Pace:
        if self.adapting is None:
            return self.pace
        steps = self.adapting.chosen.steps(len(self.running))
        self.draft_tokens = steps + 1
        return self.pace if steps else self.adapting.plain

    def _admit(self) -> None:
        active = (*self.prefilling, *self.running)
        slots = self.limits.max_running - len(active)
        space = self.limits.max_total_tokens - sum(sequence.reserved for sequence in active)
        while self.waiting and slots > 0 and self.waiting[0].reserved <= space:
            sequence = self.waiting.popleft()
            self.prefilling.append(sequence)
            slots -= 1
            space -= sequence.reserved

    def _next_chunks(self) -> list[tuple[Sequence, int]]:
        chunks: list[tuple[Sequence, int]] = []
        left = self.limits.prefill_chunk
        for sequence in self.prefilling:
            if left == 0:
                break
            todo = min(left, sequence.job.prompt_tokens - sequence.prefilled)
            chunks.append((sequence, todo))
            left -= todo
        return chunks

    def _complete(self) -> list[Emission]:
        return self._complete_prefill() if self._chunks else self._complete_decode()

    def _complete_prefill(self) -> list[Emission]:
        chunks, self._chunks = self._chunks, []
        self.totals.prefill_steps += 1
        self.totals.prefill_seconds += self._step_seconds
        out = []
        before = len(self.running)
        for sequence, tokens in chunks:
            if sequence not in self.prefilling:
                continue  # aborted during the step
            sequence.prefilled += tokens
            self.totals.prefill_tokens += tokens
            if sequence.prefilled >= sequence.job.prompt_tokens:
                self.prefilling.remove(sequence)
                self.running.append(sequence)
                out.append(self._emit(sequence, 1))
        self._drop_finished()
        self._joined = len(self.running) - before
        return out

    def _complete_decode(self) -> list[Emission]:
        batch = len(self.running)
        self._joined = 0
        accepted = [self._accepted(sequence) for sequence in self.running]
        out = [self._emit(*pair) for pair in zip(self.running, accepted, strict=True)]
        self.totals.note_step(batch, self._step_seconds, sum(one.count for one in out))
        if self.adapting is not None:
            self.adapting.chosen.verified([tokens - 1 for tokens in accepted], batch)
        self._drop_finished()
        return out

    def _accepted(self, sequence: Sequence) -> int:
        most = self.draft_tokens
        if most <= 1 and self.adapting is None:
            return 1
        mean = min(sequence.job.accept_length, float(most))
        whole = int(mean)
        accepted = whole + (sequence.rng.random() < mean - whole)
        self.totals.verify_steps += 1
        self.totals.verify_tokens += accepted
        return accepted

    def _emit(self, sequence: Sequence, wanted: int) -> Emission:
        emission = sequence.emit(wanted)
        self.totals.decode_tokens += emission.count
        return emission

    def _drop_finished(self) -> None:
        self.running = [
            sequence
            for sequence in self.running
            if sequence.generated < sequence.job.max_new_tokens
        ]
