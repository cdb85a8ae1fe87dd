"""Texts of the messages of a chat, and their characters one by one."""

import sys


def chat_texts(messages):
    """The places, roles and texts of messages that are a role and a text that is not ASCII; places of other ones."""
    places, roles, texts, others = [], [], [], []
    for place, message in enumerate(messages):
        if not isinstance(message, dict):
            continue
        content = message.get("content")
        if isinstance(content, str) and all(ord(character) < 128 for character in content):
            continue
        if isinstance(content, str) and set(message) == {"role", "content"} and isinstance(message["role"], str):
            places.append(place)
            roles.append(message["role"])
            texts.append(content)
        else:
            others.append(place)
    return places, roles, texts, others


def joined_texts(texts):
    """The number of characters of each text, the bytes of each character, and the characters of all texts."""
    widths = [next(width for width in (1, 2, 4) if max(map(ord, text), default=0) < 256**width) for text in texts]
    data = b"".join(
        ord(character).to_bytes(width, sys.byteorder)
        for text, width in zip(texts, widths, strict=True)
        for character in text
    )
    return [len(text) for text in texts], bytes(widths), data
