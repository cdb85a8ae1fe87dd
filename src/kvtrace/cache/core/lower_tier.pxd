cimport cython
from kvtrace.cache.core.engine cimport Engine
from kvtrace.cache.structures.queues cimport Heaps


cdef enum:
    ABSENT = 0  # the states of a block in a tier
    WRITING = 1
    IDLE = 2
    SEEN = 1  # what the tier knows of a block of a request
    STORED = 2
    REUSED = 4
    MISSED = 8
    ASKED = 16  # the request has asked the pool for the block
    PROMOTED = 32  # and got it from there
    STORE = 0  # the kinds of transfers
    LOAD = 1


cdef class TierBlocks:
    cdef int[::1] state
    cdef int[::1] given  # block -> the last offer that had it
    cdef int offers

    cdef bint is_evictable(self, int block) noexcept nogil


cdef enum:
    ONCE = 0  # the lists of ARC
    OFTEN = 1
    GHOSTS_ONCE = 2
    GHOSTS_OFTEN = 3


cdef class TierOrder:
    cdef int miss(self, int block) except -1
    cdef int insert(self, Py_ssize_t row, int block, int place) except -1
    cdef int access(self, Py_ssize_t row, int block, int place, bint present) except -1
    cdef int finish(self, int block, int marks) except -1
    cdef int pin(self, int block) except -1
    cdef int unpin(self, int block) except -1
    cdef int remove(self, int block) except -1
    cdef list victims(self, long long count, TierBlocks tier)


cdef class LeastRecent(TierOrder):
    cdef Heaps heap
    cdef long long[::1] rank_of  # row -> its rank, 0 = none yet
    cdef long long ranks
    cdef double _rank(self, Py_ssize_t row) noexcept
    cdef int _move(self, int block, double rank, long long tiebreak) except -1


cdef class AdaptiveReplacement(TierOrder):
    cdef long long capacity
    cdef int blocks  # the first sentinel
    cdef double target
    cdef int[::1] next
    cdef int[::1] previous
    cdef signed char[::1] list_of  # block -> the list that has it + 1, 0 = none
    cdef long long[::1] size
    cdef int _evictable_from(self, int block, TierBlocks tier) noexcept
    cdef void _trim(self, int ghosts) noexcept
    cdef int _append(self, int name, int block) noexcept
    cdef void _leave(self, int block) noexcept


@cython.final
cdef class LowerTier(TierBlocks):
    cdef readonly Engine above
    cdef readonly long long capacity, size, idle, evictions
    cdef public double fetch_seconds, store_seconds  # of a block
    cdef TierOrder order
    cdef readonly int[::1] hits
    cdef dict marks
    cdef public object pool, pool_hits

    cdef int block_at(self, Py_ssize_t row, int place) noexcept nogil
    cdef int prepare_load(self, Py_ssize_t row, int first, int end) except -1
    cdef bint prepare_store(self, Py_ssize_t row, int first, int end, list absent) except -1
    cdef int complete(self, list blocks, bint is_load) except -1
    cdef int hold(self, list blocks) except -1
    cdef int remove(self, int block) except -1
    cdef int finish(self, Py_ssize_t row) except -1
    cdef bint _evict(self, long long count) except -1
    cdef bytearray _marks(self, Py_ssize_t row)
    cdef int _see(self, Py_ssize_t row, int place, bytearray marks) except -1


@cython.final
cdef class Transfer:
    cdef int kind, client
    cdef long long number
    cdef Py_ssize_t row
    cdef list names  # blocks of the trace
    cdef list blocks  # of a store: the physical blocks that it reads
    cdef double left  # blocks that are still to move, on links that are shared
    cdef double ready  # when the first byte moves
    cdef double end  # NEVER as long as it is not known
    cdef bint done  # its worker knows that it has ended


@cython.final
cdef class DynamoTier:
    cdef readonly long long capacity, size, evictions
    cdef readonly bint shared
    cdef readonly double now
    cdef double latency
    cdef double alone[2]  # seconds a block on the link of a worker: to store, to load
    cdef double together[2]  # and on the links that all workers share
    cdef double tail[2]  # of a tier of one worker: when the last transfer ends
    cdef const long long[::1] order  # block -> rank of its hash
    cdef signed char[::1] state
    cdef int[::1] readers  # block -> loads that read it
    cdef int[::1] given  # block -> the last offer that had it
    cdef int offers
    # idle blocks, the least recently used first: a circular list with a sentinel at the end
    cdef int[::1] next
    cdef int[::1] previous
    cdef list clients
    cdef list jobs  # transfers under way, in the order in which they were submitted
    cdef long long numbers
    cdef readonly long long epoch  # transfers that have ended
    cdef readonly long long changes  # to blocks and transfers
    cdef bint watched
    cdef list news  # (seconds, block, whether it can be found now), for routers

    cdef int touch(self, int block) noexcept
    cdef Transfer prepare_store(self, DynamoClient client, Py_ssize_t row, list names, double now)
    cdef Transfer schedule_load(self, DynamoClient client, Py_ssize_t row, list names, double now, double not_before)
    cdef int submit_prepared(self, DynamoClient client, double now) except -1
    cdef int move_to(self, double now) except -1
    cdef double next_event(self) except? -1
    cdef int tell(self, list blocks, bint present, double at) except -1
    cdef int _finish_fixed(self, double now) except -1
    cdef int _submit(self, Transfer transfer, double at) except -1
    cdef double _pace(self, Transfer job) except? -1
    cdef double _event(self, Transfer job) except? -1
    cdef int _finish(self, Transfer transfer) except -1
    cdef int _use_together(self, list names) except -1
    cdef int _enter(self, int block) noexcept
    cdef int _leave(self, int block) noexcept


@cython.final
cdef class DynamoClient:
    cdef readonly DynamoTier tier
    cdef readonly int number
    cdef readonly int[::1] hits  # row -> blocks that it loaded from the tier before its first admission
    cdef list prepared  # stores that are submitted at the end of the step
    cdef list done  # transfers that have ended, and that the worker does not know of
    cdef long long seen  # `epoch` when the worker looked last
    cdef readonly long long pending  # its transfers that it does not know to have ended
    cdef Py_ssize_t heard  # news that the router knows
    cdef Py_ssize_t applied  # news that `known` has
    cdef signed char[::1] known  # block -> whether the router knows it in the tier

    cdef list tick(self, double now)
    cdef double next_deadline(self) except? -1
    cdef int hear(self) except -1
    cdef int hear_until(self, double at) except -1
    cdef bint knows(self, int block) except -1
