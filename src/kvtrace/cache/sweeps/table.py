"""The table of a sweep, one row per cell, as CSV, JSON, JSON lines or Parquet, by the name of the file."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..._base.errors import UsageError
from ..._base.files import SUFFIXES, is_std
from ..._base.output_files import write_atomically
from ..._base.results import PlottedResult
from ..._base.tables import csv_text
from ...formats import parquet, writing
from .cells import COLUMNS, ENGINE_OPTIONS, SETTINGS, Row

SCHEMA = 2  # version of the keys and values of to_dict
FORMS = (".csv", ".json", ".jsonl", ".parquet")
TEXTS = {*SETTINGS, *ENGINE_OPTIONS, "warning", "error"} - {"block_size", "capacity", "seed"}
REALS = {name for name in COLUMNS if name.endswith("_rate")} | {"request_hits", "gap_to_belady"}


@dataclass(frozen=True, repr=False)
class SweepTable(PlottedResult):
    """The rows of a sweep, in the order of its axes, each with every column."""

    rows: list[Row]

    _shown = (
        "trace", "engine", "policy", "capacity", "block_size", "seed", "hit_blocks", "block_hit_rate", "token_hit_rate",
    )  # fmt: skip

    def _headline(self) -> str:
        counts = (len({row[name] for row in self.rows}) for name in ("trace", "policy", "capacity"))
        different = "traces={}, policies={}, capacities={}".format(*counts)
        return f"{len(self.rows):,} cells, {different}, failed={len(self.failed)}"

    def _columns(self) -> dict[str, list[Any]]:
        return {name: [row[name] for row in self.rows] for name in COLUMNS}

    @property
    def failed(self) -> list[Row]:
        """The rows of the cells that failed."""
        return [row for row in self.rows if row["error"]]

    def to_dict(self) -> dict[str, Any]:
        """Keys as docs/cache/sweep.md lists them."""
        return {"schema": SCHEMA, "results": self.rows}

    def write(self, path: str | Path) -> None:
        """Write the whole table or nothing: .csv, .json, .jsonl or .parquet, also with .gz or .zst; `-`: CSV to stdout.

        >>> SweepTable([]).write("table.txt")
        Traceback (most recent call last):
        kvtrace._base.errors.UsageError: table.txt: unknown file type. Try .csv, .json, .jsonl or .parquet.
        """
        form = check_output(path)
        with write_atomically(path) as stream:
            stream.write(WRITERS[form](self.rows))


def check_output(path: str | Path) -> str:
    """The file type of a name; UsageError or KvtraceError if it cannot be written, before the sweep runs."""
    if is_std(path):
        return ".csv"
    bare = Path(path)
    form = (bare.with_suffix("") if bare.suffix in SUFFIXES else bare).suffix
    if form not in FORMS:
        raise UsageError(f"{path}: unknown file type. Try .csv, .json, .jsonl or .parquet.")
    if form == ".parquet":
        parquet.require()
    writing.require_place(path)
    return form


def _csv(rows) -> bytes:
    return csv_text(rows, COLUMNS).encode()


def _json(rows) -> bytes:
    return json.dumps(SweepTable(rows).to_dict(), indent=1).encode() + b"\n"


def _jsonl(rows) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _parquet(rows) -> bytes:
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.schema([
        (name, pyarrow.string() if name in TEXTS else pyarrow.float64() if name in REALS else pyarrow.int64())
        for name in COLUMNS
    ])  # fmt: skip
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), sink)
    return sink.getvalue()


WRITERS = {".csv": _csv, ".json": _json, ".jsonl": _jsonl, ".parquet": _parquet}
