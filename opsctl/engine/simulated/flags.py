"""The command line: SGLang's flags, and `--sim-*` for what only a simulation has."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opsctl.engine.simulated import NAME, adaptive, faults, ignored
from opsctl.engine.simulated.surface import surfaces


@dataclass(frozen=True)
class Options:
    """A parsed command line. Times in seconds, sizes in bytes, rates in tokens per second."""

    model_path: str
    served_model_name: str
    host: str
    port: int
    tp_size: int
    api_key: str | None
    enable_metrics: bool
    gated_launch_port: int | None
    max_running_requests: int
    max_total_tokens: int
    context_length: int
    chunked_prefill_size: int
    decode_log_interval: int
    publish_interval: int
    speculative_algorithm: str | None
    speculative_num_steps: int
    speculative_num_draft_tokens: int
    adaptive: Mapping[int, Mapping[str, Any]] | None
    """Settings of each batch size; None with fixed steps."""
    adaptive_off: str
    """Why `--speculative-adaptive` has no effect."""
    graph_batches: tuple[int, ...]
    surface: str
    seed: int
    time_scale: float
    start_time: float
    drain_poll: float
    prefill_rate: float
    memory: int
    linger: float | None
    crash_delay: float
    health_timeout: float
    faults: tuple[faults.Fault, ...]
    server_args: dict[str, object]

    @property
    def speculating(self) -> bool:
        """Whether the engine drafts."""
        return self.speculative_algorithm is not None

    @property
    def usable_context(self) -> int:
        """The longest prompt plus answer, in tokens."""
        return min(self.context_length, self.max_total_tokens)


def parse(argv: Sequence[str]) -> Options:
    """Parse a command line; exits 2 with argparse's own words when it is wrong, as SGLang does."""
    parser = _parser()
    raw = parser.parse_args(argv)
    name = _surface_name(raw)
    try:
        surfaces().find(name)
    except KeyError as error:
        parser.error(f"argument --sim-surface: {error.args[0]}")
    try:
        settings, off = _adaptive(raw)
    except (OSError, ValueError) as error:
        # SGLang ends with a traceback; the port is not bound yet.
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        raise SystemExit(1) from None
    return _options(raw, name, settings, off)


def _adaptive(raw: argparse.Namespace) -> tuple[Mapping[int, Mapping[str, Any]] | None, str]:
    """Return the settings of `--speculative-adaptive`, or why it has no effect.

    Sets the draft steps as SGLang does where the command line leaves them out.
    Raises OSError and ValueError where SGLang ends.
    """
    if not raw.speculative_adaptive:
        return None, ""
    if (raw.speculative_algorithm or "").upper() not in ("EAGLE", "EAGLE3"):
        only = "(only EAGLE/EAGLE3 are supported)"
        return None, f"speculative_algorithm={raw.speculative_algorithm} {only}"
    if raw.speculative_eagle_topk not in (None, 1):
        only = "(only topk=1 is supported)"
        return None, f"speculative_eagle_topk={raw.speculative_eagle_topk} {only}"
    path = raw.speculative_adaptive_config
    settings = adaptive.read(None if path is None else Path(path).read_text(encoding="utf-8"))
    known = adaptive.candidates(settings)
    if raw.speculative_num_steps is None:
        raw.speculative_num_steps = known[len(known) // 2]
    if raw.speculative_num_steps not in known:
        raise ValueError(
            f"--speculative-num-steps={raw.speculative_num_steps} is not in the adaptive config "
            f"candidate_steps {known}. Pass one of those values."
        )
    raw.speculative_num_draft_tokens = raw.speculative_num_steps + 1
    return settings, ""


def _surface_name(raw: argparse.Namespace) -> str:
    if raw.sim_surface:
        return str(raw.sim_surface)
    return "demo:speculative" if raw.speculative_algorithm else "demo:baseline"


def _options(
    raw: argparse.Namespace,
    surface: str,
    adaptive_settings: Mapping[int, Mapping[str, Any]] | None,
    adaptive_off: str,
) -> Options:
    speculating = raw.speculative_algorithm is not None
    given = raw.speculative_num_steps
    steps = (3 if given is None else given) if speculating else 0
    # SGLang sets 48 for the EAGLE family when the flag is absent.
    running = raw.max_running_requests or (48 if speculating else 256)
    return Options(
        model_path=raw.model_path,
        served_model_name=raw.served_model_name or raw.model_path,
        host=raw.host,
        port=raw.port,
        tp_size=raw.tp_size,
        api_key=raw.api_key,
        enable_metrics=raw.enable_metrics,
        gated_launch_port=raw.gated_launch_port,
        max_running_requests=running,
        max_total_tokens=raw.max_total_tokens,
        context_length=raw.context_length,
        chunked_prefill_size=(
            raw.chunked_prefill_size if raw.chunked_prefill_size > 0 else raw.max_total_tokens
        ),
        decode_log_interval=raw.decode_log_interval,
        publish_interval=raw.load_snapshot_publish_interval,
        speculative_algorithm=raw.speculative_algorithm,
        speculative_num_steps=steps,
        speculative_num_draft_tokens=(
            (raw.speculative_num_draft_tokens or steps + 1) if speculating else 0
        ),
        adaptive=adaptive_settings,
        adaptive_off=adaptive_off,
        graph_batches=tuple(adaptive.captured(raw.cuda_graph_bs_decode, running)),
        surface=surface,
        seed=raw.sim_seed,
        time_scale=raw.sim_time_scale,
        start_time=raw.sim_start_time,
        drain_poll=raw.sim_drain_poll,
        prefill_rate=raw.sim_prefill_rate,
        memory=raw.sim_memory,
        linger=raw.sim_linger,
        crash_delay=raw.sim_crash_delay,
        health_timeout=raw.sim_health_timeout,
        faults=tuple(raw.sim_fault),
        server_args={
            key: value for key, value in sorted(vars(raw).items()) if not key.startswith("sim_")
        },
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=NAME,
        description="A simulated SGLang server: no model is loaded and no GPU is used.",
    )
    _serving(parser)
    _scheduling(parser)
    _simulation(parser)
    for name in ignored.WITH_VALUE:
        parser.add_argument(f"--{name}", nargs="+", default=None, help=argparse.SUPPRESS)
    for name in ignored.BARE:
        parser.add_argument(f"--{name}", action="store_true", help=argparse.SUPPRESS)
    return parser


def _serving(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model-path", "--model", required=True, help="only a name here")
    add("--served-model-name")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=30000)
    add("--tp-size", "--tensor-parallel-size", type=_count, default=1)
    add("--api-key")
    add("--admin-api-key", help=argparse.SUPPRESS)
    add("--enable-metrics", action="store_true")
    add("--gated-launch-port", type=int)


def _scheduling(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--max-running-requests", type=_count)
    add("--max-total-tokens", type=_count, default=190_000)
    add("--context-length", type=_count, default=131_072)
    add("--chunked-prefill-size", type=int, default=8192, help="below 1: no chunks")
    add("--decode-log-interval", type=_count, default=40)
    add("--load-snapshot-publish-interval", type=_count, default=15)
    add("--speculative-algorithm")
    add("--speculative-draft-model-path", "--speculative-draft-model")
    add("--speculative-num-steps", type=_count)
    add("--speculative-num-draft-tokens", type=_count)
    add("--speculative-eagle-topk", type=_count)
    add("--speculative-adaptive", action="store_true")
    add("--speculative-adaptive-config", metavar="FILE")
    add("--cuda-graph-bs-decode", type=_count, nargs="+", help="only pads adaptive batches here")


def _simulation(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("simulation").add_argument
    add("--sim-surface", metavar="TABLE:COLUMN", help="throughput, from surfaces.yaml")
    add("--sim-seed", type=int, default=0)
    add("--sim-time-scale", type=_positive, default=1.0, help="multiplies every duration")
    add("--sim-start-time", type=_duration, default=3.0, help="seconds from spawn to ready")
    add("--sim-drain-poll", type=_positive, default=0.5, help="SGLang polls every 5 s")
    add("--sim-prefill-rate", type=_positive, default=5000.0, help="tokens per second")
    add("--sim-memory", type=int, default=64 * 2**30, help="bytes noted in the ledger")
    add("--sim-linger", type=_linger, default=0.0, help='seconds, or "never"')
    add("--sim-crash-delay", type=_duration, default=1.0, help="SGLang takes 5.6 s")
    add("--sim-health-timeout", type=_positive, default=20.0)
    add("--sim-fault", type=faults.parse, action="append", default=[], metavar="NAME[=VALUE]")


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be at least 1")
    return value


def _duration(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: must be a finite number of at least 0")
    return value


def _positive(text: str) -> float:
    value = _duration(text)
    if value == 0:
        raise argparse.ArgumentTypeError(f"{text}: must be above 0")
    return value


def _linger(text: str) -> float | None:
    return None if text == "never" else _duration(text)


def shown(options: Options) -> dict[str, Any]:
    """Return the server arguments as /server_info shows them (keys masked; SGLang shows them)."""
    secret = {key: "***" for key in ("api_key", "admin_api_key") if options.server_args[key]}
    return {**options.server_args, **secret}
