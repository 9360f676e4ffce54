"""/metrics: SGLang's families, names and labels, from the snapshot and from finished requests."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

from opsctl.engine.simulated import NAME
from opsctl.engine.simulated.flags import Options
from opsctl.engine.simulated.loads import Reader

_LATENCY = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
_INTER_TOKEN = (0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06,
                0.08, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8)  # fmt: skip


class _Gauges:
    """Collects the scheduler's gauges as they stand in the snapshot, however old they are."""

    def __init__(self, reader: Reader, labels: dict[str, str]) -> None:
        self._reader = reader
        self._labels = labels

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, value in self._reader.read().get("gauges", {}).items():
            family = GaugeMetricFamily(
                f"sglang:{name}", f"{name} (simulated)", labels=list(self._labels)
            )
            family.add_metric(list(self._labels.values()), value)
            yield family


class Metrics:
    """The counters and histograms of the front, and the gauges of the scheduler."""

    def __init__(self, options: Options, reader: Reader) -> None:
        self._registry = CollectorRegistry()
        self._speculating = options.speculating
        # `simulated_by` is ours alone: it keeps these numbers from passing for an engine's.
        labels = {
            "model_name": options.served_model_name,
            "engine_type": "unified",
            "simulated_by": NAME,
        }
        self._registry.register(
            _Gauges(reader, {**labels, "tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"})
        )
        names, values = tuple(labels), tuple(labels.values())
        streaming = (*names, "is_streaming")

        def counter(name: str, text: str) -> Counter:
            return Counter(f"sglang:{name}", text, streaming, registry=self._registry)

        self._values = values
        self._prompt = counter("prompt_tokens_total", "Prefill tokens processed.")
        self._generation = counter("generation_tokens_total", "Generation tokens processed.")
        self._requests = counter("num_requests_total", "Requests processed.")
        self._aborted = Counter(
            "sglang:num_aborted_requests_total", "Requests aborted.", names,
            registry=self._registry,
        ).labels(*values)  # fmt: skip
        self._verify = Counter(
            "sglang:spec_verify_calls_total", "Speculative verification calls.", names,
            registry=self._registry,
        ).labels(*values)  # fmt: skip
        self._first = Histogram(
            "sglang:time_to_first_token_seconds", "Time to first token.", streaming,
            buckets=_LATENCY, registry=self._registry,
        )  # fmt: skip
        self._between = Histogram(
            "sglang:inter_token_latency_seconds", "Time between tokens.", names,
            buckets=_INTER_TOKEN, registry=self._registry,
        ).labels(*values)  # fmt: skip
        self._whole = Histogram(
            "sglang:e2e_request_latency_seconds", "End-to-end request latency.", streaming,
            buckets=_LATENCY, registry=self._registry,
        )  # fmt: skip

    def text(self) -> bytes:
        """Return the exposition."""
        return generate_latest(self._registry)

    def first_token(self, seconds: float, stream: bool) -> None:
        """Note how long a request waited for its first token."""
        self._first.labels(*self._values, _word(stream)).observe(seconds)

    def next_tokens(self, seconds: float, count: int) -> None:
        """Note the time between tokens; several at once share the time evenly, as in SGLang."""
        for _ in range(count):
            self._between.observe(seconds / count)

    def finished(
        self, prompt: int, generated: int, steps: int, seconds: float, *, stream: bool
    ) -> None:
        """Count a request that has ended. SGLang counts its tokens only now."""
        labels = (*self._values, _word(stream))
        self._prompt.labels(*labels).inc(prompt)
        self._generation.labels(*labels).inc(generated)
        self._requests.labels(*labels).inc()
        if self._speculating:
            self._verify.inc(max(0, steps - 1))  # the first token comes out of the prefill
        self._whole.labels(*labels).observe(seconds)

    def aborted(self) -> None:
        """Count an aborted request."""
        self._aborted.inc()


def _word(flag: bool) -> str:
    return "true" if flag else "false"
