"""Numbering by first appearance, with a dictionary."""


def renumber(ids):
    number = {}
    return [number.setdefault(value, len(number)) for value in ids], len(number)


def merge(streams, order):
    """The rows of all streams, given as lists of rows of ids, in a new order; the ids are numbered by appearance."""
    rows = [[(stream, value) for value in row] for stream, rows in enumerate(streams) for row in rows]
    number = {}
    return [[number.setdefault(one, len(number)) for one in rows[place]] for place in order]


def count_on(ids, first, distinct):
    for value in ids:
        if not 0 <= value - first <= distinct:
            return -1
        distinct = max(distinct, value - first + 1)
    return distinct
