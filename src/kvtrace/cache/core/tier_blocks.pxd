cdef enum:
    ABSENT = 0  # the states of a block in the tier
    WRITING = 1
    IDLE = 2
    SEEN = 1  # what the tier knows of a block of a request
    STORED = 2
    REUSED = 4
    MISSED = 8


cdef class TierBlocks:
    cdef int[::1] state
    cdef int[::1] given  # block -> the last offer that had it
    cdef int offers

    cdef bint is_evictable(self, int block) noexcept nogil
