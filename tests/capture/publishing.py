"""A publisher of KV events as those of vLLM and SGLang: a PUB socket, and a ROUTER socket that replays."""

import threading

import zmq


class Publisher:
    """Publishes payloads on ipc sockets of a folder, numbered from 0, until its block ends."""

    def __init__(self, folder, *, topic=b"", old_replay=False, first=0, room=1000):
        self.endpoint, self.replay = f"ipc://{folder}/pub", f"ipc://{folder}/replay"
        self.topic, self.old_replay, self.next = topic, old_replay, first
        self.room = room  # messages that wait for a subscriber
        self.sent = []  # (number, payload)

    def __enter__(self):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.XPUB)  # it tells of subscribers
        self.socket.setsockopt(zmq.SNDHWM, self.room)
        self.socket.bind(self.endpoint)
        self.router = self.context.socket(zmq.ROUTER)
        self.router.bind(self.replay)
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.serve_replays, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()
        self.context.destroy(linger=0)

    def wait_for_subscriber(self):
        assert self.socket.poll(10_000), "nobody subscribed"
        self.socket.recv()

    def send(self, payload, *, lose=False):
        """Publish a payload; a lost one can be replayed only."""
        self.sent.append((self.next, payload))
        if not lose:
            self.send_frames(self.topic, self.next.to_bytes(8, "big"), payload)
        self.next += 1

    def send_frames(self, *frames):
        self.socket.send_multipart(frames)

    def serve_replays(self):
        while not self.stop.is_set():
            if self.router.poll(20):
                client, empty, first = self.router.recv_multipart()
                topic = () if self.old_replay else (self.topic,)
                for number, payload in list(self.sent):
                    if number >= int.from_bytes(first, "big"):
                        self.router.send_multipart((client, empty, *topic, number.to_bytes(8, "big"), payload))
                end = (-1).to_bytes(8, "big", signed=True)
                self.router.send_multipart((client, empty, *(b"" for _ in topic), end, b""))
