#!/usr/bin/env bash
# Several pytests at once, each taking the next file of tests that no other has: scripts/test_python.sh PYTEST-OPTION...
# What the second one and others say comes when all have ended. PYTESTS: how many; a test keeps about one CPU busy, with
# pauses, so three fill two CPUs.
set -uo pipefail
cd "$(dirname "$0")/.."
count=${PYTESTS:-3}
unset PYTHONDONTWRITEBYTECODE  # else each of many hundred jobs would compile our modules anew
folder=$(mktemp -d)
pids=()
# Ctrl-C reaches all pytests; each ends what its tests started.
trap 'wait; rm -rf "$folder"; exit 130' INT
trap 'kill -INT "${pids[@]}" 2>/dev/null; wait; rm -rf "$folder"; exit 143' TERM
mkdir "$folder/taken"
for ((i = 1; i <= count; ++i)); do
  command=("${PYTHON:-.venv/bin/python}" -m pytest -q -p no:cacheprovider -o console_output_style=classic
    --share "$folder/taken" "$@")
  if ((i == 1)); then "${command[@]}" & else "${command[@]}" >"$folder/$i.txt" 2>&1 & fi
  pids+=($!)
done
failed=0
for pid in "${pids[@]}"; do wait "$pid" || failed=$?; done
for ((i = 2; i <= count; ++i)); do cat "$folder/$i.txt"; done
rm -rf "$folder"
exit "$failed"
