"""A fake libnvidia-ml.so.1, compiled on first use, and the hosts it can pretend to be.

    fake = FakeNvml.eight_sm120(tmp_path)
    fake.set_process(pid, gpus=[0, 1], memory=90 * GIB)     # listed and counted while it lives
    subprocess.run(..., env={**os.environ, **fake.environment})

The library reads its state live: change `fake.gpus[0].used`, call `write()`, and the next call
sees it. See fake_nvml.c for the format.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from opsctl.system import procfs

SOURCE = Path(__file__).with_name("fake_nvml.c")
GIB = 1 << 30
MIB = 1 << 20
NO_INSTANCE = 0xFFFFFFFF

ERRORS = {
    "NotSupported": 3,
    "NoPermission": 4,
    "DriverNotLoaded": 9,
    "Timeout": 10,
    "FunctionNotFound": 13,
    "GpuIsLost": 15,
    "ResetRequired": 16,
    "LibRmVersionMismatch": 18,
    "ArgumentVersionMismatch": 25,
    "Unknown": 999,
}
_KINDS = {"compute": 1, "graphics": 2, "mps": 4}


@dataclass
class FakeGpu:
    """One GPU; memory in bytes, power in watts. `used` is without the reserve and the rows."""

    name: str = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    uuid: str = "GPU-00000000-0000-0000-0000-000000000000"
    bus: str = "00000000:01:00.0"
    total: int = 97887 * MIB
    reserved: int = 636 * MIB
    used: int = 0
    capability: tuple[int, int] = (12, 0)
    power: float = 35.5
    power_limit: float = 600.0
    temperature: int = 31
    utilization: int = 0
    link: tuple[int, int] = (1, 16)
    link_max: tuple[int, int] = (5, 16)
    minor: int = 0
    persistence: bool = True
    mig: bool | None = None
    instances: int = 0
    recovery: int = 0


@dataclass
class _Row:
    gpu: int
    kinds: int
    pid: int
    start: int
    memory: int
    shown: bool
    instance: tuple[int, int]
    linger: float | None
    ghost: bool


@dataclass
class FakeNvml:
    """The library in `folder`, and what it says."""

    folder: Path
    gpus: list[FakeGpu] = field(default_factory=list)
    driver: str = "580.95.05"
    library: str = "13.580.95.05"
    cuda: int = 13000
    init: int = 0
    log: bool = False
    more: list[str] = field(default_factory=list)
    """Further lines of the state: detail, pair, back and cc."""
    _rows: list[_Row] = field(default_factory=list)
    _rules: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder = self.folder / "nvml"
        self.folder.mkdir(exist_ok=True)
        library = self.folder / "libnvidia-ml.so.1"
        if not library.exists():
            library.symlink_to(built())
        self.write()

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to find the library."""
        return {"LD_LIBRARY_PATH": str(self.folder)}

    def set_process(
        self,
        pid: int,
        *,
        gpus: Iterable[int] = (0,),
        memory: int = 90 * GIB,
        kinds: Sequence[str] = ("compute",),
        reported: bool = True,
        instance: tuple[int, int] = (NO_INSTANCE, NO_INSTANCE),
        linger: float | None = 0.0,
        ghost: bool = False,
        fixed: bool = False,
    ) -> None:
        """Add a process that holds `memory` on each of `gpus`.

        A living pid is listed while it lives; its memory comes back `linger` seconds after its
        death was first seen, never if None. `ghost`: stays listed when dead. A pid that does not
        exist here, or `fixed`: always listed. Not `reported`: NVML does not say how much.
        """
        found = None if fixed else procfs.stat(pid)
        mask = sum(_KINDS[kind] for kind in kinds)
        start = found.start_time if found else 0
        self._rows += [
            _Row(gpu, mask, pid, start, memory, reported, instance, linger, ghost) for gpu in gpus
        ]
        self.write()

    def remove_process(self, pid: int) -> None:
        """Take a process out of the tables, and its memory back."""
        self._rows = [row for row in self._rows if row.pid != pid]
        self.write()

    def error(self, function: str, name: str, *, gpu: int = -1) -> None:
        """Let a function fail; without `gpu` for all. A MIG handle is GPU number + 1000."""
        self._rule(f"error {gpu} {function} {ERRORS[name]}")

    def block(self, function: str, *, gpu: int = -1, hard: bool = False) -> None:
        """Let a function never return; `hard`: not even SIGTERM ends it."""
        self._rule(f"block {gpu} {function} {hard:d}")

    def slow(self, function: str, seconds: float, *, gpu: int = -1) -> None:
        """Let a function take its time."""
        self._rule(f"slow {gpu} {function} {int(seconds * 1000)}")

    def crash(self, function: str, *, gpu: int = -1) -> None:
        """Let a function kill its process."""
        self._rule(f"crash {gpu} {function} 0")

    def heal(self) -> None:
        """Forget all errors, blocks and delays."""
        self._rules.clear()
        self.write()

    def calls(self) -> list[tuple[int, int, str]]:
        """Calls made while `log` was set: pid, GPU (-1: none), function."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(pid), int(gpu), name) for pid, gpu, name in map(str.split, lines)]

    def write(self) -> None:
        """Put the state in place, in one step."""
        draft = self.folder / "state.new"
        draft.write_text("".join(f"{line}\n" for line in self._lines()))
        draft.replace(self.folder / "state")

    def _rule(self, rule: str) -> None:
        self._rules.append(rule)
        self.write()

    def _lines(self) -> Iterable[str]:
        yield f"driver {self.driver}"
        yield f"library {self.library}"
        yield f"cuda {self.cuda}"
        yield f"init {self.init}"
        if self.log:
            yield "log"
        for index, gpu in enumerate(self.gpus):
            mig = -1 if gpu.mig is None else int(gpu.mig)
            yield (
                f"gpu {index} {gpu.total} {gpu.reserved} {gpu.used} {gpu.capability[0]} "
                f"{gpu.capability[1]} {gpu.power * 1000:.0f} {gpu.power_limit * 1000:.0f} "
                f"{gpu.temperature} {gpu.utilization} {gpu.link[0]} {gpu.link[1]} "
                f"{gpu.link_max[0]} {gpu.link_max[1]} {gpu.minor} {gpu.persistence:d} {mig} "
                f"{gpu.instances} {gpu.recovery}"
            )
            yield f"name {index} {gpu.name}"
            yield f"uuid {index} {gpu.uuid}"
            yield f"bus {index} {gpu.bus}"
        for row in self._rows:
            linger = -1 if row.linger is None else int(row.linger * 1000)
            yield (
                f"row {row.gpu} {row.kinds} {row.pid} {row.start} {row.memory} {row.shown:d} "
                f"{row.instance[0]} {row.instance[1]} {linger} {row.ghost:d}"
            )
        yield from self.more
        yield from self._rules

    @classmethod
    def eight_sm120(cls, folder: Path) -> FakeNvml:
        """The reference host: eight RTX PRO 6000, idle, no process on them."""
        return cls(
            folder,
            [
                FakeGpu(
                    uuid=f"GPU-00000000-0000-0000-0000-00000000000{number}",
                    bus=f"00000000:{0x11 + 0x10 * number:02X}:00.0",
                    minor=number,
                )
                for number in range(8)
            ],
        )

    @classmethod
    def blocked(cls, folder: Path, function: str = "nvmlInitWithFlags") -> FakeNvml:
        """A driver that hangs."""
        fake = cls.eight_sm120(folder)
        fake.block(function)
        return fake

    @classmethod
    def lost(cls, folder: Path, gpu: int = 3) -> FakeNvml:
        """One GPU has fallen off the bus: no call about it works any more."""
        fake = cls.eight_sm120(folder)
        for name in implemented():
            if name.startswith("nvmlDevice") and name != "nvmlDeviceGetCount_v2":
                fake._rules.append(f"error {gpu} {name} {ERRORS['GpuIsLost']}")
        fake.write()
        return fake

    @classmethod
    def mismatch(cls, folder: Path) -> FakeNvml:
        """The driver was upgraded under a running kernel module."""
        fake = cls.eight_sm120(folder)
        fake.init = ERRORS["LibRmVersionMismatch"]
        fake.write()
        return fake

    @classmethod
    def no_driver(cls, folder: Path) -> FakeNvml:
        """The library is installed, the kernel module is not loaded."""
        fake = cls(folder)
        fake.init = ERRORS["DriverNotLoaded"]
        fake.write()
        return fake


def implemented() -> list[str]:
    """Functions that fake_nvml.c defines."""
    return re.findall(
        r"^(?:nvmlReturn_t |const char \*|GETTER\(|DETAIL_GETTER\()(nvml\w+)[(,]",
        SOURCE.read_text(),
        re.M,
    )


def bindings() -> Path:
    """The source of the bindings, found without loading them."""
    found = importlib.util.find_spec("pynvml")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin)


@functools.cache
def built() -> Path:
    """The compiled library; skips the test where there is no C compiler."""
    folder = Path(tempfile.mkdtemp(prefix="opsctl-fake-nvml-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # Everything else that the bindings may look up answers "not supported".
    names = re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', bindings().read_text())
    stubs = folder / "stubs.c"
    stubs.write_text(
        "".join(
            f"int {name}(void);\nint __attribute__((weak)) {name}(void) {{ return 3; }}\n"
            for name in sorted(set(names))
        )
    )
    library = folder / "libnvidia-ml.so.1"
    compile_library([str(SOURCE), str(stubs)], library)
    return library


def compile_library(arguments: list[str], library: Path) -> None:
    """Run the C compiler, every warning an error."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the fake NVML library")
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]
    result = subprocess.run(
        [*command, str(library), *arguments, "-ldl"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
    )
    assert result.returncode == 0, result.stderr


Preset = Callable[[Path], FakeNvml]
