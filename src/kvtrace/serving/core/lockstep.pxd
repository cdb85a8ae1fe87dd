cimport cython
from kvtrace.serving.core.instance cimport StepCost
from kvtrace.serving.core.sglang cimport SglangEventLoop
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


@cython.final
cdef class SglangRank(SglangEventLoop):
    cdef SglangLockstep group
    cdef readonly long long dummies  # idle batches
    cdef double looked  # without overlap: when it looks for the requests of its next turn, after an idle batch
    cdef list late  # rows that came later
    # the batch that is planned
    cdef bint planned  # there is one
    cdef double planned_s  # without experts
    cdef long long planned_tokens

    cdef int plan_step(self) except -1
    cdef int end_step(self, bint launched, double before) except -1
    cdef bint is_idle(self) noexcept
    cdef int sleep(self) except -1


@cython.final
cdef class SglangLockstep:
    cdef list ranks
    cdef StepCost cost
    cdef bint overlap
    cdef double idle_s  # seconds of a step without requests
    cdef double now  # when all ranks plan their next batches
    cdef double end  # of the last step
    cdef double seconds  # of the planned step
    cdef bint asleep, retried
    cdef bint flying  # a step was begun whose end the ranks have not waited for

    cdef int wake(self, double at) except -1
    cdef int run(self, double until) except -1
    cdef int _turn(self) except -1
