cimport cython
from kvtrace.cache.structures.hierarchical_bitset cimport HierarchicalBitset
from kvtrace.cache.structures.queue cimport Slots

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
