"""Events become one line a role, and failures become sentences."""

from __future__ import annotations

from typing import Any

import pytest

from opsctl.provision.progress import Follower, RoleProgress, said


def event(kind: str, host: str, role: str = "check_host", **more: Any) -> dict[str, Any]:
    return {"event": kind, "host": host, "role": role, "task": "Look", **more}


def follow(
    *events: dict[str, Any], hosts: tuple[str, ...] = ("a",)
) -> tuple[Follower, list[RoleProgress]]:
    follower = Follower(hosts)
    return follower, [over for each in events for over in follower.take(each)]


def test_a_role_is_over_when_the_next_begins_or_all_ends() -> None:
    follower, over = follow(
        event("runner_on_ok", "a", res={"changed": False}),
        event("runner_on_ok", "a", res={"changed": True}),
        event("runner_on_skipped", "a"),
        event("runner_on_start", "a", "nvidia_repo"),
        event("runner_on_ok", "a", "nvidia_repo", res={"changed": True}),
        {"event": "playbook_on_stats"},
    )
    assert [(x.role, x.ok, x.changed, x.skipped) for x in over] == [
        ("check_host", 2, 1, 1),
        ("nvidia_repo", 1, 1, 0),
    ]
    assert (follower.hosts["a"].ok, follower.hosts["a"].changed) == (3, 2)


def test_hosts_are_told_apart() -> None:
    follower, _ = follow(
        event("runner_on_ok", "a", res={"changed": True}),
        event("runner_on_failed", "b", res={"msg": "no space"}),
        event("runner_on_unreachable", "c", res={"msg": "timed out"}),
        hosts=("a", "b", "c"),
    )
    a, b, c = (follower.hosts[name] for name in "abc")
    assert (a.failed, b.failed, c.unreachable) == (0, 1, True)
    assert b.failures == ["check_host: Look: no space"]
    assert c.failures == ["cannot be reached: timed out"]


def test_an_ignored_failure_does_not_count() -> None:
    follower, _ = follow(event("runner_on_failed", "a", ignore_errors=True, res={"msg": "x"}))
    assert follower.hosts["a"].failed == 0


def test_what_a_check_cannot_know_yet_is_kept() -> None:
    follower, _ = follow(
        event("runner_on_ok", "a", res={"msg": "unknown until the repository is added"})
    )
    assert follower.hosts["a"].unknown == ["check_host: unknown until the repository is added"]


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        ({"msg": "No package matching"}, "No package matching"),
        ({"msg": "failed", "stderr": "a\nno space left\n"}, "failed: no space left"),
        (
            {"msg": "MODULE FAILURE", "module_stderr": "T\nKeyError: 1"},
            "MODULE FAILURE: KeyError: 1",
        ),
        ({"msg": "All items", "results": [{"failed": False}, {"failed": True, "msg": "b"}]}, "b"),
        (
            {"censored": "the output has been hidden"},
            "it failed, and may not tell more because it handles a secret",
        ),
        ({}, "it failed"),
    ],
)
def test_a_failure_is_one_line(outcome: dict[str, Any], text: str) -> None:
    assert said(outcome) == text
