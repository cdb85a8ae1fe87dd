"""Numbering by first appearance, with a dictionary."""


def renumber(ids):
    number = {}
    return [number.setdefault(value, len(number)) for value in ids], len(number)


def count_on(ids, first, distinct):
    for value in ids:
        if not 0 <= value - first <= distinct:
            return -1
        distinct = max(distinct, value - first + 1)
    return distinct
