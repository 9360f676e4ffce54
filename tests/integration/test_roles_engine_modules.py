"""Decisions of the engine's Ansible modules, without a host."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

PLAYBOOKS = Path(__file__).parents[2] / "playbooks"
pytest.importorskip("ansible.module_utils.basic", reason="Ansible is not installed")


def loaded(path: str, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, PLAYBOOKS / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", autouse=True)
def shared() -> Iterator[None]:
    """What Ansible does on a host: our module_utils are found among its own."""
    names = [f"ansible.module_utils.{x}" for x in ("opsctl_host", "opsctl_packages")]
    for name in names:
        loaded(f"module_utils/{name.rpartition('.')[2]}.py", name)
    yield
    for name in names:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("installed", "torch_cuda", "wrong"),
    [
        ({"nvidia-nccl-cu13": "2.27", "torch": "2.9.0+cu130"}, "13.0", []),
        ({"nvidia-nccl-cu12": "2.27"}, "13.0", ["nvidia-nccl-cu12 2.27"]),
        ({"sgl-kernel": "0.3.21+cu124"}, None, ["sgl-kernel 0.3.21+cu124"]),
        ({"torch": "2.9.0"}, "12.8", ["torch, which is built for CUDA 12.8"]),
        ({"nvidia-cuda-nvrtc": "12.9.86"}, "13.0", ["nvidia-cuda-nvrtc 12.9.86"]),
        ({"nvidia-cuda-nvrtc": "13.0.88", "cuda-bindings": "13.0.3"}, "13.0", []),
        ({"nvidia-cutlass-dsl": "4.2.1", "numpy": "12.0.0"}, "13.0", []),
    ],
)
def test_an_environment_holds_packages_of_one_cuda_major(
    installed: dict[str, str], torch_cuda: str | None, wrong: list[str]
) -> None:
    packages = sys.modules["ansible.module_utils.opsctl_packages"]
    assert packages.conflicts(installed, torch_cuda, "cu130") == wrong
    assert packages.conflicts(installed, torch_cuda, "none") == []


def test_an_upgraded_pip_and_a_package_that_somebody_added_are_no_drift() -> None:
    packages = sys.modules["ansible.module_utils.opsctl_packages"]
    wanted = {"sglang": "0.5.23", "pip": "23.0"}
    assert packages.differences(wanted, {**wanted, "pip": "26.0", "py-spy": "0.4"}) == []
    assert packages.differences(wanted, {"sglang": "0.5.22"}) == ["sglang 0.5.23 is now 0.5.22"]
    assert packages.differences(wanted, {}) == ["sglang 0.5.23 is now missing"]


def tensor_file(folder: Path, name: str, *, data: int = 8, claimed: int = 8) -> None:
    tensor = {"dtype": "U8", "shape": [claimed], "data_offsets": [0, claimed]}
    header = json.dumps({"__metadata__": {"format": "pt"}, "w": tensor}).encode()
    (folder / name).write_bytes(len(header).to_bytes(8, "little") + header + bytes(data))


def checkpoint(folder: Path) -> Path:
    names = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    for name in names:
        tensor_file(folder, name)
    index = {"metadata": {"total_size": 16}, "weight_map": dict(zip("ab", names, strict=True))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text("{}")
    return folder


def test_a_checkpoint_is_whole_when_its_index_and_each_header_say_so(tmp_path: Path) -> None:
    module = loaded("library/opsctl_checkpoint.py", "opsctl_checkpoint")
    assert module.flaws(checkpoint(tmp_path)) == []


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("rm config.json", "config.json is missing"),
        ("rm model-00002-of-00002.safetensors", "1 of 2 weight files are missing"),
        ("truncate -s -1 model-00001-of-00002.safetensors", "00001-of-00002.safetensors has "),
        ("truncate -s 4 model-00001-of-00002.safetensors", "is not a safetensors file"),
        ("echo '{' > model.safetensors.index.json", "its index cannot be read"),
        ("echo '[]' > model.safetensors.index.json", "its index cannot be read"),
        ("echo >> model-00001-of-00002.safetensors", "00001-of-00002.safetensors has "),
        ("rm *.safetensors *.index.json", "there is no weight file"),
        ("rm -r ../checkpoint", "the folder is not there"),
    ],
)
def test_what_is_missing_from_a_checkpoint_is_named(tmp_path: Path, damage: str, said: str) -> None:
    module = loaded("library/opsctl_checkpoint.py", "opsctl_checkpoint")
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    checkpoint(folder)
    assert os.system(f"cd {folder} && {damage}") == 0
    assert said in "; ".join(module.flaws(folder))


@pytest.mark.parametrize(
    ("code", "out", "said"),
    [
        (0, "0 8", ""),
        (0, "3 -1", "gpu_tuning.disable_hmm"),
        (0, "803 -1", "of different versions: reboot"),
        (0, "0 7", "CUDA counts 7 GPUs, the driver lists 8"),
        (124, "", "does not start"),
        (1, "", "cannot be asked"),
    ],
)
def test_what_cuda_answers_is_put_into_words(code: int, out: str, said: str) -> None:
    module = loaded("library/opsctl_cuda.py", "opsctl_cuda")
    verdict = module.verdict(code, out, "OSError: libcuda.so.1", 8)
    assert said in verdict
    assert bool(verdict) is bool(said)
