"""A fake driver: libnvidia-ml.so.1 and libcuda.so.1 that say all the doctor asks for."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from dataclasses import dataclass, field, replace
from itertools import combinations, permutations
from pathlib import Path

from opsctl.doctor.host import CudaDevice, CudaPair, GpuDetail, GpuPair
from tests.support import fake_nvml
from tests.support.doctor.healthy import CUDA, DETAILS
from tests.support.fake_nvml import FakeNvml

HERE = Path(__file__).parent


@dataclass
class FakeDriver:
    """The libraries in a folder; change a field, call `write`, and the next call sees it."""

    nvml: FakeNvml
    details: list[GpuDetail] = field(default_factory=lambda: list(DETAILS.gpus))
    pairs: list[GpuPair] = field(default_factory=lambda: list(DETAILS.pairs))
    devices: list[CudaDevice] = field(default_factory=lambda: list(CUDA.devices))
    cuda_pairs: list[CudaPair] = field(default_factory=lambda: list(CUDA.pairs))
    confidential: int | None = 0
    init: int = 0
    more: list[str] = field(default_factory=list)
    """Further lines of the fake library's state."""
    block: str = ""
    """The function of libcuda that never returns."""

    @classmethod
    def healthy(cls, folder: Path) -> FakeDriver:
        """Eight SM120 GPUs of which nothing bad can be said."""
        made = cls(FakeNvml.eight_sm120(folder))
        (made.nvml.folder / "libcuda.so.1").symlink_to(built())
        for gpu in made.nvml.gpus:
            gpu.mig = False
        made.write()
        return made

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to find the libraries."""
        return self.nvml.environment

    def only(self, count: int) -> None:
        """Keep the first GPUs."""
        self.nvml.gpus = self.nvml.gpus[:count]
        self.details, self.devices = self.details[:count], self.devices[:count]
        self.pairs = [x for x in self.pairs if (x.first, x.second) in _pairs(count)]
        self.cuda_pairs = [CudaPair(a, b, 1, 0) for a, b in permutations(range(count), 2)]
        self.write()

    def change(self, index: int, **values: object) -> None:
        """Change what NVML says of one GPU."""
        self.details[index] = replace(self.details[index], **values)  # type: ignore[arg-type]
        self.write()

    def cuda_calls(self) -> set[str]:
        """Functions of libcuda that were called."""
        path = self.nvml.folder / "cuda-calls"
        return set(path.read_text().split()) if path.exists() else set()

    def write(self) -> None:
        """Put the state in place."""
        self.nvml.more = self._details()
        self.nvml.write()
        (self.nvml.folder / "cuda").write_text("\n".join(self._cuda()) + "\n")

    def _details(self) -> list[str]:
        lines = [
            f"detail {x.index} {x.bar1_total} {x.replays} {_milliwatts(x.power_limit)} "
            f"{_milliwatts(x.power_default)} {x.ecc:d} {x.ecc_pending:d} {x.uncorrected} "
            f"{x.rows_pending:d} {x.rows_failed:d} {x.compute_mode} {x.clock_reasons}"
            for x in self.details
        ]
        lines += [
            f"pair {x.first} {x.second} {x.read} {x.write} {x.atomics} {x.ancestor}"
            for x in self.pairs
        ]
        if self.confidential is not None:
            lines.append(f"cc {self.confidential}")
        return [*lines, *self.more]

    def _cuda(self) -> list[str]:
        lines = [f"version {CUDA.version}", f"init {self.init}"]
        lines += [
            f"device {x.index} {x.multicast} {x.posix_handles} {x.gpudirect_vmm}"
            for x in self.devices
        ]
        lines += [
            f"pair {x.first} {x.second} {x.access} {x.native_atomics}" for x in self.cuda_pairs
        ]
        return [*lines, *([f"block {self.block}"] if self.block else [])]


def _pairs(count: int) -> set[tuple[int, int]]:
    return set(combinations(range(count), 2))


def _milliwatts(watts: float | None) -> int:
    return round((watts or 0) * 1000)


@functools.cache
def built() -> Path:
    """The compiled libcuda; skips the test where there is no C compiler."""
    folder = Path(tempfile.mkdtemp(prefix="opsctl-fake-driver-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = folder / "libcuda.so.1"
    fake_nvml.compile_library([str(HERE / "fake_cuda.c")], library)
    return library
