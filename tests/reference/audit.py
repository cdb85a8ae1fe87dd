"""Twins of the audit's figures in plain Python: unique rows, structure of sharing, rows matched between traces."""

from collections import Counter


def alone_near(group, time, near):
    """The share of rows without another row of their group within `near`."""
    rows = range(len(group))
    alone = [
        not any(other != row and group[other] == group[row] and abs(time[other] - time[row]) <= near for other in rows)
        for row in rows
    ]
    return sum(alone) / len(alone)


def structures(prompts):
    """For each prompt: (position, number of prompts with it) of each shared block, in order."""
    visits = Counter(block for prompt in prompts for block in prompt)
    return [
        tuple((place, visits[block]) for place, block in enumerate(prompt) if visits[block] > 1) for prompt in prompts
    ]


def partition(values):
    """Groups of equal rows: for each row, the first equal row."""
    return [values.index(value) for value in values]


def found_again(old, new, step):
    """(time, key) rows of two traces: number of pairs with the same key at the most common time difference."""
    matches = Counter()
    for time, key in new:
        matches.update({round((time - other) / step) for other, its_key in old if its_key == key})
    return max(matches.values(), default=0)


def several_parents(prompts):
    """Number of blocks with more than one parent."""
    parents: dict = {}
    for prompt in prompts:
        for before, block in zip([-1, *prompt], prompt, strict=False):
            parents.setdefault(block, set()).add(before)
    return sum(len(several) > 1 for several in parents.values())
