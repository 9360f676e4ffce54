from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from opsctl.system import ports


def ephemeral() -> range:
    low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    return range(int(low), int(high) + 1)


def test_a_free_port_is_free_and_not_one_of_outgoing_connections() -> None:
    port = ports.free_port()
    assert ports.is_free(port)
    assert port not in ephemeral()


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::"])
def test_a_listener_makes_a_port_busy_and_is_named(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    if family == socket.AF_INET6 and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    with socket.create_server((address, 0), family=family, dualstack_ipv6=":" in address) as server:
        port = server.getsockname()[1]
        assert not ports.is_free(port)
        found = ports.listeners([port])
        assert [(entry.port, entry.pid, entry.uid) for entry in found] == [
            (port, os.getpid(), os.getuid())
        ]
        assert f"port {port} is held by pid {os.getpid()}" in str(found[0])
    assert ports.is_free(port)
    assert ports.listeners([port]) == ()


def test_a_port_bound_but_not_listened_on_is_busy_too() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        assert not ports.is_free(holder.getsockname()[1])


def test_a_connection_out_of_a_port_is_no_listener() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        assert ports.listeners([client.getsockname()[1]]) == ()


def test_an_owner_that_cannot_be_seen_is_said() -> None:
    text = str(ports.Listener(80, "0100007F", 4242424, 1))
    assert text == "port 80 is held by a process that cannot be seen of user 4242424"


def test_broken_lines_of_the_kernel_are_skipped() -> None:
    assert list(ports.parse_listeners("header\n\n1: x\n")) == []
