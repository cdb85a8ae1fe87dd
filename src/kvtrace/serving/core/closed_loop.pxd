cimport cython
from kvtrace.cache.structures.heap cimport Heaps
from kvtrace.serving.core.requests cimport Requests


@cython.final
cdef class ClosedLoop:
    cdef Requests requests
    # plays and their rows
    cdef const long long[::1] first  # play -> the place of its first row in `rows`
    cdef const int[::1] rows
    cdef const int[::1] play  # row -> its play, -1 = not played
    cdef const double[::1] offset  # row -> seconds after its lane takes the tree, without dependencies
    # row -> those that wait for it
    cdef const long long[::1] start
    cdef const int[::1] waiting
    cdef const signed char[::1] trigger
    cdef const double[::1] delay  # seconds
    cdef const double[::1] lead  # row -> the least seconds from its end to an arrival that it can cause
    # the state of each row
    cdef int[::1] missing  # dependencies that it still waits for
    cdef double[::1] ready  # the latest of the others plus their delays, on the clock of its lane
    cdef double[::1] caused  # the latest of the others: it cannot arrive before
    cdef double[::1] planned  # when a request arrives by what has ended so far, without the caps of all lanes
    cdef int[::1] arrived  # rows in order of arrival
    cdef int[::1] completed  # rows in the order in which their ends were taken
    cdef bint several  # instances: ends are known out of order
    cdef list unsettled  # a heap of ends: (seconds, number, row)
    cdef long long seen
    cdef Py_ssize_t ended
    cdef int[::1] primes  # row -> the lane that it prepares, -1 = it is no primer
    cdef Heaps timers  # lane -> rows that arrive at a known time, on the clock of the lane: seconds + both shifts
    cdef Heaps order  # lanes by their first timer, in seconds + `shift`
    # lanes
    cdef int lanes, cold  # `cold`: lanes before the end of their warm-up
    cdef long long warm_up
    cdef double duration, idle_cap, tree_cap
    cdef long long[::1] left  # lane -> requests of its tree that have not ended
    cdef long long[::1] issued  # lane -> requests that have arrived
    cdef long long[::1] lane_outstanding
    cdef double[::1] lane_shift  # lane -> seconds by which an idle tree was moved forward
    cdef double[::1] lane_end  # lane -> the last end of a request
    cdef int[::1] play_lane
    cdef double[::1] begins, ends  # of each play
    cdef Py_ssize_t count, cursor, window_from
    cdef long long outstanding, primers_left
    cdef double shift, tree_shift, last_end, window_start, deadline
    cdef bint exhausted  # a lane found no tree before the deadline

    cdef double next_arrival(self) noexcept
    cdef Py_ssize_t take(self) except -1
    cdef int complete(self, Py_ssize_t row, double at) except -1
    cdef double next_event(self) except? -1
    cdef bint settle(self, double until) except -1
    cdef int _complete(self, Py_ssize_t row, double at) except -1
    cdef int _begin(self, double at) except -1
    cdef int _take_play(self, int lane, double at) except -1
    cdef int _warmed(self, double at) except -1
    cdef int _open_window(self, double at) noexcept
    cdef int _release(self, int row, int lane, int trigger, double at) except -1
    cdef int _set_timer(self, int row, int lane, double clock) except -1
    cdef int _place(self, int lane) except -1
    cdef double _next_timer(self) noexcept
    cdef int _cap_tree(self, int lane) except -1
    cdef int _cap_all(self) noexcept
