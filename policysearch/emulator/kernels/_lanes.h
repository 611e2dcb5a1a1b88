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
