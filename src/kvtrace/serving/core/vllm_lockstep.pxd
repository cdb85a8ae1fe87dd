cimport cython
from kvtrace.serving.core.instance cimport StepCost
from kvtrace.serving.core.vllm cimport VllmEngineCore


@cython.final
cdef class VllmRank(VllmEngineCore):
    cdef VllmLockstep group
    cdef int place  # in the group
    cdef long long late  # requests that have come since the rank planned its step
    cdef readonly long long dummies  # steps without a request
    cdef bint wakes  # it has the request that wakes the ranks
    # the step that is planned, until it is known how long it takes
    cdef bint planned  # it has requests
    cdef double planned_s  # without experts
    cdef long long planned_tokens
    cdef list planned_first, planned_last  # rows

    cdef int report_wave(self, double at) except -1
    cdef double plan_step(self, double at) except? -1
    cdef double end_step(self, double begin, double end, double met, double before) except? -1


cdef class VllmLockstep:
    cdef list ranks
    cdef int count, left  # `left`: ranks that have not planned the next step
    cdef StepCost cost
    cdef double dummy_s  # seconds of a step without requests, without experts
    cdef double[::1] polls  # rank -> when it plans the next step, NEVER = it has, or the ranks have stopped
    cdef bint running
    cdef long long steps, waves  # steps since the ranks were woken, and how often that was
    cdef double until  # no step of `run` is planned then or later
    cdef double met  # when the last host has begun to wait for the others
    cdef double before, end  # of the last two steps
    cdef double idle_since

    cdef bint wake(self, double at) except -1
    cdef int run(self, double until) except -1
    cdef int _step(self) except -1
    cdef int _synchronize(self) except -1


@cython.final
cdef class DynamoLockstep(VllmLockstep):
    pass
