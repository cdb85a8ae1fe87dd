"""Numbering by first appearance, with a dictionary."""


def renumber(ids):
    number = {}
    return [number.setdefault(value, len(number)) for value in ids], len(number)


def number_rows(prompts, order, outputs=None):
    """Final ids of rows in `order`, each row's prompt before its output: (prompts, outputs) as lists of lists."""
    number = {}
    numbered, numbered_outputs = [], []
    for row in order:
        numbered.append([number.setdefault(value, len(number)) for value in prompts[row]])
        if outputs is not None:
            numbered_outputs.append([number.setdefault(value, len(number)) for value in outputs[row]])
    return numbered, numbered_outputs if outputs is not None else None
