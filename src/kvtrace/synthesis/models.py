"""The model of a file: a saved one, or one that is fitted to the trace in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .._base.errors import UsageError
from ..formats import reading
from .fitting import fit
from .model import Model
from .tree import Tree, fit_tree

METHODS = ("attach", "tree")


def model_of(
    path: str | Path,
    *,
    method: str = "attach",
    block_size: int | None = None,
    chain: bool = False,
    extra: str = "keep",
    on_read: Callable[[int], None] | None = None,
) -> Model | Tree:
    """Load the model in a file, or fit one to the trace in it, as `kvtrace synthesize` does.

    Args:
        path: A saved model, or a trace; `-` is stdin.
        method: How a trace is fitted: `attach` (`fit`) or `tree` (`fit_tree`).
        block_size, extra: As in `read`.
        chain: Re-chain ids that do not form a forest.
        on_read: Receives the number of requests when a trace is read.

    Raises:
        UsageError: An option does not apply to a saved model, or the method is unknown.
        InputError: The file is not a valid model or trace.

    >>> import tempfile, kvtrace
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     files = kvtrace.write(kvtrace.toy("0 1", "0 2", block_size=4), f"{folder}/day.jsonl")
    ...     model_of(f"{folder}/day.jsonl", method="tree").rows
    2
    """
    if method not in METHODS:
        raise UsageError(f"{method!r} is not a method. Choose one of {', '.join(METHODS)}.")
    if Model.is_model(path):
        if method != "attach" or chain or block_size:
            raise UsageError(f"{path} is a saved model. --method, --chain and --block-size apply to traces only.")
        return Model.load(path)
    trace = reading.read(path, block_size=block_size, extra=extra)
    trace = trace.chained() if chain else trace
    if on_read:
        on_read(len(trace))
    return fit(trace) if method == "attach" else fit_tree(trace)
