/* Rounding of runs of floats onto a grid: the arithmetic of reference.py, nearest.py and
 * stochastic.py.
 *
 * Every float operation is rounded on its own: compile with -ffp-contract=off and without
 * -ffast-math.
 */
#ifndef POLICYSEARCH_ROUNDING_H
#define POLICYSEARCH_ROUNDING_H

#include <stddef.h>

#include "_compiled.h"

#define MAGNITUDE 0x7fffffffu
#define QUIET 0x7fc00000u
#define LARGEST 0x7f7fffffu
#define ONE 0x3f800000u
#define BINADE 0x00800000u
#define TWO_TO_23 0x4b000000u
#define KEY_SPAN 32768 /* of grid.py: elements that share one stochastic key */
#define FIRSTS 4096     /* FIRSTS of grid.py: places where the draws of a span may start */
#define FINE_SHIFT 20   /* FINE_SHIFT of grid.py */
#define PIECE 4096      /* elements that stay in a first-level cache; divides KEY_SPAN */

enum { NEAREST_EVEN, TOWARD_ZERO, NEAREST_AWAY, STOCHASTIC };
enum { NARROW, WIDE, FINE, NONE, TAPERED }; /* FINE: narrow, at least FINE_SHIFT dropped bits */

/* Grid of grid.py, field by field; then, for STOCHASTIC, KEY_SPAN + FIRSTS words of draw_table. */
typedef struct {
    uint32_t mode, wide, shift, lowest, scale, mantissa, max, finite_overflow, inf_overflow,
        flush_below, tapered, taper[3];
    const uint32_t *table;
} Grid;

/* Element j draws table[j] * multiplier. */
typedef struct {
    const uint32_t *table;
    uint32_t multiplier;
} Draws;

/* `size` (finite, without sign) on the grid of an 8-bit exponent: a carry moves into it. */
INLINE uint32_t round_wide(uint32_t size, int mode, const Grid *grid, uint32_t draw) {
    uint32_t unit = 1u << grid->shift;
    uint32_t add = 0;
    if (mode == NEAREST_EVEN)
        add = (unit >> 1) - 1 + ((size >> grid->shift) & 1);
    else if (mode == NEAREST_AWAY)
        add = unit >> 1;
    else if (mode == STOCHASTIC)
        add = draw >> (31 - grid->shift) >> 1;
    add &= unit - 1; /* nothing where the format is float32 itself */
    return (size + add) & (0u - unit);
}

/* `size` (finite, without sign) scaled to a quantum of 1, rounded to an integer, scaled back. */
INLINE uint32_t round_narrow(uint32_t size, int mode, const Grid *grid) {
    uint32_t exponent = size & INFINITE;
    exponent = exponent > grid->lowest ? exponent : grid->lowest;
    float y = as_float(size) * as_float(grid->scale - exponent);
    float quantum = as_float(exponent - grid->mantissa);
    if (mode == NEAREST_EVEN) { /* the adder rounds; from 2^23 up every float is an integer */
        float push = as_float(as_bits(y) < TWO_TO_23 ? TWO_TO_23 : 0);
        return as_bits(((y + push) - push) * quantum);
    }
    int32_t whole = (int32_t)y;
    float fraction = y - (float)whole;
    if (mode == NEAREST_AWAY)
        whole += fraction >= 0.5f;
    return as_bits((float)whole * quantum);
}

/* Drawing._round_fine of stochastic.py. */
INLINE uint32_t draw_fine(uint32_t size, const Grid *grid, uint32_t draw) {
    uint32_t most = size > grid->lowest ? size : grid->lowest;
    uint32_t moved = as_bits(as_float(size) + as_float(most));
    moved = (moved + (draw >> (32 - grid->shift))) & (0u - (1u << grid->shift));
    uint32_t half = moved - BINADE;
    half = half > grid->lowest ? half : grid->lowest;
    return as_bits(as_float(moved) - as_float(half));
}

/* Drawing._round_coarse of stochastic.py. */
INLINE uint32_t draw_coarse(uint32_t size, const Grid *grid, uint32_t draw) {
    uint32_t lowest = grid->lowest;
    float y = as_float(size < lowest ? size : 0) * as_float(grid->scale - lowest);
    int32_t whole = (int32_t)y;
    whole += (y - (float)whole) - as_float(draw >> 9 | ONE) > -1.0f;
    uint32_t subnormal = as_bits((float)whole * as_float(lowest - grid->mantissa));
    uint32_t normal = round_wide(size, STOCHASTIC, grid, draw);
    uint32_t all = 0u - (size < lowest); /* a choice by ?: is not vectorised */
    return (subnormal & all) | (normal & ~all);
}

/* _round_narrow of reference.py where the format is tapered, and _draw_tapered. */
INLINE uint32_t round_tapered(uint32_t size, int mode, const Grid *grid, uint32_t draw) {
    const uint32_t beyond = grid->max + BINADE; /* its factor is a normal number still */
    size = size < beyond ? size : beyond;
    uint32_t exponent = size & INFINITE;
    exponent = exponent > grid->lowest ? exponent : grid->lowest;
    uint32_t from_one = exponent > ONE ? exponent - ONE : ONE - exponent;
    uint32_t distance = from_one >> 23;
    uint32_t lost = (uint32_t)(distance > grid->taper[0]) + (distance > grid->taper[1]) +
                    (distance > grid->taper[2]);
    lost <<= 23;
    float y = as_float(size) * as_float(grid->scale - exponent - lost);
    int32_t whole = (int32_t)y;
    float fraction = y - (float)whole;
    if (mode == NEAREST_AWAY)
        whole += fraction >= 0.5f;
    else if (mode == STOCHASTIC)
        whole += fraction - as_float(draw >> 9 | ONE) > -1.0f;
    return as_bits((float)whole * as_float(exponent - grid->mantissa + lost));
}

INLINE uint32_t round_one(uint32_t bits, int mode, int kind, const Grid *grid, uint32_t draw) {
    uint32_t size = bits & MAGNITUDE;
    uint32_t finite = size < LARGEST ? size : LARGEST;
    uint32_t result = kind == WIDE                         ? round_wide(finite, mode, grid, draw)
                      : kind == TAPERED                    ? round_tapered(finite, mode, grid, draw)
                      : mode != STOCHASTIC                 ? round_narrow(finite, mode, grid)
                      : kind == FINE                       ? draw_fine(finite, grid, draw)
                                                           : draw_coarse(finite, grid, draw);
    result = result > grid->max ? grid->finite_overflow : result;
    result = size == INFINITE ? grid->inf_overflow : result;
    result = result < grid->flush_below ? 0 : result;
    result = size > INFINITE ? size | QUIET : result;
    return result | (bits & SIGN);
}

INLINE void loop(const float *x, float *out, Py_ssize_t n, int mode, int kind, const Grid *given,
                 Draws draws) {
    Grid grid = *given;
    for (Py_ssize_t i = 0; i < n; i++) {
        uint32_t draw = mode == STOCHASTIC ? draws.table[i] * draws.multiplier : 0;
        out[i] = as_float(round_one(as_bits(x[i]), mode, kind, &grid, draw));
    }
}

VECTORISED static void round_run(const float *x, float *out, Py_ssize_t n, const Grid *grid,
                                 Draws draws) {
    if (grid->tapered) {
        switch (grid->mode) {
        case TOWARD_ZERO: loop(x, out, n, TOWARD_ZERO, TAPERED, grid, draws); break;
        case STOCHASTIC: loop(x, out, n, STOCHASTIC, TAPERED, grid, draws); break;
        default: loop(x, out, n, NEAREST_AWAY, TAPERED, grid, draws); break;
        }
        return;
    }
    int fine = grid->mode == STOCHASTIC && !grid->wide && grid->shift >= FINE_SHIFT;
    switch (grid->mode * 3 + (fine ? FINE : (int)grid->wide)) {
    case 0: loop(x, out, n, NEAREST_EVEN, NARROW, grid, draws); break;
    case 1: loop(x, out, n, NEAREST_EVEN, WIDE, grid, draws); break;
    case 3: loop(x, out, n, TOWARD_ZERO, NARROW, grid, draws); break;
    case 4: loop(x, out, n, TOWARD_ZERO, WIDE, grid, draws); break;
    case 6: loop(x, out, n, NEAREST_AWAY, NARROW, grid, draws); break;
    case 7: loop(x, out, n, NEAREST_AWAY, WIDE, grid, draws); break;
    case 9: loop(x, out, n, STOCHASTIC, NARROW, grid, draws); break;
    case 10: loop(x, out, n, STOCHASTIC, WIDE, grid, draws); break;
    default: loop(x, out, n, STOCHASTIC, FINE, grid, draws); break;
    }
}

/* What is added to x[i] before it is rounded: nothing, `one`, or each[i]. */
typedef struct {
    enum { NOTHING, ONE_VALUE, EACH } kind;
    float one;
    const float *each;
} Addend;

INLINE float sum_at(const float *x, Py_ssize_t i, int kind, float one, const float *each) {
    return kind == NOTHING ? x[i] : x[i] + (kind == EACH ? each[i] : one);
}

/* To nearest even as if no number were too large: adding 1.5 * 2^23 quanta makes the adder round.
 * Returns the largest exponent bits, those of infinity where there is a NaN. */
INLINE uint32_t narrow_loop(const float *x, float *out, Py_ssize_t n, const Grid *grid, int kind,
                            float one, const float *each) {
    const uint32_t lowest = grid->lowest, push = 0x0bc00000u - grid->mantissa;
    const uint32_t highest = 0x7f000000u - (push & INFINITE); /* the pushing number is finite */
    uint32_t peak = 0;
    INDEPENDENT
    for (Py_ssize_t i = 0; i < n; i++) {
        uint32_t bits = as_bits(sum_at(x, i, kind, one, each));
        uint32_t exponent = bits & INFINITE;
        peak = peak > exponent ? peak : exponent;
        exponent = exponent > lowest ? exponent : lowest;
        exponent = exponent < highest ? exponent : highest;
        float c = as_float(exponent + push);
        out[i] = as_float(as_bits((as_float(bits) + c) - c) | (bits & SIGN));
    }
    return peak;
}

/* The same with float32's exponents: the carry moves into them. */
INLINE void wide_loop(const float *x, float *out, Py_ssize_t n, const Grid *grid, int kind,
                      float one, const float *each) {
    const uint32_t shift = grid->shift, half = (1u << shift >> 1) - 1, kept = 0u - (1u << shift);
    INDEPENDENT
    for (Py_ssize_t i = 0; i < n; i++) {
        uint32_t bits = as_bits(sum_at(x, i, kind, one, each));
        uint32_t rounded = (bits + half + ((bits >> shift) & 1)) & kept;
        out[i] = as_float((bits & MAGNITUDE) > INFINITE ? bits | QUIET : rounded);
    }
}

VECTORISED static uint32_t nearest_narrow(const float *x, Addend add, float *out, Py_ssize_t n,
                                          const Grid *grid) {
    switch (add.kind) {
    case NOTHING: return narrow_loop(x, out, n, grid, NOTHING, 0, NULL);
    case ONE_VALUE: return narrow_loop(x, out, n, grid, ONE_VALUE, add.one, NULL);
    default: return narrow_loop(x, out, n, grid, EACH, 0, add.each);
    }
}

VECTORISED static void nearest_wide(const float *x, Addend add, float *out, Py_ssize_t n,
                                    const Grid *grid) {
    switch (add.kind) {
    case NOTHING: wide_loop(x, out, n, grid, NOTHING, 0, NULL); break;
    case ONE_VALUE: wide_loop(x, out, n, grid, ONE_VALUE, add.one, NULL); break;
    default: wide_loop(x, out, n, grid, EACH, 0, add.each);
    }
}

VECTORISED static void add_up(const float *x, Addend add, float *out, Py_ssize_t n) {
    INDEPENDENT
    for (Py_ssize_t i = 0; i < n; i++)
        out[i] = x[i] + (add.kind == EACH ? add.each[i] : add.one);
}

/* Put rounded numbers through overflow and flush, as the end of round_one. */
VECTORISED static void limit(float *out, Py_ssize_t n, const Grid *grid) {
    const uint32_t most = grid->max, beyond = grid->inf_overflow, least = grid->flush_below;
    for (Py_ssize_t i = 0; i < n; i++) {
        uint32_t bits = as_bits(out[i]);
        uint32_t size = bits & MAGNITUDE;
        uint32_t kept = size > most && size <= INFINITE ? beyond : size;
        kept = kept < least ? 0 : kept;
        out[i] = as_float(kept | (bits & SIGN));
    }
}

/* Round x, or its sum with `add`, to nearest even, piece by piece, so that a second look at a piece
 * finds it in the cache. `out` may be `x` or what is added. */
static void round_nearest(const float *x, Addend add, float *out, Py_ssize_t size,
                          const Grid *grid) {
    const Draws none = {NULL, 0};
    for (Py_ssize_t start = 0; start < size; start += PIECE) {
        Py_ssize_t n = size - start < PIECE ? size - start : PIECE;
        const float *from = x + start;
        float *to = out + start;
        int limited = grid->flush_below > 0;
        if (grid->shift < 2) { /* the pushed sum would hold too few bits below its leading one */
            if (add.kind != NOTHING)
                add_up(from, add, to, n);
            round_run(add.kind == NOTHING ? from : to, to, n, grid, none);
        } else if (grid->wide) {
            nearest_wide(from, add, to, n, grid);
            limited |= grid->inf_overflow != INFINITE;
        } else {
            limited |= nearest_narrow(from, add, to, n, grid) >= (grid->max & INFINITE);
        }
        if (limited)
            limit(to, n, grid);
        if (add.kind == EACH)
            add.each += n;
    }
}

static int take_grid(PyObject *packed, Grid *grid) {
    const size_t fields = offsetof(Grid, table), draws = sizeof(uint32_t) * (KEY_SPAN + FIRSTS);
    size_t size = PyBytes_Check(packed) ? (size_t)PyBytes_GET_SIZE(packed) : 0;
    if (size >= fields) {
        const char *bytes = PyBytes_AS_STRING(packed);
        memcpy(grid, bytes, fields);
        grid->table = (const uint32_t *)(const void *)(bytes + fields);
        if (grid->mode != STOCHASTIC || size == fields + draws)
            return 1;
    }
    PyErr_SetString(PyExc_ValueError, "expected a packed grid");
    return 0;
}

#endif
