"""The endpoints that do not generate: health, loads, information, control, faults."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from opsctl.engine.simulated import IMITATES, NAME, answers, flags, prompts
from opsctl.engine.simulated.loads import Reader
from opsctl.engine.simulated.manager import Manager
from opsctl.engine.simulated.output import say

_SECTIONS = {
    "memory": "memory", "spec": "speculative", "disagg": "disaggregation", "queues": "queues",
}  # fmt: skip
_VALID = {"core", "lora", "all", *_SECTIONS}


class Management:
    """The handlers; `inject` puts a fault in force and raises ValueError when it cannot."""

    def __init__(
        self, manager: Manager, reader: Reader, inject: Callable[[str, object], Awaitable[None]]
    ) -> None:
        self._manager = manager
        self._options = manager.options
        self._reader = reader
        self._inject = inject
        self._began = time.time()

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        writing = [
            ("/flush_cache", self.flush_cache),
            ("/abort_request", self.abort_request),
            ("/pause_generation", self.pause),
            ("/continue_generation", self.resume),
        ]
        return [
            web.get("/", self.root),
            web.get("/health", self.health),
            web.get("/health_generate", self.health),
            web.get("/ready", self.ready),
            web.get("/ping", self.ping),
            web.get("/v1/models", self.models),
            web.get("/model_info", self.model_info),
            web.get("/get_model_info", self.model_info),
            web.get("/server_info", self.server_info),
            web.get("/get_server_info", self.server_info),
            web.get("/v1/loads", self.loads),
            web.get("/metrics", self.metrics),
            web.get("/metrics/", self.metrics),
            web.post("/sim/fault", self.fault),
            *(web.post(path, handler) for path, handler in writing),
        ]

    async def root(self, _: web.Request) -> web.Response:
        """SGLang's greeting, with the simulation's name."""
        return web.json_response(f"SGLang is running ({NAME})")

    async def ping(self, _: web.Request) -> web.Response:
        """SageMaker's liveness path."""
        return web.Response(status=200)

    async def ready(self, _: web.Request) -> web.Response:
        """Whether requests should be sent here; answers at once."""
        manager = self._manager
        good = manager.status == "up" and not manager.draining and not manager.paused
        return web.Response(status=200 if good else 503)

    async def health(self, _: web.Request) -> web.Response:
        """Generate one token, and look once a second whether anything came back."""
        manager = self._manager
        if manager.status == "starting" or manager.draining:
            return web.Response(status=503)
        began = time.monotonic()
        rid = f"HEALTH_CHECK_{prompts.new_id()}"
        # SGLang skips the generation while there is other work: any output proves the same.
        if not manager.requests and not manager.paused:
            manager.tell("new", rid, 1, 1, 1.0, "length", 0)
        while time.monotonic() - began < self._options.health_timeout:
            await asyncio.sleep(1.0)
            if manager.last_output > began or "hang" in manager.faults:
                manager.status = "up"
                return web.Response(status=200)
        manager.tell("abort", rid)
        manager.status = "unhealthy"
        say(f"Health check failed. Server couldn't get a response from detokenizer for last "
            f"{self._options.health_timeout:.0f} seconds.")  # fmt: skip
        return web.Response(status=503)

    async def models(self, _: web.Request) -> web.Response:
        """The model list. `owned_by` names the simulation."""
        card = {
            "id": self._options.served_model_name,
            "object": "model",
            "created": int(self._began),
            "owned_by": NAME,
            "root": self._options.served_model_name,
            "parent": None,
            "max_model_len": self._options.context_length,
        }
        data = [] if "not_in_models" in self._manager.faults else [card]
        return web.json_response({"object": "list", "data": data})

    async def model_info(self, _: web.Request) -> web.Response:
        """What is known about the model without asking the scheduler."""
        return web.json_response(
            {
                "model_path": self._options.model_path,
                "tokenizer_path": self._options.model_path,
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": "default",
                "simulated_by": NAME,
            }
        )

    async def server_info(self, _: web.Request) -> web.Response:
        """Arguments and state; asks the scheduler, so it hangs when the scheduler does."""
        state = await self._manager.ask()
        state.pop("idle", None)
        info = flags.shown(self._options)
        return web.json_response(
            {
                **info,
                "engine": NAME,
                "imitates": f"sglang {IMITATES}",
                "status": "ready",
                "version": IMITATES,
                "max_total_num_tokens": self._options.max_total_tokens,
                "startup_time": {},
                "surface": self._options.surface,
                "faults": self._manager.faults.as_mapping(),
                "internal_states": [state],
            }
        )

    async def loads(self, http: web.Request) -> web.Response:
        """The scheduler's last snapshot, however old."""
        include = {part.strip() for part in http.query.get("include", "all").split(",")}
        if not include <= _VALID:
            return web.json_response(
                {"detail": f"Invalid include sections: {include - _VALID}. "
                           f"Valid options: {sorted(_VALID)}"}, status=400,
            )  # fmt: skip
        load = dict(self._reader.read().get("load", {}))
        for name, section in _SECTIONS.items():
            if not include & {name, "all"}:
                load.pop(section, None)
        if http.query.get("format") == "prometheus":
            return web.Response(text=self._exposition(load))
        return web.json_response(
            {
                "timestamp": datetime.now(UTC).isoformat(),
                "version": IMITATES,
                "accelerator": NAME,
                "num_accelerators": self._options.tp_size,
                "loads": [load] if load else [],
            }
        )

    @staticmethod
    def _exposition(load: dict[str, Any]) -> str:
        rank = load.pop("dp_rank", 0)
        prefixes = {"speculative": "spec", "disaggregation": "disagg"}
        flat = {key: value for key, value in load.items() if isinstance(value, int | float)}
        for name, section in load.items():
            if isinstance(section, dict):
                prefix = prefixes.get(name, name)
                flat |= {f"{prefix}_{key}": value for key, value in section.items()}
        return "".join(
            f'# TYPE sglang_{key} gauge\nsglang_{key}{{dp_rank="{rank}"}} {value}\n'
            for key, value in flat.items()
        )

    async def metrics(self, _: web.Request) -> web.Response:
        """The exposition; 404 without --enable-metrics."""
        if not self._options.enable_metrics:
            return web.json_response({"detail": "Not Found"}, status=404)
        return web.Response(
            body=self._manager.metrics.text(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def flush_cache(self, _: web.Request) -> web.Response:
        """Works only when idle."""
        state = await self._manager.ask()
        if not state["idle"]:
            return web.Response(text="Flush cache failed.\n", status=400)
        return web.Response(
            text="Cache flushed.\nPlease check backend logs for more details. (When there are "
            "running or waiting requests, the operation will not be performed.)\n"
        )

    async def abort_request(self, http: web.Request) -> web.Response:
        """Abort one request by id, or all."""
        body = await _body(http)
        rid = body.get("rid")
        if body.get("abort_all") is True or not rid:
            self._manager.abort(None if body.get("abort_all") is True else "")
        else:
            self._manager.abort(str(rid))
        return web.Response(status=200)

    async def pause(self, http: web.Request) -> web.Response:
        """Pause generation: `abort` (the default), `retract` or `in_place`."""
        mode = (await _body(http)).get("mode", "abort")
        if mode not in {"abort", "retract", "in_place"}:
            return web.json_response(answers.error(f"mode: {mode!r} is not known"), status=400)
        manager = self._manager
        manager.going.clear()
        if mode == "abort":
            manager.abort(None)
        else:
            manager.tell("pause", mode)
        return web.json_response({"status": "ok", "message": "Generation paused successfully."})

    async def resume(self, _: web.Request) -> web.Response:
        """Go on."""
        self._manager.tell("continue")
        self._manager.going.set()
        return web.json_response({"status": "ok", "message": "Generation continued successfully."})

    async def fault(self, http: web.Request) -> web.Response:
        """Put a fault in force: {"name": ..., "value": ...}. The simulation's own endpoint."""
        body = await _body(http)
        try:
            await self._inject(str(body.get("name", "")), body.get("value"))
        except ValueError as problem:
            return web.json_response(answers.error(str(problem)), status=400)
        return web.json_response({"status": "ok"})


async def _body(http: web.Request) -> dict[str, Any]:
    """Return a JSON object body; anything else counts as an empty one."""
    try:
        body = json.loads(await http.read())
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}
