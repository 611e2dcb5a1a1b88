/* Compiled twin of add, relu and its gradient in ops/elementwise.py and of bias in ops/dense.py:
 * the same bits, in one pass over memory.
 *
 * Arrays come in storage order: images as (height, channels, width, batch), matrices as
 * (features, batch). The output may be any input that is as large. Only the CPython C-API and the
 * buffer protocol are used. Compile as _rounding.h says.
 */
#include "../../rounding/_rounding.h"

/* Each pass takes the arrays of a call, the last of which is the output, and, where it rounds that
 * to nearest even while it is in the cache, a grid or NULL. */
typedef void Pass(const Py_buffer *arrays, const Grid *grid);

#if defined(__x86_64__) || defined(_M_X64) || defined(__aarch64__) || defined(_M_ARM64)
/* np.maximum(x, +0): NaN as it is, and +0 for -0, since of zeros of both signs numpy gives the
 * second on x86-64 and the positive one on ARM. Elsewhere that depends on numpy's loop, so relu is
 * left to numpy there. */
#define HAS_RELU
VECTORISED static void relu_all(const Py_buffer *arrays, const Grid *grid) {
    (void)grid;
    const float *x = arrays[0].buf;
    float *out = arrays[1].buf;
    Py_ssize_t count = arrays[1].len / 4;
    INDEPENDENT
    for (Py_ssize_t i = 0; i < count; i++)
        out[i] = x[i] <= 0.0f ? 0.0f : x[i];
}
#endif

/* On the bits, as numpy does it: the sign of -y tells whether the gradient passes, NaN or not. */
VECTORISED static void relu_grad_all(const Py_buffer *arrays, const Grid *grid) {
    (void)grid;
    const uint32_t *grad = arrays[0].buf, *y = arrays[1].buf;
    uint32_t *out = arrays[2].buf;
    Py_ssize_t count = arrays[2].len / 4;
    INDEPENDENT
    for (Py_ssize_t i = 0; i < count; i++)
        out[i] = grad[i] & (0u - ((0u - y[i]) >> 31));
}

static void add_rounded(const float *x, Addend add, float *out, Py_ssize_t n, const Grid *grid) {
    if (grid == NULL)
        add_up(x, add, out, n);
    else
        round_nearest(x, add, out, n, grid);
}

static void add_all(const Py_buffer *arrays, const Grid *grid) {
    const Addend y = {EACH, 0, arrays[1].buf};
    add_rounded(arrays[0].buf, y, arrays[2].buf, arrays[2].len / 4, grid);
}

/* A value per channel, the second axis of images, or per feature, the first axis of matrices. */
static void bias_all(const Py_buffer *arrays, const Grid *grid) {
    const float *x = arrays[0].buf, *bias = arrays[1].buf;
    float *out = arrays[2].buf;
    Py_ssize_t channels = arrays[1].shape[0], count = arrays[2].len / 4;
    const Py_ssize_t *last = arrays[2].shape + arrays[2].ndim - 1;
    Py_ssize_t run = arrays[2].ndim == 4 ? last[-1] * last[0] : last[0];
    for (Py_ssize_t done = 0, c = 0; done < count; done += run, c = c + 1 < channels ? c + 1 : 0) {
        const Addend shift = {ONE_VALUE, bias[c], NULL};
        add_rounded(x + done, shift, out + done, run, grid);
    }
}

static int alike(const Py_buffer *a, const Py_buffer *b) {
    int same = a->ndim == b->ndim;
    for (int i = 0; same && i < a->ndim; i++)
        same = a->shape[i] == b->shape[i];
    return same;
}

/* Of two inputs the second is as large as the first, or holds a value for each of its channels. */
static int fits(const Py_buffer *views, int count, int channels) {
    const Py_buffer *out = &views[count - 1];
    for (int i = 0; i < count; i++)
        if (!holds_float32(&views[i]))
            return 0;
    if (!alike(&views[0], out) || (out->ndim != 2 && out->ndim != 4))
        return 0;
    if (channels)
        return views[1].ndim == 1 && views[1].shape[0] == out->shape[out->ndim == 4];
    return alike(&views[1], out);
}

/* Run `pass` on the contiguous arrays in `args`, of which there must be `expected`; what adds may
 * be given a packed grid after them. */
static PyObject *call(Pass *pass, int channels, int expected, PyObject *const *args,
                      Py_ssize_t count) {
    Grid grid;
    Py_buffer views[3];
    int rounds = count == expected + 1 && (pass == add_all || pass == bias_all);
    if (count != expected && !rounds) {
        PyErr_Format(PyExc_TypeError, "expected %d arrays", expected);
        return NULL;
    }
    if (rounds && !take_grid(args[expected], &grid))
        return NULL;
    if (!take_buffers(args, views, expected, 1 << (expected - 1), PyBUF_C_CONTIGUOUS))
        return NULL;
    if (fits(views, expected, channels))
        pass(views, rounds ? &grid : NULL);
    else
        PyErr_SetString(PyExc_ValueError, "expected stored float32 arrays that fit each other");
    release_buffers(views, expected);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

#ifdef HAS_RELU
/* relu(x, out) */
static PyObject *relu(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    return call(relu_all, 0, 2, args, count);
}
#endif

/* relu_grad(grad, y, out) */
static PyObject *relu_grad(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    return call(relu_grad_all, 0, 3, args, count);
}

/* add(x, y, out[, grid]) */
static PyObject *add(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    return call(add_all, 0, 3, args, count);
}

/* bias(x, bias, out[, grid]), of images or matrices */
static PyObject *bias(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    return call(bias_all, 1, 3, args, count);
}

static PyMethodDef methods[] = {
#ifdef HAS_RELU
    {"relu", (PyCFunction)(void (*)(void))relu, METH_FASTCALL, NULL},
#endif
    {"relu_grad", (PyCFunction)(void (*)(void))relu_grad, METH_FASTCALL, NULL},
    {"add", (PyCFunction)(void (*)(void))add, METH_FASTCALL, NULL},
    {"bias", (PyCFunction)(void (*)(void))bias, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_elementwise", "Compiled twin of elementwise ops.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__elementwise(void) { return PyModule_Create(&module); }
