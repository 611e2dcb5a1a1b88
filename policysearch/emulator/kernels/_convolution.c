/* Compiled twin of ops/conv.py: direct convolutions without columns.
 *
 * Images are (height, channels, width, batch), weights (kernel_h, c_in, kernel_w, c_out), both
 * contiguous. Every product is one chain of fused multiply-adds from zero, in the order of the
 * contracted index; no other operation is fused: compile with -ffp-contract=off. Only the CPython
 * C-API and the buffer protocol are used. This file includes itself once per vector size: only its
 * last part, the kernels, is compiled then. Without a fused vector instruction there are none.
 */
#ifndef BYTES
#include "../../rounding/_compiled.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define KERNELS
#endif
#if defined(__clang__)
#define UNROLLED _Pragma("unroll")
#else
#define UNROLLED _Pragma("GCC unroll 32") /* an array indexed by constants stays in registers */
#endif
#define POSITIONS 16 /* positions of a row whose pixels wgrad gathers at a time */
#define MAX_LANES 16

typedef Py_ssize_t Size;

/* Geometry of ops/conv_geometry.py, field by field. `chunk`: the positions in a chain of wgrad.
 * `positive_zero`: a result of fprop is added to zero, which makes -0 of an underflow +0. */
typedef struct {
    int64_t batch, c_in, height, width, c_out, kernel_h, kernel_w, stride, padding, chunk,
        positive_zero;
} Geometry;

typedef struct {
    Geometry g;
    Size out_h, out_w, padded_h, padded_w, plane, k;
} Problem;

/* A vector of the operand at every contracted index (i, j): at data + i * outer_step + j * step. */
typedef struct {
    const float *data;
    Size outer, outer_step, inner, step;
} Operand;

typedef void Run(const Problem *, const float *, const float *, float *, float *);

#ifdef KERNELS
static Size least(Size a, Size b) { return a < b ? a : b; }

/* The image with its border of zeros, which is a copy in `work` if there is a border. */
static const float *padded(const Problem *p, const float *image, float *work) {
    Size n = p->g.batch, pad = p->g.padding, row = p->g.width * n, wide = p->padded_w * n;
    if (pad == 0)
        return image;
    memset(work, 0, (size_t)(p->padded_h * p->g.c_in * wide) * sizeof *work);
    for (Size i = 0; i < p->g.height * p->g.c_in; i++)
        memcpy(work + (pad * p->g.c_in + i) * wide + pad * n, image + i * row,
               (size_t)row * sizeof *work);
    return work;
}

/* Weights as (kernel_h, kernel_w, c_out, c_in): the chain of dgrad runs over c_out. */
static void pack_weights(const Problem *p, const float *weight, float *work) {
    const Geometry *g = &p->g;
    for (Size h = 0; h < g->kernel_h; h++)
        for (Size j = 0; j < g->kernel_w; j++)
            for (Size o = 0; o < g->c_out; o++)
                for (Size c = 0; c < g->c_in; c++)
                    *work++ = weight[((h * g->c_in + c) * g->kernel_w + j) * g->c_out + o];
}

/* `count` positions of up to `lanes` channels as [position][lane], lanes past the last zero:
 * what an earlier op left there could be subnormal, which is slow. */
static void pack_gradient(float *to, const float *from, Size channels, Size plane, Size count,
                          Size lanes) {
    Size whole = count / 4 * 4;
    if (channels < lanes)
        memset(to, 0, (size_t)(count * lanes) * sizeof *to);
    for (Size o = 0; o < channels; o += 4) {
        const float *row = from + o * plane;
        Size some = channels - o < 4 ? channels - o : 4, first = some == 4 ? whole : 0;
        for (Size i = 0; i < first; i += 4) {
            __m128 a = _mm_loadu_ps(row + i), b = _mm_loadu_ps(row + plane + i);
            __m128 c = _mm_loadu_ps(row + 2 * plane + i), d = _mm_loadu_ps(row + 3 * plane + i);
            _MM_TRANSPOSE4_PS(a, b, c, d);
            float *out = to + i * lanes + o;
            _mm_storeu_ps(out, a);
            _mm_storeu_ps(out + lanes, b);
            _mm_storeu_ps(out + 2 * lanes, c);
            _mm_storeu_ps(out + 3 * lanes, d);
        }
        for (Size i = first; i < count; i++)
            for (Size j = 0; j < some; j++)
                to[i * lanes + o + j] = row[j * plane + i];
    }
}

/* The kernels' names, told apart by the size of their vectors. */
#define JOINED(name, bytes) name##_##bytes
#define WITH_BYTES(name, bytes) JOINED(name, bytes)
#define NAMED(name) WITH_BYTES(name, BYTES)

#define BYTES 64
#define TARGET __attribute__((target("avx512f")))
#include "_convolution.c"
#undef BYTES
#undef TARGET
#define BYTES 32
#define TARGET __attribute__((target("avx2,fma")))
#include "_convolution.c"
#undef BYTES
#undef TARGET
#endif

/* The size of the widest vectors, up to `bytes`, with a fused multiply-add; 0 without. */
static long vector_bytes_up_to(long bytes) {
#ifdef KERNELS
    if (bytes >= 64 && __builtin_cpu_supports("avx512f"))
        return 64;
    if (bytes >= 32 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return 32;
#endif
    (void)bytes;
    return 0;
}

/* The kernel of a direction: 0 fprop, 1 dgrad, 2 wgrad. */
static Run *kernel_of(int direction, long bytes) {
#ifdef KERNELS
    Run *const wide[] = {fprop_64, dgrad_64, wgrad_64};
    Run *const narrow[] = {fprop_32, dgrad_32, wgrad_32};
    return bytes == 64 ? wide[direction] : bytes == 32 ? narrow[direction] : NULL;
#else
    (void)direction, (void)bytes;
    return NULL;
#endif
}

static int take_problem(PyObject *packed, Problem *p) {
    Geometry *g = &p->g;
    if (!PyBytes_Check(packed) || PyBytes_GET_SIZE(packed) != (Size)sizeof *g)
        return 0;
    memcpy(g, PyBytes_AS_STRING(packed), sizeof *g);
    const int64_t *field = &g->batch;
    for (int i = 0; i < 11; i++)
        if (field[i] < (i != 8 && i != 10) || field[i] > INT32_MAX)
            return 0;
    p->padded_h = g->height + 2 * g->padding;
    p->padded_w = g->width + 2 * g->padding;
    if (p->padded_h < g->kernel_h || p->padded_w < g->kernel_w)
        return 0;
    p->out_h = (p->padded_h - g->kernel_h) / g->stride + 1;
    p->out_w = (p->padded_w - g->kernel_w) / g->stride + 1;
    p->plane = p->out_w * g->batch;
    p->k = g->kernel_h * g->c_in * g->kernel_w;
    return p->plane % g->chunk == 0;
}

/* Whether left, right, out and work hold as many floats as the direction needs. */
static int sizes_fit(const Problem *p, int direction, const Py_buffer *views) {
    const Geometry *g = &p->g;
    Size image = g->batch * g->c_in * g->height * g->width;
    Size weight = p->k * g->c_out, result = p->plane * g->c_out * p->out_h;
    Size border = g->padding ? p->padded_h * p->padded_w * g->c_in * g->batch : 0;
    Size need[3][4] = {{image, weight, result, border},
                       {result, weight, image, weight},
                       {result, image, weight, border + g->chunk * MAX_LANES}};
    for (int i = 0; i < 4; i++) {
        Size have = views[i].len / (Size)sizeof(float);
        if (!holds_float32(&views[i]) ||
            (i < 3 ? have != need[direction][i] : have < need[direction][i]))
            return 0;
    }
    return 1;
}

static PyObject *run(int direction, PyObject *const *args, Py_ssize_t count) {
    Py_buffer views[4];
    Problem problem;
    int done = 0;
    long bytes = count == 6 ? PyLong_AsLong(args[5]) : 64;
    if (count < 5 || count > 6 || PyErr_Occurred()) {
        PyErr_SetString(PyExc_TypeError, "expected left, right, out, work, geometry[, bytes]");
        return NULL;
    }
    Run *kernel = kernel_of(direction, vector_bytes_up_to(bytes));
    if (!take_buffers(args, views, 4, 1 << 2 | 1 << 3, PyBUF_C_CONTIGUOUS))
        return NULL;
    if (kernel == NULL || !take_problem(args[4], &problem) ||
        !sizes_fit(&problem, direction, views)) {
        PyErr_SetString(PyExc_ValueError, "expected a kernel and float32 arrays of its geometry");
        goto release;
    }
    Py_BEGIN_ALLOW_THREADS
    kernel(&problem, views[0].buf, views[1].buf, views[2].buf, views[3].buf);
    Py_END_ALLOW_THREADS
    done = 1;
release:
    release_buffers(views, 4);
    return done ? Py_NewRef(Py_None) : NULL;
}

/* fprop(image, weight, out, work, geometry[, bytes]); vectors of at most `bytes`, for tests. */
static PyObject *fprop(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    return run(0, args, count);
}

/* dgrad(grad, weight, out, work, geometry[, bytes]) */
static PyObject *dgrad(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    return run(1, args, count);
}

/* wgrad(grad, image, out, work, geometry[, bytes]) */
static PyObject *wgrad(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    return run(2, args, count);
}

/* vector_bytes(): the size of the widest vectors there is a kernel for on this machine, or 0. */
static PyObject *vector_bytes(PyObject *self, PyObject *none) {
    (void)self, (void)none;
    return PyLong_FromLong(vector_bytes_up_to(64));
}

#define FAST(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}
static PyMethodDef methods[] = {
    FAST(fprop),
    FAST(dgrad),
    FAST(wgrad),
    {"vector_bytes", vector_bytes, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_convolution", "Compiled twin of policysearch.ops.conv.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__convolution(void) { return PyModule_Create(&module); }

#else /* one vector size */

#define LANES (BYTES / 4)
#define Float NAMED(Float)
#define Mask NAMED(Mask)
#define lanes_between NAMED(lanes_between)
#define load_some NAMED(load_some)
#define store_some NAMED(store_some)
#define load NAMED(load)
#define store NAMED(store)
#define fused NAMED(fused)
#define same NAMED(same)
#define kept NAMED(kept)
#define chain_of NAMED(chain_of)
#define chain NAMED(chain)
#define fprop_all NAMED(fprop)
#define dgrad_all NAMED(dgrad)
#define wgrad_all NAMED(wgrad)
#define fprop_run NAMED(fprop_run)
#define fold_row NAMED(fold_row)
#define dgrad_run NAMED(dgrad_run)
#define gather_pixels NAMED(gather_pixels)
#define wgrad_chain NAMED(wgrad_chain)

#if BYTES == 64
#define ROWS 6     /* output channels of a tile: */
#define VECTORS 4  /* ROWS * VECTORS sums stay in registers */
#define PIXELS 25  /* contracted indices of a tile of wgrad */
typedef __m512 Float;
typedef __mmask16 Mask;
/* Lanes first to last - 1. */
INLINE TARGET Mask lanes_between(Size first, Size last) {
    unsigned below = last <= 0 ? 0u : last >= LANES ? 0xffffu : (1u << last) - 1u;
    unsigned before = first <= 0 ? 0u : first >= LANES ? 0xffffu : (1u << first) - 1u;
    return (Mask)(below & ~before);
}
INLINE TARGET Float load_some(Mask m, const float *x) { return _mm512_maskz_loadu_ps(m, x); }
INLINE TARGET void store_some(Mask m, float *x, Float y) { _mm512_mask_storeu_ps(x, m, y); }
INLINE TARGET Float load(const float *x) { return _mm512_loadu_ps(x); }
INLINE TARGET void store(float *x, Float y) { _mm512_storeu_ps(x, y); }
INLINE TARGET Float fused(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
INLINE TARGET Float same(float x) { return _mm512_set1_ps(x); }
INLINE TARGET Float kept(Mask m, Float x) { return _mm512_maskz_mov_ps(m, x); }
#else
#define ROWS 4
#define VECTORS 2
#define PIXELS 12
typedef __m256 Float;
typedef __m256i Mask;
INLINE TARGET Mask lanes_between(Size first, Size last) {
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    int low = (int)(first < 0 ? 0 : least(first, LANES));
    int high = (int)(last < 0 ? 0 : least(last, LANES));
    return _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(low), lane),
                               _mm256_cmpgt_epi32(_mm256_set1_epi32(high), lane));
}
INLINE TARGET Float load_some(Mask m, const float *x) { return _mm256_maskload_ps(x, m); }
INLINE TARGET void store_some(Mask m, float *x, Float y) { _mm256_maskstore_ps(x, m, y); }
INLINE TARGET Float load(const float *x) { return _mm256_loadu_ps(x); }
INLINE TARGET void store(float *x, Float y) { _mm256_storeu_ps(x, y); }
INLINE TARGET Float fused(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
INLINE TARGET Float same(float x) { return _mm256_set1_ps(x); }
INLINE TARGET Float kept(Mask m, Float x) { return _mm256_and_ps(_mm256_castsi256_ps(m), x); }
#endif

/* Add to sum[row][vector] the chain of products with weights w[row], w[step + row], ...; unless
 * `whole`, lanes that are masked out get +0. */
INLINE TARGET void chain_of(float *sum, Operand x, const float *w, Size step, const Mask *mask,
                            int whole, int rows, int vectors) {
    Float s[ROWS][VECTORS];
    UNROLLED
    for (int i = 0; i < rows; i++)
        UNROLLED
        for (int v = 0; v < vectors; v++)
            s[i][v] = same(0.0f);
    for (Size outer = 0; outer < x.outer; outer++) {
        const float *data = x.data + outer * x.outer_step;
        for (Size inner = 0; inner < x.inner; inner++, data += x.step, w += step) {
            Float y[VECTORS];
            UNROLLED
            for (int v = 0; v < vectors; v++)
                y[v] = whole ? load(data + v * LANES) : load_some(mask[v], data + v * LANES);
            UNROLLED
            for (int i = 0; i < rows; i++)
                UNROLLED
                for (int v = 0; v < vectors; v++)
                    s[i][v] = fused(same(w[i]), y[v], s[i][v]);
        }
    }
    UNROLLED
    for (int i = 0; i < rows; i++)
        UNROLLED
        for (int v = 0; v < vectors; v++) {
            float *to = sum + (i * VECTORS + v) * LANES;
            store(to, load(to) + (whole ? s[i][v] : kept(mask[v], s[i][v])));
        }
}

/* The same with the extents of the tile known to the compiler. */
TARGET static void chain(float *sum, Operand x, const float *w, Size step, const Mask *mask,
                         int whole, Size rows, int vectors) {
#define CASE(rows)                                                                                 \
    case rows:                                                                                     \
        if (vectors == 1)                                                                          \
            chain_of(sum, x, w, step, mask, 0, rows, 1);                                           \
        else if (whole)                                                                            \
            chain_of(sum, x, w, step, mask, 1, rows, VECTORS);                                     \
        else                                                                                       \
            chain_of(sum, x, w, step, mask, 0, rows, VECTORS);                                     \
        break;
    switch (rows) {
        CASE(1)
        CASE(2)
        CASE(3)
        CASE(4)
#if ROWS > 4
        CASE(5)
        CASE(6)
#endif
    }
#undef CASE
}

/* `length` positions of one output row; `x` has the operand of the first. */
TARGET static void fprop_run(const Problem *p, Operand x, const float *weight, float *out,
                             Size length) {
    float sum[ROWS * VECTORS * LANES] __attribute__((aligned(64)));
    Float zero = same(p->g.positive_zero ? 0.0f : -0.0f); /* -0 leaves the sign of what is added */
    for (Size q = 0; q < length;) {
        int vectors = length - q < VECTORS * LANES ? 1 : VECTORS;
        Mask mask[VECTORS];
        for (int v = 0; v < vectors; v++)
            mask[v] = lanes_between(0, length - q - v * LANES);
        for (Size o = 0; o < p->g.c_out; o += ROWS) {
            Size rows = least(ROWS, p->g.c_out - o);
            for (int i = 0; i < ROWS * VECTORS; i++)
                store(sum + i * LANES, zero);
            chain(sum, x, weight + o, p->g.c_out, mask, 1, rows, vectors);
            for (Size i = 0; i < rows; i++)
                for (int v = 0; v < vectors; v++)
                    store_some(mask[v], out + (o + i) * p->plane + q + v * LANES,
                               load(sum + (i * VECTORS + v) * LANES));
        }
        q += vectors * LANES;
        x.data += vectors * LANES;
    }
}

TARGET static void fprop_all(const Problem *p, const float *image, const float *weight, float *out,
                          float *work) {
    Size n = p->g.batch, stride = p->g.stride, row = p->padded_w * n;
    const float *from = padded(p, image, work);
    for (Size r = 0; r < p->out_h; r++, out += p->g.c_out * p->plane) {
        Operand x = {from + r * stride * p->g.c_in * row, p->g.kernel_h * p->g.c_in, row,
                     p->g.kernel_w, n};
        if (stride == 1)
            fprop_run(p, x, weight, out, p->plane);
        for (Size column = 0; stride > 1 && column < p->out_w; column++, x.data += stride * n)
            fprop_run(p, x, weight, out + column * n, n);
    }
}

/* folded[channel][vector]: what output row `grad` gives the positions q, q + 1, ... of the image
 * that lie `length` - q before the end of the run starting at `column`, over kernel columns. */
TARGET static void fold_row(const Problem *p, float *folded, const float *grad, const float *weight,
                            Size column, Size q, Size length, Size rows, int vectors) {
    const Geometry *g = &p->g;
    memset(folded, 0, ROWS * VECTORS * LANES * sizeof *folded);
    for (Size j = 0; j < g->kernel_w; j++) {
        if ((column - j) % g->stride)
            continue;
        Size start = (column - j) / g->stride * g->batch + q;
        Size first = start < 0 ? -start : 0;
        Size last = least(least(p->plane - start, length - q), vectors * LANES);
        if (first >= last)
            continue;
        Operand x = {grad + start, g->c_out, p->plane, 1, 0};
        Mask mask[VECTORS];
        for (int v = 0; v < vectors; v++)
            mask[v] = lanes_between(first - v * LANES, last - v * LANES);
        int whole = first == 0 && last == vectors * LANES;
        /* The +0 of the other lanes changes nothing: no sum that starts from +0 becomes -0. */
        chain(folded, x, weight + j * g->c_out * g->c_in, g->c_in, mask, whole, rows, vectors);
    }
}

/* `length` positions of image row y, from padded column `column`, for up to ROWS channels. */
TARGET static void dgrad_run(const Problem *p, const float *grad, const float *weight, float *out,
                             Size y, Size column, Size length, Size rows) {
    float folded[ROWS * VECTORS * LANES] __attribute__((aligned(64)));
    float total[ROWS * VECTORS * LANES] __attribute__((aligned(64)));
    const Geometry *g = &p->g;
    Size first = y < g->kernel_h ? 0 : (y - g->kernel_h) / g->stride + 1;
    Size last = least(y / g->stride, p->out_h - 1), matrix = g->kernel_w * g->c_out * g->c_in;
    int vectors = VECTORS;
    for (Size q = 0; q < length; q += vectors * LANES) {
        vectors = length - q < VECTORS * LANES ? 1 : VECTORS;
        memset(total, 0, sizeof total);
        for (Size r = first; r <= last; r++) {
            fold_row(p, folded, grad + r * g->c_out * p->plane,
                     weight + (y - r * g->stride) * matrix, column, q, length, rows, vectors);
            for (Size i = 0; i < ROWS * VECTORS; i++)
                store(total + i * LANES, load(total + i * LANES) + load(folded + i * LANES));
        }
        for (Size i = 0; i < rows; i++)
            for (int v = 0; v < vectors; v++)
                store_some(lanes_between(0, length - q - v * LANES),
                           out + i * g->width * g->batch + q + v * LANES,
                           load(total + (i * VECTORS + v) * LANES));
    }
}

TARGET static void dgrad_all(const Problem *p, const float *grad, const float *weight, float *out,
                             float *work) {
    const Geometry *g = &p->g;
    Size row = g->width * g->batch;
    pack_weights(p, weight, work);
    for (Size y = 0; y < g->height; y++)
        for (Size c = 0; c < g->c_in; c += ROWS) {
            Size rows = least(ROWS, g->c_in - c), pad = g->padding;
            float *to = out + (y * g->c_in + c) * row;
            if (g->stride == 1)
                dgrad_run(p, grad, work + c, to, y + pad, pad, row, rows);
            for (Size x = 0; g->stride > 1 && x < g->width; x++)
                dgrad_run(p, grad, work + c, to + x * g->batch, y + pad, x + pad, g->batch, rows);
        }
}

/* The image at `count` positions from `first` of an output row, for PIXELS contracted indices. */
TARGET static void gather_pixels(const Problem *p, float *to, const float *const *from, Size first,
                                 Size count) {
    Size n = p->g.batch, stride = p->g.stride;
    Size start = stride == 1 ? first : first / n * stride * n + first % n;
    if (count == POSITIONS && (stride == 1 || first % n + count <= n)) {
        for (int k = 0; k < PIXELS; k++)
            for (int v = 0; v < POSITIONS; v += LANES)
                store(to + k * POSITIONS + v, load(from[k] + start + v));
        return;
    }
    for (Size i = 0; i < count; i++) {
        for (int k = 0; k < PIXELS; k++)
            to[k * POSITIONS + i] = from[k][start];
        start += (first + i + 1) % n ? 1 : (stride - 1) * n + 1;
    }
}

/* sum[pixel][lane] over the positions of a chunk; `gradient` is [position][lane]. */
TARGET static void wgrad_chain(const Problem *p, Float *sum, const float *const *from,
                               const float *gradient, Size first) {
    float x[PIXELS * POSITIONS] __attribute__((aligned(64)));
    Float s[PIXELS];
    UNROLLED
    for (int k = 0; k < PIXELS; k++)
        s[k] = same(0.0f);
    for (Size q = 0; q < p->g.chunk; q += POSITIONS) {
        Size count = least(POSITIONS, p->g.chunk - q);
        gather_pixels(p, x, from, first + q, count);
        for (Size i = 0; i < count; i++, gradient += LANES) {
            Float y = load(gradient);
            UNROLLED
            for (int k = 0; k < PIXELS; k++)
                s[k] = fused(same(x[k * POSITIONS + i]), y, s[k]);
        }
    }
    UNROLLED
    for (int k = 0; k < PIXELS; k++)
        sum[k] = s[k];
}

TARGET static void wgrad_all(const Problem *p, const float *grad, const float *image, float *out,
                             float *work) {
    const Geometry *g = &p->g;
    Size row = p->padded_w * g->batch, pieces = p->plane / g->chunk;
    const float *from = padded(p, image, work);
    float *packed = work + (g->padding ? p->padded_h * g->c_in * row : 0);
    Float sum[PIXELS];
    for (Size piece = 0; piece < p->out_h * pieces; piece++) {
        Size r = piece / pieces, first = piece % pieces * g->chunk;
        for (Size o = 0; o < g->c_out; o += LANES) {
            Size lanes = least(LANES, g->c_out - o);
            Mask mask = lanes_between(0, lanes);
            pack_gradient(packed, grad + (r * g->c_out + o) * p->plane + first, lanes, p->plane,
                          g->chunk, LANES);
            for (Size k = 0; k < p->k; k += PIXELS) {
                const float *pixels[PIXELS];
                for (Size i = 0; i < PIXELS; i++) { /* past the last: a copy that is not stored */
                    Size at = least(k + i, p->k - 1), j = at % g->kernel_w;
                    pixels[i] = from + (r * g->stride * g->c_in + at / g->kernel_w) * row +
                                j * g->batch;
                }
                wgrad_chain(p, sum, pixels, packed, first);
                for (Size i = 0; i < least(PIXELS, p->k - k); i++) {
                    float *to = out + (k + i) * g->c_out + o;
                    Float before = piece ? load_some(mask, to) : same(0.0f);
                    store_some(mask, to, before + sum[i]);
                }
            }
        }
    }
}

#undef ROWS
#undef VECTORS
#undef PIXELS
#endif
