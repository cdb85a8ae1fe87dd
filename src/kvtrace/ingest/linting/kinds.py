"""The kinds of findings: a name, what it is, and what to change."""

from __future__ import annotations

DATE, ID, TOOL_ORDER, METADATA, DRIFT, LOST_HISTORY = "date", "id", "tool_order", "metadata", "drift", "lost_history"

KINDS = {  # kind -> what it is
    DATE: "a date or time",
    ID: "an id or a number",
    TOOL_ORDER: "tools in another order",
    METADATA: "data of the request or the user",
    DRIFT: "two versions of one text",
    LOST_HISTORY: "a turn that does not extend the one before",
}

REMEDIES = {  # form of a finding -> what to change
    "date": "Move the date or time behind the part that all requests share, or make it coarser.",
    "id": "Move the id behind the part that all requests share, or leave it out.",
    "order": "Send the tools in one fixed order, with the keys of each in one fixed order.",
    "value": "Move the data of the request behind the part that all requests share.",
    "white_space": "Send one version of the text: make white space and line ends the same in all requests.",
    "wording": "Send one version of the text: the versions alternate, and each fills the cache anew.",
    "dropped": "Keep earlier turns, or drop many at once and rarely: after a dropped turn nothing behind it hits.",
    "rewritten": "Leave earlier messages as they were sent: after a changed message nothing behind it hits.",
    "inserted": "Add messages at the end: after an inserted message nothing behind it hits.",
}
