"""The control socket: HTTP over a unix socket that only the owner and root may speak to."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

from opsctl.errors import ConfigError, OpsctlError, TemporaryError, UsageError
from opsctl.serve.inputs import DrainAsked, StopAsked, SwitchAsked, UndrainAsked
from opsctl.serve.lifecycle import refusal
from opsctl.serve.state import Phase, State
from opsctl.serve.status import status
from opsctl.serve.supervisor import Supervisor
from opsctl.system import unix_socket

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Control:
    """Answers the verbs of a running instance."""

    def __init__(self, supervisor: Supervisor, reload: Callable[[], list[str]]) -> None:
        self._supervisor = supervisor
        self._reload = reload
        self._runner: web.AppRunner | None = None

    async def start(self, path: Path) -> None:
        """Listen on `path`; a socket file left by a dead opsctl is replaced (the lock is held)."""
        _remove(path)
        app = web.Application(middlewares=[_owner_only, _errors])
        app.add_routes(
            [
                web.get("/v1/status", self._status),
                web.post("/v1/switch", self._switch),
                web.post("/v1/pause", self._pause),
                web.post("/v1/resume", self._resume),
                web.post("/v1/drain", self._drain),
                web.post("/v1/stop", self._stop),
                web.post("/v1/reload", self._reload_configuration),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        with unix_socket.address(path) as name:
            await web.UnixSite(self._runner, name).start()
        _make_private(path)

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _status(self, request: web.Request) -> web.Response:
        return web.json_response(status(self._supervisor))

    async def _switch(self, request: web.Request) -> web.Response:
        supervisor = self._supervisor
        name = (await _body(request)).get("profile")
        if not isinstance(name, str) or name not in supervisor.config.profiles:
            known = ", ".join(supervisor.config.profiles)
            raise UsageError(f"no profile {name!r}", hint=f"configured profiles: {known}")
        waiting = supervisor.turns.waiting
        if waiting is not None and name == supervisor.state.profile:
            supervisor.turns.withdraw("operator")
            return self._accepted()
        if _is_on_its_way(supervisor.state, name) or (waiting and waiting.profile == name):
            return self._accepted()
        await supervisor.check_target(name)
        why = refusal(supervisor.state, name)
        if why is not None:
            raise TemporaryError(f"cannot switch to {name}: {why}")
        supervisor.handle(SwitchAsked(name, "operator", "asked for by the operator"))
        return self._accepted()

    async def _pause(self, request: web.Request) -> web.Response:
        self._supervisor.pause(True)
        return self._accepted()

    async def _resume(self, request: web.Request) -> web.Response:
        self._supervisor.pause(False)
        return self._accepted()

    async def _drain(self, request: web.Request) -> web.Response:
        off = (await _body(request)).get("off") is True
        self._supervisor.handle(UndrainAsked() if off else DrainAsked())
        return self._accepted()

    async def _stop(self, request: web.Request) -> web.Response:
        self._supervisor.post(StopAsked("operator"))
        return self._accepted()

    async def _reload_configuration(self, request: web.Request) -> web.Response:
        return web.json_response({"notes": self._reload()})

    def _accepted(self) -> web.Response:
        return web.json_response(status(self._supervisor))


def _is_on_its_way(state: State, name: str) -> bool:
    """Whether what is asked for serves already, or will without being asked for again."""
    if state.stopping_for_good or state.drain_asked:
        return False
    if state.target is not None:
        return state.target == name
    return state.profile == name and state.phase in {Phase.SERVING, Phase.STARTING}


def _make_private(path: Path) -> None:
    path.chmod(0o600)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


async def _body(request: web.Request) -> dict[str, object]:
    try:
        body = await request.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


@web.middleware
async def _owner_only(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The directory's mode keeps others out; the kernel's word on the peer makes it certain."""
    channel = request.transport.get_extra_info("socket") if request.transport else None
    if channel is None:
        raise web.HTTPForbidden
    credentials = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _pid, uid, _gid = struct.unpack("3i", credentials)
    if uid not in {0, os.geteuid()}:
        raise web.HTTPForbidden(text="only the owner of this opsctl and root may control it")
    return await handler(request)


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors keep their exit code and hint across the socket."""
    try:
        return await handler(request)
    except OpsctlError as error:
        message = str(error) if isinstance(error, ConfigError) else error.message
        body = {"error": message, "hint": error.hint, "exit_code": error.exit_code}
        return web.json_response(body, status=409)
