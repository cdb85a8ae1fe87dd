"""SipHash-2-4 with 128-bit output, as in its paper, over Python integers; and chains of it over blocks."""

MASK = 2**64 - 1


def rotate(x, bits):
    return ((x << bits) | (x >> (64 - bits))) & MASK


def sip_round(v0, v1, v2, v3):
    v0 = (v0 + v1) & MASK
    v1 = rotate(v1, 13) ^ v0
    v0 = rotate(v0, 32)
    v2 = (v2 + v3) & MASK
    v3 = rotate(v3, 16) ^ v2
    v0 = (v0 + v3) & MASK
    v3 = rotate(v3, 21) ^ v0
    v2 = (v2 + v1) & MASK
    v1 = rotate(v1, 17) ^ v2
    v2 = rotate(v2, 32)
    return v0, v1, v2, v3


def siphash128(key: bytes, message: bytes) -> bytes:
    k0, k1 = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    v = (
        k0 ^ int.from_bytes(b"somepseu"),
        k1 ^ int.from_bytes(b"dorandom") ^ 0xEE,
        k0 ^ int.from_bytes(b"lygenera"),
        k1 ^ int.from_bytes(b"tedbytes"),
    )
    padded = message + bytes(-(len(message) + 1) % 8) + bytes([len(message) & 0xFF])
    for i in range(0, len(padded), 8):
        word = int.from_bytes(padded[i : i + 8], "little")
        v = (v[0], v[1], v[2], v[3] ^ word)
        v = sip_round(*sip_round(*v))
        v = (v[0] ^ word, v[1], v[2], v[3])
    halves = []
    v = (v[0], v[1], v[2] ^ 0xEE, v[3])
    for _ in range(2):
        for _ in range(4):
            v = sip_round(*v)
        halves.append(v[0] ^ v[1] ^ v[2] ^ v[3])
        v = (v[0], v[1] ^ 0xDD, v[2], v[3])
    return b"".join(half.to_bytes(8, "little") for half in halves)


def chain(key, prompts, roots, block_size, tail):
    """The digests of each prompt's blocks: one list of 16-byte digests per prompt."""
    chains = []
    for tokens, root in zip(prompts, roots, strict=True):
        digests, before = [], root
        for start in range(0, len(tokens), block_size):
            block = tokens[start : start + block_size]
            if len(block) < block_size and not tail:
                break
            before = siphash128(key, before + b"".join(token.to_bytes(4, "little") for token in block))
            digests.append(before)
        chains.append(digests)
    return chains
