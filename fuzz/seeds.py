"""What fuzzers begin with: the example logs and the smallest traces of the tests."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent / "tests"
LOGS = HERE / "data/logs"
FINDS = Path(__file__).parent / "finds"  # what fuzzers found, for good
ROW = b'{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [7, 8]}'
ROWS = [
    ROW, ROW.replace(b"0,", b"61.114,", 1), ROW.replace(b", ", b" ,\t").replace(b"{", b" { "), ROW + b"\n" + ROW,
    ROW[:-1] + b', "turn": 2, "type": "text", "x": null, "y": -1.5e3, "z": true}',
    ROW[:-1] + b', "output_hash_ids": [9, 10], "session_id": 3}\n \n' + ROW + b"\r\n",
    ROW.replace(b"[7, 8]", b"[18446744073709551615, 9223372036854775808, -1, 0]"),
    ROW.replace(b"[7, 8]", b"[" + b",".join(b"%d" % n for n in range(300)) + b"]"),
    ROW[:-1] + b"".join(b', "k%d": %d' % (n, n) for n in range(70)) + b"}",
    *(ROW.replace(b"0,", time + b",", 1)  # at the edges of what the scanner reads itself
      for time in (b"9007199254740993", b"9007199254.740993", b"123456789.12345678", b"12345678901234.567", b"0.1e1")),
]  # fmt: skip


@cache
def trace_files() -> tuple[bytes, ...]:
    """Trace files of a few rows: our own, and every text in the vectors of formats and faults that is one."""
    found = list(ROWS)
    for name in ("formats.json", "faults.json"):
        found += [text.encode() for text in _texts(json.loads((HERE / "vectors" / name).read_text()))]
    found += [path.read_bytes() for path in sorted((HERE / "vectors/faults").rglob("*")) if path.suffix == ".jsonl"]
    return tuple(found)


@cache
def session_files() -> tuple[bytes, ...]:
    """Weka sessions of a few requests, dense and indented."""
    request = {"t": 0.5, "type": "n", "model": "m", "in": 130, "out": 3, "hash_ids": [1, 2], "api_time": 1.5}
    inner = request | {"t": 0.0, "hash_ids": [2**63, 18446744073709551615]}
    entry = {"t": 9, "type": "subagent", "agent_id": "a", "status": "completed", "models": [], "requests": [inner]}
    whole = {"id": "s", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "requests": [request, entry]}
    several = whole | {"note": {"hash_ids": [1]}, "requests": [request | {"t": t, "hash_ids": []} for t in range(3)]}
    return tuple(json.dumps(one, indent=indent).encode() for one in (whole, several) for indent in (None, 1))


@cache
def log_lines() -> tuple[bytes, ...]:
    """All lines of the example logs, rows with what a service measured, and lines that a fuzzer once found."""
    files = [*sorted(path for path in LOGS.iterdir() if path.is_file()), FINDS / "logs.txt"]
    measured = map(json.loads, (HERE / "data/measured_logs.jsonl").read_text().splitlines())
    return (
        *(line for path in files for line in path.read_bytes().splitlines() if line.strip()),
        *(json.dumps(one["row"]).encode() for one in measured),
    )


def _texts(value):
    if isinstance(value, str):
        if "hash_ids" in value:
            yield value
    elif isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)
