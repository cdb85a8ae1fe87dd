cimport cython
from kvtrace.cache.core.blocks cimport PagedCache
from kvtrace.serving.core.vllm cimport VllmInstance


@cython.final
cdef class Draws:
    cdef unsigned int start[16]
    cdef unsigned int words[16]
    cdef int used  # words
    cdef double[::1] rates

    cdef unsigned long long next(self) noexcept nogil
    cdef long long tokens(self) noexcept nogil
    cdef void _fill(self) noexcept nogil
    cdef void _quarter(self, int a, int b, int c, int d) noexcept nogil


cdef class DynamoMtpInstance(VllmInstance):
    cdef PagedCache paged  # the cache, as its class
    cdef Draws draws
    cdef long long most  # tokens that a request can get in a step

    cdef int _make_space(self, Py_ssize_t row, int hits, long long end, long long* budget) except -1
    cdef long long _space(self) except -1
    cdef list _predict(self)
    cdef int _accept(self, Py_ssize_t row, list taken, list first, list last) except -1
