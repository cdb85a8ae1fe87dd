"""Hash the blocks of prompts: tokens and a key become chained digests, one a block. No later step sees tokens.

The digest of a block is SipHash-2-4-128 over the previous block's digest and the block's tokens, so that equal digests
mean equal prefixes. A prompt's chain starts at a root, which covers all else that its KV cache depends on: the model,
the adapter, the tokenizer, the images.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256

import numpy as np

from .._base.offsets import offsets_of
from .._native import numbering
from ..trace.columns import TAILS
from .keys import Key
from .prompt_tokens import PlacedMedium

Media = Sequence[list[PlacedMedium]]
Ragged = tuple[np.ndarray, np.ndarray]  # rows end to end; their offsets
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
        keys = [f"{one.token % self.block_size}:{sha256(one.identity).hexdigest()}" for one in here]
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
