"""The copy of a request and its answer while they pass: bounded each, and all copies together."""

from __future__ import annotations

import time
from dataclasses import dataclass

from .exchange import MAX_ARRIVALS, Exchange
from .limits import Limits


@dataclass(slots=True)
class Memory:
    """The bytes of all copies that are not in the queue yet."""

    held: int = 0


class Copy:
    """One copy. Its repr shows nothing of it.

    >>> copy = Copy(Limits(max_answer=4), Memory(), arrived_ns=5)
    >>> copy.add_request(b"{}"), copy.add_answer(b"Yes"), copy.add_answer(b" and no")
    (None, None, None)
    >>> exchange = copy.exchange(complete=True, streamed=True)
    >>> exchange.answer, exchange.complete
    (b'Yes ', False)
    """

    __slots__ = (
        "_answer", "_answer_size", "_arrivals", "_held", "_limits", "_memory", "_request", "arrived_ns", "full",
        "is_dropped",
    )  # fmt: skip

    def __init__(self, limits: Limits, memory: Memory, arrived_ns: int) -> None:
        self.arrived_ns = arrived_ns
        self.full = False  # the answer is longer than its limit: what came after is not kept
        self.is_dropped = False  # all copies together are larger than their limit: nothing of this one is kept
        self._limits, self._memory, self._held = limits, memory, 0
        self._request: list[bytes] = []
        self._answer: list[bytes] = []
        self._answer_size = 0
        self._arrivals: list[tuple[int, int]] = []

    def add_request(self, piece: bytes) -> None:
        """Keep a piece of the request's body."""
        if not self.is_dropped and self._has_room(len(piece)):
            self._request.append(piece)

    def add_answer(self, piece: bytes) -> None:
        """Keep a piece of the answer's body, and when it came."""
        if self.full or self.is_dropped:
            return
        room = self._limits.max_answer - self._answer_size
        if len(piece) > room:
            self.full = True
            piece = piece[:room]
        if self._has_room(len(piece)):
            self._answer.append(piece)
            self._answer_size += len(piece)
            if len(self._arrivals) < MAX_ARRIVALS:
                self._arrivals.append((self._answer_size, time.time_ns()))

    def _has_room(self, size):
        if self._memory.held + size > self._limits.max_held:
            self.release()
            self.is_dropped = True
            return False
        self._memory.held += size
        self._held += size
        return True

    def exchange(
        self,
        *,
        complete: bool,
        streamed: bool,
        request_coding: str = "",
        answer_coding: str = "",
        session: str | None = None,
        user: str | None = None,
    ) -> Exchange:
        """The request and the answer, which ends now."""
        return Exchange(
            request=b"".join(self._request), answer=b"".join(self._answer), arrived_ns=self.arrived_ns,
            ended_ns=time.time_ns(), complete=complete and not self.full, streamed=streamed,
            arrivals=self._arrivals if streamed else [], request_coding=request_coding, answer_coding=answer_coding,
            session=session, user=user,
        )  # fmt: skip

    def release(self) -> None:
        """Forget the copy; its bytes no longer count."""
        self._memory.held -= self._held
        self._held = 0
        self._request, self._answer = [], []
