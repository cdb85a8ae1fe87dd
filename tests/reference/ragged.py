"""Gathering rows of unequal length, and ranges of numbers, with lists."""

from kvtrace._base.arrays import WORD, mix_number


def take(rows, chosen):
    return [rows[i] for i in chosen]


def ranges(first, lengths):
    return [number for start, length in zip(first, lengths, strict=True) for number in range(start, start + length)]


def hash_rows(rows, skipped):
    return [
        sum(mix_number(mix_number(place + 1) + value) for place, value in enumerate(row) if value not in skipped) & WORD
        for row in rows
    ]
