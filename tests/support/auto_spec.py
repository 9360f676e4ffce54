"""The watchdog beside both fixed profiles: the same requests, at the same moments, to all three.

Engines are simulated and as fast as their tables; what opsctl goes by are surfaces that `opsctl
tune` wrote from a measurement of these tables, or of ones that are wrong.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import aiohttp

from opsctl.bench.environment import host
from opsctl.bench.results import Profile, save_result
from opsctl.bench.traffic import Job, Outcome, numbered_words, stream_once
from opsctl.config.load import load
from opsctl.engine.simulated.surface import surfaces as tables
from opsctl.profiles.fingerprint import fingerprint
from tests.support.measured import cells, column, result
from tests.support.serving import Serving
from tests.support.simulated import MODEL, serving

PROFILES = ("eagle3", "baseline")
TABLES = {"eagle3": "speculative", "baseline": "baseline"}
SPECULATION = {
    "speculative-algorithm": "EAGLE3",
    "speculative-num-steps": 3,
    "speculative-eagle-topk": 1,
    "speculative-num-draft-tokens": 4,
}


@dataclass(frozen=True)
class Phase:
    """A stretch of load: requests a second, by chance; of one class of prompts."""

    seconds: float
    rate: float
    prompts: str = "chat"


@dataclass(frozen=True)
class Scene:
    """What is played: load, the profile that serves first, and what the surfaces say."""

    phases: tuple[Phase, ...]
    start: str = "baseline"
    mechanism: Literal["restart", "gated_restart", "in_engine"] = "restart"
    claim: float = 1.0
    """How many times as fast as in truth the draft's surface says it is."""
    measured_on: str = "chat"
    """Class of prompts that the surface was measured with."""
    tokens: int = 64
    time_scale: float = 1.0
    start_time: float = 1.0
    seed: int = 7
    auto_spec: Mapping[str, object] = field(default_factory=dict)
    arguments: tuple[str, ...] = ("--auto-spec",)

    @property
    def arrivals(self) -> list[tuple[float, str]]:
        """Seconds from the beginning, and the class of prompt."""
        source = random.Random(self.seed)
        found: list[tuple[float, str]] = []
        begin = 0.0
        for phase in self.phases:
            at = begin + source.expovariate(phase.rate)
            begin += phase.seconds
            while at < begin:
                found.append((at, phase.prompts))
                at += source.expovariate(phase.rate)
        return found

    @property
    def peak(self) -> float:
        """Requests a second of the busiest phase."""
        return max(phase.rate for phase in self.phases)


QUIET = Phase(4, 2)
"""The draft saves a third of each request's time."""
BURST = Phase(26, 7)
"""448 tok/s: a third more than the draft can do, with any number of requests at once."""

SCENES: Mapping[str, Scene] = {
    "burst, restart": Scene((QUIET, BURST, QUIET), start="eagle3"),
    "burst, gated_restart": Scene((QUIET, BURST, QUIET), start="eagle3", mechanism="gated_restart"),
    "burst, in_engine": Scene((QUIET, BURST, QUIET), start="eagle3", mechanism="in_engine"),
    "long quiet after a burst": Scene((Phase(15, 2), BURST, Phase(120, 2)), start="eagle3"),
    # Measured on easy prompts, the draft wins at this load; on agentic ones it is swamped.
    "acceptance collapse": Scene(
        (Phase(12, 2, "easy"), Phase(16, 5.5, "easy"), Phase(90, 5.5, "agentic")),
        measured_on="easy",
        start="eagle3",
    ),
    # Said to be fast enough for this load, which it is not.
    "wrong surface": Scene((Phase(20, 3), Phase(90, 6)), claim=1.3, start="eagle3"),
}


@dataclass(frozen=True)
class Answer:
    """One request; `seconds` from the moment it was due."""

    seconds: float
    outcome: Outcome


@dataclass(frozen=True)
class Row:
    """What became of the requests of one instance, in order of arrival."""

    name: str
    answers: Sequence[Answer]
    tokens: int
    """That each request asked for."""

    @property
    def lost(self) -> list[str]:
        """What is wrong with the answers that are not complete."""
        return [
            x.outcome.why or f"{x.outcome.tokens} tokens of {self.tokens}"
            for x in self.answers
            if not x.outcome.ok or x.outcome.tokens != self.tokens
        ]

    @property
    def mean(self) -> float:
        """Mean latency in seconds."""
        return sum(x.seconds for x in self.answers) / len(self.answers)

    @property
    def p99(self) -> float:
        """Latency in seconds that 99 % stay at or below."""
        ranked = sorted(x.seconds for x in self.answers)
        return ranked[min(int(0.99 * len(ranked)), len(ranked) - 1)]


@dataclass(frozen=True)
class Played:
    """A scene that was played."""

    scene: Scene
    rows: Mapping[str, Row]
    """`watchdog`, `eagle3` and `baseline`."""
    status: Mapping[str, Any]
    """Of the watchdog's instance, at the end of the load."""
    events: Sequence[Mapping[str, Any]]
    replayed: int
    """Exit code of `opsctl autospec replay` with the load journal."""
    replay: str
    """What it said."""
    begun: float
    """UNIX time at which the load began."""
    one_switch: float
    """Price of one switch at the busiest time, in request-seconds, by the seconds measured here."""

    @property
    def watchdog(self) -> Row:
        """The row that is judged."""
        return self.rows["watchdog"]

    @property
    def better(self) -> Row:
        """The better one of the fixed profiles."""
        return min((self.rows[name] for name in PROFILES), key=lambda row: row.mean)

    @property
    def harm(self) -> float:
        """Mean latency, where 0 is the better fixed profile's and 1 the worse one's."""
        worse = max(self.rows[name].mean for name in PROFILES)
        return (self.watchdog.mean - self.better.mean) / (worse - self.better.mean)

    @property
    def allowed(self) -> float:
        """R1: mean latency (s) that does no harm: 5 %, and the price of one switch."""
        return 1.05 * self.better.mean + self.one_switch / len(self.watchdog.answers)

    @property
    def targets(self) -> list[str]:
        """Where the watchdog went, in order."""
        return [str(x["target"]) for x in self.events_of("switched") if x["by"] == "policy"]

    @property
    def left_at(self) -> list[float]:
        """When the watchdog began these switches, in seconds of the load."""
        return [
            datetime.fromisoformat(x["time"]).timestamp() - self.begun
            for x in self.events_of("switch_begun")
            if x["by"] == "policy"
        ]

    def events_of(self, name: str) -> list[Mapping[str, Any]]:
        """The journal's events of one name."""
        return [event for event in self.events if event["event"] == name]

    @property
    def table(self) -> str:
        """The rows, for people."""
        lines = [f"{'':12}{'mean':>9}{'p99':>9}"]
        for row in self.rows.values():
            lines.append(f"{row.name:12}{row.mean:>7.2f} s{row.p99:>7.2f} s")
        steps = zip(self.targets, self.left_at, strict=False)
        went = ", ".join(f"{name} at {at:.0f} s" for name, at in steps) or "nowhere"
        lines.append(
            f"{len(self.watchdog.answers)} requests; R1 allows {self.allowed:.2f} s; went {went}"
        )
        return "\n".join(lines)


async def play(folder: Path, scene: Scene) -> Played:
    """Play a scene to three instances at once; what is left of them is gone afterwards."""
    with ExitStack() as stack:
        instances = {"watchdog": watchdog(folder / "watchdog", scene)}
        instances |= {name: _fixed(folder / name, scene, name) for name in PROFILES}
        await measure(instances["watchdog"], scene)
        for instance in instances.values():
            stack.enter_context(instance)
        for instance in instances.values():
            await asyncio.to_thread(instance.wait_serving)
        await rehearse(instances["watchdog"], scene)
        urls = {
            name: f"http://{(await asyncio.to_thread(x.wait_serving))['listen']}"
            for name, x in instances.items()
        }
        begun = time.time()
        found = await asyncio.gather(*(send(name, url, scene) for name, url in urls.items()))
        return await asyncio.to_thread(
            _judge, instances["watchdog"], scene, {row.name: row for row in found}, begun
        )


def _configured(scene: Scene) -> dict[str, Any]:
    flags = {
        "sim-time-scale": scene.time_scale,
        "sim-start-time": scene.start_time,
        "decode-log-interval": 4,
    }
    return {
        "eagle3": flags,
        "baseline": flags,
        "auto_spec": {
            "policy": "cost_aware",
            "mechanism": scene.mechanism,
            **scene.auto_spec,
        },
    }


def watchdog(folder: Path, scene: Scene) -> Serving:
    """The instance that decides by itself."""
    return serving(folder, *scene.arguments, serve=_serve(scene.start), **_configured(scene))


def _fixed(folder: Path, scene: Scene, profile: str) -> Serving:
    return serving(folder, serve=_serve(profile), **_configured(scene))


def _serve(profile: str) -> dict[str, Any]:
    return {"profile": profile, "gateway": {"hold": {"time": "60s"}}}


async def measure(instance: Serving, scene: Scene) -> None:
    """Let `opsctl tune` write the surfaces of a measurement as the scene says it went."""
    folder = instance.state_dir.parent
    config = load((folder / "opsctl.yaml",), environment={}).config
    result_of = folder / "measured"
    save_result(
        result_of,
        result(
            *(cell for name in PROFILES for cell in _cells(name, scene)),
            profiles=tuple(
                Profile(
                    name=name,
                    fingerprint=fingerprint(config.profiles[name]),
                    speculative=name == "eagle3",
                )
                for name in PROFILES
            ),
            environment=await host(),
        ),
    )
    written = await asyncio.to_thread(
        instance.opsctl, "tune", "--yes", "--config", str(folder / "opsctl.yaml"), str(result_of)
    )
    assert written.returncode == 0, written.stderr


def _cells(profile: str, scene: Scene) -> Iterator[Any]:
    factor = _factor(profile, scene.measured_on) * (scene.claim if profile == "eagle3" else 1.0)
    rows = {
        context: {n: rate * factor / scene.time_scale for n, rate in row.items()}
        for context, row in column("demo", TABLES[profile]).items()
    }
    more: dict[str, Any] = {"accept_length": tables().accept_lengths[scene.measured_on]}
    yield from cells(profile, rows, **(more if profile == "eagle3" else {}))


def _factor(profile: str, prompts: str) -> float:
    """How many times as fast as its table a profile is with such prompts."""
    known = tables()
    if profile == "baseline":
        return 1.0
    return known.accept_lengths[prompts] / known.reference_accept_length


async def rehearse(instance: Serving, scene: Scene) -> None:
    """Switch there and back by hand, as one does at noon: then it is known what that takes."""
    if scene.mechanism == "in_engine":
        return
    other = next(name for name in PROFILES if name != scene.start)
    for profile in (other, scene.start):
        done = await asyncio.to_thread(instance.opsctl, "switch", profile)
        assert done.returncode == 0, done.stderr


async def send(name: str, url: str, scene: Scene) -> Row:
    """Send a scene's requests, each when it is due."""
    loop = asyncio.get_running_loop()
    begin = loop.time() + 0.5
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=170)

    async def one(session: aiohttp.ClientSession, at: float, prompts: str) -> Answer:
        await asyncio.sleep(max(begin + at - loop.time(), 0))  # an open loop: arrivals do not wait
        prompt = f"[class:{prompts}]\nWrite the numbered words. {at:.3f}"
        job = Job(url, MODEL, prompt, scene.tokens, check=numbered_words)
        outcome = await stream_once(session, job)
        return Answer(loop.time() - begin - at, outcome)

    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        found = await asyncio.gather(*(one(session, *arrival) for arrival in scene.arrivals))
    return Row(name, found, scene.tokens)


def _judge(instance: Serving, scene: Scene, rows: Mapping[str, Row], begun: float) -> Played:
    status = instance.wait_serving()
    told = instance.opsctl("events", "--lines", "100000", "-o", "json").stdout
    events = [json.loads(line) for line in told.splitlines()]
    stopped = instance.opsctl("stop")
    assert stopped.returncode == 0, stopped.stderr
    assert instance.process.wait(30) == 0
    replayed = instance.opsctl(
        "autospec", "replay", "--trace", str(instance.state_dir / "load.jsonl")
    )
    return Played(
        scene=scene,
        rows=rows,
        status=status,
        events=events,
        replayed=replayed.returncode,
        replay=replayed.stderr,
        begun=begun,
        one_switch=_one_switch(scene, events),
    )


def _one_switch(scene: Scene, events: Sequence[Mapping[str, Any]]) -> float:
    """Price of the longest switch there was, had it come at the busiest time.

    Requests wait while the gate is closed, and the queue that formed is worked off with what the
    sturdy profile can do more than what comes.
    """
    if scene.mechanism == "in_engine":
        return 0.0
    parts = ("drain_s", "stop_s", "start_s")
    done = (event for event in events if event["event"] == "switched")
    closed = max(sum(event[part] for part in parts) for event in done)
    most = max(column("demo", TABLES["baseline"])[0].values()) / scene.time_scale / scene.tokens
    waiting = scene.peak * closed
    return float(waiting * closed / 2 + waiting**2 / 2 / (most - scene.peak))
