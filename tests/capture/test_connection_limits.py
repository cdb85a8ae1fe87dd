"""Hostile clients and upstreams: heads without end, half heads, idle crowds. SECURITY.md states the limits."""

import asyncio
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from kvtrace._base.errors import UsageError
from kvtrace.capture.asgi import TIMEOUT_S
from kvtrace.capture.connections import HttpLimits
from kvtrace.capture.live import Address, HttpListener, Servers
from kvtrace.capture.metrics import metrics_app
from kvtrace.capture.proxy.exchange import Limits
from kvtrace.capture.sources.otlp import otlp_app
from kvtrace.capture.sources.proxy import proxy_app
from tests.capture.servers import scripted
from tests.capture.servers import serving as plainly_serving
from tests.capture.windows import sealed, waited
from tests.capture.wire import (
    answered,
    answered_first,
    asked,
    chat_request,
    connected,
    everything,
    head_of,
    message,
    parsed,
    post,
)

pytestmark = [pytest.mark.enable_socket, pytest.mark.allow_hosts(["127.0.0.1"])]
SECURITY = Path(__file__).parents[2] / "SECURITY.md"
NAMES = ("proxy", "otlp", "metrics")
PATHS = {"proxy": "/v1/models", "otlp": "/v1/traces", "metrics": "/metrics"}
UNIT = {"KiB": 1 << 10, "MiB": 1 << 20, "s": 1, "": 1}


def stated(words):
    """The figure that SECURITY.md states for a limit."""
    (row,) = re.findall(rf"^\| {re.escape(words)}[^|]*\| ([\d,]+) ?(\w*) \|", SECURITY.read_text(), re.M)
    return int(row[0].replace(",", "")) * UNIT[row[1]]


HEAD, HEADERS = stated("request line and headers"), stated("headers of a request")


def test_the_page_of_record_states_the_same_figures():
    page = (SECURITY.parent / "docs/capture/record.md").read_text()
    (size, unit, status, seconds, late) = re.search(
        r"head may have (\d+) (\w+) \((\d+)\) and take (\d+) s \((\d+)\)", page
    ).groups()
    assert (int(size) * UNIT[unit], int(seconds)) == (HEAD, stated("time for the request line"))
    assert (status, late) == ("431", "408")


class Clock:
    """Seconds that a test lets pass."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def kind():
    return ("httptools", "uvloop")


each_kind = pytest.mark.parametrize(
    "kind", [(parser, loop) for parser in ("httptools", "h11") for loop in ("uvloop", "asyncio")], ids="-".join
)


@pytest.fixture
def serving(kind, monkeypatch, upstream):
    """Starts the three servers, as `kvtrace record` does."""
    parser, loop = kind
    if parser == "h11":
        monkeypatch.setitem(sys.modules, "httptools", None)
    if loop == "asyncio":
        monkeypatch.setitem(sys.modules, "uvloop", None)
    faults = []
    with ExitStack() as running:

        def start(to=upstream, more=(), **options):
            apps = {
                "proxy": proxy_app(lambda *_: True, to),
                "otlp": otlp_app(lambda *_: True),
                "metrics": metrics_app(CollectorRegistry()),
                **dict(more),
            }
            here, needs = Address("127.0.0.1", 0), {"proxy": 2}
            listeners = [HttpListener(name, app, here, needs.get(name, 1)) for name, app in apps.items()]
            servers = running.enter_context(Servers(listeners, faults.append, **options))
            servers.urls = {name: f"http://{address}" for name, address in servers.addresses.items()}
            return servers

        yield start
    assert not faults


def sweep(servers):
    """What the servers do every second."""
    loop = next(iter(servers._connections.open)).loop
    asyncio.run_coroutine_threadsafe(servers._sweep(), loop).result(10)


def all_answer(servers):
    """Whether other clients get their answers."""
    statuses = [answered(servers.urls[name], asked("GET", PATHS[name]))[0] for name in NAMES]
    return statuses == [200, 405, 200]


def head_of_size(size, name):
    """A request whose head has so many bytes."""
    head = head_of("GET", PATHS[name], [("X", "")])
    return head[:-4] + b"y" * (size - len(head)) + b"\r\n\r\n"


def with_headers(count, name):
    """A request with so many headers."""
    return head_of("GET", PATHS[name], [("X", "y")] * (count - 1))


@each_kind
def test_a_head_has_the_sizes_that_the_page_states(serving):
    servers = serving()
    for name in NAMES:
        usual = 405 if name == "otlp" else 200
        for request, status in [
            (head_of_size(HEAD, name), usual), (head_of_size(HEAD + 1, name), 431),
            (with_headers(HEADERS, name), usual), (with_headers(HEADERS + 1, name), 431),
        ]:  # fmt: skip
            with connected(servers.urls[name]) as connection:
                connection.sendall(request)
                assert answered_first(connection)[0] == status
                if status == 431:
                    assert everything(connection) == b""
                else:
                    connection.sendall(head_of("GET", PATHS[name]))
                    assert answered_first(connection)[0] == usual
    assert all_answer(servers)


CHUNKED = b"POST /v1/files HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "one header": (b"GET /v1/models HTTP/1.1\r\nHost: a\r\nX: ", b"y"),
    "request line": (b"GET /", b"y"),
    "headers": (b"GET /v1/models HTTP/1.1\r\n", b"a:\r\n"),
    "empty lines": (b"", b"\r\n"),
    "chunk extension": (CHUNKED + b"1;", b"y"),
    "trailers": (CHUNKED + b"1\r\nx\r\n0\r\n", b"a:\r\n"),
    "one trailer": (CHUNKED + b"1\r\nx\r\n0\r\nX: ", b"y"),
}


@each_kind
@pytest.mark.parametrize("name", ENDLESS)
def test_what_has_no_end_is_refused_and_its_client_can_read_why(name, serving):
    servers = serving()
    start, more = ENDLESS[name]
    with connected(servers.urls["proxy"]) as connection:
        connection.sendall(start + more * (2 * HEAD // len(more)))
        connection.sendall(more * (4 << 20))  # it goes on, and reads late
        status = parsed(everything(connection))[0]
    assert status in ((400, 431) if name == "empty lines" else (431,))
    assert all_answer(servers)
    waited(lambda: servers._connections.heads_left == servers.limits.heads)  # the last client may not be gone yet


@each_kind
def test_a_head_has_the_time_that_the_page_states(serving):
    clock, limit = Clock(), stated("time for the request line")
    servers = serving(clock=clock)
    starts = {"silent": b"", "half": b"GET / HTTP/1.1\r\nHost: a\r\n", "slow": b"GET /", "second": b"", "body": b""}
    with ExitStack() as stack:
        open_ = {
            (name, start): stack.enter_context(connected(servers.urls[name])) for name in NAMES for start in starts
        }
        for (name, start), connection in open_.items():
            connection.sendall(starts[start])
            if start == "second":
                connection.sendall(head_of("GET", PATHS[name]) + b"GET / HT")
                answered_first(connection)
            if start == "body":  # of a request that is answered before its body has come
                connection.sendall(head_of("PUT", "/nothing", length=9) if name != "proxy" else b"GET /")
                assert name == "proxy" or answered_first(connection)[0] in (404, 405)
        waited(lambda: len(servers._connections.open) == len(open_), 5)
        sweep(servers)
        clock.now = limit - 1
        for (_, start), connection in open_.items():
            if start == "slow":
                connection.sendall(b"y")
            if start == "body":
                connection.sendall(b"1")
        sweep(servers)
        for connection in open_.values():
            connection.setblocking(False)
            with pytest.raises(BlockingIOError):
                connection.recv(1)
            connection.setblocking(True)
        clock.now = limit + 1
        sweep(servers)
        clock.now = 3 * limit
        sweep(servers)
        for (_, start), connection in open_.items():
            sent = everything(connection)
            assert sent == b"" if start == "silent" else parsed(sent)[0] == 408
    assert all_answer(servers)


@each_kind
def test_an_idle_connection_is_kept_for_the_time_that_the_page_states(serving):
    clock, limit = Clock(), stated("idle connection")
    servers = serving(clock=clock)
    for name in NAMES:
        with connected(servers.urls[name]) as connection:
            for pause in (limit - 1, limit - 1, limit + 1):
                connection.sendall(head_of("GET", PATHS[name]))
                answered_first(connection)
                waited(lambda: servers._connections.waiting, 5)
                clock.now += pause
                sweep(servers)
            assert everything(connection) == b""


@each_kind
def test_a_client_that_takes_nothing_is_closed_after_the_time_that_the_page_states(serving):
    clock, limit = Clock(), stated("pause in which a client takes")
    servers = serving(more={"large": large}, clock=clock)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", servers.addresses["large"].port))
        connection.sendall(head_of("GET", "/"))
        waited(lambda: any(one.transport.get_write_buffer_size() for one in servers._connections.open), 5)
        for now, is_open in ((0, True), (limit - 1, True), (limit + 1, False)):
            clock.now = now
            sweep(servers)
            waited(lambda is_open=is_open: bool(servers._connections.open) == is_open, 5)


async def large(scope, receive, send):
    """An application with an answer that no buffer holds."""
    if scope["type"] == "lifespan":
        for _ in range(2):
            await send({"type": f"{(await receive())['type']}.complete"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x" * (16 << 20)})


class Slow:
    """An application that answers once a test says so."""

    def __init__(self):
        self.asked, self.is_released = 0, threading.Event()

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            await large(scope, receive, send)
            return
        self.asked += 1
        while not self.is_released.is_set():
            await asyncio.sleep(0.005)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def slow():
    app = Slow()
    yield app
    app.is_released.set()


@each_kind
def test_requests_that_wait_on_a_connection_are_bounded_and_answered_in_order(kind, serving, slow):
    servers, limit = serving(more={"slow": slow}), stated("requests that wait on one connection")
    with connected(servers.urls["slow"]) as connection:
        connection.sendall(head_of("GET", "/") * 300)
        waited(lambda: slow.asked, 5)
        assert answered(servers.urls["metrics"], asked("GET", "/healthz"))[0] == 200
        (attacked,) = (one for one in servers._connections.open if one.is_active)
        assert attacked.held < 4 * HEAD and len(getattr(attacked, "pipeline", ())) <= limit
        slow.is_released.set()
        statuses = re.findall(rb"HTTP/1.1 (\d+) ", everything_of(connection, 300))
    if kind[0] == "httptools":
        assert statuses == [b"200"] * (1 + limit) + [b"503"]
    else:  # h11 parses one request at a time; the others wait as bytes
        assert statuses == [b"200"] * 300


def everything_of(connection, count):
    """All bytes up to the end of the connection, or to so many answers."""
    answers = b""
    while answers.count(b"HTTP/1.1 ") < count and (piece := connection.recv(1 << 16)):
        answers += piece
    return answers


@each_kind
def test_a_request_that_cannot_be_read_does_not_break_the_answer_before_it(serving, slow):
    servers = serving(more={"slow": slow})
    with connected(servers.urls["slow"]) as connection:
        connection.sendall(head_of("GET", "/") + b"\x00\r\n\r\n")
        waited(lambda: slow.asked, 5)
        slow.is_released.set()
        assert re.findall(rb"HTTP/1.1 (\d+) ", everything(connection)) == [b"200", b"400"]


@each_kind
@pytest.mark.parametrize("line", ["/a#b HTTP/1.1", "/a?b#c HTTP/1.1", "/a", "/a HTTP/0.9", "/a HTTP/2.0"])
def test_a_fragment_and_another_version_of_http_are_400(line, serving, model):
    servers = serving()
    for name in NAMES:
        answer = answered(servers.urls[name], f"GET {line}\r\nHost: a\r\n\r\n".encode())
        assert (answer[0], dict(answer[1])[b"connection"]) == (400, b"close")
    assert not model.seen


@each_kind
def test_over_the_limit_of_connections_the_one_that_has_waited_longest_is_closed(serving, slow):
    assert HttpLimits().connections == stated("connections to all servers") and HttpLimits().kept == stated(
        "connections that each"
    )
    servers = serving(more={"slow": slow}, limits=HttpLimits(connections=12))
    with ExitStack() as stack:
        crowd = [stack.enter_context(connected(servers.urls["proxy"])) for _ in range(12)]
        waited(lambda: len(servers._connections.open) == 12, 5)
        crowd[0].sendall(head_of("GET", "/v1/models"))  # it has waited least from now on
        answered_first(crowd[0])
        waited(lambda: len(servers._connections.waiting) == 12, 5)
        assert all_answer(servers)
        assert crowd[1].recv(1) == b""
        crowd[0].sendall(head_of("GET", "/v1/models"))
        assert answered_first(crowd[0])[0] == 200


@each_kind
def test_connections_with_requests_are_not_closed_and_each_server_keeps_some(serving, slow):
    servers = serving(more={"slow": slow}, limits=HttpLimits(connections=12))
    kept = stated("connections that each")
    with ExitStack() as stack:
        busy = [stack.enter_context(connected(servers.urls["slow"])) for _ in range(12)]
        for number, connection in enumerate(busy):
            connection.sendall(head_of("GET", "/"))
            waited(lambda number=number: slow.asked == number + 1, 5)
        with connected(servers.urls["slow"]) as late:
            assert parsed(everything(late))[0] == 503
        for _ in range(2 * kept):
            assert all_answer(servers)
        slow.is_released.set()
        assert [answered_first(connection)[0] for connection in busy] == [200] * 12


@each_kind
def test_half_heads_of_a_crowd_are_bounded_together_and_do_not_keep_others_out(serving):
    assert HttpLimits().heads == stated("request lines and headers of all")
    servers = serving(limits=HttpLimits(heads=1 << 20))
    with ExitStack() as stack:
        crowd = [stack.enter_context(connected(servers.urls["proxy"])) for _ in range(24)]
        for connection in crowd:
            connection.sendall(b"GET / HTTP/1.1\r\nX: " + b"y" * (HEAD - 1000))
            waited(lambda: servers._connections.heads_left >= 0, 5)
        waited(lambda: len(servers._connections.open) <= 17, 5)
        assert all_answer(servers)


@each_kind
def test_descriptors_are_left_free(serving, monkeypatch):
    reserve, free = stated("file descriptors"), 20
    import resource

    used = len(list(Path("/dev/fd").iterdir())) - 1
    monkeypatch.setattr(resource, "getrlimit", lambda _: (used + reserve + free, 1 << 20))
    servers = serving()
    with ExitStack() as stack:
        for name, descriptors in (("proxy", 2), ("otlp", 1)):
            for _ in range(60):
                last = stack.enter_context(connected(servers.urls[name]))
            client = last.getsockname()[1]
            waited(lambda client=client: client in ports(servers))  # else later ones push requests out
            assert all_answer(servers)
            waited(lambda most=free // descriptors + 2: len(servers._connections.open) <= most, 5)


def ports(servers):
    """The clients' ports of all open connections."""
    return {one.transport.get_extra_info("peername")[1] for one in list(servers._connections.open)}


def test_a_limit_of_open_files_that_is_too_low_is_said_at_the_start(serving, monkeypatch):
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    with pytest.raises(UsageError, match=r"the limit of open files is 64, .* Run `ulimit -n \d+`\."):
        serving()


@each_kind
@pytest.mark.parametrize(("status", "passes"), [(103, True), (102, True), (100, False)])
def test_an_early_response_of_the_upstream_passes(status, passes, serving):
    early = b"HTTP/1.1 %d Early\r\nLink: </a>; rel=preload\r\nConnection: x-hop\r\nX-Hop: 1\r\n\r\n" % status
    with scripted(early + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") as port:
        servers = serving(to=f"http://127.0.0.1:{port}")
        with connected(servers.urls["proxy"]) as connection:
            connection.sendall(asked("GET", "/v1/models"))
            heads = everything(connection).split(b"\r\n\r\n")
        assert heads[-1] == b"ok" and heads[-2].startswith(b"HTTP/1.1 200 ")
        assert [head.split(b" ")[1] for head in heads[:-2]] == ([b"%d" % status] if passes else [])
        assert not passes or heads[0].split(b"\r\n")[1:] == [b"Link: </a>; rel=preload"]
        with connected(servers.urls["proxy"]) as connection:  # HTTP/1.0 has no such responses
            connection.sendall(b"GET /v1/models HTTP/1.0\r\nHost: a\r\n\r\n")
            assert parsed(everything(connection))[0] == 200


@pytest.mark.parametrize("again", [
    b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000, b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000,
    b"HTTP/1.1 200 " + b"y" * 100_000,
], ids=["early hints", "continue", "headers", "header", "status line"])  # fmt: skip
def test_a_head_of_the_upstream_without_end_is_502(again, serving):
    with scripted(again * 1000) as port:
        servers = serving(to=f"http://127.0.0.1:{port}")
        answer = answered_last(servers.urls["proxy"])
        assert answer.count(b"HTTP/1.1 103 ") <= 16 and b"HTTP/1.1 502 " in answer


def answered_last(url):
    with connected(url) as connection:
        connection.sendall(asked("GET", "/v1/models"))
        return everything(connection)


async def echo(scope, receive, send):
    """An application that answers with what it got."""
    if scope["type"] == "lifespan":
        await large(scope, receive, send)
        return
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message["more_body"]
    fields = repr([scope["method"], scope["path"], scope["query_string"], scope["headers"]]).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": fields + body})


@each_kind
def test_valid_requests_have_the_same_answers_as_without_limits(kind, serving):
    """Requests one after the other, with bodies of both framings, in pieces that end anywhere."""
    draw, (parser, loop) = random.Random(5), kind
    limited = serving(more={"echo": echo}).urls["echo"]
    with plainly_serving(echo, http=parser, loop=loop, h11_max_incomplete_event_size=1 << 20) as plain:
        for _ in range(12):
            requests = [valid_request(draw) for _ in range(draw.randint(1, 5))]
            stream = b"".join([*requests, asked("GET", "/end")])
            cuts = sorted(draw.choices(range(len(stream)), k=draw.randint(0, 8)))
            pieces = [stream[start:end] for start, end in pairwise([0, *cuts, len(stream)])]
            answers = []
            for url in (limited, plain):
                with connected(url) as connection:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    for piece in pieces:
                        connection.sendall(piece)
                    answers.append(everything(connection))
            assert answers[0] == answers[1] and answers[0].count(b"HTTP/1.1 200 ") == len(requests) + 1


def valid_request(draw):
    body = draw.randbytes(draw.choice([0, 1, 100, 70_000, 300_000]))
    headers = [("X", "y" * draw.choice([0, 1, 30_000]))] * draw.randint(0, 2)
    if draw.random() < 0.5:
        return head_of("POST", f"/{draw.random()}?a=%20", headers, length=len(body)) + body
    size = draw.choice([7, 1000, 100_000]) if len(body) < 1000 else 50_000
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    coded = b"".join(b"%x;name=value\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return head_of("PUT", "/", [*headers, ("Transfer-Encoding", "chunked")]) + coded + b"0\r\n\r\n"


@each_kind
def test_a_body_has_the_size_that_the_page_states(serving):
    servers, limit = serving(), stated("body of an export, or of a request")
    assert TIMEOUT_S == Limits().client_s == stated("time for the body of an export; pause")
    for name, path in (("otlp", "/v1/traces"), ("proxy", "/v1/chat/completions")):
        headers = [("Content-Type", "application/json"), ("Expect", "100-continue")]
        with connected(servers.urls[name]) as connection:
            connection.sendall(head_of("POST", path, headers, length=limit))
            assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        with connected(servers.urls[name]) as connection:
            connection.sendall(head_of("POST", path, headers, length=limit + 1))
            assert answered_first(connection)[0] == 413


def in_json(names, item, count):
    """An export in JSON with an item so many times."""
    batches, scopes, items = names
    return b'{"%b":[{"%b":[{"%b":[%b]}]}]}' % (batches, scopes, items, b",".join([item] * count))


SPANS, RECORDS = (b"resourceSpans", b"scopeSpans", b"spans"), (b"resourceLogs", b"scopeLogs", b"logRecords")
MANY = {  # path and content type -> the body of so many items
    ("/v1/traces", "application/x-protobuf"): lambda count: message(1, message(2, b"\x12\x00" * count)),
    ("/v1/logs", "application/x-protobuf"): lambda count: message(1, message(2, b"\x12\x00" * count)),
    ("/v1/traces", "application/json"): lambda count: in_json(SPANS, b"{}", count),
    ("/v1/logs", "application/json"): lambda count: in_json(RECORDS, b"{}", count),
    ("/litellm", "application/json"): lambda count: b"[%b]" % b",".join([b"{}"] * count),
    ("/litellm", "application/x-ndjson"): lambda count: b"{}\n" * count,
}
LARGE = {  # the same -> the body of one item with so many values
    ("/v1/traces", "application/x-protobuf"): lambda count: message(
        1, message(2, message(2, b"\x4a\x00" * (count - 1) + b"\x08\x00"))
    ),
    ("/v1/traces", "application/json"): lambda count: in_json(SPANS, b'{"":[%b0]}' % (b"[]," * (count - 3)), 1),
    ("/litellm", "application/json"): lambda count: b'[{"":[%b0]}]' % (b"{}," * (count - 3)),
}


@pytest.mark.parametrize(
    ("words", "bodies"),
    [("spans or log records of an export", MANY), ("objects, lists and strings", LARGE)],
    ids=["many", "large"],
)
def test_an_export_holds_as_much_as_the_page_states(words, bodies, serving):
    url, limit = serving().urls["otlp"], stated(words)
    for (path, content_type), body in bodies.items():
        for count, status in ((limit, 200), (limit + 1, 413)):
            request = post(body(count), path, [("Content-Type", content_type)])
            assert (path, content_type, answered(url, request, 60)[0]) == (path, content_type, status)


CROWDS = {"idle": b"", "half": b"GET /v1/models HTTP/1.1\r\n", "kept": head_of("GET", "/v1/models")}


@pytest.fixture
def recorder(upstream, tmp_path):
    """`kvtrace record` with `ulimit -n 120`."""
    command = f"ulimit -n 120; exec {sys.executable} -m kvtrace record -o {tmp_path}/recorded"
    command += f" --proxy 0 --upstream {upstream} --otlp 0 --metrics 0"
    output = tmp_path / "output"
    with output.open("w") as file, subprocess.Popen(["sh", "-c", command], stdout=file, stderr=file) as process:
        try:
            waited(lambda: "recording" in output.read_text() or process.poll() is not None)
            process.urls = dict(re.findall(r"^(\w+) +(http://\S+)$", output.read_text(), re.M))
            yield process
        finally:
            process.kill()


def test_crowds_do_not_starve_a_recorder_of_descriptors(recorder, tmp_path):
    urls = recorder.urls
    with ExitStack() as stack:
        for start in CROWDS.values():
            crowd = []
            for _ in range(200):
                crowd.append(connection := stack.enter_context(connected(urls["proxy"])))
                with suppress(ConnectionError):  # it may be closed already
                    connection.sendall(start)
            for connection in crowd if start == CROWDS["kept"] else ():
                with suppress(ConnectionError):  # until it is answered: while all are served, others are turned away
                    connection.recv(1)
            assert answered(urls["proxy"], post(chat_request()))[0] == 200
            assert answered(urls["metrics"], asked("GET", "/healthz"))[0] == 200
            assert answered(urls["otlp"], asked("GET", "/v1/traces"))[0] == 405
        recorder.send_signal(signal.SIGTERM)
        assert recorder.wait(60) == 0
    assert len(sealed(tmp_path / "recorded")) == 1
