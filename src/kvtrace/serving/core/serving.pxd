cimport cython
from kvtrace.cache.core.engine cimport Engine
from kvtrace.cache.core.places cimport Places
from kvtrace.serving.core.instance cimport Instance, Requests, SessionLanes


cdef enum:
    TURNS = 0  # the kinds of router: round robin,
    KEYED = 1  # by a key of the request,
    OVERLAP = 2  # most hit blocks,
    LOADED = 3  # fewest prompt tokens of requests that have not ended,
    AWARE = 4  # fewest blocks to compute plus live blocks,
    METRIC = 5  # or least product of tokens to compute and active requests + 1
    BOTH = 0  # what workers of a DynamoRouter do: prefill and decode,
    PREFILLS = 1  # prefill,
    DECODES = 2  # or decode


cdef unsigned long long _weight(unsigned long long key, int i) noexcept
cdef int _swapped(int i, int one, int other) noexcept


cdef class Router:
    cdef list engines
    cdef int count, kind
    cdef long long size
    cdef const long long[::1] key
    cdef const long long[::1] tokens
    cdef Py_ssize_t turn  # requests that have arrived before
    cdef long long[::1] load
    cdef long long[::1] waiting
    cdef long long[::1] sent
    cdef long long[::1] active
    cdef double[::1] blocks
    cdef Py_ssize_t last_turn, place  # round robin: the last request, and the place after its engine
    cdef int[::1] takers  # the engines that take requests, in order; there are `taking` of them
    cdef int taking, first  # `first`: engines at time 0
    cdef const double[::1] change_at  # of a fleet that changes: when, which engine, and whether it takes requests
    cdef const int[::1] change_of
    cdef const signed char[::1] change_takes
    cdef Py_ssize_t changed
    cdef int follow(self, double now) except -1
    cdef int meet(self, int i) except -1
    cdef int forget(self, int i) except -1
    cdef int _keyed(self, Py_ssize_t row) except -1
    cdef int send(self, Py_ssize_t row) except -1
    cdef double _cost(self, Py_ssize_t row, int i) except? -1


@cython.final
cdef class DynamoRouter(Router):
    cdef Requests requests
    cdef int role
    cdef unsigned long long seed
    cdef const int[::1] winner  # request -> engine that wins ties, -1 = drawn
    cdef int[:, ::1] uses  # engine, block -> active prompts that have the block
    cdef long long[::1] distinct  # engine -> blocks that active prompts have
    cdef long long[::1] uncomputed  # engine -> prompt tokens of requests without a first token, less their hits
    cdef long long[::1] brought  # request -> its part of `uncomputed`
    cdef readonly long long[::1] least  # request -> its least cost, in tokens
    cdef int[::1] newest  # engine -> its newest active request, linked by `older`
    cdef int[::1] older
    cdef readonly long long ties  # requests for which engines had the least cost together
    cdef list tiers  # engine -> the DynamoClient of its tier, or None

    cdef int _settle(self, int i, double now) except -1
    cdef int _enter(self, Py_ssize_t row, int i) except -1
    cdef int _leave(self, Py_ssize_t row, int i) except -1
    cdef Py_ssize_t _tokens(self, Py_ssize_t row, int i) except -1
    cdef Py_ssize_t _new_tokens(self, Py_ssize_t row, int i) except -1
    cdef unsigned long long _draw(self, int i) noexcept


@cython.final
cdef class SglangGateway(Router):
    cdef const long long[::1] ids
    cdef const long long[::1] offsets  # request -> its blocks
    cdef float threshold, relative
    cdef long long absolute, most_tokens, epoch
    cdef double interval, next_eviction  # seconds
    cdef int[::1] maker  # block -> the worker that made its node, -1 = not in the tree
    cdef int[::1] following  # block -> the next block of its node
    cdef int[::1] above  # block -> the one before it in a prompt
    cdef unsigned long long[::1] members  # block -> a bit for each worker whose prompts have it
    cdef int[::1] length  # block -> tokens
    cdef long long[::1] held  # worker -> tokens in the tree
    cdef long long[:, ::1] used

    cdef int _match(self, Py_ssize_t row, int idle) except -1
    cdef int _insert(self, Py_ssize_t row, int i) except -1
    cdef int _add(self, Py_ssize_t row, Py_ssize_t k, int above, int i) except -1
    cdef int _join(self, int block, int i) noexcept
    cdef int _split(self, int block) noexcept
    cdef bint _is_member(self, Py_ssize_t block, int i) noexcept
    cdef int _begin_of(self, int block) noexcept
    cdef int _end_of(self, int block) noexcept
    cdef int _choose_maker(self, int block) noexcept
    cdef int _remove(self, Py_ssize_t block, int i) noexcept
    cdef int _evict(self, int i) except -1


cdef class EngineBalancer(Router):
    cdef list instances
    cdef Requests requests
    cdef Py_ssize_t[::1] heard  # rank -> its reports that are known

    cdef tuple _next_report(self, int i, double before)


@cython.final
cdef class VllmBalancer(EngineBalancer):
    cdef int clients
    cdef unsigned long long seed
    cdef readonly int[::1] client  # request -> the API server that it came to
    cdef double[:, ::1] reported  # rank -> running, waiting, use of its KV cache: what the coordinator knows
    cdef double[:, :, ::1] published  # API server, rank -> the same, as it was published, and requests sent since then
    cdef long long[:, ::1] in_flight  # API server, rank -> its requests that have not ended
    cdef int[::1] first_rank  # API server -> the rank that it looks at first
    cdef int newest  # the newest request in flight, linked by `older`
    cdef int[::1] older
    cdef double due  # when the coordinator publishes, if no report comes before
    cdef long long published_ms
    cdef bint changed
    cdef bint lockstep, has_step
    cdef double[:, ::1] before  # if has_step: `reported` before the last step of which a report has come
    cdef long long last_wave, last_step  # of that step

    cdef int _hear(self, int i, tuple report) except -1
    cdef int _publish_until(self, double now) except -1
    cdef double _wait_ms(self, double at) noexcept
    cdef int _settle(self, double now) except -1
    cdef double _score(self, int client, int i) noexcept


@cython.final
cdef class SglangController(EngineBalancer):
    cdef bint by_tokens
    cdef long long[::1] budget_requests  # rank -> as it has reported, and sent since then
    cdef long long[::1] budget_tokens
    cdef double refreshed

    cdef int _refresh(self, double now) except -1


@cython.final
cdef class Fleet:
    cdef list engines
    cdef Router router
    cdef Places places  # of the tiers below, or None
    cdef const long long[::1] held  # request -> tokens of its prompt, which a router knows
    cdef int[::1] instance  # request -> index of its engine, -1 = not routed yet
    cdef readonly Py_ssize_t row

    cdef _retire(self, Py_ssize_t row, Engine first)
    cdef _end(self, Py_ssize_t row)
    cdef _recount_load(self, int chosen)
    cdef _update_router(self)


cdef class Serving:
    cdef list instances
    cdef Router router
    cdef Requests requests
    cdef long long capacity
    cdef readonly Py_ssize_t row  # requests that have arrived
    cdef int _arrive(self, Py_ssize_t row) except -1
    cdef int _count(self, Router router, int first, double now) except -1


cdef class ClosedServing(Serving):
    cdef SessionLanes loop
    cdef readonly bint over
    # of several instances: the time before which each causes no arrival, and when that was found
    cdef double[::1] horizon, looked
    cdef int[::1] newest  # instance -> its newest request, linked by `older`
    cdef int[::1] older
    cdef int _reach_next_arrival(self) except -1
    cdef double _horizon(self, int i, Instance instance, double begin) except? -1
    cdef int _watch(self, Py_ssize_t row) except -1
