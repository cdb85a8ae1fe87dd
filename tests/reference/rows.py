"""JSON rows read line by line: the result that the scanner, the Python fallback and the threads must give together."""

import orjson

KNOWN = {"timestamp", "input_length", "output_length", "hash_ids", "output_hash_ids"}
SAME = {"input_tokens": "input_length", "output_tokens": "output_length"}


def read(data):
    """(rows, line numbers of bad rows). A row is a line number from 1, five columns, and scalars of other keys.

    Rows have hash_ids as the first good one does, or have none as it has none.
    """
    rows, bad, first = [], [], None
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if line.strip(b" \t\r"):
            try:
                row = take(orjson.loads(line))
                first = first or row
                if (row[3] is None) != (first[3] is None):
                    raise ValueError
                rows.append((number, *row[:3], row[3] or [], *row[4:]))
            except (ValueError, KeyError, TypeError):
                bad.append(number)
    return rows, bad


def take(row):
    if not isinstance(row, dict):
        raise TypeError
    row = {name if SAME.get(name, name) in row else SAME[name]: value for name, value in row.items()}
    if type(row["timestamp"]) not in (int, float):
        raise TypeError
    output = row.get("output_length")
    lengths = [whole(row["input_length"]), -1 if output is None else whole(output)]
    if output is not None and lengths[1] == -1:
        lengths[1] = -2  # negative, not unknown
    if not all(-(2**63) <= length < 2**63 for length in lengths):
        raise ValueError
    if "output_hash_ids" in row and "hash_ids" not in row:
        raise ValueError
    outputs = ids(row["output_hash_ids"]) if "output_hash_ids" in row else None
    prompt = ids(row["hash_ids"]) if "hash_ids" in row else None
    others = {key: value for key, value in row.items() if key not in KNOWN and not isinstance(value, (dict, list))}
    return float(row["timestamp"]), *lengths, prompt, outputs, others


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
