"""Write the --help texts into docs/cli/cli.md (`make docs`)."""

from tests.docs import ROOT, with_help

if __name__ == "__main__":
    page = ROOT / "docs/cli/cli.md"
    page.write_text(with_help(page.read_text(encoding="utf-8")), encoding="utf-8")
