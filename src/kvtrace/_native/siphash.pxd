cdef void _round(unsigned long long* v) noexcept nogil
cdef void _start(unsigned long long* v, unsigned long long k0, unsigned long long k1) noexcept nogil
cdef void _take(unsigned long long* v, unsigned long long word) noexcept nogil
cdef void _finish(unsigned long long* v, unsigned long long* low, unsigned long long* high) noexcept nogil
