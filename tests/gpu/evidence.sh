#!/usr/bin/env bash
# All the evidence in one call of ten minutes, with the python3 of this machine; results go to $OUT (evidence/ if unset).
# Latencies come first and alone; the rest runs side by side: the GPU tests with the parity table, the stress program,
# the demo, compute-sanitizer on a short run, and the fuzzing of tests/native on the cores that are left.
#
#   [SECONDS_OF_STRESS=480] [FUZZ_JOBS=9] tests/gpu/evidence.sh
set -uo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH="$PWD:$PWD/tests/gpu${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
export OUT="${OUT:-$PWD/evidence}" STRESS="${SECONDS_OF_STRESS:-480}"
mkdir -p "$OUT"
python3 setup.py -q egg_info build_ext --inplace 2>&1 | grep -E "error|Error" || true
python3 -c 'from stalloc_accel import extension; print(extension.load("cuda").__file__)' || exit 1
echo "built in $SECONDS s"
python3 benchmarks/gpu_pair.py --out "$OUT/pairs.json" 2>&1 | tail -30

run() { # NAME COMMAND...: its last lines are printed at the end
  local name=$1 begin=$SECONDS; shift
  "$@" > "$OUT/$name.log" 2>&1
  echo "$name: exit $? after $((SECONDS - begin)) s" >> "$OUT/verdicts.txt"
}
run stress python3 tests/gpu/stress.py --seconds "$STRESS" --json "$OUT/stress.json" &
run fuzz python3 tests/native/run.py snapshot plan engine --seconds "$((STRESS - 60))" --jobs "${FUZZ_JOBS:-9}" &
run memcheck compute-sanitizer --tool memcheck --error-exitcode 9 python3 tests/gpu/short_run.py &
run demo make demo PYTHON=python3 &
run tests python3 -m pytest tests/gpu -q -p no:cacheprovider --stress-seconds 30 --durations=8 --parity-json "$OUT/parity.json" &
wait
for log in tests stress fuzz memcheck demo; do echo "--- $log"; tail -25 "$OUT/$log.log"; done
cat "$OUT/verdicts.txt"
