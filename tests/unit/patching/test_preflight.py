"""What profiles require of patches, in made-up environments."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.config.schema import Config
from opsctl.patching.environment import locate
from opsctl.patching.preflight import interpreters, of_profile, required
from tests.support.patch_targets import patch, small


def config(**profiles: dict[str, object]) -> Config:
    return Config.model_validate({"profiles": profiles})


def profile(python: Path | None, *names: str, engine: str = "sglang") -> dict[str, object]:
    found: dict[str, object] = {"model": "org/model", "requires_patches": list(names)}
    found |= {"python": str(python)} if python else {}
    return found | ({"engine": engine} if engine != "sglang" else {})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """SGLang 0.5.14 and its FlashInfer, as far as patches reach."""
    return small(tmp_path, byte_code=False)


def test_missing_ones_say_why_and_those_they_need_are_missing_too(
    root: Path, tmp_path: Path
) -> None:
    python = tmp_path / "bin/python"
    names = ("allreduce-fusion", "kimi-k25-eagle3", "nothing")
    whole = config(main=profile(python, *names))
    found = of_profile(whole.profiles["main"])
    assert set(found.missing) == {"allreduce-fusion", "allreduce-fusion-jit", "nothing"}
    assert found.missing["allreduce-fusion"].startswith("applicable")
    assert found.missing["nothing"].startswith("no patch of this opsctl; there are ")
    assert found.environment == f"--python {python}"
    assert patch("apply", "--only", "allreduce-fusion", "--site-packages", root).code == 0
    found = of_profile(whole.profiles["main"])
    assert set(found.missing) == {"nothing"}
    assert found.applied == {"allreduce-fusion", "allreduce-fusion-jit"}


def test_a_patch_that_is_in_without_what_it_needs_is_missing(root: Path, tmp_path: Path) -> None:
    assert patch("apply", "--all", "--site-packages", root).code == 0
    (info,) = root.glob("flashinfer_python-*")
    text = (info / "METADATA").read_text()
    (info / "METADATA").write_text(text.replace("Version: 0.6.12", "Version: 0.7.2"))
    whole = config(main=profile(tmp_path / "bin/python", "allreduce-fusion"))
    found = of_profile(whole.profiles["main"])
    assert "it needs flashinfer-python" in found.missing["allreduce-fusion"]


def test_an_environment_that_is_not_there_has_none_of_them(tmp_path: Path) -> None:
    whole = config(main=profile(tmp_path / "no/python", "torch-symm-mem"))
    found = of_profile(whole.profiles["main"])
    assert set(found.missing) == {"torch-symm-mem"}
    assert "no Python environment there" in found.missing["torch-symm-mem"]


def test_a_simulated_engine_needs_none() -> None:
    whole = config(main=profile(None, "torch-symm-mem", engine="simulated"))
    assert of_profile(whole.profiles["main"]).missing == {}
    assert interpreters(whole) == set()


def test_required_are_those_of_the_profiles_of_this_environment(root: Path, tmp_path: Path) -> None:
    other = small(tmp_path / "other", byte_code=False).parents[2] / "bin/python"
    here = tmp_path / "bin/python"
    whole = config(
        one=profile(here, "torch-symm-mem"),
        two=profile(here, "allreduce-fusion"),
        three=profile(other, "kimi-k25-eagle3"),
        four=profile(here),
        five=profile(tmp_path / "no/python", "deepgemm-scales"),
    )
    assert required(whole, locate(site_packages=root)) == {"torch-symm-mem", "allreduce-fusion"}
    assert interpreters(whole) == {str(here), str(other), str(tmp_path / "no/python")}
