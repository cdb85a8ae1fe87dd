"""The time of a step: the longer of compute and memory time, likewise of experts, plus what overlaps with neither.

Or Dynamo's: a polynomial of the prompt tokens to compute, plus one of the context of the requests that decode.
"""

import cython
from cython.cimports.libc.math import pow


def begin_work(work):
    """The work of a step without requests."""
    work.requests = work.tokens = work.pairs = work.read = work.context = 0
    work.prefills = work.prompt_before = work.prompt_after = 0


def add_part(work, done, chunk, prompt, goal):
    """Add a chunk of a request that has `done` tokens computed, and gives an output token with `goal` of them."""
    work.requests += 1
    work.tokens += chunk
    if chunk == 1 and done >= prompt:  # it decodes
        work.read += done + 1
    else:
        work.pairs += cython.cast(cython.double, chunk) * (2 * done + chunk)
        work.read += done
    if done < prompt:
        work.prefills += 1
        work.prompt_before += done
        work.prompt_after += min(done + chunk, prompt)
    if goal > prompt and done + chunk == goal:
        work.context += goal


def expert_seconds(cost, tokens):
    """Seconds of the routed experts: their products, or the reading of those that some token of the step uses.

    Each token uses a share of the experts, as if drawn at random: after n tokens (1 - share)^n of them are untouched.
    """
    touched: cython.double
    if cost.expert_step_s == 0:
        return cost.expert_token_s * tokens
    touched = 1 - pow(1 - cost.expert_share, tokens)
    return max(cost.expert_token_s * tokens, cost.expert_step_s * touched)


def window_seconds(cost, work):
    """Seconds of attention within windows. The requests' sums bound what each of them reads and pairs.

    Where all contexts are shorter than the window, or all longer, this is exact; else it is a little too much.
    """
    if cost.window_tokens <= 0:
        return 0
    read: cython.double = min(work.read, cost.window_tokens * work.requests)
    pairs: cython.double = min(work.pairs, 2 * cost.window_tokens * work.tokens)
    return cost.window_read_s * read + cost.window_pair_s * pairs


def step_seconds(cost, work):
    """Seconds of a step."""
    if cost.is_polynomial:
        return _polynomial_step(cost, work)
    computing: cython.double = cost.token_s * work.tokens + cost.pair_s * work.pairs
    overlapped: cython.double = max(computing, cost.step_s + cost.read_s * work.read)
    products: cython.double = overlapped + expert_seconds(cost, work.tokens)
    alone: cython.double = cost.overhead_s + cost.request_s * work.requests + cost.exchange_s * work.tokens
    attention: cython.double = cost.attention_pair_s * work.pairs + cost.attention_read_s * work.read
    return products + alone + attention + window_seconds(cost, work)


def decode_seconds(cost, batch, context, steps):
    """Seconds of steps that only decode. The first reads `context` tokens, each later one `batch` tokens more.

    Their experts and what GPUs exchange depend on the tokens of a step alone, so each of the steps takes the same.
    """
    if cost.is_polynomial:
        return _polynomial_decode(cost, batch, context, steps)
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
    each: cython.double = cost.overhead_s + (cost.request_s + cost.exchange_s) * batch + expert_seconds(cost, batch)
    alone: cython.double = all_steps * each + cost.attention_read_s * reads
    return before * compute + read + alone + cost.window_read_s * _window_reads(cost, batch, context, steps)


def _window_reads(cost, batch, context, steps):
    """Tokens that windows read in steps that only decode: the contexts, until each request's window is full."""
    full: cython.double = batch * cost.window_tokens
    if full <= 0:
        return 0
    growing: cython.longlong = 0  # steps whose contexts fit in the windows
    if context <= full:
        growing = min(steps, cython.cast(cython.longlong, min((full - context) / batch, 1e15)) + 1)
    n: cython.double = growing
    return n * context + batch * n * (n - 1) / 2 + (steps - growing) * full


def _polynomial_step(cost, work):
    """Dynamo's seconds of a step. It counts prompt tokens by whole-number means: requests x (mean after - before)."""
    tokens: cython.double = 0
    seconds: cython.double = 0
    if work.prefills:
        tokens = work.prefills * (work.prompt_after // work.prefills - work.prompt_before // work.prefills)
    if tokens > 0:
        seconds = (cost.prefill_square_s * tokens + cost.prefill_token_s) * tokens + cost.prefill_step_s
    return seconds + _polynomial_decode(cost, 0, work.context, 1) if work.context > 0 else seconds


def _polynomial_decode(cost, batch, context, steps):
    """Dynamo's seconds of steps that only decode, as `decode_seconds`: sums of the steps' numbers and their squares."""
    most: cython.double = cost.cache_tokens
    within: cython.longlong = steps  # steps with a context of at most `most` tokens
    if context > most:
        within = 0
    elif batch > 0:
        within = min(steps, cython.cast(cython.longlong, min((most - context) / batch, 1e15)) + 1)
    n: cython.double = within
    numbers: cython.double = n * (n - 1) / 2
    squares: cython.double = numbers * (2 * n - 1) / 3
    tokens: cython.double = n * context + batch * numbers
    tokens_squared: cython.double = n * context * context + 2 * context * batch * numbers + batch * batch * squares
    full: cython.double = (cost.decode_square_s * most + cost.decode_token_s) * most
    sums: cython.double = cost.decode_square_s * tokens_squared + cost.decode_token_s * tokens
    return sums + (steps - within) * full + steps * cost.decode_step_s
