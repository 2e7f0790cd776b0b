#!/usr/bin/env bash
# Installs what keepstep needs to build, run and test on Debian 12: system packages by apt, Python packages for .venv.
# scripts/setup.sh oldest: the same for .venv-oldest, with the oldest Python and torch that are supported.
#
# Python packages (torch is 5 GB) go into a cache under the home folder, keyed by the requirements and the interpreter,
# and every clone's .venv points at it; without a writable home they go into .venv itself. Second runs do nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  g++ cmake ninja-build ccache pkg-config python3-venv python3-dev
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libabsl-dev libssl-dev
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

venv=.venv requirements=requirements.txt python=${PYTHON:-python3}
if [ "${1:-}" = oldest ]; then
  venv=.venv-oldest requirements=requirements-oldest.txt python=${OLDEST_PYTHON:-}
  if [ -z "$python" ]; then  # the oldest that is here; a name alone proves nothing (shims)
    for python in python3.10 python3; do "$python" -c '' 2>/dev/null && break; done
  fi
fi
"$python" - <<'PY' || { echo "setup: Python 3.10 or newer is needed (set PYTHON=)" >&2; exit 1; }
import sys
sys.exit(sys.version_info < (3, 10))
PY
key=$({ cat $requirements; "$python" -c 'import sys; print(sys.version, sys.executable)'; } | sha256sum | cut -c1-16)

if [ "$(cat $venv/.keepstep-key 2>/dev/null)" != "$key" ]; then
  rm -rf $venv
  "$python" -m venv $venv
  site=$($venv/bin/python -c 'import site; print(site.getsitepackages()[0])')
  cache=${XDG_CACHE_HOME:-$HOME/.cache}/keepstep/packages-$key
  if [ ! -d "$cache" ] && mkdir -p "$(dirname "$cache")" 2>/dev/null && [ -w "$(dirname "$cache")" ]; then
    echo "setup: installing Python packages (torch among them) into $cache"
    partial=$(mktemp -d "$cache.XXXXXX")  # of this process alone: two clones may be set up at once
    trap 'rm -rf "$partial"' EXIT
    chmod 755 "$partial"
    $venv/bin/pip install --quiet --disable-pip-version-check --target "$partial" -r $requirements
    mv -T "$partial" "$cache" 2>/dev/null || [ -d "$cache" ]  # whole or absent
  fi
  if [ -d "$cache" ]; then
    echo "$cache" > "$site/keepstep-packages.pth"
    ln -sf "$cache/bin/py-spy" $venv/bin/py-spy  # a program of its own: found beside the interpreter
  else
    $venv/bin/pip install --quiet --disable-pip-version-check -r $requirements
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
  echo "$key" > $venv/.keepstep-key
fi
