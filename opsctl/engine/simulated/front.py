"""The HTTP application: routes, API key, access lines; and listening the way uvicorn does."""

from __future__ import annotations

import hmac
import socket
from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from opsctl.engine.simulated import generation
from opsctl.engine.simulated.management import Management
from opsctl.engine.simulated.manager import Manager
from opsctl.engine.simulated.output import raw

# SGLang never asks for the key here.
_OPEN = ("/health", "/health_generate", "/ready", "/metrics")


def application(manager: Manager, management: Management) -> web.Application:
    """Build the application."""
    app = web.Application(
        middlewares=[_access, _guard(manager.options.api_key)], client_max_size=64 * 2**20
    )
    app.add_routes([*management.routes(), *generation.routes(manager)])
    return app


def listen(host: str, port: int) -> socket.socket:
    """Bind the server port; raises OSError when it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    server = socket.socket(family, socket.SOCK_STREAM)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((host, port))
        server.listen(2048)
    except OSError:
        server.close()
        raise
    return server


def gate(activate: Callable[[], None]) -> web.Application:
    """Build the application behind --gated-launch-port."""

    async def open_gate(_: web.Request) -> web.Response:
        activate()
        return web.Response(text="OK")

    async def health(_: web.Request) -> web.Response:
        return web.Response(text="OK")

    app = web.Application()
    app.add_routes([web.post("/gate/activate", open_gate), web.get("/health", health)])
    return app


def _guard(api_key: str | None) -> Middleware:
    expected = None if api_key is None else f"Bearer {api_key}".encode()

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode("utf-8", "replace")
        open_path = request.path.startswith(_OPEN)
        if expected is None or open_path or hmac.compare_digest(given, expected):
            return await handler(request)
        return web.json_response({"error": "Unauthorized"}, status=401)

    return guard


@web.middleware
async def _access(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        response = await handler(request)
    except web.HTTPException as error:
        # FastAPI's words for an unknown path, a wrong method, a body that is too large.
        response = web.json_response({"detail": error.reason}, status=error.status)
    peer = request.transport.get_extra_info("peername") if request.transport else None
    where = f"{peer[0]}:{peer[1]}" if peer else "-"
    line = f"{request.method} {request.rel_url} HTTP/1.1"
    raw(f'INFO:     {where} - "{line}" {response.status} {response.reason}')
    return response
