from kvtrace.serving.core.sglang_pages cimport SglangPages


cdef class SglangPrefill(SglangPages):
    # the budgets of a prefill, in tokens
    cdef long long input_left, chunk_left, now_needed
    cdef double needed

    cdef bint _plan_prefill(self) except -1
    cdef int _open_budgets(self) noexcept
    cdef int _add_chunk(self) noexcept
    cdef int _admit_waiting(self) except -1
    cdef int _look_up(self, Py_ssize_t row) except -1
    cdef int _admit(self, Py_ssize_t row) except -1
    cdef int _charge(self, long long extend, long long outputs) noexcept
    cdef int _state(self) noexcept
    cdef double _left(self) noexcept
    cdef long long _clip(self, long long outputs) noexcept
    cdef double _expected(self, Py_ssize_t row) noexcept
    cdef long long _seats_left(self, long long seated) noexcept
    cdef bint _preempt_for(self, Py_ssize_t row) except -1
    cdef int _preempt(self, set victims) except -1
    cdef int _extend(self) except -1
    cdef int _add_part(self, Py_ssize_t row, long long before, long long tokens) noexcept
