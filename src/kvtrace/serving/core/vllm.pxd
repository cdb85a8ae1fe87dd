from kvtrace.serving.core.vllm_scheduler cimport VllmScheduler


cdef class VllmInstance(VllmScheduler):
    cdef bint decoding
    cdef int[::1] due  # step modulo the block size -> a row, linked by requests.following
    cdef double context
    cdef long long batch, decoding_since

    cdef bint _must_plan(self) except -1
    cdef bint _may_admit(self) except -1
    cdef int _start_decoding(self) noexcept
    cdef int _stop_decoding(self) noexcept
    cdef int _await(self, Py_ssize_t row, long long step) noexcept
    cdef int _decode(self, double until) except -1
    cdef int _decode_steps(self, long long steps) except -1
    cdef int _decode_event(self) except -1
    cdef _slide(self, long long place)
    cdef list _in_order(self, list rows)
    cdef long long _steps_until(self, double until, long long most) noexcept
    cdef double _seconds(self, long long steps) noexcept
    cdef _log_decoding(self, long long steps)
