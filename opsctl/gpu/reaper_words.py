"""What a caller asked to have ended beyond opsctl's own: --include and --user; pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from opsctl.errors import UsageError
from opsctl.gpu.model import Holder, HostProcess

Key = tuple[int, int]

_EXACT = re.compile(r"foreign:([1-9][0-9]{0,9})@([0-9]{1,19})", re.ASCII)


@dataclass(frozen=True)
class Wishes:
    """The words, understood. `user` None means the caller's own strays, `all` everybody's."""

    strays: bool
    exact: frozenset[Key]
    user: str | None
    caller_uid: int

    def takes_stray_of(self, process: HostProcess) -> bool:
        """Whether a stray of this process's user was asked for."""
        if not self.strays or process.uid is None:
            return False
        if self.user is None:
            return process.uid == self.caller_uid
        return self.user in {"all", process.user, str(process.uid)}

    def names(self, holder: Holder) -> bool:
        """Whether this very process was named by number and start time."""
        return (holder.pid, holder.start_time) in self.exact

    def check(self, holders: Sequence[Holder]) -> None:
        """Raise UsageError for an identity that no holder has: perhaps it is another by now."""
        started = {holder.pid: holder.start_time for holder in holders if holder.pid is not None}
        for pid, start_time in sorted(self.exact):
            if pid not in started:
                raise UsageError(
                    f"foreign:{pid}@{start_time}: no such process holds a GPU here",
                    hint="`opsctl gpu ps` lists them",
                )
            if started[pid] != start_time:
                raise UsageError(
                    f"foreign:{pid}@{start_time}: process {pid} of now started at {started[pid]}",
                    hint="the number has a new owner; look at `opsctl gpu ps` again",
                )


def parse(include: Sequence[str], user: str | None, caller_uid: int) -> Wishes:
    """Read the words of the command line; raises UsageError."""
    exact = set()
    for word in include:
        match = _EXACT.fullmatch(word)
        if match is not None:
            exact.add((int(match[1]), int(match[2])))
        elif word != "stray":
            raise UsageError(
                f"--include {word}: not understood",
                hint="it takes `stray`, or `foreign:PID@STARTTIME` as `opsctl gpu ps` shows them",
            )
    if user is not None and "stray" not in include:
        raise UsageError(
            "--user says whose strays, but strays are not included",
            hint=f"add: --include stray --user {user}",
        )
    if user == "all" and caller_uid != 0:
        raise UsageError("--user all is for root", hint="name one user, or run it as root")
    return Wishes("stray" in include, frozenset(exact), user, caller_uid)
