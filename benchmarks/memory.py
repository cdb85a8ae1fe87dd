"""Peak memory of anonymising: the same for ten times the text, but for the ids, and bytes for each block reference."""

from __future__ import annotations

import os
import resource

from .apart import apart
from .raw_logs import large, token_ids
from .table import Claim

REQUESTS, TOKENS, BLOCK = 10_000, 4000, 4  # a thousand references a request


def claims(folder: str, megabytes: float) -> list[Claim]:
    """Growth of the peak with the text, and with the block references."""
    once, ten = (apart(peak, large(folder, size), 512) for size in (megabytes / 10, megabytes))
    few, many = (apart(peak, token_ids(folder, count, TOKENS), BLOCK) for count in (REQUESTS, 3 * REQUESTS))
    each = (many["peak"] - few["peak"]) / (many["references"] - few["references"])
    ids = ten["kept"] - once["kept"]
    return [
        Claim("peak memory, ten times the text / once", (ten["peak"] - ids) / 1e6, once["peak"] / 1e6, "MB", 1.2),
        Claim("memory a block reference / 12 bytes", each, 12, "bytes", 1.2),
    ]


def peak(log: str, block_size: int) -> dict[str, int]:
    """The largest resident memory of any process (bytes), and what the result itself has to keep."""
    from kvtrace.ingest.pipeline import anonymize_rows
    from kvtrace.trace.trace_figures import figures as figures_of

    rows = anonymize_rows(log, tokenizer="deepseek-r1" if block_size == 512 else None, block_size=block_size)
    figures = figures_of(rows.trace())
    used = [resource.getrusage(who).ru_maxrss * 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    references, distinct, requests = figures["blocks"], figures["distinct_blocks"], figures["requests"]
    os.remove(log)
    return {"peak": max(used), "references": references, "kept": 12 * references + 40 * distinct + 100 * requests}
