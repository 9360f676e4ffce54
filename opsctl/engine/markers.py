"""What an engine's log says: how far a start has come, and why it failed.

Wording read in sglang 0.5.9 and 0.5.23; the simulated engine prints the same lines. Every pattern
is anchored behind the time stamp (`[2026-11-29 10:00:00 TP0] `), so that a prompt quoted inside a
request line (`Receive: obj=`, `Finish: obj=`, JSON, access log) matches nothing: quoted text has
its newlines escaped and never begins a line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

STAGES = (
    "spawned",
    "imports",
    "distributed",
    "weights",
    "kv_cache",
    "graphs",
    "warmup",
    "ready",
)
"""In the order a start passes them; each name is what the engine is doing from its mark on."""

FailureKind = Literal[
    "out_of_memory",
    "port_in_use",
    "bad_flags",
    "bad_model",
    "unsupported_gpu",
    "gpu_error",
    "no_compiler",
    "no_space",
    "unknown",
]

_STAMP = r"(?:\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]*\] +)?"
_LEVEL = r"(?:(?:ERROR|INFO|CRITICAL): +)?"

_STAGE_MARKS = (
    # both: `server_args=`, the first line after all imports
    ("imports", r"server_args="),
    # 0.5.9: "Init torch distributed begin."; 0.5.23: "Init parallel begin."
    ("distributed", r"Init (torch distributed|parallel) begin"),
    # both; with a draft model a second time, later
    ("weights", r"Load weight begin"),
    # both: "Load weight end. ...", "KV Cache is allocated. ..."; 0.5.23 names other pools too
    ("kv_cache", r"(Load weight end|(\w+ )?KV Cache (is allocated|VA upper bound))"),
    # 0.5.9: "Capture cuda graph begin.", "Capture draft extend cuda graph begin.", "... (step 1)";
    # 0.5.23: "Capture target decode CUDA graph begin. backend=..."
    ("graphs", r"Capture [\w -]*graph begin"),
    # both, from uvicorn: the port is bound now, and SGLang sends itself one request
    ("warmup", r"(Application startup complete|Uvicorn running on )"),
    # both. In a port conflict 0.5.23 prints this too: its warm-up reached the other server.
    ("ready", r"The server is fired up and ready to roll!"),
)
_STAGE_PATTERN = re.compile(
    _STAMP + _LEVEL + "(?:" + "|".join(f"(?P<{name}>{mark})" for name, mark in _STAGE_MARKS) + ")"
)

_ERROR = r"(?:[\w.]*(?:Error|Exception): )"
_CAPTURE = r"(?:Capture cuda graph failed: )?"


@dataclass(frozen=True)
class Failure:
    """Why an engine ended: a class for the policy, the telling line, and what to do next."""

    kind: FailureKind
    what: str
    hint: str | None


_FAILURES: tuple[tuple[FailureKind, str, str], ...] = (
    (
        "out_of_memory",
        rf"{_ERROR}?{_CAPTURE}"
        r"(CUDA out of memory|CUDA error: out of memory"
        r"|Not enough memory\. Please try to increase"  # 0.5.9, 0.5.23
        r"|Loaded weights leave no GPU memory"  # 0.5.23
        r"|Not enough GPU memory|(Prefill|Decode) out of memory"
        r"|DefaultCPUAllocator: can't allocate memory)"
        r"|MemoryError\b",
        "lower --mem-fraction-static or the graph batch sizes, or see what else holds GPU memory",
    ),
    (
        "port_in_use",
        # uvicorn's wording; then zmq's and torch's; then SGLang's own wait for derived ports
        r"(OSError: )?\[Errno 98\]"
        r"|zmq\.error\.ZMQError: Address already in use"
        rf"|{_ERROR}?.{{0,80}}\bEADDRINUSE\b"
        rf"|{_ERROR}?\w+ at \d+ is not available in [\d.]+ seconds"
        rf"|{_ERROR}Port is already in use",
        "another server listens on one of the engine's ports",
    ),
    (
        "bad_flags",
        # argparse: "sglang serve: error: ...", "launch_server.py: error: ..."
        r"[\w. /-]{1,80}: error: (unrecognized arguments|argument |ambiguous option"
        r"|the following arguments are required|one of the arguments)",
        "compare the profile's flags with those of the installed SGLang",
    ),
    (
        "bad_model",
        rf"{_ERROR}(Cannot find any model weights|Repo id must be in the form"
        r"|Unrecognized model in|Model architectures .* are not supported"
        r"|We couldn't connect to|Incorrect path_or_model_id"
        r"|.{1,300} does not appear to have a file named|.{1,300} is not a local folder"
        r"|Can't load tokenizer|Error while deserializing header)"
        r"|safetensors_rust\.SafetensorError",
        "check the model and draft paths and that their files are complete",
    ),
    (
        "unsupported_gpu",  # before gpu_error, whose words it shares
        rf"{_ERROR}CUDA error: no kernel image is available"
        rf"|{_ERROR}(Unsupported (compute capability|architecture)|.{{0,80}}\bPTXAS error)"
        r"|ptxas fatal +: (Value 'sm_\w+' is not defined|Unsupported gpu architecture)"
        rf"|{_ERROR}?SM \S+ requires CUDA",
        "something was built for other GPUs: compare the versions of torch, its kernels and the "
        "CUDA toolkit with what this GPU needs, or choose another backend",
    ),
    (
        "gpu_error",
        rf"{_ERROR}(CUDA error|CUDA driver|NCCL [Ee]rror|No CUDA GPUs are available"
        r"|The NVIDIA driver|Unexpected error from cudaGetDeviceCount|NVML)"
        rf"|{_ERROR}?.{{0,120}}\bncclUnhandledCudaError\b",
        "check the driver and the kernel log for Xid messages before starting again",
    ),
    (
        "no_compiler",
        # torch's, then FlashInfer's wording, then Python's for a program that is not there
        rf"{_ERROR}(Ninja is required to load|CUDA_HOME environment variable is not set"
        r"|Could not find nvcc"
        r"|\[Errno 2\] No such file or directory: '(\S*/)?(ninja|nvcc|gcc|g\+\+|cc|c\+\+)')",
        "kernels are compiled on first use: put ninja into the engine's environment, and set "
        "CUDA_HOME in the profile to a toolkit that fits torch",
    ),
    (
        "no_space",
        rf"{_ERROR}(\[Errno 28\]|No space left on device"
        r"|unable to (resize|allocate shared memory|open shared memory|mmap)\b)",
        "see what is full (df -h /dev/shm /tmp and the folder of the caches) and make room",
    ),
)
_FAILURE_PATTERNS = tuple(
    (kind, re.compile(_STAMP + _LEVEL + f"(?:{pattern})"), hint)
    for kind, pattern, hint in _FAILURES
)
_CANNOT_LISTEN = re.compile(
    _STAMP + _LEVEL + r"\[Errno 98\] error while attempting to bind on address"
)
_REQUEST_LINE = re.compile(
    _STAMP + r'(Receive|Finish)( OpenAI)?: |\{"timestamp"|' + _STAMP + r'INFO: +[\d.:a-f]+ - "'
)
_WAITING = re.compile(
    _STAMP + r"(Gated launch still waiting|Still waiting|Waiting for )", re.IGNORECASE
)
_ADAPTIVE_OFF = re.compile(
    # 0.5.11 to 0.5.23; the first lines of a start may come before logging is set up
    _STAMP + r"(?:WARNING:[\w.:]* *)?(speculative_adaptive disabled: .+)"
)
_AFTERMATH = re.compile(
    _STAMP + r"(Received sigquit from a child|kill_process_tree called|Killed$|\s*$)"
)


def stage_of(line: str) -> str | None:
    """The stage that a log line marks the beginning of; None for all other lines."""
    match = _STAGE_PATTERN.match(line)
    return match.lastgroup if match else None


def cannot_listen(line: str) -> bool:
    """Whether a line (uvicorn's) says that the engine's port is taken."""
    return bool(_CANNOT_LISTEN.match(line))


def adaptive_off(line: str) -> str | None:
    """Return SGLang's word that it does not adapt its draft steps, and why; None elsewhere."""
    match = _ADAPTIVE_OFF.match(line)
    return match[1].strip()[:300] if match else None


def is_progress(line: str) -> bool:
    """Whether a line shows that a start moves on.

    Access-log lines do not (opsctl's own questions cause them), nor does an engine that reports
    that it still waits.
    """
    return bool(line.strip()) and not (_REQUEST_LINE.match(line) or _WAITING.match(line))


def classify(tail: Sequence[str], exit_code: int | None) -> Failure:
    """Why an engine ended, from its last log lines and its exit code (negative for a signal).

    The last telling line wins: what came before was survived. `exit_code` decides only where no
    line tells: 2 is argparse's, 3 uvicorn's for a port it cannot bind.
    """
    for line in reversed(tail):
        if _REQUEST_LINE.match(line):
            continue
        for kind, pattern, hint in _FAILURE_PATTERNS:
            if pattern.match(line):
                return Failure(kind, line.strip()[:300], hint)
    if exit_code == 2:
        return Failure("bad_flags", _last_words(tail), _FAILURES[2][2])
    if exit_code == 3:
        return Failure("port_in_use", _last_words(tail), _FAILURES[1][2])
    return Failure("unknown", _last_words(tail), None)


def _last_words(tail: Sequence[str]) -> str:
    """The last line that may explain something: an exception rather than its aftermath."""
    lines = [line for line in tail if not (_REQUEST_LINE.match(line) or _AFTERMATH.match(line))]
    errors = [line for line in lines if re.match(_STAMP + _LEVEL + _ERROR, line)]
    return (errors or lines or ["the log says nothing"])[-1].strip()[:300]
