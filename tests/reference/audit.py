"""Twins of the audit's figures in the plainest Python: who is alone, what shape sharing has, what is found again."""

from collections import Counter


def alone_near(group, time, near):
    """The share of rows without another one of their group within `near`."""
    rows = range(len(group))
    alone = [
        not any(other != row and group[other] == group[row] and abs(time[other] - time[row]) <= near for other in rows)
        for row in rows
    ]
    return sum(alone) / len(alone)


def structures(prompts):
    """How many prompts hold each of a prompt's shared blocks, in order, with its place."""
    visits = Counter(block for prompt in prompts for block in prompt)
    return [
        tuple((place, visits[block]) for place, block in enumerate(prompt) if visits[block] > 1) for prompt in prompts
    ]


def partition(values):
    """Which rows are equal: for each row, the first row that is."""
    return [values.index(value) for value in values]


def found_again(old, new, step):
    """(time, key) rows of two traces: how many of `new` have one of `old` at the commonest difference of times."""
    at = Counter()
    for time, key in new:
        at.update({round((time - other) / step) for other, its_key in old if its_key == key})
    return max(at.values(), default=0)


def several_parents(prompts):
    """How many blocks follow different blocks in different places."""
    parents: dict = {}
    for prompt in prompts:
        for before, block in zip([-1, *prompt], prompt, strict=False):
            parents.setdefault(block, set()).add(before)
    return sum(len(found) > 1 for found in parents.values())
