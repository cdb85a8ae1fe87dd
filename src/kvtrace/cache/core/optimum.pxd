from kvtrace.cache.structures.hierarchical_bitset cimport HierarchicalBitset

cdef _retain(const int[::1] next_row, const int[::1] blocks, const long long[::1] first, long long capacity,
             int[::1] held, HierarchicalBitset due)
