"""The fields of LiteLLM's StandardLoggingPayload that the reader `litellm` needs.

All others are dropped before the queue: keys, addresses, e-mails, headers, costs.
"""

from __future__ import annotations

from typing import Any

FIELDS = frozenset(
    ("id", "call_type", "status", "timestamp", "startTime", "endTime", "completionStartTime", "response_time",
     "messages", "response", "model", "trace_id", "session_id", "litellm_session_id", "end_user", "user",
     "model_parameters", "prompt_tokens", "completion_tokens", "cache_hit", "proxy_server_request", "organization_id",
     "team_id", "cache_salt", "extra_key")
)  # fmt: skip
METADATA = frozenset(
    ("user_api_key_user_id", "user_api_key_hash", "user_api_key_end_user_id", "user_api_key_org_id",
     "user_api_key_team_id", "organization_id", "team_id", "usage_object",
     "additional_usage_values", "session_id", "conversation_id", "trace_id")
)  # fmt: skip


def needed(call: dict[str, Any], keep: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The call with these fields alone, and with those of its metadata.

    Args:
        call: One StandardLoggingPayload.
        keep: Names of more fields, of the call or of its metadata.

    >>> needed({"id": "a", "response_cost": 0.1, "metadata": {"user_api_key_hash": "k", "user_agent": "b"}})
    {'id': 'a', 'metadata': {'user_api_key_hash': 'k'}}
    """
    names = FIELDS | keep
    kept = {name: value for name, value in call.items() if name in names}
    metadata = call.get("metadata")
    if type(metadata) is dict:
        names = METADATA | keep
        kept["metadata"] = {name: value for name, value in metadata.items() if name in names}
    elif metadata is not None:
        kept["metadata"] = metadata
    return kept
