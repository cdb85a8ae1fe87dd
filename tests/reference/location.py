"""Who knows one request of a release, its exact time and lengths, and looks for its row: one after the other."""


def located(known_ms, rows, near_ms=60_000):
    """How many requests are found alone.

    `known_ms` are the exact times; `rows` are (time, input length, output length) as released, in the same order. The
    attacker rounds the lengths that they know as the release does, so that they equal those of the request's own row.
    """
    by_lengths = {}
    for time, *lengths in rows:
        by_lengths.setdefault(tuple(lengths), []).append(time)
    found = 0
    for known, (_, *lengths) in zip(known_ms, rows, strict=True):
        candidates = [time for time in by_lengths[tuple(lengths)] if abs(time - known) <= near_ms]
        found += len(candidates) == 1
    return found
