#!/usr/bin/env bash
# Builds the engine (no Python) with a sanitizer and runs its tests: scripts/sanitize.sh address|thread
set -euo pipefail
cd "$(dirname "$0")/.."
kind=$1
build=build-$kind
cmake -S . -B "$build" -G Ninja -DKEEPSTEP_SANITIZE="$kind" -DKEEPSTEP_CONTROL_PLANE=OFF \
  -DKEEPSTEP_PYTHON_MODULE=OFF >/dev/null
ninja -C "$build" | tail -n 1
echo "sanitizer: $kind"
export TSAN_OPTIONS="suppressions=$PWD/scripts/thread_sanitizer.supp"
ctest --test-dir "$build" --output-on-failure --timeout 900 | tail -n 15
