cdef enum:
    MOST_WAYS = 3  # maximum number of blocks that follow an attachment where a conversation continues

cdef int _kind(long long distance, int uses) except -1 nogil
cdef _count_ways(const long long[::1] hash_ids, const long long[::1] offsets, signed char[::1] seen, int[::1] ways)
cdef _walk(const long long[::1] hash_ids, const long long[::1] offsets, const long long[::1] unseen, bint given,
           const long long[::1] parent, const int[::1] ways, long long[::1] hits, int[::1] kind,
           int[::1] continues, int[::1] last_row, signed char[::1] uses)

