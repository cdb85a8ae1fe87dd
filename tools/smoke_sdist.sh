#!/bin/sh
# Build the source archive into dist/, then unpack it outside of git, build a wheel of it, and try that and a few tests.
set -eu
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
root=$(pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$python" -c "import setuptools.build_meta as backend; backend.build_sdist('$scratch')" >"$scratch/log" 2>&1 ||
    { cat "$scratch/log"; exit 1; }
mkdir -p dist
cp "$scratch"/kvtrace-*.tar.gz dist
cd "$scratch"
tar xzf kvtrace-*.tar.gz
rm kvtrace-*.tar.gz
cd kvtrace-*
# as a user does it: pip brings Cython and setuptools
"$python" -m venv "$scratch/bare"
"$scratch/bare/bin/pip" install -qq --disable-pip-version-check .
"$scratch/bare/bin/python" tools/try_install.py .
# the tests of the archive, against the installed package
mv src sources
PYTHONPATH=$("$scratch/bare/bin/python" -c 'import kvtrace, os; print(os.path.dirname(os.path.dirname(kvtrace.__file__)))') \
    "$python" -m pytest -q -p no:cacheprovider tests/trace/test_trace.py tests/cache/test_simulate.py
echo "source archive: $(ls "$root"/dist/kvtrace-*.tar.gz) builds, works and passes tests outside of git"
