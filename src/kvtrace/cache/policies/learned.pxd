cimport cython
from kvtrace.cache.policies.base cimport Context, Policy
from kvtrace.cache.structures.queues cimport Heaps, Recency


@cython.final
cdef class Workload(Policy):
    cdef Recency recency
    cdef Heaps heaps  # one per category
    cdef double life_ms
    cdef int[::1] category  # request -> category
    cdef int categories
    cdef double[::1] arrival  # request -> ms
    cdef int[::1] last  # block -> the last request that used it, or NONE; kept after an eviction
    cdef long long[::1] stamp  # block -> recency of its last use
    cdef double[::1] uses
    cdef double[::1] reused
    cdef double[::1] gaps

    cdef double _chance(self, int category, double since_ms) noexcept nogil


cdef enum:
    AGES = 256  # number of ages; the last one includes all greater ages
    USES = 4  # classes by use count
    CLASSES = 16

cdef double DECAY
cdef double SPARED
cdef unsigned long long MULTIPLIER
cdef unsigned long long INCREMENT


@cython.final
cdef class LHD(Policy):
    cdef double[:, ::1] hits  # class, age -> hits, decayed; row CLASSES: all classes
    cdef double[:, ::1] evictions
    cdef double[:, ::1] density  # class, age -> hit density, as of the last reconfiguration
    cdef signed char[::1] depth_class  # block -> 0, 1, 2 or 3
    cdef int[::1] uses  # block -> uses since it became resident
    cdef signed char[::1] explores  # block -> 1 if it is an explorer
    cdef long long[::1] last  # block -> the clock at its last use
    cdef int[::1] idle  # the `count` evictable blocks, in no order
    cdef int[::1] place  # block -> its position in `idle`, or NONE
    cdef int count
    cdef int candidates
    cdef int shift  # an age is the time since the last use, divided by 2^shift
    cdef long long clock  # uses and insertions so far
    cdef long long interval  # clock ticks between reconfigurations
    cdef unsigned long long random

    cdef int _class(self, int block) noexcept nogil
    cdef int _age(self, int block) noexcept nogil
    cdef int _tick(self) except -1 nogil
    cdef int _drop(self, int block) except -1 nogil
    cdef int _draw(self) noexcept nogil
    cdef int _place_drawn(self) noexcept nogil
    cdef int _reconfigure(self) except -1 nogil
    cdef int _coarsen(self) except -1 nogil
    cdef int _model(self, int class_) except -1 nogil
    cdef bint _overflows(self) noexcept nogil


cdef int bucket(const double[::1] bounds, double value) noexcept nogil


@cython.final
cdef class PathState:
    cdef const int[::1] ids
    cdef const long long[::1] start
    cdef const int[::1] full
    cdef int[::1] depth  # block -> number of blocks before it
    cdef const long long[::1] tokens  # request -> prompt tokens
    cdef long long block_size
    cdef Py_ssize_t prompt_blocks  # blocks from here on are of outputs
    cdef const double[::1] turn_bounds
    cdef const double[::1] use_bounds
    cdef const double[::1] new_bounds
    cdef const double[::1] gap_bounds
    cdef bint knows_turns
    cdef int[::1] turn  # request -> its turn, from 1
    cdef int[::1] session  # request -> the first request of its session
    cdef double[::1] arrived  # request -> ms
    cdef int[::1] owner  # block -> the request that used it last, or -1
    cdef int[::1] uses  # block -> its uses so far
    cdef signed char[::1] is_shared  # block -> 1 if two sessions have used it
    cdef signed char[::1] is_later  # block -> 1 if it was new in a second or later turn
    cdef Py_ssize_t row  # the request that began last, and the cells of its blocks
    cdef int tail_cell, first_shared, first_turn_cell, later_turn_cell

    cdef int begin(self, Py_ssize_t row, double now) noexcept nogil
    cdef double _continue(self, Py_ssize_t row, int seen, double now) noexcept nogil
    cdef double used_ms(self, int block) noexcept nogil
    cdef int use(self, int block) noexcept nogil


@cython.final
cdef class ReuseDensity(Policy):
    cdef Recency recency
    cdef PathState state
    cdef Heaps heaps  # one per class
    cdef int classes
    cdef int[::1] class_of_cell
    cdef int[:, ::1] level  # class, age bucket -> level
    cdef double[::1] age_bounds
    cdef int[::1] class_of  # block -> class, as of its last use
    cdef long long[::1] stamp  # block -> recency of its last use
    cdef int[::1] level_now  # class -> level of its candidate, EMPTY if it has none
    cdef double[::1] until_ms  # class -> when its candidate reaches the next age bucket

    cdef bint _less_recent(self, int class_, int other) noexcept nogil
    cdef int _look_up(self, int class_) noexcept nogil
