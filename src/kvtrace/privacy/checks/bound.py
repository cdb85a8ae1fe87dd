"""The memory that the audit of a data set needs: a bound computed from its manifest, before any row is read.

Each request needs its columns and arrays derived from them. Each distinct block needs its number of uses (4 bytes)
and, one after the other, its parent (5), its conversation (13), and its first k contributors (6, and 4 k in a table of
at most TABLE bytes).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..._base.errors import UsageError
from ..._base.memory import PIECE, PROGRAM, Need
from ...formats import dataset as datasets
from ...formats import parquet
from ...formats.memory_needs import whole
from ...trace.measured import NUMBERS
from .. import profiles
from ..profiles import PROFILES
from .id_numbers import ID_BYTES, IdNumbers

TABLE = 1 << 26  # bytes of contributors, see contributor_counts.py
USUAL_K = 3  # the k to report for a profile without k-sharing

REQUEST = 180  # bytes a request: its columns, a copy of rows that are not in order of time, and sorts in `anonymity`
LINK = 40  # bytes a session or parent
FIELD = 60  # bytes a value of another field; most are Python strings
USER = 300  # bytes a line of the file of users
USES, INFERRED, IN_OUTPUTS = 4, 13, 8  # bytes a distinct block
COUNTED = 6  # bytes a distinct block, without the table of contributors


@dataclass(frozen=True)
class AuditMemory:
    """The memory that the audit of a data set may use; UsageError if its bound is larger."""

    memory: int  # bytes
    dataset: datasets.Dataset
    options: dict[str, Any]

    @classmethod
    def of(cls, path, memory: int | None, **options) -> AuditMemory | None:
        """The limit for the audit of a path; None if `memory` is None."""
        if memory is None:
            return None
        if not datasets.is_dataset(path):
            raise UsageError("--memory needs a data set. Make one with `kvtrace convert`.")
        dataset = datasets.open_dataset(path)
        audit_memory(dataset, **options).require(memory)
        return cls(memory, dataset, options)

    @property
    def max_ids(self) -> int:
        """The maximum size of a table of ids that are not contiguous, in the remaining memory."""
        return (self.memory - audit_memory(self.dataset, **self.options).total) // ID_BYTES

    def require(self, numbers: IdNumbers) -> None:
        """Check the bound again with the actual distinct blocks; the manifest may state fewer."""
        table = 0 if numbers.are_dense else ID_BYTES * numbers.distinct
        audit_memory(self.dataset, distinct=numbers.distinct, **self.options).require(self.memory - table)


def audit_memory(
    dataset: datasets.Dataset,
    *,
    profile: str | None = None,
    users: bool = False,
    against: str | Path | None = None,
    distinct: int | None = None,
) -> Need:
    """The maximum memory that the audit of a data set uses.

    Args:
        dataset: the audited data set.
        profile: as for `audit`.
        users: whether the audit reads a file of users.
        against: an earlier release, which is read whole; its size is known only if it is a data set.
        distinct: the actual distinct blocks, if the manifest states fewer.
    """
    names = dataset.names()
    fields = LINK * sum(name in names for name in ("session", "parent", *NUMBERS))
    fields += FIELD * sum(name not in (*parquet.NEEDED, *parquet.OTHERS) for name in names)
    outputs, blocks = bool(dataset.output_blocks), max(dataset.distinct, distinct or 0)
    table = min(TABLE, 4 * _k(dataset, profile) * blocks)
    terms = {
        "for the program and a piece": PROGRAM + PIECE,
        f"for {len(dataset):,} requests": len(dataset) * (REQUEST + fields + 16 * outputs + USER * users),
        f"for {blocks:,} distinct blocks": (USES + IN_OUTPUTS * outputs) * blocks
        + max(INFERRED * blocks, COUNTED * blocks + table),
    }
    is_known = against is None or datasets.is_dataset(against)
    if against is not None and is_known:
        terms["for the earlier release"] = whole(datasets.open_dataset(against), "--against").total
    remedy = "Try it without --against" if against is not None else "Try a machine with more memory"
    return Need(terms, remedy=remedy, beyond=None if is_known else "the earlier release")


def _k(dataset, profile) -> int:
    """The maximum contributors counted for a block."""
    meta = dataset.meta if isinstance(dataset.meta.get("profile"), str) else {}
    graded = profiles.declared(meta) if profile is None else profiles.profile(profile)
    return max(USUAL_K, (graded or PROFILES["standard"]).k)
