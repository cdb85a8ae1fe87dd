"""kvtrace: LLM inference logs as prefix-cache traces that can be shared, and tools that make them useful."""

import sys as _sys
from importlib import import_module as _import_module
from types import ModuleType as _ModuleType

__version__ = "0.1.0.dev0"

_HOMES = {  # public name -> the module it lives in, imported when the name is first used
    "Audit": "privacy.audit",
    "Columns": "trace",
    "Forest": "forest",
    "Hits": "hits",
    "InputError": "errors",
    "KvtraceError": "errors",
    "Trace": "trace",
    "TraceBuilder": "trace",
    "UsageError": "errors",
    "analyze": "analyze",
    "anonymize": "anonymize",
    "anonymize_parts": "anonymize_parts",
    "audit": "privacy.audit",
    "basics": "analyze",
    "by_block_size": "analyze",
    "check": "check",
    "compare": "compare",
    "concat": "trace",
    "convert": "convert",
    "count_hits": "hits",
    "first_seen": "trace",
    "fold": "fold",
    "forest": "forest",
    "hashes_to_texts": "replay",
    "hit_curve": "reuse",
    "infer_sessions": "sessions",
    "open_parts": "formats.parts",
    "plan": "planning",
    "read": "formats",
    "release_parts": "release_parts",
    "sample_rows": "convert",
    "sample_sessions": "convert",
    "serve": "cache.serving",
    "simulate": "cache.simulate",
    "simulate_instances": "cache.instances",
    "simulate_tiers": "cache.tiers",
    "speed_up": "convert",
    "sweep": "sweeps",
    "texts_to_hashes": "replay",
    "toy": "trace",
    "unlimited_hits": "hits",
    "write": "formats",
}

__all__ = sorted(_HOMES)


class _Package(_ModuleType):
    """Where a verb and its module share a name, `kvtrace.<name>` is the verb."""

    def __setattr__(self, name, value):
        if not (name in _HOMES and isinstance(value, _ModuleType)):  # the import system binds submodules here
            super().__setattr__(name, value)

    def __getattr__(self, name):
        if name not in _HOMES:
            raise AttributeError(f"module 'kvtrace' has no attribute {name!r}")
        value = getattr(_import_module(f".{_HOMES[name]}", __name__), name)
        setattr(self, name, value)
        return value

    def __dir__(self):
        return sorted({*super().__dir__(), *__all__})


_sys.modules[__name__].__class__ = _Package
