"""SipHash-2-4 with 128-bit output (Aumasson and Bernstein, 2012), and chains of it over blocks of tokens.

Byte order is explicit little-endian, so all machines give the same digests. Twin: tests/reference/siphash.py.
"""

import cython
import numpy as np


def siphash128(key: bytes, message: bytes) -> bytes:
    """The 16-byte SipHash-2-4-128 of a message under a 16-byte key.

    >>> siphash128(bytes(range(16)), b"").hex()
    'a3817f04ba25a8e66df67214c7550293'
    """
    if len(key) != 16:
        raise ValueError("a SipHash key has 16 bytes")
    words = np.frombuffer(message[: len(message) // 8 * 8], dtype="<u8").astype(np.uint64)
    rest = message[len(words) * 8 :].ljust(7, b"\0") + bytes([len(message) & 0xFF])  # the last word ends in the length
    digest = np.empty(2, dtype=np.uint64)
    _hash_words(*_halves(key), words, int.from_bytes(rest, "little"), digest)
    return digest.astype("<u8").tobytes()


def chain(key: bytes, tokens, offsets, roots, block_size: int, tail: bool):
    """Chained digests of the blocks of all rows, and their offsets.

    Row r is tokens[offsets[r]:offsets[r + 1]] (uint32); its first block follows roots[r] (two uint64 each). With
    `tail`, a partial last block gets a digest too. The digests are an array of (low, high) uint64 pairs.
    """
    tokens = np.ascontiguousarray(tokens, dtype=np.uint32)
    offsets = np.ascontiguousarray(offsets, dtype=np.int64)
    roots = np.ascontiguousarray(roots, dtype=np.uint64).reshape(-1, 2)
    if len(roots) != len(offsets) - 1 or offsets[0] != 0 or offsets.item(-1) != len(tokens) or block_size < 1:
        raise ValueError("roots, offsets and tokens have inconsistent sizes, or block_size is below 1")
    lengths = np.diff(offsets)
    blocks = -(-lengths // block_size) if tail else lengths // block_size
    block_offsets = np.zeros(len(offsets), dtype=np.int64)
    np.cumsum(blocks, out=block_offsets[1:])
    digests = np.empty((block_offsets.item(-1), 2), dtype=np.uint64)
    _chain(*_halves(key), tokens, offsets, roots, block_size, block_offsets, digests)
    return digests, block_offsets


def _halves(key):
    return int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")


def _round(v):
    v[0] += v[1]
    v[1] = (v[1] << 13) | (v[1] >> 51)
    v[1] ^= v[0]
    v[0] = (v[0] << 32) | (v[0] >> 32)
    v[2] += v[3]
    v[3] = (v[3] << 16) | (v[3] >> 48)
    v[3] ^= v[2]
    v[0] += v[3]
    v[3] = (v[3] << 21) | (v[3] >> 43)
    v[3] ^= v[0]
    v[2] += v[1]
    v[1] = (v[1] << 17) | (v[1] >> 47)
    v[1] ^= v[2]
    v[2] = (v[2] << 32) | (v[2] >> 32)


def _start(v, k0, k1):
    v[0] = k0 ^ cython.cast(cython.ulonglong, 0x736F6D6570736575)
    v[1] = k1 ^ cython.cast(cython.ulonglong, 0x646F72616E646F6D) ^ 0xEE
    v[2] = k0 ^ cython.cast(cython.ulonglong, 0x6C7967656E657261)
    v[3] = k1 ^ cython.cast(cython.ulonglong, 0x7465646279746573)


def _take(v, word):
    v[3] ^= word
    _round(v)
    _round(v)
    v[0] ^= word


def _finish(v, low, high):
    v[2] ^= 0xEE
    _round(v)
    _round(v)
    _round(v)
    _round(v)
    low[0] = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    _round(v)
    _round(v)
    _round(v)
    _round(v)
    high[0] = v[0] ^ v[1] ^ v[2] ^ v[3]


def _hash_words(k0: cython.ulonglong, k1: cython.ulonglong, words: cython.const[cython.ulonglong][::1],
                rest: cython.ulonglong, digest: cython.ulonglong[::1]):  # fmt: skip
    v: cython.ulonglong[4]
    i: cython.Py_ssize_t
    _start(v, k0, k1)
    for i in range(words.shape[0]):
        _take(v, words[i])
    _take(v, rest)
    _finish(v, cython.address(digest[0]), cython.address(digest[1]))


def _chain(k0: cython.ulonglong, k1: cython.ulonglong, tokens: cython.const[cython.uint][::1],
           offsets: cython.const[cython.longlong][::1], roots: cython.const[cython.ulonglong][:, ::1],
           block_size: cython.Py_ssize_t, block_offsets: cython.const[cython.longlong][::1],
           digests: cython.ulonglong[:, ::1]):  # fmt: skip
    v: cython.ulonglong[4]
    row: cython.Py_ssize_t
    block: cython.Py_ssize_t
    i: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    size: cython.Py_ssize_t
    rest: cython.ulonglong
    low: cython.ulonglong
    high: cython.ulonglong
    with cython.nogil:
        for row in range(roots.shape[0]):
            low = roots[row, 0]
            high = roots[row, 1]
            i = offsets[row]
            for block in range(block_offsets[row], block_offsets[row + 1]):
                stop = i + block_size
                if stop > offsets[row + 1]:
                    stop = offsets[row + 1]
                size = 16 + 4 * (stop - i)  # bytes of the message: the previous digest, then u32 tokens
                _start(v, k0, k1)
                _take(v, low)
                _take(v, high)
                while i + 1 < stop:
                    _take(v, cython.cast(cython.ulonglong, tokens[i])
                          | (cython.cast(cython.ulonglong, tokens[i + 1]) << 32))  # fmt: skip
                    i += 2
                rest = cython.cast(cython.ulonglong, size & 0xFF) << 56
                if i < stop:
                    rest |= cython.cast(cython.ulonglong, tokens[i])
                    i += 1
                _take(v, rest)
                _finish(v, cython.address(low), cython.address(high))
                digests[block, 0] = low
                digests[block, 1] = high
