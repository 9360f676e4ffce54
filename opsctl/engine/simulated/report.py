"""What the scheduler tells about itself: load snapshots, gauges, log lines."""

from __future__ import annotations

import time
from typing import Any

from opsctl.engine.simulated.core import Core, Totals
from opsctl.engine.simulated.flags import Options
from opsctl.engine.simulated.loads import Writer
from opsctl.engine.simulated.output import say

_IDLE_GAUGES = 30.0

_NOT_DISAGGREGATED = {
    "mode": "null",
    "prefill_bootstrap_queue_reqs": 0,
    "prefill_inflight_queue_reqs": 0,
    "decode_prealloc_queue_reqs": 0,
    "decode_transfer_queue_reqs": 0,
    "decode_retracted_queue_reqs": 0,
    "kv_transfer_speed_gb_s": 0.0,
    "kv_transfer_latency_ms": 0.0,
}


class Report:
    """Publishes when SGLang would.

    The snapshot: at every prefill, every `--load-snapshot-publish-interval` decode steps and while
    idle. The gauges: at every prefill, every `--decode-log-interval` decode steps, when the batch
    has run empty, and every 30 s while idle; in between they keep their last value.
    """

    def __init__(self, options: Options, core: Core, writer: Writer, *, frozen: bool) -> None:
        self._options = options
        self._core = core
        self._writer = writer
        self.frozen = frozen
        self._seen = Totals()
        self._logged_steps = 0
        self._logged_at = time.monotonic()
        self._logged = Totals()
        self._throughput = 0.0
        self._was_idle = True
        self._gauges: dict[str, float] = {}
        self._gauges_at = 0.0
        self._spec_gauges = {"spec_num_steps": 0, "spec_num_draft_tokens": 0}
        self._refresh_gauges()

    def after_step(self) -> None:
        """Publish and log what is due."""
        totals, core = self._core.totals, self._core
        prefilled = totals.prefill_steps != self._seen.prefill_steps
        went_idle = core.idle and not self._was_idle
        self._was_idle = core.idle
        if prefilled:
            self._log_prefill()
        if totals.decode_steps - self._logged.decode_steps >= self._options.decode_log_interval:
            self._log_decode()
        elif went_idle or time.monotonic() - self._gauges_at > _IDLE_GAUGES:
            self._refresh_gauges()
        due = totals.decode_steps - self._seen.decode_steps >= self._options.publish_interval
        if prefilled or due or core.due is None:
            self.publish()

    def publish(self) -> None:
        """Write the snapshot."""
        self._seen = _copy(self._core.totals)
        self._writer.write({"load": self._load(), "gauges": self._gauges})

    def state(self) -> dict[str, Any]:
        """Return the entry of `internal_states` in /server_info."""
        return {
            "last_gen_throughput": round(self._throughput, 2),
            "memory_usage": {
                "weight": 68.4,
                "kvcache": 16.0,
                "token_capacity": self._options.max_total_tokens,
                "graph": 1.2,
            },
            "effective_max_running_requests_per_dp": self._options.max_running_requests,
            "avg_spec_accept_length": self._accept_length(),
            "speculative_num_steps": self._steps(),
            "idle": self._core.idle,
        }

    def _steps(self) -> int:
        """Return the draft steps in use now."""
        adapting = self._core.adapting is not None
        return self._core.draft_tokens - 1 if adapting else self._options.speculative_num_steps

    def _accept_length(self) -> float | None:
        totals = self._core.totals
        if not totals.verify_steps:
            return None
        return totals.verify_tokens / totals.verify_steps

    def _load(self) -> dict[str, Any]:
        core, options, totals = self._core, self._options, self._core.totals
        used = core.used_tokens
        waiting_tokens = sum(sequence.job.prompt_tokens for sequence in core.waiting)
        load: dict[str, Any] = {
            "timestamp": time.time(),
            "dp_rank": 0,
            "num_running_reqs": core.said_to_run,
            "num_waiting_reqs": len(core.waiting),
            "num_waiting_uncached_tokens": waiting_tokens,
            "num_used_tokens": used,
            "num_total_tokens": used + waiting_tokens,
            "num_active_tokens": used + waiting_tokens,
            "num_prealloc_ready_tokens": 0,
            "max_total_num_tokens": options.max_total_tokens,
            "max_running_requests": options.max_running_requests,
            "token_usage": round(used / options.max_total_tokens, 4),
            "gen_throughput": round(self._throughput, 2),
            "cache_hit_rate": 0.0,
            "utilization": 0.0,
            "total_prefill_uncached_tokens": totals.prefill_tokens,
            "total_prefill_busy_us": int(totals.prefill_seconds * 1e6),
            "decode_moments": list(totals.moments) if totals.decode_steps else None,
        }
        load["memory"] = {
            "weight_gb": 68.4,
            "kv_cache_gb": 16.0,
            "graph_gb": 1.2,
            "token_capacity": options.max_total_tokens,
        }
        if options.speculating:
            length = self._accept_length() or 0.0
            load["speculative"] = {
                "accept_length": round(length, 4),
                "accept_rate": round(self._rate(length), 4),
            }
        load["disaggregation"] = _NOT_DISAGGREGATED
        load["queues"] = {
            "waiting": len(core.waiting),
            "grammar": 0,
            "paused": 0,
            "retracted": 0,
            "prealloc_ready": 0,
        }
        return load

    def _rate(self, accept_length: float) -> float:
        proposed = max(1, self._core.draft_tokens - 1)
        return max(0.0, accept_length - 1.0) / proposed

    def _window_accept_length(self) -> float:
        steps = self._core.totals.verify_steps - self._logged.verify_steps
        tokens = self._core.totals.verify_tokens - self._logged.verify_tokens
        return tokens / steps if steps else self._gauges.get("spec_accept_length", 0.0)

    def _log_prefill(self) -> None:
        totals, core = self._core.totals, self._core
        say(
            f"Prefill batch, #new-token: {totals.prefill_tokens - self._seen.prefill_tokens}, "
            f"#cached-token: 0, token usage: {self._usage():.2f}, "
            f"#running-req: {core.said_to_run}, #queue-req: {len(core.waiting)}",
            rank=0,
        )
        self._refresh_gauges()

    def _log_decode(self) -> None:
        now, totals, core = time.monotonic(), self._core.totals, self._core
        tokens = totals.decode_tokens - self._logged.decode_tokens
        self._throughput = tokens / max(now - self._logged_at, 1e-6)
        length = self._window_accept_length()
        steps = self._steps()
        self._spec_gauges = {"spec_num_steps": steps, "spec_num_draft_tokens": steps + 1}
        self._refresh_gauges()
        self._logged, self._logged_at = _copy(totals), now
        spec = f"accept len: {length:.2f}, accept rate: {self._rate(length):.2f}, "
        say(
            f"Decode batch, #running-req: {len(core.running)}, #token: {core.used_tokens}, "
            f"token usage: {self._usage():.2f}, {spec if self._options.speculating else ''}"
            f"gen throughput (token/s): {self._throughput:.2f}, #queue-req: {len(core.waiting)}",
            rank=0,
        )

    def _usage(self) -> float:
        return self._core.used_tokens / self._options.max_total_tokens

    def _refresh_gauges(self) -> None:
        if self.frozen and self._gauges:
            return
        core, options = self._core, self._options
        length = self._window_accept_length()
        self._gauges_at = time.monotonic()
        self._gauges = {
            "num_running_reqs": core.said_to_run,
            "num_queue_reqs": len(core.waiting),
            "num_used_tokens": core.used_tokens,
            "token_usage": round(self._usage(), 4),
            "max_total_num_tokens": options.max_total_tokens,
            "gen_throughput": round(self._throughput, 2),
            "cache_hit_rate": 0.0,
            "num_paused_reqs": 0,
            "num_retracted_reqs": 0,
        }
        if options.speculating:
            self._gauges |= {
                "spec_accept_length": round(length, 4),
                "spec_accept_rate": round(self._rate(length), 4),
                **self._spec_gauges,
            }


def _copy(totals: Totals) -> Totals:
    return Totals(**vars(totals))
