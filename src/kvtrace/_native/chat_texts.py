"""Texts of the messages of a chat, as they are in memory. Twin: tests/reference/chat_texts.py."""

import cython
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.cpython.unicode import PyUnicode_DATA, PyUnicode_KIND
from cython.cimports.libc.string import memcpy


def chat_texts(messages):
    """The texts that are not ASCII, of messages that are a role and a text and nothing else.

    Returns (places of these messages; their roles; their texts; places of other messages that may have such texts).

    >>> chat_texts([{"role": "user", "content": "Größe"}, {"role": "user", "content": "ja"}, {"content": ["nein"]}])
    ([0], ['user'], ['Größe'], [2])
    """
    places, roles, texts, others = [], [], [], []
    for i in range(len(messages)):
        if type(messages[i]) is not dict:
            continue
        message = messages[i]
        if type(message.get("content")) is not str:
            others.append(i)
            continue
        text = message["content"]
        if text.isascii():
            continue
        if len(message) == 2 and type(message.get("role")) is str:
            places.append(i)
            roles.append(message["role"])
            texts.append(text)
        else:
            others.append(i)
    return places, roles, texts, others


def joined_texts(texts):
    """Texts as they are in memory: Latin-1, UTF-16 or UTF-32, the last two in the machine's byte order.

    Returns (the characters of each text; the bytes of each of its characters, 1, 2 or 4; all texts, end to end).

    >>> joined_texts(["Größe", "ja"])
    ([5, 2], b'\\x01\\x01', b'Gr\\xf6\\xdfeja')
    """
    lengths, widths = [], []
    size = place = 0
    for i in range(len(texts)):
        text = texts[i]
        lengths.append(len(text))
        widths.append(PyUnicode_KIND(text))
        size += len(text) * PyUnicode_KIND(text)
    data = PyBytes_FromStringAndSize(cython.NULL, size)
    for i in range(len(texts)):
        text = texts[i]
        size = len(text) * PyUnicode_KIND(text)
        memcpy(PyBytes_AS_STRING(data) + place, PyUnicode_DATA(text), size)
        place += size
    return lengths, bytes(widths), data
