cimport cython


@cython.final
cdef class Sequence:
    cdef object cache
    cdef int* slots
    cdef Py_ssize_t count
    cdef Py_ssize_t room
    cdef int root
    cdef readonly Py_ssize_t length
    cdef readonly Py_ssize_t hit_blocks
    cdef readonly Py_ssize_t hit_tokens
    cdef readonly bint live

    cdef int reserve(self, Py_ssize_t count) except -1
