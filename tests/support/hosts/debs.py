"""Stand-in Debian packages: real names and versions, and a few lines of shell inside.

No NVIDIA software is in any of them. They cannot prove what NVIDIA's packages depend on, that
DKMS builds a module, that it loads, nor anything about Secure Boot.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.hosts import tools

STAND_IN = "TEST STAND-IN: no NVIDIA software is inside"
DKMS_FAILS = "/etc/dkms/stand-in-fails"
"""A file of this name on a host holds the kernels that the stand-in for DKMS cannot build for."""
NVCC = {"13.0.2-1": "13.0.88-1", "13.1.0-1": "13.1.80-1"}
"""Versions of nvcc in releases of the toolkit."""

_DKMS = f"""#!/bin/sh
# {STAND_IN}. Marks modules as built in the places where dkms has them.
set -u
tree=/var/lib/dkms
build() {{
    if [ ! -d "/lib/modules/$1/build" ]; then
        echo "Error! Your kernel headers for kernel $1 cannot be found at" \\
            "/lib/modules/$1/build." >&2
        return 1
    fi
    if grep -qsx "$1" {DKMS_FAILS}; then
        echo "Error! Bad return status for module build on kernel: $1 (x86_64)" >&2
        return 10
    fi
    for source in /usr/src/nvidia-*; do
        [ -d "$source" ] || continue
        mkdir -p "$tree/nvidia/${{source#*nvidia-}}/$1/x86_64/module" "/lib/modules/$1/updates/dkms"
        touch "/lib/modules/$1/updates/dkms/nvidia.ko"
    done
}}
status() {{
    for source in /usr/src/nvidia-*; do
        [ -d "$source" ] || continue
        version=${{source#*nvidia-}} built=
        for module in "$tree/nvidia/$version"/*/*/module; do
            [ -d "$module" ] || continue
            folder=${{module%/*/module}}
            echo "nvidia/$version, ${{folder##*/}}, x86_64: installed"
            built=yes
        done
        [ -n "$built" ] || echo "nvidia/$version: added"
    done
}}
verb=${{1:-status}}
[ $# = 0 ] || shift
kernel=$(uname -r)
while [ $# -gt 0 ]; do
    case $1 in
    -k) kernel=$2 && shift ;;
    esac
    shift
done
case $verb in
status) status ;;
autoinstall | build | install) build "$kernel" ;;
*) echo "the stand-in for dkms does not know $verb" >&2 && exit 2 ;;
esac
"""
_BUILD_MODULE = """#!/bin/sh
# Like the real one: without headers nothing is built, and that is not an error.
[ "$1" = configure ] || exit 0
for kernel in $(ls /lib/modules 2>/dev/null); do dkms autoinstall -k "$kernel" || true; done
"""
_FORGET_MODULE = """#!/bin/sh
rm -rf /var/lib/dkms/nvidia/{version}
rm -f /lib/modules/*/updates/dkms/nvidia.ko
"""
_PERSISTENCED = f"""[Unit]
Description=NVIDIA Persistence Daemon ({STAND_IN})

[Service]
ExecStart=/bin/sleep infinity

[Install]
WantedBy=multi-user.target
"""
_ALTERNATIVE = """#!/bin/sh
[ "$1" = configure ] || exit 0
update-alternatives --install /usr/local/cuda cuda /usr/local/cuda-{release} {priority}
"""
_NO_ALTERNATIVE = """#!/bin/sh
[ "$1" = remove ] || exit 0
update-alternatives --remove cuda /usr/local/cuda-{release}
"""


@dataclass(frozen=True)
class Package:
    """One Debian package; `files` by absolute path, `scripts` by dpkg's name (postinst, ...)."""

    name: str
    version: str
    depends: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)

    @property
    def file_name(self) -> str:
        """Name of its file in a repository."""
        return f"{self.name}_{self.version}_amd64.deb"

    def build(self, folder: Path) -> Path:
        """Write the package into a folder; raises UnavailableError without dpkg-deb."""
        target = folder / self.file_name
        with tempfile.TemporaryDirectory(prefix="opsctl-deb-") as name:
            tree = Path(name)
            tree.chmod(0o755)
            _put(tree / "DEBIAN/control", self._control())
            for script, text in self.scripts.items():
                _put(tree / "DEBIAN" / script, text)
            for path, text in self.files.items():
                _put(tree / path.lstrip("/"), text)
            build = ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build"]
            tools.checked([*build, str(tree), str(target)], timeout=60)
        return target

    def _control(self) -> str:
        depends = f"Depends: {self.depends}\n" if self.depends else ""
        return (
            f"Package: {self.name}\nVersion: {self.version}\nArchitecture: amd64\n"
            f"Maintainer: nobody <nobody@localhost>\nSection: misc\nPriority: optional\n"
            f"{depends}Description: {STAND_IN}\n"
        )


def driver(version: str) -> list[Package]:
    """Return one release of the driver with open kernel modules."""
    same = f"(= {version})"
    upstream, branch = version.partition("-")[0], version.partition(".")[0]
    smi = f"#!/bin/sh\n# {STAND_IN}\necho 'NVIDIA-SMI version  : {upstream}'\n"
    pin = f"Package: *nvidia* libcuda*\nPin: version {branch}.*\nPin-Priority: 1000\n"
    return [
        Package("nvidia-open", version, f"nvidia-driver {same}, nvidia-kernel-open-dkms {same}"),
        Package("nvidia-driver", version, f"nvidia-driver-libs {same}"),
        Package("nvidia-driver-libs", version, f"libnvidia-ml1 {same}"),
        Package(
            "nvidia-driver-cuda",
            version,
            f"libcuda1 {same}, libnvidia-ml1 {same}, nvidia-persistenced {same}",
            {"/usr/bin/nvidia-smi": smi},
        ),
        Package("libcuda1", version),
        Package("libnvidia-ml1", version),
        Package(
            "nvidia-persistenced",
            version,
            files={"/lib/systemd/system/nvidia-persistenced.service": _PERSISTENCED},
        ),
        Package(
            "nvidia-kernel-open-dkms",
            version,
            "dkms",
            {f"/usr/src/nvidia-{upstream}/dkms.conf": f"# {STAND_IN}\n"},
            {
                "postinst": _BUILD_MODULE,
                "prerm": _FORGET_MODULE.format(version=upstream),
            },
        ),
        Package(
            f"nvidia-driver-pinning-{branch}",
            version,
            files={f"/etc/apt/preferences.d/nvidia-driver-pinning-{branch}": pin},
        ),
    ]


def toolkit(version: str) -> list[Package]:
    """Return one release of the CUDA toolkit, with an nvcc that knows its version only."""
    major, minor = version.split(".")[:2]
    release, suffix = f"{major}.{minor}", f"{major}-{minor}"
    nvcc = NVCC.get(version, version)
    number = nvcc.partition("-")[0]
    about = f'{{"cuda": {{"version": "{version.partition("-")[0]}"}}}}\n'
    home = f"/usr/local/cuda-{release}"
    says = f"#!/bin/sh\n# {STAND_IN}\necho 'Cuda compilation tools, release {release}, V{number}'\n"
    return [
        Package(
            f"cuda-toolkit-{suffix}",
            version,
            f"cuda-nvcc-{suffix} (>= {number}), cuda-toolkit-{suffix}-config-common",
        ),
        Package(f"cuda-nvcc-{suffix}", nvcc, files={f"{home}/bin/nvcc": says}),
        Package(
            f"cuda-toolkit-{suffix}-config-common",
            nvcc,
            files={f"{home}/version.json": about},
            scripts={
                "postinst": _ALTERNATIVE.format(release=release, priority=f"{major}{minor}"),
                "prerm": _NO_ALTERNATIVE.format(release=release),
            },
        ),
        Package(f"cuda-compat-{suffix}", nvcc, files={f"{home}/compat/libcuda.so.1": "stand-in\n"}),
    ]


def dkms() -> Package:
    """Return a stand-in for Debian's dkms, which a host without network cannot fetch."""
    return Package("dkms", "3.0.10-8", files={"/usr/sbin/dkms": _DKMS})


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755 if text.startswith("#!") else 0o644)
