cimport cython
from kvtrace.cache.policies.base cimport Policy

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
    cdef int _model(self, int one) except -1 nogil
    cdef bint _overflows(self) noexcept nogil
