/* Compiled twin of ops/layer_norm.py: the same operations on the same numbers.
 *
 * Rows are taken some at a time into a tile that stays in the cache, [features][wide], side by
 * side: a vector then holds one feature of LANES rows.
 */
#include <math.h>

#include "_lanes.h"

#define TILE 4096    /* floats of a tile of short rows */
#define MOST_WIDE 64 /* its rows at most, and LANES at least */

/* The numbers of a call: 1 / features, and what is added to the variance. */
typedef struct {
    Extents e;
    float share, epsilon;
    Size wide;
} Problem;

/* The arrays of a call; those that are not there are NULL. `out` may be the first. */
typedef struct {
    const float *grad, *x, *weight, *bias;
    float *out, *work;
} Arrays;

static Size wide_of(Size length) {
    Size wide = least(TILE / length, MOST_WIDE) / LANES * LANES;
    return wide < LANES ? LANES : wide;
}

/* How many rows from `first` on are side by side in memory, or behind each other; up to a tile. */
static Size tile_rows(const Problem *p, Size first) {
    Extents e = p->e;
    return least(p->wide, e.inner > 1 ? e.inner - first % e.inner : e.outer - first);
}

static void take_tile(const float *x, const Problem *p, Size first, Size n, float *tile) {
    Extents e = p->e;
    const float *from = x + place_of(e, first);
    if (n < p->wide) /* what an earlier op left there could be subnormal, which is slow */
        memset(tile, 0, (size_t)(e.length * p->wide) * sizeof *tile);
    if (e.inner == 1)
        turn(from, e.length, n, e.length, tile, p->wide);
    else
        for (Size f = 0; f < e.length; f++)
            memcpy(tile + f * p->wide, from + f * e.inner, (size_t)n * sizeof *tile);
}

static void give_tile(const float *tile, const Problem *p, Size first, Size n, float *out) {
    Extents e = p->e;
    float *to = out + place_of(e, first);
    if (e.inner == 1)
        turn(tile, p->wide, e.length, n, to, e.length);
    else
        for (Size f = 0; f < e.length; f++)
            memcpy(to + f * e.inner, tile + f * p->wide, (size_t)n * sizeof *tile);
}

/* The first of LANES sums once half of them after half is added to the others. */
INLINE Lanes folded(Lanes *sums) {
    for (int half = LANES / 2; half; half /= 2)
        UNROLLED
        for (int i = 0; i < half; i++)
            sums[i] = sums[i] + sums[half + i];
    return sums[0];
}

INLINE Lanes summed(const float *x, Size wide, Size length) {
    Lanes sums[LANES] = {{0.0f}};
    Size f = 0;
    for (; f + LANES <= length; f += LANES, x += LANES * wide)
        UNROLLED
        for (int i = 0; i < LANES; i++)
            sums[i] = sums[i] + load(x + i * wide);
    for (int i = 0; f < length; f++, i++, x += wide)
        sums[i] = sums[i] + load(x);
    return folded(sums);
}

/* Take `mean` from x; the sum of the squares. */
INLINE Lanes centred(float *x, Size wide, Size length, const Lanes *mean) {
    Lanes sums[LANES] = {{0.0f}};
    Size f = 0;
    for (; f + LANES <= length; f += LANES, x += LANES * wide)
        UNROLLED
        for (int i = 0; i < LANES; i++) {
            Lanes y = load(x + i * wide) - *mean;
            store(x + i * wide, y);
            sums[i] = sums[i] + y * y;
        }
    for (int i = 0; f < length; f++, i++, x += wide) {
        Lanes y = load(x) - *mean;
        store(x, y);
        sums[i] = sums[i] + y * y;
    }
    return folded(sums);
}

/* Make x - mean of LANES rows; 1 / sqrt(variance + epsilon), which is still to be multiplied. */
INLINE Lanes centre(const Problem *p, float *x) {
    float inverse[LANES];
    Lanes mean = summed(x, p->wide, p->e.length) * p->share;
    store(inverse, centred(x, p->wide, p->e.length, &mean) * p->share + p->epsilon);
    for (int i = 0; i < LANES; i++)
        inverse[i] = 1.0f / sqrtf(inverse[i]);
    return load(inverse);
}

VECTORISED static void forward_tile(const Problem *p, const Arrays *a, float *tile) {
    const float *weight = a->weight, *bias = a->bias;
    Size wide = p->wide, length = p->e.length;
    for (Size row = 0; row < wide; row += LANES) {
        float *x = tile + row;
        Lanes inverse = centre(p, x);
        for (Size f = 0; f < length; f++, x += wide) {
            Lanes y = load(x) * inverse;
            store(x, weight ? y * weight[f] + bias[f] : y);
        }
    }
}

/* Multiply `grad` by the weight, and return its product with the normal x, made from x. */
INLINE Lanes weighted(float *grad, float *x, float weight, const Lanes *inverse) {
    Lanes y = load(x) * *inverse, g = load(grad) * weight;
    store(x, y);
    store(grad, g);
    return g * y;
}

/* `grad` becomes the gradient of LANES rows of x, which are spent. */
INLINE void grad_strip(const Problem *p, const float *weight, float *x, float *grad) {
    Size wide = p->wide, length = p->e.length, f = 0;
    Lanes inverse = centre(p, x), sums[LANES] = {{0.0f}};
    for (; f + LANES <= length; f += LANES)
        UNROLLED
        for (int i = 0; i < LANES; i++)
            sums[i] = sums[i] + weighted(grad + (f + i) * wide, x + (f + i) * wide,
                                         weight ? weight[f + i] : 1.0f, &inverse);
    for (int i = 0; f < length; f++, i++)
        sums[i] = sums[i] +
                  weighted(grad + f * wide, x + f * wide, weight ? weight[f] : 1.0f, &inverse);
    Lanes along = folded(sums) * p->share, mean = summed(grad, wide, length) * p->share;
    for (f = 0; f < length; f++, x += wide, grad += wide)
        store(grad, ((load(grad) - mean) - load(x) * along) * inverse);
}

VECTORISED static void grad_tile(const Problem *p, const float *weight, float *tile,
                                 float *grads) {
    for (Size row = 0; row < p->wide; row += LANES)
        if (weight)
            grad_strip(p, weight, tile + row, grads + row);
        else
            grad_strip(p, NULL, tile + row, grads + row);
}

/* Add the products of normal rows with `grad` to the lanes of every feature. */
VECTORISED static void weight_grad_tile(const Problem *p, float *tile, const float *grads,
                                        float *lanes, Size first, Size n) {
    Size wide = p->wide, length = p->e.length;
    for (Size row = 0; row < n; row += LANES) {
        float *x = tile + row;
        const float *grad = grads + row;
        Lanes inverse = centre(p, x);
        Size lane = (first + row) % LANES;
        for (Size f = 0; f < length; f++, x += wide, grad += wide) {
            Lanes product = load(x) * inverse * load(grad);
            float *sums = lanes + f * LANES;
            if (lane == 0 && n - row >= LANES)
                store(sums, load(sums) + product);
            else
                for (Size i = 0; i < least(LANES, n - row); i++)
                    sums[(lane + i) % LANES] += product[i];
        }
    }
}

static void forward_all(const Problem *p, const Arrays *a) {
    Size rows = p->e.outer * p->e.inner;
    for (Size first = 0, n; first < rows; first += n) {
        n = tile_rows(p, first);
        take_tile(a->x, p, first, n, a->work);
        forward_tile(p, a, a->work);
        give_tile(a->work, p, first, n, a->out);
    }
}

static void grad_all(const Problem *p, const Arrays *a) {
    Size rows = p->e.outer * p->e.inner;
    float *grad = a->work + p->wide * p->e.length;
    for (Size first = 0, n; first < rows; first += n) {
        n = tile_rows(p, first);
        take_tile(a->x, p, first, n, a->work);
        take_tile(a->grad, p, first, n, grad);
        grad_tile(p, a->weight, a->work, grad);
        give_tile(grad, p, first, n, a->out);
    }
}

static void weight_grad_all(const Problem *p, const Arrays *a) {
    Size rows = p->e.outer * p->e.inner, length = p->e.length;
    float *grad = a->work + p->wide * length, *lanes = grad + p->wide * length;
    memset(lanes, 0, (size_t)(length * LANES) * sizeof *lanes);
    for (Size first = 0, n; first < rows; first += n) {
        n = tile_rows(p, first);
        take_tile(a->x, p, first, n, a->work);
        take_tile(a->grad, p, first, n, grad);
        weight_grad_tile(p, a->work, grad, lanes, first, n);
    }
    for (Size f = 0; f < length; f++, lanes += LANES) {
        for (int half = LANES / 2; half; half /= 2)
            for (int i = 0; i < half; i++)
                lanes[i] = lanes[i] + lanes[half + i];
        a->out[f] = lanes[0];
    }
}

enum { GRAD, X, WEIGHT, BIAS, OUT, WORK, ARRAYS };

typedef void All(const Problem *, const Arrays *);

static int take_problem(PyObject *const *args, Problem *p) {
    p->e.outer = PyLong_AsSsize_t(args[0]);
    p->e.length = PyLong_AsSsize_t(args[1]);
    p->e.inner = PyLong_AsSsize_t(args[2]);
    p->epsilon = (float)PyFloat_AsDouble(args[3]);
    if (PyErr_Occurred())
        return 0;
    if (p->e.outer < 1 || p->e.length < 1 || p->e.inner < 1) {
        PyErr_SetString(PyExc_ValueError, "expected positive extents");
        return 0;
    }
    p->share = (float)(1.0 / (double)p->e.length);
    p->wide = wide_of(p->e.length);
    return 1;
}

/* Whether the arrays that are there hold as many floats as the extents say. */
static int sizes_fit(const Problem *p, const Py_buffer *views, const int *there, int per_feature) {
    Extents e = p->e;
    Size all = e.outer * e.length * e.inner, work = e.length * (2 * p->wide + LANES);
    Size need[ARRAYS] = {all, all, e.length, e.length, per_feature ? e.length : all, work};
    for (int i = 0; i < ARRAYS; i++) {
        Size have = there[i] ? views[i].len / (Size)sizeof(float) : need[i];
        if ((there[i] && !holds_float32(&views[i])) || (i < WORK ? have != need[i] : have < need[i]))
            return 0;
    }
    return 1;
}

/* Run on (grad, x, weight, bias, out, work, outer, length, inner, epsilon), None for arrays that
 * are not there; bit i of `asked` asks for number i. */
static PyObject *run(All *all, int asked, PyObject *const *args, Py_ssize_t count) {
    Py_buffer views[ARRAYS];
    int there[ARRAYS], taken = 0, done = 0;
    Problem p;
    if (count != ARRAYS + 4) {
        PyErr_Format(PyExc_TypeError, "expected %d arguments", ARRAYS + 4);
        return NULL;
    }
    if (!take_problem(args + ARRAYS, &p))
        return NULL;
    for (; taken < ARRAYS; taken++) {
        there[taken] = args[taken] != Py_None;
        memset(&views[taken], 0, sizeof views[taken]);
        if (there[taken] && !take_buffers(args + taken, views + taken, 1, taken >= OUT,
                                          PyBUF_C_CONTIGUOUS))
            goto release;
        if (there[taken])
            asked &= ~(1 << taken);
    }
    if (asked || (all == forward_all && there[WEIGHT] != there[BIAS]) ||
        !sizes_fit(&p, views, there, all == weight_grad_all)) {
        PyErr_SetString(PyExc_ValueError, "expected stored float32 arrays of these extents");
        goto release;
    }
    const Arrays a = {views[GRAD].buf, views[X].buf,   views[WEIGHT].buf,
                      views[BIAS].buf, views[OUT].buf, views[WORK].buf};
    Py_BEGIN_ALLOW_THREADS
    all(&p, &a);
    Py_END_ALLOW_THREADS
    done = 1;
release:
    for (int i = 0; i < taken; i++)
        if (there[i])
            PyBuffer_Release(&views[i]);
    return done ? Py_NewRef(Py_None) : NULL;
}

#define ASK(array) (1 << (array))

static PyObject *layer_norm(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    return run(forward_all, ASK(X) | ASK(OUT) | ASK(WORK), args, count);
}

static PyObject *layer_norm_grad(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    return run(grad_all, ASK(GRAD) | ASK(X) | ASK(OUT) | ASK(WORK), args, count);
}

static PyObject *layer_norm_weight_grad(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    return run(weight_grad_all, ASK(GRAD) | ASK(X) | ASK(OUT) | ASK(WORK), args, count);
}

#define FAST(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}
static PyMethodDef methods[] = {
    FAST(layer_norm),
    FAST(layer_norm_grad),
    FAST(layer_norm_weight_grad),
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_layer_norm", "Compiled twin of policysearch.ops.layer_norm.", -1,
    methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__layer_norm(void) { return PyModule_Create(&module); }
