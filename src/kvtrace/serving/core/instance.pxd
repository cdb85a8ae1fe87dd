from kvtrace.cache.core.engine cimport Engine
from kvtrace.serving.core.requests cimport Requests
from kvtrace.serving.core.step_time cimport StepCost


cdef class Instance:
    cdef readonly Engine engine
    cdef Requests requests
    cdef StepCost cost
    cdef readonly double now
    cdef readonly double busy
    cdef readonly long long steps  # that were taken
    cdef readonly long long load  # tokens of requests that have not ended
    cdef readonly long long prefill  # prompt tokens still to compute
    cdef readonly long long blocks  # that requests hold, or can come to hold
    cdef readonly list timeline
    cdef bint watched

    cdef long long active(self) except -1
    cdef int take(self, Py_ssize_t row) except -1
    cdef int run(self, double until) except -1
    cdef int _note(self, double seconds, long long running, long long waiting, long long blocks) except -1
    cdef int _pass(self, double seconds) noexcept
