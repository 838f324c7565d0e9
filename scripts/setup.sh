#!/bin/sh
# Installs the packages that the build needs besides Rust: a C++ compiler, CMake, libclang (for bindgen), LLVM's OpenMP and
# Python's venv. Prints nothing if all of them are installed; only Debian's and Ubuntu's apt-get is supported.
set -eu
cd "$(dirname "$0")/.."

have() { command -v "$1" >/dev/null 2>&1; }

missing=''
need() { missing="$missing $1"; }

# Succeeds if bindgen, which loads libclang by itself, finds one: in the folder that LIBCLANG_PATH names, where the linker
# looks, in the folders of Debian's LLVM, or beside Apple's compiler (the command line tools' or Xcode's).
have_libclang() {
    [ -z "${LIBCLANG_PATH:-}" ] || return 0
    if [ "$(uname -s)" = Darwin ]; then
        tools=$(xcode-select --print-path 2>/dev/null) || return 1
        [ -e "$tools/usr/lib/libclang.dylib" ] || [ -e "$tools/Toolchains/XcodeDefault.xctoolchain/usr/lib/libclang.dylib" ]
    else
        ldconfig -p 2>/dev/null | grep -q 'libclang-\?[0-9.]*\.so' || ls /usr/lib/llvm-*/lib/libclang*.so* >/dev/null 2>&1
    fi
}

# Succeeds if LLVM's OpenMP is installed where linkers look; a Mac's compiler does without.
have_openmp() {
    # Not all users have the folder of ldconfig in their path.
    [ "$(uname -s)" = Darwin ] || PATH=$PATH:/usr/sbin:/sbin ldconfig -p 2>/dev/null | grep -q 'libomp\.so'
}

have cargo || {
    echo "setup: cargo is missing; install Rust first: https://rustup.rs" >&2
    exit 1
}
have c++ || need g++
have make || need make
have cmake || need cmake
have pkg-config || need pkg-config
have clang || need clang
have_libclang || need libclang-dev
have_openmp || need libomp-dev
if ! have python3; then
    need python3
    need python3-venv
elif ! python3 -c 'import venv, ensurepip' >/dev/null 2>&1; then
    need python3-venv
fi

[ -n "$missing" ] || exit 0
status=0
# shellcheck disable=SC2086 # the list of names is split on purpose
scripts/apt-install.sh setup $missing || status=$?
if [ "$status" -eq 2 ]; then
    echo "setup: please install, as root:$missing (names of Debian packages; on a Mac see docs/accelerators.md)" >&2
fi
exit "$status"
