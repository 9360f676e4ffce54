"""What opsctl relies on is what a real SGLang does, and what the simulated engine does too.

One real server (EAGLE-3, accept length simulated by SGLang) is started for the module; the tests
run in file order, and the last one stops it.
"""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from opsctl.config.schema import LaunchProfile
from opsctl.engine.client import EngineClient, Readiness
from opsctl.engine.markers import stage_of
from tests.support.server import Server, wait_until
from tests.support.sglang_cpu.environment import SglangEnvironment
from tests.support.sglang_cpu.profiles import SERVED_NAME, eagle3

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(1200)]

LOADS = "/v1/loads?include=core,spec"
# What opsctl reads of one rank there.
LOAD_FIELDS = {
    "timestamp",
    "dp_rank",
    "num_running_reqs",
    "num_waiting_reqs",
    "num_used_tokens",
    "max_total_num_tokens",
    "max_running_requests",
    "gen_throughput",
    "total_prefill_uncached_tokens",
}
# What opsctl reads of /metrics.
METRICS = {
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    "sglang:num_used_tokens",
    "sglang:max_total_num_tokens",
    "sglang:gen_throughput",
    "sglang:token_usage",
    "sglang:generation_tokens_total",
    "sglang:prompt_tokens_total",
    "sglang:spec_accept_length",
}


@pytest.fixture(scope="module")
def real(
    sglang_environment: SglangEnvironment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("real") / "engine.log"
    with Server(eagle3(sglang_environment), log) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("simulated") / "engine.log"
    with Server(simulated_profile(), log) as server:
        server.wait_ready()
        yield server


def simulated_profile() -> LaunchProfile:
    return LaunchProfile(
        engine="simulated",
        model="simulated",
        draft_model="draft",
        served_name=SERVED_NAME,
        flags={
            "speculative-algorithm": "EAGLE3",
            "speculative-num-steps": 3,
            "speculative-eagle-topk": 1,
            "speculative-num-draft-tokens": 4,
            "max-running-requests": 8,
        },
    )


def get(server: Server, path: str) -> bytes:
    with urllib.request.urlopen(server.url + path, timeout=30) as response:
        return bytes(response.read())


def question(max_tokens: int, **extra: object) -> bytes:
    messages = [{"role": "user", "content": "hello world"}]
    body = {"model": SERVED_NAME, "messages": messages, "max_tokens": max_tokens, **extra}
    return json.dumps(body).encode()


def chat(server: Server, max_tokens: int, **extra: object) -> bytes:
    request = urllib.request.Request(
        server.url + "/v1/chat/completions",
        data=question(max_tokens, **extra),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        return bytes(response.read())


def events(body: bytes) -> list[str]:
    """Return the payloads of a stream in which nothing but `data:` lines may occur."""
    lines = [line for line in body.decode().split("\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    return [line.removeprefix("data: ") for line in lines]


def stream(server: Server, max_tokens: int) -> list[str]:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    return events(chat(server, max_tokens, **options))


def load(server: Server) -> tuple[int, int]:
    """Return how many requests run and how many wait."""
    (rank,) = json.loads(get(server, LOADS))["loads"]
    return rank["num_running_reqs"], rank["num_waiting_reqs"]


def families(exposition: bytes) -> set[str]:
    return set(re.findall(r"^# TYPE (\S+) ", exposition.decode(), re.MULTILINE))


def titles(server: Server) -> set[str]:
    """Return the titles of the engine's own children, ranks left out."""
    found = set()
    for process in server.members():
        try:
            title = " ".join(process.cmdline()).strip()
        except psutil.NoSuchProcess:
            continue
        if title.startswith("sglang::"):
            found.add(re.sub(r"_(TP|DP|PP|EP)\d+", "", title))
    return found


def stages(server: Server) -> list[str]:
    """Return the stages the log marks, each at its first mark."""
    return list(dict.fromkeys(filter(None, map(stage_of, server.log.splitlines()))))


def test_a_start_is_refused_then_unavailable_then_ready(real: Server) -> None:
    assert real.answers == [None, 503, 200]


def test_the_log_marks_every_stage_in_order(real: Server) -> None:
    # The last line may come after /ready has turned 200.
    wait_until(lambda: "ready" in stages(real), seconds=10, what="the log says ready")
    # No graphs are captured on CPU.
    wanted = ["imports", "distributed", "weights", "kv_cache", "warmup", "ready"]
    assert stages(real) == wanted


def test_processes_carry_their_titles(real: Server) -> None:
    assert titles(real) == {"sglang::scheduler", "sglang::detokenizer"}


def test_the_served_name_is_listed(real: Server) -> None:
    listed = json.loads(get(real, "/v1/models"))["data"]
    assert [model["id"] for model in listed] == [SERVED_NAME]


async def test_the_client_finds_it_ready_named_and_generating(real: Server) -> None:
    client = EngineClient(real.url)
    try:
        assert await client.readiness() is Readiness.READY
        assert await client.models() == (SERVED_NAME,)
        generated = await client.generate_one(timeout=30)
        assert (generated.tokens, generated.finish_reason) == (4, "length")
        assert await client.server_info()
    finally:
        await client.close()


async def test_the_client_reads_the_load_and_sees_it_move(real: Server) -> None:
    client = EngineClient(real.url)
    try:
        before = await client.loads()
        assert before is not None
        assert (before.running, before.queued) == (0, 0)
        assert (before.max_running, before.capacity_tokens) == (8, 8192)
        long = asyncio.create_task(asyncio.to_thread(chat, real, 600))
        seen = []
        while not long.done():
            loads = await client.loads()
            assert loads is not None
            seen.append(loads)
            await asyncio.sleep(0.05)
        busy = [loads for loads in seen if loads.running]
        assert {loads.running for loads in busy} == {1}
        # SGLang publishes a few times a second, not at every step.
        assert len({loads.progress for loads in busy}) >= 5
        accepted = busy[-1].accept_length
        assert accepted is not None
        assert 2.2 < accepted < 2.8
    finally:
        await client.close()


def test_loads_have_the_fields_opsctl_reads(real: Server) -> None:
    document = json.loads(get(real, LOADS))
    assert {"timestamp", "version", "loads"} <= set(document)
    (rank,) = document["loads"]
    assert set(rank) >= LOAD_FIELDS
    assert rank["max_running_requests"] == 8
    assert rank["max_total_num_tokens"] == 8192
    assert isinstance(rank["timestamp"], float)


def test_loads_count_what_runs_and_what_waits(real: Server) -> None:
    with ThreadPoolExecutor(11) as pool:
        requests = [pool.submit(chat, real, 120) for _ in range(11)]
        wait_until(lambda: load(real) == (8, 3), seconds=60, what="8 run, 3 wait", every=0.01)
        for request in requests:
            assert json.loads(request.result())["usage"]["completion_tokens"] == 120
    wait_until(lambda: load(real) == (0, 0), seconds=10, what="nothing left running")


def test_what_was_just_prefilled_runs_unsaid(real: Server, simulated: Server) -> None:
    """It is counted with the 15th decode step: an answer of fewer steps never is."""
    for server in (real, simulated):
        with ThreadPoolExecutor(1) as pool:
            request = pool.submit(chat, server, 12)
            said = {load(server)}
            while not request.done():
                said.add(load(server))
            assert json.loads(request.result())["usage"]["completion_tokens"] == 12
        assert said == {(0, 0)}, server.url


def test_metrics_have_the_families_opsctl_reads(real: Server) -> None:
    exposition = get(real, "/metrics")
    assert families(exposition) >= METRICS
    made = re.search(rb'generation_tokens_total\{[^}]*"false"[^}]*\} (\S+)', exposition)
    assert made is not None
    assert float(made[1]) >= 11 * 120  # the eleven requests before


def test_a_speculating_stream_has_several_tokens_per_event(real: Server) -> None:
    payloads = stream(real, 60)
    assert payloads[-1] == "[DONE]"
    chunks = [json.loads(payload) for payload in payloads[:-1]]
    usage = chunks.pop()
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 60
    finished = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert finished == [None] * (len(chunks) - 1) + ["length"]
    with_text = [chunk for chunk in chunks if chunk["choices"][0]["delta"].get("content")]
    # 2.5 tokens a verify step: about 24 events for 60 tokens, never one for each.
    assert 60 / 4 <= len(with_text) <= 60 / 2


def test_the_accept_length_shows_while_it_speculates(real: Server) -> None:
    def accept_length() -> float:
        found = re.search(
            rb"^sglang:spec_accept_length\{[^}]*\} (\S+)", get(real, "/metrics"), re.M
        )
        assert found is not None
        return float(found[1])

    with ThreadPoolExecutor(1) as pool:
        request = pool.submit(chat, real, 600)
        wait_until(lambda: 2.2 < accept_length() < 2.8, seconds=60, what="about 2.5 tokens a step")
        request.result()


def test_a_client_that_leaves_ends_its_request(real: Server) -> None:
    request = urllib.request.Request(
        real.url + "/v1/chat/completions",
        data=question(3000, stream=True),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        assert response.readline().startswith(b"data: ")

    def aborted() -> bool:
        exposition = get(real, "/metrics").decode()
        return bool(re.search(r"^sglang:num_aborted_requests_total\{.*\} 1\.0", exposition, re.M))

    wait_until(aborted, seconds=10, what="one request aborted")
    assert load(real) == (0, 0)


def test_the_simulated_engine_has_the_same_fields(real: Server, simulated: Server) -> None:
    """The simulation may know less than SGLang, but nothing that SGLang does not."""
    stream(simulated, 8)  # what is counted over decode steps is missing before the first
    (of_real,) = json.loads(get(real, LOADS))["loads"]
    (of_simulated, *_) = json.loads(get(simulated, LOADS))["loads"]
    assert LOAD_FIELDS <= set(of_simulated) <= set(of_real)
    assert {k: type(v) for k, v in of_simulated.items()} == {
        k: type(of_real[k]) for k in of_simulated
    }


def test_the_simulated_engine_has_the_same_metrics(real: Server, simulated: Server) -> None:
    stream(simulated, 8)
    ours = {name for name in families(get(simulated, "/metrics")) if name.startswith("sglang")}
    assert METRICS <= ours <= families(get(real, "/metrics"))


def test_the_simulated_engine_streams_alike(real: Server, simulated: Server) -> None:
    def shape(server: Server) -> tuple[list[str], set[str], set[str], set[str]]:
        payloads = stream(server, 12)
        first, *_, last = (json.loads(payload) for payload in payloads[:-1])
        kinds = [
            payloads[-1],
            first["object"],
            str(last["choices"]),
            first["choices"][0]["delta"]["role"],
        ]
        return kinds, set(first), set(first["choices"][0]), set(last["usage"])

    kinds, *of_real = shape(real)
    same, *of_simulated = shape(simulated)
    assert same == kinds
    for known, claimed in zip(of_real, of_simulated, strict=True):
        assert claimed <= known
    assert {"prompt_tokens", "completion_tokens", "total_tokens"} <= of_simulated[-1]


def test_the_simulated_engine_starts_alike(real: Server, simulated: Server) -> None:
    assert simulated.answers[0] is None
    assert simulated.answers[-2:] == real.answers[-2:]
    assert titles(simulated) == titles(real)


def test_sigterm_drains_while_new_requests_are_still_served(real: Server) -> None:
    """The gate must be closed by the gateway: a draining SGLang keeps taking work."""
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(stream, real, 1200)
        wait_until(lambda: load(real) == (1, 0), seconds=30, what="the long request runs")
        real.terminate()
        wait_until(lambda: "SIGTERM received" in real.log, seconds=10, what="SIGTERM is logged")
        assert json.loads(chat(real, 4))["usage"]["completion_tokens"] == 4
        assert not long.done()
        payloads = long.result()
    assert payloads[-1] == "[DONE]"
    assert real.process.wait(30) == 0
    wait_until(lambda: not real.members(), seconds=10, what="the tree is gone")
