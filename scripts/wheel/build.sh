#!/usr/bin/env bash
# Builds the wheels into dist/: one for each Python of PYTHONS (names in PATH, or paths). Python 3.10 and 3.11 get one
# each; what 3.12 or a newer one builds uses the stable ABI, and serves 3.12 and all newer ones.
#
# The engine and the command do not depend on Python: after the first interpreter ccache has them.
set -euo pipefail
cd "$(dirname "$0")/../.."

scripts/setup.sh
archives=$(scripts/wheel/static_libraries.sh)
work=$PWD/build-wheel
rm -rf "$work/new"
mkdir -p "$work" dist
for python in ${PYTHONS:-python3.10 python3.11 python3.12}; do
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])') || {
    echo "wheel: '$python' does not start. Name interpreters: make wheel PYTHONS=\"python3.10 /path/to/python3.12\"" >&2
    exit 1
  }
  tools=$work/tools-$version
  key=$({ cat requirements-wheel.lock; "$python" -c 'import sys; print(sys.version, sys.executable)'; } | sha256sum)
  if [ "$(cat "$tools/key" 2>/dev/null)" != "$key" ]; then
    echo "wheel: Python $version: tools"
    rm -rf "$tools"
    "$python" -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements-wheel.lock
    echo "$key" >"$tools/key"
  fi
  echo "wheel: Python $version: building"
  env PATH="$tools/bin:$PATH" CMAKE_BUILD_PARALLEL_LEVEL="${JOBS:-$(nproc)}" \
    "$tools/bin/pip" wheel . --quiet --disable-pip-version-check --no-build-isolation --no-deps \
    --wheel-dir "$work/new" --config-settings "build-dir=$work/cmake-$version" \
    --config-settings "cmake.define.KEEPSTEP_STATIC=$archives"
done
# The oldest C library that it runs with goes into its name; a library that is not everywhere is an error.
for wheel in "$work"/new/*.whl; do
  PATH="$tools/bin:$PATH" auditwheel repair --plat auto --only-plat --wheel-dir dist "$wheel" >"$work/log" 2>&1 || {
    cat "$work/log" >&2
    exit 1
  }
done
ls -sh1 dist
