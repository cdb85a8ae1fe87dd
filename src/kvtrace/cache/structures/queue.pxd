cimport cython

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
