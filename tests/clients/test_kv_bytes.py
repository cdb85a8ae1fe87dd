"""KV bytes of each model of kvcache-simulator 0.1.3, by its own calculator, unmodified.

KVTRACE_CLIENTS names a folder of environments (see test_load.py); `kvsim` needs `pip install kvcache-simulator==0.1.3
pyyaml`. `KVTRACE_CLIENTS=... python -m tests.clients.test_kv_bytes` writes the vectors anew; the sentences on
differences are written by hand and kept.
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.serving.test_kv_bytes import SETTINGS, VECTORS

PYTHON = Path(os.environ.get("KVTRACE_CLIENTS", "no-such-folder")) / "kvsim/bin/python"
needs_simulator = pytest.mark.skipif(not PYTHON.exists(), reason="no environment kvsim in KVTRACE_CLIENTS")


def calculated(folder):
    """Model -> its sizes, or its refusal, with each of SETTINGS."""
    path = Path(folder) / "settings.json"
    path.write_text(json.dumps(SETTINGS))
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [PYTHON, Path(__file__).parent / "kvcache_simulator_bytes.py", path]
    done = subprocess.run(command, capture_output=True, text=True, env=plain)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = map(json.loads, done.stdout.splitlines())
    return {row["model"]: row["sizes"] for row in rows}


@needs_simulator
def test_the_vectors_are_what_the_calculator_says(tmp_path):
    vectors = json.loads(VECTORS.read_text())
    assert vectors["settings"] == SETTINGS
    assert vectors["sizes"] == calculated(tmp_path)


def main():
    with tempfile.TemporaryDirectory() as folder:
        sizes = calculated(folder)
    notes = json.loads(VECTORS.read_text())["differences"] if VECTORS.exists() else {}
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in sizes.items())
    settings = ",\n".join(f"  {json.dumps(setting)}" for setting in SETTINGS)
    texts = ",\n".join(f"  {json.dumps(name)}: {json.dumps(text)}" for name, text in notes.items())
    head = '"source": "kvcache-simulator 0.1.3: [KV bytes, indexer bytes] of each setting"'
    VECTORS.write_text(
        f'{{\n{head},\n"settings": [\n{settings}\n],\n"differences": {{\n{texts}\n}},\n"sizes": {{\n{rows}\n}}\n}}\n'
    )


if __name__ == "__main__":
    main()
