cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #define kvtrace_fetch(address) __builtin_prefetch(address)
    #else
    #define kvtrace_fetch(address) ((void)(address))
    #endif
    """
    void fetch "kvtrace_fetch" (const void *address) noexcept nogil  # a prefetch hint: has no side effects
