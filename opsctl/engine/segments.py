"""Shared memory of an engine's members; what may be done with it is `system.segments`' matter."""

from __future__ import annotations

from collections.abc import Iterable

from opsctl.engine.tree import Member
from opsctl.system import segments
from opsctl.system.segments import Segment, remaining, remove_unused

__all__ = ["Segment", "remaining", "remove_unused", "used_by"]


def used_by(members: Iterable[Member]) -> frozenset[Segment]:
    """Segments of known families that living members have open or mapped."""
    return segments.used_by(member.pid for member in members if member.living)
