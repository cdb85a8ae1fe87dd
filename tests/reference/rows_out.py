"""Rows printed one by one with json.dumps."""

import json


def dump(rows, first_id=0):
    """Rows as dicts of numbers, JSON texts (bytes) and lists of ids, in the order of their keys."""
    return b"".join(line(row, first_id) for row in rows)


def line(row, first_id):
    parts = [f"{json.dumps(key)}: {text(value, first_id)}" for key, value in row.items()]
    return ("{" + ", ".join(parts) + "}\n").encode()


def text(value, first_id):
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list):
        return json.dumps([block + first_id for block in value])
    return json.dumps(value)
