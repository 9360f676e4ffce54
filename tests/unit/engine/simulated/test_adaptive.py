"""Draft steps that move: beside the code of SGLang that they imitate, and inside the core."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.engine.simulated import flags
from opsctl.engine.simulated.adaptive import SHIPPED, Adaptive, captured, read
from opsctl.engine.simulated.core import Adapting, Core, Job, Limits, Pace
from opsctl.engine.simulated.surface import surfaces
from tests.support.released import released_or_skip

PINNED = {"1": {"candidate_steps": [3]}, "8": {"candidate_steps": [0]}}
EAGLE = ("--model-path", "m", "--speculative-algorithm", "EAGLE3", "--speculative-adaptive")


def stub(name: str, **content: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(content)
    return module


@pytest.fixture(scope="module")
def theirs() -> Any:
    """SGLang's own module; what it imports of SGLang is not needed to choose steps."""
    folder = released_or_skip("sglang", "0.5.23")
    stubs = {
        "sglang.srt.arg_groups.overrides": {"resolved_view": None, "resolving_view": None},
        "sglang.srt.runtime_context": {"attn_dp_enabled_of": None},
        "sglang.srt.speculative.spec_info": {"SpeculativeAlgorithm": None},
        "sglang.srt.utils": {"log_info_on_rank0": lambda *_: None},
    }
    parents = {".".join(name.split(".")[:n]) for name in stubs for n in range(1, 4)} - set(stubs)
    with pytest.MonkeyPatch.context() as patch:
        for name in parents:
            patch.setitem(sys.modules, name, stub(name, __path__=[]))
        for name, content in stubs.items():
            patch.setitem(sys.modules, name, stub(name, **content))
        path = folder / "sglang/srt/speculative/adaptive_spec_params.py"
        spec = importlib.util.spec_from_file_location("adaptive_of_sglang", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


steps = st.lists(st.integers(0, 7), min_size=1, max_size=4)
slot = st.fixed_dictionaries(
    {"candidate_steps": steps},
    optional={
        "ema_alpha": st.floats(0.05, 1.0),
        "update_interval": st.integers(1, 4),
        "warmup_batches": st.integers(0, 5),
        "down_hysteresis": st.floats(-0.5, 0.5),
        "up_hysteresis": st.floats(-0.5, 0.5),
    },
)
sizes = st.sampled_from((1, 2, 8, 9, 10, 11, 33, 40, 41))
files = st.dictionaries(sizes.map(str), slot, min_size=1, max_size=4)
runs = st.tuples(st.integers(0, 7), st.booleans())
stretches = st.lists(st.tuples(sizes, st.integers(0, 7), st.integers(1, 20)), max_size=12)
"""Requests in a batch, drafts accepted of each, and how many such batches there are."""


@given(files, runs, stretches)
def test_the_steps_are_those_that_sglang_would_choose(
    theirs: Any,
    tmp_path_factory: pytest.TempPathFactory,
    content: dict[str, Any],
    run: tuple[int, bool],
    seen: list[tuple[int, int, int]],
) -> None:
    initial, graphs = run
    path = tmp_path_factory.mktemp("adaptive") / "steps.json"
    path.write_text(json.dumps(content))
    padded_to = captured(None, 48) if graphs else []
    real = theirs.AdaptiveSpeculativeParams(initial, str(path))
    real.set_cuda_graph_bs(padded_to)
    ours = Adaptive(read(path.read_text()), initial, padded_to)
    for requests, drafts in (pair for *pair, count in seen for _ in range(count)):
        accepted = [drafts] * requests
        assert ours.steps(len(accepted)) == real.get_steps_for_batch(len(accepted))
        real.on_verify_complete(accepted, len(accepted))
        ours.verified(accepted, len(accepted))


def test_without_a_file_the_slots_are_sglang_s_own(theirs: Any) -> None:
    shipped = {
        key: {name: value for name, value in entry.items() if name in SHIPPED[key]}
        for key, entry in theirs.DEFAULT_ADAPTIVE_CONFIG.items()
    }
    assert shipped == SHIPPED


@pytest.mark.parametrize("text", ["[]", "{}", '{"1": {}}', '{"1": {"candidate_steps": [-1]}}', "x"])
def test_a_file_that_sglang_cannot_use_ends_the_start(text: str, tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    path.write_text(text)
    with pytest.raises(SystemExit) as ended:
        flags.parse([*EAGLE, "--speculative-adaptive-config", str(path)])
    assert ended.value.code == 1


def test_fixed_steps_that_are_no_candidate_end_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "steps.json"
    path.write_text(json.dumps(PINNED))
    named = ("--speculative-adaptive-config", str(path))
    assert flags.parse([*EAGLE, *named]).speculative_num_steps == 3
    with pytest.raises(SystemExit):
        flags.parse([*EAGLE, *named, "--speculative-num-steps", "5"])
    assert "--speculative-num-steps=5 is not in the adaptive config" in capsys.readouterr().err


def test_what_sglang_cannot_adapt_keeps_its_steps_and_says_why() -> None:
    found = flags.parse([*EAGLE, "--speculative-eagle-topk", "4"])
    assert found.adaptive is None
    assert found.adaptive_off == "speculative_eagle_topk=4 (only topk=1 is supported)"
    assert found.speculative_num_steps == 3


def seconds_and_lengths(requests: int) -> tuple[float, float]:
    """Seconds per token of each stream, and tokens per step, of so many streams at once."""
    found = surfaces()
    drafting = Pace(found.find("demo:speculative"), 5000, reference_accept_length=2.4)
    plain = Pace(found.find("demo:baseline"), 5000)
    adaptive = Adaptive(read(json.dumps(PINNED)), 3, captured(None, 48))
    core = Core(drafting, Limits(48, 100_000, draft_tokens=4), Adapting(adaptive, plain))
    core.pause(True, now=0.0)
    for number in range(requests):
        core.submit(Job(str(number), 1, 400, accept_length=2.4, seed=number), now=0.0)
    core.pause(False, now=0.0)
    begun = core.due
    ended = 0.0
    # The first to end leaves a smaller batch behind: look at what all of them do together.
    while core.due is not None and len(core.running) in (0, requests):
        ended = core.due
        core.advance(ended)
    assert begun is not None
    done = core.totals.verify_tokens / requests
    return (ended - begun) / done, core.totals.verify_tokens / core.totals.verify_steps


def test_zero_steps_run_as_the_baseline_and_others_as_the_speculative_profile() -> None:
    demo = surfaces()
    for requests, column, length in ((1, "speculative", 2.4), (16, "baseline", 1.0)):
        seconds, tokens = seconds_and_lengths(requests)
        rate = demo.find(f"demo:{column}").tokens_per_second(requests, 200)
        assert seconds == pytest.approx(requests / rate, rel=0.08)
        assert tokens == pytest.approx(length, rel=0.08)
