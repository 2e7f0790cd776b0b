#!/usr/bin/env bash
# Installs what keepstep needs to build, run and test on Debian 12: system packages by apt, Python packages for .venv.
# scripts/setup.sh oldest: the same for .venv-oldest, with the oldest Python and torch that are supported.
#
# Python packages come from requirements*.lock, each with the SHA-256 of its files: nothing else is installed. They (torch
# is 5 GB) go into a cache under the home folder, keyed by the lock and the interpreter, and every clone's .venv points at
# it; without a writable home they go into .venv itself. Second runs do nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  g++ cmake ninja-build ccache pkg-config python3-venv python3-dev
  libprotobuf-dev protobuf-compiler libabsl-dev libssl-dev
  libspdlog-dev libfmt-dev nlohmann-json3-dev libcli11-dev libxxhash-dev libyaml-cpp-dev libre2-dev libgtest-dev libgmock-dev
  libsimdjson-dev zlib1g-dev libzstd-dev libcurl4-openssl-dev libtinyxml2-dev libisal-dev
  iproute2 iperf3 slurmctld slurmd slurm-client munge
)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  sudo=""
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "setup: ${missing[*]} are missing: run this as root, or install sudo" >&2; exit 1; }
    sudo=sudo
  fi
  echo "setup: installing ${missing[*]}"
  $sudo apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

cache_root=${XDG_CACHE_HOME:-$HOME/.cache}/keepstep

# Nothing but the files that a lock names: install_locked PIP LOCK PIP-OPTION...
install_locked() {
  "$1" install --quiet --disable-pip-version-check --require-hashes --no-deps -r "$2" "${@:3}"
}
# The same, into a folder that is there whole or not at all: install_into FOLDER PIP LOCK
install_into() {
  local folder=$1
  partial=$(mktemp -d "$folder.XXXXXX")  # of this process alone: two clones may be set up at once
  chmod 755 "$partial"
  install_locked "$2" "$3" --target "$partial"
  mv -T "$partial" "$folder" 2>/dev/null || [ -d "$folder" ]
}
partial='' new=''
trap 'rm -rf "$partial" "$new"' EXIT

if [ "${1:-}" = strangers ]; then
  scripts/setup.sh
  site=$(.venv/bin/python -c 'import site; print(site.getsitepackages()[0])')
  packages=$cache_root/strangers-$(cat requirements-strangers.lock .venv/.keepstep-key | sha256sum | cut -c1-16)
  mkdir -p "$cache_root"
  if [ ! -d "$packages" ]; then
    echo "setup: installing the packages of strangers' scripts into $packages"
    install_into "$packages" .venv/bin/pip requirements-strangers.lock  # all are named: torch is not among them
  fi
  echo "$packages" > .venv/.keepstep-strangers
  exit
fi

venv=.venv requirements=requirements.lock python=${PYTHON:-python3}
# The interpreters of this checkout's environments are none to make one of: with an environment activated they come first.
PATH=$(tr ':' '\n' <<<"$PATH" | grep -vxF -e "$PWD/.venv/bin" -e "$PWD/.venv-oldest/bin" | paste -sd:)
if [ "${1:-}" = oldest ]; then
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
key=$({ cat $requirements; "$python" -c 'import sys; print(sys.version, sys.executable)'; } | sha256sum | cut -c1-16)

if [ "$(cat $venv/.keepstep-key 2>/dev/null)" != "$key" ]; then
  # Built beside the one that is there, which stays as it is until this one is whole.
  new=$PWD/$venv.new
  rm -rf "$new"
  "$python" -m venv --prompt $venv "$new"
  site=$("$new/bin/python" -c 'import site; print(site.getsitepackages()[0])')
  cache=$cache_root/packages-$key
  if [ ! -d "$cache" ] && mkdir -p "$cache_root" 2>/dev/null && [ -w "$cache_root" ]; then
    echo "setup: installing Python packages (torch among them) into $cache"
    install_into "$cache" "$new/bin/pip" $requirements
  fi
  if [ -d "$cache" ]; then
    echo "$cache" > "$site/keepstep-packages.pth"
    ln -sf "$cache/bin/py-spy" "$new/bin/py-spy"  # a program of its own: found beside the interpreter
  else
    install_locked "$new/bin/pip" $requirements
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
  echo "$key" > "$new/.keepstep-key"
  # What the link leads to is the build folder's command, whose `make build` made it.
  [ ! -L $venv/bin/keepstep ] || cp -P $venv/bin/keepstep "$new/bin/"
  "$python" scripts/swap_environment.py "$new" "$PWD/$venv"
fi
