"""Streaming chat requests whose answers are checked to the last byte."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

GENERATED = ("content", "reasoning_content", "tool_calls")
"""Members of a delta that the model has generated; the first event of a chat has only a role."""

COMPLETE = frozenset({"stop", "length", "tool_calls"})
"""Finish reasons of a complete answer; `abort` is not one, even under status 200."""


@dataclass(frozen=True)
class Outcome:
    """What became of one request; `seconds` and `first_byte` count from sending it."""

    ok: bool
    status: int | None
    tokens: int
    events: int
    first_byte: float | None
    seconds: float
    why: str = ""
    begun: float = 0.0
    """When it was sent, by the monotonic clock."""
    times: Sequence[float] = ()
    """When each event with something generated in it came, by the same clock."""
    asked: int = 0
    """The most tokens that were asked for."""
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    """Prompt tokens out of the prefix cache; None when the engine does not say."""


@dataclass
class Summary:
    """Outcomes of many requests, in the order they ended."""

    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def failed(self) -> list[Outcome]:
        """Those that did not get a complete answer."""
        return [outcome for outcome in self.outcomes if not outcome.ok]

    @property
    def tokens(self) -> int:
        """Generated tokens, as the engine's usage counts them."""
        return sum(outcome.tokens for outcome in self.outcomes)


@dataclass(frozen=True)
class Job:
    """What is asked. `check` gets (text, completion tokens) and says what is wrong, or nothing."""

    url: str
    model: str
    prompt: str = "Write the numbered words."
    max_tokens: int = 64
    api_key: str | None = None
    check: Callable[[str, int], str] = lambda text, tokens: ""
    messages: Sequence[Mapping[str, object]] = ()
    """The conversation, in place of the one `prompt`."""
    options: Mapping[str, object] = field(default_factory=dict)
    """More members of the request, such as `ignore_eos`."""


def numbered_words(text: str, tokens: int) -> str:
    """Check an answer of the simulated engine: the words w0 w1 w2 …, one for each token."""
    words = text.split()
    wanted = [f"w{number}" for number in range(tokens)]
    if words == wanted:
        return ""
    wrong = next(
        (i for i, pair in enumerate(zip(words, wanted, strict=False)) if len(set(pair)) > 1), None
    )
    if wrong is not None:
        return f"word {wrong} is {words[wrong]!r}"
    return f"{len(words)} words for {tokens} tokens"


class _Answer:
    """One streamed answer, assembled event by event."""

    def __init__(self) -> None:
        self.text = ""
        self.events = 0
        self.finish: str | None = None
        self.tokens: int | None = None
        self.prompt_tokens = 0
        self.cached_tokens: int | None = None
        self.times: list[float] = []
        self.done = False
        self.error = ""

    def take(self, data: bytes | str) -> None:
        """Take the data of one SSE event."""
        if self.done:
            self.error = "an event after [DONE]"
        elif data in (b"[DONE]", "[DONE]"):
            self.done = True
        else:
            self._take_chunk(json.loads(data))

    def _take_chunk(self, chunk: dict[str, object]) -> None:
        self.events += 1
        if "error" in chunk:
            self.error = f"error event: {chunk['error']}"
            return
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self._take_usage(usage)
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else []:
            delta = choice.get("delta") or {}
            self.text += delta.get("content") or ""
            if any(delta.get(key) for key in GENERATED):
                self.times.append(time.monotonic())
            self.finish = choice.get("finish_reason") or self.finish

    def _take_usage(self, usage: dict[str, Any]) -> None:
        self.tokens = usage.get("completion_tokens")
        self.prompt_tokens = usage.get("prompt_tokens") or 0
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            self.cached_tokens = details.get("cached_tokens")

    def fault(self, job: Job) -> str:
        """What is wrong with the whole answer; empty when it is complete."""
        if self.error:
            return self.error
        if not self.done:
            return "no [DONE]"
        if self.finish not in COMPLETE:
            return f"finish_reason {self.finish!r}"
        if self.tokens is None:
            return "no usage"
        return job.check(self.text, self.tokens)


def _body(job: Job) -> dict[str, object]:
    return {
        "model": job.model,
        "messages": list(job.messages) or [{"role": "user", "content": job.prompt}],
        "max_tokens": job.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **job.options,
    }


async def stream_once(
    session: aiohttp.ClientSession, job: Job, *, on_first: Callable[[], None] = lambda: None
) -> Outcome:
    """Send one streaming chat request and check the answer; never raises for what it meets.

    `on_first` is called when the first event with something generated in it has come.
    """
    begun = time.monotonic()
    answer = _Answer()
    first: float | None = None
    status: int | None = None
    waiting = True
    headers = {"Authorization": f"Bearer {job.api_key}"} if job.api_key else {}
    try:
        async with session.post(
            f"{job.url}/v1/chat/completions", json=_body(job), headers=headers
        ) as response:
            status = response.status
            if status != 200:
                why = f"status {status}: {(await response.text())[:200]}"
            else:
                async for line in response.content:
                    if line.startswith(b"data: "):
                        first = first or time.monotonic() - begun
                        answer.take(line[6:].strip())
                        if waiting and answer.times:
                            waiting = False
                            on_first()
                why = answer.fault(job)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - begun
    return Outcome(
        ok=not why,
        status=status,
        tokens=answer.tokens or 0,
        events=answer.events,
        first_byte=first,
        seconds=seconds,
        why=why,
        begun=begun,
        times=answer.times,
        asked=job.max_tokens,
        prompt_tokens=answer.prompt_tokens,
        cached_tokens=answer.cached_tokens,
    )


async def keep_busy(
    job: Job,
    streams: int,
    until: asyncio.Event,
    *,
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
) -> Summary:
    """Keep `streams` requests in flight until the event is set; those begun are finished."""
    summary = Summary()
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)

    async def one(session: aiohttp.ClientSession) -> None:
        while not until.is_set():
            outcome = await stream_once(session, job)
            summary.outcomes.append(outcome)
            on_outcome(outcome)

    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        await asyncio.gather(*(one(session) for _ in range(streams)))
    return summary
