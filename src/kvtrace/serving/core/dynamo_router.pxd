cimport cython
from kvtrace.cache.core.engine cimport Engine
from kvtrace.serving.core.requests cimport Requests
from kvtrace.serving.core.router cimport Router


@cython.final
cdef class DynamoRouter(Router):
    cdef Requests requests
    cdef unsigned long long seed
    cdef const int[::1] winner  # request -> engine that wins ties, -1 = drawn
    cdef int[:, ::1] uses  # engine, block -> active prompts that have the block
    cdef long long[::1] distinct  # engine -> blocks that active prompts have
    cdef long long[::1] uncomputed  # engine -> prompt tokens of requests without a first token, less their hits
    cdef long long[::1] brought  # request -> its part of `uncomputed`
    cdef readonly long long[::1] least  # request -> its least cost, in tokens
    cdef int[::1] newest  # engine -> its newest active request, linked by `older`
    cdef int[::1] older
    cdef readonly long long ties  # requests for which engines had the least cost together

    cdef int _settle(self, int i, double now) except -1
    cdef int _enter(self, Py_ssize_t row, int i) except -1
    cdef int _leave(self, Py_ssize_t row, int i) except -1
    cdef Py_ssize_t _tokens(self, Py_ssize_t row, int i) except -1
    cdef Py_ssize_t _new_tokens(self, Py_ssize_t row, Engine engine) except -1
    cdef unsigned long long _draw(self, int i) noexcept
