"""Requests sleep at the gate and are woken in the order in which they came."""

from __future__ import annotations

import asyncio

from opsctl.serve.gate import Engine, Gate, Limits, Refusal
from opsctl.serve.waiting import WaitingRoom

NEVER = float("inf")


def room(seconds: float = 60.0) -> WaitingRoom:
    return WaitingRoom(Gate(Limits(requests=100, size=100, time=seconds)))


async def until_held(waiting: WaitingRoom, count: int) -> None:
    async with asyncio.timeout(5):
        while waiting.gate.held < count:
            await asyncio.sleep(0)


async def test_an_opening_lets_them_go_in_the_order_of_arrival() -> None:
    waiting = room()
    tickets = [waiting.gate.ticket() for _ in range(20)]
    gone: list[int] = []

    async def wait(index: int) -> None:
        assert isinstance(await waiting.answer(tickets[index], until=NEVER), Engine)
        gone.append(index)

    async with asyncio.TaskGroup() as group:
        for index in reversed(range(20)):  # they fall asleep in another order than they came
            group.create_task(wait(index))
        await until_held(waiting, 20)
        waiting.open("http://a")
    assert gone == list(range(20))


async def test_a_gate_that_closes_again_at_once_keeps_them() -> None:
    waiting = room()
    task = asyncio.create_task(waiting.answer(waiting.gate.ticket(), until=NEVER))
    await until_held(waiting, 1)
    waiting.open("http://a")
    waiting.close("crash", admit=True, retry_after=1.0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not task.done()
    waiting.open("http://b")
    assert await task == Engine("http://b", 2)


async def test_a_sleeper_wakes_by_itself_when_its_time_is_over() -> None:
    waiting = room(seconds=0.02)
    answer = await asyncio.wait_for(waiting.answer(waiting.gate.ticket(), until=NEVER), 5)
    assert isinstance(answer, Refusal)
    assert answer.code == "hold_timeout"


async def test_a_sleeper_can_look_up_before_there_is_an_answer() -> None:
    waiting = room()
    ticket = waiting.gate.ticket()
    soon = asyncio.get_running_loop().time() + 0.02
    assert await asyncio.wait_for(waiting.answer(ticket, until=soon), 5) is None
    assert waiting.gate.held == 1


async def test_one_that_is_cancelled_is_not_woken_later() -> None:
    waiting = room()
    ticket = waiting.gate.ticket()
    task = asyncio.create_task(waiting.answer(ticket, until=NEVER))
    await until_held(waiting, 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    waiting.gate.leave(ticket, 0.0)
    waiting.open("http://a")
    assert waiting.gate.held == 0
