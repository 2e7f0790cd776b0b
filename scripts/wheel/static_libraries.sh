#!/usr/bin/env bash
# Makes the archives that a wheel links in place of what Debian's packages have, and prints the folder they are in
# (KEEPSTEP_STATIC in CMakeLists.txt; the headers are those of the packages). docs/design/dependencies.md says what is
# wrong with Debian's.
#
# The sources are those of the -dev packages that are installed, with Debian's patches; apt checks their signatures. The
# result is kept in the cache under the home folder until one of these packages, or this file, changes.
set -euo pipefail

libraries=(libabsl-dev libcurl4-openssl-dev libfmt-dev libisal-dev libsimdjson-dev libspdlog-dev libtinyxml2-dev
  libxxhash-dev)
sources=$(dpkg-query -W -f='${source:Package}=${source:Version}\n' "${libraries[@]}")
key=$({ echo "$sources"; dpkg-query -W libssl-dev g++; cat "$0"; } | sha256sum | cut -c1-16)
archives=${XDG_CACHE_HOME:-$HOME/.cache}/keepstep/static-$key
if [ -d "$archives" ]; then
  echo "$archives"
  exit
fi

missing=()
for package in nasm dpkg-dev; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  sudo=""; [ "$(id -u)" = 0 ] || sudo=sudo
  $sudo apt-get update -qq >&2
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

work=$(mktemp -d)
mkdir -p "$(dirname "$archives")"
partial=$(mktemp -d "$archives.XXXXXX")
touch "$work/log"
trap 'status=$?; [ $status = 0 ] || tail -n 40 "$work/log" >&2; rm -rf "$work" "$partial"' EXIT
cd "$work"

# The machine's own sources of packages, asked for source packages; its lists of packages stay as they are.
mkdir -p parts lists/partial
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
  name=$(basename "$file")
  [ "$name" != sources.list ] || name=main.list
  [ ! -f "$file" ] || sed -E 's/^Types:.*/Types: deb-src/; s/^deb /deb-src /' "$file" >"parts/$name"
done
apt_get=(apt-get -qq -o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$work/parts"
  -o "Dir::State::Lists=$work/lists" -o APT::Sandbox::User=root)
"${apt_get[@]}" update >&2 || true  # a third party without source packages is no reason to stop
for source in $sources; do
  echo "wheel: fetching the source of $source" >&2
  "${apt_get[@]}" source --only-source "$source" >"$work/log" 2>&1 || {
    echo "wheel: the source of $source is not to be had; if it was superseded: apt-get upgrade" >&2
    exit 1
  }
done

# Debian's flags, position-independent.
export CFLAGS="-O2 -g1 -fPIC -fvisibility=hidden -fstack-protector-strong -D_FORTIFY_SOURCE=2" CXXFLAGS
CXXFLAGS=$CFLAGS
jobs=${JOBS:-$(nproc)}
exec 3>&2
with_cmake() {  # NAME CMAKE-OPTION...
  echo "wheel: building $1" >&3
  local folder=("$1"-*/)
  cmake -S "${folder[0]}" -B "$1" -G Ninja -DCMAKE_BUILD_TYPE=None -DBUILD_SHARED_LIBS=OFF -DBUILD_TESTING=OFF "${@:2}"
  cmake --build "$1" -j "$jobs"
  find "$1" -name '*.a' -exec mv -t "$partial" {} +
} >>"$work/log" 2>&1
with_cmake abseil -DCMAKE_CXX_STANDARD=17
with_cmake fmtlib -DFMT_TEST=OFF -DFMT_DOC=OFF
with_cmake spdlog -DSPDLOG_FMT_EXTERNAL=ON -DSPDLOG_BUILD_EXAMPLE=OFF
with_cmake simdjson
with_cmake tinyxml2
# HTTP and HTTPS, nothing else. No path of certificates is built in: src/checkpoint/s3/trusted_certificates.h.
with_cmake curl -DHTTP_ONLY=ON -DCURL_USE_OPENSSL=ON -DBUILD_CURL_EXE=OFF -DCURL_CA_BUNDLE=none -DCURL_CA_PATH=none \
  -DCURL_ZLIB=OFF -DUSE_LIBIDN2=OFF -DCURL_USE_LIBPSL=OFF -DCURL_USE_LIBSSH2=OFF -DENABLE_UNIX_SOCKETS=OFF \
  -DENABLE_MANUAL=OFF -DCURL_DISABLE_NETRC=ON -DCURL_DISABLE_NTLM=ON
echo "wheel: building libisal and xxhash" >&2
{
  make -C libisal-*/ -f Makefile.unx -j "$jobs" lib CFLAGS_="$CFLAGS"
  cp libisal-*/bin/isa-l.a "$partial/libisal.a"
  (cd xxhash-*/ && gcc $CFLAGS -c xxhash.c xxh_x86dispatch.c)
  ar rcs "$partial/libxxhash.a" xxhash-*/xxhash.o xxhash-*/xxh_x86dispatch.o
  # Both OpenSSL and ISA-L have a function of this name. Nobody but OpenSSL itself calls OpenSSL's.
  objcopy --redefine-sym gf_mul=openssl_gf_mul "$(gcc -print-file-name=libcrypto.a)" "$partial/libcrypto.a"
} >>"$work/log" 2>&1
chmod 755 "$partial"
mv -T "$partial" "$archives" 2>/dev/null || [ -d "$archives" ]
echo "$archives"
