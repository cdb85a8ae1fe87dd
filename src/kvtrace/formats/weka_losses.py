"""What Weka sessions do not hold of a trace, in sentences."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ..trace.columns import Columns
from ..trace.dependencies import Dependencies
from ..trace.recorded_dependencies import recorded_dependencies
from ..trace.trace import Trace
from .bailian import changed_times
from .targets.losses import Losses
from .weka_objects import SessionObjects

READ_BACK = ("weka", "prefixes")  # sections of the metadata that sessions hold; without ids, prefixes are unknown


def lost_in_sessions(columns: Columns, *, extra: bool = False, remedy: str = "") -> list[str]:
    """Sentences on what is lost when a trace is written as sessions; `remedy` ends the one on extra columns.

    >>> from kvtrace.trace.building import toy
    >>> lost_in_sessions(toy("0 1", "0 2"))
    ['2 requests without a session became sessions of their own.']
    """
    losses = Losses()
    block_size, meta = (columns.block_size, columns.meta) if isinstance(columns, Trace) else (1, {})
    objects = SessionObjects(columns, block_size, meta, extra=extra)
    alone = len(columns) if columns.session is None else int((columns.session < 0).sum())
    losses.add(alone, "request without a session became a session of its own.",
               "requests without a session became sessions of their own.")  # fmt: skip
    losses.drop_outputs(Columns(**_fields(columns)))
    domains = 0 if columns.domain is None else len(np.unique(columns.domain))
    losses.add(domains, "domain was left out.", "domains were left out: sessions share all equal blocks.")
    losses.left_out_measured(columns)
    if isinstance(columns, Trace) and columns.tail == "unique":
        losses.sentences.append("Unique tails are read back as kept ones.")
    lost = len(objects.lost_columns())
    rest = "left out: sessions have no such"
    losses.add(lost, f"extra column was {rest} field.{remedy}", f"extra columns were {rest} fields.{remedy}")
    moved = changed_times(columns.timestamp)
    losses.add(
        moved, "time has more decimals than seconds can keep.", "times have more decimals than seconds can keep."
    )
    waits = _other_waits(columns, objects)
    losses.add(waits, "request waits for others than a reader infers from the times.",
               "requests wait for others than a reader infers from the times.")  # fmt: skip
    sections = [name for name, values in meta.items() if values and name not in READ_BACK]
    losses.add(len(sections), "section of the sidecar was left out.", "sections of the sidecar were left out.")
    return losses.sentences


def _fields(columns: Columns) -> dict:
    nothing = np.empty(0)
    return {
        "timestamp": nothing, "input_length": nothing, "output_length": nothing, "hash_ids": nothing,
        "offsets": np.zeros(1), "output_ids": columns.output_ids, "output_offsets": columns.output_offsets,
    }  # fmt: skip


def _other_waits(columns: Columns, objects: SessionObjects) -> int:
    """The number of requests whose dependencies differ from those that a reader infers."""
    if columns.dependencies is None:
        return 0
    waits = columns.dependencies
    inferred = recorded_dependencies(columns, objects.agent, session=objects.session)
    mine, theirs = _lists(waits), _lists(inferred)
    return sum(one != other for one, other in zip(mine, theirs, strict=True))


def _lists(waits: Dependencies) -> list[list[tuple]]:
    """The dependencies of each request, sorted; delays to the nanosecond."""
    values = zip(waits.row.tolist(), waits.trigger.tolist(), waits.relation.tolist(),
                 np.round(waits.delay_ms, 6).tolist(), strict=True)  # fmt: skip
    flat = list(values)
    return [sorted(flat[start:stop]) for start, stop in pairwise(waits.offsets.tolist())]
