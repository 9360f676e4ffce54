"""The server that is measured: its address, what it calls its model, and its own word on things."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import aiohttp

from opsctl.bench import counters
from opsctl.bench.counters import Counters
from opsctl.bench.traffic import Job, stream_once
from opsctl.engine.client import EngineClient
from opsctl.engine.loads import Loads
from opsctl.errors import PreconditionError

_IDLE_LIMIT = 30.0
_POLL = 0.1
_COUNTERS_LIMIT = 3.0


@dataclass(frozen=True)
class Target:
    """A server that answers; `session` has no limit on connections."""

    url: str
    model: str
    client: EngineClient
    session: aiohttp.ClientSession
    api_key: str | None = None

    async def loads(self) -> Loads | None:
        """Its load; None when it does not say."""
        return await self.client.loads()

    async def counters(self) -> Counters:
        """Its counters now."""
        return counters.read(await self.client.metrics_text() or "")

    async def settled_counters(self, before: Counters, tokens: int) -> Counters:
        """What was counted since `before`, given a moment to reach `tokens`."""
        deadline = time.monotonic() + _COUNTERS_LIMIT
        while True:
            grown = (await self.counters()).since(before)
            known = grown.generation_tokens
            if known is None or known >= tokens or time.monotonic() > deadline:
                return grown
            await asyncio.sleep(_POLL)

    async def settle(self) -> bool:
        """Wait until it is idle and drop its prefix cache; False when it stays busy."""
        deadline = time.monotonic() + _IDLE_LIMIT
        while True:
            loads = await self.loads()
            if loads is None or loads.running + loads.queued == 0:
                break
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(_POLL)
        await self._flush()
        return True

    async def usable(self) -> bool:
        """Whether it still answers and is, or becomes, idle."""
        return bool(await self.client.models()) and await self.settle()

    async def characters_per_token(self, messages: Sequence[Mapping[str, str]]) -> float | None:
        """What its tokenizer makes of this text."""
        tokens = await self.prompt_tokens(messages)
        return sum(len(message["content"]) for message in messages) / tokens if tokens else None

    async def prompt_tokens(self, messages: Sequence[Mapping[str, str]]) -> int:
        """How many tokens this conversation has, template included; 0 when it does not say.

        Raises PreconditionError when it does not answer.
        """
        job = Job(self.url, self.model, max_tokens=8, api_key=self.api_key, messages=messages)
        outcome = await stream_once(self.session, job)
        if not outcome.ok:
            raise PreconditionError(f"{self.url} does not answer as it should: {outcome.why}")
        return outcome.prompt_tokens

    async def info(self) -> Mapping[str, object]:
        """What it says about itself; empty when it says nothing."""
        return await self.client.server_info() or {}

    async def _flush(self) -> None:
        """Servers without this endpoint are left as they are: prompts are salted anyway."""
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with (
                asyncio.timeout(10.0),
                self.session.post(f"{self.url}/flush_cache", headers=headers) as response,
            ):
                await response.read()


def open_session() -> aiohttp.ClientSession:
    """As many connections as there are streams, no time limit of its own, no proxy."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
        trust_env=False,
    )


async def attach(
    url: str, session: aiohttp.ClientSession, client: EngineClient, *, api_key: str | None = None
) -> Target:
    """A target at `url`; raises PreconditionError when it lists no model."""
    models = await client.models()
    if not models:
        raise PreconditionError(
            f"no model is listed at {url}/v1/models",
            hint="check --url; a server that wants a key needs --api-key-env",
        )
    return Target(url.rstrip("/"), models[0], client, session, api_key)
