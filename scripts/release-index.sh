#!/bin/sh
# Completes the folder of a release, which has its archives: writes SHA256SUMS, install.sh and Homebrew's formula for their URL:
# scripts/release-index.sh DIR URL HOMEPAGE.
set -eu
cd "$(dirname "$0")/.."

dir=$1
url=$2
homepage=$3
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
(cd "$dir" && rm -f SHA256SUMS && sha256sum -- *.tar.gz *.deb >SHA256SUMS)

# Prints the SHA-256 of a platform's archive.
sum() {
    sed -n "s/^\([0-9a-f]*\)  warmpath-$version-$1\.tar\.gz\$/\1/p" "$dir/SHA256SUMS" | grep . || {
        echo "release-index: there is no archive for $1" >&2
        exit 1
    }
}

macos=$(sum macos-arm64)
intel=$(sum linux-x86_64)
arm=$(sum linux-aarch64)
sed -e "s|@VERSION@|$version|" -e "s|:-@URL@}|:-$url}|" scripts/install.sh >"$dir/install.sh"
sed -e "s|@VERSION@|$version|" -e "s|@URL@|$url|" -e "s|@HOMEPAGE@|$homepage|" \
    -e "s|@MACOS_ARM64@|$macos|" -e "s|@LINUX_X86_64@|$intel|" -e "s|@LINUX_AARCH64@|$arm|" \
    deploy/homebrew/warmpath.rb >"$dir/warmpath.rb"
