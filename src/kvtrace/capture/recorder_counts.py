"""What a recorder has done, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class RecorderCounts:
    """What a recorder has done since it started, and the windows that earlier ones left.

    Each request that came is accepted, dropped or refused.
    """

    accepted: int = 0  # requests that the queue took
    dropped: int = 0  # requests that are missing: the queue was full, or their copies found no memory
    uncopied: int = 0  # those of them whose copies found no memory in the proxy
    refused: int = 0  # requests that a full queue refused, and that their clients send again; each time counts
    digested: int = 0  # requests with digests on the disk
    rejected: int = 0  # rows that could not be read, or whose blocks do not fit those of the window
    left_out: int = 0  # rows that are not requests, and empty prompts
    malformed: int = 0  # requests of payloads that are not valid
    tokens: int = 0  # of prompts
    lost: int = 0  # requests that were accepted, but not digested before a crash
    waiting: int = 0  # payloads in the queue
    waiting_bytes: int = 0
    waiting_limit_bytes: int = 0
    sealed: int = 0  # windows
    failed: int = 0  # windows that could not be sealed; their digests are kept
    restarts: int = 0  # of the digester
    last_sealed_s: float | None = None  # Unix time
    proxy: dict[str, int] = field(default_factory=dict)  # requests to the proxy: fields of proxy.setup.ProxyCounts
    reasons: dict[str, int] = field(default_factory=dict)  # reason -> rejected rows
