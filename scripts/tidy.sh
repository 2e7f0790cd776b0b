#!/usr/bin/env bash
# Runs clang-tidy 19 (installed if missing) over the C++ sources, without tests and bindings (which take addresses as
# integers, and handles by value); the checks are in .clang-tidy.
# A file found clean is looked at again only when it, a header or the checks changed (stamps in build/tidy). Needs a
# configured and built build/: compile commands, and the headers made from src/proto.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v clang-tidy-19 >/dev/null; then
  sudo=""; [ "$(id -u)" = 0 ] || sudo=sudo
  $sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends clang-tidy-19 >/dev/null
fi
newest_header=$(find src include .clang-tidy -name '*.h' -o -name .clang-tidy | xargs ls -t | sed -n 1p)
stale=()
while read -r file; do
  stamp=build/tidy/$file
  [ "$stamp" -nt "$file" ] && [ "$stamp" -nt "$newest_header" ] || stale+=("$file")
done < <(find src -name '*.cc' ! -name '*_test.cc' ! -path 'src/bindings/*' | sort)
[ ${#stale[@]} -gt 0 ] || exit 0
echo "clang-tidy: ${#stale[@]} files"
check() {
  local found
  if found=$(clang-tidy-19 -p build --quiet "$1" 2>/dev/null); then
    mkdir -p "build/tidy/$(dirname "$1")" && touch "build/tidy/$1"
  else
    echo "$found"
    return 1
  fi
}
export -f check
printf '%s\n' "${stale[@]}" | xargs -P "$(nproc)" -I{} bash -c 'check {}'
