"""Laying one tree over another: drop-in files over the main file, a profile over its parent."""

from __future__ import annotations

from opsctl.config.tree import Entry, Node, Table

_SECRET_KINDS = {"file", "env", "credential"}
_BLOCKS = {"flags", "environment"}


def merge(base: Node, over: Node, path: tuple[str, ...] = ()) -> Node:
    """Mappings are merged key by key; scalars, lists and what belongs together are replaced.

    A reference to a secret and the value of a flag are each one value, even when written as a
    mapping.
    """
    if not isinstance(base, Table) or not isinstance(over, Table) or _whole(base, over, path):
        return over
    entries = dict(base.entries)
    for key, entry in over.entries.items():
        below = entries.get(key)
        node = entry.node if below is None else merge(below.node, entry.node, (*path, key))
        entries[key] = Entry(entry.key, node)
    return Table(entries, over.origin)


def _whole(base: Table, over: Table, path: tuple[str, ...]) -> bool:
    in_block = len(path) == 4 and path[0] == "profiles" and path[2] in _BLOCKS
    return in_block or _is_secret(base) or _is_secret(over)


def _is_secret(table: Table) -> bool:
    return len(table.entries) == 1 and set(table.entries) <= _SECRET_KINDS
