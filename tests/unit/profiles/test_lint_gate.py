"""Serving refuses what the lint knows to break, and says what it let through."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opsctl.config.load import load_text
from opsctl.config.schema import Config
from opsctl.errors import PreconditionError
from opsctl.profiles import lint_gather
from opsctl.profiles.catalogue import CatalogueError, shipped
from opsctl.profiles.lint_gate import lint_refusal
from opsctl.profiles.lint_gather import Gpus

SM120 = Gpus((12, 0), 8)
TEXT = """
profiles:
  main:
    python: PYTHON
    model: org/model
    flags: {attention-backend: trtllm_mla, cuda-graph-max-bs: 8}
serve: {profile: main, allow_findings: [ALLOWED]}
"""
Recorded = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment in which SGLang 0.5.23 seems to be installed."""
    packages = tmp_path / "lib/python3.11/site-packages"
    (packages / "sglang").mkdir(parents=True)
    monkeypatch.setattr(lint_gather.catalogues, "installed", lambda path: shipped("0.5.23"))
    return tmp_path


@pytest.fixture
def recorded() -> Recorded:
    return []


@pytest.fixture
def record(recorded: Recorded) -> Callable[..., None]:
    return lambda event, **facts: recorded.append((event, facts))


def config(python: Path | str, allowed: str = "") -> Config:
    text = TEXT.replace("PYTHON", str(python)).replace("ALLOWED", allowed)
    return load_text(text, name="test", environment={}).config


def test_errors_refuse_and_every_one_is_told_with_its_fix(
    python: Path, recorded: Recorded, record: Callable[..., None]
) -> None:
    with pytest.raises(PreconditionError) as refused:
        lint_refusal(config(python), "main", gpus=SM120, record=record)
    assert refused.value.exit_code == 4
    text = refused.value.message
    assert "[removed-flag]" in text and "write `cuda-graph-max-bs-decode`" in text
    assert "[sm120-trtllm-mla]" in text
    assert "serve.allow_findings" in (refused.value.hint or "")
    assert recorded == []


def test_rules_of_a_gpu_that_is_not_known_do_not_refuse(python: Path) -> None:
    with pytest.raises(PreconditionError) as refused:
        lint_refusal(config(python), "main")
    assert "sm120" not in refused.value.message


def test_an_allowed_error_is_recorded_and_the_others_refuse(
    python: Path, recorded: Recorded, record: Callable[..., None]
) -> None:
    with pytest.raises(PreconditionError) as refused:
        lint_refusal(config(python, "sm120-trtllm-mla"), "main", gpus=SM120, record=record)
    assert "trtllm" not in refused.value.message
    assert recorded == [("lint_overridden", {"profile": "main", "codes": ["sm120-trtllm-mla"]})]


def test_with_all_errors_allowed_the_start_goes_on(
    python: Path, recorded: Recorded, record: Callable[..., None]
) -> None:
    lint_refusal(
        config(python, "sm120-trtllm-mla, removed-flag"), "main", gpus=SM120, record=record
    )
    [(event, facts)] = recorded
    assert (event, facts["codes"]) == ("lint_overridden", ["removed-flag", "sm120-trtllm-mla"])


def test_an_allowed_code_that_did_not_occur_is_not_recorded(
    python: Path, recorded: Recorded, record: Callable[..., None]
) -> None:
    with pytest.raises(PreconditionError):
        lint_refusal(config(python, "too-few-gpus"), "main", gpus=SM120, record=record)
    assert recorded == []


def test_without_an_sglang_nothing_is_refused_and_that_is_recorded(
    tmp_path: Path, recorded: Recorded, record: Callable[..., None]
) -> None:
    lint_refusal(config(tmp_path / "none"), "main", gpus=SM120, record=record)
    [(event, facts)] = recorded
    assert event == "lint_skipped" and facts["profile"] == "main" and facts["why"]


def test_an_sglang_that_cannot_be_read_refuses_nothing_and_is_recorded(
    python: Path,
    recorded: Recorded,
    record: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(path: Path) -> Any:
        raise CatalogueError("half an installation")

    monkeypatch.setattr(lint_gather.catalogues, "installed", fail)
    lint_refusal(config(python), "main", gpus=SM120, record=record)
    assert recorded == [("lint_skipped", {"profile": "main", "why": "half an installation"})]


def test_a_simulated_profile_is_not_looked_at(
    python: Path, recorded: Recorded, record: Callable[..., None]
) -> None:
    loaded = config(python)
    profile = loaded.profiles["main"].model_copy(update={"engine": "simulated"})
    simulated = loaded.model_copy(update={"profiles": {"main": profile}})
    lint_refusal(simulated, "main", gpus=SM120, record=record)
    assert recorded == []
