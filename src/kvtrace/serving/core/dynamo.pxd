cimport cython
from kvtrace.cache.core.blocks cimport PagedCache
from kvtrace.cache.core.lower_tier cimport DynamoClient, DynamoTier, Transfer
from kvtrace.serving.core.interleaved cimport InterleavedServing
from kvtrace.serving.core.vllm cimport VllmInstance


cdef class DynamoInstance(VllmInstance):
    cdef PagedCache paged  # the cache, as its class
    cdef int active_hits

    cdef int _leading(self, Py_ssize_t row, long long goal) noexcept
    cdef int _idle(self, Py_ssize_t row, int hits) noexcept
    cdef bint _make_space(self, Py_ssize_t row, int hits, long long end, long long* budget) except -1
    cdef int _leave_queue(self, Py_ssize_t row) except -1


cdef class DynamoTierInstance(DynamoInstance):
    cdef DynamoClient client
    cdef DynamoTier tier
    cdef list held  # rows that the tier has deferred, in the order in which it first did, and places of such that left
    cdef signed char[::1] asleep  # row -> whether it waits for the end of a transfer
    cdef signed char[::1] deferred  # row -> whether it waits there
    cdef Py_ssize_t holding, sleeping  # rows that wait there, and those of them that are asleep
    cdef signed char[::1] loading  # block -> whether a request of this worker loads it
    cdef list readers  # physical block -> the store that reads it, or None
    cdef dict stores  # row -> its last store, if that has not ended
    cdef signed char[::1] stage  # row -> LOADING, ARRIVED, or 0
    cdef int[::1] before, loaded, footprint  # row -> blocks that hit before its load, with the loaded ones, and in all
    cdef int[::1] offered  # row -> leading blocks of its prompt that the tier was offered
    cdef long long[::1] planned  # row -> the last plan that had tokens of it
    cdef long long plans
    cdef double not_before  # no step computes before
    cdef double turn_at  # of an idle worker with requests: when it plans
    cdef bint in_step
    cdef bint stuck  # its last plan did nothing
    cdef long long stuck_at  # changes of the tier then
    cdef bint behind  # blocks of a running request could not be stored yet

    cdef bint _ready(self) noexcept
    cdef int _turn(self, double at) except -1
    cdef int _boundary(self, double at) except -1
    cdef int _take_ended(self, double at) except -1
    cdef Py_ssize_t _next_waiting(self) except? -2
    cdef int _defer(self, Py_ssize_t row) except -1
    cdef list _look_up(self, Py_ssize_t row, int hits)
    cdef bint _start_load(self, Py_ssize_t row, int hits, list names) except -1
    cdef long long _reserved(self) except -1
    cdef int _take_blocks(self, Py_ssize_t row, long long blocks) except -1
    cdef int _order_store(self, Py_ssize_t row) except -1
    cdef int _touch_all(self, Py_ssize_t row) noexcept
    cdef long long _chunk_of(self, Py_ssize_t row) noexcept


cdef class SharedTierServing(InterleavedServing):
    pass


@cython.final
cdef class Draws:
    cdef unsigned int start[16]
    cdef unsigned int words[16]
    cdef int used  # words
    cdef double[::1] rates

    cdef unsigned long long next(self) noexcept nogil
    cdef long long tokens(self) noexcept nogil
    cdef void _fill(self) noexcept nogil
    cdef void _quarter(self, int a, int b, int c, int d) noexcept nogil


cdef class DynamoMtpInstance(DynamoInstance):
    cdef Draws draws
    cdef long long most  # tokens that a request can get in a step

    cdef long long _space(self) except -1
    cdef list _predict(self)
    cdef int _accept(self, Py_ssize_t row, list taken, list first, list last) except -1
