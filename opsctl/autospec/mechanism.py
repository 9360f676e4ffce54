"""How to move between the two profiles: the cheapest way that works, and why no cheaper one. Pure.

`in_engine`: one engine, whose own draft steps follow the load. `gated_restart`: the next engine
comes up to a gate beside the one that serves. `restart`: one after the other; it always works.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from opsctl.autospec.cost import Mechanism

Asked = Literal["auto", "in_engine", "gated_restart", "restart"]
Release = tuple[int, int, int]

CHEAPEST_FIRST: tuple[Mechanism, ...] = ("in_engine", "gated_restart", "restart")
ZERO_STEPS: Release = (0, 5, 14)
"""SGLang that can draft zero steps; 0.5.11 to 0.5.13 adapt, but never stop drafting."""
GATE: Release = (0, 5, 19)
"""SGLang with `--gated-launch-port`."""


@dataclass(frozen=True)
class Facts:
    """What decides it, of two launch profiles and the SGLang that they run in."""

    version: str | None = None
    """As SGLang writes it; None when it is not known."""
    release: Release | None = None
    profile: str = ""
    """Name of the speculative profile."""
    steps: int | None = None
    """Draft steps that it sets."""
    adapts: bool = False
    """Whether it sets `speculative-adaptive` itself: its operator has chosen the steps."""
    excluded: str = ""
    """Why SGLang would turn adaptive speculation off; empty when it would not."""
    differ: Sequence[str] = ()
    """Keys other than those of speculation in which the profiles differ."""
    unmeasured: str = ""
    """Why no measurement says where drafting pays; empty when one does."""
    observed: str = ""
    """How an engine was seen not to follow its adaptive file; empty when none was."""


@dataclass(frozen=True)
class Obstacle:
    """What stands against a mechanism; a `firm` one stands even when it is asked for by name."""

    why: str
    firm: bool = True


@dataclass(frozen=True)
class Choice:
    """The mechanism, and what stands against each cheaper one.

    `refused` says why the one that was asked for is not it; empty when it is. `accepted` is what
    stands against it and was overruled by asking for it.
    """

    mechanism: Mechanism
    asked: Asked = "auto"
    why_not: Mapping[Mechanism, tuple[str, ...]] = field(default_factory=dict)
    refused: str = ""
    accepted: tuple[str, ...] = ()

    def sentence(self) -> str:
        """Say all of it in words."""
        parts: list[str] = [self.mechanism]
        if self.refused:
            parts.append(self.refused)
        parts += [
            f"{name} is cheaper, but {'; '.join(reasons)}"
            for name, reasons in self.why_not.items()
            if name != self.asked
        ]
        if self.accepted:
            parts.append(f"asked for although {'; '.join(self.accepted)}")
        return ". ".join(parts)


def choose(facts: Facts, asked: Asked = "auto") -> Choice:
    """Return the cheapest mechanism that nothing stands against.

    One that is asked for by name is taken unless something firm stands against it: what differs
    between the profiles may be left to the operator's judgement, what SGLang cannot do may not.
    Then the next one that can takes its place; an instance that serves is worth more than a wish.
    """
    against = {name: tuple(obstacles(name, facts)) for name in CHEAPEST_FIRST}
    first: Mechanism = CHEAPEST_FIRST[0] if asked == "auto" else asked
    for name in CHEAPEST_FIRST[CHEAPEST_FIRST.index(first) :]:
        by_name = name == asked
        if not any(obstacle.firm or not by_name for obstacle in against[name]):
            return _choice(name, asked, against)
    raise AssertionError("nothing stands against a restart")


def obstacles(mechanism: Mechanism, facts: Facts) -> Iterator[Obstacle]:
    """What stands against one mechanism; nothing ever does against `restart`."""
    if mechanism == "in_engine":
        yield from _in_engine(facts)
    elif mechanism == "gated_restart":
        yield from _gated(facts)


def _choice(
    taken: Mechanism, asked: Asked, against: Mapping[Mechanism, Sequence[Obstacle]]
) -> Choice:
    words: dict[str, tuple[str, ...]] = {
        name: tuple(obstacle.why for obstacle in found) for name, found in against.items()
    }
    cheaper = CHEAPEST_FIRST[: CHEAPEST_FIRST.index(taken)]
    refused = ""
    if asked not in {"auto", taken}:
        refused = f"{asked} was asked for, but {'; '.join(words[asked])}"
    passed_over = [name for name in cheaper if words[name]]
    return Choice(
        mechanism=taken,
        asked=asked,
        why_not={name: words[name] for name in passed_over},
        refused=refused,
        accepted=words[taken],
    )


def _in_engine(facts: Facts) -> Iterator[Obstacle]:
    if facts.release is None:
        yield Obstacle("it is not known which SGLang it runs in")
    elif facts.release < ZERO_STEPS:
        yield Obstacle(f"SGLang {facts.version} cannot draft zero steps; 0.5.14 can")
    if facts.excluded:
        yield Obstacle(f"SGLang would turn it off: {facts.excluded}")
    if not facts.steps:
        yield Obstacle(f"profile {facts.profile} sets no `speculative-num-steps`")
    if facts.adapts:
        yield Obstacle(f"profile {facts.profile} sets `speculative-adaptive` itself")
    if facts.differ:
        keys = ", ".join(facts.differ)
        yield Obstacle(f"the profiles differ in more than speculation: {keys}", firm=False)
    if facts.unmeasured:
        yield Obstacle(facts.unmeasured)
    if facts.observed:
        yield Obstacle(facts.observed)


def _gated(facts: Facts) -> Iterator[Obstacle]:
    if facts.release is None:
        yield Obstacle("it is not known which SGLang it runs in", firm=False)
    elif facts.release < GATE:
        yield Obstacle(f"SGLang {facts.version} has no gate at its start; 0.5.19 has")
