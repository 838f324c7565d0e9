#!/bin/sh
# Compiler launcher for llama.cpp's C++: mends ggml's AMX kernels while they are compiled, everything else as asked.
# Why (docs/decisions/0001-build.md):
# - GCC 12's intrinsics do not say what memory they read: amx-tiles.h has others.
# - The kernels add offsets in bytes to pointers to floats, and read a weight beyond its end, where a product has a third
#   dimension: a recurrent or hybrid model with two sequences in one batch. Memory behind the result is overwritten.
# - They repack only the first matrix of a weight that has three dimensions.
set -eu

fail() {
    echo "$0: $1 is not the file that this mends; look whether llama.cpp has changed it: docs/decisions/0001-build.md" >&2
    exit 1
}

# Copies file $1 to $2 with the substitutions of $3, which must change $4 lines.
mend() {
    sed "$3" "$1" >"$2"
    n_changed=$(diff "$1" "$2" | grep -c '^>') || true
    [ "$n_changed" -eq "$4" ] || fail "$1"
}

source='' out='' previous=''
for arg; do
    case "$arg" in
    */amx/mmq.cpp | */amx/amx.cpp) source=$arg ;;
    esac
    [ "$previous" = -o ] && out=$arg
    previous=$arg
done
[ -n "$source" ] || exec "$@"

mended=$out.mended.cpp
case "$source" in
*/mmq.cpp)
    # In turn: three results, an input and a weight by byte; three places where a weight is one matrix for all of a batch.
    mend "$source" "$mended" '
        s|(float \*) \{0,1\}dst->data + dst_offset|(float *)((char *)dst->data + dst_offset)|
        s|(const float \*)src1->data + src1_offset + mb_start|(const float *)((const char *)src1->data + src1_offset) + mb_start|
        s|(const type \*)src0->data + src0_offset|(const type *)((const char *)src0->data + src0_offset)|
        s|int64_t src0_offset = ggml_batch_offset(src0, batch_idx, ne2);|const int64_t src0_offset = 0;|' 8
    ;;
*)
    mend "$source" "$mended" \
        's/if (op->ne\[0\] % (TILE_N \* 2)) {/if (op->ne[0] % (TILE_N * 2) || src0->ne[2] * src0->ne[3] != 1) {/' 1
    ;;
esac

for arg; do
    shift
    [ "$arg" = "$source" ] && arg=$mended
    set -- "$@" "$arg"
done
exec "$@" -iquote "$(dirname "$source")" -include "$(dirname "$0")/amx-tiles.h" -O2
