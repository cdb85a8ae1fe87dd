#!/bin/sh
# With each Python from 3.11 to 3.14 that is installed: build, demo, a wheel (into dist), and the tests that are not slow.
# The arguments are tests to run in place of all; an interpreter that is missing is named at the end.
set -eu
root=$(pwd)
missing=
for version in 3.11 3.12 3.13 3.14; do
    python=$(for found in python$version "$HOME"/.pyenv/versions/$version.*/bin/python "$HOME"/.local/share/uv/python/cpython-$version.*/bin/python; do
        "$found" -c 'import sys; print(sys.executable)' 2>/dev/null && break
    done || true)
    [ -n "$python" ] || { missing="$missing $version"; continue; }
    echo "== Python $version: $python"
    copy=build/check-pythons/$version
    mkdir -p "$copy"
    git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents --preserve=timestamps -t "$copy" 2>/dev/null || true
    cd "$copy"
    export KVTRACE_SHARED="${KVTRACE_SHARED:-$root/../shared}"
    make --no-print-directory demo PYTHON="$python"
    make --no-print-directory wheel PYTHON="$python"
    mkdir -p "$root/dist"
    cp dist/kvtrace-*.whl "$root/dist"
    make --no-print-directory test PYTHON="$python" TESTS="${*:-tests -m 'not slow'}"
    cd "$root"
done
echo "checked with each Python from 3.11 to 3.14 but for:${missing:- none}"
