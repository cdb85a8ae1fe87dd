"""What all windows of a recorder have in common: their keys, and the headers of their files."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from ..ingest.keys import Key
from .encoders import LiveEncoding
from .spool import Window


@dataclass(frozen=True)
class WindowSettings:
    """How windows are keyed, encoded and released."""

    encoding: LiveEncoding
    base: Key | None = field(repr=False)  # of the keys of all windows; None = each has a random one
    keeps_key: bool  # the user has the key, so that a recorder that starts again can go on
    linked: bool  # one key for all windows
    suffix: str
    session_share: float

    def key(self, name: str) -> Key:
        """The key of a window."""
        if self.base is None:
            return Key.random()
        return self.base if self.linked else Key(self.base.subkey(f"window {name}"))

    def header(self, name: str, until_s: float, key: Key) -> dict[str, Any]:
        """The header of a window's file: what its release depends on, and what a recorder that goes on must have."""
        values = self.encoding.to_message()
        profile = values.pop("profile")
        return {
            "name": name, "until": until_s, "suffix": self.suffix, "linked": self.linked,
            "profile": profile, "session_share": self.session_share,
            "isolate_tenants": self.encoding.options.isolate_tenants, "key": key.subkey("window check").hex(),
            "options": key.subkey(f"options {sorted(values.items())!r}").hex(),
        }  # fmt: skip

    def continues(self, window: Window, now_s: float) -> bool:
        """Whether a recorder with these settings goes on with a window that was interrupted.

        It must have the window's key and its settings, and the window must not have passed.
        """
        if not self.keeps_key or now_s >= window.header["until"]:
            return False
        expected = self.header(window.name, window.header["until"], self.key(window.name))
        return all(window.header.get(name) == value for name, value in json.loads(json.dumps(expected)).items())
