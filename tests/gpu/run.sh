#!/usr/bin/env bash
# Builds here and runs the GPU tests with the python3 of this machine; arguments go to pytest. Installs nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH="$PWD:$PWD/tests/gpu${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
begin=$SECONDS
python3 setup.py -q build_ext --inplace 2>&1 | grep -E "error|Error" || true
python3 -c 'from stalloc_accel import extension; print(extension.load("cuda").__file__)'
echo "built in $((SECONDS - begin)) s"
exec python3 -m pytest tests/gpu -q -rA --durations=8 "$@"
