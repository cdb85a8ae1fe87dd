cimport cython

cdef unsigned int token_in(object token) except? 0xFFFFFFFF


@cython.final
cdef class Tokens:
    cdef unsigned int* values
    cdef Py_ssize_t room

    cdef Py_ssize_t read(self, object tokens) except -1
    cdef Py_ssize_t _read_array(self, object tokens) except -1
    cdef int _reserve(self, Py_ssize_t length) except -1
