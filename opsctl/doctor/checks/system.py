"""The host around the GPUs: limits, memory, kernel settings. Pure."""

from __future__ import annotations

from opsctl.doctor.checks.links import active_choice
from opsctl.doctor.host import Facts, Limits
from opsctl.doctor.model import Verdict, check, fail, ok, unknown, warn

NUMA_BALANCING = "/proc/sys/kernel/numa_balancing"
SWAPPINESS = "/proc/sys/vm/swappiness"
PTRACE_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
SELF_STATUS = "/proc/self/status"
THP = "/sys/kernel/mm/transparent_hugepage/enabled"
LEAST_FILES = 65535
LEAST_SHM = 8 << 30
USELESS_SHM = 1 << 30
_TUNING = "opsctl provision --tags gpu_tuning"
_LOW_SWAPPINESS = 10


def gib(size: int) -> str:
    """Write bytes in GiB."""
    return f"{size / (1 << 30):.1f} GiB"


@check(
    "limits",
    "Locked memory and open files are not limited",
    severity="fail",
    reads=("limits",),
    wanted=f"memlock unlimited, nofile {LEAST_FILES} or more",
    why="pinned buffers of NCCL and CUDA count as locked; ranks and clients use many descriptors",
    source="/proc/PID/limits of a running engine, else of this process",
    fix="serve from the systemd unit (`opsctl unit install`), which sets both",
)
def limits(facts: Facts) -> Verdict:
    """Judge the limits of every engine that runs, or of the caller."""
    if not facts.limits:
        return unknown("no limits could be read")
    low = [x for x in facts.limits if x.memlock is not None or not _enough(x.nofile)]
    value = "; ".join(_limits(x) for x in low or facts.limits)
    if not low:
        return ok(value)
    if all(x.of == "this process" for x in low):
        return warn(value, why="these are limits of this shell; the unit sets its own")
    return fail(value)


def _enough(nofile: int | None) -> bool:
    return nofile is None or nofile >= LEAST_FILES


def _limits(found: Limits) -> str:
    memlock = "unlimited" if found.memlock is None else f"{found.memlock >> 10} KiB"
    nofile = "unlimited" if found.nofile is None else found.nofile
    return f"{found.of}: memlock {memlock}, nofile {nofile}"


@check(
    "shm",
    "Shared memory is large enough",
    severity="fail",
    reads=("shm",),
    wanted="8 GiB or more",
    why="NCCL and the ranks exchange data there; containers often have 64 MiB",
    source="statvfs of /dev/shm",
    fix=f"{_TUNING}  # gpu_tuning.shm_size; in a container --shm-size or --ipc=host",
)
def shm(facts: Facts) -> Verdict:
    """Judge its size, and what is free of it."""
    size, free = facts.shm.size, facts.shm.free
    if size is None or free is None:
        return fail("there is no /dev/shm")
    value = f"{gib(size)}, {gib(free)} free"
    if min(size, free) < USELESS_SHM:
        return fail(value)
    return ok(value) if min(size, free) >= LEAST_SHM else warn(value)


@check(
    "memory",
    "The page cache can hold the checkpoint",
    severity="warn",
    reads=("memory", "models"),
    wanted="memory for the largest checkpoint beside what runs",
    why="a start that reads from the page cache takes seconds instead of minutes",
    source="/proc/meminfo, memory.max of the cgroup",
    fix="manual: more memory, or a smaller limit on what else runs here",
)
def memory(facts: Facts) -> Verdict:
    """Compare what is available, within the cgroup's limit, with the largest checkpoint."""
    found = facts.memory
    most = min(found.available, found.cgroup_limit or found.available)
    value = f"{gib(most)} available of {gib(found.total)}"
    if not found.total:
        return unknown("/proc/meminfo cannot be read")
    sizes = [size for model in facts.models if (size := model.expected or model.bytes)]
    if not sizes:
        return unknown("no profile names a checkpoint by its folder", value)
    largest = max(sizes)
    text = f"{value}, checkpoint {gib(largest)}"
    return ok(text) if most > largest else warn(text)


@check(
    "hugepages",
    "Static huge pages leave the memory alone",
    severity="warn",
    reads=("memory", "texts"),
    wanted="less than a quarter of memory",
    why="they cannot be used for the page cache",
    source="/proc/meminfo HugePages_Total; transparent ones are only shown",
    fix="sysctl vm.nr_hugepages=0  # unless something else needs them",
)
def hugepages(facts: Facts) -> Verdict:
    """Judge the share of memory that is set aside."""
    if not facts.memory.total:
        return unknown("/proc/meminfo cannot be read")
    transparent = active_choice(facts.text(THP) or "") or "unknown"
    value = f"{gib(facts.memory.huge)} static, transparent: {transparent}"
    return warn(value) if facts.memory.huge * 4 > facts.memory.total else ok(value)


@check(
    "numa-balancing",
    "The kernel does not move pages between nodes",
    severity="warn",
    reads=("texts",),
    wanted="0",
    why="its page faults interrupt the ranks' host threads",
    source=NUMA_BALANCING,
    fix=f"{_TUNING}  # gpu_tuning.sysctl",
)
def numa_balancing(facts: Facts) -> Verdict:
    """Read automatic NUMA balancing."""
    value = facts.text(NUMA_BALANCING)
    if value is None:
        return unknown(f"{NUMA_BALANCING} is not there: a kernel without NUMA balancing")
    return ok(value) if value == "0" else warn(value)


@check(
    "swappiness",
    "The kernel keeps programs in memory",
    severity="warn",
    reads=("texts",),
    wanted=f"{_LOW_SWAPPINESS} or less",
    why="reading a large checkpoint pushes idle parts of the engine to the swap",
    source=SWAPPINESS,
    fix=f"{_TUNING}  # gpu_tuning.sysctl",
)
def swappiness(facts: Facts) -> Verdict:
    """Read vm.swappiness."""
    value = facts.text(SWAPPINESS)
    if value is None or not value.isdecimal():
        return unknown(f"{SWAPPINESS} cannot be read")
    return ok(value) if int(value) <= _LOW_SWAPPINESS else warn(value)


@check(
    "cpu-governor",
    "The CPUs run at full speed",
    severity="warn",
    reads=("governors",),
    wanted="performance on all",
    why="each decode step starts many kernels from one host thread",
    source="/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
    fix="cpupower frequency-set -g performance",
)
def cpu_governor(facts: Facts) -> Verdict:
    """Read the frequency governors."""
    if not facts.governors:
        return unknown("the kernel shows no frequency governor, as in most virtual machines")
    value = ", ".join(f"{count}x {name}" for name, count in sorted(facts.governors.items()))
    return ok(value) if set(facts.governors) == {"performance"} else warn(value)


@check(
    "pidfd",
    "Ranks may take each other's descriptors",
    severity="warn",
    reads=("profiles", "texts"),
    wanted="ptrace_scope 0 or 1 and no seccomp filter, with torch symmetric memory",
    why="it hands memory over with pidfd_getfd, which asks for the right to trace",
    source="https://github.com/pytorch/pytorch/issues/129408",
    fix="sysctl kernel.yama.ptrace_scope=1; in a container --cap-add SYS_PTRACE",
)
def pidfd(facts: Facts) -> Verdict:
    """Judge it only where a profile uses torch symmetric memory."""
    users = [profile.name for profile in facts.profiles if profile.torch_symm_mem]
    if not users:
        return ok("not needed: no profile uses torch symmetric memory")
    status = facts.text(SELF_STATUS)
    if status is None:
        return unknown(f"{SELF_STATUS} cannot be read")
    scope = facts.text(PTRACE_SCOPE) or "0"  # a kernel without Yama has no such limit
    filtered = "Seccomp:\t0" not in status
    value = f"ptrace_scope {scope}, seccomp {'on' if filtered else 'off'}"
    return warn(value) if filtered or scope not in {"0", "1"} else ok(value)


CHECKS = (
    limits,
    shm,
    memory,
    hugepages,
    numa_balancing,
    swappiness,
    cpu_governor,
    pidfd,
)
