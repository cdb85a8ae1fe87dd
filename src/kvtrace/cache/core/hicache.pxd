cimport cython
from kvtrace.cache.core.radix cimport PagedRadix, Radix
from kvtrace.cache.structures.queues cimport Queue


@cython.final
cdef class StoragePool:
    cdef Queue order  # the least recently used block first
    cdef readonly long long capacity, loaded, stored, evicted

    cdef long long leading(self, const int[::1] ids, long long start, long long blocks) noexcept nogil
    cdef int read(self, const int[::1] ids, long long start, long long blocks) except -1 nogil
    cdef int write(self, int block) except -1 nogil


@cython.final
cdef class HiRadix(Radix):
    cdef int[::1] pinned  # the nodes that transfers pin, once for each pin
    cdef Py_ssize_t pinned_nodes
    cdef readonly StoragePool pool
    cdef long long load_blocks, prefetch_blocks
    cdef long long restored  # blocks that the last walk computed anew
    cdef long long fetched, fetched_from  # the blocks that came from the pool for the present request, and their place
    cdef int[:, ::1] below  # tier below the device, request -> hit blocks
    cdef bint watches  # `elsewhere` is wanted
    cdef list others  # the trees of all other instances
    cdef int[::1] elsewhere_hit

    cdef int _reach(self, Py_ssize_t row) except -1
    cdef int _fetch(self, Py_ssize_t row) except -1 nogil
    cdef int _last_on_device(self, int node) noexcept nogil
    cdef long long _blocks_between(self, int node, int above) noexcept nogil
    cdef int _load_back(self, int node, int above, long long blocks) except -1 nogil
    cdef int _shift_pins(self, int node, int above, int by) except -1 nogil
    cdef int _count_sources(self, Py_ssize_t row, long long hit, long long loaded) noexcept nogil
    cdef int _pin(self, int node) except -1 nogil
    cdef int _end_transfers(self) except -1 nogil
    cdef int _list_path(self, int node, int above) except -1 nogil


@cython.final
cdef class TimedStorage:
    cdef readonly object pages  # the least recently used first
    cdef list events  # a heap: (end, number, storage, kind, item, pages before)
    cdef long long number, batch
    cdef double fetch_s, store_s, latency, in_free, out_free
    cdef readonly long long capacity, loaded, stored, evicted

    cdef int reach(self, double now) except -1
    cdef int wait(self, double end, Storage storage, int kind, object item, long long done) except -1
    cdef long long leading(self, list names) except *
    cdef int use(self, list names) except -1
    cdef int add(self, list names) except -1


@cython.final
cdef class Fetch:
    cdef Py_ssize_t row
    cdef int anchor
    cdef long long mark
    cdef long long first, requested, reserved, found, read  # pages
    cdef list names
    cdef bint assumed  # its pages are known to exist
    cdef bint terminated, expired


@cython.final
cdef class Storage:
    cdef TimedStorage shared
    cdef HiPagedRadix tree
    cdef bint by_time, at_once
    cdef long long threshold, interval, most
    cdef double timeout_base, timeout_per_page
    cdef object queries, reads, writes, hits, acks, written
    cdef bint asking, reading, saving
    cdef Py_ssize_t new_hits, new_acks, new_written
    cdef long long new_freed, freed  # pages of the host that are free from the next plan on
    cdef dict fetching  # row -> Fetch
    cdef dict waits  # row -> [begin, seconds, whether they are over]
    cdef dict retries  # row -> [tokens up to which pages are known to exist, pass]; -1 = none yet
    cdef dict came, span, attempts, last_match  # by row
    cdef long long passes, occupied, under_way

    cdef bint is_active(self) except -1
    cdef bint spins(self, bint waiting, double now) except -1
    cdef double next_end(self, double now) except? -1
    cdef int finish(self) except -1
    cdef int ended(self, int kind, object item, long long done, double at) except -1
    cdef int _ask_next(self, double at) except -1
    cdef int _read_next(self, double at) except -1
    cdef int _read(self, Fetch fetch, long long done, double at) except -1
    cdef int _save_next(self, double at) except -1
    cdef int _save(self, tuple item, long long done, double at) except -1
    cdef int write(self, int node) except -1
    cdef count_news(self)
    cdef int see_news(self) except -1
    cdef int _answered(self, Fetch fetch) except -1
    cdef int _revoke(self, Py_ssize_t row) except -1
    cdef int _insert(self, Fetch fetch) except -1
    cdef int prefetch(self, Py_ssize_t row, long long first, int anchor, long long known, long long hit_end) except -1
    cdef list due(self, list waiting)
    cdef bint ready(self, Py_ssize_t row, double now) except -1
    cdef bint _may_end(self, Fetch fetch, double now) except -1
    cdef bint lost(self, Py_ssize_t row, long long matched) except -1
    cdef count_attempt(self, Py_ssize_t row)
    cdef restart(self, Py_ssize_t row)
    cdef admitted(self, Py_ssize_t row)


@cython.final
cdef class HiPagedRadix(PagedRadix):
    cdef int[::1] loading  # node -> the last node of a path that is loaded, 0 = it is not
    cdef long long[::1] marks  # node -> the mark of those who keep it on the host, 0 = none; of a divided node: the upper
    cdef long long last_mark
    cdef readonly Storage storage  # None: there is none
    cdef dict fragments  # node -> the nodes of a copy to the host that has not ended
    cdef int[:, ::1] below  # tier, request -> hit blocks on the host, and from the storage
    cdef double load_s, store_s  # seconds a token
    cdef double load_link, store_link  # when the last copy of each direction ends
    cdef public double now, busy
    cdef list to_store, to_load  # nodes whose copies are decided
    cdef long long store_pages, load_pages  # of these
    cdef list storing, loads  # copies under way: (end, nodes)
    cdef public long long inserted, owned  # pages, of the request that inserts
    cdef public long long duplicates
    cdef int best
    cdef long long host_hit

    cdef int see_copies(self) except -1
    cdef int flush(self) except -1
    cdef double start_loading(self) except? -1
    cdef double next_copy(self) except? -1
    cdef bint has_copies(self) noexcept
    cdef int load_back(self, int best, long long pages) except -1
    cdef int _pass_on(self, int node) except -1
    cdef long long keep(self, int node) except *
    cdef int let_go(self, int node, long long mark) except -1
    cdef long long page_key(self, Py_ssize_t row, long long page) noexcept
    cdef long long insert_fetched(self, int anchor, Py_ssize_t row, long long first, long long pages) except *
    cdef int _end_load(self, int best) except -1
    cdef double _store(self, long long pages) noexcept nogil
