"""Write schemas, outputs of pages and of the notebook, the dashboard, and signatures of commands (`make docs`)."""

import tempfile
from pathlib import Path

from tests import tutorials
from tools import command_stubs, grafana_dashboard, notebook, published_names
from tools.docs_site import commands, files, llms, measured_errors, schemas

if __name__ == "__main__":
    schemas.write_all()
    grafana_dashboard.write()
    published_names.write()
    command_stubs.write()
    notebook.write()
    files.write()
    measured_errors.write()
    commands.write_list()
    llms.write()
    for page in tutorials.PAGES:
        text = page.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            if tutorials.put_trace(text, Path(folder)):
                page.write_text(tutorials.with_outputs(text, Path(folder)), encoding="utf-8")
