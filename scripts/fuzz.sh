#!/usr/bin/env bash
# Builds the libFuzzer targets with clang 19 (installed if missing) and ASan/UBSan, and runs each: scripts/fuzz.sh [SECONDS]
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
if ! dpkg-query -W clang-19 libclang-rt-19-dev >/dev/null 2>&1; then
  sudo=""; [ "$(id -u)" = 0 ] || sudo=sudo
  $sudo apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends clang-19 libclang-rt-19-dev >/dev/null
fi
build=build-fuzz
cmake -S . -B "$build" -G Ninja -DCMAKE_CXX_COMPILER=clang++-19 -DKEEPSTEP_FUZZ=ON -DKEEPSTEP_SANITIZE=address \
  -DKEEPSTEP_CONTROL_PLANE=OFF -DKEEPSTEP_PYTHON_MODULE=OFF -DKEEPSTEP_TESTS=OFF >/dev/null
ninja -C "$build" fuzzers | tail -n 1
for fuzzer in "$build"/keepstep_*_fuzz; do
  corpus=$build/corpus/$(basename "$fuzzer")
  mkdir -p "$corpus"
  echo "fuzz: $(basename "$fuzzer") for $seconds s"
  "$fuzzer" -max_total_time="$seconds" -max_len=8192 -use_value_profile=1 -print_final_stats=1 "$corpus" 2>&1 | tail -n 6
done
