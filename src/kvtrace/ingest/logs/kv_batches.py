"""Batches of KV events, and counts of them, as vLLM, SGLang and Dynamo publish and people record them.

A batch is `[time, events, rank]`, as msgspec writes an array-like struct, or an object with `ts` and `events`; one
event with a time of its own is a batch, too. An event is an object with `type`, or, as in older releases, a list that
begins with it (vllm/distributed/kv_events.py, sglang/srt/disaggregation/kv_events.py). Token ids and hashes are as
secret as the prompt: errors name the fault and never a value.
"""

from __future__ import annotations

import math
import re
from array import array
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any

from ..._base.errors import RowError


@dataclass
class KvEventCounts:
    """What a cache stored and removed since the start, in blocks unless named otherwise."""

    block_size: int = 0  # tokens; 0 = nothing was stored yet
    first: int = 0  # stored for the first time
    again: int = 0  # stored again after they were removed: misses that more capacity would have made hits
    copies: int = 0  # stored while another copy was resident
    loaded: int = 0  # stored while a lower tier had them: loaded, not computed
    hit: int = 0  # leading blocks that rows found in the cache; hits of requests that stored nothing are not published
    reports: int = 0  # requests (not blocks) whose hits were published
    removed: int = 0
    cleared: int = 0  # removed because the whole cache was emptied
    resident: int = 0  # now
    unknown_parents: int = 0  # stores (not blocks) whose parent was stored before the events began, or was lost
    unknown_removed: int = 0  # removed, but not known
    other_groups: int = 0  # of other cache groups of a hybrid model, left out
    left_out: int = 0  # stored without usable tokens, or in another block size, left out
    forgotten: int = 0  # known before, dropped to bound the memory
    lost: int = 0  # batches (not blocks) that never arrived, by their numbers
    restarts: int = 0  # of the engine, by the numbers of its batches
    unknown_events: int = 0  # events (not blocks) of types that are not known

    def __iadd__(self, other: KvEventCounts) -> KvEventCounts:
        for counter in fields(self):
            if counter.name != "block_size":
                setattr(self, counter.name, getattr(self, counter.name) + getattr(other, counter.name))
        self.block_size = self.block_size or other.block_size
        return self

    def to_dict(self) -> dict[str, int]:
        """The counts by name."""
        return {counter.name: getattr(self, counter.name) for counter in fields(self)}


Hash = int | str | bytes
STORED, REMOVED, CLEARED = "BlockStored", "BlockRemoved", "AllBlocksCleared"
_ORDER = {  # the fields of events that are lists
    STORED: ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
             "extra_keys", "group_idx", "kv_cache_spec_kind"),
    REMOVED: ("block_hashes", "medium", "group_idx"),
    CLEARED: (),
}  # fmt: skip
_ON_GPU = frozenset((None, "", "gpu", "device"))
_BATCH_OBJECT = ("ts", "timestamp", "time")
_RANK = ("data_parallel_rank", "attn_dp_rank", "dp_rank")
_SEQUENCE = ("seq", "sequence", "sequence_number")
MAX_BLOCK_SIZE = 1 << 20  # tokens
MAX_KEY = 256  # bytes of a hash, characters of a name
_NAMES = rb'"(?:BlockStored|BlockRemoved|AllBlocksCleared)"'
_HEAD = re.compile(rb'"type"\s*:\s*' + _NAMES + rb"|\[\s*" + _NAMES)  # in a text these quotes would be escaped


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks that became resident: a chain that continues `parent`."""

    hashes: list[Hash]
    parent: Hash | None  # None = the first block of a prompt
    tokens: array[int] | None  # uint32, of all blocks; None = the event has none
    block_size: int  # tokens
    medium: str | None  # None = GPU memory, else the name of a lower tier
    group: int | None  # of the cache groups of a hybrid model
    kind: str | None  # of the group
    adapter: str | None = None
    salt: str | None = None
    session: str | None = None
    keys: list[Any] | None = field(default=None, repr=False)  # of each block: salts and media in its hash


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks that are no longer resident."""

    hashes: list[Hash]
    medium: str | None
    group: int | None


@dataclass(frozen=True, slots=True)
class Cleared:
    """The cache was emptied."""


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events that one engine published at once."""

    time_s: float
    events: list[Stored | Removed | Cleared]
    rank: int | None = None  # data-parallel rank
    sequence: int | None = None  # number of the batch, if it was recorded
    unknown: int = 0  # events of types that are not known


def is_events(head: bytes) -> bool:
    """Whether a file that begins with these bytes has a batch of KV events a line.

    >>> is_events(b'[1.5,[{"type":"BlockRemoved","block_hashes":[7]}]]'), is_events(b'[{"type": "message"}]')
    (True, False)
    """
    first = head.partition(b"\n")[0].lstrip()
    return first[:1] in (b"[", b"{") and _HEAD.search(first) is not None


def event_batch(value: Any) -> EventBatch:
    """The batch of a decoded line or message; RowError, without content, if it is not one.

    >>> batch = event_batch([1.5, [{"type": "BlockStored", "block_hashes": [7], "parent_block_hash": None,
    ...                             "token_ids": [1, 2], "block_size": 2, "lora_id": None}]])
    >>> batch.time_s, batch.events[0].tokens
    (1.5, array('I', [1, 2]))
    """
    if type(value) is list:
        time_s, events, rank = (*value, None, None, None)[:3]
        sequence = None
    elif type(value) is dict:
        time_s, events = _first(value, _BATCH_OBJECT), value.get("events")
        rank, sequence = _first(value, _RANK), _first(value, _SEQUENCE)
        if type(value.get("batch")) is list:  # beside the number of the message
            time_s, events, rank = (*value["batch"], None, None, None)[:3]
        elif events is None and "event" in value:
            events = [value["event"]]
        elif events is None and "type" in value:
            events = [value]
    else:
        raise RowError("is not a batch of KV events.", hint=HINT)
    if type(time_s) not in (int, float) or not math.isfinite(time_s) or not 0 <= time_s < 1e12:
        raise RowError("is not a time in seconds.", field="ts", hint=HINT)
    if type(events) is not list:
        raise RowError("is not a list of KV events.", field="events", hint=HINT)
    decoded = [event for i, entry in enumerate(events) if (event := _event(entry, f"events[{i}]")) is not None]
    return EventBatch(
        float(time_s), decoded, _whole_or_none(rank, "data_parallel_rank"), _whole_or_none(sequence, "seq"),
        len(events) - len(decoded),
    )  # fmt: skip


def _event(value, path) -> Stored | Removed | Cleared | None:
    """The event; None if its type is not known."""
    if type(value) is list and value and type(value[0]) is str:
        value = dict(zip(("type", *_ORDER.get(value[0], ())), value, strict=False))
    if type(value) is not dict or type(value.get("type")) is not str:
        raise RowError("is not a KV event.", field=path)
    if value["type"] == STORED:
        return _stored(value, path)
    if value["type"] == REMOVED:
        hashes = _hashes(value.get("block_hashes"), f"{path}.block_hashes")
        return Removed(hashes, _medium(value, path), _whole_or_none(value.get("group_idx"), f"{path}.group_idx"))
    return Cleared() if value["type"] == CLEARED else None


def _stored(event, path) -> Stored:
    hashes = _hashes(event.get("block_hashes"), f"{path}.block_hashes")
    parent, size, medium = event.get("parent_block_hash"), event.get("block_size"), _medium(event, path)
    if parent is not None:
        _hashes([parent], f"{path}.parent_block_hash")
    if type(size) is not int or not 0 <= size <= MAX_BLOCK_SIZE or (not size and medium is None):
        raise RowError("is not a number of tokens above 0.", field=f"{path}.block_size")
    keys = event.get("extra_keys")
    if keys is not None and (type(keys) is not list or len(keys) != len(hashes)):
        raise RowError("does not have the keys of each block.", field=f"{path}.extra_keys")
    adapter = _name(event, "lora_name", path)
    if adapter is None:
        adapter = _name(event, "lora_id", path)
    return Stored(
        hashes, parent, _tokens(event.get("token_ids"), f"{path}.token_ids"), size, medium,
        _whole_or_none(event.get("group_idx"), f"{path}.group_idx"), _name(event, "kv_cache_spec_kind", path),
        adapter, _name(event, "cache_salt", path), _name(event, "session_id", path), keys,
    )  # fmt: skip


def _hashes(values, path) -> list[Hash]:
    if type(values) is list:
        if list(map(type, values)).count(int) == len(values):
            if not values or -(2**63) <= min(values) <= max(values) < 2**64:
                return values
        elif all(type(value) is int or (type(value) in (str, bytes) and 0 < len(value) <= MAX_KEY) for value in values):
            return values
    raise RowError("is not a hash of each block.", field=path)


def _tokens(values, path) -> array[int] | None:
    """The token ids; the first of each pair, where a draft model's cache has pairs of neighbours.

    SGLang puts numbers of 62 bits, made of an image's hash, in place of its placeholders. They are folded into ids that
    no vocabulary has; images whose folded numbers are equal still have blocks with other hashes.
    """
    if values is None or values == []:
        return None
    if type(values) is list:
        if type(values[0]) is list:
            values = [pair[0] if type(pair) is list and pair else None for pair in values]
        if list(map(type, values)).count(int) == len(values):
            with suppress(OverflowError):
                return array("I", values)
            if 0 <= min(values) <= max(values) < 2**63:
                return array(
                    "I", [token if token < 2**32 else (token ^ token >> 32) % 2**31 + 2**31 for token in values]
                )
    raise RowError("is not a list of token ids: each must be a whole number from 0 to 2^63 - 1.", field=path)


def _medium(event, path) -> str | None:
    """None for GPU memory of the engine itself, else the name of a lower or remote tier."""
    medium = _name(event, "medium", path)
    if event.get("locality") == "REMOTE":
        return f"remote {medium}"
    return None if medium is None or medium.lower() in _ON_GPU else medium


def _name(event, name, path) -> str | None:
    value = event.get(name)
    if type(value) is int:
        value = str(value) if abs(value) < 2**64 else "x" * (MAX_KEY + 1)
    if value is None or (type(value) is str and len(value) <= 4 * MAX_KEY):
        return value or None
    raise RowError("is not a name.", field=f"{path}.{name}")


def _whole_or_none(value, path) -> int | None:
    if value is None or (type(value) is int and 0 <= value < 2**63):
        return value
    raise RowError("is not a whole number.", field=path)


def _first(row, names):
    return next((row[name] for name in names if row.get(name) is not None), None)


HINT = 'A line is [time, [events], rank], or {"ts": time, "events": [...]}.'
