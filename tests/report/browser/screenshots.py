"""Write the screenshots of docs/report/: `python -m tests.report.browser.screenshots REPORT.html`."""

import sys
import tempfile
from pathlib import Path

from tests.docs import ROOT
from tests.report.browser import chromium
from tests.report.browser.test_page import DRAWN

if __name__ == "__main__":
    for scheme in ("light", "dark"):
        with (
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
            chromium.tab(profile, 1320, 1228) as tab,
        ):
            tab.prefer(scheme)
            tab.open(Path(sys.argv[1]).resolve())
            tab.evaluate(DRAWN)
            (ROOT / f"docs/report/report-{scheme}.png").write_bytes(tab.screenshot())
