"""Is an engine's memory back: what is compared, and when the answer is unknown."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from opsctl.engine.release import MemoryReader
from opsctl.engine.tree import Identity
from opsctl.gpu.memory import TOLERANCE, GpuMemory
from opsctl.gpu.model import Census, Gpu, GpuUse, Holder, Snapshot, Verdict

GIB = 1 << 30
RESERVED = 636 << 20
DEAD = 2**22 + 7  # above the largest process number there can be
IDENTITY = Identity("nonce", DEAD, 1, DEAD, None, "boot")


def conforms(memory: GpuMemory) -> MemoryReader:
    """For the type checker: an engine's release takes it."""
    return memory


@dataclass
class Host:
    """Two GPUs whose memory a test changes; time passes only when it says so."""

    used: list[int | None] = field(default_factory=lambda: [0, 0])
    uses: list[GpuUse] = field(default_factory=list)
    state: str = "ok"
    readings: int = 0
    time: float = 0.0
    holders: tuple[Holder, ...] = ()

    async def read(self) -> Snapshot:
        self.readings += 1
        self.time += 1.0
        gpus = tuple(
            Gpu(
                index,
                memory_total=96 * GIB,
                memory_used=None if used is None else used + RESERVED,
                memory_reserved=RESERVED,
            )
            for index, used in enumerate(self.used)
        )
        return Snapshot(self.state, gpus=gpus, uses=tuple(self.uses))  # type: ignore[arg-type]

    async def look(self) -> Census:
        return Census(await self.read(), self.holders)

    def memory(self, gpus: list[int] | None = None) -> GpuMemory:
        return GpuMemory(gpus, read=self.read, look=self.look, clock=lambda: self.time)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr("opsctl.gpu.memory._SPACING", 0.0)
    return Host()


@pytest.fixture
def tenant() -> Iterator[int]:
    """Somebody else's living process."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


async def test_memory_is_held_until_it_is_back_to_what_it_was(host: Host) -> None:
    host.used = [GIB, 0]
    memory = conforms(host.memory())
    assert isinstance(memory, GpuMemory)
    await memory.before_start()
    host.used = [GIB + 90 * GIB, 90 * GIB]
    assert await memory.held(IDENTITY) == 180 * GIB
    host.used = [GIB + 90 * GIB, TOLERANCE]
    assert await memory.held(IDENTITY) == 90 * GIB
    host.used = [GIB + TOLERANCE, TOLERANCE]
    assert await memory.held(IDENTITY) == 0
    host.used = [GIB + TOLERANCE + 1, 0]
    assert await memory.held(IDENTITY) == TOLERANCE + 1


async def test_a_dead_process_that_the_driver_still_lists_counts(host: Host) -> None:
    memory = host.memory()
    await memory.before_start()
    host.used, host.uses = [90 * GIB, 0], [GpuUse(0, DEAD, "compute", 90 * GIB)]
    assert await memory.held(IDENTITY) == 90 * GIB


async def test_other_tenants_may_come_and_go(host: Host, tenant: int) -> None:
    host.used, host.uses = [2 * GIB, 0], [GpuUse(0, tenant, "compute", 2 * GIB)]
    memory = host.memory()
    await memory.before_start()
    host.used, host.uses = [5 * GIB, 0], [GpuUse(0, tenant, "compute", 5 * GIB)]
    assert await memory.held(IDENTITY) == 0
    host.used, host.uses = [0, 3 * GIB], [GpuUse(1, tenant, "compute", 3 * GIB)]
    assert await memory.held(IDENTITY) == 0
    # What the tenant gave back must not hide what the engine holds.
    host.used, host.uses = [2 * GIB, 0], []
    assert await memory.held(IDENTITY) == 2 * GIB


async def test_a_tenant_of_another_pid_namespace_is_known_by_having_been_there(
    host: Host,
) -> None:
    host.used, host.uses = [2 * GIB, 0], [GpuUse(0, DEAD, "compute", 2 * GIB)]
    memory = host.memory()
    await memory.before_start()
    host.used, host.uses = [5 * GIB, 0], [GpuUse(0, DEAD, "compute", 5 * GIB)]
    assert await memory.held(IDENTITY) == 0


async def test_a_living_member_is_no_other_tenant(host: Host, tenant: int) -> None:
    memory = host.memory()
    await memory.before_start()
    host.used, host.uses = [5 * GIB, 0], [GpuUse(0, tenant, "compute", 5 * GIB)]
    assert await memory.observe(IDENTITY, [tenant]) == {0}
    assert await memory.held(IDENTITY) == 5 * GIB


async def test_only_gpus_the_engine_used_are_asked_about(host: Host, tenant: int) -> None:
    memory = host.memory()
    await memory.before_start()
    host.used, host.uses = [5 * GIB, 0], [GpuUse(0, tenant, "compute", 5 * GIB)]
    await memory.observe(IDENTITY, [tenant])
    host.used, host.uses = [0, 7 * GIB], []  # GPU 1 is another engine's
    assert await memory.held(IDENTITY) == 0
    host.used = [3 * GIB, 7 * GIB]
    assert await memory.held(IDENTITY) == 3 * GIB


async def test_gpus_given_by_the_caller_are_the_ones_asked_about(host: Host) -> None:
    memory = host.memory([1])
    await memory.before_start()
    host.used = [7 * GIB, 0]
    assert await memory.held(IDENTITY) == 0
    await memory.before_start([0])
    host.used = [9 * GIB, 0]
    assert await memory.held(IDENTITY) == 2 * GIB


async def test_without_memory_of_each_process_the_plain_difference_counts(
    host: Host, tenant: int
) -> None:
    host.used, host.uses = [2 * GIB, 0], [GpuUse(0, tenant, "compute", None)]
    memory = host.memory()
    await memory.before_start()
    host.used = [9 * GIB, 0]
    assert await memory.held(IDENTITY) == 7 * GIB
    host.used = [GIB, 0]
    assert await memory.held(IDENTITY) == 0


async def test_an_engine_that_was_taken_over_has_no_baseline(host: Host, tenant: int) -> None:
    memory = host.memory()
    assert await memory.held(IDENTITY) is None  # nobody knows which GPUs were its
    host.used, host.uses = [5 * GIB, 0], [GpuUse(0, tenant, "compute", 5 * GIB)]
    await memory.observe(IDENTITY, [tenant])
    host.uses = []
    assert await memory.held(IDENTITY) == 5 * GIB
    host.used = [512 << 20, 0]  # granted to the driver
    assert await memory.held(IDENTITY) == 0


@pytest.mark.parametrize("state", ["fault", "unresponsive", "absent"])
async def test_a_reading_that_failed_is_unknown(host: Host, state: str) -> None:
    memory = host.memory()
    await memory.before_start()
    host.state = state
    assert await memory.held(IDENTITY) is None
    assert await memory.busy() is None


async def test_one_gpu_that_cannot_be_read_is_unknown_unless_another_holds(host: Host) -> None:
    memory = host.memory()
    await memory.before_start()
    host.used = [0, None]
    assert await memory.held(IDENTITY) is None
    host.used = [3 * GIB, None]
    assert await memory.held(IDENTITY) == 3 * GIB


async def test_a_host_without_gpus_is_asked_once_a_minute(host: Host) -> None:
    host.state = "absent"
    memory = host.memory()
    for _ in range(5):
        await memory.before_start()
        assert await memory.held(IDENTITY) is None
        assert await memory.busy() is None
    assert host.readings == 1
    host.time += 60
    assert await memory.held(IDENTITY) is None
    assert host.readings == 2


async def test_readings_keep_their_distance_however_often_they_are_asked_for() -> None:
    host = Host()
    memory = GpuMemory(read=host.read)
    start = time.monotonic()
    for _ in range(3):
        await memory.before_start()
    assert time.monotonic() - start > 0.35
    assert host.readings == 3  # and none is answered from the last one


async def test_busy_names_who_holds_the_wanted_gpus(host: Host) -> None:
    def holder(gpu: int, memory: int | None, verdict: Verdict = Verdict.FOREIGN) -> Holder:
        return Holder(verdict, DEAD, 1, (gpu,), memory, (), per_gpu={gpu: memory})

    big, unknown, fault = holder(0, 2 * GIB), holder(1, None), holder(1, None, Verdict.FAULT)
    daemon = Holder(Verdict.FOREIGN, DEAD, 1, (1,), None, ())  # has the device open, no memory
    host.holders = (big, holder(0, 300 << 20), unknown, fault, daemon)
    memory = host.memory()
    assert await memory.busy() == (big, unknown, fault)
    assert await memory.busy([0]) == (big,)
    assert await memory.busy([1]) == (unknown, fault)
    assert await memory.busy([0], at_least=1 << 20) == host.holders[:2]
