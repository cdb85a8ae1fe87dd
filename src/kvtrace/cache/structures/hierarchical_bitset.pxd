cimport cython


cdef extern from *:
    int __builtin_ctzll(unsigned long long word) noexcept nogil
    int __builtin_clzll(unsigned long long word) noexcept nogil


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
