/* Compiled twin of ops/layer_norm.py: the same operations on the same numbers, tile by tile. */
#include <math.h>

#include "_tiles.h"

#define LANES 64 /* LANES of ops/folding.py */

/* The numbers of a call: 1 / features, and what is added to the variance. */
typedef struct {
    Extents e;
    float share, epsilon;
} Problem;

/* The arrays of a call; those that are not there are NULL. `out` may be the first. */
typedef struct {
    const float *grad, *x, *weight, *bias;
    float *out, *work;
} Arrays;

/* (x - mean) / sqrt(variance + epsilon) of a tile, and 1 / sqrt(variance + epsilon). */
INLINE void normalise(const Problem *p, float *tile, float *half, float *inverse, Size n) {
    Size length = p->e.length;
    fold(tile, half, length, n);
    for (Size i = 0; i < n; i++)
        inverse[i] = half[i] * p->share;
    for (Size f = 0; f < length; f++) {
        float *row = tile + f * n, *square = half + f * n;
        INDEPENDENT
        for (Size i = 0; i < n; i++) {
            row[i] = row[i] - inverse[i];
            square[i] = row[i] * row[i];
        }
    }
    fold(half, half, length, n);
    INDEPENDENT
    for (Size i = 0; i < n; i++)
        inverse[i] = 1.0f / sqrtf(half[i] * p->share + p->epsilon);
    for (Size f = 0; f < length; f++) {
        float *row = tile + f * n;
        INDEPENDENT
        for (Size i = 0; i < n; i++)
            row[i] = row[i] * inverse[i];
    }
}

VECTORISED static void forward_tile(const Problem *p, const Arrays *a, float *tile, float *rest,
                                    Size n) {
    normalise(p, tile, rest, rest + p->e.length * n, n);
    for (Size f = 0; f < p->e.length && a->weight; f++) {
        float weight = a->weight[f], bias = a->bias[f], *row = tile + f * n;
        for (Size i = 0; i < n; i++)
            row[i] = row[i] * weight + bias;
    }
}

/* `grad` becomes the gradient of x, whose tile is spent. */
VECTORISED static void grad_tile(const Problem *p, const Arrays *a, float *tile, float *grad,
                                 float *rest, Size n) {
    Size length = p->e.length;
    float *half = rest, *inverse = rest + length * n, *mean = inverse + n;
    normalise(p, tile, half, inverse, n);
    for (Size f = 0; f < length; f++) {
        float weight = a->weight ? a->weight[f] : 1.0f;
        float *g = grad + f * n, *normal = tile + f * n, *product = half + f * n;
        INDEPENDENT
        for (Size i = 0; i < n; i++) {
            g[i] = g[i] * weight;
            product[i] = g[i] * normal[i];
        }
    }
    fold(half, half, length, n);
    for (Size i = 0; i < n; i++)
        mean[i] = half[i] * p->share;
    fold(grad, half, length, n);
    for (Size i = 0; i < n; i++)
        half[i] = half[i] * p->share;
    for (Size f = 0; f < length; f++) {
        float *g = grad + f * n, *normal = tile + f * n;
        INDEPENDENT
        for (Size i = 0; i < n; i++)
            g[i] = ((g[i] - half[i]) - normal[i] * mean[i]) * inverse[i];
    }
}

/* Add the products of a tile of normal rows with `grad` to the lanes of every feature. */
VECTORISED static void weight_grad_tile(const Problem *p, float *tile, const float *grad,
                                        float *lanes, float *rest, Size first, Size n) {
    normalise(p, tile, rest, rest + p->e.length * n, n);
    for (Size start = 0, run; start < n; start += run) {
        Size lane = (first + start) % LANES;
        run = n - start < LANES - lane ? n - start : LANES - lane;
        for (Size f = 0; f < p->e.length; f++) {
            const float *normal = tile + f * n + start, *g = grad + f * n + start;
            float *sum = lanes + f * LANES + lane;
            INDEPENDENT
            for (Size i = 0; i < run; i++)
                sum[i] = sum[i] + normal[i] * g[i];
        }
    }
}

static void forward_all(const Problem *p, const Arrays *a) {
    Size rows = p->e.outer * p->e.inner, part = tile_size(p->e);
    float *tile = a->work, *rest = tile + part;
    for (Size first = 0, n; first < rows; first += n) {
        n = tile_rows(p->e, first);
        take_tile(a->x, p->e, first, n, tile);
        forward_tile(p, a, tile, rest, n);
        give_tile(tile, p->e, first, n, a->out);
    }
}

static void grad_all(const Problem *p, const Arrays *a) {
    Size rows = p->e.outer * p->e.inner, part = tile_size(p->e);
    float *tile = a->work, *grad = tile + part, *rest = grad + part;
    for (Size first = 0, n; first < rows; first += n) {
        n = tile_rows(p->e, first);
        take_tile(a->x, p->e, first, n, tile);
        take_tile(a->grad, p->e, first, n, grad);
        grad_tile(p, a, tile, grad, rest, n);
        give_tile(grad, p->e, first, n, a->out);
    }
}

static void weight_grad_all(const Problem *p, const Arrays *a) {
    Size rows = p->e.outer * p->e.inner, part = tile_size(p->e), length = p->e.length;
    float *tile = a->work, *grad = tile + part, *lanes = grad + part;
    float *rest = lanes + length * LANES;
    memset(lanes, 0, (size_t)(length * LANES) * sizeof *lanes);
    for (Size first = 0, n; first < rows; first += n) {
        n = tile_rows(p->e, first);
        take_tile(a->x, p->e, first, n, tile);
        take_tile(a->grad, p->e, first, n, grad);
        weight_grad_tile(p, tile, grad, lanes, rest, first, n);
    }
    for (Size f = 0; f < length; f++) {
        fold(lanes + f * LANES, lanes + f * LANES, LANES, 1);
        a->out[f] = lanes[f * LANES] + 0.0f;
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
    p->share = p->e.length > 0 ? (float)(1.0 / (double)p->e.length) : 0.0f;
    return 1;
}

/* Whether the arrays that are there hold as many floats as the extents say. */
static int sizes_fit(const Problem *p, const Py_buffer *views, const int *there, int per_feature) {
    Extents e = p->e;
    Size all = e.outer * e.length * e.inner, part = tile_size(e);
    Size work = 3 * part + 2 * (part / e.length) + e.length * LANES;
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
    if (asked || (all == forward_all && there[WEIGHT] != there[BIAS]) || p.e.outer < 1 || p.e.length < 1 || p.e.inner < 1 ||
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
