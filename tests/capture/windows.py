"""What tests of the recorder share."""

import time


def sealed(folder):
    """The sealed windows of a folder, in order."""
    return sorted(path for path in folder.iterdir() if path.suffix == ".jsonl")


def waited(is_done, seconds=60):
    """Wait until something is so."""
    until = time.monotonic() + seconds
    while not is_done():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.01)
