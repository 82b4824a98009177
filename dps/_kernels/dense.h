/* Dense products of row blocks with narrow matrices, for float and double.

   C and not Cython, since sums stay in SIMD registers only as vector types of the compiler, and since
   each loop is compiled once per instruction set. Each sum has an order of its own that no set
   changes: 64 bytes of lanes, fixed row blocks, no fused multiply-add.
   Row i of a batch is x + order[i] * stride, or x + i * stride without an order. */
#ifndef DPS_DENSE_H
#define DPS_DENSE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "clones.h"

#define DPS_ROW(i) (x + (order ? order[i] : (int64_t)(i)) * stride)
#define DPS_JOIN_(a, b, c) a##_##b##_##c
#define DPS_JOIN(a, b, c) DPS_JOIN_(a, b, c)
#define DPS_NAME(name) DPS_JOIN(name, DPS_T, DPS_SET)

/* How wide a tile of outputs is; coefficients are padded to a multiple of it. */
static inline ptrdiff_t dps_tile(ptrdiff_t k) { return k <= 4 ? 4 : k <= 8 ? 8 : 16; }

#define DPS_SET baseline
#define DPS_BYTES 16
#include "dense_types.h"
#undef DPS_SET
#undef DPS_BYTES

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && !defined(DPS_PORTABLE)
#define DPS_X86 1

#pragma GCC push_options
#pragma GCC target("avx2")
#define DPS_SET avx2
#define DPS_BYTES 32
#include "dense_types.h"
#undef DPS_SET
#undef DPS_BYTES
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f")
#define DPS_SET avx512
#define DPS_BYTES 64
#include "dense_types.h"
#undef DPS_SET
#undef DPS_BYTES
#pragma GCC pop_options

#define DPS_CALL(name, ...)                                                                        \
    (__builtin_cpu_supports("avx512f") ? name##_avx512(__VA_ARGS__)                                \
        : __builtin_cpu_supports("avx2") ? name##_avx2(__VA_ARGS__) : name##_baseline(__VA_ARGS__))
#else
#define DPS_CALL(name, ...) name##_baseline(__VA_ARGS__)
#endif

#define dps_dot_rows_float(...) DPS_CALL(dps_dot_rows_float, __VA_ARGS__)
#define dps_dot_rows_double(...) DPS_CALL(dps_dot_rows_double, __VA_ARGS__)
#define dps_add_rows_float(...) DPS_CALL(dps_add_rows_float, __VA_ARGS__)
#define dps_add_rows_double(...) DPS_CALL(dps_add_rows_double, __VA_ARGS__)
#define dps_forward_tiles_float(...) DPS_CALL(dps_forward_tiles_float, __VA_ARGS__)
#define dps_forward_tiles_double(...) DPS_CALL(dps_forward_tiles_double, __VA_ARGS__)
#define dps_backward_tiles_float(...) DPS_CALL(dps_backward_tiles_float, __VA_ARGS__)
#define dps_backward_tiles_double(...) DPS_CALL(dps_backward_tiles_double, __VA_ARGS__)

#endif
