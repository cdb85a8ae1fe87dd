from kvtrace.serving.core.apart cimport SglangApart


cdef class SglangEventLoop(SglangApart):
    cdef int _turn(self) except -1
    cdef int _flush_copies(self) except -1
    cdef int _poll(self) except -1
    cdef bint _plan(self) except -1
    cdef int _merge(self) except -1
    cdef int _remove_ended(self) noexcept
    cdef int _mix(self) except -1
    cdef bint _plan_decode(self) except -1
    cdef int _remove_finishing(self) noexcept
    cdef bint _decode_fits(self) except -1
    cdef long long _new_pages(self) noexcept
    cdef int _add_decodes(self) except -1
    cdef int _retract(self) except -1
    cdef int _sort_by_progress(self) except -1
    cdef int _launch(self) except -1
    cdef int _note_loaded(self, Py_ssize_t row, long long before) except -1
    cdef int _pass_until(self, double begin, double seconds) noexcept
    cdef double _seconds_of_parts(self) noexcept
    cdef long long _used(self) noexcept
    cdef int _note_state(self, double at) except -1
    cdef int _report_load(self, bint at_once) except -1
    cdef int _learn(self, int side) except -1
    cdef _log_parts(self, double begin)


cdef class SglangInstance(SglangEventLoop):
    cdef bint _decode_together(self, double until) except -1
    cdef int _note_decodes(self, double context, long long steps) except -1
    cdef int _report_decodes(self, double context, long long steps) except -1
    cdef long long _steps_without_end(self) noexcept
    cdef long long _steps_that_fit(self, long long max_steps) noexcept
    cdef long long _pages_of(self, long long steps) noexcept
    cdef long long _steps_until(self, double until, double context, long long max_steps) noexcept
    cdef double _planned_after(self, double context, long long steps) noexcept
    cdef double _seconds(self, double context, long long steps) noexcept
    cdef int _pass_steps(self, double context, long long steps) noexcept
    cdef _log_decodes(self, long long steps)
