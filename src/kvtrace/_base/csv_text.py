"""CSV that spreadsheets open as data: no text of a cell becomes a formula.

A cell whose text begins with =, +, -, @, a tab or a carriage return gets an apostrophe before it, as OWASP recommends
(https://owasp.org/www-community/attacks/CSV_Injection). Numbers are written unchanged.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def csv_text(names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """A header, and one line for each row; a value that a row lacks is empty.

    >>> csv_text(["policy", "gap"], [{"policy": "=lru()", "gap": -1.5}, {"policy": "fifo"}])
    "policy,gap\\n'=lru(),-1.5\\nfifo,\\n"
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([cell(name) for name in names])
    writer.writerows([cell(row.get(name)) for name in names] for row in rows)
    return text.getvalue()


def cell(value: Any) -> Any:
    """A value as a cell: text that a spreadsheet would run gets an apostrophe before it.

    >>> cell("@SUM(A1)"), cell(-3)
    ("'@SUM(A1)", -3)
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value
