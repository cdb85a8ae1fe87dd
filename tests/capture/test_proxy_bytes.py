"""Byte for byte: what the client gets through the proxy is what the server sends, and the other way round."""

import gzip
import json
import socket

import pytest

from kvtrace.capture.live import Address, HttpListener, Servers
from kvtrace.capture.proxy.exchange import Exchange
from kvtrace.capture.sources.proxy import proxy_app
from tests.attacks.canary import CANARY
from tests.capture.recorded import line_of, record_of
from tests.capture.stub_model import CACHED, OUTPUT, TEXT
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

REQUESTS = {
    "streamed": post(chat_request()),
    "whole": post(chat_request(stream=False)),
    "gzip, streamed": post(chat_request(coding="gzip")),
    "zstd": post(chat_request(stream=False, coding="zstd")),
    "zstd, streamed": post(chat_request(coding="zstd")),
    "refused": post(chat_request(status=429)),
    "large": post(chat_request(stream=False, size=3_000_000)),
    "with a query": post(chat_request(), target="/v1/chat/completions?beta=true&a=%20%2F"),
    "compressed request": post(gzip.compress(chat_request()), headers=[("Content-Encoding", "gzip")]),
    "list": asked("GET", "/v1/models"),
    "head": asked("HEAD", "/v1/models"),
    "redirect": asked("GET", "/v1/moved"),
    "no content": asked("DELETE", "/v1/empty"),
    "unknown path": asked("GET", "/nothing//../%2e%2e/here?x=//y"),
    "wrong method": asked("PUT", "/v1/chat/completions", b"{}"),
    "empty post": asked("POST", "/v1/other"),
    "upload": asked("POST", "/v1/files", bytes(range(256)) * 12_000),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_the_answer_has_the_same_bytes(name, upstream, proxied):
    direct, through = answered(upstream, REQUESTS[name]), answered(proxied().url, REQUESTS[name])
    assert through == direct and direct[2] is not None


@pytest.mark.parametrize("name", REQUESTS)
def test_the_server_gets_the_same_request(name, upstream, proxied, model):
    answered(upstream, REQUESTS[name])
    answered(proxied().url, REQUESTS[name])
    direct, through = model.seen
    assert (direct.method, direct.target, direct.body) == (through.method, through.target, through.body)
    own = (b"host", b"connection", b"content-length")
    assert [field for field in direct.headers if field[0] not in own] == [
        field for field in through.headers if field[0] not in own
    ]
    assert dict(direct.headers).get(b"content-length", b"0") == dict(through.headers).get(b"content-length", b"0")


def test_headers_go_through_in_their_order_without_those_of_the_connection(proxied, upstream, model):
    headers = [("Authorization", f"Bearer {CANARY}"), ("X-Twice", "1"), ("X-Twice", "2"), ("X-Mine", "1"),
               ("TE", "gzip"), ("Keep-Alive", "5"), ("Connection", "close, x-mine"),
               ("X-Name", "é".encode().decode("latin-1"))]  # fmt: skip
    with connected(proxied().url) as connection:
        connection.sendall(head_of("GET", "/v1/models", headers))
        everything(connection)
    (seen,) = model.seen
    assert [field for field in seen.headers if field[0] not in (b"host", b"connection")] == [
        (b"authorization", f"Bearer {CANARY}".encode()), (b"x-twice", b"1"), (b"x-twice", b"2"),
        (b"x-name", "é".encode()),
    ]  # fmt: skip
    assert dict(seen.headers)[b"host"] == upstream.removeprefix("http://").encode()


def test_paths_come_after_the_path_of_the_upstream(proxied, upstream, model):
    app = proxied(to=f"{upstream}/team-a/")
    answered(app.url, asked("GET", "/v1/models?x=1"))
    assert model.seen[0].target == "/team-a/v1/models?x=1"


@pytest.mark.parametrize("target", ["*", "@127.0.0.1:1/v1/models", "http://127.0.0.1:1/v1/models"])
def test_a_request_cannot_choose_another_server(target, proxied, model):
    status, _, _ = answered(proxied().url, asked("GET", target))
    assert status in (200, 400)
    assert [seen.target for seen in model.seen] == (["/v1/models"] if status == 200 else [])


def test_a_chunked_request_arrives_and_is_recorded(proxied, model, queue):
    body = chat_request(stream=False)
    with connected(proxied().url) as connection:
        connection.sendall(head_of("POST", "/v1/chat/completions", [("Transfer-Encoding", "chunked")]))
        for start in range(0, len(body), 20):
            connection.sendall(b"%x\r\n%b\r\n" % (len(body[start : start + 20]), body[start : start + 20]))
        connection.sendall(b"0\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
    assert model.seen[0].body == body
    assert Exchange.unpacked(queue.take()[0][1]).request == body


def test_a_client_that_waits_for_100_continue_gets_it(proxied, model):
    body = chat_request(stream=False)
    with connected(proxied().url) as connection:
        headers = [("Expect", "100-continue"), ("Connection", "close")]
        connection.sendall(head_of("POST", "/v1/chat/completions", headers, length=len(body)))
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert parsed(everything(connection))[0] == 200


def test_a_connection_serves_many_requests(proxied, queue):
    body = chat_request(stream=False)
    request = head_of("POST", "/v1/chat/completions", length=len(body)) + body
    with connected(proxied().url) as connection:
        for _ in range(20):
            connection.sendall(request)
            assert json.loads(answered_first(connection)[2])["id"] == "chatcmpl-1"
    queue.take(20)


@pytest.mark.parametrize("stream", [False, True])
def test_a_compressed_request_is_read(stream, proxied, queue):
    body = gzip.compress(chat_request(stream=stream))
    answered(proxied().url, post(body, headers=[("Content-Encoding", "gzip")]))
    record = record_of("proxy-openai", line_of(*queue.take()[0]))
    assert record.messages == [{"role": "user", "content": f"Is it {CANARY}?"}] and record.output_text == TEXT


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd", "br"])
@pytest.mark.parametrize("stream", [False, True])
def test_each_coding_is_read(coding, stream, proxied, queue):
    answered(proxied().url, post(chat_request(stream=stream, coding=coding)))
    record = record_of("proxy-openai", line_of(*queue.take()[0]))
    assert record.output_text == TEXT and (stream or (record.output_length, record.cached_tokens) == (OUTPUT, CACHED))


def test_headers_that_the_user_names_are_keys_and_no_other_header_is_recorded(proxied, queue):
    app = proxied(session_header="X-Session-Id", user_header="X-User")
    headers = [("X-Session-Id", "s1"), ("X-User", "u1"), ("Authorization", "Bearer key1"), ("X-Other", "other1")]
    answered(app.url, post(chat_request(), headers=headers))
    ((source, payload),) = queue.take()
    record = record_of(source, line_of(source, payload))
    assert (record.session, record.user) == ("s1", "u1")
    others = (b"key1", b"other1", b"client.example", b"req_1", b"a=" + CANARY.encode())
    assert not any(word in payload for word in others)


def test_pieces_of_an_answer_do_not_wait_for_each_other():
    address = Address("127.0.0.1", 0)
    with Servers([HttpListener("proxy", proxy_app(lambda *_: True, "http://127.0.0.1:1"), address)], print) as servers:
        (bound,) = servers._sockets.values()
        with connected(f"http://{servers.addresses['proxy']}"):
            assert bound.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
