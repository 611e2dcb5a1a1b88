/* Compiled twin of ops/gelu.py, but for tanh, which is numpy's: of that form each pass does what lies
 * before or after it. The constants come from there.
 *
 * Every float operation is rounded on its own: compile with -ffp-contract=off and without
 * -ffast-math.
 */
#include "../../rounding/_compiled.h"

/* The coefficients of the ratios, above and below. */
#define NORMAL_ABOVE 6
#define NORMAL_BELOW 6
#define SLOPE_ABOVE 8
#define SLOPE_BELOW 6

/* CONSTANTS of kernels/gelu.py, field by field. */
typedef struct {
    float cubic, scale, slope_cubic, slope_scale;
    float normal_farthest, normal_above[NORMAL_ABOVE], normal_below[NORMAL_BELOW];
    float slope_farthest, slope_above[SLOPE_ABOVE], slope_below[SLOPE_BELOW];
} Constants;

/* Each pass takes its arrays, of `count` floats, in the order of its method below. */
typedef void Pass(float *const *arrays, Py_ssize_t count, const Constants *given);

VECTORISED static void inner_tanh_all(float *const *arrays, Py_ssize_t count,
                                      const Constants *given) {
    const float *x = arrays[0];
    float *t = arrays[1];
    const Constants c = *given;
    INDEPENDENT
    for (Py_ssize_t i = 0; i < count; i++)
        t[i] = (x[i] * x[i] * c.cubic + 1.0f) * x[i] * c.scale;
}

INLINE float polynomial(const float *coefficients, int count, float x) {
    float sum = coefficients[count - 1];
    for (int i = count - 1; i-- > 0;)
        sum = sum * x + coefficients[i];
    return sum;
}

/* `OddRatio` at x; a NaN stays. */
INLINE float ratio(float x, float farthest, const float *above, int above_count, const float *below,
                   int below_count) {
    x = x > farthest ? farthest : x;
    x = x < -farthest ? -farthest : x;
    float square = x * x;
    return polynomial(above, above_count, square) * x / polynomial(below, below_count, square);
}

VECTORISED static void gelu_erf_all(float *const *arrays, Py_ssize_t count,
                                    const Constants *given) {
    const float *x = arrays[0];
    float *out = arrays[1];
    const Constants c = *given;
    INDEPENDENT
    for (Py_ssize_t i = 0; i < count; i++)
        out[i] = (ratio(x[i], c.normal_farthest, c.normal_above, NORMAL_ABOVE, c.normal_below,
                        NORMAL_BELOW) +
                  0.5f) *
                 x[i];
}

VECTORISED static void gelu_erf_grad_all(float *const *arrays, Py_ssize_t count,
                                         const Constants *given) {
    const float *grad = arrays[0], *x = arrays[1];
    float *out = arrays[2];
    const Constants c = *given;
    INDEPENDENT
    for (Py_ssize_t i = 0; i < count; i++)
        out[i] = grad[i] * (ratio(x[i], c.slope_farthest, c.slope_above, SLOPE_ABOVE, c.slope_below,
                                  SLOPE_BELOW) +
                            0.5f);
}

VECTORISED static void outer_tanh_all(float *const *arrays, Py_ssize_t count, const Constants *given) {
    const float *x = arrays[0];
    float *t = arrays[1];
    (void)given;
    INDEPENDENT
    for (Py_ssize_t i = 0; i < count; i++)
        t[i] = (t[i] + 1.0f) * x[i] * 0.5f;
}

VECTORISED static void outer_tanh_grad_all(float *const *arrays, Py_ssize_t count,
                                           const Constants *given) {
    const float *grad = arrays[0], *x = arrays[1];
    float *t = arrays[2];
    const Constants c = *given;
    INDEPENDENT
    for (Py_ssize_t i = 0; i < count; i++) {
        float u = (x[i] * x[i] * c.slope_cubic + 1.0f) * x[i] * c.slope_scale;
        u = u - u * t[i] * t[i];
        t[i] = grad[i] * ((t[i] + 1.0f) * 0.5f + u);
    }
}

/* Run a pass on `arrays` arrays of one size, those in `out` written to, and packed constants. */
static PyObject *call(Pass *pass, int arrays, int out, PyObject *const *args, Py_ssize_t count) {
    Py_buffer views[3];
    float *data[3];
    Constants constants;
    if (count != arrays + 1) {
        PyErr_Format(PyExc_TypeError, "expected %d arguments", arrays + 1);
        return NULL;
    }
    if (!PyBytes_Check(args[arrays]) || PyBytes_GET_SIZE(args[arrays]) != sizeof constants) {
        PyErr_SetString(PyExc_ValueError, "expected packed constants");
        return NULL;
    }
    memcpy(&constants, PyBytes_AS_STRING(args[arrays]), sizeof constants);
    if (!take_vectors(args, views, arrays, out))
        return NULL;
    for (int i = 0; i < arrays; i++)
        data[i] = views[i].buf;
    Py_BEGIN_ALLOW_THREADS
    pass(data, views[0].len / 4, &constants);
    Py_END_ALLOW_THREADS
    release_buffers(views, arrays);
    Py_RETURN_NONE;
}

#define METHOD(name, arrays, out)                                                                  \
    static PyObject *name(PyObject *self, PyObject *const *args, Py_ssize_t count) {               \
        (void)self;                                                                                \
        return call(name##_all, arrays, out, args, count);                                         \
    }
METHOD(inner_tanh, 2, 1 << 1)      /* x, t, constants */
METHOD(outer_tanh, 2, 1 << 1)      /* x, t, constants */
METHOD(outer_tanh_grad, 3, 1 << 2) /* grad, x, t, constants */
METHOD(gelu_erf, 2, 1 << 1)        /* x, out, constants */
METHOD(gelu_erf_grad, 3, 1 << 2)   /* grad, x, out, constants */

#define FAST(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}
static PyMethodDef methods[] = {
    FAST(inner_tanh),
    FAST(outer_tanh),
    FAST(outer_tanh_grad),
    FAST(gelu_erf),
    FAST(gelu_erf_grad),
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_gelu", "Compiled twin of policysearch.ops.gelu.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__gelu(void) { return PyModule_Create(&module); }
