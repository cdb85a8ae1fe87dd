"""JSON rows read line by line: the result that the scanner, the Python fallback and the threads must give together."""

import orjson

NEEDED = {"timestamp", "input_length", "output_length", "hash_ids"}


def read(data):
    """(rows, line numbers of bad rows). A row is a line number from 1, five columns, and scalars of other keys."""
    rows, bad = [], []
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if line.strip(b" \t\r"):
            try:
                rows.append((number, *take(orjson.loads(line))))
            except (ValueError, KeyError, TypeError):
                bad.append(number)
    return rows, bad


def take(row):
    if not isinstance(row, dict):
        raise TypeError
    if type(row["timestamp"]) not in (int, float):
        raise TypeError
    lengths = [whole(row[name]) for name in ("input_length", "output_length")]
    if not all(-(2**63) <= length < 2**63 for length in lengths):
        raise ValueError
    outputs = ids(row["output_hash_ids"]) if "output_hash_ids" in row else None
    others = {
        key: value
        for key, value in row.items()
        if key not in NEEDED | {"output_hash_ids"} and not isinstance(value, (dict, list))
    }
    return float(row["timestamp"]), *lengths, ids(row["hash_ids"]), outputs, others


def ids(values):
    """Ids from 2^63 on as the negative integers with the same 64 bits."""
    if not isinstance(values, list):
        raise TypeError
    return [value - 2**64 if value >= 2**63 else value for value in map(whole, values)]


def whole(value):
    """An integer. orjson returns integers up to 64 bits, and doubles for longer ones or with a point or an exponent."""
    if type(value) is int:
        return value
    if type(value) is float and value == int(value) and abs(value) <= 2**53:
        return int(value)
    raise TypeError
