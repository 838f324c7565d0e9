#!/bin/sh
# Installs the packages with which a worker with the Vulkan backend is compiled, and a Vulkan device that needs no GPU
# (Mesa's llvmpipe), on Debian and Ubuntu. Prints the variables to build and run with, one a line: env
# $(scripts/vulkan.sh) cargo build ... Elsewhere it says what is missing. Debian 12's Vulkan headers are too old for
# llama.cpp: those of Debian 13 are unpacked into target/vulkan, headers only.
set -eu
cd "$(dirname "$0")/.."

# The oldest headers that llama.cpp is known to compile with.
headers_min=1.4.309
headers_release=trixie
# The oldest LLVM with which tests of the engine passed on Mesa's llvmpipe. With LLVM 15 some of them fail.
llvm_min=19
sdk=$PWD/target/vulkan

have() { command -v "$1" >/dev/null 2>&1; }
# Succeeds if version $1 is at least $2.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -1)" = "$2" ]; }

missing=''
need() { missing="$missing $1"; }
have glslc || need glslc
have vulkaninfo || need vulkan-tools
[ -e /usr/include/vulkan/vulkan.hpp ] || [ -n "${VULKAN_SDK:-}" ] || need libvulkan-dev
[ -e /usr/include/spirv/unified1/spirv.hpp ] || [ -n "${VULKAN_SDK:-}" ] || need spirv-headers
ls /usr/share/vulkan/icd.d/*.json >/dev/null 2>&1 || need mesa-vulkan-drivers
if [ -n "$missing" ]; then
    # shellcheck disable=SC2086 # the list of names is split on purpose
    scripts/apt-install.sh vulkan $missing || {
        echo "vulkan: please install, as root:$missing (names of Debian packages), or the Vulkan SDK" >&2
        exit 1
    }
fi

# Prints the version of the headers below folder $1.
version_of() {
    complete=$(sed -n 's/^#define VK_HEADER_VERSION_COMPLETE VK_MAKE_API_VERSION(0, \([0-9]*\), \([0-9]*\), VK_HEADER_VERSION)/\1.\2/p' "$1/vulkan/vulkan_core.h")
    patch=$(sed -n 's/^#define VK_HEADER_VERSION \([0-9]*\)$/\1/p' "$1/vulkan/vulkan_core.h")
    echo "$complete.$patch"
}

# Unpacks the headers of a later release of Debian.
fetch_headers() {
    work=$(mktemp -d)
    chmod 755 "$work"
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/parts" "$sdk"
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    echo "deb [signed-by=$keys] http://deb.debian.org/debian $headers_release main" >"$work/sources.list"
    (
        apt="apt-get -qq -o Dir::Etc::SourceList=$work/sources.list -o Dir::Etc::SourceParts=$work/parts -o Dir::State::Lists=$work/lists"
        apt="$apt -o Dir::Cache=$work/cache -o Debug::NoLocking=1 -o APT::Sandbox::User="
        cd "$work"
        # shellcheck disable=SC2086 # the command is split on purpose
        $apt update && $apt download libvulkan-dev
    ) >&2 || {
        echo "vulkan: cannot download libvulkan-dev of $headers_release" >&2
        exit 1
    }
    dpkg -x "$work"/libvulkan-dev_*.deb "$work/unpacked"
    rm -rf "$sdk/include"
    mv "$work/unpacked/usr/include" "$sdk/include"
    rm -rf "$work"
}

# llama.cpp leaves out a device that is the processor itself, unless it is asked for.
devices=$(vulkaninfo --summary 2>/dev/null || true)
if [ -z "${GGML_VK_VISIBLE_DEVICES:-}" ] && ! echo "$devices" | grep -q 'deviceType .*_GPU'; then
    echo "GGML_VK_VISIBLE_DEVICES=0"
    llvm=$(echo "$devices" | sed -n 's/.*deviceName *= llvmpipe (LLVM \([0-9.]*\).*/\1/p' | head -1)
    [ -z "$llvm" ] || at_least "$llvm" "$llvm_min" ||
        echo "vulkan: llvmpipe has LLVM $llvm, and may crash or compute wrong tokens before $llvm_min; see docs/accelerators.md" >&2
fi
if [ -n "${VULKAN_SDK:-}" ]; then
    echo "VULKAN_SDK=$VULKAN_SDK"
elif ! at_least "$(version_of /usr/include)" "$headers_min"; then
    [ -e "$sdk/include/vulkan/vulkan.hpp" ] || fetch_headers
    echo "VULKAN_SDK=$sdk"
fi
