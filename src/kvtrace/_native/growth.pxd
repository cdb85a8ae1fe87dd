cimport cython


cdef enum:
    MOST_WAYS = 3  # maximum number of blocks that follow an attachment where a conversation continues

cdef int _kind(long long distance, int uses) except -1 nogil
cdef _count_ways(const long long[::1] hash_ids, const long long[::1] offsets, signed char[::1] seen, int[::1] ways)
cdef _walk(const long long[::1] hash_ids, const long long[::1] offsets, const long long[::1] unseen, bint given,
           const long long[::1] parent, const int[::1] ways, long long[::1] hits, int[::1] kind,
           int[::1] continues, int[::1] last_row, signed char[::1] uses)


cdef enum:
    _KINDS = 18  # as KINDS, FULL_KINDS and CAPACITIES, for loops without the interpreter lock
    _FULL = 15
    _CAPACITIES = 16

cdef struct Block:
    long long last_use  # the last row that used it
    int parent  # slot of the block before it, -1 = root
    int number  # block number in the output
    int bucket  # the bucket with its current entry, -1 = none
    int tokens
    int uses  # saturates at 3
    unsigned int turn  # number of the entry that is current

cdef struct Row:  # a remembered row
    long long session
    int length  # blocks of its path
    int taken  # leading blocks of its path that later rows used too
    int fork  # slot of the last of these blocks
    int uncounted  # 1 if its last block is partial and the trace leaves partial blocks out

cdef struct Entry:
    long long last_use
    int slot
    unsigned int turn

cdef struct Bucket:  # blocks of one depth and kind in order of last use; entries of blocks used since are stale
    Entry* entries
    int length
    int room
    int current  # number of entries that are not stale

cdef struct Wanted:  # a record, as the search needs it
    double recorded[16]  # hits at each capacity
    double hits[16]  # the same, and a part of what earlier rows lack
    double tokens  # of the last block, and a part of what earlier rows lack
    double blocks  # blocks to share
    double step  # cost of a step between kinds
    long long distance
    int kind

cdef struct Candidate:
    double cost
    double error  # the cost without what earlier rows lack
    Py_ssize_t depth
    int slot  # -1 = none
    int tries

cdef struct Effort:
    int lookahead
    int tries
    int probes
    double reach


@cython.final
cdef class Growth:
    cdef Block* slots
    cdef Bucket* buckets
    cdef Row* rows  # row - base -> its state
    cdef long long* counts  # Fenwick tree over row - base: blocks that each row used last
    cdef int* path
    cdef Py_ssize_t path_room
    cdef int count  # slots in use
    cdef int room
    cdef Py_ssize_t deepest
    cdef long long horizon
    cdef long long new_blocks  # so far
    cdef long long row
    cdef long long base  # the first row of `rows` and `counts`
    cdef long long row_room  # a power of two
    cdef long long oldest  # the first row that is not forgotten
    cdef long long listed  # blocks in the recency list
    cdef long long sessions
    cdef int block_size
    cdef bint counts_partial
    cdef double capacities[16]
    cdef double correction[16]
    cdef double lacking[16]  # hits at each capacity that the rows so far lack
    cdef double asked_blocks  # of the rows so far
    cdef double lacking_tokens, asked_tokens  # of last blocks
    cdef Effort effort  # of the present row
    cdef Effort full, wide
    cdef int nearness[18][18]  # kind -> kinds in order of distance
    cdef int apart[18][18]  # and the distance of each of them

    # the recency list
    cdef long long _distance(self, long long row) noexcept nogil
    cdef long long _row_at(self, long long distance) noexcept nogil
    cdef int _add(self, long long row, long long blocks) noexcept nogil
    cdef int _take(self, Py_ssize_t depth) noexcept nogil
    cdef bint _new_row(self) except -1 nogil

    # the choice
    cdef int _want(self, Wanted* wanted, long long hits, long long distance, long long fork, long long fork_distance,
                   int kind, long long tail) noexcept nogil
    cdef int _search(self, Candidate* best, Wanted* wanted, Py_ssize_t depth, Py_ssize_t shallow, Py_ssize_t deep,
                     long long length, bint continues) noexcept nogil
    cdef int _around(self, Candidate* best, Wanted* wanted, Py_ssize_t depth, Py_ssize_t shallow, Py_ssize_t deep,
                     int kind, long long row, double penalty) noexcept nogil
    cdef int _try(self, Candidate* best, Wanted* wanted, int slot, Py_ssize_t depth, double penalty) noexcept nogil
    cdef int _hits(self, double* hits, int slot, Py_ssize_t depth) noexcept nogil
    cdef int _choose_effort(self) noexcept nogil
    cdef int _lack(self, Wanted* wanted, Candidate* best) noexcept nogil

    # the blocks
    cdef bint _place(self, Candidate* best, long long length, long long tail, bint continues, int[::1] blocks,
                     Py_ssize_t first) except -1 nogil
    cdef int _new_block(self, Py_ssize_t place) noexcept nogil
    cdef bint _use(self, int slot, long long depth, long long length) except -1 nogil
    cdef bint _is_current(self, Entry entry, Py_ssize_t index) noexcept nogil
    cdef bint _push(self, int into, int slot) except -1 nogil
    cdef bint _tidy(self, int into) except -1 nogil
    cdef int _drop_stale(self, Py_ssize_t into) noexcept nogil
    cdef bint _make_room(self, long long length) except -1 nogil
    cdef bint _forget(self) except -1 nogil
