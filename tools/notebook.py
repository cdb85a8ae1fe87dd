"""Run `examples/analysis.ipynb` from top to bottom and store what its cells print and show (`make docs`)."""

import ast
import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

PATH = Path(__file__).resolve().parents[1] / "examples/analysis.ipynb"


def run(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with the outputs of its cells, which see each other's names; it runs in the current folder."""
    names: dict[str, Any] = {}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        cell["execution_count"], cell["outputs"] = number, _outputs("".join(cell["source"]), names, number)
    return notebook


def write() -> None:
    """Run the notebook in its folder, and write it."""
    before = os.getcwd()
    os.chdir(PATH.parent)
    try:
        notebook = run(json.loads(PATH.read_text(encoding="utf-8")))
    finally:
        os.chdir(before)
    PATH.write_text(json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")


def _outputs(source: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """What a cell prints, and the value of its last expression."""
    body = ast.parse(source).body
    last: Any = body.pop() if isinstance(body[-1], ast.Expr) else None
    value: Any = None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(ast.Module(body, []), f"cell {number}", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if text := printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)})
    if hasattr(value, "to_plotly_json"):
        figure = json.loads(value.to_json())
        figure["layout"].pop("template", None)
        outputs.append(
            {"data": {"application/vnd.plotly.v1+json": figure}, "metadata": {}, "output_type": "display_data"}
        )
    elif value is not None:
        shown = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            shown["text/html"] = value._repr_html_().splitlines(keepends=True)
        outputs.append({"data": shown, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
    return outputs


if __name__ == "__main__":
    write()
