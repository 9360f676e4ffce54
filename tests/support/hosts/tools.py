"""Programs and rights that a test host needs, and how to get them or say what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from filelock import FileLock

from tests.support.sglang_cpu.environment import UnavailableError, cache_folder

PACKAGES = {
    "systemd-nspawn": "systemd-container",
    "mmdebstrap": "mmdebstrap",
    "apt-ftparchive": "apt-utils",
    "dpkg-deb": "dpkg",
    "gpg": "gnupg",
    "ssh-keygen": "openssh-client",
    "ip": "iproute2",
    "nsenter": "util-linux",
}
"""Programs by name, and the Debian package that each comes from."""
INSTALL_TIMEOUT = 300.0


def require(programs: Iterable[str]) -> None:
    """Install what is missing of `programs`; raises UnavailableError where that cannot be done."""
    if not _missing(programs):
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise UnavailableError(
            f"not installed, and no apt as root: {', '.join(_missing(programs))}"
        )
    with FileLock(cache_root() / "hosts-tools.lock"):
        wanted = sorted({PACKAGES[name] for name in _missing(programs)})
        if wanted:
            install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *wanted]
            try:
                checked(install, timeout=INSTALL_TIMEOUT)
            except UnavailableError:  # no package lists yet, or old ones
                checked(["apt-get", "update", "-qq"], timeout=INSTALL_TIMEOUT)
                checked(install, timeout=INSTALL_TIMEOUT)


def checked(argv: list[str], *, timeout: float, stdin: str = "", cwd: Path | None = None) -> str:
    """Return the standard output of `argv`; its failure becomes an UnavailableError."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(
            argv,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env=environment,
            cwd=cwd,
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"{argv[0]} took over {timeout:.0f} s") from error
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()] or ["nothing said"]
        errors = [line for line in said if line.startswith("E: ")] or said[-3:]
        raise UnavailableError(f"{' '.join(argv[:3])} failed: {'; '.join(errors)}")
    return done.stdout


def cache_root() -> Path:
    """Return the folder, made if need be, that the tests keep between runs."""
    root = cache_folder(os.environ)
    root.mkdir(parents=True, exist_ok=True)
    return root


def _missing(programs: Iterable[str]) -> list[str]:
    return [name for name in programs if shutil.which(name) is None]
