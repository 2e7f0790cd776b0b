#!/usr/bin/env bash
# Writes requirements*.lock: what is named in requirements*.txt and all that this needs, for every platform and
# Python that is supported, each file by its SHA-256. scripts/setup.sh installs nothing else. `make lock`, after a change
# of a requirements*.txt; --upgrade also takes newer versions of what is not pinned there.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
tool=$(mktemp -d)
trap 'rm -rf "$tool"' EXIT
.venv/bin/pip install --quiet --disable-pip-version-check --target "$tool" uv==0.13.9

# lock NAME PYTHON OPTION...: for this Python and newer ones.
lock() {
  "$tool/bin/uv" pip compile --quiet --universal --python-version "$2" --generate-hashes --no-annotate --no-header \
    --no-emit-index-url --no-emit-find-links --output-file "$1.lock" "$1.txt" "${@:3}"
}
lock requirements 3.10 "$@"
# On top of those: the same versions, and without what they bring.
mapfile -t without < <(sed -En 's/^([^ =]+)==.*/--no-emit-package=\1/p' requirements.lock | sort -u)
lock requirements-tests 3.10 --constraints requirements.lock "${without[@]}" "$@"
lock requirements-oldest 3.10 "$@"
lock requirements-docs 3.11 "$@"
lock requirements-wheel 3.10 "$@"
lock requirements-strangers 3.11 --no-deps "$@"
