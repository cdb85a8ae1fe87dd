"""Numbering by first appearance, with a dictionary."""


def renumber(ids):
    number = {}
    return [number.setdefault(value, len(number)) for value in ids], len(number)
