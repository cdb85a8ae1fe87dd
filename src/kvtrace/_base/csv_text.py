"""CSV that spreadsheets open as data: no text of a cell becomes a formula.

A cell whose text begins with =, +, -, @, a tab or a carriage return gets an apostrophe before it, as OWASP recommends
(https://owasp.org/www-community/attacks/CSV_Injection). Numbers are written unchanged.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def csv_text(rows: Iterable[Mapping[str, Any]], names: Iterable[str] = ()) -> str:
    """A header of `names` and the other keys of the rows, and one line for each row; a missing value is empty.

    >>> csv_text([{"policy": "=lru()", "gap": -1.5}, {"policy": "fifo"}], ["gap"])
    "gap,policy\\n-1.5,'=lru()\\n,fifo\\n"
    """
    rows = list(rows)
    columns = list(dict.fromkeys([*names, *(name for row in rows for name in row)]))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([cell(name) for name in columns])
    writer.writerows([cell(row.get(name)) for name in columns] for row in rows)
    return text.getvalue()


def cell(value: Any) -> Any:
    """A value as a cell: text that a spreadsheet would run gets an apostrophe before it.

    >>> cell("@SUM(A1)"), cell(-3)
    ("'@SUM(A1)", -3)
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value
