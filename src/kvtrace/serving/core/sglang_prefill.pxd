from kvtrace.cache.core.hicache cimport HiPagedRadix, Storage
from kvtrace.cache.core.radix cimport PagedRadix
from kvtrace.serving.core.instance cimport Instance


cdef enum:
    NOTHING = 0  # the kinds of a batch
    PREFILL = 1
    MIXED = 2
    DECODE = 3
    CONTINUE = 0  # whether a prefill can take another request
    NO_TOKEN = 1
    OTHER = 2


cdef struct SglangLimits:
    long long seats  # maximum running requests
    long long prefill_tokens  # of a prefill
    long long chunk_tokens  # of a prompt in a prefill, 0 = prompts are not divided
    bint longest_match  # the queue is sorted by matched prefixes
    bint mixed  # running requests decode in the step of a prefill
    bint overlap  # a step is planned while the one before runs
    bint by_priority  # the queue is in order of priority
    bint preempts  # a waiting request preempts running ones of a priority that is lower by more than the threshold
    long long threshold
    bint retract_by_priority
    long long sign  # 1: low priority values first, -1: high ones
    bint ignore_eos  # no output ends before its limit
    long long clip  # output tokens that a request is expected to have at most
    long long retract_steps
    double first_ratio, least_ratio, decay
    long long poll_every  # turns after a decode step until arrived requests are seen


cdef class SglangQueue(Instance):
    cdef PagedRadix cache
    cdef HiPagedRadix hosted  # the same, if it has a host tier
    cdef Storage stored  # what is below that
    cdef SglangLimits limits
    cdef long long page
    cdef bint logs
    cdef readonly list log
    # one value a request
    cdef long long[::1] limit  # output tokens
    cdef long long[::1] outputs  # tokens that it has
    cdef long long[::1] fill  # tokens that its last round knew
    cdef long long[::1] prefix  # tokens that are computed, or cached
    cdef long long[::1] end  # of its last prefill
    cdef long long[::1] held  # tokens with a place
    cdef long long[::1] owned  # leading pages that the tree owns
    cdef long long[::1] inserted  # leading pages that it has inserted, with a host tier
    cdef long long[::1] loaded  # tokens that came from the host at its last admission
    cdef long long[::1] launched  # the last step that it was in
    cdef int[::1] node  # of its last match
    cdef int[::1] locked  # the node that it locks, 0 = none
    cdef int[::1] middle  # chunks under way that are not the last
    cdef signed char[::1] finished, retracted, seated
    # waiting requests, and those that run
    cdef int[::1] waiting
    cdef Py_ssize_t head, tail
    cdef long long passes, entries
    cdef long long[::1] entered  # the number of its last entry into the queue
    cdef int[::1] running
    cdef int count
    cdef long long vacant, live
    cdef bint full  # no prefill is tried
    cdef int chunked, new_chunked, last_chunked  # the request that is in chunks
    cdef double ratio  # of their limits that outputs are expected to reach
    # the batch that is planned now, and the last one: on the other side of the arrays
    cdef int side, parts, kind, last_kind
    cdef int[:, ::1] batch_row
    cdef int[2] size, decodes_from
    cdef double[2] ends
    cdef long long[::1] part_before, part_tokens
    cdef list dropped  # retracted or preempted since the last step
    cdef list preempted  # for the batch that is planned
    cdef bint flying  # the tokens of the last batch are not known
    cdef double free_at  # when it ends
    cdef double loaded_at  # when the loads of the batch that is planned end
    cdef bint settled  # the last batch has all that run, and none has ended since
    cdef bint retried, asleep
    cdef bint naps  # idle since `idle_from`, until a copy or a transfer ends
    cdef double idle_from
    cdef list unseen  # arrived requests that no poll has seen
    cdef long long unpolled  # turns since the last poll
    cdef int unreported  # results since the last report to the balancer

    cdef int _wait(self, Py_ssize_t row) except -1
    cdef int _prefetch(self, Py_ssize_t row, long long hit_end) except -1
    cdef int _move_queue(self) noexcept
    cdef long long _rank(self, Py_ssize_t row) noexcept
    cdef int _sort_waiting(self) except -1
    cdef int _sort_by_prefix(self) except -1
    cdef long long _host_hit(self) noexcept
    cdef int _match_all(self, Py_ssize_t row) except -1
    cdef long long _known(self, Py_ssize_t row) noexcept


cdef class SglangPages(SglangQueue):
    cdef int _checkpoint(self, Py_ssize_t row) except -1
    cdef int _publish(self, Py_ssize_t row, long long tokens) except -1
    cdef int _publish_in_tiers(self, Py_ssize_t row, long long pages, long long prompt) except -1
    cdef int _make_room(self, long long pages) except -1
    cdef int _drop(self, Py_ssize_t row, long long others) except -1
    cdef int _release(self, Py_ssize_t row) except -1
    cdef int _take_pages(self, long long pages) except -1
    cdef long long _pages(self, long long tokens) noexcept
    cdef long long _paged(self, long long tokens) noexcept
    cdef long long _with_evictable(self) noexcept


cdef class SglangPrefill(SglangPages):
    # the budgets of a prefill, in tokens
    cdef long long input_left, chunk_left, now_needed
    cdef double needed
    cdef long long extend_tokens  # that the request that is looked at computes now
    cdef bint extend_cut  # it is cut into chunks

    cdef bint _plan_prefill(self) except -1
    cdef int _open_budgets(self) noexcept
    cdef int _add_chunk(self) noexcept
    cdef int _admit_waiting(self) except -1
    cdef int _look_up(self, Py_ssize_t row) except -1
    cdef int _ask_again(self) except -1
    cdef int _admit(self, Py_ssize_t row) except -1
    cdef int _fit(self, Py_ssize_t row, long long whole, long long host_hit) noexcept
    cdef bint _load_back(self, Py_ssize_t row) except -1
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
