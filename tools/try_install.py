"""Do one of each thing that a user does first, with the kvtrace that this Python has installed; run on every wheel.

    python tools/try_install.py [FOLDER OF THE REPOSITORY]

It needs no network, compiler or shell. Each command must end with status 0, and kvtrace must come from an installation,
not from a source folder. Without plotly it makes no report page.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

LOG = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve() / "examples/raw_log.jsonl"
COMMANDS = """
--version
anonymize LOG -o trace.jsonl --block-size 16 --quiet
check trace.jsonl
audit trace.jsonl
release trace.jsonl -o strict.jsonl --profile strict
analyze trace.jsonl
curve trace.jsonl --capacity 100,25%
simulate trace.jsonl --engine vllm,sglang --capacity 400 --no-gap
simulate trace.jsonl --policy lru,arc,sieve --capacity 25%
synthesize trace.jsonl -n 1000 -o more.jsonl
compare trace.jsonl more.jsonl
report trace.jsonl -o report.html
"""
LIBRARY = """
import kvtrace, pathlib
folder = pathlib.Path(kvtrace.__file__).parent
assert "site-packages" in folder.parts, f"{folder} is not an installation"
assert (folder / "cache/live/prefix_cache.pyi").exists() and (folder / "py.typed").exists()
assert kvtrace.PrefixCache(8, 4).allocate([1, 2, 3, 4]) is not None
print(kvtrace.read("trace.jsonl"))
"""


def run(*arguments: str) -> None:
    """Run this Python; end with its output if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"python {' '.join(arguments)} ended with status {done.returncode}:\n{done.stdout}{done.stderr}")


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    for command in COMMANDS.strip().splitlines():
        if not command.startswith("report") or importlib.util.find_spec("plotly"):
            run("-m", "kvtrace", *command.replace("LOG", str(LOG)).split(" "))
    run("-c", LIBRARY)
    os.chdir(LOG.parent)  # Windows deletes no folder that a process is in
print("kvtrace is installed, and its first commands work")
