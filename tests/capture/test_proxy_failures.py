"""Bad input and bad servers: the right status, nothing leaks, the proxy stays up and counts what became of requests."""

import logging
import socket
import threading
import time

import pytest

from kvtrace._base.errors import NotARequest, UsageError
from kvtrace.capture.proxy.exchange import Exchange
from kvtrace.capture.sources.proxy import proxy_app
from tests.attacks.canary import CANARY, WORDS, require_none
from tests.capture.recorded import line_of, record_of, wait_until
from tests.capture.servers import closed_port, scripted
from tests.capture.stub_model import TEXT
from tests.capture.wire import (
    answered,
    answered_first,
    asked,
    chat_request,
    connected,
    everything,
    head_of,
    parsed,
    post,
)

pytestmark = [pytest.mark.enable_socket, pytest.mark.allow_hosts(["127.0.0.1"])]
KEY = [("Authorization", f"Bearer {CANARY}"), ("X-Api-Key", CANARY)]


@pytest.fixture(autouse=True)
def nothing_leaks(capfd, caplog, recwarn):
    """Nothing of a request is in a log, a warning or on a stream, whatever the test does."""
    caplog.set_level(logging.DEBUG)
    yield
    out, err = capfd.readouterr()
    told = f"{out}{err}{caplog.text}{[str(warning.message) for warning in recwarn]}"
    require_none(told, where="what the proxy says", forms=[*WORDS, "chat/completions"])
    assert "Traceback" not in told


def is_up(app):
    return answered(app.url, post(chat_request(stream=False)))[0] == 200


def test_a_server_that_is_not_there_is_502(proxied, queue):
    app = proxied(to=f"http://127.0.0.1:{closed_port()}")
    for body in (chat_request(), chat_request() + b" " * 3_000_000):
        with connected(app.url) as connection:
            connection.sendall(head_of("POST", "/v1/messages", KEY, length=len(body)) + body)
            status, headers, answer = answered_first(connection)
        assert status == 502 and (b"content-type", b"application/json") in headers and b"proxy_error" in answer
    assert answered(app.url, asked("GET", "/v1/models"))[0] == 502
    assert (app.counts.requests, app.counts.failed, app.counts.recorded) == (3, 3, 0) and not queue.payloads


def test_a_name_that_has_no_address_is_502(proxied):
    assert answered(proxied(to="http://nowhere.invalid").url, post(chat_request()))[0] == 502


def test_every_request_is_counted_once_by_what_became_of_it(proxied, queue):
    app = proxied()
    requests = [post(chat_request(stream=False)), *[post(chat_request(status=500))] * 3, asked("GET", "/v1/models")]
    assert [answered(app.url, request)[0] for request in requests][:4] == [200, 500, 500, 500]
    counts = app.counts
    assert (counts.requests, counts.recorded, counts.errors, counts.other, counts.failed) == (5, 1, 3, 1, 0)
    assert len(queue.payloads) == 1


def test_an_error_is_counted_as_one_if_its_client_does_not_read_to_its_end(proxied, queue):
    with scripted(b"HTTP/1.1 500 Oops\r\nContent-Length: 100\r\n\r\n{", waits=True) as port:
        app = proxied(to=f"http://127.0.0.1:{port}")
        for number, request in enumerate((post(chat_request()), asked("GET", "/v1/models")), 1):
            with connected(app.url) as connection:
                connection.sendall(request)
                assert b" 500 " in connection.recv(1000)
            wait_until(lambda number=number: app.counts.errors + app.counts.other + app.counts.left == number)
    assert (app.counts.errors, app.counts.other, app.counts.left) == (1, 1, 0) and not queue.payloads


def test_a_server_that_does_not_answer_in_time_is_504(proxied, model):
    app = proxied(upstream_s=0.2)
    assert answered(app.url, post(chat_request(wait_s=3), headers=KEY))[0] == 504
    assert app.counts.failed == 1 and is_up(app)


@pytest.mark.parametrize(
    "answer",
    [CANARY.encode(), b"HTTP/1.1 200 OK\r\nContent-Length: x" + CANARY.encode() + b"\r\n\r\n", b"",
     b"HTTP/1.1 20" + CANARY.encode(), b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n"],
    ids=["words", "length", "nothing", "status", "long header"],
)  # fmt: skip
def test_an_answer_that_is_not_http_is_502(answer, proxied):
    with scripted(answer) as port:
        app = proxied(to=f"http://127.0.0.1:{port}")
        assert answered(app.url, post(chat_request(), headers=KEY))[0] == 502
    assert app.counts.failed == 1


def test_a_body_over_the_limit_is_413(proxied, model, queue):
    app = proxied(max_body=1000)
    large = chat_request() + b" " * 2000
    assert answered(app.url, post(large, headers=KEY))[0] == 413
    with connected(app.url) as connection:  # its length comes as a surprise
        connection.sendall(head_of("POST", "/v1/messages", [("Transfer-Encoding", "chunked"), ("Connection", "close")]))
        connection.sendall(b"%x\r\n%b\r\n" % (len(large), large) + b"0\r\n\r\n")
        assert parsed(everything(connection))[0] == 413
    with connected(app.url) as connection:  # and in pieces, when the server has some already
        connection.sendall(head_of("POST", "/v1/messages", [("Transfer-Encoding", "chunked")]))
        for _ in range(4):
            connection.sendall(b"190\r\n" + b"x" * 400 + b"\r\n")
            time.sleep(0.02)
        connection.sendall(b"0\r\n\r\n")
        assert answered_first(connection)[0] == 413
    assert answered(app.url, asked("POST", "/v1/files", large))[0] == 200  # generates no text
    assert app.counts.refused == 3 and not queue.payloads and is_up(app)


def test_a_client_that_sends_slowly_is_408(proxied, model):
    app = proxied(client_s=0.2)
    for sent in (b"", b"{", b"{" * 70_000):
        with connected(app.url) as connection:
            connection.sendall(head_of("POST", "/v1/chat/completions", KEY, length=80_000) + sent)
            assert parsed(everything(connection))[0] == 408
    assert app.counts.refused == 3 and is_up(app)


def test_a_client_that_leaves_early_is_forgotten(proxied, queue):
    app = proxied()
    for sent in (b"", b"{", b"{" * 70_000):
        with connected(app.url) as connection:
            connection.sendall(head_of("POST", "/v1/chat/completions", KEY, length=80_000) + sent)
            wait_until(lambda: app.counts.requests > app.counts.left)
        wait_until(lambda: app.counts.requests == app.counts.left)
    assert app.counts.left == 3 and app.setup.memory.held == 0 and is_up(app)


@pytest.mark.parametrize("script", [{"wait_s": 2}, {"step_s": 0.02}], ids=["before the answer", "in the answer"])
def test_a_client_that_leaves_cancels_the_upstream(script, proxied, model, queue):
    app = proxied()
    with connected(app.url) as connection:
        connection.sendall(post(chat_request(**script), headers=KEY))
        if "step_s" in script:
            seen = b""
            while b"It is" not in seen:
                seen += connection.recv(1000)
        else:
            wait_until(lambda: model.seen)
    wait_until(lambda: app.counts.left == 1)
    if "step_s" in script:
        wait_until(lambda: model.seen[0].left)
        ((source, payload),) = queue.take()
        record = record_of(source, line_of(source, payload))
        assert not Exchange.unpacked(payload).complete
        assert 0 < len(record.output_text) < len(TEXT) and TEXT.startswith(record.output_text)
    else:
        assert not queue.payloads  # nobody knows whether it ran
    assert app.setup.memory.held == 0 and is_up(app)


def test_a_client_that_takes_nothing_is_left(proxied, queue):
    app = proxied(client_s=0.3, max_answer=1000)
    with connected(app.url) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(post(chat_request(stream=False, size=30_000_000)))
        wait_until(lambda: app.counts.left == 1)
    assert is_up(app)


def test_a_client_that_takes_its_time_gets_all(proxied):
    app = proxied(client_s=0.3)
    with connected(app.url) as connection:
        connection.sendall(post(chat_request(step_s=0.05)))
        pieces = []
        while piece := connection.recv(300):
            pieces.append(piece)
            time.sleep(0.01)
    assert parsed(b"".join(pieces))[2].endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_the_server_breaks_off_is_broken_off(stream, upstream, proxied, queue):
    app, request = proxied(), post(chat_request(stream=stream, break_after=4))
    assert answered(app.url, request)[2] is None and answered(upstream, request)[2] is None
    ((source, payload),) = queue.take()
    if stream:
        assert record_of(source, line_of(source, payload)).output_text == TEXT[:21]
    else:
        with pytest.raises(NotARequest, match="ended early"):
            line_of(source, payload)
    assert (app.counts.failed, app.counts.recorded, app.setup.memory.held) == (1, 1, 0) and is_up(app)


def test_a_server_that_falls_silent_in_its_answer_is_left(proxied, queue):
    app = proxied(upstream_s=0.2)
    assert answered(app.url, post(chat_request(step_s=1)))[2] is None
    assert app.counts.failed == 1
    with pytest.raises(NotARequest, match="before its first token"):
        line_of(*queue.take()[0])


def test_a_full_queue_drops_and_counts_and_the_client_has_its_answer(proxied, queue):
    app = proxied()
    queue.full = True
    for _ in range(3):
        assert answered(app.url, post(chat_request()))[2].endswith(b"data: [DONE]\n\n")
    assert (app.counts.dropped, app.counts.recorded, app.setup.memory.held) == (3, 0, 0)


def test_copies_stay_under_their_bound(proxied, queue):
    app = proxied(max_held=500)
    assert answered(app.url, post(chat_request()))[2].endswith(b"data: [DONE]\n\n")
    assert answered(app.url, post(chat_request() + b" " * 1000))[2].endswith(b"data: [DONE]\n\n")
    wait_until(lambda: app.counts.dropped == 2)
    assert app.setup.memory.held == 0 and not queue.payloads


def test_a_long_answer_is_kept_in_part_and_goes_through_whole(proxied, queue):
    app = proxied(max_answer=1000)
    assert answered(app.url, post(chat_request()))[2].endswith(b"data: [DONE]\n\n")
    ((source, payload),) = queue.take()
    exchange = Exchange.unpacked(payload)
    assert len(exchange.answer) <= 1000 and not exchange.complete
    assert TEXT.startswith(record_of(source, line_of(source, payload)).output_text)


def test_many_clients_at_once(proxied, queue):
    app, ends = proxied(), []

    def ask():
        ends.append(answered(app.url, post(chat_request()))[2].endswith(b"data: [DONE]\n\n"))

    threads = [threading.Thread(target=ask) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ends == [True] * 50 and len(queue.take(50)) == 50 and app.setup.memory.held == 0


@pytest.mark.parametrize(
    "sent",
    [CANARY.encode() + b"\r\n\r\n", b"\x00\x01\x02", b"GET /" + CANARY.encode() + b" HTTP/9.9\r\n\r\n",
     b"POST /v1/messages HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"],
)  # fmt: skip
def test_what_is_not_http_gets_an_error(sent, proxied):
    app = proxied()
    with connected(app.url) as connection:
        connection.sendall(sent + b"\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        assert everything(connection).startswith((b"HTTP/1.1 400 ", b""))
    assert is_up(app)


def test_a_web_socket_is_refused(proxied, model):
    app = proxied()
    headers = [("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
               ("Sec-WebSocket-Version", "13")]  # fmt: skip
    with connected(app.url) as connection:
        connection.sendall(head_of("GET", "/v1/realtime", headers))
        assert not connection.recv(1000).startswith(b"HTTP/1.1 101")
    assert is_up(app)


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://a.example", "http://", "http://u:p@a.example",
                                 "http://a.example?x=1", "http://a.example:x", "http://[::1"])  # fmt: skip
def test_an_upstream_must_be_the_url_of_a_server(url):
    with pytest.raises(UsageError, match="--upstream"):
        proxy_app(lambda *_: True, url)


@pytest.mark.parametrize("name", ["Authorization", "x-api-key", "Cookie", "a b", "", "é"])
def test_a_header_with_a_secret_cannot_be_a_key(name):
    with pytest.raises(UsageError, match="--user-header"):
        proxy_app(lambda *_: True, "http://a.example", user_header=name)
