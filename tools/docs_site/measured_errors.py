"""The measured errors of times without a recording, as tables of docs/serving/models.md: by deployment, and by load."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kvtrace.serving.expectations import LOADS, ErrorSpread, MeasuredErrors, measured
from kvtrace.serving.hardware.gpus import GPUS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/serving/models.md"
TABLES = re.compile(r"(?<=<!-- measured -->\n).*?(?=<!-- end of measured -->)", re.S)
ERRORS = "loads|TPOT off, %|median|TTFT off, %|median|"
SOURCES = {
    "development": "public measurements of the half that constants were fitted to",
    "held out": "of the half held out",
    "GPU left out": "of a GPU left out",
    "model left out": "of a model left out",
    "recording": "recordings",
}


def tables(rows: Sequence[MeasuredErrors]) -> Iterator[str]:
    """The lines of the tables, and of what they rest on; cells have no blanks, so that they are few words."""
    counts = Counter(row.source for row in rows for _ in row.tpot)
    yield "\n" + ", ".join(f"{counts[source]:,} {words}" for source, words in SOURCES.items() if counts[source]) + ":\n"
    yield f"|GPU|models|engine|GPUs|{ERRORS}"
    yield "|---" * 9 + "|"
    yield from _lines(rows, lambda row: f"`{row.gpu}`|{row.kind.replace(', ', ',')}|{row.engine}|{_parallelism(row)}")
    others = ",".join(f"`{name}`" for name in GPUS if name not in {row.gpu for row in rows})
    yield f"|{others}|not measured||||||||\n"
    yield f"|requests at once|{ERRORS}"
    yield "|---" * 6 + "|"
    for _, load in LOADS:
        yield from _lines([row for row in rows if row.requests_at_once == load], lambda row: row.requests_at_once)
    yield ""


def _lines(rows: Sequence[MeasuredErrors], name_of: Callable[[MeasuredErrors], str]) -> Iterator[str]:
    """A line for each group of rows, with its errors."""
    groups: dict[str, list[MeasuredErrors]] = {}
    order = [*GPUS]
    for row in sorted(rows, key=lambda row: (order.index(row.gpu), row.kind, row.engine, row.gpus, row.tp, row.ep)):
        groups.setdefault(name_of(row), []).append(row)
    for name, group in groups.items():
        tpot, ttft = (ErrorSpread.of([e for row in group for e in getattr(row, part)]) for part in ("tpot", "ttft"))
        yield f"|{name}|{tpot.measurements if tpot else 0}|{_cells(tpot)}|{_cells(ttft)}|"


def _parallelism(row: MeasuredErrors) -> str:
    """Tensor, data and expert parallelism, as in 4, 2x2 or 8+EP."""
    return f"{row.tp}" + f"x{row.dp}" * (row.dp > 1) + "+EP" * row.ep


def _cells(errors: ErrorSpread | None) -> str:
    return "-|-" if errors is None else f"{100 * errors.mean_absolute:.0f}|{100 * errors.median:+.0f}"


def with_tables(text: str) -> str:
    """The page with the tables of measured.json as it is now."""
    return TABLES.sub(lambda _: "\n".join(tables(measured())) + "\n", text)


def write() -> None:
    """Write the tables into docs/serving/models.md."""
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
