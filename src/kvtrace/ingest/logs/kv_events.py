"""KV events that vLLM or SGLang published, recorded one batch a line: what a prefix cache stored, with its path.

A publisher turns the lines into rows while the file is read: a chain of blocks that was computed, its token ids (or the
engine's hashes, where events have no tokens), the time of its first store, and as cached tokens the leading ones that
the cache had. Token ids win over hashes, since ids of their blocks equal those of other logs, with any block size. Such
a trace shows stores: a request whose blocks were all resident is not among them.

Events have no borders of requests, and a hit publishes nothing. So a row is a chain of blocks that an engine computed,
with the path that leads to it: the prompt and the output of one request, as far as they fill blocks. A store begins a
row whose leading blocks, the path of its parent, were in the cache. A store that continues a row's last block, soon
after the row's latest store, extends it, as chunked prefill and decoding do. vLLM publishes hits as well where a
request sets `kv_cache_report_mode` to `full`: a store from the first block on, of blocks that are all resident, begins
a row.

A publisher has a cache for each of its data-parallel ranks. Each rank numbers its batches by itself, and the numbers
rise by one. A larger step means that batches were lost; a smaller number is a batch that came twice (a replay), or, if
its time is later, an engine that started again with an empty cache.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from ..._base.errors import RowError
from ..._base.json_values import parsed_json
from . import fields
from .kv_batches import HINT, EventBatch, Hash, KvEventCounts, Removed, Stored, event_batch
from .kv_blocks import MAX_BLOCKS, Block, KvBlocks, depth_of, path_of
from .record import Record

EXTEND_S = 5.0  # a chunk of a prompt follows the one before it within so many seconds
DECODE_S_PER_TOKEN = 0.1  # ... and a block of generated tokens within this, for each of its tokens, more
WAIT_S = 1.0  # hits of a request that waits are published again and again, within so many seconds
MAX_ROWS = 1 << 14  # rows that are not complete
FULL = ("full_attention", "mla_attention", "sink_full_attention")  # kinds of a hybrid model's groups that keep all


@dataclass(eq=False, slots=True, repr=False)
class _Row:
    """A chain that may still go on."""

    first_s: float
    latest_s: float
    end: Hash
    block: Block  # of that hash
    hit: int  # leading blocks that were in the cache
    session: str | None
    decodes: bool = False  # a single block was stored last
    reported: int | None = None  # the batch that published its hits, while nothing else was stored


@dataclass(repr=False)
class KvStores:
    """The rows that the events of one prefix cache make.

    >>> from kvtrace.ingest.logs.kv_batches import event_batch
    >>> event = {"type": "BlockStored", "block_hashes": [7, 8], "parent_block_hash": None, "block_size": 2}
    >>> stores = KvStores()
    >>> stores.add(event_batch([1.5, [event | {"token_ids": [1, 2, 3, 4]}]]))
    []
    >>> stores.rest()
    [{'kv_events': 'row', 'timestamp': 1.5, 'cached_tokens': 0, 'prompt_token_ids': [1, 2, 3, 4]}]
    >>> stores.counts.first, stores.counts.resident
    (2, 2)
    """

    max_blocks: int = MAX_BLOCKS
    extend_s: float = EXTEND_S
    counts: KvEventCounts = field(default_factory=KvEventCounts)
    _group: int | None = None  # the cache group that is read; of a hybrid model's, one that keeps all blocks
    _has_tokens: bool = True
    _rows: OrderedDict[int, _Row] = field(default_factory=OrderedDict)  # oldest latest store first
    _ends: dict[Hash, list[int]] = field(default_factory=dict)  # last block -> rows
    _number: int = 0  # of the next row
    _batch: int = 0  # number of the present batch

    def __post_init__(self) -> None:
        self._blocks = KvBlocks(self.counts, self.max_blocks)

    def add(self, batch: EventBatch) -> list[dict[str, Any]]:
        """Take the events of a batch; the rows that are complete now, oldest latest store first."""
        rows = self._completed(batch.time_s)
        self.counts.unknown_events += batch.unknown
        self._batch += 1
        self._choose_group(batch.events)
        for i, event in enumerate(batch.events):
            if isinstance(event, Stored):
                self._store(event, batch.time_s, batch.events[i + 1 : i + 2])
                rows += self._completed(float("-inf"))
            elif isinstance(event, Removed):
                self._remove(event)
            else:
                rows += self.clear()
        return rows

    def rest(self) -> list[dict[str, Any]]:
        """The rows that are not complete yet."""
        rows = [self._line(row) for row in self._rows.values()]
        self._rows.clear()
        self._ends.clear()
        return rows

    def clear(self) -> list[dict[str, Any]]:
        """Forget all blocks, as the engine did; the rows that are not complete yet."""
        rows = self.rest()
        self._blocks.clear()
        return rows

    # -- events ------------------------------------------------------------------------------------------------------

    def _choose_group(self, events) -> None:
        """Read one cache group: the first that keeps all blocks of a prompt, else the first that stores."""
        if self.counts.block_size:
            return
        stored = [event for event in events if isinstance(event, Stored) and event.medium is None]
        full = [event for event in stored if event.kind in FULL]
        self._group = next((event.group for event in full or stored), None)

    def _store(self, event: Stored, time_s: float, later: list[Any]) -> None:
        if event.medium is not None:
            self._blocks.put_lower(event.hashes, event.medium)
        elif event.group != self._group:
            self.counts.other_groups += len(event.hashes)
        elif not event.hashes or not self._is_usable(event):
            self.counts.left_out += len(event.hashes)
        elif self._is_report(event, later):
            self._put_row(event, time_s, hit=len(event.hashes), is_report=True)
        else:
            self._put_row(event, time_s, hit=self._blocks.put(event))
            self._blocks.bound()

    def _remove(self, event: Removed) -> None:
        if event.medium is not None:
            self._blocks.remove_lower(event.hashes, event.medium)
        elif event.group is None or event.group == self._group:
            self._blocks.remove(event.hashes)

    def _is_usable(self, event) -> bool:
        """Whether the blocks can be rows' blocks: as many tokens as blocks need, and all blocks of one size."""
        if not self.counts.block_size:
            self.counts.block_size, self._has_tokens = event.block_size, event.tokens is not None
        if event.block_size != self.counts.block_size or (event.tokens is not None) != self._has_tokens:
            return False
        return event.tokens is None or len(event.tokens) == len(event.hashes) * event.block_size

    def _is_report(self, event, later) -> bool:
        """Whether a store only publishes the hits of a request.

        A request that computes its first block did not find it resident. But the last token of a prompt is always
        computed: a prompt of one block, resident, is stored again. A report of one block comes right before what its
        request stores.
        """
        if event.parent is not None or not all(map(self._blocks.is_resident, event.hashes)):
            return False
        if len(event.hashes) > 1 or self.counts.reports:
            return True
        return any(isinstance(successor, Stored) and successor.parent == event.hashes[-1] for successor in later)

    # -- rows --------------------------------------------------------------------------------------------------------

    def _put_row(self, event, time_s, *, hit, is_report=False) -> None:
        """Extend the row that this store continues, or begin one, which found `hit` of these blocks."""
        end = event.hashes[-1]
        number = self._waiting(end, time_s) if is_report else self._continued(event, time_s)
        if number is None:
            depth = 0 if event.parent is None else depth_of(self._blocks[event.parent])
            row = _Row(time_s, time_s, end, self._blocks[end], depth + hit, event.session)
            number, self._number = self._number, self._number + 1
            self._rows[number] = row
            self.counts.hit += depth + hit * is_report
            self.counts.reports += is_report
        else:
            row = self._rows[number]
            self._leave_end(number, row)
            row.decodes = len(event.hashes) == 1 and row.reported is None
            row.end, row.block, row.latest_s = end, self._blocks[end], max(time_s, row.latest_s)
            self._rows.move_to_end(number)
        row.reported = self._batch if is_report else None
        self._ends.setdefault(end, []).append(number)

    def _waiting(self, end, time_s) -> int | None:
        """The row of a request whose hits were published in an earlier batch, just now, and that stored nothing yet."""
        for number in reversed(self._ends.get(end, ())):
            row = self._rows[number]
            if row.reported not in (None, self._batch) and time_s - row.latest_s <= WAIT_S:
                return number
        return None

    def _continued(self, event, time_s) -> int | None:
        """The row that ends where this store begins, recently enough; None if there is none.

        Chunks of a prompt come before generated blocks, which come one by one: several blocks after one are of another
        request, a conversation's next turn.
        """
        single = len(event.hashes) == 1
        limit_s = self.extend_s + single * self._decode_s
        for number in reversed(self._ends.get(event.parent, ()) if event.parent is not None else ()):
            row = self._rows[number]
            if time_s - row.latest_s <= limit_s and (single or not row.decodes) and row.session == event.session:
                return number
        return None

    @property
    def _decode_s(self) -> float:
        return DECODE_S_PER_TOKEN * self.counts.block_size

    def _leave_end(self, number, row) -> None:
        numbers = self._ends[row.end]
        numbers.remove(number)
        if not numbers:
            del self._ends[row.end]

    def _completed(self, time_s) -> list[dict[str, Any]]:
        """The rows whose latest store is too long ago to go on, and the oldest where there are too many."""
        rows = []
        limit_s = self.extend_s + self._decode_s
        while self._rows:
            number, row = next(iter(self._rows.items()))
            if time_s - row.latest_s <= limit_s and len(self._rows) <= MAX_ROWS:
                break
            del self._rows[number]
            self._leave_end(number, row)
            rows.append(self._line(row))
        return rows

    def _line(self, row: _Row) -> dict[str, Any]:
        """The row of a chain, with its whole path, as kv_events.py reads it."""
        parts = path_of(row.block)
        root, last = parts[0][0], parts[-1][0]
        line: dict[str, Any] = {
            "kv_events": "row", "timestamp": row.first_s, "cached_tokens": row.hit * self.counts.block_size,
            "session_id": row.session, "adapter": last.adapter, "cache_salt": last.salt, "media": [],
        }  # fmt: skip
        if not root.size:
            line["media"].append(f"unknown parent {_word(root.hashes[0])}")
        salt, places = _keys_of(parts, self.counts.block_size)
        line["cache_salt"] = line["cache_salt"] or salt
        if self._has_tokens:
            tokens = array("I")
            for segment, index in parts:
                tokens += array("I") if segment.tokens is None else segment.tokens[: (index + 1) * segment.size]
            line["prompt_token_ids"], line["media_at"] = tokens.tolist(), places  # hashes cover images already
        else:
            line["block_size"] = self.counts.block_size
            line["block_hashes"] = [
                _word(block_hash)
                for segment, index in parts
                if segment.size
                for block_hash in segment.hashes[: index + 1]
            ]
        return {name: value for name, value in line.items() if value not in (None, [])}


def _keys_of(parts, size) -> tuple[str | None, list[list[Any]]]:
    """What hashes cover beside tokens: a salt, which the first block has, and images and others by their first tokens.

    vLLM gives an image as its hash and its first token, counted from the start of a block, to each block that holds a
    part of it. In older releases it gives the hash alone.
    """
    salt, start = None, 0
    places: list[list[Any]] = []
    begun: set[tuple[str, int]] = set()  # (image, its first token)
    for segment, index in parts:
        if segment.twin is not None:
            places.append([start, f"hash {_word(segment.twin)}"])
        for block, keys in enumerate((segment.keys or ())[: index + 1]):
            for key in _keys_beside_adapter(keys, segment.adapter):
                token = start + block * size
                if type(key) is str and token == 0 and parts[0][0].size:
                    salt = salt or key
                elif type(key) is list and len(key) == 2 and type(key[1]) is int:
                    image = (str(key[0]), token + key[1])
                    if image not in begun:
                        places.append([max(image[1], token), image[0]])
                    begun.add(image)
                else:
                    places.append([token, repr(key)])
        start += (index + 1) * segment.size
    return salt, places


def _keys_beside_adapter(keys, adapter) -> list[Any]:
    keys = keys if type(keys) is list else []
    return keys[1:] if keys and keys[0] == adapter else keys


def _word(block_hash: Hash) -> int:
    """The hash as a number of 64 bits."""
    if isinstance(block_hash, int):
        return block_hash & (2**64 - 1)
    data = block_hash if isinstance(block_hash, bytes) else block_hash.encode()
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big")


MAX_RANKS = 1024


@dataclass(repr=False)
class KvPublisher:
    """The rows and the counts of one publisher's batches.

    >>> publisher = KvPublisher()
    >>> publisher.add([1.5, [["BlockStored", [7], None, [1, 2], 2]]], sequence=0)
    []
    >>> publisher.rest()[0]["prompt_token_ids"], publisher.counts().resident
    ([1, 2], 1)
    """

    max_blocks: int = MAX_BLOCKS  # of each rank
    extend_s: float = EXTEND_S
    _caches: dict[int | None, KvStores] = field(default_factory=dict)
    _next: dict[int | None, int] = field(default_factory=dict)  # rank -> the number of its next batch
    _latest_s: dict[int | None, float] = field(default_factory=dict)  # rank -> the time of its latest batch
    _lost: int = 0
    _restarts: int = 0

    def add(self, value: Any, sequence: int | None = None) -> list[dict[str, Any]]:
        """Take a decoded batch and its number, if it has one; the rows that are complete now.

        Raises:
            RowError: the value is not a batch of KV events. Nothing of it was taken.
        """
        batch = event_batch(value)
        rank = batch.rank if batch.rank in self._caches or len(self._caches) < MAX_RANKS else None
        number = batch.sequence if sequence is None else sequence
        rows: list[dict[str, Any]] = []
        expected, latest_s = self._next.get(rank), self._latest_s.get(rank, 0.0)
        if number is not None:
            if expected is not None and number < expected:
                if batch.time_s <= latest_s:
                    return []  # a replayed batch
                self._restarts += 1
                self._lost += number
                rows = self._caches[rank].clear()
            elif expected is not None:
                self._lost += number - expected
            self._next[rank] = number + 1
        self._latest_s[rank] = max(latest_s, batch.time_s) if number is None else batch.time_s
        if rank not in self._caches:
            self._caches[rank] = KvStores(self.max_blocks, self.extend_s)
        return rows + self._caches[rank].add(batch)

    def rest(self) -> list[dict[str, Any]]:
        """The rows that are not complete yet, rank by rank."""
        return [row for cache in self._caches.values() for row in cache.rest()]

    def counts(self) -> KvEventCounts:
        """The counts of all ranks together."""
        total = KvEventCounts(lost=self._lost, restarts=self._restarts)
        for cache in self._caches.values():
            total += cache.counts
        return total


SPELLINGS = False  # the fields are ours


def read(row: dict[str, Any]) -> Record:
    """The Record of one chain; RowError if the row does not have this format.

    >>> read({"kv_events": "row", "timestamp": 1.5, "cached_tokens": 2, "prompt_token_ids": [1, 2, 3, 4]}).cached_tokens
    2
    """
    if row.get("kv_events") == "fault":
        raise RowError(str(row.get("reason")), hint=row.get("hint"))
    if row.get("kv_events") != "row":
        raise RowError("is not a batch of KV events.", hint=HINT)
    places = [("", row)]
    record = fields.common(places, *fields.find(places, "timestamp"))
    record.output_length = 0  # generated tokens are in the path: events do not tell them from a prompt
    record.type = "text"
    media = row.get("media", [])
    if type(media) is not list:
        raise fields.wrong(media, "media", "a list of keys")
    record.media = [fields.json_bytes(key, f"media[{i}]") for i, key in enumerate(media)]
    if "block_hashes" in row:
        record.block_size = fields.count(row.get("block_size"), "block_size")
        hashes = row["block_hashes"]
        if not record.block_size or type(hashes) is not list or not all(type(number) is int for number in hashes):
            raise RowError("is not a list of the hashes of blocks.", field="block_hashes")
        record.hashes = array("Q", [number & (2**64 - 1) for number in hashes])
        record.input_length = len(hashes) * record.block_size
    else:
        fields.put_prompt(record, row.get("prompt_token_ids"), "prompt_token_ids")
        record.media_at = _media_at(row.get("media_at", []), len(record.token_ids or ()))
    return record


def _media_at(places, length) -> list[tuple[int, bytes]]:
    """What tells blocks with equal tokens apart, each with its first token."""
    if type(places) is list and all(type(pair) is list and list(map(type, pair)) == [int, str] for pair in places):
        return [(token, fields.json_bytes(key, "media_at")) for token, key in places if 0 <= token < length]
    raise fields.wrong(places, "media_at", "a list of pairs of a token and a key")


def matches(row: dict[str, Any]) -> bool:
    """Whether the row has this format."""
    return "kv_events" in row


def small_unit(row: dict[str, Any]) -> str | None:
    """Seconds, as engines write them."""
    return "s"


def row_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The rows that recorded batches make, one a line; a line that is not a batch becomes a faulty row.

    >>> stored = b'[1.5,[{"type":"BlockStored","block_hashes":[7],"token_ids":[1,2],"block_size":2}]]'
    >>> list(row_lines([stored]))
    [b'{"kv_events":"row","timestamp":1.5,"cached_tokens":0,"prompt_token_ids":[1,2]}']
    """
    publisher = KvPublisher()
    for number, line in enumerate(lines, 1):
        try:
            rows = publisher.add(parsed_json(line)) if line.strip() else []
        except orjson.JSONDecodeError as error:
            rows = [_fault(number, f"not valid JSON at column {error.colno}.")]
        except RowError as error:
            rows = [_fault(number, error.reason, error.field, error.hint)]
        yield from map(orjson.dumps, rows)
    yield from map(orjson.dumps, publisher.rest())


def _fault(number, reason, field=None, hint=None) -> dict[str, Any]:
    """A row that is an error, which names the line of the file: rows have other numbers."""
    where = "" if field is None else f"{field} "
    return {"kv_events": "fault", "reason": f"line {number:,} of the events: {where}{reason}", "hint": hint}
