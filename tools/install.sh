#!/usr/bin/env bash
# install.sh build|test - installs the Debian or Ubuntu packages that are missing; does nothing, and needs no network,
# when they are all there.
set -euo pipefail

packages="gcc libc6-dev cmake ninja-build pkg-config libsqlite3-dev libjansson-dev libpcre2-dev libssl-dev"
case ${1:-} in
build) ;;
test) packages+=" libcmocka-dev python3 python3-numpy sqlite3 clang libclang-rt-dev libomp-dev clang-format-14 groff-base
    gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user" ;;
*)
    echo "usage: install.sh build|test" >&2
    exit 64
    ;;
esac

if ! command -v dpkg-query >/dev/null; then
    echo "This is not Debian or Ubuntu; the counterparts of these packages are needed:" >&2
    echo "  $packages" >&2
    exit 0
fi

missing=()
for package in $packages; do
    state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$state" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "Missing packages, and neither root nor sudo to install them: ${missing[*]}" >&2
        exit 1
    fi
    as_root=(sudo)
fi
echo "Installing ${missing[*]}"
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq update
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
