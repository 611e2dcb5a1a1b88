/* Compiled twin of softmax and its gradient in ops/attention.py, but for the exponential, which is
 * numpy's: `shift` leaves the numbers it is taken of, `share` goes on with what it made of them.
 */
#include "_tiles.h"

VECTORISED static void shift_tile(float *tile, float *peak, Size length, Size n) {
    memcpy(peak, tile, (size_t)n * sizeof *peak);
    for (Size f = 1; f < length; f++) {
        const float *row = tile + f * n;
        INDEPENDENT
        for (Size i = 0; i < n; i++)
            peak[i] = row[i] > peak[i] ? row[i] : peak[i];
    }
    for (Size f = 0; f < length; f++) {
        float *row = tile + f * n;
        INDEPENDENT
        for (Size i = 0; i < n; i++)
            row[i] = row[i] - peak[i];
    }
}

VECTORISED static void share_tile(float *tile, float *half, Size length, Size n) {
    fold(tile, half, length, n);
    for (Size f = 0; f < length; f++) {
        float *row = tile + f * n;
        INDEPENDENT
        for (Size i = 0; i < n; i++)
            row[i] = row[i] / half[i];
    }
}

VECTORISED static void grad_tile(float *grad, const float *y, float *half, Size length, Size n) {
    INDEPENDENT
    for (Size i = 0; i < length * n; i++)
        half[i] = grad[i] * y[i];
    fold(half, half, length, n);
    for (Size f = 0; f < length; f++) {
        float *g = grad + f * n;
        const float *row = y + f * n;
        INDEPENDENT
        for (Size i = 0; i < n; i++)
            g[i] = (g[i] - half[i]) * row[i];
    }
}

/* The rows from first to last - 1 and where they are. */
typedef struct {
    Extents e;
    Size first, last;
} Problem;

typedef void All(const Problem *, float *const *);

static Size tile_until(const Problem *p, Size first) {
    Size n = tile_rows(p->e, first);
    return n < p->last - first ? n : p->last - first;
}

static void shift_all(const Problem *p, float *const *arrays) {
    const float *x = arrays[0];
    float *tile = arrays[1], *peak = arrays[2];
    for (Size first = p->first, n; first < p->last; first += n, tile += n * p->e.length) {
        n = tile_until(p, first);
        take_tile(x, p->e, first, n, tile);
        shift_tile(tile, peak, p->e.length, n);
    }
}

static void share_all(const Problem *p, float *const *arrays) {
    float *tile = arrays[0], *out = arrays[1], *half = arrays[2];
    for (Size first = p->first, n; first < p->last; first += n, tile += n * p->e.length) {
        n = tile_until(p, first);
        share_tile(tile, half, p->e.length, n);
        give_tile(tile, p->e, first, n, out);
    }
}

static void grad_all(const Problem *p, float *const *arrays) {
    const float *grad = arrays[0], *y = arrays[1];
    float *out = arrays[2], *tile = arrays[3], *other = tile + tile_size(p->e);
    for (Size first = p->first, n; first < p->last; first += n) {
        n = tile_until(p, first);
        take_tile(grad, p->e, first, n, tile);
        take_tile(y, p->e, first, n, other);
        grad_tile(tile, other, other + tile_size(p->e), p->e.length, n);
        give_tile(tile, p->e, first, n, out);
    }
}

/* Run on `arrays` arrays, those in `out` written to, and outer, length, inner, first, last; `need`
 * holds how many floats an array has: of all rows (0), of the rows from first to last (1), of
 * scratch for one row of a tile (2), for a tile (3), for three (4). */
static PyObject *run(All *all, int arrays, int out, const int *need, PyObject *const *args,
                     Py_ssize_t count) {
    Py_buffer views[4];
    float *data[4];
    int fit = 1;
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
    fit = n[0] > 0 && n[1] > 0 && n[2] > 0 && n[3] >= 0 && n[3] <= n[4] && n[4] <= n[0] * n[2];
    for (int i = 0; fit && i < arrays; i++) {
        const Size tile = tile_size(p.e), all_rows = n[0] * n[1] * n[2];
        const Size sizes[] = {all_rows, (n[4] - n[3]) * n[1], tile / n[1], tile, 3 * tile};
        Size have = views[i].len / (Size)sizeof(float);
        data[i] = views[i].buf;
        fit = holds_float32(&views[i]) && have >= sizes[need[i]] && (need[i] || have == all_rows);
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

/* shift(x, y, peak, ...): y [rows from first to last] is x less the maximum of its row. */
static PyObject *shift(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    static const int need[] = {0, 1, 2};
    (void)self;
    return run(shift_all, 3, 1 << 1 | 1 << 2, need, args, count);
}

/* share(y, out, half, ...): those rows of out are y over the sums of its rows; y is spent. */
static PyObject *share(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    static const int need[] = {1, 0, 3};
    (void)self;
    return run(share_all, 3, 1 << 0 | 1 << 1 | 1 << 2, need, args, count);
}

/* softmax_grad(grad, y, out, work, ...) */
static PyObject *softmax_grad(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    static const int need[] = {0, 0, 0, 4};
    (void)self;
    return run(grad_all, 4, 1 << 2 | 1 << 3, need, args, count);
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
