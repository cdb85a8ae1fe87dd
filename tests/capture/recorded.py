"""What the proxy puts into the queue, as the digester reads it: log lines, and Records of the log's readers."""

from __future__ import annotations

import dataclasses
import threading
import time

import orjson

from kvtrace.capture.sources import SOURCES
from kvtrace.ingest.logs import open_reader

OF_THE_CLOCK = ("time", "end_time", "first_token")


class Queue:
    """A queue that keeps what is put into it; `full` refuses all."""

    def __init__(self):
        self.payloads, self.full = [], False
        self._added = threading.Condition()

    def put(self, source, payload, requests):
        assert requests == 1 and type(payload) is bytes
        if self.full:
            return False
        with self._added:
            self.payloads.append((source, payload))
            self._added.notify_all()
        return True

    def take(self, count=1, seconds=10):
        """The payloads, once there are so many; the client may have its answer a moment before."""
        with self._added:
            assert self._added.wait_for(lambda: len(self.payloads) >= count, seconds)
        assert len(self.payloads) == count
        payloads, self.payloads = self.payloads, []
        return payloads


def line_of(source, payload):
    """The row that the digester makes of a payload."""
    (line,) = SOURCES[source].rows().of(payload)
    return line


def record_of(source, line):
    """The Record of a row, as the reader of the source gives it."""
    return reader_of(source, line).read(line)


def reader_of(source, line):
    return open_reader(SOURCES[source].log_format, [line], time_unit=SOURCES[source].time_unit)


def without_clock(record):
    """The fields of a Record, without its times."""
    return {k: v for k, v in dataclasses.asdict(record).items() if k not in OF_THE_CLOCK}


def row_as_logged(request, response):
    """The row of a log that a gateway writes of a request and its answer without streaming."""
    return orjson.dumps({"timestamp": time.time_ns(), "request": request, "response": response})


def wait_until(condition, seconds=60.0):
    """Wait until the condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)
