from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.system import procfs
from opsctl.system.cgroup import Cgroup, own_directory, writable_parent

HYBRID = (
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
)
UNIFIED = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
BRANCH = "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n"
SPACES = "30 23 0:26 / /mnt/my\\040groups rw - cgroup2 cgroup rw\n"


@pytest.mark.parametrize(
    ("mountinfo", "own", "expected"),
    [
        (HYBRID, "/", "/sys/fs/cgroup/unified"),
        (HYBRID, "/a.slice/b.service", "/sys/fs/cgroup/unified/a.slice/b.service"),
        (UNIFIED, "/system.slice/opsctl.service", "/sys/fs/cgroup/system.slice/opsctl.service"),
        (BRANCH, "/docker/abc/x", "/sys/fs/cgroup/x"),
        (BRANCH, "/docker/abc", "/sys/fs/cgroup"),
        (BRANCH, "/docker/abcd", None),
        (SPACES, "/x", "/mnt/my groups/x"),
        (UNIFIED, "/../outside", None),
        (UNIFIED, None, None),
        (HYBRID.replace("cgroup2", "cgroup"), "/", None),
        ("", "/", None),
        ("garbage\n - \n" + UNIFIED, "/", "/sys/fs/cgroup"),
    ],
)
def test_the_own_group_is_found_through_mountinfo(
    mountinfo: str, own: str | None, expected: str | None
) -> None:
    assert own_directory(mountinfo, own) == (Path(expected) if expected else None)


@pytest.fixture
def group() -> Iterator[Cgroup]:
    parent = writable_parent()
    if parent is None:
        pytest.skip("no cgroup2 can be written here")
    made = parent.create(f"opsctl-unit-{os.getpid()}")
    yield made
    made.kill()
    made.remove()


def test_a_group_holds_kills_and_goes_with_its_subgroups(group: Cgroup) -> None:
    inner = group.create("inner")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        (inner.path / "cgroup.procs").write_text(str(child.pid))
        assert group.pids() == {child.pid}
        own = procfs.cgroup_of(child.pid)
        assert own is not None
        assert own.endswith("/inner")
        assert not group.remove()
        assert group.kill()
        assert child.wait(5) == -9
    finally:
        child.kill()
        child.communicate()
    assert group.pids() == frozenset()
    assert group.remove()
    assert not group.path.exists()
    assert group.remove()  # a second time is fine


def test_only_old_empty_groups_of_the_prefix_are_swept(group: Cgroup) -> None:
    for name in ("opsctl-old", "opsctl-new", "opsctl-full", "other"):
        group.create(name)
        if name != "opsctl-new":
            os.utime(group.path / name, (0, 0))
    (group.path / "opsctl-full" / "inner").mkdir()
    os.utime(group.path / "opsctl-full", (0, 0))
    group.sweep("opsctl-", older_than=60)
    left = {path.name for path in group.path.iterdir() if path.is_dir()}
    assert left == {"opsctl-new", "opsctl-full", "other"}


def test_a_group_that_does_not_exist_holds_nothing(tmp_path: Path) -> None:
    gone = Cgroup(tmp_path / "gone")
    assert gone.pids() == frozenset()
    assert not gone.kill()
    assert gone.remove()
    with pytest.raises(OSError, match="gone"):
        gone.create("child")
