"""Drivers that run in vLLM's environment, the folder `vllm` of KVTRACE_CLIENTS: a line for each case, in and out."""

import json
import os
import subprocess
from pathlib import Path

import pytest

PYTHON = Path(os.environ.get("KVTRACE_CLIENTS", "no-such-folder")) / "vllm/bin/python"
needs_vllm = pytest.mark.skipif(not PYTHON.exists(), reason="no environment vllm in KVTRACE_CLIENTS")


def answers(cases, folder, driver):
    """What a driver of this folder prints of each case."""
    path = folder / "cases.jsonl"
    path.write_text("".join(json.dumps(case) + "\n" for case in cases))
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYTHONHASHSEED": "0"}
    command = [PYTHON, Path(__file__).parent / driver, path]
    done = subprocess.run(command, capture_output=True, text=True, env=plain)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
