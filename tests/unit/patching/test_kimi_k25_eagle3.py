"""The patched model hands on what SGLang's own speculative code asks it for."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest

from opsctl.patching.diff import apply_strictly
from opsctl.patching.series import load
from tests.support.extracted import MissingDefinitionError, extract
from tests.support.released import RELEASES, released_or_skip

RELEASE = "0.5.9"
MODEL = "sglang/srt/models/kimi_k25.py"
LANGUAGE_MODEL = "sglang/srt/models/deepseek_v2.py"
HOOKS = ("set_eagle3_layers_to_capture", "get_embed_and_head", "set_embed_and_head")
CALLERS = (
    "sglang/srt/model_executor/model_runner.py",
    "sglang/srt/model_executor/cuda_graph_runner.py",
    "sglang/srt/speculative/eagle_worker.py",
    "sglang/srt/speculative/eagle_worker_v2.py",
)


class LanguageModel:
    """Stands in for DeepSeek V3, the text part of Kimi K2.5."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def set_eagle3_layers_to_capture(self, layer_ids: list[int] | None = None) -> None:
        self.calls.append(("layers", layer_ids))

    def get_embed_and_head(self) -> tuple[str, str]:
        self.calls.append(("get",))
        return "embed", "head"

    def set_embed_and_head(self, embed: str, head: str) -> None:
        self.calls.append(("set", embed, head))


def source(path: str, release: str = RELEASE) -> str:
    return (released_or_skip("sglang", release) / path).read_text()


def patched() -> str:
    file = load().patch("kimi-k25-eagle3").file_for(RELEASE)
    assert file is not None
    (change,) = file.changes
    assert change.path == MODEL
    return apply_strictly(source(MODEL).encode(), change).decode()


@pytest.fixture
def model() -> Any:
    names = [f"KimiK25ForConditionalGeneration.{hook}" for hook in HOOKS]
    made = extract(patched(), *names, given={})
    kind = type("Kimi", (), {hook: made[name] for hook, name in zip(HOOKS, names, strict=True)})
    kimi = kind()
    kimi.language_model = LanguageModel()
    return kimi


@pytest.mark.parametrize("layers", [None, [1, 29, 57]])
def test_the_layers_that_the_draft_reads_reach_the_language_model(
    model: Any, layers: list[int] | None
) -> None:
    model.set_eagle3_layers_to_capture(layers)

    assert model.language_model.calls == [("layers", layers)]


def test_a_recorded_graph_leaves_the_layers_to_the_language_model(model: Any) -> None:
    model.set_eagle3_layers_to_capture()

    assert model.language_model.calls == [("layers", None)]


def test_the_draft_shares_embedding_and_head_of_the_language_model(model: Any) -> None:
    assert model.get_embed_and_head() == ("embed", "head")


def test_embedding_and_head_can_be_replaced(model: Any) -> None:
    model.set_embed_and_head("other embed", "other head")

    assert model.language_model.calls == [("set", "other embed", "other head")]


@pytest.mark.parametrize("hook", HOOKS)
def test_the_language_model_of_that_release_has_each_hook(hook: str) -> None:
    method = f"DeepseekV2ForCausalLM.{hook}"

    assert callable(extract(source(LANGUAGE_MODEL), method, given={})[method])


@pytest.mark.parametrize("hook", HOOKS)
def test_unpatched_the_hook_is_missing(hook: str) -> None:
    with pytest.raises(MissingDefinitionError):
        extract(source(MODEL), f"KimiK25ForConditionalGeneration.{hook}", given={})


def test_each_hook_that_the_release_calls_on_its_target_is_there() -> None:
    asked = {
        name
        for path in CALLERS
        for name in re.findall(
            r"(?:target_worker\.model_runner|self\.model_runner|self)\.model\.(\w+)\(", source(path)
        )
        if "eagle" in name or "embed" in name
    }

    assert asked == {"set_eagle3_layers_to_capture", "get_embed_and_head"}
    assert asked <= set(HOOKS)


@pytest.mark.parametrize("release", [v for v in RELEASES["sglang"] if v != RELEASE])
def test_later_releases_have_the_hooks_themselves(release: str) -> None:
    (model,) = (
        node
        for node in ast.parse(source(MODEL, release)).body
        if isinstance(node, ast.ClassDef) and node.name == "KimiK25ForConditionalGeneration"
    )
    methods = {node.name for node in model.body if isinstance(node, ast.FunctionDef)}

    assert set(HOOKS) <= methods
    reason = load().patch("kimi-k25-eagle3").otherwise(release)
    assert reason is not None
    assert reason.state == "superseded"
