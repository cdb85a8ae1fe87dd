"""The tokens of a batch's prompts: rendered texts, the placeholders of media between them, and the start token.

A prompt with media is several texts. Engines tokenise the text around a placeholder apart, since placeholders are
control tokens, and put as many of them as the model's processor makes of the medium (text/media.py). A medium whose
number of placeholders is not known counts as one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .._base.errors import RowError
from .._base.offsets import offsets_of
from .logs.fields import identity_of
from .logs.record import Record

UNPRINTED = np.zeros(1, dtype=np.uint32)  # the placeholder of a medium that the template does not write


class PlacedMedium(NamedTuple):
    """A medium at its place in the tokens of a prompt."""

    token: int  # its first placeholder
    identity: bytes  # secret like the prompt


Ragged = tuple[np.ndarray, np.ndarray]  # rows end to end; their offsets


class PromptTokens(NamedTuple):
    """The tokens of all prompts of a batch."""

    tokens: Ragged
    media: list[list[PlacedMedium]]  # prompt -> its media, in order
    unsized: int  # media whose number of placeholders is not known


def prompt_tokens(requests: list[Record], tokenizer: Any) -> PromptTokens:
    """The tokens of the prompts of rendered requests; token ids of the log are used unchanged.

    Raises:
        RowError: The tokenizer refuses a text; `index` is the request.
    """
    texts, owner = [], []  # owner: text -> request
    for row, record in enumerate(requests):
        pieces = record.texts or ([record.text] if record.text else [])
        texts += pieces
        owner += [row] * len(pieces)
    tokens, offsets = _encoded(tokenizer, texts, owner)
    plain = len(texts) == len(requests) and not any(r.placed or r.add_special_tokens for r in requests)
    if plain:  # one text for each request: nearly all logs
        return PromptTokens((tokens, offsets), [[] for _ in requests], 0)
    return _joined(requests, tokenizer, tokens, offsets)


def _encoded(tokenizer, texts, owner) -> Ragged:
    if tokenizer is None or not texts:
        return np.empty(0, np.uint32), np.zeros(len(texts) + 1, np.int64)
    try:
        return tokenizer.encode_batch(texts)
    except RowError as error:
        if error.index is not None:
            error.index = owner[error.index]
        raise


def _joined(requests, tokenizer, tokens, offsets) -> PromptTokens:
    """The pieces of each prompt, end to end, with the placeholders of its media between them."""
    pieces: list[np.ndarray] = []
    lengths, media, unsized, text = [], [], 0, 0
    for record in requests:
        row: list[np.ndarray] = []
        placed: list[PlacedMedium] = []
        if record.token_ids is not None:
            row.append(np.asarray(record.token_ids, dtype=np.uint32))
        elif record.text or record.texts:
            start = tokenizer.start_tokens if record.add_special_tokens else UNPRINTED[:0]
            row.append(start)
            for place in range(len(record.texts or [record.text])):
                if place and (medium := record.placed[place - 1]).part is not None:
                    placeholders, is_sized = _placeholders(medium, tokenizer)
                    unsized += not is_sized
                    placed.append(PlacedMedium(sum(map(len, row)), identity_of(medium.part, "messages")))
                    row.append(placeholders)
                row.append(tokens[offsets[text] : offsets[text + 1]])
                text += 1
            row.append(tokenizer.end_tokens if record.add_special_tokens else UNPRINTED[:0])
        pieces += row
        lengths.append(sum(map(len, row)))
        media.append(placed)
    flat = np.concatenate(pieces) if pieces else np.empty(0, np.uint32)
    return PromptTokens((flat, offsets_of(lengths)), media, unsized)


def _placeholders(medium, tokenizer) -> tuple[np.ndarray, bool]:
    """The placeholder tokens of a medium, and whether their number is known."""
    token = tokenizer.encode(medium.placeholder)[:1] if medium.placeholder else UNPRINTED
    count = None
    return np.repeat(token, 1 if count is None else count), count is not None
