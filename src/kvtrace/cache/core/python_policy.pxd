cimport cython
from kvtrace.cache.policies.base cimport Policy

cdef int _number(object result) except -1


@cython.final
cdef class PythonPolicy(Policy):
    cdef object user_policy
    cdef object _insert
    cdef object _use
    cdef object _release
    cdef object _victim
    cdef object _remove
    cdef object _expired
    cdef object _miss
    cdef object _request_started
    cdef object _request_ended
