/* Compiled twin of the maximum in ops/pool.py: the same bits, in one pass over memory.
 *
 * Images are stored (height, channels, width, batch), so a place of a window is a run over the
 * batch. Only the CPython C-API and the buffer protocol are used. Every float operation is rounded
 * on its own: compile with -ffp-contract=off and without -ffast-math.
 */
#include "../../rounding/_compiled.h"

enum { GRAD, IMAGE, POOLED, OUT };

typedef struct {
    Py_ssize_t high, channels, wide, batch; /* of the pooled image */
    Py_ssize_t line, row, rows;             /* floats of (width, batch), of a row; rows */
    Py_ssize_t kernel, stride;
} Geometry;

/* Where the window of a pooled value starts in the image. */
INLINE Py_ssize_t corner(Geometry g, Py_ssize_t r, Py_ssize_t c, Py_ssize_t q) {
    return g.stride * (r * g.row + q * g.batch) + c * g.line;
}

INLINE Py_ssize_t place(Geometry g, int number, int kernel) {
    return number / kernel * g.row + number % kernel * g.batch;
}

#if defined(__x86_64__) || defined(_M_X64)
/* np.maximum: the first operand if it is NaN; of zeros of both signs the second, in every loop that
 * numpy has for x86-64. On ARM that is the positive zero, and elsewhere it depends on the loop, so
 * the maximum is left to numpy there. */
#define HAS_MAXIMUM
INLINE void max_window(const float *x, float *restrict y, Geometry g, int kernel) {
    for (Py_ssize_t b = 0; b < g.batch; b++) {
        float most = x[b];
        for (int i = 1; i < kernel * kernel; i++) {
            float next = x[place(g, i, kernel) + b];
            float larger = most > next ? most : next;
            most = most == most ? larger : most;
        }
        y[b] = most;
    }
}

INLINE void max_windows(float *const *arrays, Geometry g, int kernel) {
    float *y = arrays[POOLED];
    for (Py_ssize_t r = 0; r < g.high; r++)
        for (Py_ssize_t c = 0; c < g.channels; c++)
            for (Py_ssize_t q = 0; q < g.wide; q++, y += g.batch)
                max_window(arrays[IMAGE] + corner(g, r, c, q), y, g, kernel);
}

VECTORISED static void max_all(float *const *arrays, Geometry g) {
    if (g.kernel == 2)
        max_windows(arrays, g, 2);
    else
        max_windows(arrays, g, 3);
}
#endif

/* By its bits: the conversion of a comparison becomes a branch where the set has no masks. */
INLINE float one_if(int condition) {
    uint32_t bits = (0u - (uint32_t)condition) & 0x3f800000u;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* `left` is what no earlier place has taken. It is multiplied, not selected: that gives zeros their
 * sign and makes infinity times zero NaN. */
INLINE void grad_window(const float *x, const float *y, const float *grad, float *restrict out,
                        Geometry g, int kernel) {
    INDEPENDENT /* the places are `batch` floats apart or more */
    for (Py_ssize_t b = 0; b < g.batch; b++) {
        float left = grad[b];
        for (int i = 0; i < kernel * kernel; i++) {
            Py_ssize_t at = place(g, i, kernel) + b;
            float taken = left * one_if(x[at] == y[b]);
            out[at] = taken;
            left = left - taken;
        }
    }
}

INLINE void grad_windows(float *const *arrays, Geometry g, int kernel) {
    Py_ssize_t n = 0;
    for (Py_ssize_t r = 0; r < g.high; r++)
        for (Py_ssize_t c = 0; c < g.channels; c++)
            for (Py_ssize_t q = 0; q < g.wide; q++, n += g.batch) {
                Py_ssize_t at = corner(g, r, c, q);
                grad_window(arrays[IMAGE] + at, arrays[POOLED] + n, arrays[GRAD] + n,
                            arrays[OUT] + at, g, kernel);
            }
}

VECTORISED static void grad_all(float *const *arrays, Geometry g) {
    Py_ssize_t covered = g.kernel * g.wide * g.batch;
    if (g.stride > g.kernel || covered < g.line || g.kernel * g.high < g.rows)
        memset(arrays[OUT], 0, (size_t)(g.rows * g.row) * sizeof(float));
    if (g.kernel == 2)
        grad_windows(arrays, g, 2);
    else
        grad_windows(arrays, g, 3);
}

static int fits(const Py_buffer *views, int first, int last, Geometry *g) {
    const Py_ssize_t *x = views[IMAGE].shape, *y = views[POOLED].shape;
    Py_ssize_t k = g->kernel, s = g->stride;
    for (int i = first; i <= last; i++)
        if (views[i].ndim != 4 || !holds_float32(&views[i]))
            return 0;
    for (int i = 0; i < 4 && first == GRAD; i++)
        if (views[GRAD].shape[i] != y[i] || views[OUT].shape[i] != x[i] || s < k)
            return 0;
    *g = (Geometry){y[0], y[1], y[2], y[3], x[2] * x[3], x[1] * x[2] * x[3], x[0], k, s};
    return (k == 2 || k == 3) && s >= 1 && x[0] >= k && x[2] >= k && x[1] == y[1] &&
           x[3] == y[3] && y[0] == (x[0] - k) / s + 1 && y[2] == (x[2] - k) / s + 1;
}

/* Run `all` on the stored images `first` to `last`, which is written; kernel and stride follow. */
static PyObject *call(void (*all)(float *const *, Geometry), PyObject *const *args,
                      Py_ssize_t count, int first, int last) {
    Py_buffer views[4];
    float *arrays[4];
    Geometry g = {0};
    int images = last - first + 1;
    if (count != images + 2) {
        PyErr_SetString(PyExc_TypeError, "expected the images, kernel and stride");
        return NULL;
    }
    g.kernel = PyLong_AsSsize_t(args[count - 2]);
    g.stride = PyLong_AsSsize_t(args[count - 1]);
    if (PyErr_Occurred() ||
        !take_buffers(args, views + first, images, 1 << (images - 1), PyBUF_C_CONTIGUOUS))
        return NULL;
    for (int i = first; i <= last; i++)
        arrays[i] = views[i].buf;
    if (fits(views, first, last, &g))
        all(arrays, g);
    else
        PyErr_SetString(PyExc_ValueError, "expected stored float32 images that fit the window");
    release_buffers(views + first, images);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

#ifdef HAS_MAXIMUM
/* max_pool(image, out, kernel, stride) */
static PyObject *max_pool(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    return call(max_all, args, count, IMAGE, POOLED);
}
#endif

/* max_pool_grad(grad, image, y, out, kernel, stride), for windows that do not overlap */
static PyObject *max_pool_grad(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    return call(grad_all, args, count, GRAD, OUT);
}

static PyMethodDef methods[] = {
#ifdef HAS_MAXIMUM
    {"max_pool", (PyCFunction)(void (*)(void))max_pool, METH_FASTCALL, NULL},
#endif
    {"max_pool_grad", (PyCFunction)(void (*)(void))max_pool_grad, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_pooling", "Compiled twin of policysearch.ops.pool.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__pooling(void) { return PyModule_Create(&module); }
