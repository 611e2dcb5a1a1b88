/* Copies in another order of the axes, as ops/transpose.py and ops/shape.py make them. */
#include "_turn.h"

#define MOST_AXES 8

/* An axis of the copy: how many, and how far apart in the source and in the copy. */
typedef struct {
    int64_t extent, from_step, to_step;
} Axis;

/* The outer axes in turn, then rows (side by side in the copy) and columns (in the source); where
 * one axis is both, it is `columns`, and `rows` has the extent 1. */
static void permute_all(const float *from, float *to, const Axis *axes, int count) {
    if (count > 2) {
        for (int64_t i = 0; i < axes->extent; i++)
            permute_all(from + i * axes->from_step, to + i * axes->to_step, axes + 1, count - 1);
        return;
    }
    const Axis rows = axes[0], columns = axes[1];
    if (columns.to_step == 1)
        for (int64_t i = 0; i < rows.extent; i++)
            memcpy(to + i * rows.to_step, from + i * rows.from_step,
                   (size_t)columns.extent * sizeof *to);
    else
        turn(from, rows.from_step, rows.extent, columns.extent, to, columns.to_step);
}

/* Whether the axes go over `size` numbers on both sides, and the last two are as they must be. */
static int axes_fit(const Axis *axes, int count, Py_ssize_t size) {
    int64_t numbers = 1, from = 0, to = 0;
    for (int i = 0; i < count; i++) {
        if (axes[i].extent < 1 || axes[i].from_step < 0 || axes[i].to_step < 0 ||
            axes[i].extent > size || axes[i].from_step > size || axes[i].to_step > size)
            return 0;
        numbers *= axes[i].extent;
        from += (axes[i].extent - 1) * axes[i].from_step;
        to += (axes[i].extent - 1) * axes[i].to_step;
        if (numbers > size || from >= size || to >= size)
            return 0;
    }
    const Axis rows = axes[count - 2], columns = axes[count - 1];
    return columns.from_step == 1 && (columns.to_step == 1 || rows.to_step == 1);
}

/* permute(from, to, axes packed) of flat arrays */
static PyObject *permute(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Py_buffer views[2];
    Axis axes[MOST_AXES];
    (void)self;
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "expected 3 arguments");
        return NULL;
    }
    if (!take_vectors(args, views, 2, 1 << 1))
        return NULL;
    Py_ssize_t bytes = PyBytes_Check(args[2]) ? PyBytes_GET_SIZE(args[2]) : 0;
    int number = (int)(bytes / (Py_ssize_t)sizeof *axes), fit = number >= 2 && number <= MOST_AXES;
    if (fit)
        memcpy(axes, PyBytes_AS_STRING(args[2]), (size_t)number * sizeof *axes);
    if (fit && axes_fit(axes, number, views[0].len / 4))
        permute_all(views[0].buf, views[1].buf, axes, number);
    else
        PyErr_SetString(PyExc_ValueError, "expected axes of these arrays");
    release_buffers(views, 2);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef methods[] = {
    {"permute", (PyCFunction)(void (*)(void))permute, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_permute", "Copies in another order of the axes.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__permute(void) { return PyModule_Create(&module); }
