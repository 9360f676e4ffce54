"""Requests of a closed loop: who is due when, as answers are given. Pure."""

from __future__ import annotations

from heapq import heapify, heappush

from opsctl.autospec.arrivals import Requests


class Successors:
    """Arrivals as far as they are known; every answer makes more of them known."""

    def __init__(self, requests: Requests) -> None:
        self.due: list[tuple[float, int]] = []
        """Heap of (arrival in seconds, request)."""
        self.came = list(requests.at)
        """When each request arrives, as soon as that is known."""
        self._think = requests.at
        self._followers: dict[int, list[int]] = {}
        for index, before in enumerate(requests.after):
            if before < 0:
                self.due.append((requests.at[index], index))
            else:
                self._followers.setdefault(before, []).append(index)
        heapify(self.due)

    def answered(self, index: int, now: float) -> None:
        """The client has its answer, thinks, and sends the next request."""
        for follower in self._followers.pop(index, ()):
            moment = self.came[follower] = now + self._think[follower]
            heappush(self.due, (moment, follower))
