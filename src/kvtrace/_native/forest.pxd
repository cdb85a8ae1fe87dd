cdef _depths(const long long[::1] parent, long long[::1] depth)
cdef _runs(const long long[::1] parent, const long long[::1] visits, long long[::1] chain)
cdef long long _number(unsigned long long key, long long fresh, unsigned long long[::1] keys,
                       long long[::1] numbers) noexcept nogil
