from kvtrace.cache.core.engine cimport Engine
from kvtrace.serving.core.closed_loop cimport ClosedLoop
from kvtrace.serving.core.requests cimport Requests
from kvtrace.serving.core.step_time cimport StepCost


cdef class Instance:
    cdef readonly Engine engine
    cdef Requests requests
    cdef StepCost cost
    cdef readonly double now
    cdef readonly double busy
    cdef readonly long long steps  # that were taken
    cdef readonly long long load  # prompt tokens of requests that have not ended
    cdef readonly long long prefill  # prompt tokens still to compute
    cdef readonly long long blocks  # that requests hold, or can come to hold
    cdef readonly list timeline
    cdef bint watched
    cdef double least_step_s  # no step is shorter
    cdef double until  # no step of `run` begins then or later
    cdef public ClosedLoop loop  # None in the open loop
    # the same counts, and the active requests, without the effects of a step that has not ended
    cdef long long load_before, prefill_before, blocks_before, active_before

    cdef long long active(self) except -1
    cdef int take(self, Py_ssize_t row) except -1
    cdef int run(self, double until) except -1
    cdef double next_turn(self) except? -1
    cdef int _ended(self, Py_ssize_t row, double at) except -1
    cdef int _note(self, double seconds, long long running, long long waiting, long long blocks) except -1
    cdef long long steps_left(self, Py_ssize_t row) noexcept
    cdef int send(self, Py_ssize_t row) except -1
    cdef int _begin_turn(self) except -1
    cdef int _pass(self, double seconds) noexcept
