/* Vectors of LANES floats, and the sums of ops/lanes.py in them.
 *
 * Every float operation is rounded on its own: compile with -ffp-contract=off and without
 * -ffast-math.
 */
#ifndef POLICYSEARCH_LANES_H
#define POLICYSEARCH_LANES_H

#include "_turn.h"

#pragma GCC diagnostic ignored "-Wpsabi" /* a vector is passed to inlined functions only */

#define LANES 16 /* LANES of ops/lanes.py */
#if defined(__clang__)
#define UNROLLED _Pragma("unroll")
#else
#define UNROLLED _Pragma("GCC unroll 16") /* an array indexed by constants stays in registers */
#endif

typedef float Lanes __attribute__((vector_size(4 * LANES)));

INLINE Lanes load(const float *x) {
    Lanes y;
    memcpy(&y, x, sizeof y);
    return y;
}

INLINE void store(float *to, Lanes y) { memcpy(to, &y, sizeof y); }

/* The first `count` numbers, then zeros. */
INLINE Lanes load_some(const float *x, Size count) {
    float some[LANES] = {0.0f};
    for (Size i = 0; i < count; i++)
        some[i] = x[i];
    return load(some);
}

INLINE void store_some(float *to, Lanes y, Size count) {
    float some[LANES];
    store(some, y);
    for (Size i = 0; i < count; i++)
        to[i] = some[i];
}

/* What the lanes come to, half of them after half added to the others. */
INLINE float total(Lanes sums) {
    float s[LANES], eight[LANES / 2], four[LANES / 4];
    store(s, sums);
    for (int i = 0; i < LANES / 2; i++)
        eight[i] = s[i] + s[LANES / 2 + i];
    for (int i = 0; i < LANES / 4; i++)
        four[i] = eight[i] + eight[LANES / 4 + i];
    return (four[0] + four[2]) + (four[1] + four[3]);
}

INLINE float sum_of(const float *x, Size length) {
    Size whole = length / LANES * LANES;
    Lanes sums = {0.0f};
    for (Size f = 0; f < whole; f += LANES)
        sums = sums + load(x + f);
    if (whole < length)
        sums = sums + load_some(x + whole, length - whole);
    return total(sums);
}

INLINE float sum_of_products(const float *x, const float *y, Size length) {
    Size whole = length / LANES * LANES;
    Lanes sums = {0.0f};
    for (Size f = 0; f < whole; f += LANES)
        sums = sums + load(x + f) * load(y + f);
    if (whole < length)
        sums = sums + load_some(x + whole, length - whole) * load_some(y + whole, length - whole);
    return total(sums);
}

/* An array [outer, length, inner] in memory: outer * inner rows of `length`. */
typedef struct {
    Size outer, length, inner;
} Extents;

/* Where row `number` begins; its numbers are `inner` apart. */
INLINE Size place_of(Extents e, Size number) {
    return number / e.inner * e.length * e.inner + number % e.inner;
}

INLINE Size least(Size a, Size b) { return a < b ? a : b; }

#endif
