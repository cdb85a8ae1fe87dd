from kvtrace.cache.core.engine cimport Engine
from kvtrace.serving.core.router cimport Router


cdef struct BatchLimits:
    long long step_tokens
    long long requests  # maximum running requests
    long long blocks  # capacity of an instance
    long long block_size  # tokens

cdef struct StepCost:  # seconds
    double token_s  # per computed token
    double pair_s  # per pair of tokens that attend to each other
    double step_s  # to read the weights
    double read_s  # per cached token that is read
    double overhead_s  # fixed, per step


cdef class Serving:
    cdef list engines
    cdef list instances
    cdef Router router
    cdef const double[::1] arrival
    cdef const long long[::1] tokens
    cdef const long long[::1] output
    cdef const long long[::1] need
    cdef BatchLimits limits
    cdef StepCost cost
    cdef int[::1] instance
    cdef long long[::1] done
    cdef double[::1] started
    cdef double[::1] first
    cdef double[::1] ended
    cdef long long[::1] cached
    cdef double[::1] ready
    cdef bint prefetches
    cdef readonly Py_ssize_t row
    cdef _update_router(self)


cdef class Instance:
    cdef Engine engine
    cdef Serving serving
    cdef list queue
    cdef Py_ssize_t head
    cdef list prefilling
    cdef list decoding
    cdef readonly double now
    cdef readonly double busy
    cdef long long steps, batch, context, reserved, prefill, load
    cdef long long active(self) except -1
    cdef take(self, Py_ssize_t row)
    cdef run(self, double until)
    cdef _admit(self)
    cdef _fetch_or_recompute(self, Py_ssize_t row)
    cdef _mixed(self, double until)
    cdef _decode(self, double until)
    cdef _token(self, long long steps)
    cdef _first(self, Py_ssize_t row)
    cdef _end(self, Py_ssize_t row)
    cdef _pass(self, double seconds)
    cdef double _time(self, double tokens, double pairs, double cached) except? -1
    cdef double _times(self, long long steps) except? -1
