"""Tokens of prompts, and the keyed hashes of their blocks. No later step sees tokens.

A prompt with media is several texts. Engines tokenise the text around a placeholder apart, since placeholders are
control tokens, and put as many of them as the model's processor makes of the medium (text/media.py). A medium whose
number of placeholders is not known counts as one.

The digest of a block is SipHash-2-4-128 over the previous block's digest and the block's tokens, so that equal digests
mean equal prefixes. A prompt's chain starts at a root, which covers all else that its KV cache depends on: the model,
the adapter, the tokenizer, the images.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._base.arrays import offsets_of
from .._base.errors import RowError
from .._native import numbering
from ..trace.columns import TAILS
from .keys import Key
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
        from ..text.media import rule_for

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


Media = Sequence[list[PlacedMedium]]
NO_DIGEST = np.zeros(2, dtype=np.uint64)
NO_CONTEXT = "{}"  # the context without parts


class BlockHasher:
    """Digests of prompts, outputs and session keys under one secret key.

    >>> hasher = BlockHasher(Key(bytes(16)), block_size=2, tail="kept")
    >>> root = hasher.roots(["model a"])
    >>> digests, offsets = hasher.prompts((np.array([1, 2, 3], np.uint32), np.array([0, 3])), root)
    >>> digests.shape, offsets
    ((2, 2), array([0, 2]))
    """

    def __init__(self, key: Key, *, block_size: int, tail: str):
        assert tail in TAILS
        self.block_size = block_size
        self._digest_tails = tail == "kept"  # a unique tail needs no digest: it gets a new id
        self._block_key = key.subkey("blocks")
        root_key, session_key, user_key = key.subkey("roots"), key.subkey("sessions"), key.subkey("users")
        self._media_key = key.subkey("media")
        self._engine_key, domain_key = key.subkey("engine hashes"), key.subkey("domains")
        self._root = lru_cache(maxsize=4096)(lambda context: _digest(root_key, context))
        self._session = lru_cache(maxsize=4096)(lambda session: _digest(session_key, session))
        self._user = lru_cache(maxsize=4096)(lambda user: _digest(user_key, user))
        self._domain = lru_cache(maxsize=4096)(lambda domain: _digest(domain_key, domain))

    def roots(self, contexts: list[str]) -> np.ndarray:
        """Request -> root of its chain, from its context string (see `context`)."""
        return np.array([self._root(context) for context in contexts], dtype=np.uint64).reshape(-1, 2)

    def prompts(self, prompts: Ragged, roots: np.ndarray, media: Media = ()) -> Ragged:
        """Chained digests of each prompt's blocks, and their offsets.

        Args:
            prompts: Tokens.
            roots: Request -> root of its chain.
            media: Prompt -> its media. An image enters the digest of the block that holds its first placeholder, as in
                vLLM's `_gen_mm_extra_hash_keys`: blocks before it are shared, those from it on are not.
        """
        tokens, offsets = prompts
        digests, ends = numbering.chain(self._block_key, tokens, offsets, roots, self.block_size, self._digest_tails)
        for row, placed in enumerate(media):
            if placed:
                digests[ends[row] : ends[row + 1]] = self._around_media(
                    tokens[offsets[row] : offsets[row + 1]], roots[row], placed
                )
        return digests, ends

    def _around_media(self, tokens: np.ndarray, root: np.ndarray, placed: list[PlacedMedium]) -> np.ndarray:
        """The chained digests of one prompt with media."""
        size, parts, start = self.block_size, [], 0
        for block in [*sorted({medium.token // size for medium in placed}), None]:
            stop = len(tokens) if block is None else block * size
            part, _ = numbering.chain(
                self._block_key, np.ascontiguousarray(tokens[start:stop]), np.array([0, stop - start]), root[None],
                size, self._digest_tails,
            )  # fmt: skip
            parts.append(part)
            root = part[-1] if len(part) else root
            if block is not None:
                root, start = self._with_media(root, placed, block), stop
        return np.concatenate(parts)

    def _with_media(self, root: np.ndarray, placed: list[PlacedMedium], block: int) -> np.ndarray:
        """The digest that a block with media follows: that of the block before it, and the media with their places."""
        here = [medium for medium in placed if medium.token // self.block_size == block]
        keys = [f"{medium.token % self.block_size}:{sha256(medium.identity).hexdigest()}" for medium in here]
        return _digest(self._media_key, "|".join([root.tobytes().hex(), *keys]))

    def outputs(
        self, prompts: Ragged, prompt_digests: Ragged, outputs: Ragged, roots, has_output, media: Media = ()
    ) -> Ragged:
        """Chained digests of each output's blocks, which continue the prompt's chain after its last full block.

        An output's first tokens fill up the prompt's partial block.

        Args:
            prompts, outputs: tokens.
            prompt_digests: the result of `prompts()`.
            has_output: row -> False if the row gets no output blocks.
        """
        tokens, offsets = prompts
        digests, digest_offsets = prompt_digests
        full = np.diff(offsets) // self.block_size
        roots = roots.copy()
        roots[full > 0] = digests[(digest_offsets[:-1] + full - 1)[full > 0]]
        for row, placed in enumerate(media):
            if any(medium.token // self.block_size == full[row] for medium in placed):  # in the partial block
                roots[row] = self._with_media(roots[row], placed, int(full[row]))
        starts = offsets[:-1] + full * self.block_size
        joined, joined_offsets = _join((tokens, starts, offsets[1:]), outputs, has_output)
        return numbering.chain(self._block_key, joined, joined_offsets, roots, self.block_size, self._digest_tails)

    def engine_hashes(self, hashes: Ragged, roots: np.ndarray) -> np.ndarray:
        """Keyed digests of an engine's own hashes, which already cover a block with its prefix.

        A hash is one uint64, or a row of them.
        """
        values, offsets = hashes
        size = 2 * int(np.prod(values.shape[1:]))  # 32-bit words of a hash
        words = np.ascontiguousarray(values, dtype="<u8").reshape(-1).view("<u4")
        root_of_hash = np.repeat(roots, np.diff(offsets), axis=0)  # each hash is a chain of one block
        starts = np.arange(0, len(words) + 1, size)
        return numbering.chain(self._engine_key, words, starts, root_of_hash, size, False)[0]

    def sessions(self, keys: list[str | None]) -> np.ndarray:
        """Request -> keyed digest of its session key; two zeros = no session."""
        return _digests(self._session, keys)

    def users(self, keys: list[str | None]) -> np.ndarray:
        """Request -> keyed digest of its user or tenant key; two zeros = no user."""
        return _digests(self._user, keys)

    def domains(self, keys: list[str | None]) -> np.ndarray:
        """Request -> keyed digest of its isolation domain; two zeros = none."""
        return _digests(self._domain, keys)


def context(**parts) -> str:
    """The canonical string of a root: its parts (tokenizer, template, model, adapter, media ...) by name, without None.

    >>> context(model="a", adapter=None)
    '{"model": "a"}'
    """
    return json.dumps({name: part for name, part in parts.items() if part}, sort_keys=True)


def _digests(digest, keys) -> np.ndarray:
    digests = [NO_DIGEST if key is None else digest(key) for key in keys]
    return np.array(digests, dtype=np.uint64).reshape(-1, 2)


def _digest(key: bytes, text: str) -> np.ndarray:
    return np.frombuffer(numbering.siphash128(key, text.encode("utf-8", "surrogatepass")), dtype="<u8")


def _join(prompts, outputs, has_output):
    """Each row's prompt tokens after its last full block, followed by its output tokens; empty without an output."""
    tokens, starts, stops = prompts
    output_tokens, output_offsets = outputs
    rows = [
        part
        for row in np.flatnonzero(has_output)
        for part in (
            tokens[starts[row] : stops[row]],
            output_tokens[output_offsets[row] : output_offsets[row + 1]],
        )
    ]
    lengths = np.where(has_output, stops - starts + np.diff(output_offsets), 0)
    joined = np.concatenate(rows) if rows else np.empty(0, dtype=np.uint32)
    return joined, offsets_of(lengths)
