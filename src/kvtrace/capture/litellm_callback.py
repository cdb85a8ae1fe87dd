"""LiteLLMCallback: records the calls of LiteLLM, in Python or in its proxy (docs.litellm.ai, custom callbacks).

LiteLLM calls back when an answer is complete: in the event loop, or in a thread for calls without one. The callback
packs the fields that a trace needs and puts them into the recorder's queue. Packing holds the interpreter lock, so that
a thread of its own would not take this work away from the event loop; JSON and hashing are work of the digester.
"""

from __future__ import annotations

import atexit
import os
from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock
from typing import TYPE_CHECKING, Any

from .._base.errors import UsageError
from .litellm_calls import needed, packed

if TYPE_CHECKING:

    class LiteLLMCallback:  # as type checkers see the class that `callback_class` makes
        def __init__(self, recorder: Any, *, keep: Iterable[str] = (), **options: Any) -> None: ...
        def close(self) -> None: ...


LAST_CALLS = 1 << 10  # to find calls that LiteLLM reports twice


class CallQueue:
    """Puts calls of LiteLLM into a recorder's queue, each once. It raises nothing."""

    def __init__(self, recorder: Any, keep: Iterable[str] = ()):
        self.recorder, self.keep = recorder, frozenset(keep)
        self.failed = 0  # calls that could not be packed, or whose recorder is closed
        self.repeated = 0  # reports of a call that was already reported
        self._last: OrderedDict[tuple[Any, Any], None] = OrderedDict()
        self._lock = Lock()

    def take(self, kwargs: dict[str, Any]) -> None:
        """Put the call that LiteLLM reports with these arguments into the queue.

        >>> class Recorder:
        ...     def put(self, source, payload, requests):
        ...         print(source, unpacked(payload), requests)
        >>> from kvtrace.capture.litellm_calls import unpacked
        >>> CallQueue(Recorder()).take({"standard_logging_object": {"id": "a", "response_cost": 0.5}})
        litellm {'id': 'a'} 1
        """
        try:
            call = kwargs.get("standard_logging_object")
            if type(call) is dict and self._is_new(call):
                self.recorder.put("litellm", packed(needed(call, self.keep)), 1)
        except Exception:  # a log must not fail a request, and its error may hold the prompt
            self.failed += 1

    def _is_new(self, call):
        key = (call.get("id"), call.get("startTime"))
        with self._lock:
            if key in self._last:
                self.repeated += 1
                return False
            self._last[key] = None
            if len(self._last) > LAST_CALLS:
                self._last.popitem(last=False)
        return True


def callback_class() -> type:
    """The class LiteLLMCallback; UsageError without litellm. kvtrace itself does not import litellm."""
    try:
        from litellm.integrations.custom_logger import CustomLogger
    except ImportError:
        raise UsageError("LiteLLMCallback needs LiteLLM: pip install litellm.") from None
    try:
        import msgspec  # noqa: F401 (a missing library shows before the first call)
    except ImportError:
        raise UsageError("LiteLLMCallback needs msgspec: pip install 'kvtrace[live]'.") from None

    class LiteLLMCallback(CustomLogger):
        """Records the calls of LiteLLM: `litellm.callbacks = [LiteLLMCallback("trace")]`.

        Args:
            recorder: A Recorder, or the folder of a new one, which is closed when the program ends.
            keep: Names of more fields of a call, or of its metadata, to keep.
            options: Options of the new Recorder.

        Failed calls are not recorded.
        """

        def __init__(self, recorder: Any, *, keep: Iterable[str] = (), **options: Any):
            super().__init__()
            if isinstance(recorder, (str, os.PathLike)):
                from .recorder import Recorder

                keep = {*keep, *str(options.get("tenant_field") or "").split(".")}
                recorder = Recorder(os.fspath(recorder), **options)
                atexit.register(recorder.close)
            elif options:
                raise TypeError("Options are those of a new recorder. Give the folder instead of a recorder.")
            self.recorder = recorder
            self.queue = CallQueue(recorder, keep)

        def log_success_event(self, kwargs, response_obj, start_time, end_time):
            """LiteLLM's report of a call without an event loop."""
            self.queue.take(kwargs)

        async def async_log_success_event(self, kwargs, response_obj, start_time, end_time):
            """LiteLLM's report of a call in an event loop."""
            self.queue.take(kwargs)

        def close(self) -> None:
            """Close the recorder, which seals what it has."""
            self.recorder.close()

    LiteLLMCallback.__module__, LiteLLMCallback.__qualname__ = __name__, "LiteLLMCallback"
    return LiteLLMCallback


def __getattr__(name: str) -> Any:
    if name != "LiteLLMCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = callback_class()
    return globals()[name]
