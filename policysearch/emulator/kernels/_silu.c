/* Compiled twin of silu and its gradient in ops/gates.py, but for tanh, which is numpy's: the passes
 * before and after it.
 *
 * Every float operation is rounded on its own: compile with -ffp-contract=off and without
 * -ffast-math.
 */
#include "../../rounding/_compiled.h"

/* Each pass takes its arrays, of `count` floats, in the order of its method below. */
typedef void Pass(float *const *arrays, Py_ssize_t count);

VECTORISED static void inner_all(float *const *arrays, Py_ssize_t count) {
    const float *x = arrays[0];
    float *t = arrays[1];
    INDEPENDENT
    for (Py_ssize_t i = 0; i < count; i++)
        t[i] = x[i] * 0.5f;
}

VECTORISED static void outer_all(float *const *arrays, Py_ssize_t count) {
    const float *x = arrays[0];
    float *t = arrays[1];
    INDEPENDENT
    for (Py_ssize_t i = 0; i < count; i++)
        t[i] = (t[i] * 0.5f + 0.5f) * x[i];
}

VECTORISED static void outer_grad_all(float *const *arrays, Py_ssize_t count) {
    const float *grad = arrays[0], *x = arrays[1], *t = arrays[2];
    float *out = arrays[3];
    INDEPENDENT
    for (Py_ssize_t i = 0; i < count; i++) {
        float logistic = t[i] * 0.5f + 0.5f;
        out[i] = grad[i] * (logistic * ((1.0f - logistic) * x[i] + 1.0f));
    }
}

/* Run a pass on `arrays` arrays of one size, the last of them written to. */
static PyObject *call(Pass *pass, int arrays, PyObject *const *args, Py_ssize_t count) {
    Py_buffer views[4];
    float *data[4];
    if (count != arrays) {
        PyErr_Format(PyExc_TypeError, "expected %d arguments", arrays);
        return NULL;
    }
    if (!take_vectors(args, views, arrays, 1 << (arrays - 1)))
        return NULL;
    for (int i = 0; i < arrays; i++)
        data[i] = views[i].buf;
    Py_BEGIN_ALLOW_THREADS
    pass(data, views[0].len / 4);
    Py_END_ALLOW_THREADS
    release_buffers(views, arrays);
    Py_RETURN_NONE;
}

#define METHOD(name, arrays)                                                                       \
    static PyObject *name(PyObject *self, PyObject *const *args, Py_ssize_t count) {               \
        (void)self;                                                                                \
        return call(name##_all, arrays, args, count);                                              \
    }
METHOD(inner, 2)      /* x, t */
METHOD(outer, 2)      /* x, t */
METHOD(outer_grad, 4) /* grad, x, t, out, which may be grad */

#define FAST(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}
static PyMethodDef methods[] = {
    FAST(inner),
    FAST(outer),
    FAST(outer_grad),
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_silu", "Compiled twin of silu in policysearch.ops.gates.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__silu(void) { return PyModule_Create(&module); }
