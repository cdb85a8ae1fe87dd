"""The recency list as a list: where each request finds its blocks, found by looking."""


def places(prompts):
    """(row, row of last use, block, rank) of every block found; a request's path then goes to the front, tail first."""
    recent, last_use = [], {}
    for row, prompt in enumerate(prompts):
        for block in prompt:
            if block not in last_use:
                break  # ids form a forest: nothing deeper was seen either
            yield row, last_use[block], block, recent.index(block) + 1
        for block in reversed(prompt):
            if block in last_use:
                recent.remove(block)
            recent.insert(0, block)
            last_use[block] = row


def segments(prompts):
    """Places next to each other, of one request and one last use, as (row, last row, blocks, first rank)."""
    runs = []
    for row, last_row, _, rank in places(prompts):
        if runs and runs[-1][:2] == [row, last_row]:
            assert rank == runs[-1][3] + runs[-1][2], "blocks of one earlier request lie side by side"
            runs[-1][2] += 1
        else:
            runs.append([row, last_row, 1, rank])
    return runs
