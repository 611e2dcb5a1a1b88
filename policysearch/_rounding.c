/* Compiled twin of blocks.py: the same bits, one pass over memory.
 *
 * Only the CPython C-API and the buffer protocol are used. Every float operation is rounded on its
 * own: compile with -ffp-contract=off and without -ffast-math.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "_compiled.h"

#define SIGN 0x80000000u
#define MAGNITUDE 0x7fffffffu
#define INFINITE 0x7f800000u
#define QUIET 0x7fc00000u
#define LARGEST 0x7f7fffffu
#define ONE 0x3f800000u
#define BINADE 0x00800000u
#define TWO_TO_23 0x4b000000u
#define KEY_BLOCK 32768 /* BLOCK of grid.py: elements that share one stochastic key */
#define FIRSTS 4096     /* FIRSTS of grid.py: places where the draws of a block may start */
#define FINE_SHIFT 20   /* FINE_SHIFT of grid.py */
#define PIECE 4096      /* elements that stay in a first-level cache; divides KEY_BLOCK */

enum { NEAREST_EVEN, TOWARD_ZERO, NEAREST_AWAY, STOCHASTIC };
enum { NARROW, WIDE, FINE }; /* FINE: narrow with at least FINE_SHIFT dropped bits */

/* Grid of grid.py, field by field; then, for STOCHASTIC, BLOCK + FIRSTS words of draw_table. */
typedef struct {
    uint32_t mode, wide, shift, lowest, scale, mantissa, max, finite_overflow, inf_overflow,
        flush_below;
    const uint32_t *table;
} Grid;

/* Element j draws table[j] * multiplier. */
typedef struct {
    const uint32_t *table;
    uint32_t multiplier;
} Draws;

INLINE float as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE uint32_t as_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

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

/* Drawing._round_fine of drawing.py. */
INLINE uint32_t draw_fine(uint32_t size, const Grid *grid, uint32_t draw) {
    uint32_t most = size > grid->lowest ? size : grid->lowest;
    uint32_t moved = as_bits(as_float(size) + as_float(most));
    moved = (moved + (draw >> (32 - grid->shift))) & (0u - (1u << grid->shift));
    uint32_t half = moved - BINADE;
    half = half > grid->lowest ? half : grid->lowest;
    return as_bits(as_float(moved) - as_float(half));
}

/* Drawing._round_coarse of drawing.py. */
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

INLINE uint32_t round_one(uint32_t bits, int mode, int kind, const Grid *grid, uint32_t draw) {
    uint32_t size = bits & MAGNITUDE;
    uint32_t finite = size < LARGEST ? size : LARGEST;
    uint32_t result = kind == WIDE                         ? round_wide(finite, mode, grid, draw)
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

static uint64_t mix64(uint64_t value) {
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

VECTORISED static uint32_t peak_of(const float *x, Py_ssize_t n) {
    uint32_t peak = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        uint32_t size = as_bits(x[i]) & MAGNITUDE;
        peak = peak > size ? peak : size;
    }
    return peak;
}

/* To nearest even where nothing overflows: adding 1.5 * 2^23 quanta makes the adder round. */
VECTORISED static void round_plain(const float *x, float *out, Py_ssize_t n, const Grid *grid) {
    uint32_t lowest = grid->lowest, shift = grid->shift;
    uint32_t push = 0x0bc00000u - grid->mantissa;
    uint32_t half = (1u << shift >> 1) - 1, kept = 0u - (1u << shift);
    if (grid->wide)
        for (Py_ssize_t i = 0; i < n; i++) {
            uint32_t bits = as_bits(x[i]);
            out[i] = as_float((bits + half + ((bits >> shift) & 1)) & kept);
        }
    else
        for (Py_ssize_t i = 0; i < n; i++) {
            uint32_t bits = as_bits(x[i]);
            uint32_t exponent = bits & INFINITE;
            float c = as_float((exponent > lowest ? exponent : lowest) + push);
            float rounded = (as_float(bits & MAGNITUDE) + c) - c;
            out[i] = as_float(as_bits(rounded) | (bits & SIGN));
        }
}

static void round_nearest(const float *x, float *out, Py_ssize_t n, const Grid *grid) {
    Draws none = {NULL, 0};
    for (Py_ssize_t start = 0; start < n; start += PIECE) {
        Py_ssize_t count = n - start < PIECE ? n - start : PIECE;
        if (peak_of(x + start, count) <= grid->max)
            round_plain(x + start, out + start, count, grid);
        else
            round_run(x + start, out + start, count, grid, none);
    }
}

/* Round n elements whose first is number `start` of the call; all lie in one key block. */
static void round_piece(const float *x, float *out, Py_ssize_t start, Py_ssize_t n,
                        const Grid *grid, uint64_t seed, uint64_t counter) {
    Draws draws = {NULL, 0};
    /* The pushed sum holds 22 bits below its leading one; float32 itself is left alone. */
    if (grid->mode == NEAREST_EVEN && grid->flush_below == 0 && grid->shift >= 2) {
        round_nearest(x, out, n, grid);
        return;
    }
    if (grid->mode == STOCHASTIC) {
        uint64_t key = mix64(mix64(mix64(seed) ^ counter) ^ (uint64_t)(start / KEY_BLOCK));
        draws.multiplier = (uint32_t)key | 1;
        draws.table = grid->table + ((key >> 32) % FIRSTS & ~(uint64_t)15) + start % KEY_BLOCK;
    }
    round_run(x, out, n, grid, draws);
}

static void round_all(const float *x, float *out, Py_ssize_t size, const Grid *grid,
                      uint64_t seed, uint64_t counter) {
    for (Py_ssize_t start = 0; start < size; start += KEY_BLOCK) {
        Py_ssize_t n = size - start < KEY_BLOCK ? size - start : KEY_BLOCK;
        round_piece(x + start, out + start, start, n, grid, seed, counter);
    }
}

VECTORISED static void sgd_run(float *restrict param, float *restrict velocity,
                               const float *restrict grad, Py_ssize_t n, float lr, float momentum,
                               float inv_scale) {
    for (Py_ssize_t i = 0; i < n; i++) {
        float scaled = grad[i] * inv_scale;
        float kept = momentum * velocity[i];
        float moved = kept + scaled;
        float step = lr * moved;
        velocity[i] = moved;
        param[i] = param[i] - step;
    }
}

static void sgd_all(float *param, float *velocity, const float *grad, float *low, Py_ssize_t size,
                    const float rates[3], const Grid *grid, uint64_t seed, uint64_t counter) {
    for (Py_ssize_t start = 0; start < size; start += PIECE) {
        Py_ssize_t n = size - start < PIECE ? size - start : PIECE;
        sgd_run(param + start, velocity + start, grad + start, n, rates[0], rates[1], rates[2]);
        if (low != NULL)
            round_piece(param + start, low + start, start, n, grid, seed, counter);
    }
}

/* Take `count` contiguous float buffers of one size; 0 and an exception if one does not fit. */
static int take_buffers(PyObject *const *objects, Py_buffer *views, int count, int writable) {
    for (int i = 0; i < count; i++) {
        int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable >> i & 1 ? PyBUF_WRITABLE : 0);
        int held = PyObject_GetBuffer(objects[i], &views[i], flags) == 0;
        if (held && views[i].itemsize == 4 && strcmp(views[i].format, "f") == 0 &&
            views[i].ndim == 1 && views[i].len == views[0].len)
            continue;
        if (held)
            PyErr_SetString(PyExc_ValueError, "expected contiguous float32 buffers of one size");
        for (int j = 0; j < i + held; j++)
            PyBuffer_Release(&views[j]);
        return 0;
    }
    return 1;
}

static int take_grid(PyObject *packed, Grid *grid) {
    const size_t fields = offsetof(Grid, table), draws = sizeof(uint32_t) * (KEY_BLOCK + FIRSTS);
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

static PyObject *round_into(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Grid grid;
    Py_buffer views[2];
    if (count != 5) {
        PyErr_SetString(PyExc_TypeError, "expected x, out, grid, seed, counter");
        return NULL;
    }
    uint64_t seed = PyLong_AsUnsignedLongLongMask(args[3]);
    uint64_t counter = PyLong_AsUnsignedLongLongMask(args[4]);
    if (PyErr_Occurred() || !take_grid(args[2], &grid) || !take_buffers(args, views, 2, 2))
        return NULL;
    round_all(views[0].buf, views[1].buf, views[0].len / 4, &grid, seed, counter);
    PyBuffer_Release(&views[0]);
    PyBuffer_Release(&views[1]);
    Py_RETURN_NONE;
}

/* fused_sgd(param, velocity, grad, low or None, lr, momentum, inv_scale, grid, seed, counter) */
static PyObject *fused_sgd(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Grid grid;
    Py_buffer views[4];
    float rates[3];
    if (count != 10) {
        PyErr_SetString(PyExc_TypeError, "expected 10 arguments");
        return NULL;
    }
    for (int i = 0; i < 3; i++)
        rates[i] = (float)PyFloat_AsDouble(args[4 + i]);
    uint64_t seed = PyLong_AsUnsignedLongLongMask(args[8]);
    uint64_t counter = PyLong_AsUnsignedLongLongMask(args[9]);
    int arrays = args[3] == Py_None ? 3 : 4;
    if (PyErr_Occurred() || !take_grid(args[7], &grid) || !take_buffers(args, views, arrays, 11))
        return NULL;
    sgd_all(views[0].buf, views[1].buf, views[2].buf, arrays == 4 ? views[3].buf : NULL,
            views[0].len / 4, rates, &grid, seed, counter);
    for (int i = 0; i < arrays; i++)
        PyBuffer_Release(&views[i]);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"round_into", (PyCFunction)(void (*)(void))round_into, METH_FASTCALL, NULL},
    {"fused_sgd", (PyCFunction)(void (*)(void))fused_sgd, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_rounding", "Compiled twin of policysearch.rounding.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__rounding(void) { return PyModule_Create(&module); }
