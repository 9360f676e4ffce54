"""What is read of /proc, /sys and programs: right when it is well formed, calm when it is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from opsctl.doctor.checks.driver import kernel_module_kind, major
from opsctl.doctor.checks.links import active_choice
from opsctl.doctor.checks.peers import registry_dwords
from opsctl.doctor.checks.stack import cuda_tag, public
from opsctl.doctor.host import Limits
from opsctl.doctor.read_host import parse_limits, parse_meminfo, type_of_mount
from opsctl.doctor.read_pci import acs_control, total
from opsctl.doctor.read_programs import parse_release
from opsctl.doctor.read_serving import expected_bytes
from opsctl.doctor.read_stack import packages, parse_torch_cuda
from tests.support.doctor.healthy import CLOSED, OPEN

PARSERS: tuple[Callable[[str], object], ...] = (
    lambda text: parse_limits(text, "x"),
    parse_meminfo,
    lambda text: type_of_mount(text, "/a/b"),
    total,
    parse_release,
    parse_torch_cuda,
    registry_dwords,
    active_choice,
    kernel_module_kind,
    major,
    cuda_tag,
    public,
    lambda text: list(packages(text.splitlines())),
)


@pytest.mark.parametrize("number", range(len(PARSERS)))
@given(text=st.text() | st.text("0123456789 :=./\n[]-kBunlimted\"'", max_size=200))
def test_no_text_makes_a_parser_raise(number: int, text: str) -> None:
    PARSERS[number](text)


LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max open files            {nofile:<20} 1048576              files
Max locked memory         {memlock:<20} unlimited            bytes
"""
COUNT = st.none() | st.integers(0, 2**63 - 1)


@given(memlock=COUNT, nofile=COUNT)
def test_limits_are_the_soft_ones(memlock: int | None, nofile: int | None) -> None:
    words = ["unlimited" if x is None else x for x in (memlock, nofile)]
    text = LIMITS.format(memlock=words[0], nofile=words[1])
    assert parse_limits(text, "engine") == Limits("engine", memlock, nofile)


def test_limits_without_one_of_the_lines_are_none() -> None:
    assert parse_limits("Max open files            1024                 4096  files\n", "x") is None


@given(
    st.dictionaries(st.from_regex(r"[A-Z][A-Za-z]{2,12}", fullmatch=True), st.integers(0, 2**50))
)
def test_memory_is_in_bytes(values: dict[str, int]) -> None:
    text = "".join(f"{name}:       {value} kB\n" for name, value in values.items())
    assert parse_meminfo(text) == {name: value * 1024 for name, value in values.items()}


def test_counts_of_pages_have_no_unit() -> None:
    text = "HugePages_Total:      12\nHugepagesize:       2048 kB\nActive(anon):  1 kB\n"
    assert parse_meminfo(text) == {
        "HugePages_Total": 12,
        "Hugepagesize": 2048 * 1024,
        "Active(anon)": 1024,
    }


MOUNTS = r"""
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:27 / /dev/shm rw - tmpfs tmpfs rw
40 22 0:50 /export /models rw,noatime shared:9 master:2 - nfs4 nas:/export rw
41 22 0:51 / /my\040models rw - xfs /dev/nvme0n1 rw
50 40 0:60 / /models/local rw - ext4 /dev/nvme1n1 rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/opt/x", "ext4"),
        ("/models", "nfs4"),
        ("/models/kimi", "nfs4"),
        ("/models2", "ext4"),
        ("/models/local/kimi", "ext4"),
        ("/my models/kimi", "xfs"),
        ("/dev/shm", "tmpfs"),
    ],
)
def test_the_innermost_mount_gives_the_file_system(path: str, kind: str) -> None:
    assert type_of_mount(MOUNTS, path) == kind


def test_a_later_mount_hides_an_earlier_one_at_the_same_place() -> None:
    text = MOUNTS + "60 22 0:61 / /models rw - btrfs /dev/sdb rw\n"
    assert type_of_mount(text, "/models/kimi") == "btrfs"


def config_space(capabilities: list[tuple[int, int, int]]) -> bytes:
    """A configuration space with extended capabilities: id, place, ACS control."""
    content = bytearray(4096)
    for number, (kind, place, control) in enumerate(capabilities):
        after = capabilities[number + 1][1] if number + 1 < len(capabilities) else 0
        content[place : place + 4] = (kind | 1 << 16 | after << 20).to_bytes(4, "little")
        content[place + 6 : place + 8] = control.to_bytes(2, "little")
    return bytes(content)


@given(
    places=st.lists(st.integers(0x44, 0x3FC), unique=True, max_size=6),
    others=st.lists(st.integers(1, 0x30).filter(lambda x: x != 0xD), min_size=7, max_size=7),
    at=st.integers(0, 6),
    control=st.integers(0, 0xFFFF),
)
def test_acs_is_found_anywhere_in_the_list(
    places: list[int], others: list[int], at: int, control: int
) -> None:
    where = [0x100, *(place * 4 for place in places if place * 4 >= 0x110)]
    where = [x for i, x in enumerate(where) if all(abs(x - y) >= 8 for y in where[:i])]
    kinds = [0xD if i == at % len(where) else others[i] for i in range(len(where))]
    space = config_space([(kind, x, control) for kind, x in zip(kinds, where, strict=True)])
    assert acs_control(space) == control


@given(st.binary(max_size=512) | st.binary(min_size=4096, max_size=4096))
@example(b"\xff" * 4096)
@example(b"")
def test_any_configuration_space_is_read_to_an_end(content: bytes) -> None:
    acs_control(content)


def test_a_list_in_circles_ends_without_acs() -> None:
    assert acs_control(config_space([(1, 0x100, 0), (2, 0x200, 0), (3, 0x100, 0)])) is None


def test_what_a_plain_user_may_read_holds_no_acs() -> None:
    assert acs_control(config_space([(0xD, 0x100, 0x1D)])[:64]) is None


AER = "RxErr 2\nBadTLP 0\nBadDLLP 5\nTOTAL_ERR_COR 7\n"


def test_errors_are_counted_by_their_total() -> None:
    assert total(AER) == 7
    assert total("Undefined 0\nTOTAL_ERR_FATAL 0\n") == 0
    assert total(None) is None
    assert total("BadTLP 1\n") is None


NVCC = """\
nvcc: NVIDIA (R) Cuda compiler driver
Cuda compilation tools, release 13.0, V13.0.88
Build cuda_13.0.r13.0/compiler.36424714_0
"""


@given(st.integers(0, 99), st.integers(0, 99))
def test_the_release_of_a_compiler_is_read(first: int, second: int) -> None:
    text = NVCC.replace("release 13.0", f"release {first}.{second}")
    assert parse_release(text) == (first, second)
    assert parse_release(text.replace("release", "from")) is None


@pytest.mark.parametrize(
    ("text", "cuda"),
    [
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", "13.0"),
        ('__version__ = "2.9.1"\ncuda = "12.8"\n', "12.8"),
        ("cuda: Optional[str] = None\n", ""),
        ("hip = '6.3'\n", None),
        ("", None),
    ],
)
def test_torch_tells_its_cuda(text: str, cuda: str | None) -> None:
    assert parse_torch_cuda(text) == cuda


def test_packages_are_named_as_pip_compares_them() -> None:
    names = [
        "flashinfer_jit_cache-0.7.2+cu130.dist-info",
        "nvidia_nccl_cu13-2.28.3.dist-info",
        "PyYAML-6.0.2.dist-info",
        "torch",
        "-.dist-info",
    ]
    assert dict(packages(names)) == {
        "flashinfer-jit-cache": "0.7.2+cu130",
        "nvidia-nccl-cu13": "2.28.3",
        "pyyaml": "6.0.2",
    }


WORD = st.from_regex(r"[A-Za-z][A-Za-z0-9]{0,12}", fullmatch=True)


@given(st.dictionaries(WORD, st.from_regex(r"0x[0-9a-f]{1,4}|[0-9]{1,4}", fullmatch=True)))
def test_registry_keys_of_the_driver_are_read(keys: dict[str, str]) -> None:
    value = ";".join(f"{key}={number}" for key, number in keys.items())
    text = f'ResmanDebugLevel: 4294967295\nRegistryDwords: "{value}"\nRmMsg: ""\n'
    assert registry_dwords(text) == keys
    assert registry_dwords('RegistryDwordsPerDevice: "a=1"\n') == {}


def test_the_kind_of_the_kernel_module_is_read() -> None:
    assert kernel_module_kind(OPEN) == "open"
    assert kernel_module_kind(CLOSED) == "closed"
    assert kernel_module_kind("NVRM version: something else\n") is None


def test_the_active_policy_is_the_one_in_brackets() -> None:
    assert active_choice("default [performance] powersave\n") == "performance"
    assert active_choice("default performance") is None


def test_the_index_of_a_checkpoint_tells_its_size() -> None:
    assert expected_bytes({"metadata": {"total_size": 42}}) == 42
    for odd in (None, [], {}, {"metadata": 1}, {"metadata": {"total_size": "9"}}):
        assert expected_bytes(odd) is None
