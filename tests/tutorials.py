"""Pages that show outputs: their commands run in order, and the output below a block is what it prints.

`make docs` writes the outputs. Some pages use the public conversation trace. Where it is missing, a small trace of
the same form stands in, so that the commands still run.
"""

import contextlib
import json
import os
import random
import re
import shutil
import sys
from pathlib import Path
from unittest.mock import patch

import kvtrace
from tests import shell
from tests.docs import PAGES as ALL
from tests.docs import ROOT

PAGES = [page for page in ALL if "\n```output\n" in page.read_text(encoding="utf-8")]
PUBLIC = "conversation_trace.jsonl"
STEP = re.compile(
    r"^```(sh|python)\n(?P<code>.*?)^```\n(?P<gap>\n```output\n)?(?(gap)(?P<output>.*?)^```\n)", re.M | re.S
)
TOKENIZER = re.compile(r"by (fastokens|tokenizers) [\d.]+ \(.*\)")  # other machines have other ones
SCRIPTS = (("kvtrace", "kvtrace.cli import main; main()"), ("datagen", "kvtrace.cli.datagen import main; main()"))


def make_workplace(folder):
    """A folder as a reader of the docs has it, with the project's examples; returns its environment."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    shutil.copytree(ROOT / "tests/data", folder / "tests/data")
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    for name, call in SCRIPTS:
        script = bin_folder / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "from {call}" "$@"\n')
        script.chmod(0o755)
    path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "PYTHONPATH": str(Path(kvtrace.__file__).parent.parent)}


def public_trace():
    """The public trace beside the project, or None."""
    shared = Path(os.environ.get("KVTRACE_SHARED", ROOT.parent / "shared"))
    trace = shared / "data/mooncake" / PUBLIC
    return trace if trace.is_file() else None


def put_trace(text, folder):
    """Put the trace that a page needs into its folder; False if it is a stand-in."""
    if PUBLIC not in text:
        return True
    if trace := public_trace():
        shutil.copyfile(trace, folder / PUBLIC)
        return True
    draw = random.Random(0)
    prompts = [[0]]  # each continues an earlier one, or begins after the first block
    for _ in range(400):
        prompts.append([*draw.choice(prompts)[:100], *(draw.randrange(10**9) for _ in range(draw.randint(1, 30)))])
    rows = (
        {"timestamp": 3000 * row, "input_length": 512 * len(ids), "output_length": 100, "hash_ids": ids}
        for row, ids in enumerate(prompts[1:])
    )
    (folder / PUBLIC).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return False


def with_outputs(text, folder):
    """A page with the outputs of its blocks, as they are now; a block without an output block below it runs, too."""

    def step(match):
        printed = _printed_by_lines(match["code"]) if match[1] == "sh" else _printed_by_python(match["code"])
        if match["gap"] is None:
            return match[0]
        lines = TOKENIZER.sub("by fastokens", printed).rstrip().splitlines()
        output = "".join(line.rstrip() + "\n" for line in lines)
        return f"```{match[1]}\n{match['code']}```\n{match['gap']}{output}```\n"

    with contextlib.chdir(folder), patch.dict(os.environ, {**make_workplace(folder), "NO_COLOR": "1"}):
        os.environ.pop("COLUMNS", None)  # a pipe without it gets every column
        return STEP.sub(step, text)


def _printed_by_lines(code):
    printed = ""
    for line in shell.lines_of(code):
        status, text = shell.called(line)
        printed += text
        assert status == 0, f"{line}\n{text}"
    return printed


def _printed_by_python(code):
    _, _, printed = shell.in_process(lambda: exec(compile(code, "the page", "exec"), {"__name__": "__main__"}))
    return printed.decode()
