"""The patched all-reduce runs on eight imagined GPUs that all hold the same number.

A tensor is its length, its type and the one value that all its elements have, so that 256 MiB
cost nothing. A correct sum is the value times the number of GPUs.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

from opsctl.patching.diff import apply_strictly
from opsctl.patching.series import load
from tests.support.extracted import extract
from tests.support.released import RELEASES, released_or_skip

COMMUNICATORS = "sglang/srt/distributed/device_communicators"
SIZES = f"{COMMUNICATORS}/all_reduce_utils.py"
COMMUNICATOR = f"{COMMUNICATORS}/torch_symm_mem.py"
GROUP = "sglang/srt/distributed/parallel_state.py"
INKLING = "sglang/srt/models/inkling_common/kernels/comm.py"
PROCESS = (
    "all_reduce",
    "_all_reduce_in_place",
    "_all_reduce_out_place",
    "_resolve_outplace_all_reduce_method",
)
KIB, MIB = 1024, 1024**2
MULTICAST, NO_MULTICAST = 0x7F00, 0


def releases(first: int = 9, last: int = 99) -> list[str]:
    return [v for v in RELEASES["sglang"] if first <= int(v.split(".")[2]) <= last]


every_release = pytest.mark.parametrize("release", releases())
before_the_upstream_fix = pytest.mark.parametrize("release", releases(last=13))
after_the_upstream_fix = pytest.mark.parametrize("release", releases(first=14))
with_inkling = pytest.mark.parametrize("release", releases(first=16))
deferred_when_compiled = pytest.mark.parametrize("release", releases(first=16))
sm120_worlds = pytest.mark.parametrize("world", [2, 4, 8])
every_world = pytest.mark.parametrize("world", [2, 3, 4, 6, 8])


class DType(NamedTuple):
    name: str
    itemsize: int


BF16, FP32 = DType("bfloat16", 2), DType("float32", 4)
DEVICE = ("cuda", 0)


@dataclass
class Tensor:
    length: int
    dtype: DType = BF16
    cell: list[float] = field(default_factory=lambda: [1.0])
    shape: tuple[int, ...] = ()
    device: tuple[str, int] = DEVICE
    is_cpu = False
    is_cuda = True

    def __post_init__(self) -> None:
        self.shape = self.shape or (self.length,)

    def numel(self) -> int:
        return self.length

    def element_size(self) -> int:
        return int(self.dtype.itemsize)

    def dim(self) -> int:
        return len(self.shape)

    def view(self, *shape: Any) -> Tensor:
        flat = shape[0] if isinstance(shape[0], tuple) else shape
        wanted = (self.length,) if flat == (-1,) else flat
        return Tensor(self.length, self.dtype, self.cell, wanted)

    def __getitem__(self, part: slice) -> Tensor:
        return Tensor(min(part.stop, self.length), self.dtype, self.cell)

    def copy_(self, other: Tensor) -> None:
        if self.length != other.length:
            raise RuntimeError(f"{self.length} elements do not match {other.length}")
        self.cell[0] = other.cell[0]

    def clone(self) -> Tensor:
        return Tensor(self.length, self.dtype, [self.cell[0]], self.shape)

    @property
    def value(self) -> float:
        return self.cell[0]


def bf16(size: int) -> Tensor:
    return Tensor(size // 2, BF16)


class PyNccl:
    """NCCL as SGLang calls it while it records a CUDA graph."""

    def __init__(self, machine: Machine, recording: bool) -> None:
        self.machine = machine
        self.disabled = not recording

    def all_reduce(self, tensor: Tensor) -> None:
        self.machine.reduce("pynccl", tensor)

    def outplace_all_reduce(self, tensor: Tensor) -> Tensor:
        out = tensor.clone()
        self.machine.reduce("pynccl", out)
        return out

    @contextmanager
    def change_state(self, **_: Any) -> Iterator[None]:
        yield


@dataclass
class Machine:
    """GPUs of one kind, and what ran on them."""

    release: str
    capability: int = 12
    world: int = 8
    multicast: int = NO_MULTICAST
    patched: bool = True
    compiling: bool = False
    kernels: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    buffers: list[Tensor] = field(default_factory=list)

    def reduce(self, kernel: str, tensor: Tensor) -> None:
        self.kernels.append(kernel)
        tensor.cell[0] *= self.world

    def symmetric(self, kernel: str) -> Callable[[Tensor, str, str], None]:
        def run(tensor: Tensor, operation: str, group: str) -> None:
            assert (operation, group) == ("sum", "tp")
            assert tensor.cell is self.buffers[-1].cell, "not in symmetric memory"
            if kernel == "multimem":
                assert self.multicast, "multimem without multicast"
            self.reduce(kernel, tensor)

        return run

    def empty(self, length: int, device: Any, dtype: Any) -> Tensor:
        self.buffers.append(Tensor(length, dtype, [0.0]))
        return self.buffers[-1]

    def torch(self) -> SimpleNamespace:
        kernels = SimpleNamespace(
            multimem_all_reduce_=self.symmetric("multimem"),
            two_shot_all_reduce_=self.symmetric("two_shot"),
        )
        return SimpleNamespace(
            bfloat16=BF16,
            ops=SimpleNamespace(symm_mem=kernels),
            empty_like=lambda tensor: Tensor(tensor.length, tensor.dtype, [0.0], tensor.shape),
            compiler=SimpleNamespace(is_compiling=lambda: self.compiling),
            distributed=SimpleNamespace(
                all_reduce=lambda tensor, group: self.reduce("nccl", tensor)
            ),
            cuda=SimpleNamespace(
                set_device=lambda device: None,
                get_device_capability=lambda device: (self.capability, 0),
                is_current_stream_capturing=lambda: False,
            ),
        )

    def communicator(self) -> Any:
        """`--enable-torch-symm-mem`: the communicator of the tensor parallel group."""
        sizes = extract(
            text(self.release, SIZES, self.patched),
            "MiB",
            "TORCH_SYMM_MEM_ALL_REDUCE_MAX_SIZES",
            given={},
        )
        given = {
            "torch": self.torch(),
            "dist": SimpleNamespace(get_world_size=lambda group: self.world),
            "torch_symm_mem": SimpleNamespace(
                empty=self.empty,
                rendezvous=lambda buffer, group: SimpleNamespace(multicast_ptr=self.multicast),
            ),
            "torch_symm_mem_available": True,
            "logger": SimpleNamespace(warning=lambda *words: self.warnings.append(words[0])),
            "envs": defaults(),
            "get_exec": scattered_convolution_off,
            "TORCH_SYMM_MEM_ALL_REDUCE_MAX_SIZES": sizes["TORCH_SYMM_MEM_ALL_REDUCE_MAX_SIZES"],
        }
        source = text(self.release, COMMUNICATOR, self.patched)
        made = extract(source, "TorchSymmMemCommunicator", given=given)
        group = SimpleNamespace(group_name="tp")
        return made["TorchSymmMemCommunicator"](group, DEVICE)

    def group(self, recording: bool = False) -> Any:
        """The tensor parallel group, with no other fast all-reduce than symmetric memory."""
        group = process(self)()
        group.world_size = group.local_size = self.world
        group.unique_name = "tp"
        group.device_group = "nccl"
        group.torch_symm_mem_comm = self.communicator()
        group.pynccl_comm = PyNccl(self, recording)
        group.ca_comm = group.qr_comm = group.pymscclpp_comm = group.pcie_ipc_comm = None
        group.hpu_communicator = group.xpu_communicator = group.npu_communicator = None
        group.is_symmetric_memory_enabled = lambda: False
        group._can_use_flashinfer_allreduce = lambda tensor: False
        self.made = group
        return group


def defaults() -> SimpleNamespace:
    """SGLang's environment variables, none set: the custom all-reduce of Inkling is on."""
    on, off = SimpleNamespace(get=lambda: True), SimpleNamespace(get=bool, is_set=bool)
    return SimpleNamespace(
        SGLANG_OPT_USE_INKLING_CUSTOM_AR=on,
        SGLANG_OPT_USE_INKLING_FUSED_AR_SCONV=on,
        SGLANG_USE_1STAGE_ALLREDUCE=off,
        SGLANG_ENABLE_DETERMINISTIC_INFERENCE=off,
    )


def scattered_convolution_off() -> SimpleNamespace:
    return SimpleNamespace(comm=SimpleNamespace(enable_scattered_sconv=False))


@pytest.fixture(autouse=True)
def _imported_while_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.5.16 imports the server's arguments inside the communicator."""
    for name in ("sglang", "sglang.srt", "sglang.srt.runtime_context"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    arguments = SimpleNamespace(enable_scattered_sconv=False)
    sys.modules["sglang.srt.runtime_context"].get_server_args = lambda: arguments


@functools.cache
def text(release: str, path: str, patched: bool) -> str:
    source = (released_or_skip("sglang", release) / path).read_bytes()
    file = load().patch("torch-symm-mem").file_for(release)
    assert file is not None
    for change in file.changes:
        if patched and change.path == path:
            source = apply_strictly(source, change)
    return source.decode()


@functools.cache
def methods(release: str, patched: bool) -> dict[str, Any]:
    source = text(release, GROUP, patched)
    names = {f"GroupCoordinator.{name}": name for name in PROCESS if f"def {name}(" in source}
    made = extract(source, *names, given={})
    return {name: made[dotted] for dotted, name in names.items()}


def process(machine: Machine) -> type:
    """GroupCoordinator with the methods that lead to an all-reduce, and no others."""
    given = {
        "torch": machine.torch(),
        "envs": defaults(),
        "is_hip": lambda: False,
        "_CA_V2_MULTINODE": False,
        "is_in_piecewise_cuda_graph": lambda: False,
        "is_in_tc_piecewise_cuda_graph": lambda: False,
        "get_current_device_stream_fast": lambda: None,
        "outplace_all_reduce": lambda tensor, group_name, outplace_all_reduce_method: (
            machine.made._all_reduce_out_place(tensor, outplace_all_reduce_method)
        ),
        "inplace_all_reduce": lambda tensor, group_name: machine.made._all_reduce_in_place(tensor),
    }
    made = methods(machine.release, machine.patched).items()
    bound = {name: FunctionType(f.__code__, given, name, f.__defaults__) for name, f in made}
    return type("GroupCoordinator", (), bound)


# SM120


@every_release
@sm120_worlds
def test_small_tensors_take_two_shot_without_multicast(release: str, world: int) -> None:
    machine = Machine(release, world=world)

    result = machine.group().all_reduce(bf16(64 * KIB))

    assert machine.kernels == ["two_shot"]
    assert result.value == world
    assert result.length == 32 * KIB
    assert machine.warnings == []


@every_release
@sm120_worlds
def test_they_do_so_in_a_recorded_graph_too(release: str, world: int) -> None:
    machine = Machine(release, world=world)

    result = machine.group(recording=True).all_reduce(bf16(64 * KIB))

    assert (machine.kernels, result.value) == (["two_shot"], world)


@deferred_when_compiled
@pytest.mark.parametrize(
    ("size", "kernel"), [(64 * KIB, "two_shot"), (2 * MIB, "pynccl")], ids=["small", "large"]
)
def test_and_under_torch_compile(release: str, size: int, kernel: str) -> None:
    machine = Machine(release, compiling=True)

    result = machine.group(recording=True).all_reduce(bf16(size))

    assert (machine.kernels, result.value) == ([kernel], 8)


@every_release
@sm120_worlds
def test_multimem_is_never_chosen_even_where_multicast_is_there(release: str, world: int) -> None:
    machine = Machine(release, world=world, multicast=MULTICAST)

    machine.group().all_reduce(bf16(64 * KIB))

    assert machine.kernels == ["two_shot"]


@every_release
@sm120_worlds
@pytest.mark.parametrize("size", [MIB, 8 * MIB, 112 * MIB])
def test_a_prefill_stays_on_nccl(release: str, world: int, size: int) -> None:
    machine = Machine(release, world=world)

    result = machine.group().all_reduce(bf16(size))

    assert (machine.kernels, result.value) == (["nccl"], world)


@every_release
@sm120_worlds
def test_the_symmetric_buffer_is_no_larger_than_a_mebibyte(release: str, world: int) -> None:
    machine = Machine(release, world=world)

    communicator = machine.communicator()

    assert communicator.max_size <= MIB
    assert [buffer.length * 2 for buffer in machine.buffers] == [communicator.max_size]


@every_release
def test_fp32_stays_on_nccl_and_is_reduced(release: str) -> None:
    machine = Machine(release)

    result = machine.group().all_reduce(Tensor(16, FP32))

    assert (machine.kernels, result.value) == (["nccl"], 8)


@every_release
@pytest.mark.parametrize("world", [3, 6])
def test_other_numbers_of_gpus_are_declined_with_a_warning(release: str, world: int) -> None:
    machine = Machine(release, world=world)

    assert machine.communicator().disabled
    assert len(machine.warnings) == 1
    assert "World size" in machine.warnings[0]


@before_the_upstream_fix
def test_unpatched_sm120_stops_the_start_before_0_5_14(release: str) -> None:
    with pytest.raises(KeyError, match="12"):
        Machine(release, patched=False).communicator()


@after_the_upstream_fix
def test_unpatched_sm120_is_switched_off_from_0_5_14_on(release: str) -> None:
    machine = Machine(release, patched=False)

    assert machine.communicator().disabled
    assert "not supported" in machine.warnings[0]


# Other architectures


@every_release
@every_world
def test_other_architectures_decide_as_before(release: str, world: int) -> None:
    kinds = [(9, MULTICAST), (9, NO_MULTICAST), (10, MULTICAST), (10, NO_MULTICAST)]
    before, after = (
        [decisions(Machine(release, kind, world, multicast, patched)) for kind, multicast in kinds]
        for patched in (False, True)
    )

    assert after == before


def decisions(machine: Machine) -> list[Any]:
    """What a machine does with tensors of several sizes, in the order of the sizes."""
    communicator = machine.communicator()
    state = [communicator.disabled, getattr(communicator, "max_size", 0), machine.warnings]
    state.append([buffer.length for buffer in machine.buffers])
    if communicator.disabled:
        return state
    group = machine.group()
    for tensor in (bf16(4), bf16(MIB), bf16(32 * MIB), Tensor(3, BF16)):
        fits = communicator.should_torch_symm_mem_allreduce(tensor)
        state.append([fits, group.all_reduce(tensor).value if fits else None])
    return [*state, machine.kernels]


@every_release
@pytest.mark.parametrize("world", [4, 8])
def test_sm90_still_takes_multimem_and_needs_multicast_for_it(release: str, world: int) -> None:
    with_it, without = (Machine(release, 9, world, x) for x in (MULTICAST, NO_MULTICAST))

    with_it.group().all_reduce(bf16(64 * KIB))
    without.group().all_reduce(bf16(64 * KIB))

    assert (with_it.kernels, without.kernels) == (["multimem"], ["nccl"])
    assert "multicast" in without.warnings[0]


# The sum that was dropped


@before_the_upstream_fix
@pytest.mark.parametrize("tensor", [Tensor(16, FP32), Tensor(3, BF16)], ids=["fp32", "odd"])
def test_unpatched_the_sum_of_what_is_ineligible_is_dropped(release: str, tensor: Tensor) -> None:
    unpatched = Machine(release, 9, multicast=MULTICAST, patched=False)
    patched = Machine(release, 9, multicast=MULTICAST)

    dropped = unpatched.group().all_reduce(tensor.clone())
    kept = patched.group().all_reduce(tensor.clone())

    assert (dropped.value, unpatched.kernels) == (1, ["multimem"])
    assert (kept.value, patched.kernels) == (8, ["nccl"])


@before_the_upstream_fix
def test_unpatched_a_tensor_larger_than_the_buffer_stops_the_server(release: str) -> None:
    unpatched = Machine(release, 9, multicast=MULTICAST, patched=False)
    patched = Machine(release, 9, multicast=MULTICAST)

    with pytest.raises(RuntimeError, match="do not match"):
        unpatched.group().all_reduce(bf16(256 * MIB))
    assert patched.group().all_reduce(bf16(256 * MIB)).value == 8


@every_release
def test_an_eligible_tensor_is_reduced_in_place_as_well(release: str) -> None:
    machine = Machine(release)
    tensor = bf16(64 * KIB)

    machine.group()._all_reduce_in_place(tensor)

    assert (tensor.value, machine.kernels) == (8, ["two_shot"])


# Inkling shares the buffer with kernels that need multicast


def inkling(machine: Machine, name: str) -> tuple[Any, Any]:
    """A function of Inkling's communication module, and the group that it works on."""
    group = machine.group()
    given = {
        "torch": machine.torch(),
        "envs": defaults(),
        "is_cuda": lambda: True,
        "get_exec": scattered_convolution_off,
        "get_server_args": lambda: SimpleNamespace(enable_scattered_sconv=False),
        "_INKLING_AR_CACHE": {},
    }
    source = text(machine.release, INKLING, machine.patched)
    names = {"_INKLING_AR_WORLD_SIZES", "_get_inkling_ar_resources", name}
    return extract(source, *names, given=given)[name], group


@with_inkling
@sm120_worlds
def test_inkling_reduces_as_any_other_model(release: str, world: int) -> None:
    machine = Machine(release, world=world)
    reduce, group = inkling(machine, "symm_mem_all_reduce")

    small = reduce(bf16(64 * KIB), group)
    large = reduce(bf16(8 * MIB), group)

    assert (small.value, large.value) == (world, world)
    assert machine.kernels == ["two_shot", "nccl"]


@with_inkling
@sm120_worlds
def test_inkling_gets_no_symmetric_memory_of_its_own(release: str, world: int) -> None:
    machine = Machine(release, world=world)
    buffer, group = inkling(machine, "get_ar_buffer")
    resources, _ = inkling(machine, "_get_inkling_ar_resources")
    shared, _ = inkling(machine, "_symm_mem_comm")

    assert buffer(group, 1, 1024, BF16) is None
    assert resources(group.torch_symm_mem_comm) is None
    assert shared(group, bf16(2 * KIB), KIB) is None


@with_inkling
def test_inkling_keeps_its_buffer_on_sm100(release: str) -> None:
    machine = Machine(release, 10, 8, MULTICAST)
    shared, group = inkling(machine, "_symm_mem_comm")

    assert group.torch_symm_mem_comm.max_size == 512 * MIB
    assert shared(group, bf16(64 * MIB), 32 * MIB) is group.torch_symm_mem_comm
