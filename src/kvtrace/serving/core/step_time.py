"""The time of a step: the longer of compute and memory time, plus what overlaps with neither."""

import cython


def step_seconds(cost, requests, tokens, pairs, read):
    """Seconds of a step of so many requests and tokens, pairs of tokens, and cached tokens that it reads."""
    overlapped: cython.double = max(cost.token_s * tokens + cost.pair_s * pairs, cost.step_s + cost.read_s * read)
    alone: cython.double = cost.overhead_s + cost.request_s * requests
    return overlapped + alone + cost.attention_pair_s * pairs + cost.attention_read_s * read


def decode_seconds(cost, batch, context, steps):
    """Seconds of steps that only decode. The first reads `context` tokens, each later one `batch` tokens more."""
    compute: cython.double = cost.token_s * batch
    bound: cython.double = 0  # steps until memory time exceeds compute time
    if cost.read_s > 0:
        bound = min(max((compute - cost.step_s) / cost.read_s - context, 0.0) / batch, 1e15)
    elif compute > cost.step_s:
        bound = 1e15
    before: cython.longlong = min(steps, cython.cast(cython.longlong, bound) + (bound > 0))
    after: cython.double = steps - before
    sum_of: cython.double = after * before + after * (after - 1) / 2  # sum of the step numbers after `before`
    read: cython.double = after * (cost.step_s + cost.read_s * context) + cost.read_s * batch * sum_of
    all_steps: cython.double = steps
    reads: cython.double = all_steps * context + batch * all_steps * (all_steps - 1) / 2
    alone: cython.double = all_steps * (cost.overhead_s + cost.request_s * batch) + cost.attention_read_s * reads
    return before * compute + read + alone
