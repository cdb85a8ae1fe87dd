# SipHash-1-3 over a block's tokens and its prefix, for the live cache's table.
#
# J.-P. Aumasson and D. J. Bernstein, SipHash: a fast short-input PRF (2012). A secret key prevents prompts
# that are constructed to collide. One round per word is enough, because the table compares tokens too.
# This is a header without a .py file, so that the functions are inlined into the table's loops. As a separate module,
# direct hashing took a seventh longer per block.

ctypedef unsigned long long word


cdef inline void begin(word* v, word key0, word key1) noexcept nogil:
    """Set the four words of the state from the two words of the key."""
    v[0] = key0 ^ <word> 0x736F6D6570736575
    v[1] = key1 ^ <word> 0x646F72616E646F6D
    v[2] = key0 ^ <word> 0x6C7967656E657261
    v[3] = key1 ^ <word> 0x7465646279746573


cdef inline void take(word* v, const unsigned int* tokens, Py_ssize_t length) noexcept nogil:
    """Absorb tokens in pairs; an odd last token alone."""
    cdef Py_ssize_t i = 0
    while i + 1 < length:
        take_word(v, tokens[i] | (<word> tokens[i + 1] << 32))
        i += 2
    if i < length:
        take_word(v, tokens[i])


cdef inline word end(word* v, word before, word total) noexcept nogil:
    """Absorb the previous digest and the total number of tokens, and return the digest."""
    take_word(v, before)
    take_word(v, total)
    v[2] ^= 0xFF
    turn(v)
    turn(v)
    turn(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


cdef inline void take_word(word* v, word taken) noexcept nogil:
    v[3] ^= taken
    turn(v)
    v[0] ^= taken


cdef inline void turn(word* v) noexcept nogil:
    """One SipHash round."""
    v[0] += v[1]
    v[2] += v[3]
    v[1] = ((v[1] << 13) | (v[1] >> 51)) ^ v[0]
    v[3] = ((v[3] << 16) | (v[3] >> 48)) ^ v[2]
    v[0] = (v[0] << 32) | (v[0] >> 32)
    v[2] += v[1]
    v[0] += v[3]
    v[1] = ((v[1] << 17) | (v[1] >> 47)) ^ v[2]
    v[3] = ((v[3] << 21) | (v[3] >> 43)) ^ v[0]
    v[2] = (v[2] << 32) | (v[2] >> 32)
