ctypedef fused number:
    int
    long long

cdef _place_rows(const int[::1] contributor, long long[::1] starts, long long[::1] order)
cdef _count_uses(const number[::1] blocks, int[::1] uses)
cdef _runs(const number[::1] blocks, const long long[::1] offsets, const int[::1] uses, const unsigned char[::1] alone,
           int[::1] run_at, int[::1] run, int[::1] length, long long[::1] run_offsets)
cdef _count(const int[::1] blocks, const long long[::1] offsets, const long long[::1] order,
            const int[::1] contributor, int[::1] count, int[::1] last)
cdef _split(int[::1] blocks, const long long[::1] offsets, const long long[::1] order, const int[::1] contributor,
            const unsigned char[::1] is_split, int[::1] copy, int[::1] last, int[::1] former)
cdef _unsettled(const int[::1] blocks, const long long[::1] offsets, const int[::1] count, int k,
                unsigned char[::1] changes, unsigned char[::1] is_safe, long long[::1] starts)
cdef _first_rows(const int[::1] blocks, const long long[::1] offsets, const long long[::1] lengths, int[::1] first)
cdef _leading_hits(const int[::1] blocks, const long long[::1] offsets, const long long[::1] prompts,
                   unsigned char[::1] unseen, bint outputs, int[::1] hits)
cdef _infer(const int[::1] ids, const long long[::1] offsets, const long long[::1] prompts, Py_ssize_t first,
            int fresh, const int[::1] enough, int[::1] last, int[:, ::1] users, unsigned char[::1] several,
            int[::1] session)
