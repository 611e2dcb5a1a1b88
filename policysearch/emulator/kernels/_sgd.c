/* The momentum update in one pass, with the rounding of its gradient: the bits of the ops.
 *
 * Every float operation is rounded on its own: compile with -ffp-contract=off and without
 * -ffast-math.
 */
#include "../../rounding/_rounding.h"

/* The gradient, put on `given` to nearest even (NONE: left as it is), moves velocity and param. */
INLINE void sgd_loop(float *restrict param, float *restrict velocity, const float *restrict grad,
                     Py_ssize_t n, float lr, float momentum, int kind, const Grid *given) {
    Grid grid = *given;
    for (Py_ssize_t i = 0; i < n; i++) {
        float rounded = grad[i];
        if (kind != NONE)
            rounded = as_float(round_one(as_bits(rounded), NEAREST_EVEN, kind, &grid, 0));
        float kept = momentum * velocity[i];
        float moved = kept + rounded;
        float step = lr * moved;
        velocity[i] = moved;
        param[i] = param[i] - step;
    }
}

VECTORISED static void sgd_all(float *param, float *velocity, const float *grad, Py_ssize_t n,
                               float lr, float momentum, int kind, const Grid *grid) {
    switch (kind) {
    case NARROW: sgd_loop(param, velocity, grad, n, lr, momentum, NARROW, grid); break;
    case WIDE: sgd_loop(param, velocity, grad, n, lr, momentum, WIDE, grid); break;
    default: sgd_loop(param, velocity, grad, n, lr, momentum, NONE, grid); break;
    }
}

/* sgd(param, velocity, grad, lr, momentum, grid of the gradient or None) */
static PyObject *sgd(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Grid grid = {0};
    Py_buffer views[3];
    if (count != 6) {
        PyErr_SetString(PyExc_TypeError, "expected 6 arguments");
        return NULL;
    }
    float lr = (float)PyFloat_AsDouble(args[3]), momentum = (float)PyFloat_AsDouble(args[4]);
    int rounds = args[5] != Py_None;
    if (PyErr_Occurred() || (rounds && !take_grid(args[5], &grid)))
        return NULL;
    if (grid.mode != NEAREST_EVEN) {
        PyErr_SetString(PyExc_ValueError, "expected a grid that is rounded to nearest even");
        return NULL;
    }
    if (!take_vectors(args, views, 3, 3))
        return NULL;
    sgd_all(views[0].buf, views[1].buf, views[2].buf, views[0].len / 4, lr, momentum,
            rounds ? (int)grid.wide : NONE, &grid);
    release_buffers(views, 3);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"sgd", (PyCFunction)(void (*)(void))sgd, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_sgd", "The momentum update in one pass.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__sgd(void) { return PyModule_Create(&module); }
