/* Tensors seen as rows along one axis, taken a few rows at a time into a tile that stays in the
 * cache: tile[length][count], row after row side by side.
 *
 * Every float operation is rounded on its own: compile with -ffp-contract=off and without
 * -ffast-math.
 */
#ifndef POLICYSEARCH_TILES_H
#define POLICYSEARCH_TILES_H

#include "_turn.h"

#define TILE 4096 /* floats of a tile of short rows */
#define LEAST 16  /* rows of a tile of long ones */

/* A contiguous array [outer, length, inner]: outer * inner rows of `length`. */
typedef struct {
    Size outer, length, inner;
} Extents;

/* The rows of a tile, whole vectors of them, and its floats. */
static inline Size most_rows(Extents e) {
    Size most = TILE / e.length / LEAST * LEAST;
    return most < LEAST ? LEAST : most;
}

static inline Size tile_size(Extents e) { return most_rows(e) * e.length; }

/* How many rows from `first` on make a tile: all of one outer index where rows are side by side
 * in memory. */
static inline Size tile_rows(Extents e, Size first) {
    Size most = most_rows(e);
    Size left = e.inner > 1 ? e.inner - first % e.inner : e.outer - first;
    return left < most ? left : most;
}

static inline Size place_of(Extents e, Size first) {
    return first / e.inner * e.length * e.inner + first % e.inner;
}

static inline void take_tile(const float *x, Extents e, Size first, Size count, float *tile) {
    const float *from = x + place_of(e, first);
    if (e.inner == 1)
        turn(from, e.length, count, e.length, tile, count);
    else
        for (Size f = 0; f < e.length; f++)
            memcpy(tile + f * count, from + f * e.inner, (size_t)count * sizeof *tile);
}

static inline void give_tile(const float *tile, Extents e, Size first, Size count, float *out) {
    float *to = out + place_of(e, first);
    if (e.inner == 1)
        turn(tile, count, e.length, count, to, e.length);
    else
        for (Size f = 0; f < e.length; f++)
            memcpy(to + f * e.inner, tile + f * count, (size_t)count * sizeof *tile);
}

/* folded of ops/folding.py over `length` rows of `count` floats: the sum is in the first row of
 * `half`, which may be `values`. */
INLINE void fold(const float *values, float *half, Size length, Size count) {
    if (length == 1 && half != values)
        memcpy(half, values, (size_t)count * sizeof *half);
    while (length > 1) {
        Size kept = (length + 1) / 2, pairs = (length - kept) * count;
        const float *second = values + kept * count;
        INDEPENDENT
        for (Size i = 0; i < pairs; i++)
            half[i] = values[i] + second[i];
        if (pairs < kept * count && half != values)
            memcpy(half + pairs, values + pairs, (size_t)count * sizeof *half);
        values = half, length = kept;
    }
}

#endif
