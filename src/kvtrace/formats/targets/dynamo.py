"""NVIDIA Dynamo's offline replay (`pip install ai-dynamo-runtime`): a mocked engine and router, without a GPU.

It reads plain files only, and treats the rows of a session as cumulative.
"""

from __future__ import annotations

import json
from pathlib import Path

from ...trace.trace import Trace
from .portable import SIDECAR, adapt, check_name, write

__all__ = ["SIDECAR", "adapt", "check_name", "usage", "write"]


def usage(trace: Trace, path: str | Path) -> list[str]:
    """How to replay the file in Python."""
    size = f"trace_block_size={trace.block_size}"
    return [f'dynamo._core.run_mocker_trace_replay({json.dumps([str(path)])}, trace_format="mooncake", {size})']
