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

/* Round n elements whose first is number `start` of the call; all lie in one key span. */
static void round_piece(const float *x, float *out, Py_ssize_t start, Py_ssize_t n,
                        const Grid *grid, uint64_t seed, uint64_t counter) {
    Draws draws = {NULL, 0};
    if (grid->mode == NEAREST_EVEN) {
        const Addend nothing = {NOTHING, 0, NULL};
        round_nearest(x, nothing, out, n, grid);
        return;
    }
    if (grid->mode == STOCHASTIC) {
        uint64_t key = mix64(mix64(mix64(seed) ^ counter) ^ (uint64_t)(start / KEY_SPAN));
        draws.multiplier = (uint32_t)key | 1;
        draws.table = grid->table + ((key >> 32) % FIRSTS & ~(uint64_t)15) + start % KEY_SPAN;
    }
    round_run(x, out, n, grid, draws);
}

static void round_all(const float *x, float *out, Py_ssize_t size, const Grid *grid,
                      uint64_t seed, uint64_t counter) {
    for (Py_ssize_t start = 0; start < size; start += KEY_SPAN) {
        Py_ssize_t n = size - start < KEY_SPAN ? size - start : KEY_SPAN;
        round_piece(x + start, out + start, start, n, grid, seed, counter);
    }
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

static PyMethodDef methods[] = {
    {"round_into", (PyCFunction)(void (*)(void))round_into, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_rounding", "Compiled twin of policysearch.rounding.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__rounding(void) { return PyModule_Create(&module); }
