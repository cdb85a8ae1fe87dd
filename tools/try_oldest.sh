#!/bin/sh
# Install the oldest versions that pyproject.toml allows of what kvtrace needs, and a wheel of ours, and try it.
set -eu
python=$1
root=$(pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$python" -m venv "$scratch/tools"
"$scratch/tools/bin/pip" install -qq --disable-pip-version-check uv
"$python" -m venv "$scratch/bare"
{ "$python" tools/requirements.py run; "$python" tools/requirements.py report; } >"$scratch/requirements.txt"
"$python" -m pip wheel -qq --disable-pip-version-check --no-deps --wheel-dir "$scratch" .
"$scratch/tools/bin/uv" pip install --quiet --python "$scratch/bare/bin/python" --resolution lowest-direct \
    --only-binary :all: --requirement "$scratch/requirements.txt"
"$scratch/tools/bin/uv" pip install --quiet --python "$scratch/bare/bin/python" --no-deps "$scratch"/kvtrace-*.whl
"$scratch/bare/bin/python" tools/try_install.py "$root"
