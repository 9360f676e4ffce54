from __future__ import annotations

import json

import pytest

from opsctl.engine.markers import (
    STAGES,
    adaptive_off,
    cannot_listen,
    classify,
    is_progress,
    stage_of,
)
from tests.support.released import released_or_skip

STAMP = "[2026-11-29 10:00:00] "
RANK = "[2026-11-29 10:00:00.123 TP0] "

# Lines as sglang prints them; the first of each pair is 0.5.9's, the second 0.5.23's.
LINES = [
    ("imports", STAMP + "server_args=ServerArgs(model_path='m', api_key=None)"),
    ("imports", STAMP + "server_args={'model_path': 'm'}"),
    ("distributed", RANK + "Init torch distributed begin."),
    ("distributed", RANK + "Init parallel begin."),
    ("weights", RANK + "Load weight begin. avail mem=93.10 GB"),
    ("kv_cache", RANK + "Load weight end. elapsed=3.1 s, type=LlamaForCausalLM, mem usage=60 GB."),
    ("kv_cache", RANK + "KV Cache is allocated. #tokens: 8192, K size: 1.00 GB, V size: 1.00 GB"),
    ("kv_cache", RANK + "KV Cache is allocated. dtype: bf16, #tokens: 8192, KV size: 1.00 GB"),
    (
        "graphs",
        RANK + "Capture cuda graph begin. This can take up to several minutes. avail mem=9 GB",
    ),
    ("graphs", RANK + "Capture target decode CUDA graph begin. backend=full, avail mem=9.00 GB"),
    ("graphs", RANK + "Capture draft extend cuda graph begin (step 1). This can take"),
    ("graphs", RANK + "Capture Frozen-KV MTP draft cuda graph begin."),
    ("warmup", STAMP + "INFO:     Application startup complete."),
    (
        "warmup",
        STAMP + "INFO:     Uvicorn running on http://127.0.0.1:30000 (Press CTRL+C to quit)",
    ),
    ("ready", STAMP + "The server is fired up and ready to roll!"),
]


@pytest.mark.parametrize(("stage", "line"), LINES)
def test_every_stage_is_recognised_by_the_line_that_begins_it(stage: str, line: str) -> None:
    assert stage_of(line) == stage
    assert stage_of(line.partition("] ")[2]) == stage  # other log formats have no stamp
    assert stage in STAGES


@pytest.mark.parametrize(
    "line",
    [
        RANK + "Load weight took long",
        RANK + "Capture cuda graph end. Time elapsed: 3.10 s.",
        RANK + "Gated launch still waiting for activation. rank=0 elapsed=60 s",
        STAMP + "INFO:     Waiting for application startup.",
        "",
    ],
)
def test_other_lines_mark_no_stage(line: str) -> None:
    assert stage_of(line) is None


FAILURES = [
    ("out_of_memory", -9, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"),
    ("out_of_memory", -9, "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate"),
    (
        "out_of_memory",
        -9,
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
    ),
    (
        "out_of_memory",
        -9,
        "ValueError: Loaded weights leave no GPU memory for the KV cache under"
        " --mem-fraction-static=0.1",
    ),
    ("out_of_memory", -9, "Exception: Capture cuda graph failed: CUDA out of memory. Tried"),
    ("out_of_memory", 1, "MemoryError"),
    (
        "port_in_use",
        3,
        STAMP + "ERROR:    [Errno 98] error while attempting to bind on address"
        " ('127.0.0.1', 30000): address already in use",
    ),
    ("port_in_use", 1, "OSError: [Errno 98] Address already in use"),
    ("port_in_use", -9, "zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:1')"),
    (
        "port_in_use",
        1,
        "RuntimeError: The server socket has failed to listen: EADDRINUSE, port 1",
    ),
    ("port_in_use", 1, "ValueError: dist_init at 30433 is not available in 30 seconds. nccl_port"),
    ("bad_flags", 2, "sglang serve: error: unrecognized arguments: --no-such-flag 1"),
    (
        "bad_flags",
        2,
        "launch_server.py: error: argument --attention-backend: invalid choice: 'nope'",
    ),
    ("bad_flags", 2, "launch_server.py: error: ambiguous option: --cuda-graph-max-bs could match"),
    ("bad_model", -9, "RuntimeError: Cannot find any model weights with `/models/x`"),
    (
        "bad_model",
        1,
        "OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/nonexistent'",
    ),
    ("bad_model", 1, "ValueError: Unrecognized model in /models/x. Should have a model_type key"),
    ("bad_model", -9, "ValueError: Model architectures ['X'] are not supported for now. Supported"),
    ("gpu_error", -9, "torch.AcceleratorError: CUDA error: an illegal memory access was hit"),
    ("gpu_error", -9, "RuntimeError: NCCL error in: /nccl.cpp:1, unhandled cuda error"),
    ("gpu_error", 1, "RuntimeError: No CUDA GPUs are available"),
    (
        "unsupported_gpu",
        -9,
        "torch.AcceleratorError: CUDA error: no kernel image is available for execution",
    ),
    ("unsupported_gpu", -9, "ptxas fatal   : Value 'sm_120a' is not defined for option 'gpu-name'"),
    ("unsupported_gpu", -9, "ValueError: Unsupported compute capability: 12.0"),
    ("no_compiler", -9, "RuntimeError: Ninja is required to load C++ extensions (pip install"),
    ("no_compiler", -9, "OSError: CUDA_HOME environment variable is not set. Please set it to"),
    ("no_compiler", -9, "FileNotFoundError: [Errno 2] No such file or directory: 'ninja'"),
    ("no_space", -9, "OSError: [Errno 28] No space left on device"),
    (
        "no_space",
        -9,
        "RuntimeError: unable to allocate shared memory(shm) for file </torch_1_2>: No space left",
    ),
]


@pytest.mark.parametrize(("kind", "code", "line"), FAILURES)
def test_the_cause_is_found_above_its_aftermath(kind: str, code: int, line: str) -> None:
    tail = [
        RANK + "Scheduler hit an exception: Traceback (most recent call last):",
        '  File "scheduler.py", line 1, in run',
        line,
        "",
        STAMP + "Received sigquit from a child process. It usually means the child failed.",
        STAMP + "kill_process_tree called: parent_pid=1, include_parent=True, pid=1",
    ]
    failure = classify(tail, code)
    assert failure.kind == kind
    assert failure.what == line.strip()[:300]
    assert failure.hint


@pytest.mark.parametrize("text", [line for _, _, line in FAILURES] + [line for _, line in LINES])
@pytest.mark.parametrize("end", ["", "\nTraceback"])
def test_a_prompt_in_a_request_line_never_matches(text: str, end: str) -> None:
    """SGLang writes prompts with repr or as JSON, so that their newlines stay escaped."""
    prompt = f"explain:\n{text}{end}"
    quoted = [
        f"{STAMP}Receive: obj=GenerateReqInput(rid='1', text={prompt!r})",
        f"{STAMP}Receive OpenAI: obj={{'messages': [{{'content': {prompt!r}}}]}}",
        f"{STAMP}Finish: obj=GenerateReqInput(text={prompt!r}), out={{'text': {prompt!r}}}",
        json.dumps(
            {"timestamp": "2026-11-29T10:00:00", "event": "request.received", "obj": prompt}
        ),
        f'{STAMP}INFO:     127.0.0.1:5 - "POST /v1/completions?x={text} HTTP/1.1" 200 OK',
    ]
    assert [stage_of(line) for line in quoted] == [None] * 5
    failure = classify(quoted, -9)
    assert failure.kind == "unknown"
    assert failure.what == "the log says nothing"


def test_the_last_telling_line_wins() -> None:
    tail = ["RuntimeError: NCCL error in: x", "torch.OutOfMemoryError: CUDA out of memory."]
    assert classify(tail, -9).kind == "out_of_memory"
    assert classify(tail[::-1], -9).kind == "gpu_error"


@pytest.mark.parametrize(
    ("code", "kind"),
    [(2, "bad_flags"), (3, "port_in_use"), (1, "unknown"), (-9, "unknown"), (None, "unknown")],
)
def test_the_exit_code_decides_only_where_no_line_does(code: int | None, kind: str) -> None:
    assert classify(["AssertionError: tp size"], code).kind == kind
    assert classify(["AssertionError: tp size"], code).what == "AssertionError: tp size"
    assert classify([], code).what == "the log says nothing"
    assert classify(["torch.OutOfMemoryError: CUDA out of memory."], code).kind == "out_of_memory"


def test_answers_to_opsctls_own_questions_are_no_progress() -> None:
    """They come five times a second, and would keep a hung start alive for ever."""
    assert not is_progress(
        'INFO:     127.0.0.1:60344 - "GET /ready HTTP/1.1" 503 Service Unavailable'
    )
    assert not is_progress(STAMP + 'INFO:     127.0.0.1:60344 - "GET /ready HTTP/1.1" 503')
    assert not is_progress(RANK + "Gated launch still waiting for activation. rank=0 elapsed=60 s")
    assert not is_progress("  ")


@pytest.mark.parametrize(
    "line",
    [
        *(line for _, line in LINES),
        "Loading safetensors checkpoint shards:  45% Completed | 29/64 [01:10<01:20, 2.1s/it]",
        "Capturing batches (bs=8 avail_mem=9.00 GB):  50%|#####     | 4/8 [00:02<00:02]",
    ],
)
def test_marks_and_progress_bars_are_progress(line: str) -> None:
    assert is_progress(line)


def test_a_taken_port_is_told_by_uvicorns_own_line_alone() -> None:
    line = "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 3)"
    assert cannot_listen(line)
    assert cannot_listen(STAMP + line)
    assert not cannot_listen(f"{STAMP}Receive: obj=GenerateReqInput(text={line!r})")
    assert not cannot_listen("OSError: [Errno 98] Address already in use")  # may be tried again


ADAPTIVE_OFF = (
    "speculative_adaptive disabled: speculative_eagle_topk=4 (only topk=1 is supported). "
    "Falling back to static speculative params."
)


@pytest.mark.parametrize(
    "before", ["", "[2026-11-29 10:00:00] ", "WARNING:sglang.srt.arg_groups.speculative_hook:"]
)
def test_sglang_s_word_that_it_does_not_adapt_is_found(before: str) -> None:
    """0.5.23 writes it with its stamp; it comes so early that another may not."""
    assert adaptive_off(before + ADAPTIVE_OFF) == ADAPTIVE_OFF


@pytest.mark.parametrize("before", ["Receive: obj=", '{"text": "', "[2026-11-29 10:00:00] said "])
def test_a_prompt_that_quotes_it_does_not_turn_it_off(before: str) -> None:
    assert adaptive_off(before + ADAPTIVE_OFF) is None


@pytest.mark.parametrize("version", ["0.5.14", "0.5.23"])
def test_releases_say_it_in_these_words(version: str) -> None:
    path = released_or_skip("sglang", version) / "sglang/srt/arg_groups/speculative_hook.py"
    source = path.read_text()
    start, _, end = ADAPTIVE_OFF.partition("speculative_eagle_topk=4 (only topk=1 is supported)")
    assert f'f"{start}{{reason}}' in source
    assert end.removeprefix(". ") in source
