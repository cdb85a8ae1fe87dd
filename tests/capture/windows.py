"""What tests of the recorder share."""

import time

from kvtrace.capture.encoders import LiveEncoding
from kvtrace.capture.windows import WindowSettings
from kvtrace.ingest.encoding_options import EncodingOptions
from kvtrace.ingest.keys import Key
from kvtrace.privacy.release_options import ReleaseOptions


def header(name, **options):
    """The header of a window's file."""
    encoding = LiveEncoding.of(EncodingOptions(**options), ReleaseOptions())
    settings = WindowSettings(encoding, base=None, keeps_key=False, linked=False, suffix=".jsonl", session_share=1.0)
    return settings.header(name, 0.0, Key.random())


def sealed(folder):
    """The sealed windows of a folder, in order."""
    return sorted(path for path in folder.iterdir() if path.suffix == ".jsonl")


def waited(is_done, seconds=60):
    """Wait until something is so."""
    until = time.monotonic() + seconds
    while not is_done():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.01)
