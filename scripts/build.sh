#!/usr/bin/env bash
# Configures, if that was not done yet, and builds: scripts/build.sh [TARGET...], everything if none is named.
# A terminal shows ninja's own status; elsewhere there is a line for each tenth. Messages of the compiler come whole.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build} jobs=${JOBS:-$(nproc)}

if [ ! -f "$build/build.ninja" ]; then
  echo "build: configuring into $build"
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo "-DPython_EXECUTABLE=$PWD/.venv/bin/python" >/dev/null
fi
export NINJA_STATUS='[%f/%t, %es] '
if [ -t 1 ]; then
  ninja -C "$build" -j "$jobs" "$@"
else
  ninja -C "$build" -j "$jobs" "$@" | python3 scripts/progress.py ninja
fi
ln -sf "$PWD/$build/keepstep" .venv/bin/keepstep
echo "build: ready after $SECONDS s"
