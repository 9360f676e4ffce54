"""What names of programs hint at. A name alone proves nothing: anybody can carry any name."""

from __future__ import annotations

import re

from opsctl.gpu.model import HostProcess

_PYTHON = r"(\S*/)?(python|pypy)[\d.]*( -[bBdEhiIOPqsSuvx]+| -[WX] ?\S+)*"

# SGLang's own list (sglang/cli/killall.py), each anchored to where the words really stand, so
# that `grep sglang serve` or a test runner below a directory of that name is not taken for it.
_SGLANG_CHILD = re.compile(r"\[?(sglang|sgl_diffusion)::\w*")
_SGLANG_MAIN = re.compile(
    rf"{_PYTHON} -m sglang\.(launch_server|bench|data_parallel|srt)\S*( |$)"
    rf"|({_PYTHON} )?(\S*/)?sglang serve( |$)"
)
_OPSCTL = re.compile(rf"({_PYTHON} )?(\S*/)?opsctl( |$)|{_PYTHON} -m opsctl( |$)")
_HELPER = re.compile(rf"{_PYTHON} -m opsctl\.gpu\.")
_PYTHON_PROGRAM = re.compile(rf"{_PYTHON}( |$)")

_DRIVER = re.compile(r"(uvm_|nv_|nvidia|os_acquire_|os_delay|rm_)|.*\[nvidia")

# The kernel cuts names to 15 characters (comm), so these are beginnings.
_PROTECTED = {
    "nvidia-cuda-mps": "an MPS server or its control; ending it can break every client",
    "nvidia-persiste": "the persistence daemon; GB202 boards can wedge without it",
    "nv-hostengine": "DCGM's host engine",
    "dcgm": "monitoring (DCGM)",
    "nv-fabricmanage": "the fabric manager",
    "nvidia-smi": "monitoring",
    "nvidia_gpu_expo": "monitoring",
    "nvtop": "monitoring",
    "nvitop": "monitoring",
    "gpustat": "monitoring",
    "Xorg": "the desktop",
    "Xwayland": "the desktop",
    "gnome-shell": "the desktop",
    "kwin_": "the desktop",
    "plasmashell": "the desktop",
    "gdm": "the desktop",
    "sddm": "the desktop",
    "lightdm": "the desktop",
    "weston": "the desktop",
    "sway": "the desktop",
}

# Processes that adopt orphans. Container inits both start and adopt.
_INITS = frozenset({"systemd", "init"})
_CONTAINER_INITS = frozenset({"tini", "dumb-init", "docker-init", "catatonit", "s6-svscan"})


def is_sglang(process: HostProcess) -> bool:
    """Whether the process carries a name of SGLang's."""
    return is_sglang_child(process) or bool(_SGLANG_MAIN.match(process.title))


def is_sglang_child(process: HostProcess) -> bool:
    """Whether it carries a title that only a child of an SGLang server has."""
    return bool(_SGLANG_CHILD.match(process.title) or _SGLANG_CHILD.match(process.comm))


def is_opsctl(process: HostProcess) -> bool:
    """Whether it looks like an opsctl, which supervises what it started."""
    return bool(_OPSCTL.match(process.title)) and process.state not in "ZX"


def is_python(process: HostProcess) -> bool:
    """Whether it is a Python program, which may have started engines by SGLang's library."""
    return bool(_PYTHON_PROGRAM.match(process.title))


def is_init(process: HostProcess) -> bool:
    """Whether it adopts orphans by trade: process 1, or a user's systemd."""
    return process.pid == 1 or process.comm in _INITS


def is_container_init(process: HostProcess) -> bool:
    """Whether it may have started its children itself, though it is process 1."""
    return process.comm in _CONTAINER_INITS or is_python(process)


def is_helper(process: HostProcess) -> bool:
    """Whether it is a process that an opsctl reads the driver with."""
    return bool(_HELPER.match(process.title))


def protected(process: HostProcess) -> str | None:
    """What a process is that must never be ended by a reaper; None for all others."""
    if is_helper(process):
        return "a reader of the driver that some opsctl started"
    program = process.title.partition(" ")[0].rpartition("/")[2]
    for beginning, what in _PROTECTED.items():
        if process.comm.startswith(beginning) or program.startswith(beginning):
            return what
    return None


def unit(process: HostProcess) -> str | None:
    """The systemd service that a process belongs to, user managers aside."""
    for part in reversed((process.cgroup or "").split("/")):
        if part.endswith(".service") and not part.startswith("user@"):
            return part
    return None


def in_driver(function: str) -> bool:
    """Whether a kernel function is one of NVIDIA's driver."""
    return bool(_DRIVER.match(function))
