cimport cython


@cython.final
cdef class Requests:
    cdef double[::1] arrival  # seconds; in a closed loop those of requests that have arrived
    cdef const long long[::1] tokens  # of the prompt
    cdef const long long[::1] output
    cdef const long long[::1] need  # the largest number of blocks that a request holds
    cdef const long long[::1] priority  # lower is earlier
    cdef int[::1] instance  # that served it, -1 = none
    cdef long long[::1] done  # tokens that are computed, of prompt and output
    cdef long long[::1] goal  # tokens to compute before its next output token
    cdef long long[::1] sampled_before  # the step that gave the one before it
    cdef long long[::1] sampled  # the step of its instance that gave its last output token, -1 = none
    cdef int[::1] following  # a link to another request, in lists of a scheduler
    cdef long long[::1] cached  # prompt tokens that hit at its first admission
    cdef double[::1] ready  # when its transfer from a lower tier ends
    cdef double[::1] started
    cdef double[::1] first
    cdef double[::1] ended
    cdef int[::1] preempted  # times
    cdef long long[::1] recomputed  # tokens
