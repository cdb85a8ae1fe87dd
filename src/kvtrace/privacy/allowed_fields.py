"""The closed lists of what may stand in a released trace beside numbers."""

# what a request may be: any other word in a log becomes `other`, since it could be anything
TYPES = ("text", "search", "image", "file", "audio", "video", "thinking", "coder", "other")
EXTRA = ("type", "turn")  # extra columns that a release keeps
