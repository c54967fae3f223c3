#!/usr/bin/env bash
# The evidence on a GPU in one call, with the python3 of this machine; results go to $OUT (evidence/ if unset).
#
#   tests/gpu/evidence.sh [latencies] [tests] [parity] [stress] [memcheck] [demo]     all of them where none is named
#
# One after another, only the stress program ($SECONDS_OF_STRESS, 300 if unset) runs beside the tests. Fuzzing needs no GPU:
# tests/native/run.py.
set -uo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH="$PWD:$PWD/tests/gpu${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
export OUT="${OUT:-$PWD/evidence}"
mkdir -p "$OUT"
python3 setup.py -q egg_info build_ext --inplace 2>&1 | grep -E "error|Error" || true
python3 -c 'from stalloc_accel import extension; print(extension.load("cuda").__file__)' || exit 1
echo "built in $SECONDS s"

run() { # NAME COMMAND...: its last lines are printed, all of them are in $OUT/NAME.log
  local name=$1 begin=$SECONDS; shift
  "$@" > "$OUT/$name.log" 2>&1
  local status=$?
  { echo "--- $name: exit $status after $((SECONDS - begin)) s"; tail -25 "$OUT/$name.log"; } | tee -a "$OUT/verdicts.txt"
}
pytest() { python3 -m pytest -q -p no:cacheprovider --durations=6 "$@"; }

parts=" ${*:-latencies tests parity stress memcheck demo} "
wants() { [[ $parts == *" $1 "* ]]; }
wants latencies && run latencies python3 benchmarks/gpu_pair.py --out "$OUT/pairs.json"
wants stress && run stress python3 tests/gpu/stress.py --seconds "${SECONDS_OF_STRESS:-300}" --json "$OUT/stress.json" &
wants tests && run tests pytest tests/gpu --ignore tests/gpu/test_parity.py --stress-seconds 8
wants parity && run parity pytest tests/gpu/test_parity.py --parity-json "$OUT/parity.json"
wants memcheck && run memcheck compute-sanitizer --tool memcheck --error-exitcode 9 python3 tests/gpu/short_run.py
wants demo && run demo make demo PYTHON=python3
wait
