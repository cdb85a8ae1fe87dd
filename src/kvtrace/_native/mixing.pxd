# SplitMix64 (Steele et al., 2014) for the hash tables and the random choices of kernels. `_base/arrays.py` has the same in Python.


cdef inline unsigned long long mix(unsigned long long x) noexcept nogil:
    """The number with its bits mixed over the word; different numbers stay different."""
    x = mix_once(x) * 0x94D049BB133111EBULL
    return x ^ (x >> 31)


cdef inline unsigned long long mix_once(unsigned long long x) noexcept nogil:
    """The first of its two rounds: enough for a table of pairs, which are chained in half the time with it."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL
    return x ^ (x >> 27)


cdef inline unsigned long long next_half(unsigned long long* state) noexcept nogil:
    """The next random number of a generator, below 2^32."""
    state[0] += 0x9E3779B97F4A7C15ULL
    return mix(state[0]) >> 32
