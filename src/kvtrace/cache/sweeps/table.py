"""The table of a sweep: a row a cell, as CSV, JSON, JSON lines or Parquet by the file's name."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..._base.errors import UsageError
from ..._base.files import SUFFIXES, is_std, write_atomically
from ...formats import trace_files as formats
from .cells import COLUMNS, SETTINGS, SWITCHES, Row

SCHEMA = 1  # version of the keys of to_dict
FORMS = (".csv", ".json", ".jsonl", ".parquet")
TEXTS = {*SETTINGS, *SWITCHES, "error"} - {"block_size", "capacity", "seed"}


@dataclass(frozen=True)
class SweepTable:
    """The rows of a sweep, in the order of its axes, each with every column."""

    rows: list[Row]

    @property
    def failed(self) -> list[Row]:
        """The rows of cells that could not be run."""
        return [row for row in self.rows if row["error"]]

    def to_dict(self) -> dict[str, Any]:
        """Keys as docs/cache/sweep.md lists them."""
        return {"schema": SCHEMA, "results": self.rows}

    def write(self, path: str | Path) -> None:
        """Write it whole or not at all: .csv, .json, .jsonl or .parquet, and .gz or .zst after that; `-` is CSV.

        >>> SweepTable([]).write("table.txt")
        Traceback (most recent call last):
        kvtrace._base.errors.UsageError: table.txt: its name says no form of table. Try .csv, .json, .jsonl or .parquet.
        """
        form = check_output(path)
        with write_atomically(path) as stream:
            stream.write(WRITERS[form](self.rows))


def check_output(path: str | Path) -> str:
    """The form that a name asks for; UsageError or KvtraceError, before any work is done, if it can't be written."""
    if is_std(path):
        return ".csv"
    bare = Path(path)
    form = (bare.with_suffix("") if bare.suffix in SUFFIXES else bare).suffix
    if form not in FORMS:
        raise UsageError(f"{path}: its name says no form of table. Try .csv, .json, .jsonl or .parquet.")
    formats.check_output(path, "parquet" if form == ".parquet" else "mooncake")  # that there is pyarrow, and a folder
    return form


def _csv(rows) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _json(rows) -> bytes:
    return json.dumps(SweepTable(rows).to_dict(), indent=1).encode() + b"\n"


def _jsonl(rows) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _parquet(rows) -> bytes:
    import pyarrow
    import pyarrow.parquet

    reals = {name for name in COLUMNS if name.endswith("_rate")} | {"request_hits"}
    schema = pyarrow.schema([
        (name, pyarrow.string() if name in TEXTS else pyarrow.float64() if name in reals else pyarrow.int64())
        for name in COLUMNS
    ])  # fmt: skip
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), sink)
    return sink.getvalue()


WRITERS = {".csv": _csv, ".json": _json, ".jsonl": _jsonl, ".parquet": _parquet}
