"""`opsctl patch` in a real virtual environment: real wheels, pip, engines and other Pythons."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from opsctl.patching.record import paths
from tests.integration.test_profile_lint import FILES as LINTED
from tests.support.patch_targets import (
    NO_CACHE,
    Answer,
    byte_code,
    difference,
    info,
    patch,
    photograph,
    record_lies,
    touched,
)
from tests.support.released import released_or_skip
from tests.support.serving import OPSCTL

RELEASE = "0.5.12"
CONFIGURER = "sglang/srt/layers/deep_gemm_wrapper/configurer.py"
SLEEPER = """
import pathlib, sys
pathlib.Path(__file__).with_name("started").touch()
print("up", flush=True)
sys.stdin.read()
"""
OTHERS = [
    Path(f"~/.pyenv/versions/{version}/bin/python").expanduser()
    for version in ("3.10.13", "3.12.1", "3.13.0")
]


def wheel(folder: Path, package: str, version: str, more: dict[str, str]) -> Path:
    """Build a small wheel out of released files: those that patches reach, and some of our own."""
    release = released_or_skip(package, version)
    name = f"{package.replace('-', '_')}-{version}"
    content = {x: (release / x).read_bytes() for x in touched(package, version)}
    content |= {x: text.encode() for x, text in more.items()}
    metadata = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
    content[f"{name}.dist-info/METADATA"] = metadata.encode()
    content[f"{name}.dist-info/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    lines = [f"{path},sha256={_hash(data)},{len(data)}" for path, data in content.items()]
    record = f"{name}.dist-info/RECORD"
    content[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    built = folder / f"{name}-py3-none-any.whl"
    with zipfile.ZipFile(built, "w") as archive:
        for path, data in content.items():
            archive.writestr(path, data)
    return built


def _hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def call(*words: object) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON"))}
    return subprocess.run(
        [str(x) for x in words],
        env={**clean, **NO_CACHE, "PIP_CONFIG_FILE": os.devnull},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def built(folder: Path) -> list[Path]:
    """Build the wheels of a small SGLang 0.5.12 and its FlashInfer."""
    own = {name: text for name, text in LINTED.items() if name.startswith("sglang/srt/")}
    own |= dict.fromkeys(("sglang/__init__.py", "sglang/srt/__init__.py"), "")
    own["sglang/launch_server.py"] = SLEEPER
    init = {"flashinfer/__init__.py": ""}
    return [
        wheel(folder, "sglang", RELEASE, own),
        wheel(folder, "flashinfer-python", "0.6.11.post1", init),
    ]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A virtual environment with pip, which has installed both wheels."""
    made = call(sys.executable, "-m", "venv", tmp_path / "venv")
    assert made.returncode == 0, made.stderr
    words = ("install", "-q", "--no-deps", "--no-index", *built(tmp_path))
    done = call(tmp_path / "venv/bin/python", "-m", "pip", *words)
    assert done.returncode == 0, done.stderr
    return tmp_path / "venv"


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A virtual environment without pip, with what both wheels bring."""
    made = call(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    assert made.returncode == 0, made.stderr
    for one in built(tmp_path):
        with zipfile.ZipFile(one) as archive:
            archive.extractall(site_packages(tmp_path / "venv"))
    return tmp_path / "venv"


def site_packages(venv: Path) -> Path:
    (found,) = venv.glob("lib/python3*/site-packages")
    return found


def ask(verb: str, venv: Path, *words: object) -> Answer:
    return patch(verb, *words, "--python", venv / "bin/python")


def test_pip_is_content_with_a_patched_package_and_uninstalls_all_of_it(installed: Path) -> None:
    root = site_packages(installed)
    before = photograph(root)
    assert byte_code(CONFIGURER) in paths((info(root) / "RECORD").read_bytes()), "pip lists it"
    done = ask("apply", installed, "--all")
    assert done.code == 0, done.err
    assert record_lies(root) == []
    assert call(installed / "bin/python", "-m", "pip", "check").returncode == 0
    back = ask("revert", installed, "--all")
    assert back.code == 0, back.err
    assert difference(before, photograph(root)) == [], "byte code as well"

    assert ask("apply", installed, "--all").code == 0
    names = ("sglang", "flashinfer-python")
    gone = call(installed / "bin/python", "-m", "pip", "uninstall", "-q", "-y", *names)
    assert gone.returncode == 0, gone.stderr
    left = [x for x in root.rglob("*") if "sglang" in str(x) or "flashinfer" in str(x)]
    left += [*root.rglob("opsctl"), *root.glob(".opsctl*")]
    assert left == []
    assert ask("status", installed).document["package_versions"] == {}


def test_installed_anew_it_is_as_released_again(installed: Path, tmp_path: Path) -> None:
    assert ask("apply", installed, "--only", "deepgemm-scales").code == 0
    (again,) = tmp_path.glob("sglang-*.whl")
    words = ("install", "-q", "--no-deps", "--no-index", "--force-reinstall", again)
    done = call(installed / "bin/python", "-m", "pip", *words)
    assert done.returncode == 0, done.stderr
    assert ask("status", installed).states["deepgemm-scales"] == "applicable"
    assert not list(site_packages(installed).rglob("opsctl"))


def test_python_imports_the_patched_code_and_takes_the_byte_code_that_lies_ready(
    venv: Path,
) -> None:
    root = site_packages(venv)
    assert ask("apply", venv, "--only", "deepgemm-scales").code == 0
    ready = (root / byte_code(CONFIGURER)).read_bytes()
    # The module itself wants torch: its code object is loaded as an import would, and not run.
    program = f"""
import importlib.machinery, importlib.util, sys
name = "configurer"
loader = importlib.machinery.SourceFileLoader(name, {str(root / CONFIGURER)!r})
code = loader.get_code(name)
print(code.co_filename, sum("SM120" in str(x) or "sm120" in str(x) for x in code.co_names))
"""
    done = call(venv / "bin/python", "-v", "-c", program)
    assert done.returncode == 0, done.stderr
    assert f"matches {root / CONFIGURER}" in done.stderr, "the byte code was taken as it lies"
    assert (root / byte_code(CONFIGURER)).read_bytes() == ready, "nobody made it anew"
    assert done.stdout.split()[0] == str(root / CONFIGURER)


@pytest.mark.parametrize("python", OTHERS, ids=lambda x: x.parts[-3])
def test_another_python_than_that_of_opsctl_compiles_its_own(tmp_path: Path, python: Path) -> None:
    if not python.exists():
        pytest.skip(f"no Python {python.parts[-3]} here")
    made = call(python, "-m", "venv", "--without-pip", tmp_path / "venv")
    assert made.returncode == 0, made.stderr
    root = site_packages(tmp_path / "venv")
    with zipfile.ZipFile(wheel(tmp_path, "sglang", RELEASE, {})) as archive:
        archive.extractall(root)
    before = photograph(root)
    done = ask("apply", tmp_path / "venv", "--only", "deepgemm-scales")
    assert done.code == 0, done.err
    major, minor = python.parts[-3].split(".")[:2]
    code = root / byte_code(CONFIGURER, f"cpython-{major}{minor}")
    assert code.is_file()
    test = f"import importlib.util as u; print(open({str(code)!r}, 'rb').read(4) == u.MAGIC_NUMBER)"
    assert call(tmp_path / "venv/bin/python", "-c", test).stdout.strip() == "True"
    assert ask("revert", tmp_path / "venv", "--all").code == 0
    assert difference(before, photograph(root)) == []


@pytest.mark.parametrize("version", ["2.7.18", "3.6.15"])
def test_a_python_that_cannot_parse_the_files_is_refused(tmp_path: Path, version: str) -> None:
    """Real interpreters that are too old: SGLang's annotations are a syntax error to them."""
    old = Path(f"~/.pyenv/versions/{version}/bin/python").expanduser()
    if not old.exists():
        pytest.skip(f"no Python {version} here")
    root = tmp_path / "lib/python3.11/site-packages"
    root.mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3.11").symlink_to(old)
    with zipfile.ZipFile(wheel(tmp_path, "sglang", RELEASE, {})) as archive:
        archive.extractall(root)
    before = photograph(root)
    answer = patch("apply", "--only", "torch-symm-mem", "--site-packages", root)
    assert answer.code == 4
    assert "do not compile with" in answer.err
    assert difference(before, photograph(root)) == []


@contextmanager
def engine(python: object, *words: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run something as an engine is run, until the end of the context."""
    started = subprocess.Popen(
        [str(python), "-m", "sglang.launch_server", *words],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert started.stdout is not None
        assert started.stdout.readline() == "up\n"
        yield started
    finally:
        started.communicate("", timeout=30)


def test_an_engine_that_runs_from_there_blocks_every_change(venv: Path) -> None:
    root = site_packages(venv)
    assert ask("apply", venv, "--only", "deepgemm-scales").code == 0
    with engine(venv / "bin/python", "--model-path", "org/model") as running:
        here = photograph(root)
        told = ask("status", venv)
        assert told.states["deepgemm-scales"] == "applied"
        assert told.states["torch-symm-mem"] == "blocked"
        assert f"pid {running.pid} " in told.reasons["torch-symm-mem"]
        for verb in ("apply", "revert"):
            refused = ask(verb, venv, "--all")
            assert refused.code == 4, refused.err
            assert f"pid {running.pid} " in refused.err
        assert ask("apply", venv, "--only", "deepgemm-scales").code == 0, "nothing to change"
        assert ask("revert", venv, "--only", "torch-symm-mem").code == 0, "nothing to change"
        assert difference(here, photograph(root)) == []
    assert ask("revert", venv, "--all").code == 0


def test_an_engine_of_another_environment_blocks_nothing(venv: Path, tmp_path: Path) -> None:
    fake = tmp_path / "fake/sglang"
    fake.mkdir(parents=True)
    (fake / "launch_server.py").write_text(SLEEPER)
    with engine(sys.executable, PYTHONPATH=str(fake.parent)):
        assert ask("status", venv).states["torch-symm-mem"] == "applicable"
        assert ask("apply", venv, "--all").code == 0


def test_an_engine_of_an_activated_environment_blocks_as_well(venv: Path) -> None:
    """`python -m sglang.launch_server` with the environment's `bin` first on PATH."""
    path = f"{venv / 'bin'}:{os.environ['PATH']}"
    with subprocess.Popen(
        ["/bin/sh", "-c", "exec python -m sglang.launch_server"],
        env={**os.environ, "PATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "up\n"
        assert ask("status", venv).states["torch-symm-mem"] == "blocked"
        running.communicate("", timeout=30)


def configuration(tmp_path: Path, venv: Path, *required: str, **serve: Any) -> Path:
    path = tmp_path / "opsctl.yaml"
    main = {
        "python": str(venv / "bin/python"),
        "model": "org/model",
        "requires_patches": list(required),
    }
    content = {
        "profiles": {"main": main},
        "serve": {"profile": "main", "listen": "127.0.0.1:0", **serve},
    }
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def missing(path: Path) -> dict[str, str]:
    """What `opsctl profile lint` says of patches."""
    done = call(OPSCTL, "profile", "lint", "--config", path, "-o", "json")
    assert done.stdout, done.stderr
    found = [x for x in json.loads(done.stdout)["findings"] if x["code"] == "patch-missing"]
    assert all(x["severity"] == "error" for x in found)
    return {x["message"].split(" ")[0]: x["fix"] for x in found}


def test_a_profile_that_requires_patches_is_not_started_without_them(
    venv: Path, tmp_path: Path
) -> None:
    path = configuration(tmp_path, venv, "deepgemm-scales", "kimi-k25-eagle3")
    command = f"opsctl patch apply --python {venv}/bin/python --only deepgemm-scales"
    assert missing(path) == {"deepgemm-scales": command}, "superseded ones are there"

    state = tmp_path / "state"
    served = call(OPSCTL, "--state-dir", state, "serve", "--config", path)
    assert served.returncode == 4, served.stderr
    assert command in served.stderr
    assert not (site_packages(venv) / "sglang/started").exists(), "no engine has run"

    applied = call(OPSCTL, "patch", "apply", "--required", "--config", path)
    assert applied.returncode == 0, applied.stderr
    states = ask("status", venv).states
    assert states["deepgemm-scales"] == "applied"
    assert states["torch-symm-mem"] == "applicable", "only what is required"
    assert missing(path) == {}


def test_what_a_required_patch_needs_is_required_too(venv: Path, tmp_path: Path) -> None:
    path = configuration(tmp_path, venv, "allreduce-fusion")
    assert set(missing(path)) == {"allreduce-fusion", "allreduce-fusion-jit"}
    assert call(OPSCTL, "patch", "apply", "--required", "--config", path).returncode == 0
    assert missing(path) == {}


def test_a_name_that_no_patch_has_is_an_error_that_names_those_there_are(
    venv: Path, tmp_path: Path
) -> None:
    path = configuration(tmp_path, venv, "allreduce-fussion")
    done = call(OPSCTL, "profile", "lint", "--config", path, "-o", "json")
    said = [x for x in json.loads(done.stdout)["findings"] if x["code"] == "patch-missing"]
    assert "allreduce-fusion" in said[0]["message"]
    refused = call(OPSCTL, "patch", "apply", "--required", "--config", path)
    assert refused.returncode == 2
    assert "no patch 'allreduce-fussion'" in refused.stderr


def test_a_profile_that_requires_nothing_changes_nothing(venv: Path, tmp_path: Path) -> None:
    before = photograph(site_packages(venv))
    path = configuration(tmp_path, venv)
    done = call(OPSCTL, "patch", "apply", "--required", "--config", path)
    assert done.returncode == 0, done.stderr
    assert "no profile of this environment requires a patch" in done.stderr
    assert difference(before, photograph(site_packages(venv))) == []
