"""The media of a record: those in its messages, and those that have no place in them."""

from kvtrace.ingest.logs.fields import identity_of
from kvtrace.text.messages import media_parts


def media_of(record):
    """The identity of each medium."""
    parts = [part for message in record.messages or () for part in media_parts(message)]
    return record.media + [identity_of(part, "messages") for part in parts]
