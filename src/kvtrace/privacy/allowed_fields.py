"""The extra columns and request types that a released trace may have."""

TYPES = ("text", "search", "image", "file", "audio", "video", "thinking", "coder", "other")  # others become `other`
MAX_TURN = 9_999  # a larger turn could be an identifier
MAX_AGENT = 9_999  # of a session; likewise
EXTRA = ("type", "turn", "agent")  # extra columns that a release keeps
