cimport cython
from kvtrace.serving.core.instance cimport StepCost
from kvtrace.serving.core.sglang cimport SglangEventLoop


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
