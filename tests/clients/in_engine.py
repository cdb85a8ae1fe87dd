"""Drivers that run in an engine's environment, a folder of KVTRACE_CLIENTS: a line for each case, in and out."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ENVIRONMENTS = Path(os.environ.get("KVTRACE_CLIENTS", "no-such-folder"))


def python_of(engine):
    return ENVIRONMENTS / engine / "bin/python"


def needs(engine):
    """A mark of tests that need an engine's environment."""
    reason = f"no environment {engine} in KVTRACE_CLIENTS"
    return pytest.mark.skipif(not python_of(engine).exists(), reason=reason)


def answers(cases, folder, engine, driver):
    """What a driver of this folder prints of each case."""
    path = folder / "cases.jsonl"
    path.write_text("".join(json.dumps(case) + "\n" for case in cases))
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    plain |= {"PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1"}
    command = [python_of(engine), Path(__file__).parent / driver, path]
    result = subprocess.run(command, capture_output=True, text=True, env=plain)
    assert result.returncode == 0, result.stderr[-2000:]
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
