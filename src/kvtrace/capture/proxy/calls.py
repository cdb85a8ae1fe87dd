"""The calls that generate text, by the paths of their APIs; each kind has a source of its own, and a log reader."""

from __future__ import annotations

OPENAI, RESPONSES, ANTHROPIC = "proxy-openai", "proxy-responses", "proxy-anthropic"

# the end of a path -> name of the source; prefixes (/v1, /openai/deployments/NAME) are the server's own
ENDINGS = {
    "/chat/completions": OPENAI,
    "/completions": OPENAI,
    "/responses": RESPONSES,
    "/messages": ANTHROPIC,
}


def source_of(method: str, path: str) -> str | None:
    """The name of the source that records this call; None if the call generates no text.

    >>> source_of("POST", "/v1/chat/completions"), source_of("POST", "/v1/messages/count_tokens")
    ('proxy-openai', None)
    """
    if method != "POST":
        return None
    path = path.rstrip("/")
    name = next((name for ending, name in ENDINGS.items() if path.endswith(ending)), None)
    return None if name == ANTHROPIC and "/threads/" in path else name  # OpenAI's Assistants add messages to threads
