"""The model of a file: a saved one, or one that is fitted to the trace in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .._base.errors import UsageError, wrong_word
from ..formats import reading
from ..trace.conversion import assume_outputs
from ..trace.trace import Trace
from .attach_fitting import fit
from .attach_model import Model
from .session_fitting import fit_sessions
from .session_model import SessionModel
from .tree import Tree, fit_tree

METHODS: dict[str, Callable[[Trace], Model | Tree | SessionModel]] = {
    "attach": fit,
    "tree": fit_tree,
    "sessions": fit_sessions,
}
SAVED: tuple[type[Model] | type[SessionModel], ...] = (Model, SessionModel)  # kinds of models that files hold


def is_model(path: str | Path) -> bool:
    """Whether a file starts like a saved model of any kind."""
    return any(kind.is_model(path) for kind in SAVED)


def load_model(path: str | Path) -> Model | SessionModel:
    """The model in a file.

    Raises:
        InputError: The file is not a saved model.
    """
    return next((kind for kind in SAVED if kind.is_model(path)), Model).load(path)


def default_method(trace: Trace) -> str:
    """How a trace is fitted by default: `sessions` if it has sessions and dependencies, else `attach`."""
    return "sessions" if trace.session is not None and trace.dependencies is not None else "attach"


def model_of(
    path: str | Path,
    *,
    method: str | None = None,
    block_size: int | None = None,
    chain: bool = False,
    extra: str = "keep",
    on_read: Callable[[int], None] | None = None,
    assume_output: int | None = None,
    on_meta: Callable[[Mapping[str, Any]], None] | None = None,
) -> Model | Tree | SessionModel:
    """Load the model in a file, or fit one to the trace in it, as `kvtrace synthesize` does.

    Args:
        path: A saved model, or a trace; `-` is stdin.
        method: How a trace is fitted: `attach` (`fit`), `tree` (`fit_tree`) or `sessions` (`fit_sessions`). Default:
            sessions if the trace has sessions and dependencies, else attach.
        block_size, extra: As in `read`.
        chain: Re-chain ids that do not form a forest.
        on_read: Receives the number of requests when a trace is read.
        assume_output: The output length of requests whose log has no answer, as in `assume_outputs`.
        on_meta: Receives the sections of a trace's sidecar that its samples should have, too.

    Raises:
        UsageError: An option does not apply to a saved model, or the method is unknown.
        InputError: The file is not a valid model or trace.

    >>> import tempfile, kvtrace
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     files = kvtrace.write(kvtrace.toy("0 1", "0 2", block_size=4), f"{folder}/day.jsonl")
    ...     model_of(f"{folder}/day.jsonl", method="tree").rows
    2
    """
    if method is not None and method not in METHODS:
        raise wrong_word(method, "a method", METHODS)
    if is_model(path):
        model = load_model(path)
        if method not in (None, model.method) or chain or block_size:
            raise UsageError(f"{path} is a saved model. --method, --chain and --block-size apply to traces only.")
        return model
    trace = reading.read(path, block_size=block_size, extra=extra)
    trace = trace.chained() if chain else trace
    trace = trace if assume_output is None else assume_outputs(trace, assume_output)
    if on_read:
        on_read(len(trace))
    if on_meta:
        on_meta(_kept_by_samples(trace.meta))
    return METHODS[method or default_method(trace)](trace)


def _kept_by_samples(meta: Mapping[str, Any]) -> dict[str, Any]:
    """What is as true of a sample as of the trace: an assumption, and hit rates that are too low."""
    parts = {"log": "request_sample", "converted": "assumed_output"}
    return {name: {key: meta[name][key]} for name, key in parts.items() if key in meta.get(name, {})}
