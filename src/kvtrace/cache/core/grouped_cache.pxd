cimport cython
from kvtrace.cache.core.blocks cimport BlockPool
from kvtrace.cache.core.engine cimport Engine, StepCache


cdef enum:
    FULL = 0
    WINDOW = 1
    CHUNK = 2
    STATE = 3
    NO_BLOCK = -1  # a place whose block is not kept
    BLANK = -2  # a place whose block has no key yet
    NO_SLOT = -1


@cython.final
cdef class GroupedCache(Engine):
    cdef readonly BlockPool pool
    cdef readonly object layout
    cdef const long long[::1] tokens  # row -> tokens of the prompt
    cdef const long long[::1] more  # row -> tokens that are computed after the prompt
    cdef long long[::1] known_tokens  # row -> tokens of prompt and output when it was admitted
    cdef long long[::1] prefill_end  # row -> tokens before its next output token, less the last one of an output
    cdef long long[::1] computed  # row -> tokens computed
    cdef long long[::1] junction  # row -> end of a prefix that others share but no checkpoint has; 0 = none
    cdef long long base  # tokens of the trace's blocks
    cdef long long align  # tokens: the least common multiple of the groups' block sizes; hits are multiples of it
    cdef long long step_tokens  # the largest chunk of a prompt
    cdef long long retention  # tokens between checkpoints; 0 = at the end of a prompt and at junctions, -1 = dense
    cdef long long keys  # keys of a group
    cdef long long drafts  # tokens that a drafter predicts in a step
    cdef bint checkpoint  # a state can be saved within a chunk
    cdef bint junctions  # checkpoints are made at junctions, too
    cdef bint has_state
    cdef int groups
    cdef int[::1] form_of  # group -> its form
    # forms: groups of the same kind and sizes, which behave alike and are looked up together; full attention first
    cdef int forms
    cdef int[::1] form_begin  # form -> begin of its groups in `member`
    cdef int[::1] member
    cdef int[::1] kind
    cdef long long[::1] size  # tokens of a block
    cdef long long[::1] scale  # the trace's blocks in a block
    cdef long long[::1] window
    cdef long long[::1] need  # blocks before a checkpoint that a later request needs
    cdef int[::1] place_in_form  # group -> its number in its form
    # live requests: a slot each; a value for each slot and form
    cdef int[::1] slot  # row -> its slot, NO_SLOT = none
    cdef int[::1] length  # places of the tables
    cdef int[::1] retired  # leading places that are no longer kept
    cdef int[::1] seen  # leading places that were considered for the cache
    cdef int[::1] last_state  # the place of the state before the present one; NO_BLOCK = none
    cdef int[::1] has_grown  # whether a state block was taken
    # a table has entries: places whose block is cached, and of states also blank ones. `held` has the places of the
    # entries, then the block of each group there: a cached block, BLANK or NO_BLOCK
    cdef long long[::1] begin  # where the table begins in `held`
    cdef int[::1] stride  # entries for which it has room
    cdef int[::1] first  # the first entry that is still kept
    cdef int[::1] last  # the end of the entries
    cdef int[::1] held
    # form -> while blocks are freed: the end of the places, and of the entries, that are no longer kept
    cdef int[::1] stop
    cdef int[::1] cut
    cdef long long[::1] part  # slot -> its part of `held`
    cdef int[::1] room  # slot -> the places of its tables, as a power of two
    cdef int[::1] vacant  # power of two -> a slot of that room that no request has, NO_SLOT = none
    cdef int[::1] next_vacant  # slot -> the next one of the same room
    cdef int slots
    cdef long long top
    # for a scheduler: states that were listed in a step cannot hit in it; empty if nobody asks
    cdef int step
    cdef int[::1] state_listed  # key -> the step

    cdef int block_at(self, Py_ssize_t row, long long place) noexcept nogil
    cdef int copy_at(self, Py_ssize_t row, int group, int form, long long place) noexcept nogil
    cdef bint has_all(self, Py_ssize_t row, int form, long long place) noexcept nogil
    cdef long long look_up(self, Py_ssize_t row, long long limit) noexcept nogil
    cdef long long _prefix(self, Py_ssize_t row, int form, long long limit) noexcept nogil
    cdef long long _window_prefix(self, Py_ssize_t row, int form, long long limit) noexcept nogil
    cdef long long chunk_end(self, Py_ssize_t row, long long start) noexcept nogil
    cdef long long aligned_end(self, Py_ssize_t row, long long start, long long end) noexcept nogil
    cdef bint can_save(self, long long start, long long end, long long position) noexcept nogil
    cdef long long skipped(self, int form, long long tokens) noexcept nogil
    cdef int allocate(self, Py_ssize_t row, long long hit, long long end) except -1 nogil
    cdef int retire(self, Py_ssize_t row, long long tokens) noexcept nogil
    cdef long long missing(self, Py_ssize_t row, long long hit, long long start, long long end) noexcept nogil
    cdef long long _places(self, int form, long long end) noexcept nogil
    cdef long long _scratch(self, int form) noexcept nogil
    cdef long long idle_hits(self, Py_ssize_t row, long long hit) noexcept nogil
    cdef long long _checkpoint_place(self, Py_ssize_t row, int form, long long start, long long end) noexcept nogil
    cdef int _start_with(self, Py_ssize_t row, long long hit) noexcept nogil
    cdef int _extend(self, Py_ssize_t row, long long start, long long end) noexcept nogil
    cdef int _publish(self, Py_ssize_t row, long long tokens) except -1 nogil
    cdef int _list(self, Py_ssize_t row, int form, long long begin, long long stop) except -1 nogil
    cdef int _members(self, int form) noexcept nogil
    cdef bint _is_past(self, Py_ssize_t at, int form, long long tokens) noexcept nogil
    cdef int _append(self, Py_ssize_t at, long long place) noexcept nogil
    cdef int _entry(self, Py_ssize_t at, long long place) noexcept nogil
    cdef bint _has_block(self, Py_ssize_t at, long long place) noexcept nogil
    cdef int _entry_of(self, Py_ssize_t at, long long place) noexcept nogil
    cdef long long _cell(self, Py_ssize_t at, int member, long long entry) noexcept nogil
    cdef long long _without_entry(self, Py_ssize_t at, int form, int stop, int cut) noexcept nogil
    cdef long long _unpin(self, Py_ssize_t at, int member, long long begin, long long stop) noexcept nogil
    cdef long long _unpin_place(self, Py_ssize_t at, int member, long long place) noexcept nogil
    cdef long long _next_event(self, long long computed) noexcept nogil
    cdef long long next_freed(self, long long tokens) noexcept nogil
    cdef int _open(self, Py_ssize_t row) except -1 nogil
    cdef int _new_slot(self, int power) except -1


@cython.final
cdef class GroupedSteps(StepCache):
    cdef readonly GroupedCache groups
    cdef long long in_flight  # the most tokens of a request whose step has not ended
    # row -> tokens: for which it has blocks; after which the next ones are freed, or can be listed
    cdef long long[::1] room, next_freed, next_listed

    cdef bint _awaits_state(self, Py_ssize_t row, long long hit) noexcept
    cdef long long _reserved(self, Py_ssize_t row, long long hit, long long tokens) noexcept
    cdef bint has_room(self, Py_ssize_t row, long long start, long long end) noexcept nogil
