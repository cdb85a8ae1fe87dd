from kvtrace.cache.core.blocks cimport PagedCache
from kvtrace.cache.core.engine cimport StepCache
from kvtrace.serving.core.instance cimport Instance


cdef struct VllmLimits:
    long long step_tokens
    long long requests  # maximum running requests
    long long watermark  # blocks that stay free when a request is admitted beside others
    long long long_prefill  # tokens of a prompt in a step, 0 = no limit
    bint adaptive_long_prefill
    bint whole_prompt  # all blocks of a prompt must fit at its admission
    bint by_priority
    bint asynchronous  # a step is planned while the one before runs


cdef class VllmEngineCore(Instance):
    cdef StepCache cache
    cdef bint slides, splits  # of the cache
    cdef long long block_size  # of the trace
    cdef VllmLimits limits
    cdef bint logs
    cdef readonly list log
    cdef long long reported_running, reported_waiting
    cdef public object step_timer  # begin and parts of a step -> its seconds; None = the cost
    # waiting requests, and those that run
    cdef list waiting
    cdef long long appended, prepended
    cdef int[::1] running  # rows, in order of admission
    cdef int count, prefilling, draining, cursor
    cdef bint ahead  # the token after a block must be known before it can be found
    cdef bint blocked  # the head of the queue does not fit, and no block was freed since
    # the step that is planned now
    cdef int[::1] part_row
    cdef long long[::1] part_chunk
    cdef int parts
    cdef list preempted
    # the step before, if its output is not known yet
    cdef bint flying
    cdef double free_at  # when it ends
    cdef list first_tokens, last_tokens  # rows
    # if blocks slide: row -> the last step that had tokens of it, and how many
    cdef long long[::1] last_step, last_chunk

    cdef bint _is_busy(self) except -1
    cdef int _plan(self) except -1
    cdef int _schedule_running(self, long long* budget) except -1
    cdef int _schedule_waiting(self, long long* budget) except -1
    cdef int _admit(self, Py_ssize_t row, long long computed, long long chunk, long long* budget) except -1
    cdef int _begin(self, Py_ssize_t row, long long computed) except -1
    cdef long long _chunk(self, Py_ssize_t row, long long computed, long long long_prefill, long long budget) noexcept
    cdef long long _long_prefill(self) except -1
    cdef int _schedule(self, Py_ssize_t row, long long chunk) except -1
    cdef bint _make_room(self, Py_ssize_t row, long long chunk, long long* budget) except -1
    cdef bint _may_preempt(self, Py_ssize_t row) noexcept
    cdef int _victim(self) noexcept
    cdef int _preempt(self, Py_ssize_t row, long long* budget) except -1
    cdef int _requeue(self, Py_ssize_t row) except -1
    cdef int _stall(self) except -1
    cdef long long _unschedule(self, Py_ssize_t row) noexcept
    cdef double _seconds_of_parts(self) except -1
    cdef double _timed(self) except -1
    cdef int _advance_parts(self, list first, list last) except -1
    cdef int _execute(self, double seconds, list first, list last) except -1
    cdef int _learn(self, double at, list first, list last) except -1
    cdef int _note_state(self, double at) except -1
    cdef int _report_counts(self) except -1
    cdef int _end(self, Py_ssize_t row, double at) except -1
    cdef int _remove(self, Py_ssize_t row) noexcept
    cdef bint _runs(self, Py_ssize_t row) noexcept
    cdef bint _drains(self, Py_ssize_t row) noexcept
    cdef bint _decodes(self, Py_ssize_t row) noexcept
    cdef bint _is_steady(self, Py_ssize_t row) noexcept
    cdef long long _in_flight(self, Py_ssize_t row) noexcept
    cdef long long _published(self, Py_ssize_t row, long long chunk) noexcept
    cdef _log_planned(self)


cdef class VllmInstance(VllmEngineCore):
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
    cdef long long _steps_until(self, double until, long long max_steps) noexcept
    cdef double _seconds(self, long long steps) noexcept
    cdef _log_decoding(self, long long steps)


cdef enum:
    LATER = -2  # nobody can tell yet what a request finds
    LOADING = 1  # stages of a request that holds blocks: it loads,
    ARRIVED = 2  # or its load has ended


cdef class HoldingInstance(VllmInstance):
    cdef PagedCache paged  # the cache, as its class
    cdef list holding  # a heap like `waiting`, of requests that wait and hold blocks
    cdef signed char[::1] stage  # row -> LOADING, ARRIVED, or 0
    cdef int[::1] launched  # row -> the last step that was planned alone and has tokens of it
    cdef long long held_order

    cdef long long _reach(self, Py_ssize_t row, int hits, long long goal) except? -1
    cdef int _load(self, Py_ssize_t row, int hits, long long computed) except -1
    cdef int _arrive(self, Py_ssize_t row) except -1
    cdef int _hold(self, tuple item) except -1
    cdef long long _reserved(self, list skipped_holding) except -1
    cdef long long _remaining(self, Py_ssize_t row) noexcept
