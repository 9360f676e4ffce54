"""Speaking to a running opsctl over its control socket."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from opsctl.errors import OpsctlError, TemporaryError
from opsctl.serve.places import Places
from opsctl.system import unix_socket

if TYPE_CHECKING:
    import aiohttp

Document = dict[str, Any]

DEADLINE = 10.0
"""Seconds for one answer of the control socket."""


def places(state_dir: str | None, config: str | None) -> Places:
    """The state directory that the verbs of a running instance act on.

    The configuration is read only when nothing nearer says where it is.
    """
    from opsctl.config.state_dir import state_dir as choose

    if state_dir or os.environ.get("OPSCTL_STATE_DIR"):
        return Places(choose(state_dir, None, os.environ))
    return Places(choose(None, _configuration(config), os.environ))


def _configuration(explicit: str | None) -> Any:
    from opsctl.cli.loading import load_config
    from opsctl.errors import ConfigError

    try:
        return load_config(explicit, warn=False).config
    except ConfigError:
        if explicit is not None:
            raise
        return None  # `opsctl status` must work beside a broken or absent file


class NotRunningError(TemporaryError):
    """No opsctl serves from the state directory."""


def ask(where: Places, method: str, path: str, body: Document | None = None) -> Document:
    """One question to the running opsctl; raises NotRunningError or the error it answered."""
    return asyncio.run(_ask(where, method, path, body))


async def _ask(where: Places, method: str, path: str, body: Document | None) -> Document:
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=DEADLINE)
    try:
        with unix_socket.address(where.socket) as name:
            async with (
                aiohttp.ClientSession(
                    connector=aiohttp.UnixConnector(path=name), timeout=timeout
                ) as session,
                session.request(method, f"http://opsctl{path}", json=body) as response,
            ):
                return await _document(response)
    except PermissionError as error:
        raise OpsctlError(
            f"may not speak to {where.socket}", hint="run as root or as the user that serves"
        ) from error
    except TimeoutError as error:
        raise TemporaryError(
            f"opsctl did not answer on {where.socket} within {DEADLINE:g} s"
        ) from error
    except (aiohttp.ClientConnectionError, OSError) as error:
        raise NotRunningError(
            f"no opsctl serves from {where.root}",
            hint="start one with `opsctl serve`, or name its directory with --state-dir",
        ) from error


async def _document(response: aiohttp.ClientResponse) -> Document:
    if response.status == 403:
        raise OpsctlError(await response.text())
    document: Document = await response.json()
    if response.status == 409:
        raise _answered(document)
    return document


def _answered(document: Document) -> OpsctlError:
    error = OpsctlError(str(document.get("error")), hint=document.get("hint"))
    code = document.get("exit_code")
    error.exit_code = code if isinstance(code, int) else 1
    return error
