#!/usr/bin/env bash
# Installs what keepstep needs on Debian 12: system packages by apt, Python packages for .venv.
#
#   scripts/setup.sh                    to build, run and test
#   scripts/setup.sh run [COMMAND...]   to build and run; then runs COMMAND. If .venv is new, COMMAND runs while pip
#                                       downloads: of the Python packages it finds only nanobind
#   scripts/setup.sh oldest             to test with the oldest Python and torch that are supported: .venv-oldest
#   scripts/setup.sh strangers          what strangers' training scripts use (tests/strangers)
#
# Python packages come from requirements*.lock, each with the SHA-256 of its files: nothing else is installed. They (torch
# is 5 GB) go into a cache under the home folder, keyed by the lock and the interpreter, and every clone's .venv points at
# it; without a writable home they go into .venv itself. Second runs do nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
part=${1:-test}
shift $(($# > 0))

say() { echo "setup: $*"; }

# install_system PACKAGE...: those that are missing.
install_system() {
  local package missing=() sudo=()
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "setup: ${missing[*]} are missing: run this as root, or install sudo" >&2; exit 1; }
    sudo=(sudo)
  fi
  say "apt: installing ${#missing[@]} packages and what they need: ${missing[*]}"
  "${sudo[@]}" apt-get update -qq
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive LC_ALL=C apt-get install -y --no-install-recommends "${missing[@]}" \
    </dev/null | python3 scripts/progress.py apt
  say "apt: done after $SECONDS s"
}

packages=(
  g++ cmake ninja-build ccache pkg-config python3-venv python3-dev
  libprotobuf-dev protobuf-compiler libabsl-dev libssl-dev
  libspdlog-dev libfmt-dev nlohmann-json3-dev libcli11-dev libxxhash-dev libyaml-cpp-dev libre2-dev libgtest-dev libgmock-dev
  libsimdjson-dev zlib1g-dev libzstd-dev libcurl4-openssl-dev libtinyxml2-dev libisal-dev
)
packages_of_tests=(iproute2 iperf3 slurmctld slurmd slurm-client munge)
[ "$part" = run ] || packages+=("${packages_of_tests[@]}")
install_system "${packages[@]}"

cache_root=${XDG_CACHE_HOME:-$HOME/.cache}/keepstep

# Nothing but the files that a lock names: install_locked PIP LOCK PIP-OPTION...
install_locked() {
  local install=("$1" install --disable-pip-version-check --require-hashes --no-deps -r "$2" "${@:3}")
  if [ -t 1 ]; then "${install[@]}"; else "${install[@]}" | python3 scripts/progress.py pip; fi
}
# The same, into a folder that is there whole or not at all: install_into FOLDER PIP LOCK
install_into() (
  partial=$(mktemp -d "$1.XXXXXX")  # of this process alone: two clones may be set up at once
  trap 'rm -rf "$partial"' EXIT
  trap 'exit 143' TERM  # once pip, which writes there, has ended
  chmod 755 "$partial"
  install_locked "$2" "$3" --target "$partial"
  mv -T "$partial" "$1" 2>/dev/null || [ -d "$1" ]
)
# cached NAME LOCK ENVIRONMENT: what LOCK names, as a folder of the cache; without a writable home in ENVIRONMENT itself,
# and then $folder is empty.
cached() {
  folder=$cache_root/$1-$(key_of "$2")
  if [ ! -d "$folder" ] && ! { mkdir -p "$cache_root" && [ -w "$cache_root" ]; } 2>/dev/null; then
    folder=
    say "installing the Python packages of $2"
    install_locked "$3/bin/pip" "$2"
  elif [ ! -d "$folder" ]; then
    say "installing the Python packages of $2 into $folder"
    install_into "$folder" "$3/bin/pip" "$2"
    say "$(du -sh "$folder" | cut -f1) of Python packages are there after $SECONDS s"
  fi
}
new='' log='' downloading=''
stop() {
  [ -z "$downloading" ] || { kill -- "-$downloading" && wait "$downloading" || true; } 2>/dev/null
  rm -rf "$new" "$log"
}
trap stop EXIT

if [ "$part" = strangers ]; then
  scripts/setup.sh
  folder=$cache_root/strangers-$(cat requirements-strangers.lock .venv/.keepstep-key | sha256sum | cut -c1-16)
  mkdir -p "$cache_root"
  if [ ! -d "$folder" ]; then
    say "installing the packages of strangers' scripts into $folder"
    install_into "$folder" .venv/bin/pip requirements-strangers.lock  # all are named: torch is not among them
  fi
  echo "$folder" > .venv/.keepstep-strangers
  exit
fi

venv=.venv requirements=requirements.lock python=${PYTHON:-python3}
# The interpreters of this checkout's environments are none to make one of: with an environment activated they come first.
PATH=$(tr ':' '\n' <<<"$PATH" | grep -vxF -e "$PWD/.venv/bin" -e "$PWD/.venv-oldest/bin" | paste -sd:)
if [ "$part" = oldest ]; then
  venv=.venv-oldest requirements=requirements-oldest.lock python=${OLDEST_PYTHON:-}
  if [ -z "$python" ]; then  # the oldest that is here; a name alone proves nothing (shims)
    for python in python3.10 python3; do "$python" -c '' 2>/dev/null && break; done
  fi
fi
# The interpreter itself, even if a virtual environment's was named: under the name python3 where that is the same one.
interpreter='
import os, sys
base = os.path.abspath(sys._base_executable)
plain = os.path.join(os.path.dirname(base), "python3")
print(plain if os.path.exists(plain) and os.path.samefile(plain, base) else base)
sys.exit(sys.version_info < (3, 10))'
python=$("$python" -c "$interpreter") || { echo "setup: Python 3.10 or newer is needed (set PYTHON=)" >&2; exit 1; }
key_of() { { cat "$1"; "$python" -c 'import sys; print(sys.version, sys.executable)'; } | sha256sum | cut -c1-16; }
key=$(key_of $requirements)
site_of() { "$1/bin/python" -c 'import site; print(site.getsitepackages()[0])'; }

# begin ENVIRONMENT: an interpreter with nanobind, which is enough to compile.
begin() {
  "$python" -m venv --prompt $venv "$1"
  local nanobind="$1/nanobind.lock"
  sed -n '/^nanobind==/,/[^\\]$/p' $requirements > "$nanobind"
  [ ! -s "$nanobind" ] || install_locked "$1/bin/pip" "$nanobind" --quiet
  echo "$key" > "$1/.keepstep-begun"
}
# complete ENVIRONMENT: all other packages, and keepstep's own sources.
complete() {
  local site folder
  site=$(site_of "$1")
  cached packages $requirements "$1"
  if [ -n "$folder" ]; then
    echo "$folder" > "$site/keepstep-packages.pth"
    ln -sf "$folder/bin/py-spy" "$1/bin/py-spy"  # a program of its own: found beside the interpreter
  fi
  echo "$PWD/python" > "$site/keepstep-source.pth"
  # What an install would tell about the package: torch finds the backend by it (the same text as in pyproject.toml).
  mkdir -p "$site/keepstep-source.dist-info"
  printf 'Metadata-Version: 2.1\nName: keepstep-source\nVersion: 0\n' > "$site/keepstep-source.dist-info/METADATA"
  "$python" - > "$site/keepstep-source.dist-info/entry_points.txt" <<'PY'
lines = open("pyproject.toml").read().splitlines()
for number, line in enumerate(lines):
    if line.startswith("[project.entry-points."):
        print("[" + line.split('"')[1] + "]")
        print(lines[number + 1].replace('"', ""))
PY
  echo "$key" > "$1/.keepstep-key"
}
# complete_beside COMMAND...: completes the environment that was just begun while COMMAND runs.
complete_beside() {
  say "the other Python packages follow meanwhile"
  log=$(mktemp)
  set -m  # a process group of its own, so that all of it can be ended
  (trap 'exit 143' TERM && complete "$PWD/$venv") >"$log" 2>&1 </dev/null &
  downloading=$!
  set +m
  "$@"
  if kill -0 "$downloading" 2>/dev/null; then
    say "waiting for the Python packages"
    tail -n +1 -f --pid="$downloading" "$log"
  else
    tail -n 1 "$log"
  fi
  wait "$downloading" || { downloading=; cat "$log" >&2; exit 1; }
  downloading=
}

if [ "$(cat $venv/.keepstep-key 2>/dev/null)" != "$key" ]; then
  if [ "$(cat $venv/.keepstep-begun 2>/dev/null)" != "$key" ]; then
    # Built beside the one that is there, which stays as it is until this one is whole.
    new=$PWD/$venv.new
    rm -rf "$new"
    say "making $venv"
    begin "$new"
    if [ ! -e $venv ]; then  # nothing to lose: this one can be used to compile until it is whole
      "$python" scripts/swap_environment.py "$new" "$PWD/$venv"
      new=
    fi
  fi
  if [ -n "$new" ]; then
    complete "$new"
    # What the link leads to is the build folder's command, whose `make build` made it.
    [ ! -L $venv/bin/keepstep ] || cp -P $venv/bin/keepstep "$new/bin/"
    "$python" scripts/swap_environment.py "$new" "$PWD/$venv"
  elif [ $# -gt 0 ]; then
    complete_beside "$@"
    set --
  else
    complete "$PWD/$venv"
  fi
fi

if [ "$part" = test ]; then
  lock=requirements-tests.lock
  if [ "$(cat $venv/.keepstep-tests 2>/dev/null)" != "$(key_of $lock)" ]; then
    cached tests $lock "$PWD/$venv"
    [ -z "$folder" ] || echo "$folder" > "$(site_of $venv)/keepstep-tests.pth"
    key_of $lock > $venv/.keepstep-tests
  fi
fi

[ $# = 0 ] || "$@"
