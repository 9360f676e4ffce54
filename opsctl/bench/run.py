"""A whole run: profile after profile, cell after cell, and what is kept when it is interrupted."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from opsctl.bench import engines, environment
from opsctl.bench.engines import Means
from opsctl.bench.folder import Folder
from opsctl.bench.grid import Grid, Spot, Visit
from opsctl.bench.measure import Way, measure
from opsctl.bench.results import Cell, Profile, Result
from opsctl.bench.target import Target, attach, open_session
from opsctl.bench.workload import CHARACTERS_PER_TOKEN, Prompts, Workload
from opsctl.engine.client import EngineClient
from opsctl.errors import OpsctlError

_SAMPLE_TOKENS = 512
"""At most so much text is sent once to see how many tokens it makes; no more than will be asked."""


class Show(Protocol):
    """What is told while it runs."""

    def begin(self, cells: int, done: int) -> None:
        """So many cells in all, so many of them measured before."""

    def say(self, line: str) -> None:
        """Something that happened."""

    def measuring(self, spot: Spot) -> None:
        """A cell is begun."""

    def measured(self, cell: Cell) -> None:
        """A cell is kept."""


OpenTarget = Callable[[str], AbstractAsyncContextManager[Target]]
"""Brings a profile up for a visit, and down after it."""

_LOSSES = 3
"""Engines a profile may lose in one visit before the run is given up."""


@dataclass(frozen=True)
class Order:
    """What is to be measured."""

    grid: Grid
    way: Way
    workload: Workload
    salted: bool = True
    again: bool = False
    """Whether cells that are not valid are measured again."""


class Run:
    """Measures an order into a folder. `visit` gives a target for each visit of a profile."""

    def __init__(
        self,
        order: Order,
        folder: Folder,
        visit: OpenTarget,
        show: Show,
    ) -> None:
        self._order = order
        self._folder = folder
        self._visit = visit
        self._show = show
        self._nonce = secrets.token_hex(8) if order.salted else None

    async def run(self) -> Result:
        """Measure what is missing. However it ends, result.json tells what there is."""
        done = {cell.key for cell in self._folder.cells() if cell.valid or not self._order.again}
        visits = self._order.grid.visits(done)
        missing = sum(len(visit.spots) for visit in visits)
        grid = self._order.grid
        every = sum(len(visit.spots) for visit in grid.visits())
        self._show.begin(every, every - missing)
        complete = False
        try:
            for visit in visits:
                await self._measure(visit)
            complete = True
        finally:
            result = self._folder.save(complete=complete)
        return result

    async def _measure(self, visit: Visit) -> None:
        left, losses = visit.spots, 0
        while left:
            measured = await self._some(visit.profile, left)
            left = left[measured:]
            losses += bool(left)
            if losses >= _LOSSES:
                raise OpsctlError(
                    f"profile {visit.profile!r} lost its engine {losses} times",
                    hint=f"read its log in {self._folder.path / 'logs'}",
                )

    async def _some(self, name: str, spots: Sequence[Spot]) -> int:
        """Measure until all is done or the engine is lost; how many cells were kept."""
        async with self._visit(name) as target:
            self._folder.tell(environment.told(self._known(name), await target.info()))
            prompts = await prompts_for(target, self._order, self._nonce)
            for number, spot in enumerate(spots, 1):
                self._show.measuring(spot)
                cell = await measure(target, prompts, self._order.way, spot)
                self._folder.add(cell)
                self._show.measured(cell)
                if not (cell.valid or await target.usable()):
                    self._show.say(f"{name}: its engine is lost; it is started again")
                    return number
        return len(spots)

    def _known(self, name: str) -> Profile:
        return next(x for x in self._folder.result.profiles if x.name == name)


async def prompts_for(target: Target, order: Order, nonce: str | None) -> Prompts:
    """Prompts measured by the engine's own tokenizer; asking it is also the warm-up.

    Raises PreconditionError when it does not answer.
    """
    first = Prompts(order.workload, secrets.token_hex(8), CHARACTERS_PER_TOKEN)
    sample = first.messages((0, min(max(order.grid.contexts), _SAMPLE_TOKENS), 0), 0)
    ratio = await target.characters_per_token(sample) or CHARACTERS_PER_TOKEN
    common = max([await target.prompt_tokens(bare) for bare in first.bare()])
    return Prompts(order.workload, nonce, ratio, common)


def by_profile(means: Means, show: Show) -> OpenTarget:
    """Targets that are started for a visit and stopped after it."""

    @asynccontextmanager
    async def visit(name: str) -> AsyncIterator[Target]:
        show.say(f"{name}: starting its engine")

        def reached(stage: str) -> None:
            show.say(f"{name}: {stage}")

        async with (
            engines.running(means, name, reached) as engine,
            open_session() as session,
        ):
            yield await attach(engine.url, session, engine.client)
            show.say(f"{name}: stopping its engine")

    return visit


def by_url(url: str, api_key: str | None) -> OpenTarget:
    """The server that runs at `url`, which is neither started nor stopped."""

    @asynccontextmanager
    async def visit(name: str) -> AsyncIterator[Target]:
        client = EngineClient(url, api_key=api_key)
        try:
            async with open_session() as session:
                yield await attach(url, session, client, api_key=api_key)
        finally:
            await client.close()

    return visit
