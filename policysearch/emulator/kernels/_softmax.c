/* Compiled twin of softmax and its gradient in ops/attention.py, but for the exponential, which is
 * numpy's: `shift` leaves the numbers it is taken of, `share` goes on with what it made of them.
 * Rows whose numbers are apart in memory are turned, some at a time, so that they are not.
 */
#include "_lanes.h"

#define TURNED 16 /* rows that are turned at a time */

INLINE Lanes larger(Lanes a, Lanes b) {
    Lanes c;
    for (int i = 0; i < LANES; i++)
        c[i] = a[i] > b[i] ? a[i] : b[i];
    return c;
}

INLINE float peak_of(const float *x, Size length) {
    Size whole = length / LANES * LANES;
    float peak = x[0];
    if (whole) {
        float p[LANES];
        Lanes most = load(x);
        for (Size f = LANES; f < whole; f += LANES)
            most = larger(most, load(x + f));
        store(p, most);
        for (int half = LANES / 2; half; half /= 2)
            for (int i = 0; i < half; i++)
                p[i] = p[i] > p[half + i] ? p[i] : p[half + i];
        peak = p[0];
    }
    for (Size f = whole; f < length; f++)
        peak = x[f] > peak ? x[f] : peak;
    return peak;
}

/* y = x - max(x) row by row. */
VECTORISED static void shift_rows(const float *x, float *y, Size length, Size rows) {
    for (Size row = 0; row < rows; row++, x += length, y += length) {
        float peak = peak_of(x, length);
        INDEPENDENT
        for (Size f = 0; f < length; f++)
            y[f] = x[f] - peak;
    }
}

/* out = y / sum(y) row by row. */
VECTORISED static void share_rows(const float *y, float *out, Size length, Size rows) {
    for (Size row = 0; row < rows; row++, y += length, out += length) {
        float sum = sum_of(y, length);
        INDEPENDENT
        for (Size f = 0; f < length; f++)
            out[f] = y[f] / sum;
    }
}

/* out = (grad - sum(grad * y)) * y row by row; out may be grad. */
VECTORISED static void grad_rows(const float *grad, const float *y, float *out, Size length,
                                 Size rows) {
    for (Size row = 0; row < rows; row++, grad += length, y += length, out += length) {
        float sum = sum_of_products(grad, y, length);
        INDEPENDENT
        for (Size f = 0; f < length; f++)
            out[f] = (grad[f] - sum) * y[f];
    }
}

/* The rows from first to last - 1 and where they are. */
typedef struct {
    Extents e;
    Size first, last;
} Problem;

typedef void All(const Problem *, float *const *);

/* How many rows from `first` on are turned together: all of one outer index. */
static Size next_rows(const Problem *p, Size first) {
    return least(least(TURNED, p->e.inner - first % p->e.inner), p->last - first);
}

static void take_rows(const float *x, Extents e, Size first, Size n, float *rows) {
    turn(x + place_of(e, first), e.inner, e.length, n, rows, e.length);
}

static void give_rows(const float *rows, Extents e, Size first, Size n, float *out) {
    turn(rows, e.length, n, e.length, out + place_of(e, first), e.inner);
}

static void shift_all(const Problem *p, float *const *arrays) {
    const float *x = arrays[0];
    float *y = arrays[1];
    Size length = p->e.length;
    if (p->e.inner == 1)
        shift_rows(x + p->first * length, y, length, p->last - p->first);
    else
        for (Size first = p->first, n; first < p->last; first += n, y += n * length) {
            n = next_rows(p, first);
            take_rows(x, p->e, first, n, y);
            shift_rows(y, y, length, n);
        }
}

static void share_all(const Problem *p, float *const *arrays) {
    float *y = arrays[0], *out = arrays[1];
    Size length = p->e.length;
    if (p->e.inner == 1)
        share_rows(y, out + p->first * length, length, p->last - p->first);
    else
        for (Size first = p->first, n; first < p->last; first += n, y += n * length) {
            n = next_rows(p, first);
            share_rows(y, y, length, n);
            give_rows(y, p->e, first, n, out);
        }
}

static void grad_all(const Problem *p, float *const *arrays) {
    const float *grad = arrays[0], *y = arrays[1];
    float *out = arrays[2], *rows = arrays[3], *others = rows + TURNED * p->e.length;
    if (p->e.inner == 1)
        grad_rows(grad, y, out, p->e.length, p->e.outer);
    else
        for (Size first = p->first, n; first < p->last; first += n) {
            n = next_rows(p, first);
            take_rows(grad, p->e, first, n, rows);
            take_rows(y, p->e, first, n, others);
            grad_rows(rows, others, rows, p->e.length, n);
            give_rows(rows, p->e, first, n, out);
        }
}

/* What an array holds: all rows, those from first to last, or scratch for turned ones. */
enum { EVERY, SOME, SCRATCH };

/* Run on `arrays` arrays, those in `out` written to, and outer, length, inner, first, last. */
static PyObject *run(All *all, int arrays, int out, const int *holds, PyObject *const *args,
                     Py_ssize_t count) {
    Py_buffer views[4];
    float *data[4];
    Size n[5];
    if (count != arrays + 5) {
        PyErr_Format(PyExc_TypeError, "expected %d arguments", arrays + 5);
        return NULL;
    }
    for (int i = 0; i < 5; i++)
        n[i] = PyLong_AsSsize_t(args[arrays + i]);
    if (PyErr_Occurred() || !take_buffers(args, views, arrays, out, PyBUF_C_CONTIGUOUS))
        return NULL;
    const Problem p = {{n[0], n[1], n[2]}, n[3], n[4]};
    int fit = n[0] > 0 && n[1] > 0 && n[2] > 0 && n[3] >= 0 && n[3] <= n[4] && n[4] <= n[0] * n[2];
    for (int i = 0; fit && i < arrays; i++) {
        Size need[] = {n[0] * n[1] * n[2], (n[4] - n[3]) * n[1], 2 * TURNED * n[1]};
        Size have = views[i].len / (Size)sizeof(float), least_of = need[holds[i]];
        data[i] = views[i].buf;
        fit = holds_float32(&views[i]) && (holds[i] == SCRATCH ? have >= least_of : have == least_of);
    }
    if (fit) {
        Py_BEGIN_ALLOW_THREADS
        all(&p, data);
        Py_END_ALLOW_THREADS
    } else {
        PyErr_SetString(PyExc_ValueError, "expected stored float32 arrays of these extents");
    }
    release_buffers(views, arrays);
    return fit ? Py_NewRef(Py_None) : NULL;
}

/* shift(x, y, ...): y [rows from first to last] is x less the maximum of its row. */
static PyObject *shift(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    static const int holds[] = {EVERY, SOME};
    (void)self;
    return run(shift_all, 2, 1 << 1, holds, args, count);
}

/* share(y, out, ...): those rows of out are y over the sums of its rows; y is spent. */
static PyObject *share(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    static const int holds[] = {SOME, EVERY};
    (void)self;
    return run(share_all, 2, 1 << 0 | 1 << 1, holds, args, count);
}

/* softmax_grad(grad, y, out, work, ...) of all rows */
static PyObject *softmax_grad(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    static const int holds[] = {EVERY, EVERY, EVERY, SCRATCH};
    (void)self;
    return run(grad_all, 4, 1 << 2 | 1 << 3, holds, args, count);
}

#define FAST(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}
static PyMethodDef methods[] = {
    FAST(shift),
    FAST(share),
    FAST(softmax_grad),
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_softmax", "Compiled twin of softmax and its gradient.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__softmax(void) { return PyModule_Create(&module); }
