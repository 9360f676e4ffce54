"""The endpoints that generate: /v1/chat/completions, /v1/completions, /generate."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from aiohttp import web

from opsctl.engine.simulated import answers, prompts
from opsctl.engine.simulated.answers import Shape
from opsctl.engine.simulated.manager import Manager, Piece, Request
from opsctl.engine.simulated.prompts import BadRequestError, Wanted

ShapeOf = Callable[[Wanted, Request], Shape]


def routes(manager: Manager) -> list[web.RouteDef]:
    """Return the generating routes."""
    options = manager.options

    async def chat(http: web.Request) -> web.StreamResponse:
        return await _serve(http, manager, prompts.chat, answers.Chat)

    async def text(http: web.Request) -> web.StreamResponse:
        return await _serve(http, manager, prompts.completion, answers.Text)

    def native(_: Wanted, request: Request) -> Shape:
        return answers.Native(request, options.speculative_num_draft_tokens)

    async def generate(http: web.Request) -> web.StreamResponse:
        return await _serve(http, manager, prompts.generate, native)

    return [
        web.post("/v1/chat/completions", chat),
        web.post("/v1/completions", text),
        web.post("/generate", generate),
        web.put("/generate", generate),
    ]


async def _serve(
    http: web.Request, manager: Manager, read: Callable[..., Wanted], shape_of: ShapeOf
) -> web.StreamResponse:
    try:
        body = json.loads(await http.read())
        wanted = read(body, manager.options)
    except (BadRequestError, ValueError, RecursionError) as problem:
        return web.json_response(answers.error(str(problem)), status=400)
    if wanted.job.rid in manager.requests:
        return web.json_response(
            answers.error(f"Duplicate request ID: {wanted.job.rid}"), status=400
        )
    request = await manager.submit(wanted.job, stream=wanted.stream)
    try:
        shape = shape_of(wanted, request)
        if wanted.stream:
            return await _stream(http, request, shape)
        return await _whole(http, request, shape)
    finally:
        # A client that goes away cancels this handler; the scheduler must not go on for nobody.
        manager.drop(request)


async def _whole(http: web.Request, request: Request, shape: Shape) -> web.StreamResponse:
    text: list[str] = []
    while True:
        piece = await request.pieces.get()
        text.append(piece.text)
        if piece.finish is not None:
            return web.json_response(shape.whole("".join(text), piece))


async def _stream(http: web.Request, request: Request, shape: Shape) -> web.StreamResponse:
    # SGLang sends no status before the first token, so that an early failure can have its own.
    piece = await request.pieces.get()
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(http)
    try:
        await _events(response, request, shape, piece)
    except (ConnectionError, asyncio.CancelledError):
        if http.transport is None or http.transport.is_closing():
            return response
        raise
    return response


async def _events(
    response: web.StreamResponse, request: Request, shape: Shape, piece: Piece
) -> None:
    if (opening := shape.opening()) is not None:
        await response.write(_event(opening))
    while True:
        await response.write(_event(shape.event(piece)))
        if piece.finish is not None:
            break
        piece = await request.pieces.get()
    if (closing := shape.closing()) is not None:
        await response.write(_event(closing))
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"
