"""The simulated engine as a process tree on a real port: what SGLang 0.5.23 was seen to do."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import signal
import socket
import time
from pathlib import Path

import aiohttp
import pytest

from tests.support.simulated_engine import Simulated, eventually, free_port, living, simulated

# Start ------------------------------------------------------------------------------------------


async def test_start_goes_from_refused_over_503_to_200_in_sglangs_words(tmp_path: Path) -> None:
    async with simulated(tmp_path, "--sim-start-time", "1.5", ready=False) as engine:
        seen = []
        while not seen or seen[-1] != 200:
            seen.append(await engine.status("/ready"))
            assert len(seen) < 2000, engine.log
            await asyncio.sleep(0.01)
        assert sorted(set(seen)) == sorted(seen[:1] + [503, 200])
        assert seen == sorted(seen, key=[0, 503, 200].index)
        await eventually(lambda: "ready to roll" in engine.log)
        words = [
            "opsctl-simulated", "server_args=", "Init torch distributed begin.",
            "Load weight begin.", "Load weight end.", "KV Cache is allocated.",
            "Capture cuda graph begin.", "Capture cuda graph end.", "max_total_num_tokens=",
            "Uvicorn running on", "The server is fired up and ready to roll!",
        ]  # fmt: skip
        where = [engine.log.find(word) for word in words]
        assert -1 not in where
        assert where == sorted(where)
        assert "opsctl-simulated" in engine.log.splitlines()[0]


async def test_tree_has_sglangs_titles_and_nothing_else(tmp_path: Path) -> None:
    async with simulated(tmp_path, "--tp-size", "3") as engine:
        titles = living(engine.nonce)
        main = titles.pop(engine.pid)
        assert "-m opsctl.engine.simulated" in main
        assert sorted(titles.values()) == [
            "sglang::detokenizer", "sglang::scheduler_TP0", "sglang::scheduler_TP1",
            "sglang::scheduler_TP2",
        ]  # fmt: skip
        raw = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in titles}
        assert raw == {pid: f"{title}\0".encode() for pid, title in titles.items()}
        names = {Path(f"/proc/{pid}/comm").read_text().strip() for pid in titles}
        assert names == {"sglang::detoken", "sglang::schedul"}


async def test_it_says_what_it_is(tmp_path: Path) -> None:
    async with simulated(tmp_path, "--served-model-name", "demo") as engine:
        card = (await engine.get("/v1/models"))["data"][0]
        assert (card["id"], card["owned_by"]) == ("demo", "opsctl-simulated")
        info = await engine.get("/server_info")
        assert info["engine"] == "opsctl-simulated"
        assert info["internal_states"][0]["memory_usage"]["token_capacity"] == 190_000
        async with engine.session.get(engine.url + "/metrics") as response:
            samples = [x for x in (await response.text()).splitlines() if not x.startswith("#")]
        assert samples
        assert all("opsctl-simulated" in line for line in samples)


async def test_memory_is_noted_when_weights_load(tmp_path: Path) -> None:
    flags = ("--sim-memory", "1000", "--sim-linger", "7")
    async with simulated(tmp_path, *flags) as engine:
        (line,) = (tmp_path / "gpu.jsonl").read_text().splitlines()
        stat = Path(f"/proc/{engine.pid}/stat").read_text().rpartition(")")[2].split()
        assert json.loads(line) == {
            "nonce": engine.nonce, "pid": engine.pid, "start_time": int(stat[19]),
            "bytes": 1000, "linger_s": 7.0,
        }  # fmt: skip


async def test_gated_launch_takes_no_memory_before_it_is_let_through(tmp_path: Path) -> None:
    gate = free_port()
    async with simulated(tmp_path, "--gated-launch-port", str(gate), ready=False) as engine:
        url = f"http://127.0.0.1:{gate}"
        await eventually(lambda: "Gated launch waiting" in engine.log)
        assert await engine.status("/ready") == 0
        assert not (tmp_path / "gpu.jsonl").exists()
        assert len(living(engine.nonce)) == 3
        async with engine.session.post(url + "/gate/activate") as response:
            assert (response.status, await response.text()) == (200, "OK")
        await engine.until_ready()
        assert len((tmp_path / "gpu.jsonl").read_text().splitlines()) == 1


async def test_an_unknown_flag_ends_in_2_before_any_child(tmp_path: Path) -> None:
    async with simulated(tmp_path, "--no-such-flag", "1", ready=False) as engine:
        assert await engine.exit_code() == 2
        assert "error: unrecognized arguments: --no-such-flag 1" in engine.log
        assert not engine.shm


async def test_port_in_use_is_noticed_after_the_load_and_ends_in_3(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with simulated(tmp_path, "--port", str(port), ready=False) as engine:
            assert await engine.exit_code() == 3
            assert "[Errno 98] error while attempting to bind on address" in engine.log
            assert engine.log.index("Load weight end.") < engine.log.index("[Errno 98]")
            await engine.until_gone()


# Requests ---------------------------------------------------------------------------------------


async def test_streams_of_both_apis_are_complete_and_in_order(tmp_path: Path) -> None:
    async with simulated(tmp_path) as engine:
        chat, reading = engine.stream(40)
        await reading
        text, reading = engine.stream(40, path="/v1/completions")
        await reading
        for stream in (chat, text):
            stream.assert_complete(40)
            assert stream.finish == "length"
            assert len(stream.texts) == 40


async def test_speculation_sends_several_tokens_an_event(tmp_path: Path) -> None:
    async with simulated(tmp_path, "--speculative-algorithm", "EAGLE3") as engine:
        stream, reading = engine.stream(120, prompt="[class:easy] go")
        await reading
        stream.assert_complete(120)
        assert 120 / 4 <= len(stream.texts) <= 120 / 2
        assert await engine.gauge("spec_accept_length") == pytest.approx(2.98, abs=0.1)
        assert await engine.gauge("spec_num_draft_tokens") == 4


async def test_answers_that_are_not_streamed_count_the_same(tmp_path: Path) -> None:
    async with simulated(tmp_path) as engine:
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "model": "other"}
        status, text = await engine.post("/v1/chat/completions", body)
        answer = json.loads(text)
        assert (status, answer["model"]) == (200, "other")
        assert len(answer["choices"][0]["message"]["content"].split()) == 9
        assert answer["usage"]["completion_tokens"] == 9
        status, text = await engine.post("/v1/completions", {"prompt": "hi"})
        assert len(json.loads(text)["choices"][0]["text"].split()) == 16
        assert await engine.gauge("generation_tokens_total") == 8 + 9 + 16
        assert await engine.gauge("num_requests_total") == 3


async def test_native_stream_is_cumulative_and_tells_about_acceptance(tmp_path: Path) -> None:
    async with simulated(tmp_path, "--speculative-algorithm", "EAGLE3") as engine:
        body = {"text": "hi", "sampling_params": {"max_new_tokens": 50}, "stream": True}
        async with engine.session.post(engine.url + "/generate", json=body) as response:
            lines = [line[6:] for line in (await response.read()).splitlines() if line]
        assert lines.pop() == b"[DONE]"
        texts = [json.loads(line)["text"] for line in lines]
        assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
        assert texts[-1].split(" ") == [f"w{index}" for index in range(50)]
        meta = json.loads(lines[-1])["meta_info"]
        assert meta["completion_tokens"] == 50
        assert meta["finish_reason"] == {"type": "length", "length": 50}
        assert 1 < meta["spec_accept_length"] <= 4


async def test_without_a_limit_an_answer_has_its_own_length_each_time(tmp_path: Path) -> None:
    async with simulated(tmp_path, "--sim-time-scale", "0.1") as engine:
        first, reading = engine.stream(prompt="tell me")
        second, reading_too = engine.stream(prompt="tell me")
        await asyncio.gather(reading, reading_too)
        assert first.finish == second.finish == "stop"
        assert first.words == second.words
        first.assert_complete(len(first.words))


@pytest.mark.parametrize("body", [b"{", b"[1]", b'{"messages": 3}', b"\xff", b"[" * 100_000])
async def test_a_bad_body_is_answered_with_sglangs_error_object(
    tmp_path: Path, body: bytes
) -> None:
    async with (
        simulated(tmp_path) as engine,
        engine.session.post(engine.url + "/v1/chat/completions", data=body) as response,
    ):
        assert response.status == 400
        answer = await response.json()
        assert (answer["object"], answer["code"]) == ("error", 400)


async def test_cap_and_queue_show_in_the_loads(tmp_path: Path) -> None:
    slowly = ("--sim-time-scale", "3")  # the first four go on while all eight arrive
    async with simulated(tmp_path, "--max-running-requests", "4", *slowly) as engine:
        streams = [engine.stream(60) for _ in range(8)]
        await asyncio.gather(*(stream.first.wait() for stream, _ in streams[:4]))
        async with asyncio.timeout(10):
            said = ("num_running_reqs", "num_waiting_reqs")
            while [(load := await engine.load())[key] for key in said] != [4, 4]:
                await asyncio.sleep(0.02)
        assert load["max_running_requests"] == 4
        assert 0 < load["num_used_tokens"] < load["max_total_num_tokens"]
        await asyncio.gather(*(reading for _, reading in streams))
        for stream, _ in streams:
            stream.assert_complete(60)
        await engine.until_running(0)


async def test_what_was_just_prefilled_runs_unsaid_for_fifteen_steps(tmp_path: Path) -> None:
    async with simulated(tmp_path, "--sim-time-scale", "3") as engine:
        for tokens, running in ((14, set[int]({0})), (40, {0, 1})):
            stream, reading = engine.stream(tokens)
            await stream.first.wait()
            said = set()
            while not reading.done():
                said.add((await engine.load())["num_running_reqs"])
            stream.assert_complete(tokens)
            assert said == running


async def test_the_loads_have_sglangs_sections_and_no_others(tmp_path: Path) -> None:
    async with simulated(tmp_path, "--speculative-algorithm", "EAGLE3") as engine:
        core = set(await engine.load())
        assert core == {
            "timestamp", "dp_rank", "num_running_reqs", "num_waiting_reqs",
            "num_waiting_uncached_tokens", "num_used_tokens", "num_total_tokens",
            "num_active_tokens", "num_prealloc_ready_tokens", "max_total_num_tokens",
            "max_running_requests", "token_usage", "gen_throughput", "cache_hit_rate",
            "utilization", "total_prefill_uncached_tokens", "total_prefill_busy_us",
            "decode_moments",
        }  # fmt: skip
        everything = set((await engine.get("/v1/loads"))["loads"][0])
        assert everything - core == {"memory", "speculative", "disaggregation", "queues"}
        some = set((await engine.get("/v1/loads?include=core,queues"))["loads"][0])
        assert some - core == {"queues"}
        assert await engine.status("/v1/loads?include=core,lunch") == 400
        async with engine.session.get(engine.url + "/v1/loads?format=prometheus") as response:
            assert 'sglang_spec_accept_length{dp_rank="0"}' in await response.text()


async def test_a_client_that_leaves_aborts_its_request(tmp_path: Path) -> None:
    async with simulated(tmp_path) as engine:
        stream, reading = engine.stream(5000)
        await stream.first.wait()
        await engine.until_running(1)
        reading.cancel()
        await engine.until_running(0)
        assert await engine.gauge("num_aborted_requests_total") == 1


async def test_abort_all_ends_streams_with_reason_abort(tmp_path: Path) -> None:
    async with simulated(tmp_path) as engine:
        stream, reading = engine.stream(5000)
        await stream.first.wait()
        assert (await engine.post("/flush_cache"))[0] == 400
        assert (await engine.post("/abort_request", {"abort_all": True}))[0] == 200
        await reading
        assert (stream.finish, stream.done) == ("abort", True)
        assert (await engine.post("/flush_cache"))[0] == 200


async def test_pausing_in_place_holds_streams_and_readiness(tmp_path: Path) -> None:
    async with simulated(tmp_path) as engine:
        stream, reading = engine.stream(100)
        await stream.first.wait()
        assert (await engine.post("/pause_generation", {"mode": "in_place"}))[0] == 200
        assert await engine.status("/ready") == 503
        late, reading_late = engine.stream(5)
        seen = len(stream.texts)
        assert not (await asyncio.wait({reading, reading_late}, timeout=1.5))[0]
        assert len(stream.texts) <= seen + 2
        assert (await engine.post("/continue_generation"))[0] == 200
        await asyncio.gather(reading, reading_late)
        stream.assert_complete(100)
        late.assert_complete(5)


async def test_api_key_guards_all_but_health_readiness_and_metrics(tmp_path: Path) -> None:
    async with simulated(tmp_path, "--api-key", "s3cret-key") as engine:
        assert await engine.status("/v1/models") == 401
        assert await engine.status("/metrics") == 200
        assert await engine.status("/health") == 200
        engine.session.headers["Authorization"] = "Bearer s3cret-key"
        assert await engine.status("/v1/models") == 200
        assert "s3cret-key" not in engine.log
        assert "s3cret-key" not in json.dumps(await engine.get("/server_info"))


async def test_health_takes_a_second_because_it_generates(tmp_path: Path) -> None:
    async with simulated(tmp_path) as engine:
        began = time.monotonic()
        assert await engine.status("/health") == 200
        assert time.monotonic() - began > 0.95


async def test_unknown_paths_are_404_in_fastapis_words(tmp_path: Path) -> None:
    async with (
        simulated(tmp_path) as engine,
        engine.session.get(engine.url + "/get_load") as response,
    ):
        assert (response.status, await response.json()) == (404, {"detail": "Not Found"})


# Signals ----------------------------------------------------------------------------------------


async def test_sigterm_drains_accepts_new_requests_and_exits_0(tmp_path: Path) -> None:
    async with simulated(tmp_path) as engine:
        stream, reading = engine.stream(150)
        await stream.first.wait()
        os.kill(engine.pid, signal.SIGTERM)
        await eventually(lambda: "SIGTERM received" in engine.log)
        assert await engine.status("/health") == 503
        assert await engine.status("/ready") == 503
        late, reading_late = engine.stream(150)
        os.kill(engine.pid, signal.SIGTERM)
        await asyncio.gather(reading, reading_late)
        stream.assert_complete(150)
        late.assert_complete(150)
        assert await engine.exit_code() == 0
        assert re.search(
            r"Gracefully exiting\.\.\. Remaining number of requests [12]\.", engine.log
        )
        assert not living(engine.nonce)
        assert not engine.shm


async def test_sigint_stops_listening_and_finishes_what_is_in_flight(tmp_path: Path) -> None:
    async with simulated(tmp_path) as engine:
        stream, reading = engine.stream(100)
        await stream.first.wait()
        os.kill(engine.pid, signal.SIGINT)
        while not await _refused(engine.port):
            assert not reading.done()
            await asyncio.sleep(0.02)
        assert not reading.done()
        await reading
        stream.assert_complete(100)
        assert await engine.exit_code() == -signal.SIGINT
        await engine.until_gone()


async def _refused(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # it waited to be accepted while the listener was closed
        return False
    writer.close()
    return False


async def test_sigkill_of_main_takes_the_tree_along_and_cuts_streams(tmp_path: Path) -> None:
    async with simulated(tmp_path, "--tp-size", "2") as engine:
        stream, reading = engine.stream(5000)
        await stream.first.wait()
        os.kill(engine.pid, signal.SIGKILL)
        await reading
        assert stream.broken
        assert not stream.done
        assert await engine.exit_code() == -signal.SIGKILL
        await engine.until_gone(2.0)
        assert engine.shm


@pytest.mark.parametrize("title", ["scheduler_TP0", "scheduler_TP1", "detokenizer"])
async def test_a_dead_child_is_noticed_and_takes_the_engine_down(
    tmp_path: Path, title: str
) -> None:
    async with simulated(tmp_path, "--tp-size", "2") as engine:
        stream, reading = engine.stream(5000)
        await stream.first.wait()
        pid = engine.child(title)
        os.kill(pid, signal.SIGKILL)
        assert await engine.exit_code(5) == -signal.SIGKILL
        await reading
        assert not stream.done
        words = rf"Subprocess \w+ \(pid={pid}\) crashed with exit code -9. Triggering SIGQUIT"
        assert re.search(words, engine.log)
        await engine.until_gone()


async def test_sigquit_kills_the_tree(tmp_path: Path) -> None:
    async with simulated(tmp_path) as engine:
        os.kill(engine.pid, signal.SIGQUIT)
        assert await engine.exit_code(5) == -signal.SIGKILL
        await engine.until_gone()


async def test_a_stopped_scheduler_is_a_hang_that_only_progress_shows(tmp_path: Path) -> None:
    async with simulated(tmp_path, "--sim-health-timeout", "2") as engine:
        stream, reading = engine.stream(600)
        await stream.first.wait()
        while (await engine.load())["num_running_reqs"] != 1:
            pass  # it says so at intervals; the first token may come before
        scheduler = engine.child("scheduler_TP0")
        os.kill(scheduler, signal.SIGSTOP)
        stale = (await engine.load())["timestamp"]
        began = time.monotonic()
        assert await engine.status("/health") in {200, 503}  # tokens on their way count once
        assert await engine.status("/health") == 503
        assert time.monotonic() - began > 1.9
        assert await engine.status("/ready") == 503
        for path in ("/metrics", "/model_info", "/v1/models"):
            assert await engine.status(path) == 200
        load = await engine.load()
        assert load["timestamp"] == stale
        assert load["num_running_reqs"] == 1
        assert engine.process.poll() is None
        os.kill(scheduler, signal.SIGCONT)
        await reading
        stream.assert_complete(600)


async def test_sigterm_after_a_failed_health_check_does_not_drain(tmp_path: Path) -> None:
    async with simulated(tmp_path, "--sim-health-timeout", "1") as engine:
        stream, reading = engine.stream(5000)
        await stream.first.wait()
        os.kill(engine.child("scheduler_TP0"), signal.SIGSTOP)
        while await engine.status("/health") != 503:
            pass
        os.kill(engine.pid, signal.SIGTERM)
        assert await engine.exit_code(5) == -signal.SIGKILL
        assert "Force exiting" in engine.log
        await reading
        await engine.until_gone()


async def test_sigterm_before_ready_kills_main_at_once(tmp_path: Path) -> None:
    async with simulated(tmp_path, "--sim-start-time", "30", ready=False) as engine:
        await eventually(lambda: "Init torch" in engine.log or len(living(engine.nonce)) == 3)
        os.kill(engine.pid, signal.SIGTERM)
        assert await engine.exit_code(10) == -signal.SIGTERM
        await engine.until_gone()


async def test_early_orphan_leaves_the_detokenizer_as_sglang_does(tmp_path: Path) -> None:
    flags = ("--sim-start-time", "30", "--sim-fault", "early_orphan")
    async with simulated(tmp_path, *flags, ready=False) as engine:
        await eventually(lambda: "sglang::detokenizer" in living(engine.nonce).values())
        os.kill(engine.pid, signal.SIGTERM)
        assert await engine.exit_code(3) == -signal.SIGTERM
        await eventually(lambda: list(living(engine.nonce).values()) == ["sglang::detokenizer"])


# Faults -----------------------------------------------------------------------------------------


def _fault(*faults: str) -> tuple[str, ...]:
    return tuple(part for fault in faults for part in ("--sim-fault", fault))


async def test_slow_start_is_slow(tmp_path: Path) -> None:
    began = time.monotonic()
    async with simulated(tmp_path, *_fault("slow_start=1.5")):
        assert time.monotonic() - began > 2


@pytest.mark.parametrize("stage", ["imports", "weights", "warmup"])
async def test_a_stuck_stage_is_silent_and_ignores_sigterm(tmp_path: Path, stage: str) -> None:
    async with simulated(tmp_path, *_fault(f"stuck_stage={stage}"), ready=False) as engine:
        last = {"imports": "server_args", "weights": "Load weight begin", "warmup": "Uvicorn"}
        await eventually(lambda: last[stage] in engine.log)
        os.kill(engine.pid, signal.SIGTERM)
        with pytest.raises(AssertionError):
            await engine.exit_code(1)
        assert last[stage] in engine.log.splitlines()[-1]


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ("start_failure=7:oom", 7, "torch.OutOfMemoryError: CUDA out of memory"),
        ("start_failure=-9:oom", -9, "torch.OutOfMemoryError: CUDA out of memory"),
        ("start_failure=1", 1, "RuntimeError"),
        ("bad_weights", -9, "RuntimeError: Cannot find any model weights with `demo/model`"),
    ],
)
async def test_a_failing_start_says_why_and_ends_in_its_code(
    tmp_path: Path, fault: str, code: int, words: str
) -> None:
    async with simulated(tmp_path, *_fault(fault), ready=False) as engine:
        assert await engine.exit_code() == code
        assert words in engine.log
        assert ("Received sigquit from a child process" in engine.log) == (code < 0)
        await engine.until_gone()


async def test_crash_after_counts_answered_requests(tmp_path: Path) -> None:
    async with simulated(tmp_path, *_fault("crash_after=2")) as engine:
        first, reading = engine.stream(3)
        await reading
        first.assert_complete(3)
        second, reading = engine.stream(3)
        await reading
        assert not second.done
        assert await engine.exit_code(2) == -signal.SIGKILL


async def test_crash_now(tmp_path: Path) -> None:
    async with simulated(tmp_path) as engine:
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await engine.fault("crash_now")
        assert await engine.exit_code(2) == -signal.SIGKILL
        await engine.until_gone()


async def test_kill_child_and_a_child_that_is_not_there(tmp_path: Path) -> None:
    async with simulated(tmp_path) as engine:
        assert (await engine.post("/sim/fault", {"name": "kill_child", "value": "scheduler_TP7"}))[
            0
        ] == 400
        await engine.fault("kill_child", "detokenizer")
        assert await engine.exit_code(5) == -signal.SIGKILL


async def _assert_hung(engine: Simulated) -> None:
    stream, reading = engine.stream(50)
    stale = (await engine.load())["timestamp"]
    assert await engine.status("/health") == 200
    assert (await engine.load())["timestamp"] == stale
    assert not stream.done
    reading.cancel()


async def test_hang_keeps_health_at_200_while_nothing_moves(tmp_path: Path) -> None:
    async with simulated(tmp_path) as engine:
        stream, reading = engine.stream(5000)
        await stream.first.wait()
        await engine.fault("hang")
        await _assert_hung(engine)
        seen = len(stream.texts)
        assert await engine.status("/health") == 200
        assert len(stream.texts) == seen
        reading.cancel()


async def test_hang_after_n_requests(tmp_path: Path) -> None:
    async with simulated(tmp_path, *_fault("hang_after=1")) as engine:
        stream, reading = engine.stream(5000)
        await stream.first.wait()
        await _assert_hung(engine)
        reading.cancel()


async def test_ignore_sigterm(tmp_path: Path) -> None:
    async with simulated(tmp_path, *_fault("ignore_sigterm")) as engine:
        os.kill(engine.pid, signal.SIGTERM)
        with pytest.raises(AssertionError):
            await engine.exit_code(1.5)
        assert await engine.status("/ready") == 200


async def test_an_escaped_child_survives_and_is_known_by_its_nonce_alone(tmp_path: Path) -> None:
    async with simulated(tmp_path) as engine:
        before = set(living(engine.nonce))
        await engine.fault("escaped_child")
        await eventually(lambda: len(living(engine.nonce)) == len(before) + 1)
        (stray,) = set(living(engine.nonce)) - before
        os.kill(engine.pid, signal.SIGTERM)
        assert await engine.exit_code() == 0
        assert set(living(engine.nonce)) == {stray}
        assert os.getsid(stray) != engine.pid


async def test_a_port_squatter_keeps_the_port_taken(tmp_path: Path) -> None:
    async with simulated(tmp_path, *_fault("port_squatter")) as engine:
        os.kill(engine.pid, signal.SIGKILL)
        await engine.exit_code()
        assert len(living(engine.nonce)) >= 1
        with socket.socket() as attempt, pytest.raises(OSError):
            attempt.bind(("127.0.0.1", engine.port))


async def test_abort_done_ends_streams_as_if_they_were_whole(tmp_path: Path) -> None:
    async with simulated(tmp_path) as engine:
        stream, reading = engine.stream(5000)
        await stream.first.wait()
        await engine.fault("abort_done")
        await reading
        assert (stream.finish, stream.done) == ("abort", True)
        await engine.until_running(0)


async def test_frozen_gauges_stand_still_while_work_goes_on(tmp_path: Path) -> None:
    async with simulated(tmp_path, "--decode-log-interval", "5") as engine:
        await engine.until_running(0)
        before = await engine.gauge("gen_throughput")
        await engine.fault("freeze_gauges")
        stream, reading = engine.stream(100)
        await stream.first.wait()
        await engine.until_running(1)
        assert await engine.gauge("num_running_reqs") == 0
        await reading
        assert await engine.gauge("gen_throughput") == before
        assert await engine.gauge("generation_tokens_total") == 108


async def test_slow_stop(tmp_path: Path) -> None:
    async with simulated(tmp_path, *_fault("slow_stop=1.5")) as engine:
        began = time.monotonic()
        os.kill(engine.pid, signal.SIGTERM)
        assert await engine.exit_code() == 0
        assert time.monotonic() - began > 1.4


async def test_lingering_memory_is_noted(tmp_path: Path) -> None:
    async with simulated(tmp_path, *_fault("memory_lingers=never")):
        assert json.loads((tmp_path / "gpu.jsonl").read_text())["linger_s"] is None


async def test_not_in_models(tmp_path: Path) -> None:
    async with simulated(tmp_path, *_fault("not_in_models")) as engine:
        assert (await engine.get("/v1/models"))["data"] == []


@pytest.mark.parametrize("name", ["slow_start", "nonsense", "stuck_stage"])
async def test_a_fault_that_cannot_act_now_is_refused(tmp_path: Path, name: str) -> None:
    async with simulated(tmp_path) as engine:
        value = {"slow_start": 1, "stuck_stage": "weights"}.get(name)
        assert (await engine.post("/sim/fault", {"name": name, "value": value}))[0] == 400
