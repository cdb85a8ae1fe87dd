cdef void* zeros(size_t size) except *
cdef void* resized(void* memory, size_t size) except *
