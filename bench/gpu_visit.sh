#!/usr/bin/env bash
# What is measured on a machine with a GPU that has torch and transformers and no network, in parts of under nine minutes each.
#
#   bash bench/gpu_visit.sh prepare         where packages can be had: their wheels go to build/gpu_visit
#   bash bench/gpu_visit.sh PART...         there: contract, runs, interference, map, vllm; results go to bench/results/gpu-PART.json
#
# PYTHON names the interpreter that has torch. OUT, where set, is a folder that gets a copy of the results.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
if [ "${1:-}" = prepare ]; then
  shift
  exec "$python" bench/gpu_visit.py prepare "$@"
fi
home=build/gpu_visit
if [ ! -e "$home/ready" ]; then
  "$python" -m venv --system-site-packages "$home/venv"
  # Only what is missing: torch and whatever else the machine has stays as it is.
  "$home/venv/bin/python" -m pip install -qq --disable-pip-version-check --no-index --no-deps --find-links "$home/wheels" \
    $("$home/venv/bin/python" bench/gpu_visit.py missing)
  touch "$home/ready"
fi
status=0
for part in "$@"; do
  PYTHONPATH=$PWD timeout 540 "$home/venv/bin/python" bench/gpu_visit.py "$part" || { status=$?; echo "$part ended with $status" >&2; }
  [ -z "${OUT:-}" ] || cp -f bench/results/gpu-*.json "$OUT"/
done
exit "$status"
