"""Mooncake Store: a real mooncake_master on loopback, put and get over TCP; run in its environment as CASES.

A case has objects (the capacity: 256 objects of 64 KiB, or a multiple of that), lease_ms, soft_ms (of a soft pin), high
and ratio (eviction_high_watermark_ratio and eviction_ratio), and operations: ["put" | "soft" | "hard" | "get" |
"exists", name], or ["wait", ms]; soft and hard are puts with a pin. It prints, a case a line, what happened in order of
time: [ms, operation, name, answer] (of a put 0 or an error code, of others whether it is there), of each pass of
eviction, from the master's log, [ms, "evict", used share, objects without a hard pin, evicted ones], and at the end of
a wait [ms, "wait", names that have gone].

The environment `mooncake` has the package mooncake-transfer-engine-non-cuda; libibverbs, libnuma and libcudart must be
on the loader's path: MOONCAKE_LIBRARIES names their folders.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from datetime import datetime
from pathlib import Path

OBJECT = 64 << 10
PASS = re.compile(
    r"I\d{4} (\d\d:\d\d:\d\d\.\d+) .*\[EVICT-TRIGGER\] memory_ratio=(\S+)|evicted_count=(\d+), eviction_base=(\d+)"
)


def free_ports(count):
    import socket

    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


class Server:
    """A master with its metadata server, and a client that gives it memory."""

    def __init__(self, case, folder):
        from mooncake.store import MooncakeDistributedStore

        rpc, self.metrics, metadata, client = free_ports(4)
        self.log = Path(folder) / "master.log"
        flags = {
            "rpc_port": rpc, "rpc_address": "127.0.0.1", "metrics_port": self.metrics, "metrics_host": "127.0.0.1",
            "enable_http_metadata_server": "true", "http_metadata_server_port": metadata,
            "http_metadata_server_host": "127.0.0.1", "default_kv_lease_ttl": case["lease_ms"],
            "default_kv_soft_pin_ttl": case["soft_ms"], "eviction_high_watermark_ratio": case["high"],
            "eviction_ratio": case["ratio"], "rpc_thread_num": 2,
        }  # fmt: skip
        command = [
            Path(sys.executable).parent / "mooncake_master",
            *(f"-{name}={value}" for name, value in flags.items()),
        ]
        with self.log.open("w") as stream:
            self.master = subprocess.Popen(command, stdout=stream, stderr=stream, cwd=folder)
        time.sleep(1.5)
        self.store = MooncakeDistributedStore()
        size = case["objects"] * OBJECT
        answer = self.store.setup(
            f"127.0.0.1:{client}", f"http://127.0.0.1:{metadata}/metadata", size, 16 << 20, "tcp", "",
            f"127.0.0.1:{rpc}",
        )  # fmt: skip
        if answer:
            raise RuntimeError(f"setup: {answer}")

    def names(self):
        """The objects that are there, at a moment without a pass of eviction. This lists them without a lease."""
        before, there = -1, []
        while before != (now := self.log.read_text().count("EVICT")):
            before = now
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/get_all_keys", timeout=5) as answer:
                there = answer.read().decode().split()
            time.sleep(0.003)
        return there

    def passes(self, zero):
        """The passes of eviction so far."""
        found, begin = [], None
        for match in PASS.finditer(self.log.read_text()):
            if match[1]:
                clock = datetime.strptime(match[1], "%H:%M:%S.%f").replace(year=2000)
                start = datetime.fromtimestamp(zero).replace(year=2000, month=1, day=1)
                begin = ((clock - start.replace(tzinfo=None)).total_seconds() % 86400) * 1000, float(match[2])
            elif begin:
                found.append([begin[0], "evict", begin[1], int(match[4]), int(match[3])])
        return found

    def close(self):
        self.store.close()
        self.master.send_signal(signal.SIGTERM)
        self.master.wait()


def serve(case):
    from mooncake.store import ReplicateConfig, SoftPinAction

    soft, hard = ReplicateConfig(), ReplicateConfig()
    soft.soft_pin_action, hard.with_hard_pin = SoftPinAction.ENABLE, True
    value, done = b"x" * OBJECT, []
    with tempfile.TemporaryDirectory() as folder:
        server = Server(case, folder)
        store, zero, known = server.store, time.time(), set()
        for kind, name in case["operations"]:
            if kind == "wait":
                time.sleep(name / 1000)
                there = set(server.names())
                answer, known = [sorted(known - there)], known & there
            elif kind in ("put", "soft", "hard"):
                answer = [name, store.put(name, value, *{"soft": [soft], "hard": [hard]}.get(kind, []))]
            elif kind == "get":
                answer = [name, bool(store.get(name))]
            else:
                answer = [name, store.is_exist(name) == 1]
            if kind in ("put", "soft", "hard") and answer[1] == 0:
                known.add(name)
            done.append([round((time.time() - zero) * 1000, 3), kind, *answer])
        done += server.passes(zero)
        server.close()
    return {"version": "0.3.13", "done": sorted(done, key=lambda one: one[0])}


if __name__ == "__main__":
    libraries = os.environ.get("MOONCAKE_LIBRARIES", "")
    if libraries and libraries not in os.environ.get("LD_LIBRARY_PATH", ""):  # the loader reads it at the start
        os.environ["LD_LIBRARY_PATH"] = libraries
        os.execv(sys.executable, [sys.executable, *sys.argv])
    with open(sys.argv[1]) as cases:
        for line in cases:
            print(json.dumps(serve(json.loads(line))), flush=True)
