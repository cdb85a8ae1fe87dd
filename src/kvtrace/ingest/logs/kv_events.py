"""KV events that vLLM or SGLang published, recorded one batch a line: what a prefix cache stored, with its path.

The lines go through `kv_publisher.py` while the file is read, so that this reader gets rows: a chain of blocks that was
computed, its token ids (or the engine's hashes, where events have no tokens), the time of its first store, and as
cached tokens the leading ones that the cache had. Token ids win over hashes, since ids of their blocks equal those of
other logs, with any block size. Such a trace shows stores: a request whose blocks were all resident is not among them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from ..._base.errors import RowError
from . import fields
from .kv_batches import HINT
from .kv_stores import KvPublisher
from .record import Record

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
            rows = publisher.add(orjson.loads(line)) if line.strip() else []
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
