"""LiteLLM's spend logs with the hashes of its callback `prefix_block_hashes`, and without prompts.

https://docs.litellm.ai/docs/proxy/prefix_block_hashes (LiteLLM 1.111). An ID is 16 hexadecimal digits of a chained
HMAC-SHA256, one a block, the last, partial block included, under a secret of the proxy. What we have of this page does
not say where in the metadata the IDs are, nor how large the blocks are. So the IDs are the list, or the only list of
such IDs in the object, under the callback's name in the row or in its metadata, unless a field map names `hashes`; and
the block size is the option's, unless that object states `block_size`. The rest of a row is read as by `litellm`.

The provider counts `prompt_tokens`, and LiteLLM's tokenizer cuts the blocks, so `input_length` is left to be fitted.
"""

from __future__ import annotations

from typing import Any

from ..._base.errors import EmptyPrompt, RowError
from . import fields, litellm, pairs
from .record import Record, hex_hashes, is_hashes

DIGITS = 16
HASHES = "prefix_block_hashes"


def read(row: dict[str, Any]) -> Record:
    """The Record of one call; NotARequest if nothing was generated, RowError if the row does not have this format.

    >>> row = {"call_type": "acompletion", "startTime": 5.5, "prompt_tokens": 20, "completion_tokens": 7}
    >>> read(row | {"metadata": {"prefix_block_hashes": ["00000000000000ff"]}}).hashes
    array('Q', [255])
    """
    record, row, _ = litellm.call(row)
    litellm.put_answer(record, row)
    value, path = _found(row)
    record.block_size = _block_size(value, path)
    record.hashes = hex_hashes(*_ids(value, path), digits=DIGITS)
    if not record.hashes:
        raise EmptyPrompt("the prompt is empty.", field=path)
    if not record.prompt_tokens:
        raise RowError("is missing. It must hold the length of the prompt in tokens.", field="prompt_tokens")
    record.type = record.type or "text"
    return record


def matches(row: dict[str, Any]) -> bool:
    """Whether the row has this format: a row with its prompt is read by `litellm`."""
    if not litellm.matches(row) or litellm.has_prompt(row):
        return False
    value, path = _found(row)
    return is_hashes(_ids(value, path)[0], digits=DIGITS)


def small_unit(row: dict[str, Any]) -> str | None:
    """As of `litellm`."""
    return litellm.small_unit(row)


def _found(row) -> tuple[Any, str]:
    """What the callback wrote, and its JSON path."""
    value, path = fields.find([("", row), *pairs.inside(row, "metadata")], "hashes", HASHES)
    if value is None:
        return None, f"metadata.{HASHES}"
    opened = pairs.unpacked(value) if type(value) is str else value
    return (value if opened is None else opened), path


def _ids(value, path) -> tuple[Any, str]:
    """The list of IDs, and the JSON path of its owner. The key of the list is content: no message shows it."""
    if type(value) is not dict:
        return value, path
    lists = [item for item in value.values() if is_hashes(item, digits=DIGITS)]
    return (lists[0] if len(lists) == 1 else value), path


def _block_size(value, path) -> int | None:
    if type(value) is not dict or value.get("block_size") is None:
        return None
    size = fields.count(value["block_size"], f"{path}.block_size")
    if not size:
        raise RowError("must be a number of tokens above 0.", field=f"{path}.block_size")
    return size
