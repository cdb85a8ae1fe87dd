"""Write the schemas, metrics and outputs of tutorials into docs, and the dashboard (`make docs`)."""

import tempfile
from pathlib import Path

from tests import tutorials
from tools import grafana_dashboard
from tools.docs_site import metrics, schemas

if __name__ == "__main__":
    schemas.write_all()
    metrics.PAGE.write_text(metrics.with_table(metrics.PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    grafana_dashboard.write()
    for page in tutorials.PAGES:
        text = page.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            if tutorials.put_trace(text, Path(folder)):
                page.write_text(tutorials.with_outputs(text, Path(folder)), encoding="utf-8")
