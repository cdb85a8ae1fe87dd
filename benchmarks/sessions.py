"""Reading recorded sessions of agents beside a bare loop of orjson.loads over the same bytes, and its memory.

The sessions are decompressed before; orjson's loop only decodes, and what it decodes is thrown away file by file.
"""

from __future__ import annotations

import gzip
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

from .apart import apart, medians
from .raw_logs import SHARED
from .table import Claim, show

SESSIONS = SHARED / "data/agents/claude-code"


def claims(folder: str, rounds: int) -> list[Claim]:
    """Seconds beside the rival's, and bytes for each block reference beyond those of the trace; none without data."""
    if not SESSIONS.is_dir():
        return []
    plain = decompressed(folder)
    taken = medians({"ours": (ours, plain), "rival": (rival, plain)}, rounds)
    beyond = apart(bytes_beyond, plain)
    return [
        Claim("read 98 MB of sessions / orjson.loads", taken["ours"], taken["rival"], "s", 1.5),
        Claim("memory a block reference, beyond the Trace", beyond, 8, "bytes", 1.0),
    ]


def decompressed(folder: str) -> str:
    """The sessions as plain files in a folder."""
    plain = Path(folder, "sessions")
    plain.mkdir()
    for file in sorted(SESSIONS.iterdir()):
        (plain / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
    return str(plain)


def ours(folder: str) -> float:
    """Processor seconds to read all sessions into a Trace."""
    import kvtrace

    kvtrace.read(os.path.join(folder, sorted(os.listdir(folder))[0]))  # imports are not counted, memory is
    start = time.process_time()
    kvtrace.read(folder)
    return time.process_time() - start


def rival(folder: str) -> float:
    """Processor seconds of the loop of orjson.loads."""
    import orjson

    texts = [file.read_bytes() for file in sorted(Path(folder).iterdir())]
    start = time.process_time()
    for text in texts:
        orjson.loads(text)
    return time.process_time() - start


def bytes_beyond(folder: str) -> float:
    """Peak bytes for each block reference, without those of the program and of the trace's own columns."""
    import kvtrace

    first = sorted(os.listdir(folder))[0]
    kvtrace.read(os.path.join(folder, first))  # imports
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    trace = kvtrace.read(folder)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return (peak - before) / len(trace.hash_ids) - 8


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        sys.exit(show(claims(place, 5)))
