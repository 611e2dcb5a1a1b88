/* Compiled twin of tensor_cores.py: the same bits.
 *
 * Only the CPython C-API and the buffer protocol are used, and the vector types of GCC and clang.
 * Every float operation is rounded on its own: compile with -ffp-contract=off and without
 * -ffast-math. This file includes itself once per vector size: only its last part, the kernel, is
 * compiled then.
 */
#ifndef BYTES
#include <math.h>
#include <stdlib.h>

#include "../rounding/_compiled.h"

#ifdef CLONES
#include <immintrin.h>
#endif

#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi" /* vectors are passed between inlined functions only */
#endif

#define LANES 32             /* columns of a panel */
#define COLUMNS (BYTES / 2)  /* columns that stay in registers: two float vectors */
#define ROWS 2               /* rows that share the loads of a panel */
#define BLOCK_K 128          /* products packed at a time, and between two promotions */
#define BLOCK_M 512          /* rows packed at a time */
#define ZERO_EXPONENT (-126) /* what a zero counts as */
#define NARROW 100           /* exponents of products up to this size fit float32 arithmetic */

/* TensorCore of tensor_cores.py, field by field, and the smallest exponents of the operands. */
typedef struct {
    int32_t group, fraction, mantissa, min_exponent, max_exponent, nearest, promote;
    int32_t left_min, right_min;
} Unit;

typedef struct {
    const char *data;
    Py_ssize_t step[2]; /* bytes */
} Matrix;

/* What a packed block holds: exponents of its non-zero numbers, and whether any is not finite. */
typedef struct {
    int lowest, highest, special;
} Span;

/* Rows of the left operand, `stride` apart, and a panel of the right one, as `pack` leaves them. */
typedef struct {
    int stride;
    const float *left;
    const int16_t *left_exponent;
    const float *right;
    const int16_t *right_exponent;
} Packed;

typedef void Tile(Packed, float *, int, const Unit *, int, int);

typedef struct {
    float *left;            /* [rows, depth] of a block */
    int16_t *left_exponent; /* the same */
    unsigned char *rows;    /* [BLOCK_M]: holds an infinity or NaN */
    unsigned char *columns; /* [n]: the same */
    unsigned char *wide;    /* [n / LANES]: the panel has left the narrow range */
    Tile *kernel;
} Scratch;

INLINE float at(Matrix x, Py_ssize_t i, Py_ssize_t j) {
    float value;
    memcpy(&value, x.data + i * x.step[0] + j * x.step[1], sizeof value);
    return value;
}

/* x / 2^exponent, for the exponent that `pack` gave x. */
INLINE float scaled_down(float x, int exponent) {
    uint32_t bits = as_bits(x);
    return bits & INFINITE ? as_float(bits - ((uint32_t)exponent << 23)) : x * 0x1p126f;
}

/* The kernel's names, told apart by the size of its vectors. */
#define JOINED(name, bytes) name##_##bytes
#define WITH_BYTES(name, bytes) JOINED(name, bytes)
#define NAMED(name) WITH_BYTES(name, BYTES)
#define Short NAMED(Short)
#define HalfShort NAMED(HalfShort)
#define Int NAMED(Int)
#define HalfInt NAMED(HalfInt)
#define Float NAMED(Float)
#define HalfFloat NAMED(HalfFloat)
#define Long NAMED(Long)
#define Double NAMED(Double)
#define max_short NAMED(max_short)
#define max_int NAMED(max_int)
#define widened NAMED(widened)
#define exponents_of NAMED(exponents_of)
#define lower NAMED(lower)
#define upper NAMED(upper)
#define joined NAMED(joined)
#define cut NAMED(cut)
#define result_narrow NAMED(result_narrow)
#define round_half NAMED(round_half)
#define result_wide NAMED(result_wide)
#define add_products NAMED(add_products)
#define align NAMED(align)
#define some_columns NAMED(some_columns)
#define tile NAMED(tile)

/* Vectors wider than the processor's make slow code, narrower ones waste it. */
#ifdef CLONES
#define BYTES 64
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#include "_tensor_core.c"
#undef BYTES
#undef TARGET
#define BYTES 32
#define TARGET __attribute__((target("avx2")))
#include "_tensor_core.c"
#undef BYTES
#undef TARGET
#endif
#define BYTES 16
#define TARGET
#include "_tensor_core.c"
#undef BYTES
#undef TARGET

/* The kernel with the widest vectors that the processor has, up to `bytes`. */
static Tile *tile_up_to(long bytes) {
#ifdef CLONES
    if (bytes >= 64 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return tile_64;
    if (bytes >= 32 && __builtin_cpu_supports("avx2"))
        return tile_32;
#endif
    return tile_16;
}

/* Exponents of `count` numbers; what is not finite becomes zero and is reported. */
VECTORISED static Span pack(float *x, int16_t *exponent, Py_ssize_t count, int min_exponent) {
    int lowest = 1000, highest = -1000, special = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        uint32_t size = as_bits(x[i]) & ~SIGN;
        int own = (int)(size >> 23) - 127;
        int out = size >= INFINITE;
        int none = out | (size == 0);
        own = own > min_exponent ? own : min_exponent;
        exponent[i] = (int16_t)(none ? ZERO_EXPONENT : own);
        x[i] = out ? 0.0f : x[i];
        int low = none ? 1000 : own, high = none ? -1000 : own;
        lowest = lowest < low ? lowest : low;
        highest = highest > high ? highest : high;
        special |= out;
    }
    return (Span){lowest, highest, special};
}

/* Copy rows x columns floats to a contiguous block of `width` columns, the rest zero. */
static void copy_block(float *to, Matrix from, Py_ssize_t rows, Py_ssize_t columns,
                       Py_ssize_t width) {
    if (from.step[1] == sizeof(float)) {
        for (Py_ssize_t i = 0; i < rows; i++)
            memcpy(to + i * width, from.data + i * from.step[0], (size_t)columns * sizeof *to);
    } else if (from.step[0] == sizeof(float)) {
        for (Py_ssize_t j0 = 0; j0 < columns; j0 += 16)
            for (Py_ssize_t i = 0; i < rows; i++)
                for (Py_ssize_t j = j0; j < j0 + 16 && j < columns; j++)
                    to[i * width + j] = at(from, i, j);
    } else {
        for (Py_ssize_t i = 0; i < rows; i++)
            for (Py_ssize_t j = 0; j < columns; j++)
                to[i * width + j] = at(from, i, j);
    }
    for (Py_ssize_t i = 0; columns < width && i < rows; i++)
        memset(to + i * width + columns, 0, (size_t)(width - columns) * sizeof *to);
}

static Matrix moved(Matrix x, Py_ssize_t i, Py_ssize_t j) {
    x.data += i * x.step[0] + j * x.step[1];
    return x;
}

static void mark(unsigned char *lines, Matrix x, Py_ssize_t rows, Py_ssize_t columns, int axis) {
    for (Py_ssize_t i = 0; i < rows; i++)
        for (Py_ssize_t j = 0; j < columns; j++)
            if (!isfinite(at(x, i, j)))
                lines[axis ? j : i] = 1;
}

static void widen(float *x, const int16_t *exponent, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++)
        x[i] = scaled_down(x[i], exponent[i]);
}

static int exponent_of(double x, int lowest) {
    int exponent;
    if (x == 0.0)
        return ZERO_EXPONENT;
    frexp(x, &exponent);
    return exponent - 1 > lowest ? exponent - 1 : lowest;
}

/* `sum` rounded to the result's format. */
static double round_result(double sum, const Unit *unit) {
    int least = exponent_of(sum, unit->min_exponent) - unit->mantissa;
    double y = ldexp(sum, -least);
    y = ldexp(unit->nearest ? rint(y) : trunc(y), least) + 0.0;
    return fabs(y) >= ldexp(1.0, unit->max_exponent + 1) ? copysign(INFINITY, y) : y;
}

/* One group by the definition, with infinities and NaNs. */
static double one_group(Matrix a, Matrix b, double c, Py_ssize_t count, const Unit *unit) {
    double plain = c, sum = 0.0;
    int top = exponent_of(isfinite(c) ? c : 0.0, unit->min_exponent);
    for (Py_ssize_t g = 0; g < count; g++) {
        double x = at(a, 0, g), y = at(b, g, 0);
        plain += x * y;
        int ea = isfinite(x) ? exponent_of(x, unit->left_min) : ZERO_EXPONENT;
        int eb = isfinite(y) ? exponent_of(y, unit->right_min) : ZERO_EXPONENT;
        top = top > ea + eb ? top : ea + eb;
    }
    if (!isfinite(plain))
        return isnan(plain) ? (double)NAN : plain;
    for (Py_ssize_t g = 0; g < count; g++)
        sum += trunc(ldexp((double)at(a, 0, g) * (double)at(b, g, 0), unit->fraction - top));
    sum += trunc(ldexp(c, unit->fraction - top));
    return round_result(ldexp(sum, top - unit->fraction), unit);
}

/* One element by the definition: `a` is [1, depth], `b` [depth, 1]. */
static float one_element(Matrix a, Matrix b, Py_ssize_t depth, const Unit *unit) {
    float total = 0.0f;
    double c = 0.0;
    for (Py_ssize_t k = 0; k < depth; k += unit->group) {
        Py_ssize_t left = depth - k;
        c = one_group(moved(a, 0, k), moved(b, k, 0), c, left < unit->group ? left : unit->group,
                      unit);
        if (isnan(c))
            return NAN;
        if (unit->promote && ((k + unit->group) % BLOCK_K == 0 || left <= unit->group)) {
            total += (float)c;
            c = 0.0;
        }
    }
    total = unit->promote ? total : (float)c;
    return isnan(total) ? NAN : total;
}

/* Rows of out, at the panel's columns, continued by one packed block. */
static void some_rows(const Scratch *s, Packed packed, Matrix out, Py_ssize_t rows,
                      Py_ssize_t columns, int depth, const Unit *unit, int wide, int first) {
    float c[ROWS * LANES] __attribute__((aligned(64)));
    int fresh = first || unit->promote;
    if (!fresh) {
        memset(c, 0, sizeof c);
        copy_block(c, out, rows, columns, LANES);
    }
    s->kernel(packed, c, depth, unit, wide, fresh);
    for (Py_ssize_t i = 0; i < rows; i++) {
        float *row = c + i * LANES;
        for (Py_ssize_t j = 0; !first && unit->promote && j < columns; j++)
            row[j] += at(out, i, j);
        if (out.step[1] == sizeof(float))
            memcpy((char *)moved(out, i, 0).data, row, (size_t)columns * sizeof(float));
        else
            for (Py_ssize_t j = 0; j < columns; j++)
                memcpy((char *)moved(out, i, j).data, row + j, sizeof(float));
    }
}

static void panel(const Scratch *s, Span span, Matrix right, Matrix out, Py_ssize_t rows,
                  Py_ssize_t columns, Py_ssize_t depth, const Unit *unit, int number, int first) {
    float b[BLOCK_K * LANES] __attribute__((aligned(64)));
    int16_t e[BLOCK_K * LANES] __attribute__((aligned(64)));
    copy_block(b, right, depth, columns, LANES);
    Span own = pack(b, e, depth * LANES, unit->right_min);
    if (own.special)
        mark(s->columns + (Py_ssize_t)number * LANES, right, depth, columns, 1);
    s->wide[number] |= own.lowest + span.lowest < -NARROW || own.highest + span.highest > NARROW;
    int wide = s->wide[number] || unit->nearest;
    if (wide)
        widen(b, e, depth * LANES);
    for (Py_ssize_t i = 0; i < rows; i += ROWS) {
        Packed packed = {(int)depth, s->left + i * depth, s->left_exponent + i * depth, b, e};
        some_rows(s, packed, moved(out, i, 0), rows - i < ROWS ? rows - i : ROWS, columns,
                  (int)depth, unit, wide, first);
    }
}

static void block_of_rows(const Scratch *s, Matrix left, Matrix right, Matrix out,
                          Py_ssize_t rows, Py_ssize_t columns, Py_ssize_t depth,
                          const Unit *unit) {
    memset(s->rows, 0, BLOCK_M);
    memset(s->columns, 0, (size_t)columns);
    memset(s->wide, 0, (size_t)(columns / LANES + 1));
    for (Py_ssize_t k = 0; k < depth; k += BLOCK_K) {
        Py_ssize_t count = depth - k < BLOCK_K ? depth - k : BLOCK_K;
        Py_ssize_t padded = (rows + ROWS - 1) / ROWS * ROWS;
        memset(s->left + (padded - ROWS) * count, 0, ROWS * (size_t)count * sizeof(float));
        copy_block(s->left, moved(left, 0, k), rows, count, count);
        Span span = pack(s->left, s->left_exponent, padded * count, unit->left_min);
        if (span.special)
            mark(s->rows, moved(left, 0, k), rows, count, 0);
        for (Py_ssize_t j = 0; j < columns; j += LANES)
            panel(s, span, moved(right, k, j), moved(out, 0, j), rows,
                  columns - j < LANES ? columns - j : LANES, count, unit, (int)(j / LANES),
                  k == 0);
    }
    for (Py_ssize_t i = 0; i < rows; i++)
        for (Py_ssize_t j = 0; j < columns; j++)
            if (s->rows[i] || s->columns[j]) {
                float value = one_element(moved(left, i, 0), moved(right, 0, j), depth, unit);
                memcpy((char *)moved(out, i, j).data, &value, sizeof value);
            }
}

static void product(const Scratch *s, Py_buffer views[3], Py_ssize_t offset[3], const Unit *unit) {
    Matrix x[3];
    for (int v = 0; v < 3; v++) {
        const Py_ssize_t *step = views[v].strides + views[v].ndim - 2;
        x[v] = (Matrix){(const char *)views[v].buf + offset[v], {step[0], step[1]}};
    }
    const Py_ssize_t *shape = views[2].shape + views[2].ndim - 2;
    Py_ssize_t depth = views[0].shape[views[0].ndim - 1];
    for (Py_ssize_t i = 0; i < shape[0]; i += BLOCK_M) {
        Py_ssize_t rows = shape[0] - i < BLOCK_M ? shape[0] - i : BLOCK_M;
        block_of_rows(s, moved(x[0], i, 0), x[1], moved(x[2], i, 0), rows, shape[1], depth, unit);
    }
}

/* All products over the leading axes, which the three views share. */
static void products(const Scratch *s, Py_buffer views[3], Py_ssize_t offset[3], int axis,
                     const Unit *unit) {
    if (axis == views[2].ndim - 2) {
        product(s, views, offset, unit);
        return;
    }
    for (Py_ssize_t i = 0; i < views[2].shape[axis]; i++) {
        Py_ssize_t inner[3];
        for (int v = 0; v < 3; v++)
            inner[v] = offset[v] + i * views[v].strides[axis];
        products(s, views, inner, axis + 1, unit);
    }
}

static int shapes_fit(Py_buffer views[3]) {
    int ndim = views[2].ndim;
    for (int v = 0; v < 3; v++)
        if (views[v].ndim != ndim || ndim < 2 || !holds_float32(&views[v]))
            return 0;
    for (int axis = 0; axis < ndim - 2; axis++)
        for (int v = 0; v < 2; v++)
            if (views[v].shape[axis] != views[2].shape[axis])
                return 0;
    return views[0].shape[ndim - 2] == views[2].shape[ndim - 2] &&
           views[1].shape[ndim - 1] == views[2].shape[ndim - 1] &&
           views[0].shape[ndim - 1] == views[1].shape[ndim - 2] && views[0].shape[ndim - 1] > 0;
}

/* One allocation, cut into the scratch; NULL without memory. */
static char *take_scratch(Scratch *s, Py_ssize_t rows, Py_ssize_t columns, Py_ssize_t depth) {
    size_t cells = (size_t)(rows < BLOCK_M ? rows + ROWS : BLOCK_M + ROWS) *
                   (size_t)(depth < BLOCK_K ? depth : BLOCK_K);
    size_t panels = (size_t)(columns / LANES + 1);
    char *all = malloc(cells * 6 + BLOCK_M + panels * (LANES + 1));
    if (all == NULL)
        return NULL;
    s->left = (float *)all;
    s->left_exponent = (int16_t *)(all + cells * 4);
    s->rows = (unsigned char *)all + cells * 6;
    s->columns = s->rows + BLOCK_M;
    s->wide = s->columns + panels * LANES;
    return all;
}

/* matmul_into(left, right, out, unit[, bytes]): float32 of any strides, equal leading shapes;
 * vectors of at most `bytes` (for tests: the bits are the same). */
static PyObject *matmul_into(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Py_buffer views[3];
    Py_ssize_t offset[3] = {0, 0, 0};
    Unit unit;
    Scratch scratch;
    char *memory = NULL;
    long bytes = count == 5 ? PyLong_AsLong(args[4]) : 64;
    if (count < 4 || count > 5 || PyErr_Occurred() || !PyBytes_Check(args[3]) ||
        PyBytes_GET_SIZE(args[3]) != sizeof unit) {
        PyErr_SetString(PyExc_TypeError, "expected left, right, out and a packed unit");
        return NULL;
    }
    memcpy(&unit, PyBytes_AS_STRING(args[3]), sizeof unit);
    if (!take_buffers(args, views, 3, 1 << 2, PyBUF_STRIDES))
        return NULL;
    if (unit.group < 1 || unit.group > BLOCK_K || BLOCK_K % unit.group || !shapes_fit(views)) {
        PyErr_SetString(PyExc_ValueError, "expected float32 arrays whose shapes fit a product");
        goto done;
    }
    const Py_ssize_t *shape = views[2].shape + views[2].ndim - 2;
    memory = take_scratch(&scratch, shape[0], shape[1], views[0].shape[views[0].ndim - 1]);
    if (memory == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    scratch.kernel = tile_up_to(bytes);
    Py_BEGIN_ALLOW_THREADS
    products(&scratch, views, offset, 0, &unit);
    Py_END_ALLOW_THREADS
done:
    free(memory);
    release_buffers(views, 3);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"matmul_into", (PyCFunction)(void (*)(void))matmul_into, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_tensor_core", "Compiled twin of policysearch.tensor_core.", -1,
    methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__tensor_core(void) { return PyModule_Create(&module); }

#else /* the kernel, for vectors of BYTES: its lanes are columns of the result */

typedef int16_t Short __attribute__((vector_size(BYTES)));
typedef int16_t HalfShort __attribute__((vector_size(BYTES / 2)));
typedef int32_t Int __attribute__((vector_size(BYTES)));
typedef int32_t HalfInt __attribute__((vector_size(BYTES / 2)));
typedef float Float __attribute__((vector_size(BYTES)));
typedef float HalfFloat __attribute__((vector_size(BYTES / 2)));
typedef int64_t Long __attribute__((vector_size(BYTES)));
typedef double Double __attribute__((vector_size(BYTES)));

#if BYTES == 64 /* GCC takes these apart into narrower vectors, or through memory */
TARGET INLINE Short max_short(Short a, Short b) {
    return (Short)_mm512_max_epi16((__m512i)a, (__m512i)b);
}

TARGET INLINE Int max_int(Int a, Int b) { return (Int)_mm512_max_epi32((__m512i)a, (__m512i)b); }

TARGET INLINE Int widened(HalfShort x) { return (Int)_mm512_cvtepi16_epi32((__m256i)x); }

TARGET INLINE Double lower(Int x) {
    return (Double)_mm512_cvtepi32_pd(_mm512_castsi512_si256((__m512i)x));
}

TARGET INLINE Double upper(Int x) {
    return (Double)_mm512_cvtepi32_pd(_mm512_extracti64x4_epi64((__m512i)x, 1));
}

TARGET INLINE Float joined(Double low, Double high) {
    __m512 first = _mm512_castps256_ps512(_mm512_cvtpd_ps((__m512d)low));
    return (Float)_mm512_insertf32x8(first, _mm512_cvtpd_ps((__m512d)high), 1);
}
#else
TARGET INLINE Short max_short(Short a, Short b) {
    Short less = a < b;
    return (b & less) | (a & ~less);
}

TARGET INLINE Int max_int(Int a, Int b) {
    Int less = a < b;
    return (b & less) | (a & ~less);
}

TARGET INLINE Int widened(HalfShort x) { return __builtin_convertvector(x, Int); }

TARGET INLINE Double lower(Int x) {
    union { Int whole; HalfInt half[2]; } u = {x};
    return __builtin_convertvector(u.half[0], Double);
}

TARGET INLINE Double upper(Int x) {
    union { Int whole; HalfInt half[2]; } u = {x};
    return __builtin_convertvector(u.half[1], Double);
}

TARGET INLINE Float joined(Double low, Double high) {
    union { Float whole; HalfFloat half[2]; } u;
    u.half[0] = __builtin_convertvector(low, HalfFloat);
    u.half[1] = __builtin_convertvector(high, HalfFloat);
    return u.whole;
}
#endif

TARGET INLINE Int exponents_of(Float c, int lowest) {
    Int size = (Int)c & 0x7fffffff;
    Int exponent = max_int((size >> 23) - 127, (Int){0} + lowest);
    Int zero = size == 0;
    return (exponent & ~zero) | (zero & ZERO_EXPONENT);
}

/* The sum is an exact integer: dropping the tail of the double truncates it to the mantissa. */
TARGET INLINE Double cut(Double sum, int64_t keep) { return (Double)((Long)sum & keep); }

/* c plus `sum`, both in units of 1 / scale, for products within the narrow range: c is finite. */
TARGET INLINE Float result_narrow(const Double sum[2], Float c, Float scale, int64_t keep) {
    Int old = __builtin_convertvector(c * scale, Int);
    Double low = cut(sum[0] + lower(old), keep);
    Double high = cut(sum[1] + upper(old), keep);
    return joined(low, high) * (Float)((254 << 23) - (Int)scale);
}

/* c plus `sum` of 2^-shift each, on the result's format; half a vector. */
TARGET INLINE Double round_half(Double sum, HalfFloat c, HalfInt shift, const Unit *unit) {
    Long up = (__builtin_convertvector(shift, Long) + 1023) << 52;
    Double old = __builtin_convertvector(c, Double) * (Double)up;
    sum += __builtin_convertvector(__builtin_convertvector(old, HalfInt), Double);
    sum *= (Double)(((Long){0} + ((int64_t)2046 << 52)) - up);
    Long least = (Long){0} + ((int64_t)(unit->min_exponent + 1023) << 52);
    Long exponent = (Long)sum & ((int64_t)2047 << 52);
    Long below = exponent < least;
    exponent = (least & below) | (exponent & ~below);
    Long quantum = exponent - ((int64_t)unit->mantissa << 52);
    Double y = sum * (Double)(((Long){0} + ((int64_t)2046 << 52)) - quantum);
    if (unit->nearest) { /* the adder rounds: beyond 2^52 every double is an integer */
        double push = 0x1.8p52;
        y = (y + push) - push;
    } else
        y = __builtin_convertvector(__builtin_convertvector(y, HalfInt), Double);
    y *= (Double)quantum;
    Long size = (Long)y & INT64_MAX;
    Long over = size >= ((int64_t)(unit->max_exponent + 1024) << 52);
    Long infinite = ((int64_t)2047 << 52) | ((Long)y & INT64_MIN);
    return (Double)((infinite & over) | ((Long)y & ~over));
}

TARGET INLINE Float result_wide(const Double sum[2], Float c, Int shift, const Unit *unit) {
    union { Float whole; HalfFloat half[2]; } old = {c};
    union { Int whole; HalfInt half[2]; } by = {shift};
    Double low = round_half(sum[0], old.half[0], by.half[0], unit);
    Double high = round_half(sum[1], old.half[1], by.half[1], unit);
    Int found = (Int)joined(low, high);
    Int kept = ((Int)c & INFINITE) == INFINITE;
    return (Float)(((Int)c & kept) | (found & ~kept));
}

/* Add the truncated products `first` to `last` to total; factor: scales, or shifts where wide. */
TARGET INLINE void add_products(Packed packed, int first, int last, Float factor[ROWS][2],
                         Double total[ROWS][2][2], int wide) {
    Int sum[ROWS][2] = {0};
    for (int g = first; g < last; g++) {
        const Float *b = (const Float *)(packed.right + g * LANES);
        const HalfShort *e = (const HalfShort *)(packed.right_exponent + g * LANES);
        for (int r = 0; r < ROWS; r++)
            for (int h = 0; h < 2; h++) {
                float a = packed.left[r * packed.stride + g];
                if (wide) {
                    int own = packed.left_exponent[r * packed.stride + g];
                    Int shift = widened(e[h]) + own + 127;
                    shift = max_int(shift + (Int)factor[r][h], (Int){0});
                    Float product = b[h] * scaled_down(a, own);
                    sum[r][h] += __builtin_convertvector(product * (Float)(shift << 23), Int);
                } else
                    sum[r][h] += __builtin_convertvector(b[h] * a * factor[r][h], Int);
            }
    }
    for (int r = 0; r < ROWS; r++)
        for (int h = 0; h < 2; h++) {
            total[r][h][0] += lower(sum[r][h]);
            total[r][h][1] += upper(sum[r][h]);
        }
}

/* The factors that align a group, from its largest exponent and the running sum's. */
TARGET INLINE void align(Packed packed, int first, int last, Float acc[ROWS][2], Float factor[ROWS][2],
                  const Unit *unit, int wide) {
    Short top[ROWS];
    for (int r = 0; r < ROWS; r++)
        top[r] = (Short){0} + (int16_t)(2 * ZERO_EXPONENT);
    for (int g = first; g < last; g++) {
        Short e = *(const Short *)(packed.right_exponent + g * LANES);
        for (int r = 0; r < ROWS; r++)
            top[r] = max_short(top[r], e + packed.left_exponent[r * packed.stride + g]);
    }
    for (int r = 0; r < ROWS; r++)
        for (int h = 0; h < 2; h++) {
            union { Short whole; HalfShort half[2]; } product = {top[r]};
            Int own = exponents_of(acc[r][h], wide ? unit->min_exponent : -NARROW);
            Int largest = max_int(widened(product.half[h]), own);
            if (!wide) /* narrow terms have no bits below what this keeps */
                largest = max_int(largest, (Int){0} - NARROW);
            Int shift = unit->fraction - largest;
            factor[r][h] = wide ? (Float)shift : (Float)((shift + 127) << 23);
        }
}

/* Continue the sums c [ROWS, LANES], COLUMNS of them, or start `fresh`, over `count` products. */
TARGET INLINE void some_columns(Packed packed, float *c, int count, const Unit *unit, int wide,
                                int fresh) {
    Float acc[ROWS][2];
    int most = unit->fraction > 24 ? 16 : 32; /* that many truncated products fit int32 */
    int64_t keep = (int64_t)(UINT64_MAX << (52 - unit->mantissa));
    for (int r = 0; r < ROWS; r++)
        for (int h = 0; h < 2; h++)
            acc[r][h] = fresh ? (Float){0} : ((const Float *)(c + r * LANES))[h];
    for (int first = 0; first < count; first += unit->group) {
        int last = count - first < unit->group ? count : first + unit->group;
        Float factor[ROWS][2];
        Double total[ROWS][2][2] = {0};
        align(packed, first, last, acc, factor, unit, wide);
        for (int g = first; g < last; g += most)
            add_products(packed, g, last - g < most ? last : g + most, factor, total, wide);
        for (int r = 0; r < ROWS; r++)
            for (int h = 0; h < 2; h++)
                acc[r][h] = wide ? result_wide(total[r][h], acc[r][h], (Int)factor[r][h], unit)
                                 : result_narrow(total[r][h], acc[r][h], factor[r][h], keep);
    }
    for (int r = 0; r < ROWS; r++)
        for (int h = 0; h < 2; h++)
            ((Float *)(c + r * LANES))[h] = acc[r][h];
}

TARGET static void tile(Packed packed, float *c, int count, const Unit *unit, int wide,
                        int fresh) {
    for (int j = 0; j < LANES; j += COLUMNS) {
        if (wide)
            some_columns(packed, c + j, count, unit, 1, fresh);
        else
            some_columns(packed, c + j, count, unit, 0, fresh);
        packed.right += COLUMNS;
        packed.right_exponent += COLUMNS;
    }
}

#endif
