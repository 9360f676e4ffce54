"""Whose server answers on a port: the engine's, or somebody else's."""

from __future__ import annotations

import os

import pytest

from opsctl.engine.listening import stranger
from opsctl.system import ports
from opsctl.system.ports import Listener

ENGINE = Listener(1, "0100007F", os.geteuid(), inode=1, pid=10, title="engine")
OTHER = Listener(1, "0100007F", os.geteuid(), inode=2, pid=20, title="other")
UNSEEN = Listener(1, "0100007F", os.geteuid(), inode=3)
OTHER_USERS = Listener(1, "0100007F", os.geteuid() + 1, inode=4)


@pytest.mark.parametrize(
    ("listening", "found"),
    [
        ([], None),
        ([ENGINE], None),
        ([OTHER], OTHER),
        ([OTHER, ENGINE], None),
        ([UNSEEN], None),
        ([OTHER_USERS], OTHER_USERS),
        ([UNSEEN, OTHER], OTHER),
    ],
)
def test_only_who_is_seen_to_be_no_member_is_a_stranger(
    monkeypatch: pytest.MonkeyPatch, listening: list[Listener], found: Listener | None
) -> None:
    monkeypatch.setattr(ports, "listeners", lambda wanted: tuple(listening))
    assert stranger(1, {10, 11}) == found
