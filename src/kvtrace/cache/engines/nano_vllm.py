"""nano-vllm's prefix cache: vLLM's, but the newest copy of a block wins and each freed block joins the queue's end.

Semantics: nano-vllm as of 2026, its BlockManager (nanovllm/engine/block_manager.py): all blocks but a prompt's last are
looked up, a hash names the block that was registered last, and loses it when that block is taken anew.
Checked: once, against that class as a public copy has it, its hash function replaced: every request's hits and all
early frees on 900 random cases, of all modes and schedules; always, against the twin tests/reference/free_queue.py. In
block mode, one request at a time, it hits what vLLM hits on the Mooncake conversation trace.

What stays out: nano-vllm registers a prompt's hashes after it was computed, so that prompts prefilled in one batch do
not find each other's; here they are registered at admission. It makes the request that came last start over where we
free the oldest live one early.
"""

from __future__ import annotations

from ..core.free_queue import FreeQueue
from ..demand import Jobs
from ..policies.base import Context


def build(jobs: Jobs, context: Context, policy: str = "lru") -> FreeQueue:
    """nano-vllm's cache of `context.capacity` blocks for the jobs; its one policy is lru, by the queue's order.

    >>> from kvtrace.cache.demand import jobs
    >>> from kvtrace.trace.building import toy
    >>> asked = jobs(toy("0 1", "0 1", "0 1 2"), recompute_last=True)
    >>> cache = build(asked, Context(blocks=asked.blocks, capacity=4, jobs=asked))
    >>> cache.advance(3)
    >>> cache.hits.tolist()
    [0, 1, 2]
    """
    return FreeQueue(context, jobs, unhashed_first=False, newest_copy=True)
