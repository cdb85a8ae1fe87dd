"""What all requests through a proxy share: the queue, the upstream, limits and counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..source import Put
from .copies import Memory
from .limits import Limits
from .upstream import Upstream


@dataclass
class ProxyCounts:
    """What became of the requests."""

    requests: int = 0  # all that came
    recorded: int = 0  # their copies are in the queue
    dropped: int = 0  # answered, but their copies found no room in the queue or in memory
    refused: int = 0  # by the proxy itself: too large, too slow or malformed
    failed: int = 0  # the upstream was unreachable, too slow, or broke its answer off
    left: int = 0  # the client left before the end of the answer


@dataclass(frozen=True)
class ProxySetup:
    """The settings and the shared state of a proxy."""

    put: Put
    upstream: Upstream
    limits: Limits
    on_uncopied: Callable[[int], None]  # counts requests whose copies found no memory
    session_header: bytes = b""  # its value is the key of a session
    user_header: bytes = b""
    counts: ProxyCounts = field(default_factory=ProxyCounts)
    memory: Memory = field(default_factory=Memory)
