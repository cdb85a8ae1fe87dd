cimport cython

cdef enum:
    _KINDS = 18  # as KINDS and FULL_KINDS, for loops without the interpreter lock
    _FULL = 15
    MOST_WAYS = 3  # maximum number of blocks that follow an attachment where a conversation continues

cdef struct Block:
    long long last_use  # the clock after the last path that used it
    long long last_row  # the last row that used it
    long long session  # session of that row
    int parent  # slot of the block before it, -1 = root
    int number  # block number in the output
    int bucket  # the bucket with its current entry, -1 = none
    int tokens
    int uses  # saturates at 3

cdef struct Entry:
    long long last_use
    int slot

cdef struct Bucket:  # blocks of one depth and kind in order of last use; entries of blocks used since are stale
    Entry* entries
    int length
    int room
    int current  # number of entries that are not stale

cdef struct Candidate:
    double cost
    Py_ssize_t depth
    int slot

cdef int _kind(long long distance, int uses) except -1 nogil
cdef _count_ways(const long long[::1] hash_ids, const long long[::1] offsets, signed char[::1] seen, int[::1] ways)
cdef _walk(const long long[::1] hash_ids, const long long[::1] offsets, const long long[::1] unseen, bint given,
           const long long[::1] parent, const int[::1] ways, long long[::1] hits, long long[::1] age, int[::1] kind,
           int[::1] continues, int[::1] last_row, signed char[::1] uses, long long[::1] clock)


@cython.final
cdef class Growth:
    cdef Block* slots
    cdef Bucket* buckets
    cdef int* path
    cdef Py_ssize_t path_room
    cdef int count  # slots in use
    cdef int room
    cdef Py_ssize_t deepest
    cdef long long horizon
    cdef long long now  # the clock: new blocks so far
    cdef long long row
    cdef long long sessions
    cdef int block_size
    cdef int nearness[18][18]  # kind -> kinds in order of distance
    cdef int apart[18][18]  # and the distance of each of them

    cdef int _attachment(self, Py_ssize_t* depth, Py_ssize_t shallow, Py_ssize_t deep, int kind, long long age,
                         long long length) except -2 nogil
    cdef int _around(self, Candidate* best, Py_ssize_t wanted, Py_ssize_t shallow, Py_ssize_t deep, int kind,
                     long long age, double penalty) except -1 nogil
    cdef int _nearest(self, Py_ssize_t index, long long wanted) except -2 nogil
    cdef bint _is_current(self, Entry entry, Py_ssize_t index, long long oldest) except -1 nogil
    cdef int _new_block(self, Py_ssize_t place) except -1 nogil
    cdef bint _use(self, int index, long long depth, long long length, long long session) except -1 nogil
    cdef bint _push(self, int into, int index) except -1 nogil
    cdef bint _tidy(self, int into) except -1 nogil
    cdef bint _make_room(self, long long length) except -1 nogil
    cdef bint _forget(self) except -1 nogil
