/* Compiled twin of ops/layer_norm.py: the same operations on the same numbers.
 *
 * Where rows are side by side in memory, loops go along them, for one feature after the other;
 * where a row's features are (inner = 1), loops go along those.
 */
#include <math.h>

#include "_lanes.h"

#define BLOCK 256 /* rows side by side that are summed at a time: their lanes stay in the cache */

/* The numbers of a call: 1 / features, and what is added to the variance. */
typedef struct {
    Extents e;
    float share, epsilon;
} Problem;

/* The arrays of a call; those that are not there are NULL. `out` may be the first. `beside` takes
 * the weight's gradient where that of x is asked for. */
typedef struct {
    const float *grad, *x, *statistics, *weight, *bias;
    float *out, *beside, *work;
} Arrays;

/* The mean and the inverse deviation of the rows of outer index `outer`, `inner` of each. */
INLINE const float *means_of(const Arrays *a, const Problem *p, Size outer) {
    return a->statistics + 2 * outer * p->e.inner;
}

INLINE void clear(float *sums, Size count) { memset(sums, 0, (size_t)count * sizeof *sums); }

/* Sums [LANES][step], half of them after half added to the others: the first `count` hold all. */
INLINE void fold(float *sums, Size step, Size count) {
    for (Size half = LANES / 2; half; half /= 2)
        for (Size i = 0; i < half; i++)
            INDEPENDENT
            for (Size r = 0; r < count; r++)
                sums[i * step + r] = sums[i * step + r] + sums[(half + i) * step + r];
}

/* Of `count` rows from x on. */
VECTORISED static void block_statistics(const Problem *p, const float *x, float *mean,
                                        float *inverse, float *lanes, Size count) {
    Size length = p->e.length, step = p->e.inner;
    clear(lanes, LANES * BLOCK);
    for (Size f = 0; f < length; f++) {
        const float *from = x + f * step;
        float *sums = lanes + f % LANES * BLOCK;
        INDEPENDENT
        for (Size r = 0; r < count; r++)
            sums[r] = sums[r] + from[r];
    }
    fold(lanes, BLOCK, count);
    for (Size r = 0; r < count; r++)
        mean[r] = lanes[r] * p->share;
    clear(lanes, LANES * BLOCK);
    for (Size f = 0; f < length; f++) {
        const float *from = x + f * step;
        float *sums = lanes + f % LANES * BLOCK;
        INDEPENDENT
        for (Size r = 0; r < count; r++) {
            float y = from[r] - mean[r];
            sums[r] = sums[r] + y * y;
        }
    }
    fold(lanes, BLOCK, count);
    for (Size r = 0; r < count; r++)
        inverse[r] = 1.0f / sqrtf(lanes[r] * p->share + p->epsilon);
}

#define TOGETHER 4 /* features of one lane that are added at a time: lanes are loaded less often */

/* Add `features` features from f on, LANES apart, of `count` rows from `at` on to their lane of the
 * sums of g = grad * weight and of g * normal x; if `beside`, grad * normal x to the feature's lanes
 * in `owned` as well. */
INLINE void add_features(const Problem *p, const Arrays *a, Size at, const float *mean, Size f,
                         Size features, float *sums, float *along, float *owned, int beside,
                         Size count) {
    const float *x = a->x + at + f * p->e.inner, *grad = a->grad + at + f * p->e.inner;
    const float *inverse = mean + p->e.inner;
    float weights[TOGETHER], *own = owned + f * LANES;
    Lanes owns[TOGETHER];
    for (Size k = 0; k < features; k++) {
        weights[k] = a->weight ? a->weight[f + k * LANES] : 1.0f;
        if (beside)
            owns[k] = load(own + k * LANES * LANES);
    }
    Size step = LANES * p->e.inner, r = 0;
    for (; r + LANES <= count; r += LANES) {
        Lanes sum = load(sums + r), product = load(along + r);
        UNROLLED
        for (Size k = 0; k < features; k++) {
            Lanes given = load(grad + r + k * step), g = given * weights[k];
            Lanes y = (load(x + r + k * step) - load(mean + r)) * load(inverse + r);
            sum = sum + g;
            product = product + g * y;
            if (beside)
                owns[k] = owns[k] + y * given;
        }
        store(sums + r, sum);
        store(along + r, product);
    }
    for (Size k = 0; beside && k < features; k++)
        store(own + k * LANES * LANES, owns[k]);
    for (; r < count; r++)
        for (Size k = 0; k < features; k++) {
            float given = grad[r + k * step], y = (x[r + k * step] - mean[r]) * inverse[r];
            sums[r] = sums[r] + given * weights[k];
            along[r] = along[r] + given * weights[k] * y;
            if (beside)
                own[k * LANES * LANES + r % LANES] += y * given;
        }
}

/* All features of `count` rows from `at` on, as `add_features`. */
INLINE void add_block(const Problem *p, const Arrays *a, Size at, const float *mean, float *lanes,
                      float *along, float *owned, int beside, Size count) {
    for (Size lane = 0; lane < LANES; lane++) {
        Size f = lane, length = p->e.length;
        float *sums = lanes + lane * BLOCK, *products = along + lane * BLOCK;
        for (; f + (TOGETHER - 1) * LANES < length; f += TOGETHER * LANES)
            add_features(p, a, at, mean, f, TOGETHER, sums, products, owned, beside, count);
        for (; f < length; f += LANES)
            add_features(p, a, at, mean, f, 1, sums, products, owned, beside, count);
    }
}

VECTORISED static void block_grad(const Problem *p, const Arrays *a, Size at, const float *mean,
                                  Size count) {
    const float *inverse = mean + p->e.inner;
    float *lanes = a->work, *along = lanes + LANES * BLOCK, *owned = along + LANES * BLOCK;
    Size length = p->e.length, step = p->e.inner;
    clear(lanes, 2 * LANES * BLOCK);
    if (a->beside)
        add_block(p, a, at, mean, lanes, along, owned, 1, count);
    else
        add_block(p, a, at, mean, lanes, along, owned, 0, count);
    fold(lanes, BLOCK, count);
    fold(along, BLOCK, count);
    for (Size r = 0; r < count; r++) {
        lanes[r] = lanes[r] * p->share;
        along[r] = along[r] * p->share;
    }
    for (Size f = 0; f < length; f++) {
        const float *x = a->x + at + f * step, *grad = a->grad + at + f * step;
        float *out = a->out + at + f * step, weight = a->weight ? a->weight[f] : 1.0f;
        INDEPENDENT
        for (Size r = 0; r < count; r++) {
            float y = (x[r] - mean[r]) * inverse[r];
            out[r] = ((grad[r] * weight - lanes[r]) - y * along[r]) * inverse[r];
        }
    }
}

/* Normalise `count` numbers, for the statistics beside them and one feature, or the reverse. */
INLINE void normalise(const float *x, const float *mean, const float *inverse, float *out,
                      Size count, const float *weight, const float *bias) {
    if (weight) {
        float w = *weight, b = *bias;
        INDEPENDENT
        for (Size r = 0; r < count; r++)
            out[r] = (x[r] - mean[r]) * inverse[r] * w + b;
    } else {
        INDEPENDENT
        for (Size r = 0; r < count; r++)
            out[r] = (x[r] - mean[r]) * inverse[r];
    }
}

VECTORISED static void beside_norm(const Problem *p, const Arrays *a) {
    Size inner = p->e.inner, at = 0;
    for (Size o = 0; o < p->e.outer; o++) {
        const float *mean = means_of(a, p, o);
        for (Size f = 0; f < p->e.length; f++, at += inner)
            normalise(a->x + at, mean, mean + inner, a->out + at, inner,
                      a->weight ? a->weight + f : NULL, a->weight ? a->bias + f : NULL);
    }
}

/* Add the products of `count` rows, the first in `lane`, to the lanes of one feature. */
INLINE void add_products(const float *x, const float *grad, const float *mean,
                         const float *inverse, Size count, Size lane, float *lanes) {
    Size r = 0;
    for (; r < count && (lane + r) % LANES; r++)
        lanes[(lane + r) % LANES] += (x[r] - mean[r]) * inverse[r] * grad[r];
    Lanes sums = load(lanes);
    for (; r + LANES <= count; r += LANES)
        sums = sums + (load(x + r) - load(mean + r)) * load(inverse + r) * load(grad + r);
    store(lanes, sums);
    for (; r < count; r++)
        lanes[(lane + r) % LANES] += (x[r] - mean[r]) * inverse[r] * grad[r];
}

VECTORISED static void beside_weight_grad(const Problem *p, const Arrays *a) {
    Size inner = p->e.inner, length = p->e.length;
    for (Size f = 0; f < length; f++) {
        float lanes[LANES] = {0.0f};
        for (Size o = 0; o < p->e.outer; o++) {
            const float *mean = means_of(a, p, o);
            Size at = (o * length + f) * inner;
            add_products(a->x + at, a->grad + at, mean, mean + inner, inner, o * inner % LANES,
                         lanes);
        }
        a->out[f] = total(load(lanes));
    }
}

VECTORISED static void row_statistics(const Problem *p, const Arrays *a) {
    const float *x = a->x;
    float *out = a->out, *centred = a->work;
    Size length = p->e.length;
    for (Size row = 0; row < p->e.outer; row++, x += length, out += 2) {
        float mean = sum_of(x, length) * p->share;
        INDEPENDENT
        for (Size f = 0; f < length; f++)
            centred[f] = x[f] - mean;
        out[0] = mean;
        out[1] = 1.0f / sqrtf(sum_of_products(centred, centred, length) * p->share + p->epsilon);
    }
}

VECTORISED static void row_norm(const Problem *p, const Arrays *a) {
    Size length = p->e.length, at = 0;
    for (Size row = 0; row < p->e.outer; row++, at += length) {
        const float *x = a->x + at, *weight = a->weight, *bias = a->bias;
        float mean = means_of(a, p, row)[0], inverse = means_of(a, p, row)[1];
        float *out = a->out + at;
        INDEPENDENT
        for (Size f = 0; f < length; f++)
            out[f] = (x[f] - mean) * inverse;
        INDEPENDENT
        for (Size f = 0; weight && f < length; f++)
            out[f] = out[f] * weight[f] + bias[f];
    }
}

VECTORISED static void row_grad(const Problem *p, const Arrays *a) {
    Size length = p->e.length, at = 0;
    float *g = a->work, *y = g + length, *owned = y + length;
    clear(owned, a->beside ? LANES * length : 0);
    for (Size row = 0; row < p->e.outer; row++, at += length) {
        const float *x = a->x + at, *grad = a->grad + at, *weight = a->weight;
        float mean = means_of(a, p, row)[0], inverse = means_of(a, p, row)[1];
        float *out = a->out + at;
        INDEPENDENT
        for (Size f = 0; f < length; f++) {
            g[f] = weight ? grad[f] * weight[f] : grad[f];
            y[f] = (x[f] - mean) * inverse;
        }
        float *own = owned + row % LANES * length;
        INDEPENDENT
        for (Size f = 0; a->beside && f < length; f++)
            own[f] = own[f] + y[f] * grad[f];
        float along = sum_of_products(g, y, length) * p->share;
        float average = sum_of(g, length) * p->share;
        INDEPENDENT
        for (Size f = 0; f < length; f++)
            out[f] = ((g[f] - average) - y[f] * along) * inverse;
    }
    if (a->beside) {
        fold(owned, length, length);
        memcpy(a->beside, owned, (size_t)length * sizeof *owned);
    }
}

VECTORISED static void row_weight_grad(const Problem *p, const Arrays *a) {
    Size length = p->e.length, at = 0;
    clear(a->work, LANES * length);
    for (Size row = 0; row < p->e.outer; row++, at += length) {
        const float *x = a->x + at, *grad = a->grad + at;
        float mean = means_of(a, p, row)[0], inverse = means_of(a, p, row)[1];
        float *sums = a->work + row % LANES * length;
        INDEPENDENT
        for (Size f = 0; f < length; f++)
            sums[f] = sums[f] + (x[f] - mean) * inverse * grad[f];
    }
    fold(a->work, length, length);
    memcpy(a->out, a->work, (size_t)length * sizeof *a->out);
}

static void statistics_all(const Problem *p, const Arrays *a) {
    Extents e = p->e;
    if (e.inner == 1) {
        row_statistics(p, a);
        return;
    }
    for (Size o = 0; o < e.outer; o++)
        for (Size r = 0; r < e.inner; r += BLOCK) {
            float *mean = a->out + 2 * o * e.inner + r;
            block_statistics(p, a->x + o * e.length * e.inner + r, mean, mean + e.inner, a->work,
                             least(BLOCK, e.inner - r));
        }
}

static void norm_all(const Problem *p, const Arrays *a) {
    (p->e.inner == 1 ? row_norm : beside_norm)(p, a);
}

static void grad_all(const Problem *p, const Arrays *a) {
    Extents e = p->e;
    if (e.inner == 1) {
        row_grad(p, a);
        return;
    }
    float *owned = a->work + 2 * LANES * BLOCK;
    clear(owned, a->beside ? LANES * e.length : 0);
    for (Size o = 0; o < e.outer; o++)
        for (Size r = 0; r < e.inner; r += BLOCK)
            block_grad(p, a, o * e.length * e.inner + r, means_of(a, p, o) + r,
                       least(BLOCK, e.inner - r));
    for (Size f = 0; a->beside && f < e.length; f++)
        a->beside[f] = total(load(owned + f * LANES));
}

static void weight_grad_all(const Problem *p, const Arrays *a) {
    (p->e.inner == 1 ? row_weight_grad : beside_weight_grad)(p, a);
}

enum { GRAD, X, STATISTICS, WEIGHT, BIAS, OUT, BESIDE, WORK, ARRAYS };

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
    return 1;
}

/* Whether the arrays that are there hold as many floats as the extents say. */
static int sizes_fit(const Problem *p, const Py_buffer *views, const int *there, All *run) {
    Extents e = p->e;
    Size all = e.outer * e.length * e.inner, rows = 2 * e.outer * e.inner;
    Size out = run == statistics_all ? rows : run == weight_grad_all ? e.length : all;
    Size work = LANES * (2 * BLOCK + e.length);
    Size need[ARRAYS] = {all, all, rows, e.length, e.length, out, e.length, work};
    for (int i = 0; i < ARRAYS; i++) {
        Size have = there[i] ? views[i].len / (Size)sizeof(float) : need[i];
        if ((there[i] && !holds_float32(&views[i])) || (i < WORK ? have != need[i] : have < need[i]))
            return 0;
    }
    return 1;
}

/* Run on (grad, x, statistics, weight, bias, out, beside, work, outer, length, inner, epsilon), None
 * for arrays that are not there; bit i of `asked` asks for number i. */
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
    if (asked || (all == norm_all && there[WEIGHT] != there[BIAS]) ||
        !sizes_fit(&p, views, there, all)) {
        PyErr_SetString(PyExc_ValueError, "expected stored float32 arrays of these extents");
        goto release;
    }
    const Arrays a = {views[GRAD].buf, views[X].buf,   views[STATISTICS].buf, views[WEIGHT].buf,
                      views[BIAS].buf, views[OUT].buf, views[BESIDE].buf,     views[WORK].buf};
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

#define METHOD(name, all, asked)                                                                   \
    static PyObject *name(PyObject *self, PyObject *const *args, Py_ssize_t count) {               \
        (void)self;                                                                                \
        return run(all, (asked) | 1 << X | 1 << OUT | 1 << WORK, args, count);                     \
    }
METHOD(layer_statistics, statistics_all, 0)
METHOD(layer_norm, norm_all, 1 << STATISTICS)
METHOD(layer_norm_grad, grad_all, 1 << GRAD | 1 << STATISTICS)
METHOD(layer_norm_weight_grad, weight_grad_all, 1 << GRAD | 1 << STATISTICS)

#define FAST(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}
static PyMethodDef methods[] = {
    FAST(layer_statistics),
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
