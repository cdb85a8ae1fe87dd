"""An attacker who knows one request's lengths and its time to a minute searches for its row; a plain loop."""


def located(rows, near_ms=60_000):
    """Number of requests that are singled out among `rows`, (time, input length, output length) as released.

    The attacker rounds the known lengths as the release does, so they equal those of the request's own row. The
    candidates are all rows with these lengths whose time is within `near_ms`.
    """
    by_lengths = {}
    for time, *lengths in rows:
        by_lengths.setdefault(tuple(lengths), []).append(time)
    located_rows = 0
    for known, *lengths in rows:
        candidates = [time for time in by_lengths[tuple(lengths)] if abs(time - known) <= near_ms]
        located_rows += len(candidates) == 1
    return located_rows
