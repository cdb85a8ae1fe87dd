"""Limits of the proxy: bytes and seconds."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes and times that the proxy accepts. Bodies of calls that generate no text are neither kept nor limited."""

    max_body: int = 64 * MIB  # bytes of a request that generates text; a larger one is refused (413)
    max_answer: int = 32 * MIB  # bytes of an answer that are kept; the rest passes through
    max_held: int = 512 * MIB  # bytes of all copies of requests under way; copies beyond are dropped
    client_s: float = 30.0  # a client may send or take nothing for this long (408; an answer is broken off)
    connect_s: float = 10.0  # to connect to the upstream (504)
    upstream_s: float = 600.0  # the upstream may send nothing for this long (504; an answer is broken off)
    idle_s: float = 4.0  # an idle connection to the upstream is kept; vLLM's and SGLang's servers close it after 5 s
