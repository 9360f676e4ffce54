"""What comes in from outside: command lines, faults, request bodies."""

from __future__ import annotations

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.engine.simulated import faults, flags, ignored, prompts, words
from opsctl.engine.simulated.surface import surfaces

OPTIONS = flags.parse(["--model-path", "m"])
LENGTHS = surfaces().accept_lengths
UNLABELLED = surfaces().unlabelled

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KEYS = ("model", "prompt", "messages", "max_tokens", "stream", "stream_options", "n", "rid",
        "text", "input_ids", "sampling_params", "max_completion_tokens")  # fmt: skip


def test_sglang_flags_that_mean_nothing_here_are_accepted() -> None:
    bare = [f"--{name}" for name in ignored.BARE]
    valued = [part for name in ignored.WITH_VALUE for part in (f"--{name}", "1")]
    assert flags.parse(["--model-path", "m", *bare, *valued]).model_path == "m"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--no-such-flag", "1"],
        ["--sim-surface", "demo:nothing"],
        ["--sim-fault", "nonsense"],
        ["--sim-fault", "abort_done"],
        ["--sim-time-scale", "0"],
        ["--sim-start-time", "nan"],
        ["--tp-size", "0"],
    ],
)
def test_a_wrong_command_line_exits_2_as_argparse_does(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        flags.parse(["--model-path", "m", *arguments])
    assert exit_.value.code == 2
    assert ": error: " in capsys.readouterr().err


def test_drafting_changes_the_default_surface_cap_and_draft_tokens() -> None:
    plain = OPTIONS
    drafting = flags.parse(["--model-path", "m", "--speculative-algorithm", "EAGLE3"])
    assert (plain.surface, plain.max_running_requests, plain.speculating) == (
        "demo:baseline", 256, False,
    )  # fmt: skip
    assert (drafting.surface, drafting.max_running_requests) == ("demo:speculative", 48)
    assert (drafting.speculative_num_steps, drafting.speculative_num_draft_tokens) == (3, 4)


def test_keys_are_masked_wherever_arguments_are_shown() -> None:
    shown = flags.shown(flags.parse(["--model-path", "m", "--api-key", "s3cret"]))
    assert "s3cret" not in repr(shown)


@pytest.mark.parametrize(
    ("text", "value"),
    [("slow_start=2.5", "2.5"), ("stuck_stage=weights", "weights"), ("hang", ""),
     ("start_failure=-9:oom", "-9:oom"), ("memory_lingers=never", "never")],
)  # fmt: skip
def test_faults_are_read_with_their_values(text: str, value: str) -> None:
    assert faults.parse(text) == faults.Fault(text.partition("=")[0], value)


@pytest.mark.parametrize(
    "text",
    ["crash_after", "crash_after=x", "slow_start=-1", "slow_start=nan", "stuck_stage=lunch",
     "start_failure=0", "start_failure=1:fire", "kill_child"],
)  # fmt: skip
def test_a_fault_with_a_wrong_value_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        faults.parse(text)


@pytest.mark.parametrize("kind", ["easy", "code", "chat", "agentic"])
def test_a_prompt_can_name_its_class(kind: str) -> None:
    reading = words.read(f"system text\n[class:{kind}] go", LENGTHS, UNLABELLED, seed=0)
    assert (reading.kind, reading.accept_length) == (kind, LENGTHS[kind])


def test_other_prompts_get_a_class_and_a_length_by_hash_and_seed() -> None:
    readings = [
        words.read(f"prompt {number}", LENGTHS, UNLABELLED, seed=0) for number in range(200)
    ]
    assert {reading.kind for reading in readings} == set(UNLABELLED)
    assert all(64 <= reading.natural_length <= 512 for reading in readings)
    assert readings == [
        words.read(f"prompt {number}", LENGTHS, UNLABELLED, seed=0) for number in range(200)
    ]
    assert readings != [
        words.read(f"prompt {number}", LENGTHS, UNLABELLED, seed=1) for number in range(200)
    ]


def test_prompts_without_a_class_run_at_the_columns_speed_on_the_whole() -> None:
    mean = sum(LENGTHS[kind] for kind in UNLABELLED) / len(UNLABELLED)
    assert mean == pytest.approx(surfaces().reference_accept_length)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=30))
def test_pieces_join_to_numbered_words(counts: list[int]) -> None:
    first, text = 0, ""
    for count in counts:
        text += words.text(first, count)
        first += count
    assert text.split(" ") == [f"w{index}" for index in range(first)]


def test_without_a_limit_a_chat_ends_by_itself_and_with_one_by_length() -> None:
    messages = [{"role": "user", "content": "hello"}]
    natural = prompts.chat({"messages": messages}, OPTIONS).job
    limited = prompts.chat({"messages": messages, "max_tokens": 7}, OPTIONS).job
    assert natural.finish == "stop"
    assert natural.max_new_tokens >= 64
    assert (limited.finish, limited.max_new_tokens) == ("length", 7)


def test_the_other_endpoints_have_their_own_default_limits() -> None:
    assert prompts.completion({"prompt": "x"}, OPTIONS).job.max_new_tokens == 16
    assert prompts.generate({"text": "x"}, OPTIONS).job.max_new_tokens == 128


def test_a_list_of_token_ids_counts_itself() -> None:
    assert prompts.completion({"prompt": [1, 2, 3]}, OPTIONS).job.prompt_tokens == 3
    assert prompts.generate({"input_ids": [[1, 2]]}, OPTIONS).job.prompt_tokens == 2


@pytest.mark.parametrize(
    "body",
    [
        [],
        {},
        {"prompt": ""} | {"max_tokens": 0},
        {"prompt": "x", "max_tokens": True},
        {"prompt": "x", "max_tokens": 10**9},
        {"prompt": "x", "stream": "yes"},
        {"prompt": "x", "n": 2},
        {"prompt": ["a", "b"]},
        {"prompt": [1, "b"]},
        {"prompt": "x", "rid": ""},
        {"prompt": "x", "stream_options": []},
    ],
)
def test_a_wrong_body_is_refused(body: object) -> None:
    with pytest.raises(prompts.BadRequestError):
        prompts.completion(body, OPTIONS)


@given(st.dictionaries(st.sampled_from(KEYS), json_values))
def test_no_body_gets_past_the_reader_unread(body: dict[str, object]) -> None:
    for read in (prompts.chat, prompts.completion, prompts.generate):
        try:
            job = read(body, OPTIONS).job
        except prompts.BadRequestError:
            continue
        assert job.prompt_tokens >= 1
        assert job.max_new_tokens >= 1
        assert job.prompt_tokens + job.max_new_tokens <= OPTIONS.usable_context
