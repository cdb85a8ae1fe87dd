"""Dynamo's agentic Mooncake, version 2: JSON Lines with a header, then requests that wait for other requests.

The format of NVIDIA Dynamo's replay (`trace_format="agentic_mooncake"`) and of AISimulate: `play_id` names a session
tree, `session_id` an agent in it. Every prompt has an id for its last, partial block, so dropped tails get new ids.
kvtrace adds keys that Dynamo passes over, for the columns that the others do not determine; they restore the trace.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import numpy as np

from .._base.arrays import offsets_of
from .._base.errors import InputError, UsageError
from ..trace.columns import Columns, replace_columns
from ..trace.dependencies import RELATIONS, TRIGGERS, Dependencies
from ..trace.invariants import expected_blocks, require_own_blocks
from ..trace.meta import shares_prefixes
from ..trace.session_trees import session_trees
from . import scalars
from .agentic_read import HEAD, LINKS, NO_MODEL, RELATION, SCHEMA, VERSION, derived_links, is_of, read
from .jsonl_write import Field, lengths, lists, milliseconds, require_writable, text, whole, write_rows
from .mooncake import domains_of, measured_keys, require_other_names

__all__ = ["HEAD", "KEPT", "is_of", "read", "write"]

KEPT: tuple[str, ...] = (
    "model",
    "priority",
    "strict_priority",
    "policy_class",
    "turn",
    "agent",
)  # extra columns, always written


def write(
    stream, columns: Columns, *, first_id: int = 0, extra: bool = False, description=None, recorded_times: bool = True
) -> None:
    """Write the header and the rows; with `extra`, also the extra columns that the format does not have.

    Without `recorded_times`, requests that wait have the time 0, so that Dynamo does not hold them back until then.
    """
    settings = description or {}
    meta = {**getattr(columns, "meta", {}), **settings}
    block_size = getattr(columns, "block_size", None) or settings.get("block_size")
    tail = getattr(columns, "tail", None) or settings.get("tail") or "kept"
    if block_size is None:
        raise UsageError("the header of agentic Mooncake needs a block size. Pass block_size=.")
    require_writable(columns, first_id)
    if (empty := np.flatnonzero(columns.input_length < 1)).size:
        raise InputError(
            f"row {empty[0]}: the prompt is empty, but agentic Mooncake needs at least one token. Use parquet."
        )
    own = own_links(columns)
    stream.write(_json(_header(columns, block_size, tail, recorded_times, list(own), meta)) + b"\n")
    columns = with_tails(columns, block_size)
    names = [name for name in columns.extra if (extra or name in KEPT) and name not in ("model", *LINKS)]
    more = {name: columns.extra[name] for name in names}
    if columns.service_ms is not None:
        more["recorded_api_time_ms"] = _known(columns.service_ms)
    require_other_names(more)
    more |= own | domains_of(columns) | measured_keys(columns)
    if not recorded_times and columns.dependencies is not None:
        waits = np.diff(columns.dependencies.offsets) > 0
        columns = replace_columns(columns, timestamp=np.where(waits, 0.0, columns.timestamp))
    write_rows(stream, columns, _fields(columns), first_id=first_id, extra=more)


def names_of(columns: Columns) -> list[str]:
    """The name of each request: its row, with zeros, because Dynamo takes requests in the order of their names.

    >>> from kvtrace.trace.building import toy
    >>> names_of(toy(*["0"] * 11))[9:]
    ['09', '10']
    """
    width = len(str(max(0, len(columns) - 1)))
    return [f"{row:0{width}}" for row in range(len(columns))]


def own_links(columns: Columns) -> dict[str, np.ndarray]:
    """The sessions, agents and parents that a reader would not derive from the other keys.

    >>> from kvtrace.trace.building import toy
    >>> from kvtrace.trace.columns import replace_columns
    >>> pair = toy("0", "1")
    >>> own_links(replace_columns(pair, session=[0, 1])), own_links(replace_columns(pair, session=[0, -1]))
    ({}, {'session': array([0, None], dtype=object)})
    """
    play, agent = session_trees(columns), _agents(columns)
    derived = derived_links(play, _labels(play, agent), columns.dependencies or Dependencies.none(len(columns)))
    own: dict[str, np.ndarray] = {}
    for name, values in {"session": columns.session, "agent": agent, "parent": columns.parent}.items():
        if values is not None and not np.array_equal(values, derived[name]):
            own[name] = _names_or_none(columns, values) if name == "parent" else scalars.numbered(values)
    return own


def with_tails(columns: Columns, block_size: int) -> Columns:
    """The columns with one id for each block of a prompt, also for the partial one: missing ids are new ones.

    >>> from kvtrace.trace.columns import Columns
    >>> with_tails(Columns([0.0], [5], [1], [0, 1], [0, 2]), 2).hash_ids
    array([0, 1, 2])
    """
    expected = expected_blocks(columns.input_length, block_size, "kept")
    blocks = np.diff(columns.offsets)
    if np.array_equal(blocks, expected):
        return columns
    require_own_blocks(columns.input_length, block_size, "prompts")
    keep = np.minimum(blocks, expected)
    in_prompt = np.arange(len(columns.hash_ids)) - np.repeat(columns.offsets[:-1], blocks)
    kept = columns.hash_ids[in_prompt < np.repeat(keep, blocks)]
    offsets, next_id = offsets_of(expected), int(columns.hash_ids.max(initial=-1)) + 1
    if columns.output_ids is not None:
        next_id = max(next_id, int(columns.output_ids.max(initial=-1)) + 1)
    is_kept = np.arange(offsets[-1]) - np.repeat(offsets[:-1], expected) < np.repeat(keep, expected)
    hash_ids = np.empty(offsets[-1], dtype=np.int64)
    hash_ids[is_kept], hash_ids[~is_kept] = kept, next_id + np.arange(offsets[-1] - len(kept))
    return replace_columns(columns, hash_ids=hash_ids, offsets=offsets)


# -- helpers -----------------------------------------------------------------------------------------------------


def _header(columns, block_size, tail, recorded_times, links, meta) -> dict[str, Any]:
    columns_or_none = {"session": columns.session, "agent": _agents(columns), "parent": columns.parent,
                       "dependencies": columns.dependencies, "service_ms": columns.service_ms}  # fmt: skip
    missing = [name for name, values in columns_or_none.items() if values is None]
    missing += [] if shares_prefixes(meta) else ["prefixes"]
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "block_size": int(block_size),
        "hash_id_scope": "local",  # the only one that Dynamo accepts; it takes equal ids for equal blocks in any play
        "source": {"format": "kvtrace", "digest": _digest(columns)},
        "kvtrace": {"tail": tail, "recorded_times": recorded_times}
        | ({"links": links} if links else {})  # columns that the rows have under keys of kvtrace's own
        | ({"without": missing} if missing else {}),  # what the trace does not have
    }


def _digest(columns) -> str:
    digest = blake2b(digest_size=16)
    ids = columns.hash_ids - columns.hash_ids.min(initial=0)  # whatever the first id is
    for values in (columns.timestamp, columns.input_length, columns.output_length, columns.offsets, ids):
        digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()


def _fields(columns: Columns) -> dict[str, Field]:
    names, play, agent = names_of(columns), session_trees(columns), _agents(columns)
    labels = _labels(play, agent)
    model = columns.extra.get("model")
    models = [NO_MODEL] * len(columns) if model is None else [value or NO_MODEL for value in model.tolist()]
    fields = {
        "request_id": text(lambda row: f'"{names[row]}"'.encode()),
        "play_id": text(lambda row: b'"session-%d"' % play[row]),
        "source_play_ordinal": whole(play),
        "session_id": text(lambda row: b'"session-%d/agent-%d"' % (play[row], labels[row])),
        "model": text(lambda row: _json(models[row])),
        "input_length": whole(columns.input_length),
        "output_length": lengths(columns.output_length),
        "hash_ids": lists(columns.hash_ids, columns.offsets),
        "not_before_ms": milliseconds(columns.timestamp),
    }
    if columns.output_ids is not None and columns.output_offsets is not None:
        fields["output_hash_ids"] = lists(columns.output_ids, columns.output_offsets)
    if columns.dependencies is not None:
        waits = columns.dependencies
        fields["dependencies"] = text(lambda row: _json(list(_objects(waits, row, names))))
    return fields


def _objects(waits: Dependencies, row: int, names: list[str]) -> Iterator[dict[str, Any]]:
    """The dependencies of a request as JSON objects."""
    for at in range(waits.offsets[row], waits.offsets[row + 1]):
        trigger, relation = TRIGGERS[waits.trigger[at]], RELATIONS[waits.relation[at]]
        delay = float(waits.delay_ms[at])
        dependency = {
            "request_id": names[waits.row[at]],
            "trigger": trigger,
            "delay_ms": int(delay) if delay.is_integer() else delay,
            "relation": "spawn" if trigger == "dispatch" else relation,
        }
        yield dependency | ({RELATION: relation} if dependency["relation"] != relation else {})


def _agents(columns: Columns) -> np.ndarray | None:
    agent = columns.extra.get("agent")
    return None if agent is None else agent if agent.dtype == np.int64 else scalars.labels(agent.astype(object))


def _labels(play: np.ndarray, agent: np.ndarray | None) -> np.ndarray:
    return np.zeros(len(play), dtype=np.int64) if agent is None else agent


def _names_or_none(columns, parent) -> np.ndarray:
    names = names_of(columns)
    return np.array([names[row] if row >= 0 else None for row in parent.tolist()], dtype=object)


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _known(values: np.ndarray) -> np.ndarray:
    """A column of numbers, None for unknown ones."""
    return np.array([None if value != value else value for value in values.tolist()], dtype=object)
