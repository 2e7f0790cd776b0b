#!/usr/bin/env bash
# Builds one of the S3 servers that tests run against, if the cache lacks it, and prints where it is.
#
#   tests/servers/build.sh versitygw|minio
#
# The versions are pinned by go.mod and go.sum beside this file; the folder in the cache is named after them, so a changed
# pin builds anew and a warm cache needs no Go. Without Go, or when the build fails, it exits with 3 and the last line on
# standard error says why.
set -euo pipefail
cd "$(dirname "$0")"

server=${1:-}
case $server in
  versitygw) package=github.com/versity/versitygw/cmd/versitygw ;;
  minio) package=github.com/minio/minio ;;
  *) echo "tests/servers/build.sh: versitygw or minio, not '$server'" >&2; exit 2 ;;
esac
cache=${XDG_CACHE_HOME:-$HOME/.cache}/keepstep/servers
key=$(cat "$server/go.mod" "$server/go.sum" | sha256sum | cut -c1-16)
program=$cache/$server-$key
if [ -x "$program" ]; then
  echo "$program"
  exit 0
fi
command -v go >/dev/null || { echo "$server is built with Go, and there is none" >&2; exit 3; }
mkdir -p "$cache"
exec 8>"$cache/$server.lock"  # one build at a time; the others find it done
flock 8
if [ ! -x "$program" ]; then
  partial=$(mktemp "$program.XXXXXX")
  trap 'rm -f "$partial"' EXIT
  (cd "$server" && CGO_ENABLED=0 GOWORK=off GOFLAGS=-mod=readonly nice go build -trimpath -buildvcs=false \
    -ldflags="-s -w" -o "$partial" "$package") >&2 || { echo "$server could not be built" >&2; exit 3; }
  chmod 755 "$partial"
  mv "$partial" "$program"
fi
echo "$program"
