from kvtrace.serving.core.sglang_scheduler cimport SglangScheduler


cdef class SglangInstance(SglangScheduler):
    cdef bint _decode_together(self, double until) except -1
    cdef int _note_decodes(self, double context, long long steps) except -1
    cdef long long _steps_without_end(self) noexcept
    cdef long long _steps_that_fit(self, long long most) noexcept
    cdef long long _pages_of(self, long long steps) noexcept
    cdef long long _steps_until(self, double until, double context, long long most) noexcept
    cdef double _planned_after(self, double context, long long steps) noexcept
    cdef double _seconds(self, double context, long long steps) noexcept
    cdef int _pass_steps(self, double context, long long steps) noexcept
    cdef _log_decodes(self, long long steps)
