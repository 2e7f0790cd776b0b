#!/usr/bin/env bash
# Formats the C++ sources with clang-format 19 (installed if missing); --check only tells.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v clang-format-19 >/dev/null; then
  sudo=""; [ "$(id -u)" = 0 ] || sudo=sudo
  $sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends clang-format-19 >/dev/null
fi
mode=-i
[ "${1:-}" = --check ] && mode="--dry-run --Werror"
find src include -name '*.h' -o -name '*.cc' | sort | xargs clang-format-19 $mode
