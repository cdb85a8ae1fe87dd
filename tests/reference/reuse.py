"""The recency list as a Python list: finds the position of each block by search."""


def places(prompts):
    """(row, row of last use, block, rank) of every hit block. A path then moves to the front, tail first."""
    recent, last_use = [], {}
    for row, prompt in enumerate(prompts):
        for block in prompt:
            if block not in last_use:
                break  # ids form a forest: no deeper block was seen either
            yield row, last_use[block], block, recent.index(block) + 1
        for block in reversed(prompt):
            if block in last_use:
                recent.remove(block)
            recent.insert(0, block)
            last_use[block] = row


def segments(prompts):
    """Runs of adjacent places with one request and one last use: (row, last row, blocks, first rank)."""
    runs = []
    for row, last_row, _, rank in places(prompts):
        if runs and runs[-1][:2] == [row, last_row]:
            assert rank == runs[-1][3] + runs[-1][2], "blocks of one earlier request lie side by side"
            runs[-1][2] += 1
        else:
            runs.append([row, last_row, 1, rank])
    return runs
