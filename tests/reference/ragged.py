"""Gathering rows of unequal length, and ranges of numbers, with lists."""


def take(rows, chosen):
    return [rows[i] for i in chosen]


def ranges(first, lengths):
    return [number for start, length in zip(first, lengths, strict=True) for number in range(start, start + length)]
