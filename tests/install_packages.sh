#!/bin/sh
# Installs the Debian packages that are missing, asking sudo where not root. Usage: tests/install_packages.sh PACKAGE...
set -eu
missing=
for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
echo "installing:$missing"
as_root=
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "not root and no sudo: install these packages first:$missing" >&2; exit 1; }
    as_root=sudo
fi
# shellcheck disable=SC2086 # both are lists of words
{
    # Of another architecture, as package:arm64.
    for architecture in $(printf '%s\n' $missing | sed -n 's/.*://p' | sort -u); do
        $as_root dpkg --add-architecture "$architecture"
    done
    $as_root apt-get update -qq
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
}
