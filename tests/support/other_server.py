"""A server that is not the engine, on a port the engine wants."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Taker:
    """Takes a port at one stage of a start, as another server might that starts meanwhile."""

    def __init__(self, stage: str, server: AbstractContextManager[None]) -> None:
        self._stage = stage
        self._server = server
        self._kept = ExitStack()

    def __call__(self, stage: str) -> None:
        """To be told of every stage of the start."""
        if stage == self._stage:
            self._kept.enter_context(self._server)

    def __enter__(self) -> Taker:
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.close()


@contextmanager
def silent(port: int) -> Iterator[None]:
    """Listen, and never answer anybody."""
    with socket.create_server(("127.0.0.1", port)):
        yield


@contextmanager
def engine_of(model: str, port: int) -> Iterator[None]:
    """Answer whatever opsctl and SGLang's own warm-up ask as a server of `model` would."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(
                {
                    "model_path": model,
                    "is_generation": True,
                    "data": [{"id": model}],
                }
            )

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            choice = {"text": "hello", "finish_reason": "length"}
            self._answer({"choices": [choice], "usage": {"completion_tokens": 4}})

        def _answer(self, document: object) -> None:
            content = json.dumps(document).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
