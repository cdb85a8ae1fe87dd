"""Who knows one request, its lengths and its time to a minute, and looks for its row: one after the other."""


def located(rows, near_ms=60_000):
    """How many requests are found alone among `rows`, (time, input length, output length) as released.

    The attacker rounds the lengths that they know as the release does, so that they equal those of the request's own
    row, and looks at all rows with these whose time is near that row's.
    """
    by_lengths = {}
    for time, *lengths in rows:
        by_lengths.setdefault(tuple(lengths), []).append(time)
    found = 0
    for known, *lengths in rows:
        candidates = [time for time in by_lengths[tuple(lengths)] if abs(time - known) <= near_ms]
        found += len(candidates) == 1
    return found
