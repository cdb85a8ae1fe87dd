cdef struct StepCost:  # seconds
    double token_s  # per computed token
    double pair_s  # per pair of tokens that attend to each other
    double step_s  # to read the weights
    double read_s  # per cached token that is read
    double overhead_s  # fixed, per step
    double request_s  # per request of the step
    double attention_pair_s  # as pair_s, not overlapped with reading
    double attention_read_s  # as read_s, not overlapped with computing

cdef double step_seconds(StepCost* cost, double requests, double tokens, double pairs, double read) noexcept nogil
cdef double decode_seconds(StepCost* cost, double batch, double context, long long steps) noexcept nogil
