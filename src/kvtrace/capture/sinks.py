"""Where the digester puts its batches: one file and one row each."""

from __future__ import annotations

from typing import Any

from .gauge_sink import GaugeSink
from .sink import Sink
from .window_sink import WindowSink

SINKS = {"window": WindowSink, "gauge": GaugeSink}


def sink_of(settings: dict[str, Any]) -> Sink:
    """The sink that the service named, with its settings."""
    values = dict(settings)
    return SINKS[values.pop("kind")](**values)
