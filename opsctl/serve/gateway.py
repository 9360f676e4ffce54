"""The HTTP front that clients talk to: passes everything through, and loses nothing on the way.

The owner loop opens, closes and cuts; everything else happens per request, in the same event
loop. The gate's state is read and changed without an await in between (architecture, rule 1).
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from aiohttp.web import BaseRequest, Server, StreamResponse

from opsctl.config.schema import GatewayConfig
from opsctl.errors import PreconditionError, UsageError
from opsctl.serve import forward, own
from opsctl.serve.body import CLIENT_BUFFER
from opsctl.serve.exchange import Exchange, Floor
from opsctl.serve.gate import Gate, Limits, Refusal
from opsctl.serve.reply import Reply, TurnedAway
from opsctl.serve.stalled import Unread
from opsctl.serve.traffic import GatewayCounters, Traffic
from opsctl.serve.waiting import WaitingRoom
from opsctl.system import descriptors

_HEALTH_PATHS = ("/health", "/ready", "/ping")
_MAX_HEAD = 2**15
_STOP_GRACE = 2.0
_LOOK_AT_MOST_EVERY = 5.0
_UNAUTHORISED = Refusal(401, "invalid_api_key", "Send the API key as `Authorization: Bearer KEY`.")
_NO_TUNNEL = Refusal(405, "method_not_allowed", "The gateway opens no tunnels.")
_OWN_DESCRIPTORS = 128
_CROWDED = Refusal(503, "too_many_connections", "The gateway has no connection to spare.", 5.0)
_INTERNAL = Refusal(500, "gateway_error", "The gateway failed; its journal has the reason.")
# aiohttp logs requests it cannot parse with their content, which may be a prompt or a key.
_SILENT = logging.Logger("opsctl.gateway.protocol", level=logging.CRITICAL + 1)


class Gateway:
    """Listens for clients, holds their requests while no engine serves, and forwards them."""

    def __init__(
        self, config: GatewayConfig, *, api_key: str | None, record: Callable[..., None]
    ) -> None:
        self._config = config
        self._key = own.Key(api_key)
        self._record = record
        hold = config.hold
        self.gate = Gate(Limits(hold.requests, hold.bytes, hold.time))
        self._room = WaitingRoom(self.gate)
        self.traffic = Traffic()
        self._floor: Floor | None = None
        self._web: Server | None = None
        self._listener: asyncio.Server | None = None
        self._idle: list[asyncio.Future[None]] = []
        self._looking: asyncio.Task[None] | None = None
        # A connection of a client may need a second one, to the engine.
        self._most_connections = max(1, (descriptors.limit() - _OWN_DESCRIPTORS) // 2)
        self.metrics_source: Callable[[], Awaitable[str | None]] | None = None
        self.status_source: Callable[[], Mapping[str, object]] | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port clients reach; the port is real even when 0 was asked for."""
        if self._listener is None or not self._listener.sockets:
            raise PreconditionError("the gateway does not listen")
        host, port = self._listener.sockets[0].getsockname()[:2]
        return str(host), int(port)

    @property
    def listens_on(self) -> str:
        """`HOST:PORT` as it stands in a URL."""
        host, port = self.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def start(self, listen: str) -> None:
        """Listen on `HOST:PORT`; requests are held until `open`.

        Raises:
            UsageError: `listen` is not HOST:PORT.
            PreconditionError: the address cannot be had.
        """
        host, port = _split(listen)
        loop = asyncio.get_running_loop()
        self._web = Server(
            self._handle,
            handler_cancellation=True,
            access_log=None,
            logger=_SILENT,
            auto_decompress=False,
            max_line_size=_MAX_HEAD,
            max_field_size=_MAX_HEAD,
            read_bufsize=CLIENT_BUFFER,
        )
        try:
            self._listener = await loop.create_server(self._accept, host, port, backlog=1024)
        except OSError as error:
            raise PreconditionError(
                f"cannot listen on {listen}: {error.strerror or error}",
                hint="choose another address with --listen",
            ) from error
        self._floor = Floor(
            config=self._config,
            room=self._room,
            record=self._record,
            reused=forward.session(reuse=True),
            fresh=forward.session(reuse=False),
            drop=self._key.dropped_headers,
            traffic=self.traffic,
            on_idle=self._on_idle,
        )
        self._looking = asyncio.create_task(self._look_for_stalled())
        self._record("gateway_listening", address=listen)

    async def stop(self) -> None:
        """Stop listening, turn away who waits, cut what is left, close every connection."""
        if self._listener is None or self._web is None or self._floor is None:
            return
        if self._looking is not None:
            self._looking.cancel()
        self._listener.close()
        self._room.close("opsctl stops", admit=False, retry_after=30.0)
        if self.cut("opsctl stops"):
            with suppress(TimeoutError):
                await asyncio.wait_for(self.idle(), _STOP_GRACE)
        transports = [c.transport for c in self._web.connections if c.transport is not None]
        self._web.pre_shutdown()  # idle connections first: shutdown would wait for them
        await self._web.shutdown(_STOP_GRACE)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._listener.wait_closed(), _STOP_GRACE)
        for transport in transports:  # clients that do not read what is left for them
            transport.abort()
        await self._floor.reused.close()
        await self._floor.fresh.close()
        self._listener = self._web = self._floor = None

    def open(self, engine_url: str) -> None:
        """Send requests to this engine, those that wait first."""
        self._room.open(engine_url.rstrip("/"))
        self._record("gate_opened", engine=engine_url)

    def close(self, reason: str, *, admit: bool = True, retry_after: float = 30.0) -> None:
        """Hold requests from now on, or (`admit=False`) turn new and waiting ones away with 503."""
        news = self.gate.engine is not None or admit != self.gate.admits
        self._room.close(reason, admit=admit, retry_after=retry_after)
        if news:
            self._record("gate_closed", reason=reason, admit=admit, held=self.gate.held)

    def cut(self, reason: str) -> int:
        """End what is at the engine; returns how many answers were broken off by it.

        An event stream gets an error event and no `[DONE]`; what has no answer yet waits for the
        next engine.
        """
        if self._floor is None:
            return 0
        exchanges = list(self._floor.in_flight.values())
        broken = sum(exchange.cut(reason) for exchange in exchanges)
        self.traffic.cut += broken
        if exchanges:
            self._record("requests_cut", reason=reason, broken=broken, held=len(exchanges) - broken)
        return broken

    async def idle(self) -> None:
        """Return when nothing is at the engine."""
        while self._floor is not None and self._floor.in_flight:
            future = asyncio.get_running_loop().create_future()
            self._idle.append(future)
            await future

    @property
    def counters(self) -> GatewayCounters:
        """A snapshot of what passes, waits and has passed."""
        traffic, gate, floor = self.traffic, self.gate, self._floor
        in_flight = floor.in_flight if floor else {}
        oldest = next(iter(in_flight.values()), None)
        now = asyncio.get_running_loop().time() if oldest else 0.0
        return GatewayCounters(
            in_flight=len(in_flight),
            waiting_for_client=sum(exchange.waits_for_client for exchange in in_flight.values()),
            held=gate.held + (floor.backing_off if floor else 0),
            held_bytes=gate.held_bytes,
            admitted_total=gate.admitted,
            completed_total=traffic.outcomes["completed"],
            failed_total=traffic.outcomes["failed"],
            abandoned_total=traffic.outcomes["abandoned"],
            retried_total=traffic.retried,
            cut_total=traffic.cut,
            rejected_total=traffic.outcomes["rejected"],
            last_progress=traffic.last_progress,
            oldest_in_flight=now - oldest.sent_at if oldest else 0.0,
        )

    async def _look_for_stalled(self) -> None:
        """Let clients go that have stopped in the middle."""
        limit = self._config.client_timeout
        unread = Unread(limit)
        while self._web is not None and self._floor is not None:
            await asyncio.sleep(min(limit / 10, _LOOK_AT_MOST_EVERY))
            try:
                self._let_go(self._web, self._floor, unread)
            except Exception:  # a fault of opsctl itself must not leave clients in the way for good
                where = "stalled clients"
                self._record("internal_error", where=where, traceback=traceback.format_exc())

    def _let_go(self, server: Server, floor: Floor, unread: Unread) -> None:
        now, limit = asyncio.get_running_loop().time(), unread.limit
        connections = (connection.transport for connection in server.connections)
        silent = unread.stalled((x for x in connections if x is not None), now)
        sending = [*floor.in_flight.values(), *floor.receiving]
        mute = [exchange for exchange in sending if exchange.sends_nothing(now, limit)]
        for transport in silent:
            transport.abort()
        for exchange in mute:
            exchange.let_go()
        if silent or mute:
            self._record("clients_let_go", reading=len(silent), sending=len(mute), after=limit)

    def _on_idle(self) -> None:
        waiters, self._idle = self._idle, []
        for future in waiters:
            if not future.done():
                future.set_result(None)

    def _accept(self) -> asyncio.BaseProtocol:
        """Take a connection, as long as opsctl keeps descriptors for its own work."""
        if self._web is None or len(self._web.connections) >= self._most_connections:
            self.traffic.outcomes["rejected"] += 1
            return TurnedAway(_CROWDED)
        return self._web()

    async def _handle(self, request: BaseRequest) -> StreamResponse:
        reply = Reply(request)
        try:
            path = request.raw_path.partition("?")[0]
            page = own.PAGES.get(path) if request.method in ("GET", "HEAD") else None
            if page:
                reply.answer(*await page(self))
                return reply.sent
            if not self._key.opens(request):
                self.traffic.outcomes["rejected"] += 1
                reply.refuse(_UNAUTHORISED)
                return reply.sent
            if request.method == "CONNECT":
                reply.refuse(_NO_TUNNEL)
                return reply.sent
            assert self._floor is not None  # noqa: S101
            patient = not path.startswith(_HEALTH_PATHS)
            return await Exchange(self._floor, request, reply, patient=patient).run()
        except Exception as error:
            # The text of an unforeseen error may quote the request.
            self._record("gateway_error", error=type(error).__name__)
            self.traffic.outcomes["failed"] += 1
            reply.refuse(_INTERNAL)
            return reply.sent


def _split(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"{listen!r} is not HOST:PORT")
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104
