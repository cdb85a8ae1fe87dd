cimport cython
from kvtrace.cache.core.radix cimport Radix
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

    cdef int _fetch(self, Py_ssize_t row) except -1 nogil
    cdef int _last_on_device(self, int node) noexcept nogil
    cdef long long _blocks_between(self, int node, int above) noexcept nogil
    cdef int _load_back(self, int node, int above, long long blocks) except -1 nogil
    cdef int _shift_pins(self, int node, int above, int by) except -1 nogil
    cdef int _count_sources(self, Py_ssize_t row, long long hit, long long loaded) noexcept nogil
    cdef int _pin(self, int node) except -1 nogil
    cdef int _end_transfers(self) except -1 nogil
    cdef int _list_path(self, int node, int above) except -1 nogil
