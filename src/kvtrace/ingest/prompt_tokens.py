"""The tokens of a batch's prompts: rendered texts, the placeholders of media between them, and the start token.

A prompt with media is several texts. Engines tokenise the text around a placeholder apart, since placeholders are
control tokens, and put as many of them as the model's processor makes of the medium (text/media.py). A medium whose
number of placeholders is not known counts as one.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._base.errors import RowError
from .._base.offsets import offsets_of
from ..text.media import rule_for
from .logs.fields import identity_of
from .logs.record import Record

if TYPE_CHECKING:
    from ..text.chat_requests import Medium

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
    plain = len(texts) == len(requests) and not any(r.placed or r.media_at or r.add_special_tokens for r in requests)
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
    sizer = _Sizer(tokenizer)
    for number, record in enumerate(requests):
        row: list[np.ndarray] = []
        placed = [PlacedMedium(token, identity) for token, identity in record.media_at]
        grids = iter(_grids(record))
        if record.token_ids is not None:
            row.append(np.asarray(record.token_ids, dtype=np.uint32))
        elif record.text or record.texts:
            start = tokenizer.start_tokens if record.add_special_tokens else UNPRINTED[:0]
            row.append(start)
            for place in range(len(record.texts or [record.text])):
                if place and (medium := record.placed[place - 1]).part is not None:
                    grid = next(grids, None) if medium.kind == "image" else None
                    placeholders, is_sized = sizer.placeholders(medium, record.model, grid)
                    unsized += not is_sized
                    placed.append(PlacedMedium(sum(map(len, row)), _identity(medium.part, number)))
                    row.append(placeholders)
                row.append(tokens[offsets[text] : offsets[text + 1]])
                text += 1
            row.append(tokenizer.end_tokens if record.add_special_tokens else UNPRINTED[:0])
        pieces += row
        lengths.append(sum(map(len, row)))
        media.append(placed)
    flat = np.concatenate(pieces) if pieces else np.empty(0, np.uint32)
    return PromptTokens((flat, offsets_of(lengths)), media, unsized)


def _identity(part, request: int) -> bytes:
    try:
        return identity_of(part, "messages")
    except RowError as error:
        error.index = request
        raise


def _grids(record) -> list[Any]:
    """The grids of patches that the request states for its images, in their order."""
    shaping = record.shaping or {}
    grids = shaping.get("image_grid_thw") or shaping.get("image_grid") or []
    return grids if all(isinstance(grid, list) for grid in grids) else [grids]


class _Sizer:
    """Makes the placeholder tokens of media with one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._rule = lru_cache(maxsize=256)(
            lambda kind, placeholder, model: rule_for(
                kind, placeholder=placeholder or None, model=model, config=tokenizer.media_config
            )
        )
        self._token = lru_cache(maxsize=256)(self._token_of)

    def placeholders(self, medium: Medium, model: str | None, grid: Any) -> tuple[np.ndarray, bool]:
        """The placeholder tokens of a medium, and whether their number is known."""
        rule = self._rule(medium.kind, medium.placeholder, model)
        part = medium.part if grid is None else {**(medium.part or {}), "image_grid_thw": grid}
        counts = None if rule is None else rule.pieces(part or {})
        if not counts:
            return self._token(medium.placeholder), False
        return np.concatenate([np.repeat(self._token(text), number) for text, number in counts]), True

    def _token_of(self, text: str) -> np.ndarray:
        """The token of a placeholder; that of another model's vocabulary is one that no text has."""
        tokens = self._tokenizer.encode(text) if text else UNPRINTED
        return tokens if len(tokens) == 1 else UNPRINTED
