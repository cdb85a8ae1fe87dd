"""HTTP/1.1 and protobuf by hand: what a client sends, and every byte that it gets."""

from __future__ import annotations

import json
import socket
from urllib.parse import urlsplit


def connected(url, seconds=10):
    """A connection to the server of the URL."""
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), timeout=seconds)


def head_of(method, target, headers=(), *, length=None):
    """The head of a request."""
    fields = [("Host", "client.example"), *headers]
    fields += [("Content-Length", str(length))] if length is not None else []
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def asked(method, target, body=b"", headers=()):
    """A request whose answer ends the connection."""
    length = len(body) if body or method == "POST" else None
    return head_of(method, target, [*headers, ("Connection", "close")], length=length) + body


def answered(url, request, seconds=10):
    """Status, headers and body that a server sends for these bytes; the body without its framing."""
    with connected(url, seconds) as connection:
        connection.sendall(request)
        return parsed(everything(connection), is_head=request.startswith(b"HEAD "))


def answered_first(connection):
    """The first answer on a connection that stays open."""
    answer = b""
    while b"\r\n\r\n" not in answer or parsed(answer)[2] is None:
        piece = connection.recv(1 << 16)
        assert piece
        answer += piece
    return parsed(answer)


def everything(connection):
    """All bytes up to the end of the connection."""
    pieces = []
    while piece := connection.recv(1 << 16):
        pieces.append(piece)
    return b"".join(pieces)


def parsed(answer, is_head=False):
    """(status, headers with lower-case names, body); the body is None if its framing says that it is cut."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    headers = [tuple(line.split(b": ", 1)) for line in lines]
    headers = [(name.lower(), value) for name, value in headers]
    fields = dict(headers)
    if is_head:
        return int(status.split()[1]), headers, body
    if fields.get(b"transfer-encoding") == b"chunked":
        body = unchunked(body)
    elif b"content-length" in fields and len(body) != int(fields[b"content-length"]):
        body = None
    return int(status.split()[1]), headers, body


def unchunked(body):
    """The body of a chunked answer; None if its last chunk is missing."""
    plain = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        if int(size or b"0", 16) == 0:
            return plain if body == b"\r\n" else None
        plain, body = plain + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return None


def chat_request(**script):
    """The body of a chat request with a script for the stub model."""
    stream = script.pop("stream", True)
    turn = {"role": "user", "content": "Is it CanaryQz7xKw?"}
    body = {"model": "stub-1", "messages": [turn], "stream": stream, "stub": script}
    return json.dumps(body).encode()


def post(body, target="/v1/chat/completions", headers=()):
    """A POST of a chat request."""
    return asked("POST", target, body, headers)


def message(number, inner):
    """A field of protobuf that is a message."""
    size, length = len(inner), b""
    while size > 127:
        size, length = size >> 7, length + bytes([size & 127 | 128])
    return bytes([number << 3 | 2]) + length + bytes([size]) + inner
