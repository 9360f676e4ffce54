"""Launch profiles in the tree: one name per flag, and `extends` resolved."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from opsctl.config.flags import canonical, refusal
from opsctl.config.merge import merge
from opsctl.config.tree import Entry, Node, Scalar, Table
from opsctl.errors import Problem


def resolve_profiles(root: Table, problems: list[Problem]) -> Table:
    """The tree with every profile laid over the ones it extends; adds what is wrong to `problems`.

    A child keeps its own `extends`; inherited values keep the position where they were written.
    """
    profiles = root.get("profiles")
    if not isinstance(profiles, Table):
        return root
    named = profiles.entries
    resolver = _Resolver(named, problems)
    resolved = {name: Entry(named[name].key, resolver.resolve(name, ())) for name in named}
    return _with(root, "profiles", Table(resolved, profiles.origin))


class _Resolver:
    def __init__(self, named: Mapping[str, Entry], problems: list[Problem]) -> None:
        self.named = named
        self.problems = problems
        self.done: dict[str, Node] = {}

    def resolve(self, name: str, children: tuple[str, ...]) -> Node:
        """The profile over its parents; a broken link is reported once and then ignored."""
        if name not in self.done:
            own = self.named[name].node
            parent = self._parent(name, own, (*children, name))
            whole = own
            if parent is not None:
                inherited = self.resolve(parent, (*children, name))
                whole = merge(_without_extends(inherited), own, ("profiles", name))
            self.done[name] = whole
        return self.done[name]

    def _parent(self, name: str, own: Node, chain: tuple[str, ...]) -> str | None:
        link = own.get("extends") if isinstance(own, Table) else None
        if not isinstance(link, Scalar) or not isinstance(link.value, str):
            return None
        key = f"profiles.{name}.extends"
        if link.value in chain:
            circle = " -> ".join((*chain[chain.index(link.value) :], link.value))
            self.problems.append(link.origin.problem(key, f"profiles extend each other: {circle}"))
            return None
        if link.value not in self.named:
            what = f"there is no profile {link.value!r}" + suggestion(link.value, self.named)
            self.problems.append(link.origin.problem(key, what))
            return None
        return link.value


def _without_extends(node: Node) -> Node:
    if not isinstance(node, Table):
        return node
    kept = {key: entry for key, entry in node.entries.items() if key != "extends"}
    return Table(kept, node.origin)


def flags_by_name(root: Table, problems: list[Problem]) -> Table:
    """One file's tree with every flag under the name SGLang prints; refused ones are left out.

    Done before anything is merged, so that `tp_size` in one file overrides `tp-size` in another.
    """
    profiles = root.get("profiles")
    if not isinstance(profiles, Table):
        return root
    renamed = {
        name: Entry(entry.key, _renamed(name, entry.node, problems))
        for name, entry in profiles.entries.items()
    }
    return _with(root, "profiles", Table(renamed, profiles.origin))


def _renamed(name: str, profile: Node, problems: list[Problem]) -> Node:
    flags = profile.get("flags") if isinstance(profile, Table) else None
    if not isinstance(profile, Table) or not isinstance(flags, Table):
        return profile
    renamed: dict[str, Entry] = {}
    for written, entry in flags.entries.items():
        key = f"profiles.{name}.flags.{written}"
        why = refusal(written)
        if why is not None:
            problems.append(entry.key.problem(key, why))
        elif canonical(written) in renamed:
            line = renamed[canonical(written)].key.line
            problems.append(entry.key.problem(key, f"the same flag as in line {line}"))
        else:
            renamed[canonical(written)] = entry
    return _with(profile, "flags", Table(renamed, flags.origin))


def _with(table: Table, key: str, node: Node) -> Table:
    return Table({**table.entries, key: Entry(table.entries[key].key, node)}, table.origin)


def suggestion(word: str, known: object) -> str:
    """` (did you mean ...?)` when one of the known words is near, else nothing."""
    near = get_close_matches(word, list(known), n=1)  # type: ignore[call-overload]
    return f" (did you mean {near[0]}?)" if near else ""
