cimport cython


cdef enum:
    ABSENT = 0  # the states of a block in the tier
    WRITING = 1
    FOUND = 2
    STORE = 0  # the kinds of transfers
    LOAD = 1


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
