cimport cython


cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #define kvtrace_lowest_bit(word) __builtin_ctzll(word)
    #define kvtrace_highest_bit(word) (63 - __builtin_clzll(word))
    #else
    #include <intrin.h>
    static int kvtrace_lowest_bit(unsigned long long word) {
        unsigned long bit;
        _BitScanForward64(&bit, word);
        return (int)bit;
    }
    static int kvtrace_highest_bit(unsigned long long word) {
        unsigned long bit;
        _BitScanReverse64(&bit, word);
        return (int)bit;
    }
    #endif
    """
    int lowest_bit "kvtrace_lowest_bit" (unsigned long long word) noexcept nogil  # of a word that is not 0
    int highest_bit "kvtrace_highest_bit" (unsigned long long word) noexcept nogil


@cython.final
cdef class HierarchicalBitset:
    cdef unsigned long long[::1] words
    cdef Py_ssize_t base[7]
    cdef int levels
    cdef readonly Py_ssize_t size
    cdef int set(self, int number) except -1 nogil
    cdef int clear(self, int number) except -1 nogil
    cdef bint holds(self, int number) noexcept nogil
    cdef int first(self) noexcept nogil
    cdef int after(self, int number) noexcept nogil
    cdef int last(self) noexcept nogil
