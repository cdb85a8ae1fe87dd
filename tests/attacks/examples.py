"""Every log reader with the example files that it reads: what attacks are run on, so that a new reader is attacked too.

A file belongs to the reader that detection finds for it; one that needs a map says so here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from kvtrace._base.errors import RowError
from kvtrace.ingest import logs
from kvtrace.ingest.logs import layouts, sources, vllm

LOGS = Path(__file__).resolve().parent.parent / "data/logs"
MAPS = {
    "mapped.jsonl": {
        "timestamp": "at", "input": "payload.0.messages", "output": "answer.text", "session": "meta.chat",
        "user": "meta.who.name", "output_length": "attributes.gen_ai.usage.output_tokens",
    },
}  # fmt: skip


def files() -> list[Path]:
    """The example logs."""
    return sorted(path for path in LOGS.iterdir() if path.is_file() and not path.name.startswith("."))


def lines(path: Path) -> list[bytes]:
    """The lines of a log that are not blank."""
    pieces = sources.pieces(sources.find(path))
    return [line.strip() for piece in pieces for line in piece.read().split(b"\n") if line.strip()]


def reader_of(path: Path) -> str | None:
    """The name of the reader that detection finds; None where it finds none."""
    try:
        return logs.open_reader("auto", lines(path), field_map=MAPS.get(path.name), untimed=True).name
    except RowError:
        return None


def by_reader() -> dict[str, list[Path]]:
    """Reader -> its example files; a reader without one has an empty list."""
    found: dict[str, list[Path]] = {name: [] for name in logs.READERS}
    for path in files():
        if (name := reader_of(path)) is not None and path.name not in MAPS:
            found[name].append(path)
    return found


def rows(path: Path) -> Iterator[dict]:
    """The rows of a log as readers see them."""
    given = lines(path)
    columns = None if given[0][:1] == b"{" else layouts.heading(given[0])
    for line in given:
        if path.suffix == ".log":
            row = vllm.row_of_line(line)
        else:
            row = layouts.row(line, columns) if columns is not None else json.loads(line)
        if isinstance(row, dict):
            yield row
