"""How much memory the audit of a folder of parts takes: a bound that its manifest gives before any row is read.

Over requests stand their columns and what is made of them. Of a distinct block it is kept how often it is used (4
bytes), and beside that, one after the other, what it follows (5), which conversations used it (13), and its first k
contributors (6, and 4 k in a table of TABLE at most).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..._base.errors import UsageError
from ..._base.memory import PIECE, PROGRAM, Need
from ...formats import dataset as parts
from ...formats import parquet
from ...formats.memory_needs import whole
from .. import profiles
from ..profiles import PROFILES
from .numbers import MOST, Numbers

TABLE = 1 << 26  # bytes of contributors, see many.py
USUAL = 3  # the k that is shown where a profile has none

REQUEST = 180  # bytes: its columns, once more where rows are not in order of time, and the sorts of check 7
LINK = 40  # of a session or a parent
FIELD = 60  # of another field: most are words, which are looked at as objects
USER = 300  # of a line of a file of users, which is read whole
USES, INFERRED, IN_OUTPUTS = 4, 13, 8  # of a distinct block
COUNTED = 6  # beside the table of contributors


@dataclass(frozen=True)
class Limit:
    """The memory that the audit of a folder may take: UsageError where its bound is more."""

    memory: int  # bytes
    opened: parts.Dataset
    options: dict[str, Any]

    @classmethod
    def of(cls, path, memory: int | None, **options) -> Limit | None:
        """The limit for what is audited; None where there is none."""
        if memory is None:
            return None
        if not parts.is_dataset(path):
            raise UsageError("memory is bounded for a folder of parts alone. Try `kvtrace convert` into one.")
        opened = parts.open_dataset(path)
        auditing(opened, **options).require(memory)
        return cls(memory, opened, options)

    @property
    def room(self) -> int:
        """Ids that a table may hold where they do not follow each other, in what is left."""
        return (self.memory - auditing(self.opened, **self.options).total) // MOST

    def require(self, numbers: Numbers) -> None:
        """Once more with the distinct blocks that there are, if that is more than was said."""
        table = 0 if numbers.are_dense else MOST * numbers.distinct
        auditing(self.opened, distinct=numbers.distinct, **self.options).require(self.memory - table)


def auditing(
    opened: parts.Dataset,
    *,
    profile: str | None = None,
    users: bool = False,
    against: str | Path | None = None,
    distinct: int | None = None,
) -> Need:
    """What the audit of a folder keeps at most; the options are those of `audit`.

    An earlier release is read whole, and only that of a folder says how large it is. `distinct` is how many distinct
    blocks there are, where that turned out to be more than the manifest says.
    """
    names = opened.names()
    fields = LINK * sum(name in names for name in ("session", "parent"))
    fields += FIELD * sum(name not in (*parquet.NEEDED, *parquet.OTHERS) for name in names)
    outputs, blocks = bool(opened.output_blocks), max(opened.distinct, distinct or 0)
    table = min(TABLE, 4 * _k(opened, profile) * blocks)
    terms = {
        "for the program and a piece": PROGRAM + PIECE,
        f"for {len(opened):,} requests": len(opened) * (REQUEST + fields + 16 * outputs + USER * users),
        f"for {blocks:,} distinct blocks": (USES + IN_OUTPUTS * outputs) * blocks
        + max(INFERRED * blocks, COUNTED * blocks + table),
    }
    is_known = against is None or parts.is_dataset(against)
    if against is not None and is_known:
        terms["for the earlier release"] = whole(parts.open_dataset(against), "--against").total
    remedy = "Try it without --against" if against is not None else "Try a machine with more memory"
    return Need(terms, remedy=remedy, beyond=None if is_known else "the earlier release")


def _k(opened, profile) -> int:
    """The contributors that are counted of a block, at most."""
    said = opened.meta if isinstance(opened.meta.get("profile"), str) else {}
    graded = profiles.declared(said) if profile is None else profiles.profile(profile)
    return max(USUAL, (graded or PROFILES["standard"]).k)
