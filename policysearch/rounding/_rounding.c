/* Compiled twin of reference.py: the same bits, one pass over memory.
 *
 * Only the CPython C-API and the buffer protocol are used. Every float operation is rounded on its
 * own: compile with -ffp-contract=off and without -ffast-math.
 */
#include "_rounding.h"

static uint64_t mix64(uint64_t value) {
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

/* Round n elements whose first is number `start` of the call; all lie in one key block. */
static void round_piece(const float *x, float *out, Py_ssize_t start, Py_ssize_t n,
                        const Grid *grid, uint64_t seed, uint64_t counter) {
    Draws draws = {NULL, 0};
    if (grid->mode == NEAREST_EVEN) {
        const Addend nothing = {NOTHING, 0, NULL};
        round_nearest(x, nothing, out, n, grid);
        return;
    }
    if (grid->mode == STOCHASTIC) {
        uint64_t key = mix64(mix64(mix64(seed) ^ counter) ^ (uint64_t)(start / KEY_BLOCK));
        draws.multiplier = (uint32_t)key | 1;
        draws.table = grid->table + ((key >> 32) % FIRSTS & ~(uint64_t)15) + start % KEY_BLOCK;
    }
    round_run(x, out, n, grid, draws);
}

static void round_all(const float *x, float *out, Py_ssize_t size, const Grid *grid,
                      uint64_t seed, uint64_t counter) {
    for (Py_ssize_t start = 0; start < size; start += KEY_BLOCK) {
        Py_ssize_t n = size - start < KEY_BLOCK ? size - start : KEY_BLOCK;
        round_piece(x + start, out + start, start, n, grid, seed, counter);
    }
}

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

/* Take `count` contiguous float buffers of one size; 0 and an exception if one does not fit. */
static int take_vectors(PyObject *const *objects, Py_buffer *views, int count, int writable) {
    int fit = 1;
    if (!take_buffers(objects, views, count, writable, PyBUF_C_CONTIGUOUS))
        return 0;
    for (int i = 0; i < count; i++)
        fit &= holds_float32(&views[i]) && views[i].ndim == 1 && views[i].len == views[0].len;
    if (fit)
        return 1;
    PyErr_SetString(PyExc_ValueError, "expected contiguous float32 buffers of one size");
    release_buffers(views, count);
    return 0;
}

static PyObject *round_into(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Grid grid;
    Py_buffer views[2];
    if (count != 5) {
        PyErr_SetString(PyExc_TypeError, "expected x, out, grid, seed, counter");
        return NULL;
    }
    uint64_t seed = PyLong_AsUnsignedLongLongMask(args[3]);
    uint64_t counter = PyLong_AsUnsignedLongLongMask(args[4]);
    if (PyErr_Occurred() || !take_grid(args[2], &grid) || !take_vectors(args, views, 2, 2))
        return NULL;
    round_all(views[0].buf, views[1].buf, views[0].len / 4, &grid, seed, counter);
    release_buffers(views, 2);
    Py_RETURN_NONE;
}

/* fused_sgd(param, velocity, grad, lr, momentum, grid of the gradient or None) */
static PyObject *fused_sgd(PyObject *self, PyObject *const *args, Py_ssize_t count) {
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
    {"round_into", (PyCFunction)(void (*)(void))round_into, METH_FASTCALL, NULL},
    {"fused_sgd", (PyCFunction)(void (*)(void))fused_sgd, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_rounding", "Compiled twin of policysearch.rounding.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__rounding(void) { return PyModule_Create(&module); }
