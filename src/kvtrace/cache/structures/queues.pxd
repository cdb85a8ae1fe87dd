cimport cython
from kvtrace.cache.policies.base cimport Context


cdef enum:
    NEAR = 32  # distance in places from the head to the block that `ahead` returns
    FAR = 32  # distance from that block to the slot that is prefetched


@cython.final
cdef class Slots:
    cdef int[::1] slot_of_block


@cython.final
cdef class Queue:
    cdef Slots slots
    cdef int[::1] order
    cdef Py_ssize_t head, tail, hinted  # hinted: the last place that `ahead` has looked at
    cdef int tag
    cdef readonly Py_ssize_t size
    cdef int push(self, int block) except -1 nogil
    cdef int move(self, int block) except -1 nogil
    cdef int ahead(self) noexcept nogil
    cdef int drop(self, int block) except -1 nogil
    cdef bint holds(self, int block) noexcept nogil
    cdef int first(self) noexcept nogil
    cdef int _compact(self) except -1 nogil


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


cdef enum:
    MAX_PLACES = 1 << 29  # a slot number is 4 x place + tag, and must fit an int
    AHEAD = 8  # distance in places of the prefetch hint


@cython.final
cdef class MaskedFifo:
    cdef Slots slots
    cdef int[::1] order
    cdef signed char[::1] marked
    cdef HierarchicalBitset allowed
    cdef int tag
    cdef readonly int tail
    cdef int front  # the place of the last result of `first`
    cdef readonly Py_ssize_t size
    cdef int push(self, int block) except -1 nogil
    cdef int join(self, int block) except -1 nogil
    cdef int ahead(self, int place) noexcept nogil
    cdef int drop(self, int block) except -1 nogil
    cdef int rejoin(self, int block) except -1 nogil
    cdef int allow(self, int block) except -1 nogil
    cdef int forbid(self, int block) except -1 nogil
    cdef int place(self, int block) noexcept nogil
    cdef bint holds(self, int block) noexcept nogil
    cdef int first(self) noexcept nogil
    cdef int next(self, int block) noexcept nogil
    cdef int _compact(self) except -1 nogil


cdef class Heaps:
    cdef double[::1] key
    cdef long long[::1] tiebreak
    cdef int[::1] child
    cdef int[::1] after
    cdef int[::1] before
    cdef int[::1] root
    cdef int[::1] heap_of
    cdef int put(self, int heap, int block, double key, long long tiebreak) except -1 nogil
    cdef int drop(self, int block) except -1 nogil
    cdef bint holds(self, int block) noexcept nogil
    cdef int first(self, int heap) noexcept nogil
    cdef int _meld(self, int root, int other) noexcept nogil
    cdef int _gather(self, int first) noexcept nogil


@cython.final
cdef class Recency:
    cdef Context context
    cdef int[::1] depth
    cdef long long stamp(self, int block) noexcept nogil
