#!/bin/sh
# Fill build/recording with what a GPU machine without a network needs: traces, and wheels for its Python.
# usage: sh experiments/recording/prepare.sh CONVERSATION_TRACE AGENT_LOG [PYTHON_VERSION]
set -eu
conversation=$1
agents=$2
version=${3:-3.12}
python=${PYTHON:-.venv/bin/python}
folder=build/recording
mkdir -p "$folder/wheels"
cp "$conversation" "$folder/conversation.jsonl"
"$python" -m kvtrace anonymize "$agents" -o "$folder/agents.jsonl" --block-size 256 --profile exact --quiet
"$python" tools/requirements.py build >"$folder/build.txt"
"$python" -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: --python-version "$version" \
	--implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
	--dest "$folder/wheels" --requirement "$folder/build.txt" click orjson
rm -f "$folder"/wheels/numpy-*.whl # PyTorch brings its own
du -sh "$folder"
