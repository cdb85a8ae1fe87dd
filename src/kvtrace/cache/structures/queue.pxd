cimport cython

cdef enum:
    NEAR = 32  # places in the log between its head and what `ahead` looks at,
    FAR = 32  # and from there to what is fetched


@cython.final
cdef class Slots:
    cdef int[::1] slot_of_block


@cython.final
cdef class Queue:
    cdef Slots slots
    cdef int[::1] order
    cdef Py_ssize_t head, tail, seen  # seen: how far `ahead` has looked
    cdef int tag
    cdef readonly Py_ssize_t size
    cdef int push(self, int block) except -1 nogil
    cdef int move(self, int block) except -1 nogil
    cdef int ahead(self) noexcept nogil
    cdef int drop(self, int block) except -1 nogil
    cdef bint holds(self, int block) noexcept nogil
    cdef int first(self) noexcept nogil
    cdef int _compact(self) except -1 nogil
