"""The extra columns and request types that a released trace may have."""

TYPES = ("text", "search", "image", "file", "audio", "video", "thinking", "coder", "other")  # others become `other`
EXTRA = ("type", "turn")  # extra columns that a release keeps
