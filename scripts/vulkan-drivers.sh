#!/bin/sh
# Copies Vulkan's loader and the installed drivers, with every library that they need and the base image does not have, below a folder,
# under the paths that they have here: scripts/vulkan-drivers.sh DEST. For images without a package manager.
set -eu

dest=$1
# Libraries of distroless's image for C++.
base='libc\.so\|libm\.so\|libdl\.so\|libpthread\.so\|librt\.so\|libgcc_s\.so\|libstdc++\.so\|ld-linux'

# Below /usr/lib also what lies in /lib, which is a link to that.
copy() {
    folder=$(readlink -f "$(dirname "$1")")
    mkdir -p "$dest$folder"
    cp -L "$1" "$dest$folder/"
}

mkdir -p "$dest"
for manifest in /usr/share/vulkan/icd.d/*.json; do
    copy "$manifest"
    driver=$(sed -n 's/.*"library_path": *"\([^"]*\)".*/\1/p' "$manifest")
    case $driver in
    /*) ;;
    *) driver=$(ldconfig -p | sed -n "s|.*$driver (.*) => ||p" | head -1) ;;
    esac
    echo "$driver"
done >"$dest/.libraries"
ldconfig -p | sed -n 's|.*libvulkan\.so\.1 (.*) => ||p' | head -1 >>"$dest/.libraries"
while read -r library; do
    copy "$library"
    ldd "$library" | sed -n 's|.* => \(/[^ ]*\) .*|\1|p' | grep -v "/\($base\)" | while read -r needed; do copy "$needed"; done
done <"$dest/.libraries"
rm "$dest/.libraries"
