"""A recorder in a process of its own, which tests kill: it prints how many requests it accepted, now and then."""

import sys
import time

from kvtrace.capture.recorder import Recorder
from kvtrace.ingest.keys import load_key
from tests.docs import ROOT

OPTIONS = {"block_size": 4, "profile": "exact", "tokenizer": str(ROOT / "tests/data/tokenizers/tiny")}
CANARY = "xyzzy-canary"


def row(number):
    """A request as a log line; its text has a canary."""
    words = " ".join(f"word{number % 7}-{i}" for i in range(40))
    return (
        f'{{"timestamp": {1_900_000_000 + number}, "input": "{CANARY} {words} {number}", "output": 3, '
        f'"session_id": "s{number % 9}"}}'
    )


def main(folder, count, rate, window_s, key_file="", first=0):
    """Record `count` requests at `rate` requests a second, numbered from `first`."""
    key = load_key(key_file) if key_file else None
    recorder = Recorder(folder, key=key, window_s=float(window_s), on_message=say, **OPTIONS)
    print("ready", flush=True)
    start = time.monotonic()
    for number in range(int(count)):
        time.sleep(max(0.0, start + number / float(rate) - time.monotonic()))
        recorder.put("follow", row(int(first) + number).encode())
    recorder.close()
    print("done", flush=True)


def say(sentence):
    """Print what a recorder says."""
    print(sentence, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
