"""A stand-in for NVIDIA's apt repository: same layout, throwaway key, stand-in packages.

A host sees it as a folder; see `Repository.binds`. What the packages cannot prove is in debs.py.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.hosts import tools
from tests.support.hosts.debs import Package, dkms, driver, toolkit
from tests.support.hosts.rootfs import Distribution

LAYOUT = {"bookworm": "debian12", "trixie": "debian13"}
MOUNT = "/srv/nvidia"
PROGRAMS = ("apt-ftparchive", "dpkg-deb", "gpg")
DRIVERS = ("580.95.05-1", "580.105.08-1", "590.44.01-1")
TOOLKITS = ("13.0.2-1",)
IDENTITY = "TEST STAND-IN repository"


@dataclass
class Repository:
    """One repository in `folder`, signed with a key of its own."""

    folder: Path
    distribution: Distribution
    _secret: str = ""

    @property
    def packages(self) -> Path:
        """The folder with Packages and InRelease."""
        return self.folder / self._below

    @property
    def url(self) -> str:
        """Its address on a host that has `binds`; the suite of this flat repository is `/`."""
        return f"file://{MOUNT}/{self._below}"

    @property
    def binds(self) -> Mapping[str, Path]:
        """What `systemd_host(binds=...)` takes so that a host sees it."""
        return {MOUNT: self.folder}

    @property
    def key(self) -> Path:
        """The signing key, armored; `.gpg` beside it is the same in binary form."""
        return self.folder / "key.asc"

    def add(self, *packages: Package) -> None:
        """Publish packages besides those that are there."""
        for package in packages:
            package.build(self.packages)
        self.publish()

    def withdraw(self, name: str, version: str) -> None:
        """Take a package out again."""
        (self.packages / Package(name, version).file_name).unlink()
        self.publish()

    def rotate_key(self) -> None:
        """Sign with a new key from now on; hosts that know the old one must refuse it."""
        with _keyring() as gpg:
            make = ["--quick-generate-key", IDENTITY, "ed25519", "sign", "never"]
            tools.checked([*gpg, "--passphrase", "", *make], timeout=60)
            self._secret = tools.checked([*gpg, "--armor", "--export-secret-keys"], timeout=60)
            self.key.write_text(tools.checked([*gpg, "--armor", "--export"], timeout=60))
            binary = ["--yes", "--output", str(self.key.with_suffix(".gpg")), "--export"]
            tools.checked([*gpg, *binary], timeout=60)
        self.publish()

    def tamper(self) -> None:
        """Publish something new and change the index behind the signature's back."""
        # Without anything new a host that has the last index would not fetch this one.
        before = len(list(self.packages.glob("stand-in-news_*")))
        self.add(Package("stand-in-news", f"1.{before}"))
        index = self.packages / "Packages"
        text = index.read_text()
        changed = text.replace("Description: TEST", "Description: BEST", 1)
        assert changed != text
        index.write_text(changed)

    def publish(self) -> None:
        """Write index and signature anew."""
        listing = tools.checked(["apt-ftparchive", "packages", "."], timeout=60, cwd=self.packages)
        (self.packages / "Packages").write_text(listing)
        origin = [
            f"-oAPT::FTPArchive::Release::{key}={value}"
            for key, value in (("Origin", "NVIDIA"), ("Label", "NVIDIA CUDA"))
        ]
        signed = self.packages / "InRelease"
        signed.unlink(missing_ok=True)  # it must not be in its own list
        release = tools.checked(
            ["apt-ftparchive", *origin, "release", "."], timeout=60, cwd=self.packages
        )
        with _keyring() as gpg:
            tools.checked([*gpg, "--import"], timeout=60, stdin=self._secret)
            signed.write_text(tools.checked([*gpg, "--clearsign"], timeout=60, stdin=release))

    @property
    def _below(self) -> str:
        return f"compute/cuda/repos/{LAYOUT[self.distribution]}/x86_64"


def make_repository(
    folder: Path,
    distribution: Distribution,
    drivers: Sequence[str] = DRIVERS,
    toolkits: Sequence[str] = TOOLKITS,
) -> Repository:
    """Build a repository in a folder; raises UnavailableError where a program is missing."""
    tools.require(PROGRAMS)
    repository = Repository(folder, distribution)
    repository.packages.mkdir(parents=True)
    for path in (repository.packages, *repository.packages.parents):
        if path.is_relative_to(folder):
            path.chmod(0o755)  # apt reads as a user of its own
    found = [dkms()]
    found += [package for version in drivers for package in driver(version)]
    found += [package for version in toolkits for package in toolkit(version)]
    for package in found:
        package.build(repository.packages)
    repository.rotate_key()
    return repository


@contextlib.contextmanager
def _keyring() -> Iterator[list[str]]:
    """A gpg command with an empty keyring, whose agent ends with the block."""
    # The agent's socket lies in it, and a socket's path is short.
    with tempfile.TemporaryDirectory(prefix=f"gpg-{os.getpid()}-", dir="/tmp") as home:
        try:
            quiet = ["--batch", "--quiet", "--no-tty", "--no-permission-warning"]
            yield ["gpg", "--homedir", home, *quiet]
        finally:
            tools.checked(["gpgconf", "--homedir", home, "--kill", "all"], timeout=60)
