from kvtrace.cache.core.places cimport FirstTier, Places
from kvtrace.serving.core.instance cimport ReservingInstance, SessionLanes
from kvtrace.serving.core.serving cimport Serving


cdef class InterleavedServing(Serving):
    cdef list events  # a heap: (seconds, kind, row)
    cdef int running  # the instance that runs a turn now, -1 = none
    cdef readonly long long turns  # calls of `run`, for tests
    cdef SessionLanes lanes  # None in the open loop

    cdef int at(self, double seconds, int kind, Py_ssize_t row) except -1
    cdef int happen(self, double seconds, int kind, Py_ssize_t row) except -1
    cdef int settle(self, double seconds) except -1
    cdef double horizon(self, int i) except? -1
    cdef int _plan_arrival(self) except -1
    cdef int run_until(self, double until) except -1
    cdef int _turn(self, double until) except -1


cdef class PooledFirstTier(FirstTier):
    cdef Places shared
    cdef int number
    cdef const double[::1] seconds  # tier -> seconds to fetch a block
    cdef const double[::1] latency  # tier -> seconds before the first byte
    cdef const signed char[::1] is_shared  # tier -> 1 if instances share its link
    cdef double[::1] link  # place -> when its link is free


cdef class PooledInstance(ReservingInstance):
    cdef PooledServing serving
    cdef bint fresh  # a request has come that was not looked at
    cdef double[::1] ends  # tier -> when the transfer of a request from it ends
    cdef double _soonest(self) except? -1


cdef class PooledServing(InterleavedServing):
    pass
