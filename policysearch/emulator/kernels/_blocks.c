/* Compiled twin of the passes over blocks of ops/amax.py, block_scale.py and hadamard.py.
 *
 * An array is [outer, length, inner]; a block is `block` numbers along `length`, the last one maybe
 * shorter, and [outer, blocks, inner] has a number for each. Every float operation is rounded on its
 * own: compile with -ffp-contract=off and without -ffast-math.
 */
#include "../../rounding/_compiled.h"

typedef struct {
    Py_ssize_t outer, length, inner, block;
} Cut;

typedef void Pass(const float *x, const float *scales, float *out, Cut cut);

/* Sizes as integers: they order as the numbers do, and every NaN is above infinity. */
INLINE uint32_t size_of(float x) { return as_bits(x) & ~SIGN; }

/* The largest of each block to `out` [outer, blocks, inner]. */
VECTORISED static void largest_all(const float *x, const float *unused, float *out, Cut cut) {
    (void)unused;
    for (Py_ssize_t o = 0; o < cut.outer; o++)
        for (Py_ssize_t first = 0; first < cut.length; first += cut.block) {
            Py_ssize_t left = cut.length - first, count = left < cut.block ? left : cut.block;
            if (cut.inner == 1) {
                uint32_t most = 0;
                for (Py_ssize_t l = 0; l < count; l++)
                    most = size_of(x[l]) > most ? size_of(x[l]) : most;
                *out = as_float(most);
            } else {
                memset(out, 0, (size_t)cut.inner * sizeof *out);
                for (Py_ssize_t l = 0; l < count; l++) {
                    INDEPENDENT
                    for (Py_ssize_t i = 0; i < cut.inner; i++) {
                        uint32_t own = size_of(x[l * cut.inner + i]), most = as_bits(out[i]);
                        out[i] = as_float(own > most ? own : most);
                    }
                }
            }
            x += count * cut.inner;
            out += cut.inner;
        }
}

/* Every number times that of its block. */
VECTORISED static void scaled_all(const float *x, const float *scales, float *out, Cut cut) {
    for (Py_ssize_t o = 0; o < cut.outer; o++)
        for (Py_ssize_t first = 0; first < cut.length; first += cut.block) {
            Py_ssize_t left = cut.length - first, count = left < cut.block ? left : cut.block;
            if (cut.inner == 1) {
                float scale = *scales;
                INDEPENDENT
                for (Py_ssize_t l = 0; l < count; l++)
                    out[l] = x[l] * scale;
            } else
                for (Py_ssize_t l = 0; l < count; l++) {
                    INDEPENDENT
                    for (Py_ssize_t i = 0; i < cut.inner; i++)
                        out[l * cut.inner + i] = x[l * cut.inner + i] * scales[i];
                }
            x += count * cut.inner;
            out += count * cut.inner;
            scales += cut.inner;
        }
}

/* Numbers apart by `step`: 16 of them times signs and Sylvester's matrix / 4, by a butterfly. */
static const float factors[16] = {.25f,  .25f,  .25f,  -.25f, .25f,  -.25f, -.25f, -.25f,
                                  -.25f, -.25f, -.25f, .25f,  -.25f, .25f,  -.25f, -.25f};

INLINE void turn(const float *x, float *out, Py_ssize_t step) {
    float v[16];
    for (int i = 0; i < 16; i++)
        v[i] = x[i * step] * factors[i];
    for (int apart = 1; apart < 16; apart *= 2)
        for (int i = 0; i < 16; i++)
            if (!(i & apart)) {
                float low = v[i], high = v[i + apart];
                v[i] = low + high;
                v[i + apart] = low - high;
            }
    for (int i = 0; i < 16; i++)
        out[i * step] = v[i];
}

/* Every whole run of 16; a block is one. What is left at the end stays. */
VECTORISED static void turned_all(const float *x, const float *unused, float *out, Cut cut) {
    (void)unused;
    for (Py_ssize_t o = 0; o < cut.outer; o++)
        for (Py_ssize_t first = 0; first < cut.length; first += 16) {
            Py_ssize_t left = cut.length - first, count = left < 16 ? left : 16;
            if (count < 16)
                memcpy(out, x, (size_t)(count * cut.inner) * sizeof *out);
            else if (cut.inner == 1)
                turn(x, out, 1);
            else {
                INDEPENDENT
                for (Py_ssize_t i = 0; i < cut.inner; i++)
                    turn(x + i, out + i, cut.inner);
            }
            x += count * cut.inner;
            out += count * cut.inner;
        }
}

/* Run a pass on arrays, the last of them written to, and the four numbers of a cut.
 *
 * Bit i of `wholes` says whether array i has a number for each of x, in place of one a block.
 */
static PyObject *call(Pass *pass, int arrays, int wholes, PyObject *const *args,
                      Py_ssize_t given) {
    Py_buffer views[3];
    Py_ssize_t n[4], blocks, of_blocks;
    if (given != arrays + 4) {
        PyErr_Format(PyExc_TypeError, "expected %d arguments", arrays + 4);
        return NULL;
    }
    for (int i = 0; i < 4; i++)
        n[i] = PyLong_AsSsize_t(args[arrays + i]);
    if (PyErr_Occurred() || !take_buffers(args, views, arrays, 1 << (arrays - 1),
                                          PyBUF_C_CONTIGUOUS))
        return NULL;
    Cut cut = {n[0], n[1], n[2], n[3]};
    int fit = cut.outer >= 0 && cut.length >= 0 && cut.inner >= 1 && cut.block >= 1;
    blocks = fit ? (cut.length + cut.block - 1) / cut.block : 0;
    of_blocks = cut.outer * blocks * cut.inner * 4;
    for (int i = 0; i < arrays; i++) {
        Py_ssize_t wanted = wholes >> i & 1 ? cut.outer * cut.length * cut.inner * 4 : of_blocks;
        fit &= holds_float32(&views[i]) && views[i].len == wanted;
    }
    if (fit) {
        Py_BEGIN_ALLOW_THREADS
        pass(views[0].buf, views[arrays - 2].buf, views[arrays - 1].buf, cut);
        Py_END_ALLOW_THREADS
    } else
        PyErr_SetString(PyExc_ValueError, "expected float32 arrays of the sizes of the cut");
    release_buffers(views, arrays);
    if (!fit)
        return NULL;
    Py_RETURN_NONE;
}

#define METHOD(name, arrays, wholes)                                                               \
    static PyObject *name(PyObject *self, PyObject *const *args, Py_ssize_t count) {               \
        (void)self;                                                                                \
        return call(name##_all, arrays, wholes, args, count);                                      \
    }
METHOD(largest, 2, 1) /* x, out */
METHOD(scaled, 3, 5)  /* x, scales, out */
METHOD(turned, 2, 3)  /* x, out */

#define FAST(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}
static PyMethodDef methods[] = {
    FAST(largest),
    FAST(scaled),
    FAST(turned),
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_blocks", "Compiled twin of passes over blocks.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__blocks(void) { return PyModule_Create(&module); }
