"""A dictionary attack on raw digests: hash known texts with the engines' public functions and look for the digests.

The dictionary contains every block of one token, and the openings of common chat templates at common block sizes. It is
small on purpose: if it inverts some digests, a larger dictionary inverts many more.

Dynamo hashes blocks with XXH3-64 and a seed: one input of any length, or many inputs of four bytes at once
(https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md; the tests have the library's vectors).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import chain

import numpy as np

from ..._base.xxh3 import M64, xxh3_64, xxh3_64_of_words

TOKENS = 1 << 17  # the ids of most vocabularies
BLOCK_SIZES = (1, 16, 64, 512)
SEED = 1337  # Dynamo's
FNV_BASIS, FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3
OPENINGS = (  # token ids at the start of common prompts
    (151644, 872, 198),  # Qwen: user, and a newline
    (151644, 8948, 198, 2610, 525, 264, 10950, 17847, 13, 151645, 198, 151644, 872, 198),  # a helpful assistant
    (151644, 8948, 198, 2610, 525, 1207, 16948, 11, 3465, 553, 54364, 14817, 13, 1446, 525, 264, 10950, 17847, 13,
     151645, 198, 151644, 872, 198),  # You are Qwen, created by Alibaba Cloud. You are a helpful assistant.
    (2610, 525, 264, 10950, 17847, 13),  # the sentence alone
    (2610, 525, 12853, 38, 2828, 11, 264, 3460, 4128, 1614, 16176, 553, 5264, 15469, 13),  # You are ChatGPT, ...
    (0, 128803),  # DeepSeek-R1: its first token, and user
    (0, 3476, 477, 260, 11502, 22896, 16, 128803),  # You are a helpful assistant.
    (3476, 477, 260, 11502, 22896, 16),  # the sentence alone
    (3476, 477, 51744, 14, 260, 3226, 4063, 2645, 17024, 513, 86050, 16),  # You are ChatGPT, ...
)  # fmt: skip


def inverted(ids: np.ndarray) -> dict[str, int]:
    """The number of ids (int64, the bits of a digest) that the dictionary of each engine inverts, if any.

    >>> inverted(np.array([dynamo_local([[7]])[0], 5], dtype=np.uint64).view(np.int64))
    {'dynamo': 1}
    """
    distinct = np.unique(ids).view(np.uint64)
    counts = {name: int(np.isin(distinct, digests(name)).sum()) for name in ENGINES}
    return {name: count for name, count in counts.items() if count}


@cache
def digests(engine: str) -> np.ndarray:
    """The dictionary under one engine's functions: distinct digests (uint64)."""
    functions = ENGINES[engine]
    of_openings = [digest for function in functions for prompt in _openings() for digest in function(prompt)]
    if engine == "dynamo":  # both of its functions give the same hash for one block
        of_one = xxh3_64_of_words(np.arange(TOKENS), SEED)
    else:
        singles = (function([[token]]) for function in functions for token in range(TOKENS))
        of_one = np.fromiter(chain.from_iterable(singles), dtype=np.uint64)
    return np.unique(np.concatenate([np.array(of_openings, dtype=np.uint64), of_one]))


def _openings() -> Iterator[list[Sequence[int]]]:
    """Each opening as a list of blocks; the last block may be partial."""
    for tokens in OPENINGS:
        for size in BLOCK_SIZES:
            yield [tokens[at : at + size] for at in range(0, len(tokens), size)]


# -- the public functions: blocks of tokens, root first -> one digest a block --------------------------------------


def dynamo_local(blocks) -> list[int]:
    """Dynamo's local block hash: XXH3-64 over little-endian u32."""
    return [xxh3_64(_words(block), SEED) for block in blocks]


def dynamo_sequence(blocks) -> list[int]:
    """Dynamo's sequence hash of each block and its prefix; the first one is the local hash."""
    digests: list[int] = []
    for local in dynamo_local(blocks):
        digests.append(xxh3_64(struct.pack("<2Q", digests[-1], local), SEED) if digests else local)
    return digests


def sglang(blocks) -> list[int]:
    """SGLang's hash: SHA-256 over the parent's digest and the tokens; events contain its first 64 bits."""
    digests, parent = [], b""
    for block in blocks:
        parent = hashlib.sha256(parent + _words(block)).digest()
        digests.append(int.from_bytes(parent[:8], "big"))
    return digests


def vllm(blocks) -> list[int]:
    """vLLM's sha256_cbor with PYTHONHASHSEED=0; events contain its last 64 bits."""
    digests, parent = [], _root("0").digest()
    for block in blocks:
        parent = hashlib.sha256(_link(parent, block)).digest()
        digests.append(int.from_bytes(parent[-8:], "big"))
    return digests


def vllm_64(blocks) -> list[int]:
    """vLLM's former sha256_cbor_64bit, also used by llm-d: the parent is a number; for an empty seed and for "0"."""
    roots = [int.from_bytes(_root(seed).digest()[-8:], "big") for seed in ("0", "")]
    return [number for root in roots for number in _numbered_chain(blocks, _low_sha256, root)]


def llm_d(blocks) -> list[int]:
    """llm-d's hash: FNV-1a-64 over the CBOR of parent, tokens and null; the root is the hash of an empty seed."""
    return _numbered_chain(blocks, fnv1a_64, FNV_BASIS)


def python_hash(blocks) -> list[int]:
    """Python's hash of tuples of integers, which is the same for every seed: for each block, and chained from 0."""
    digests, parent = [], 0
    for block in blocks:
        parent = hash((parent, tuple(block)))
        digests += [hash(tuple(block)) & M64, parent & M64]
    return digests


ENGINES: dict[str, tuple[Callable[..., list[int]], ...]] = {
    "dynamo": (dynamo_local, dynamo_sequence), "sglang": (sglang,), "vllm": (vllm,), "vllm 64 bit": (vllm_64,),
    "llm-d": (llm_d,), "python hash": (python_hash,),
}  # fmt: skip


def fnv1a_64(data: bytes) -> int:
    """The FNV-1a-64 hash of some bytes.

    >>> f"{fnv1a_64(b'a'):x}"
    'af63dc4c8601ec8c'
    """
    state = FNV_BASIS
    for byte in data:
        state = (state ^ byte) * FNV_PRIME & M64
    return state


def cbor(value) -> bytes:
    """The canonical CBOR (RFC 8949) of integers, bytes, text, lists and None.

    >>> cbor([1, [500], None]).hex()
    '8301811901f4f6'
    """
    if isinstance(value, int):
        return _head(0, value)
    if value is None:
        return b"\xf6"
    if isinstance(value, (bytes, str)):
        data = value.encode() if isinstance(value, str) else value
        return _head(3 if isinstance(value, str) else 2, len(data)) + data
    return _head(4, len(value)) + b"".join(map(cbor, value))


def _head(major, number) -> bytes:
    if number < 24:
        return bytes((major << 5 | number,))
    size = (number > 0xFF) + (number > 0xFFFF) + (number > 0xFFFFFFFF)
    return bytes((major << 5 | 24 + size,)) + number.to_bytes(1 << size, "big")


@cache
def _root(seed):
    return hashlib.sha256(cbor(seed))


_cbor_of_parent = lru_cache(8)(cbor)  # the dictionary has 131,072 blocks of each first parent


def _link(parent, block) -> bytes:
    """The CBOR of a parent's digest, the tokens of a block, and None."""
    tokens = b"".join([_head(0, token) for token in block])
    return b"\x83" + _cbor_of_parent(parent) + _head(4, len(block)) + tokens + b"\xf6"


def _words(block) -> bytes:
    return struct.pack(f"<{len(block)}I", *block)


def _numbered_chain(blocks, digest, parent) -> list[int]:
    digests = []
    for block in blocks:
        parent = digest(_link(parent, block))
        digests.append(parent)
    return digests


def _low_sha256(data) -> int:
    return int.from_bytes(hashlib.sha256(data).digest()[-8:], "big")
