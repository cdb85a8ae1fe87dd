"""UCM's traces: time, lengths and hashes of a request's full blocks, as its tools write them to `trace.jsonl`.

UCM (Unified Cache Manager, github.com/ModelEngine-Group/unified-cache-management) logs a line a request inside vLLM;
`benchmarks/gene_trace.py`, or `auto_trace_analysis.py --trace-output`, turns these lines into rows. A hash is the MD5
of the hash before it and of a block's tokens, as 32 hexadecimal digits (`ucm_connector.py`, `generate_hash`): a public
function of the prompt, and so as secret as the prompt. Partial blocks have no hash, and rows state no block size.
"""

from __future__ import annotations

from typing import Any

from ..._base.errors import EmptyPrompt, RowError
from . import fields
from .record import Record, hex_hashes, is_hashes

DIGITS = 32  # of an MD5
HASH_WORDS = 2
HASHES = "hash_ids"
HASHED_TAILS = False
NOTE = "`output_length` of UCM's traces is the limit of each request (max_tokens), not the length of its output"


def read(row: dict[str, Any]) -> Record:
    """The Record of one row; RowError if the row does not have this format.

    >>> row = {"timestamp": 5021.5, "input_length": 700, "output_length": 128, "hash_ids": ["0" * 31 + "7"]}
    >>> read(row).hashes
    array('Q', [0, 7])
    """
    places = [("", row)]
    record = fields.common(places, *fields.find(places, "timestamp"))
    fields.put_output(record, None, "output_length")
    record.input_length = fields.count(*fields.find(places, "input_length"))
    if record.input_length is None:
        raise RowError("is missing. It must hold the length of the prompt in tokens.", field="input_length")
    if not record.input_length:
        raise EmptyPrompt("the prompt is empty.", field="input_length")
    value, path = fields.find(places, "hashes", HASHES)
    record.hashes = hex_hashes(value, path if value is not None else HASHES, digits=DIGITS)
    record.type = record.type or "text"
    return record


def matches(row: dict[str, Any]) -> bool:
    """Whether the row has this format."""
    return "input_length" in row and "output_length" in row and is_hashes(row.get(HASHES), digits=DIGITS)


def small_unit(row: dict[str, Any]) -> str | None:
    """Seconds of the process's own clock (`time.perf_counter`)."""
    return "s"
