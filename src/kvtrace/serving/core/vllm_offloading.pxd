cimport cython
from kvtrace.cache.core.blocks cimport PagedCache
from kvtrace.cache.core.lower_tier cimport LowerTier
from kvtrace.cache.structures.queues cimport Queue
from kvtrace.serving.core.vllm cimport HoldingInstance


@cython.final
cdef class Transfer:
    cdef Py_ssize_t row
    cdef bint is_load
    cdef list names, blocks
    cdef double end
    cdef bint fenced  # the blocks of a store, whose request has ended, belong to nobody
    cdef bint flushed  # a step waits for it


@cython.final
cdef class TransferQueue:
    cdef double seconds, free
    cdef object queue
    cdef int begin(self, Transfer transfer, double at) except -1
    cdef double first_end(self) except? -1
    cdef int take_ended(self, double at, list ended) except -1


@cython.final
cdef class PoolTransfer:
    cdef OffloadingInstance instance
    cdef Py_ssize_t row
    cdef bint is_load
    cdef list names, moved
    cdef double end  # NEVER: it has not begun


@cython.final
cdef class SharedPool:
    cdef readonly long long capacity
    cdef double fetch_seconds, store_seconds, latency, in_free, out_free
    cdef Queue queue
    cdef signed char[::1] writing
    cdef list events  # a heap
    cdef long long asked
    cdef int members
    cdef readonly long long read, written, evictions

    cdef int join(self) noexcept
    cdef bint holds(self, int block) noexcept
    cdef int ask(self, double at, PoolTransfer transfer) except -1
    cdef int _push(self, double at, int kind, PoolTransfer transfer) except -1
    cdef int reach(self, double now) except -1
    cdef int _begin(self, double at, PoolTransfer transfer) except -1
    cdef int _end(self, PoolTransfer transfer) except -1
    cdef int _use(self, list blocks) except -1


cdef class OffloadingInstance(HoldingInstance):
    cdef LowerTier tier
    cdef TransferQueue loads, stores
    cdef list over
    # of the planned step
    cdef list admitted, started_loads, flushed
    cdef int[::1] new_from  # row -> the first of its blocks that the step takes
    cdef int[::1] touched  # physical block -> the last plan that took it or admitted a request with it
    cdef int plans
    cdef bint touches_fence
    # transfers
    cdef list unsubmitted  # stores that begin with the next step
    cdef dict transfers  # row -> those under way
    cdef dict last_blocks  # row that has ended -> its physical blocks, if some are still to be stored
    cdef long long pending
    cdef int[::1] offered  # row -> leading blocks of its prompt that the tier was offered
    cdef int[::1] refused  # row -> whether the tier had no room for the next ones
    cdef int[::1] fences  # physical block -> stores of ended requests that still read it
    cdef long long refusals
    # time
    cdef double cpu  # of the worker's process
    cdef list reports  # transfers whose end the flying step reports
    cdef bint is_idle
    cdef double idle_at
    cdef list idle_reports
    cdef double idle_since, woke
    cdef long long polls
    cdef bint quiet  # nothing happened in this turn of the loop
    # the pool
    cdef SharedPool pool
    cdef int number  # among those that share it
    cdef list moving, ended
    cdef dict promotions  # row -> the blocks that the planned step has read from the pool for it
    cdef dict asked  # row -> the blocks that it has asked for
    cdef list questions  # blocks that were asked for in this step
    cdef signed char[::1] answers  # block -> UNKNOWN, OPEN, MISSING or PRESENT
    cdef int[::1] askers  # block -> requests that have asked for it
    cdef int[::1] loading  # block -> loads under way
    cdef dict outputs  # row -> places of blocks of its output that it has asked for, and the plan that did
    cdef signed char[::1] told  # row -> whether the tiers know that it has ended
    cdef int[::1] storing  # row -> its stores under way in the lower tier
    cdef int promoting  # steps without tokens in a row, in which blocks were read from the pool

    cdef bint _has_requests(self) except -1
    cdef int _read(self, bint queued, double at, list ended) except -1
    cdef int _sleep(self) except -1
    cdef _log_launch(self)
    cdef long long _loadable(self, Py_ssize_t row, int hits, long long goal) except? -1
    cdef list _order_stores(self)
    cdef _flush(self, Transfer transfer)
    cdef _fence(self, Transfer transfer)
    cdef _touch_blocks(self)
    cdef _touch(self, Py_ssize_t row, int first)
    cdef bint _touches(self, Transfer transfer) except -1
    cdef Transfer _store(self, Py_ssize_t row, long long tokens, list ordered)
    cdef int _refuse(self, Py_ssize_t row, bint refused) except -1
    cdef _enter(self, Transfer transfer)
    cdef int _begin_stores(self, list ordered) except -1
    cdef int _begin_loads(self) except -1
    cdef _take_ended(self, list ended)
    cdef int _complete(self, list ended) except -1
    cdef int _notice(self) except -1
    cdef int _unmark(self, Py_ssize_t row, int block) except -1
    cdef int _promote(self, Py_ssize_t row, int place, int block) except -1
    cdef bint _asks_for_outputs(self, Py_ssize_t row, long long first, long long end) except -1
    cdef int _ask_pool(self) except -1
    cdef int _count_promoted(self, Py_ssize_t row, int first, int end) except -1
    cdef int _pass_on(self, Transfer transfer) except -1
    cdef int _forget(self, Py_ssize_t row) except -1
