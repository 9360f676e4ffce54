"""The fake NVML library on a test host: what its programs see of GPUs."""

from __future__ import annotations

from tests.support.fake_nvml import FakeNvml, built
from tests.support.hosts.host import Host

FOLDER = "/usr/local/lib/opsctl-stand-in"
"""Where the library is on the host; ldconfig lists it, so it needs no variable to be found."""


def gpu_files(fake: FakeNvml) -> dict[str, bytes]:
    """Return what `systemd_host(files=...)` takes so that a host has these GPUs.

    Skips the test where there is no C compiler. A process that `fake` lists is looked up where it
    is set, on this machine: for one on the host give `fixed=True`.
    """
    return {
        f"{FOLDER}/libnvidia-ml.so.1": built().read_bytes(),
        f"{FOLDER}/state": _state(fake),
        "/etc/ld.so.conf.d/000-opsctl-stand-in.conf": f"{FOLDER}\n".encode(),
    }


def show_gpus(host: Host, fake: FakeNvml) -> None:
    """Let a running host see what `fake` says now, in one step."""
    fake.write()
    host.write(f"{FOLDER}/state.new", _state(fake))
    host.run(["mv", f"{FOLDER}/state.new", f"{FOLDER}/state"])


def _state(fake: FakeNvml) -> bytes:
    return (fake.folder / "state").read_bytes()
