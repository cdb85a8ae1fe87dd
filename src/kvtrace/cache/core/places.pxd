cimport cython
from kvtrace.cache.core.engine cimport Engine
from kvtrace.cache.core.pool cimport Pool
from kvtrace.cache.policies.base cimport Policy


cdef enum:
    MOVES = 0  # when a place gets a block: the tier above evicts it, and a hit takes it out again,
    BACK = 1  # the tier above evicts it, and a hit leaves it,
    THROUGH = 2  # or a request uses it


cdef enum:
    GONE = 0  # a unit: not in the place,
    IDLE = 1  # there, and can be evicted,
    HELD = 2  # or there, and the present request uses it


cdef enum:
    FIRST = -1  # the source of a block that the first tier has


@cython.final
cdef class Place:
    cdef Policy policy
    cdef public Place below  # the place that gets what this one evicts, or None
    cdef readonly int copies, chunk
    cdef readonly long long capacity, size, held  # in units, as the four counts below
    cdef readonly long long loaded, stored, evicted, moved
    cdef readonly long long peers_loaded  # of `loaded`: by instances of another group
    cdef signed char[::1] state  # unit -> GONE, IDLE or HELD; a unit has the number of its last block
    cdef int last_unit  # that was read last, and by which request
    cdef Py_ssize_t last_row
    cdef bint is_lru, fetches
    cdef bint load(self, int unit, Py_ssize_t row) noexcept nogil
    cdef bint unload(self, int unit, Py_ssize_t row) noexcept nogil
    cdef int pass_through(self, const int[::1] ids, Py_ssize_t start, Py_ssize_t stop) except -1 nogil
    cdef int receive(self, int block) except -1 nogil
    cdef int put(self, int unit) except -1 nogil
    cdef int take_out(self, int block) except -1 nogil
    cdef int hold(self, int unit) except -1 nogil
    cdef int let_go(self, int unit) except -1 nogil
    cdef int expire(self) except -1 nogil
    cdef int _evict(self) except -1 nogil
    cdef int _drop(self, int unit) except -1 nogil


cdef class FirstTier(Pool):
    cdef public Place below


@cython.final
cdef class Places:
    cdef const int[::1] ids
    cdef const long long[::1] start
    cdef const int[::1] full
    cdef const int[::1] grown
    cdef const int[::1] fresh
    cdef bint grows
    cdef readonly list places
    cdef const int[:, ::1] own  # tier, instance -> number of its place
    cdef const signed char[::1] peers  # tier -> 1 if instances read the places of others too
    cdef int tiers
    cdef bint has_peers, plain
    cdef int[::1] hit  # request -> leading blocks that hit anywhere
    cdef int[:, ::1] tier_hit  # tier, request -> those that came from it
    cdef int[::1] source  # of the present request: block of its run -> number of its place
    cdef readonly bint follows
    cdef list live
    cdef list engines  # all first tiers, if `elsewhere` is wanted, or None
    cdef int[::1] elsewhere_hit
    cdef serve(self, int i, Py_ssize_t row, Engine engine)
    cdef ended(self, int i, Py_ssize_t row)
    cdef int _look_up(self, int i, Py_ssize_t row, Engine engine) except -1
    cdef int _source_of(self, int i, Py_ssize_t row, int at) except -2
    cdef int _anywhere(self, Py_ssize_t row, int at) except -1
    cdef int _unit(self, Py_ssize_t row, int chunk, int at, int blocks) noexcept nogil
    cdef int _fetch(self, Place place, Py_ssize_t start, Py_ssize_t stop) except -1 nogil
    cdef int _fetch_pins(self, Pool pool, Py_ssize_t start, Py_ssize_t stop) except -1 nogil
    cdef _use_peers(self, int i, Py_ssize_t row, int run)
    cdef _take_out(self, int i, Py_ssize_t row)
    cdef int begin(self, int i, Py_ssize_t row, Engine engine) except -1
    cdef int store(self, int i, Py_ssize_t row, bint through) except -1
