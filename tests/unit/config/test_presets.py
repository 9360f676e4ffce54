"""Presets for real hosts: valid, right for the release they name, and reasons for every setting."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
import yaml

from opsctl.cli.config import PRESETS, Preset
from opsctl.cli.main import run
from opsctl.config.json_schema import json_schema
from opsctl.config.load import Loaded, load_text
from opsctl.config.rules import launchable
from opsctl.profiles.catalogue import shipped
from opsctl.profiles.lint import Host, lint
from opsctl.profiles.lint_model import Finding

FOLDER = files("opsctl.config").joinpath("presets")
REAL = [preset for preset in Preset if preset not in {Preset.MINIMAL, Preset.SIMULATED}]
KIMI_TARGET = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "text_config": {
        "hidden_size": 7168, "kv_lora_rank": 512, "n_routed_experts": 384,
        "num_attention_heads": 64,
        "quantization_config": {
            "quant_method": "compressed-tensors", "format": "pack-quantized",
            "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
        },
    },
}  # fmt: skip
KIMI_DRAFT = {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "hidden_size": 7168}
OBVIOUS = re.compile(
    r"tp-size|trust-remote-code|speculative-(algorithm|eagle-topk|num-draft-tokens|adaptive)|"
    r"cuda-graph-max-bs-decode|CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|page-size"
)
"""Settings that say what they are, or only repeat another one."""


def text_of(preset: Preset) -> str:
    return FOLDER.joinpath(f"{preset}.yaml").read_text(encoding="utf-8")


def load(preset: Preset) -> Loaded:
    return load_text(text_of(preset), name=preset, environment={})


def version(preset: Preset) -> str:
    named = re.findall(r"SGLang (0\.5\.\d+)\.\n", text_of(preset).partition("profiles:")[0])
    assert len(named) == 1, "a preset names one release in its head"
    return str(named[0])


def findings(preset: Preset, release: str) -> list[Finding]:
    config = load(preset).config
    count = 1 if preset.startswith("single") else 8
    kimi = preset is Preset.KIMI_K25
    return [
        finding
        for name in launchable(config)
        for finding in lint(
            name,
            config.profiles[name],
            shipped(release),
            Host(
                compute_capability=(12, 0),
                gpu_count=count,
                checkpoint=KIMI_TARGET if kimi else None,
                draft=KIMI_DRAFT if kimi and config.profiles[name].draft_model else None,
                here=False,
            ),
            config=config,
        )
    ]


def test_every_file_is_a_preset_and_every_preset_is_explained() -> None:
    names = {Path(entry.name).stem for entry in FOLDER.iterdir() if entry.name.endswith(".yaml")}
    assert names == set(Preset) == set(PRESETS)


@pytest.mark.parametrize("preset", REAL)
def test_a_preset_is_valid_without_a_warning(preset: Preset) -> None:
    assert load(preset).warnings == ()
    jsonschema.validate(yaml.safe_load(text_of(preset)), json_schema())


@pytest.mark.parametrize("preset", REAL)
def test_a_preset_lints_clean_for_the_release_it_names(preset: Preset) -> None:
    found = findings(preset, version(preset))
    assert [f for f in found if f.severity != "info"] == []


def test_the_lint_sees_what_a_preset_must_not_have() -> None:
    assert {f.code for f in findings(Preset.KIMI_K25, "0.5.9") if f.severity == "error"}


@pytest.mark.parametrize("preset", REAL)
def test_every_unusual_setting_says_why(preset: Preset) -> None:
    silent = [line.strip() for line, explained in settings(text_of(preset)) if not explained]
    assert silent == []


def settings(text: str) -> Iterator[tuple[str, bool]]:
    """Lines of flags and environment, and whether a comment stands on or above them."""
    block, above = "", False
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if indent == 4 and not line.strip().startswith("#"):
            block = line.strip().split(":")[0]
        is_setting = indent == 6 and block in {"flags", "environment"} and ":" in line
        if is_setting and not line.strip().startswith("#"):
            name = line.strip().split(":")[0]
            yield line, above or "#" in line or OBVIOUS.fullmatch(name) is not None
        above = line.strip().startswith("#")


def test_settings_without_a_reason_are_found() -> None:
    text = (
        "  a:\n    flags:\n      tp-size: 8\n      x: 1\n      # why\n      y: 1\n      z: 1 # w\n"
    )
    assert [explained for _, explained in settings(text)] == [True, False, True, True]


def test_an_invented_threshold_switches_nothing() -> None:
    for preset in REAL:
        auto_spec = load(preset).config.auto_spec
        assert auto_spec.observe or not auto_spec.speculative


def test_the_halves_share_no_gpu_and_need_a_state_directory_each() -> None:
    loaded = load(Preset.TWO_HALVES).config
    halves = [loaded.profiles[name].environment["CUDA_VISIBLE_DEVICES"] for name in
              ("gpus-0-3", "gpus-4-7")]  # fmt: skip
    assert halves == ["0,1,2,3", "4,5,6,7"]
    assert loaded.state_dir is None
    assert len(set(re.findall(r"--state-dir (\S+)", text_of(Preset.TWO_HALVES)))) == 2


@pytest.mark.parametrize("preset", Preset)
def test_init_writes_the_preset(
    preset: Preset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["config", "init", str(tmp_path / "it.yaml"), "--preset", preset]) == 0
    assert (tmp_path / "it.yaml").read_text(encoding="utf-8") == text_of(preset)
    assert run(["config", "validate", "--config", str(tmp_path / "it.yaml")]) == 0
    assert "warning" not in capsys.readouterr().err


def test_list_presets_prints_each_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["config", "init", "--list-presets"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == list(Preset)
    assert list(tmp_path.iterdir()) == []
