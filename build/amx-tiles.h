/*
 * AMX intrinsics that say what memory they read; included before ggml's AMX kernels (build/cxx-launcher.sh).
 *
 * Why: GCC 12 declares that _tile_loadconfig reads 8 of the 64 bytes that it reads, and that _tile_loadd reads none. So it drops or
 * delays the stores before them: a general protection fault at ldtilecfg, or a product of what was in the tile before.
 */
#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>

#define _tile_loadconfig(config) __asm__ volatile("ldtilecfg (%0)" : : "r"((const void *)(config)) : "memory")

#undef _tile_loadd
#define _tile_loadd(tile, base, stride) WARMPATH_TILE_LOAD(tile, base, stride)
#define WARMPATH_TILE_LOAD(tile, base, stride) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile \
                     : \
                     : "r"((const void *)(base)), "r"((long)(stride)) \
                     : "memory")
#endif
