"""SGLang's model gateway before small workers on loopback; run in sglang-router's environment as CASES.

A case, a JSON object a line, says workers, ranks of each (0: the gateway knows of none), options of the gateway, and
events: ["send", request, text], ["end", request] or ["evict"], which waits until the gateway has evicted. Prints, a
case a line, the worker of each request, in the gateway's order: what matches nothing goes to its first idle worker.
"""

import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

HOST = "127.0.0.1"


class Requests:
    """Requests at the workers: where each is, and when it may end."""

    def __init__(self):
        self.worker, self.may_end, self.changed = {}, {}, threading.Condition()

    def arrive(self, name, worker):
        with self.changed:
            self.worker[name] = worker
            self.changed.notify_all()
        self.may_end[name].wait(60)


def worker_of(requests, ranks):
    """A worker: it answers when the case says so."""

    class Worker(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def answer(self, values):
            text = json.dumps(values).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def do_GET(self):
            self.answer({"dp_size": ranks or 1, "tp_size": 1, "model_path": "m", "is_generation": True})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            requests.arrive(body["rid"], (self.server.server_port, body.get("data_parallel_rank")))
            self.answer({"text": "", "meta_info": {"id": "0", "finish_reason": {"type": "length", "length": 1}}})

    server = ThreadingHTTPServer((HOST, 0), Worker)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def free_port():
    with socket.socket() as one:
        one.bind((HOST, 0))
        return one.getsockname()[1]


def call(port, method, path, body=None):
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    connection.request(method, path, body and json.dumps(body), {"content-type": "application/json"})
    return json.loads(connection.getresponse().read())


class Gateway:
    """A gateway and its requests."""

    def __init__(self, case):
        self.requests, self.threads = Requests(), {}
        self.interval_s = case["options"]["eviction_interval_secs"]
        self.servers = [worker_of(self.requests, case["ranks"]) for _ in range(case["workers"])]
        self.port = free_port()
        options = [f"--{name.replace('_', '-')}={value}" for name, value in case["options"].items()]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sglang_router.launch_router", "--host", HOST, "--port", str(self.port),
             "--prometheus-port", str(free_port()), "--policy", "cache_aware", "--disable-retries",
             "--worker-startup-check-interval", "1", "--health-check-interval-secs", "600",
             *options, *(["--dp-aware"] if case["ranks"] else []),
             "--worker-urls", *(f"http://{HOST}:{server.server_port}" for server in self.servers)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def start(self, workers):
        for _ in range(600):
            try:
                if call(self.port, "GET", "/readiness").get("healthy_workers") == workers:
                    return
            except (OSError, ValueError):
                pass
            time.sleep(0.1)
        raise SystemExit("the gateway did not start")

    def send(self, name, text):
        """Send a request; its worker."""
        self.requests.may_end[name] = threading.Event()
        body = {"text": text, "rid": name, "sampling_params": {"max_new_tokens": 1}}
        self.threads[name] = threading.Thread(target=call, args=(self.port, "POST", "/generate", body), daemon=True)
        self.threads[name].start()
        with self.requests.changed:
            assert self.requests.changed.wait_for(lambda: name in self.requests.worker, 20), name
        return self.requests.worker[name]

    def end(self, name):
        self.requests.may_end[name].set()
        self.threads[name].join(20)
        time.sleep(0.005)  # the gateway counts an end after it has passed the answer on

    def evict(self):
        """Wait for an eviction; another one can also come between two requests, which nobody sees."""
        time.sleep(1.2 * self.interval_s)

    def close(self):
        for event in self.requests.may_end.values():
            event.set()
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
        for server in self.servers:
            server.shutdown()
            server.server_close()


def replay(case):
    gateway = Gateway(case)
    try:
        count = case["workers"] * max(1, case["ranks"])
        gateway.start(count)
        # texts of one character that occur in no case: each goes to the first idle worker
        names = [f"order-{number}" for number in range(count)]
        order = [gateway.send(name, chr(0xE000 + number)) for number, name in enumerate(names)]
        for name in names:
            gateway.end(name)
        for kind, *values in case["events"]:
            if kind == "send":
                gateway.send(*values)
            elif kind == "end":
                gateway.end(*values)
            else:
                gateway.evict()
        where = gateway.requests.worker
        sent = [order.index(where[name[0]]) for kind, *name in case["events"] if kind == "send"]
    finally:
        gateway.close()
    return {"version": version("sglang-router"), "workers": sent}


if __name__ == "__main__":
    with open(sys.argv[1]) as stream:
        for line in stream:
            print(json.dumps(replay(json.loads(line))), flush=True)
