#!/usr/bin/env bash
# What is measured on a machine with a GPU that has torch and transformers and no network, in parts of under nine minutes each.
#
#   bash bench/gpu_visit.sh prepare [--vllm]    where packages can be had: they go to build/gpu_visit
#   bash bench/gpu_visit.sh [PART...]           there; results go to bench/results/gpu-PART.json
#
# The parts, in the order in which they are done where none is named: what everything else depends on comes first, and vLLM last.
# ratio and ratio-mps: SpecReason over its target alone, by batch size and acceptance, some twelve minutes together; on vLLM where that was
# brought. interference and mps: how two processes share the card, in time slices and under CUDA MPS. runs: whole runs on the torch engine.
# vllm: a run on vLLM.
#
# PYTHON names the interpreter that has torch, LIMIT the seconds that a part may take. OUT, where set, is a folder that gets a copy of the
# results.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
if [ "${1:-}" = prepare ]; then
  exec "$python" -m bench.gpu.visit "$@"
fi
home=build/gpu_visit
export PYTHONPATH=$PWD:$PWD/$home/site${PYTHONPATH:+:$PYTHONPATH}
if [ ! -e "$home/ready" ]; then
  # What was brought, beside the interpreter's own packages: torch and whatever else the machine has stays as it is.
  [ ! -d "$home/wheels" ] || "$python" -m pip install -qq --disable-pip-version-check --no-index --no-deps --no-compile --no-cache-dir \
    --target "$home/site" "$home"/wheels/*.whl
  mkdir -p "$home/site"
  [ ! -e "$home/vllm/site.tar.xz" ] || tar -C "$home/site" -xJf "$home/vllm/site.tar.xz"
  touch "$home/ready"
fi
# What vLLM does without where it was brought in parts.
export VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_USE_DEEP_GEMM=0 VLLM_MOE_USE_DEEP_GEMM=0
status=0
[ $# -gt 0 ] || set -- ratio ratio-mps interference mps runs vllm
for part in "$@"; do
  timeout "${LIMIT:-540}" "$python" -m bench.gpu.visit "$part" || { status=$?; echo "$part ended with $status" >&2; }
  [ -z "${OUT:-}" ] || cp -f bench/results/gpu-*.json "$OUT"/
done
exit "$status"
