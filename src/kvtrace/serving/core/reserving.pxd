from kvtrace.serving.core.instance cimport Instance


cdef struct BatchLimits:
    long long step_tokens
    long long requests  # maximum running requests
    long long blocks  # capacity of an instance
    long long block_size  # tokens


cdef class ReservingInstance(Instance):
    cdef BatchLimits limits
    cdef bint prefetches
    cdef list queue
    cdef Py_ssize_t head, admissions
    cdef list prefilling
    cdef list decoding
    cdef long long batch, context
    cdef int _note_state(self) except -1
    cdef _admit(self)
    cdef _fetch_or_recompute(self, Py_ssize_t row)
    cdef _mixed(self, double until)
    cdef _decode(self, double until)
    cdef _token(self, long long steps)
    cdef _first(self, Py_ssize_t row)
    cdef _end(self, Py_ssize_t row)
    cdef double _seconds(self, long long steps) noexcept
