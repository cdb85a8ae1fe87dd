"""XXH3-64 with a seed, as Dynamo hashes blocks: one input of any length, or many inputs at once.

https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md is followed; the tests have the library's vectors.
"""

from __future__ import annotations

import struct

import numpy as np

M64 = (1 << 64) - 1
P32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
P64 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
LANES = (P32[2], P64[0], P64[1], P64[2], P64[3], P32[1], P64[4], P32[0])
MX1, MX2 = 0x165667919E3779F9, 0x9FB21C651E98DF25
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248e"
    "e03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d8a"
    "51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8f"
    "f8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)


def xxh3_64(data: bytes, seed: int = 0) -> int:
    """The digest of some bytes.

    >>> f"{xxh3_64(b''):016x}"
    '2d06800538d394c2'
    """
    size = len(data)
    if size <= 16:
        return _short(data, size, seed)
    if size <= 128:
        return _to_128(data, size, seed)
    return _to_240(data, size, seed) if size <= 240 else _long(data, size, seed)


def xxh3_64_of_words(words: np.ndarray, seed: int = 0) -> np.ndarray:
    """The digest of each 32-bit word's four bytes (uint64).

    >>> int(xxh3_64_of_words(np.array([7]), 1337)[0]) == xxh3_64(bytes([7, 0, 0, 0]), 1337)
    True
    """
    seed ^= int.from_bytes((seed & 0xFFFFFFFF).to_bytes(4, "little")[::-1], "little") << 32
    words = words.astype(np.uint64)
    flip = np.uint64(((_u64(SECRET, 8) ^ _u64(SECRET, 16)) - seed) & M64)
    return _rrmxmx(words + (words << np.uint64(32)) ^ flip, 4)


def _rrmxmx(x: np.ndarray, size: int) -> np.ndarray:
    uint64 = np.uint64
    x = x ^ (x << uint64(49) | x >> uint64(15)) ^ (x << uint64(24) | x >> uint64(40))
    x = x * uint64(MX2)
    x = x ^ ((x >> uint64(35)) + uint64(size))
    x = x * uint64(MX2)
    return x ^ (x >> uint64(28))


def _short(data, size, seed) -> int:
    if size == 0:
        return _avalanche64(seed ^ _u64(SECRET, 56) ^ _u64(SECRET, 64))
    if size <= 3:
        combined = data[0] << 16 | data[size >> 1] << 24 | data[-1] | size << 8
        return _avalanche64(combined ^ ((_u32(SECRET, 0) ^ _u32(SECRET, 4)) + seed & M64))
    if size <= 8:
        seed ^= int.from_bytes((seed & 0xFFFFFFFF).to_bytes(4, "little")[::-1], "little") << 32
        words = _u32(data, size - 4) + (_u32(data, 0) << 32)
        x = words ^ (_u64(SECRET, 8) ^ _u64(SECRET, 16)) - seed & M64
        x ^= _rotl(x, 49) ^ _rotl(x, 24)
        x = x * MX2 & M64
        x = (x ^ (x >> 35) + size) * MX2 & M64
        return x ^ x >> 28
    low = _u64(data, 0) ^ (_u64(SECRET, 24) ^ _u64(SECRET, 32)) + seed & M64
    high = _u64(data, size - 8) ^ (_u64(SECRET, 40) ^ _u64(SECRET, 48)) - seed & M64
    return _avalanche(size + int.from_bytes(low.to_bytes(8, "big"), "little") + high + _folded(low, high) & M64)


def _to_128(data, size, seed) -> int:
    total = size * P64[0]
    for i in range((size - 1) // 32, -1, -1):
        total += _mix16(data, 16 * i, 32 * i, seed) + _mix16(data, size - 16 * (i + 1), 32 * i + 16, seed)
    return _avalanche(total & M64)


def _to_240(data, size, seed) -> int:
    total = size * P64[0] + sum(_mix16(data, 16 * i, 16 * i, seed) for i in range(8))
    total = _avalanche(total & M64)
    total += sum(_mix16(data, 16 * i, 16 * (i - 8) + 3, seed) for i in range(8, size // 16))
    return _avalanche(total + _mix16(data, size - 16, 136 - 17, seed) & M64)


def _long(data, size, seed) -> int:
    secret = _seeded(seed)
    lanes = list(LANES)
    stripes = (len(secret) - 64) // 8  # stripes of 64 bytes between two scrambles
    last = (size - 1) // 64
    for stripe in range(last):
        at = stripe % stripes
        _accumulate(lanes, data, 64 * stripe, secret, 8 * at)
        if at == stripes - 1:
            for i in range(8):
                lanes[i] = (lanes[i] ^ lanes[i] >> 47 ^ _u64(secret, len(secret) - 64 + 8 * i)) * P32[0] & M64
    _accumulate(lanes, data, size - 64, secret, len(secret) - 64 - 7)
    total = size * P64[0]
    for i in range(4):
        total += _folded(lanes[2 * i] ^ _u64(secret, 11 + 16 * i), lanes[2 * i + 1] ^ _u64(secret, 19 + 16 * i))
    return _avalanche(total & M64)


def _seeded(seed) -> bytes:
    words = struct.unpack("<24Q", SECRET)
    return struct.pack("<24Q", *((w - seed if i % 2 else w + seed) & M64 for i, w in enumerate(words)))


def _accumulate(lanes, data, at, secret, place):
    for i in range(8):
        value = _u64(data, at + 8 * i)
        keyed = value ^ _u64(secret, place + 8 * i)
        lanes[i ^ 1] = lanes[i ^ 1] + value & M64
        lanes[i] = lanes[i] + (keyed & 0xFFFFFFFF) * (keyed >> 32) & M64


def _mix16(data, at, place, seed) -> int:
    low = _u64(data, at) ^ _u64(SECRET, place) + seed & M64
    return _folded(low, _u64(data, at + 8) ^ _u64(SECRET, place + 8) - seed & M64)


def _folded(a, b) -> int:
    product = a * b
    return (product ^ product >> 64) & M64


def _avalanche(x) -> int:
    x = (x ^ x >> 37) * MX1 & M64
    return x ^ x >> 32


def _avalanche64(x) -> int:
    x = (x ^ x >> 33) * P64[1] & M64
    x = (x ^ x >> 29) * P64[2] & M64
    return x ^ x >> 32


def _rotl(x, by) -> int:
    return (x << by | x >> 64 - by) & M64


def _u32(data, at) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _u64(data, at) -> int:
    return int.from_bytes(data[at : at + 8], "little")


# -- many inputs at once ---------------------------------------------------------------------------------------------


def xxh3_64_of_repeated(words: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """The digest of each 32-bit word repeated `count` times (uint64).

    >>> int(xxh3_64_of_repeated(np.array([7]), 512, 1337)[0]) == xxh3_64(bytes([7, 0, 0, 0]) * 512, 1337)
    True
    """
    words = words.astype(np.uint64)
    pairs, size = words | words << np.uint64(32), 4 * count  # 64 bits at each place
    if count == 1:
        return xxh3_64_of_words(words, seed)
    if count == 2:
        flip = _number(seed ^ int.from_bytes((seed & 0xFFFFFFFF).to_bytes(4, "little")[::-1], "little") << 32)
        return _rrmxmx(pairs ^ _number(_u64(SECRET, 8) ^ _u64(SECRET, 16)) - flip, 8)
    if count <= 4:
        return xxh3_64_of_pairs(pairs, pairs, seed, size)

    def mix16(place):
        return _product(pairs ^ _number(_u64(SECRET, place) + seed), pairs ^ _number(_u64(SECRET, place + 8) - seed))

    total = np.full(len(words), _number(size * P64[0]))
    if size <= 128:
        for i in range((size - 1) // 32 + 1):
            total = total + mix16(32 * i) + mix16(32 * i + 16)
        return _avalanches(total)
    if size <= 240:
        total = _avalanches(total + sum(mix16(16 * i) for i in range(8)))
        return _avalanches(total + sum(mix16(16 * (i - 8) + 3) for i in range(8, size // 16)) + mix16(136 - 17))
    secret = _seeded(seed)
    lanes = [np.full(len(words), _number(one)) for one in LANES]
    stripes, low = (len(secret) - 64) // 8, np.uint64(0xFFFFFFFF)

    def accumulate(place):
        for i in range(8):
            keyed = pairs ^ _number(_u64(secret, place + 8 * i))
            lanes[i ^ 1] = lanes[i ^ 1] + pairs
            lanes[i] = lanes[i] + (keyed & low) * (keyed >> np.uint64(32))

    for stripe in range((size - 1) // 64):
        at = stripe % stripes
        accumulate(8 * at)
        if at == stripes - 1:
            for i in range(8):
                key = _number(_u64(secret, len(secret) - 64 + 8 * i))
                lanes[i] = (lanes[i] ^ lanes[i] >> np.uint64(47) ^ key) * _number(P32[0])
    accumulate(len(secret) - 64 - 7)
    for i in range(4):
        first, second = (_number(_u64(secret, place + 16 * i)) for place in (11, 19))
        total = total + _product(lanes[2 * i] ^ first, lanes[2 * i + 1] ^ second)
    return _avalanches(total)


def xxh3_64_of_pairs(low: np.ndarray, high: np.ndarray, seed: int = 0, size: int = 16) -> np.ndarray:
    """The digest of each two 64-bit words (uint64): the first and the last eight of `size` bytes, 9 to 16.

    >>> low, high = np.array([3], dtype=np.uint64), np.array([9], dtype=np.uint64)
    >>> int(xxh3_64_of_pairs(low, high, 1337)[0]) == xxh3_64(struct.pack("<2Q", 3, 9), 1337)
    True
    """
    low = low ^ _number((_u64(SECRET, 24) ^ _u64(SECRET, 32)) + seed)
    high = high ^ _number((_u64(SECRET, 40) ^ _u64(SECRET, 48)) - seed)
    return _avalanches(np.uint64(size) + low.byteswap() + high + _product(low, high))


def _number(value: int) -> np.uint64:
    return np.uint64(value & M64)


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The two halves of each product of 128 bits, combined by exclusive or."""
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    a_low, a_high, b_low, b_high = a & low, a >> half, b & low, b >> half
    cross = (a_low * b_low >> half) + (a_high * b_low & low) + a_low * b_high
    return a * b ^ (a_high * b_high + (a_high * b_low >> half) + (cross >> half))


def _avalanches(x: np.ndarray) -> np.ndarray:
    x = (x ^ x >> np.uint64(37)) * _number(MX1)
    return x ^ x >> np.uint64(32)
