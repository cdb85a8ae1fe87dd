"""Write the help texts, the schemas and the outputs of the tutorials into docs (`make docs`)."""

import tempfile
from pathlib import Path

from tests import tutorials
from tests.docs import ROOT, with_help
from tools.docs_site import schemas

if __name__ == "__main__":
    page = ROOT / "docs/cli/cli.md"
    page.write_text(with_help(page.read_text(encoding="utf-8")), encoding="utf-8")
    schemas.write_all()
    for page in tutorials.PAGES:
        text = page.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            if tutorials.put_trace(text, Path(folder)):
                page.write_text(tutorials.with_outputs(text, Path(folder)), encoding="utf-8")
