"""What the drivers of KV events share: an engine's own publisher, what a test does to it, and a record of its batches.

A driver runs in the engine's environment as FILE, which has one JSON object: `record`, a file to write, and `engines`,
which run one after the other. An engine is a case as of vllm_cache.py or sglang_cache.py, and `times` (seconds of each
admission), `rank` (data-parallel), `endpoint` and `replay` (addresses to bind), and `lose` (numbers of batches that
never leave its PUB socket). An engine with the endpoint of an earlier one is that one, started again. Each publishes
empty batches until a line comes from the test, then serves, prints one line of JSON, and waits for another line.
"""

import json
import sys
import threading
import time

import msgspec


class Published:
    """Batches that go through an engine's own publisher, and into a record, with the numbers that it gives them."""

    def __init__(self, publisher, new_batch, case, record):
        self.publisher, self.new_batch, self.record, self.rank = publisher, new_batch, record, case["rank"]
        self.next, self.latest = 0, case["times"][0]
        self.publisher._pub = Losing(self.publisher._pub, case.get("lose", ()))

    def publish(self, seconds, events):
        batch = self.new_batch(seconds, events, self.rank)
        self.publisher.publish(batch)
        if events:  # engines publish no empty ones
            self.record.write(msgspec.json.encode({"seq": self.next, "batch": batch}) + b"\n")
        self.next, self.latest = self.next + 1, seconds

    def probe_until_a_line(self):
        """Publish empty batches until the test says that it gets them."""
        answered = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.readline(), answered.set()), daemon=True).start()
        while not answered.wait(0.02):
            self.publish(self.latest, [])

    def end(self):
        """Publish an empty batch, which is not lost, and wait until the publisher's thread has sent all."""
        self.publisher._pub.numbers.discard(self.next)
        self.publish(self.latest, [])
        while not self.publisher._event_queue.empty():
            time.sleep(0.01)


class Losing:
    """A PUB socket that loses some messages, as a network may."""

    def __init__(self, socket, numbers):
        self.socket, self.numbers = socket, set(numbers)

    def send_multipart(self, frames):
        if int.from_bytes(frames[1], "big") not in self.numbers:
            self.socket.send_multipart(frames)

    def close(self, linger=None):
        self.socket.close(linger=linger)


def run(new_publisher, new_batch, serve):
    """Serve the engines of the file that the command line names; `serve(case, published)` gives what to print."""
    with open(sys.argv[1]) as stream:
        work = json.load(stream)
    with open(work["record"], "wb") as record:
        for case in work["engines"]:
            published = Published(new_publisher(case["endpoint"], case["replay"]), new_batch, case, record)
            print("ready", flush=True)
            published.probe_until_a_line()
            answer = serve(case, published)
            published.end()
            record.flush()
            print(json.dumps(answer | {"batches": published.next}), flush=True)
            sys.stdin.readline()
            published.publisher.shutdown()
