"""The prefix cache under vLLM's scheduler: what a scheduler asks of it, step by step.

A scheduler decides who gets tokens; the cache finds hits, counts the blocks that a chunk of a request needs, takes and
frees them. paged_cache.py is the cache of full attention, grouped_cache.py that of hybrid models.
"""


class StepCache:
    """A cache of blocks that requests take as their tokens are computed. A chunk is tokens [start, end)."""

    def free(self):
        """The blocks that no request holds."""
        return 0

    def begin_step(self):
        """A step begins; the one before it has ended."""
        return 0

    def find(self, row, known):
        """The tokens that hit, with `known` tokens of prompt and output; the last one is always computed."""
        return 0

    def chunk_end(self, row, start, end):
        """Where a chunk that may go on to `end` must end; `start` if it must wait for a larger one."""
        return end

    def admission(self, row, hit, end, whole, spare):
        """Whether a request that hit can begin with its chunk up to `end`: FITS, NO_BLOCKS or NOT_NOW.

        `whole` is the number of tokens for which there must be room beside what others hold, 0 = the chunk's; `spare`
        blocks must stay free.
        """
        return FITS

    def open(self, row, hit):
        """Give a request that holds nothing the blocks that hit."""
        return 0

    def slide(self, row, tokens):
        """Publish what `tokens` tokens fill, and free what is not needed after them."""
        return 0

    def missing(self, row, start, end):
        """The blocks that a request must still take for a chunk."""
        return 0

    def fits(self, row, start, end):
        """Whether there are as many blocks as a chunk needs."""
        return self.missing(row, start, end) <= self.free()

    def extend(self, row, start, end):
        """Take the blocks of a chunk. The caller has checked that there are enough."""
        return 0

    def publish(self, row, tokens):
        """Give the full blocks of the first `tokens` tokens their hashes, so that lookups find them."""
        return 0

    def release(self, row):
        """Give up all blocks of a request, tail first."""
        return 0

    def quiet(self, row, done, lag):
        """The steps, of one token each, before one that takes, frees or publishes blocks, with `done` tokens computed.

        The tokens of the last `lag` steps are not known yet: blocks are freed and published that much later.
        """
        return 0
