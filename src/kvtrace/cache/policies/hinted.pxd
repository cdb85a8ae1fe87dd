cimport cython
from kvtrace.cache.policies.base cimport Policy
from kvtrace.cache.structures.queues cimport Heaps, Recency


@cython.final
cdef class RunningQuantile:
    cdef Heaps heaps  # of values by number: heap 0 has the lowest ones, greatest first; heap 1 the others, least first
    cdef double share
    cdef int count
    cdef int lowest  # values in heap 0
    cdef int add(self, double value) except -1 nogil
    cdef double value(self) noexcept nogil
    cdef int _shift(self, int source, int target) except -1 nogil


@cython.final
cdef class Pauses:
    cdef RunningQuantile times
    cdef Heaps deadlines  # paused agents with a deadline
    cdef double[::1] since  # agent -> when its tool began, ms; -1 if no tool runs
    cdef signed char[::1] is_tool  # request -> whether a tool runs after it
    cdef bint paused(self, int agent, Py_ssize_t row, double now) except -1 nogil
    cdef int resumed(self, int agent, double now) except -1 nogil
    cdef int expired(self, double now) except? -1 nogil


@cython.final
cdef class Shelves:
    cdef Heaps blocks  # a heap of blocks for each shelf
    cdef Heaps order  # shelves that are not empty, by rank and then by their least recent block
    cdef double[::1] rank
    cdef bint holds(self, int block) noexcept nogil
    cdef int put(self, int shelf, int block, long long stamp) except -1 nogil
    cdef int drop(self, int block) except -1 nogil
    cdef int move(self, int block, int shelf) except -1 nogil
    cdef int set_rank(self, int shelf, double rank) except -1 nogil
    cdef int first(self) noexcept nogil
    cdef int _reorder(self, int shelf) except -1 nogil


cdef class SessionHints(Policy):
    cdef Recency recency
    cdef Shelves shelves
    cdef const int[::1] ids
    cdef const long long[::1] start
    cdef const int[::1] full
    cdef const int[::1] grown
    cdef const int[::1] fresh
    cdef int[::1] agent_of  # request -> its agent, or NO_AGENT
    cdef readonly int agents
    cdef Py_ssize_t[::1] newest  # agent -> the request whose context is its newest one, or -1
    cdef int[::1] later  # request -> number of later requests of its agent
    cdef int[::1] left  # agent -> its requests that have not ended, once one has started
    cdef int[::1] running  # agent -> its requests that have started and not ended
    cdef int[::1] holders  # block -> number of agents whose newest context contains it
    cdef int[::1] holder  # block -> these agents, combined by exclusive or: the holder if there is one
    cdef int[::1] owner  # block without a holder -> the agent that gave it up last, or NO_AGENT
    cdef long long[::1] stamp  # block -> recency of its last use

    # what a policy overrides
    cdef int began(self, int agent, Py_ssize_t row) except -1 nogil
    cdef int paused(self, int agent, Py_ssize_t row) except -1 nogil
    cdef int closed(self, int agent) except -1 nogil

    # what it calls
    cdef int rank_agent(self, int agent, double rank) except -1 nogil
    cdef int switch_context(self, int agent, Py_ssize_t row) except -1 nogil

    cdef int _shelf(self, int block) noexcept nogil
    cdef int _hold(self, int block, int agent) except -1 nogil
    cdef int _give_up(self, int block, int agent) except -1 nogil
    cdef int _common(self, Py_ssize_t row, Py_ssize_t other) noexcept nogil


@cython.final
cdef class SessionEnd(SessionHints):
    pass


@cython.final
cdef class Superseded(SessionHints):
    pass


@cython.final
cdef class ToolTTL(SessionHints):
    cdef Pauses pauses


@cython.final
cdef class Retain(SessionHints):
    cdef double duration_ms
    cdef Heaps deadlines  # paused agents
    cdef double[::1] priority  # request -> its priority


@cython.final
cdef class AgentHints(SessionHints):
    cdef Pauses pauses


@cython.final
cdef class OracleSession(SessionHints):
    cdef const double[::1] arrival
    cdef Py_ssize_t[::1] next_row
