"""A followed log: what is read after a truncation, and what an operator sees of a file that is missing."""

import threading

from kvtrace.capture.live import Live, LiveOptions
from kvtrace.capture.sources import follow
from tests.capture.asgi import Queue
from tests.capture.windows import waited


class Lines(Queue):
    """A queue with room, and the lines that are in it."""

    def has_room(self, size):
        return True

    def lines(self):
        return [line for _, payload, _ in self.items for line in payload.splitlines()]


def test_a_truncation_inside_a_line_that_is_too_long_loses_no_line_after_it(tmp_path, monkeypatch):
    monkeypatch.setattr(follow, "MAX_LINE", 10)
    path, queue, stop = tmp_path / "log", Lines(), threading.Event()
    path.write_bytes(b"a\n" + b"x" * 50)
    follower = follow.Follower(path, queue, queue.has_room, ledger=None, from_start=True)
    thread = threading.Thread(target=follower.run, args=(stop,))
    thread.start()
    try:
        waited(lambda: queue.lines() == [b"a", follow.TOO_LONG])
        path.write_bytes(b"b\nc\n")
        waited(lambda: queue.lines()[2:] == [b"b", b"c"])
    finally:
        stop.set()
        thread.join()


def test_a_file_that_is_missing_is_named_and_read_when_it_comes(tmp_path):
    path, queue, said = tmp_path / "log", Lines(), []
    with Live(LiveOptions(follow=(path,)), queue, on_message=said.append):
        path.write_bytes(b"a\n")
        waited(lambda: queue.lines() == [b"a"])
    assert said == [f"--follow {path}: the file is missing or cannot be read. It is followed once it can be read."]
