from kvtrace.cache.policies.base cimport Policy
from kvtrace.cache.structures.recency cimport Recency
from kvtrace.cache.structures.shelves cimport Shelves


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
    cdef int _common(self, Py_ssize_t one, Py_ssize_t other) noexcept nogil
