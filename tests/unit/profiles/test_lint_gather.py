"""What the lint reads of the disk, however broken it is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from opsctl.config.schema import LaunchProfile
from opsctl.profiles import checkpoint
from opsctl.profiles.lint import Finding
from opsctl.profiles.lint_gather import Gpus, check, gather, in_order
from opsctl.profiles.lint_quantization import NONE, quantization

UNKNOWN = Gpus()


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def model(tmp_path: Path, shards: int = 2) -> Path:
    folder = tmp_path / "model"
    write(folder / "config.json", {"architectures": ["LlamaForCausalLM"]})
    names = [f"model-{n}.safetensors" for n in range(shards)]
    weights = {f"layer.{n}": name for n, name in enumerate(names)}
    write(folder / checkpoint.INDEX, {"weight_map": weights})
    for name in names:
        (folder / name).write_bytes(b"x")
    return folder


def profile(**keys: Any) -> LaunchProfile:
    return LaunchProfile.model_validate({"model": "org/name", **keys})


def test_a_complete_checkpoint_lacks_nothing(tmp_path: Path) -> None:
    found = checkpoint.read(model(tmp_path))
    assert found.config == {"architectures": ["LlamaForCausalLM"]}
    assert found.missing == ()


def test_shards_that_are_gone_or_empty_are_missing(tmp_path: Path) -> None:
    folder = model(tmp_path, shards=3)
    (folder / "model-1.safetensors").unlink()
    (folder / "model-2.safetensors").write_bytes(b"")
    assert checkpoint.read(folder).missing == ("model-1.safetensors", "model-2.safetensors")


def test_a_link_of_the_hub_cache_that_leads_nowhere_is_missing(tmp_path: Path) -> None:
    folder = model(tmp_path)
    (folder / "model-0.safetensors").unlink()
    (folder / "model-0.safetensors").symlink_to("../../blobs/gone")
    assert checkpoint.read(folder).missing == ("model-0.safetensors",)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '"text"',
        "[" * 100_000,
        '{"weight_map": 3}',
        '{"weight_map": {"a": 3}}',
    ],
    ids=lambda content: content[:12],
)
def test_broken_files_give_nothing(tmp_path: Path, content: str) -> None:
    write(tmp_path / "config.json", content if "weight" not in content else "{}")
    write(tmp_path / checkpoint.INDEX, content)
    write(tmp_path / "hf_quant_config.json", content if "weight" not in content else "[]")
    found = checkpoint.read(tmp_path)
    assert found.missing == () and found.quantization is None
    assert found.config in (None, {})


def test_an_index_cannot_point_out_of_its_checkpoint(tmp_path: Path) -> None:
    write(
        tmp_path / checkpoint.INDEX, {"weight_map": {"a": "../../etc/passwd", "b": "/x", "c": ""}}
    )
    assert checkpoint.read(tmp_path).missing == ()


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    assert checkpoint.read(tmp_path).config is None


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(checkpoint.MAX_BYTES + 1)
    assert checkpoint.read(tmp_path).config is None


def test_only_paths_that_are_not_there_are_absent(tmp_path: Path) -> None:
    here = model(tmp_path)
    found = gather(profile(model=str(here), draft_model=f"{here}-draft"), UNKNOWN, here=True)
    assert found.absent == {"draft_model"}
    assert gather(profile(draft_model="org/draft"), UNKNOWN, here=True).absent == frozenset()


def test_variables_that_name_files_are_looked_up(tmp_path: Path) -> None:
    (tmp_path / "graph.xml").touch()
    environment = {
        "NCCL_GRAPH_FILE": str(tmp_path / "graph.xml"),
        "NCCL_TOPO_FILE": str(tmp_path / "topology.xml"),
        "CUDA_HOME": str(tmp_path / "graph.xml"),
        "TRITON_PTXAS_PATH": "",
    }
    found = gather(profile(environment=environment), UNKNOWN, here=True)
    assert found.absent == {"environment.NCCL_TOPO_FILE", "environment.CUDA_HOME"}


@pytest.mark.parametrize(
    ("content", "problem"), [(None, "does not exist"), ("{", "is not a readable JSON file")]
)
def test_an_adaptive_configuration_that_cannot_be_read_is_told(
    tmp_path: Path, content: str | None, problem: str
) -> None:
    path = tmp_path / "steps.json"
    if content is not None:
        write(path, content)
    flags = {"speculative_adaptive_config": str(path)}
    found = gather(profile(flags=flags), UNKNOWN, here=True)
    assert found.adaptive is None and problem in found.adaptive_problem


def test_an_adaptive_configuration_is_read(tmp_path: Path) -> None:
    content = {"1": {"candidate_steps": [1, 3]}}
    write(tmp_path / "steps.json", content)
    flags = {"speculative-adaptive-config": str(tmp_path / "steps.json")}
    found = gather(profile(flags=flags), UNKNOWN, here=True)
    assert (found.adaptive, found.adaptive_problem) == (content, "")


def test_without_an_sglang_the_newest_release_is_assumed_and_that_is_said(tmp_path: Path) -> None:
    found = check("p", profile(python=str(tmp_path / "python")), UNKNOWN)
    assert [(x.code, x.severity) for x in found] == [("assumed-release", "info")]
    assert "0.5.23" in found[0].message


def finding(key: str, severity: Any = "error") -> Finding:
    return Finding(severity, "code", "main", key, "what", "fix", "source")


@pytest.mark.parametrize(
    ("key", "at"),
    [
        ("flags.tp-size", "f:3"),
        ("flags.other", "f:2"),
        ("draft_model", "f:1"),
        ("auto_spec.sustained_load.high", "f:9"),
        ("serve.allow_findings", "f:8"),
    ],
)
def test_a_finding_stands_where_its_key_or_the_nearest_above_is_written(key: str, at: str) -> None:
    positions = {
        "profiles.main": "f:1",
        "profiles.main.flags": "f:2",
        "profiles.main.flags.tp-size": "f:3",
        "serve.allow_findings": "f:8",
        "auto_spec.sustained_load": "f:9",
    }
    [placed] = in_order([finding(key)], positions)
    assert placed.at == at


def test_the_gravest_come_first() -> None:
    mixed = [finding("a", "info"), finding("b", "error"), finding("c", "warning")]
    assert [x.key for x in in_order(mixed, {})] == ["b", "c", "a"]
    assert in_order(mixed, {})[0].at is None


INT4 = {"config_groups": {"g": {"weights": {"num_bits": 4, "type": "int"}}}}


@pytest.mark.parametrize(
    ("config", "extra", "method", "weights", "fp8_kv"),
    [
        ({"quantization_config": {"quant_method": "compressed-tensors", **INT4}}, None,
         "compressed-tensors", "int4", False),
        ({"text_config": {"quantization_config": {"quant_method": "compressed-tensors", **INT4}}},
         None, "compressed-tensors", "int4", False),
        ({}, {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}},
         "modelopt", "fp4", True),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4",
          "kv_cache_scheme": {"num_bits": 8, "type": "float"}}}, None, "modelopt", "fp4", True),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, None,
         "fp8", "fp8", False),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, None, "awq", "int4", False),
        ({"quantization_config": "odd"}, {"quantization": [1]}, "", "", False),
        ({"quantization_config": {"quant_method": 5, "config_groups": [1, {"weights": 3}]}}, None,
         "", "", False),
    ],
)  # fmt: skip
def test_quantization_is_read_as_checkpoints_write_it(
    config: Any, extra: Any, method: str, weights: str, fp8_kv: bool
) -> None:
    found = quantization(config, extra)
    assert found is not None
    assert (found.method, found.weights, found.fp8_kv) == (method, weights, fp8_kv)


def test_an_unread_checkpoint_is_not_taken_for_an_unquantized_one() -> None:
    assert quantization(None) is None
    assert quantization({}) == NONE
