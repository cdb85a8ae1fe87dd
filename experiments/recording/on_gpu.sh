#!/bin/sh
# On the GPU machine, in the root of the repository: install what prepare.sh downloaded, compile the kernels, record.
# usage: sh experiments/recording/on_gpu.sh FOLDER [options of python -m experiments.recording]
set -eu
folder=$1
shift
python=${PYTHON:-python3}
site=${TMPDIR:-/tmp}/kvtrace-site
test -d "$site" || "$python" -m pip install -q --disable-pip-version-check --no-index --no-deps --target "$site" \
	build/recording/wheels/*.whl
export PYTHONPATH="$site:src" PYTHONUNBUFFERED=1
"$python" setup.py -q build_ext --inplace
"$python" -m experiments.recording --device cuda --output "$folder" "$@"
