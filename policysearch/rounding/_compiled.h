/* What the extensions share: function clones per instruction set, hints to the compiler, the bits
 * of a float, and how buffers are taken. */
#ifndef POLICYSEARCH_COMPILED_H
#define POLICYSEARCH_COMPILED_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define SIGN 0x80000000u
#define INFINITE 0x7f800000u

/* One clone per instruction set, chosen at load time; elsewhere the baseline is enough. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && __GNUC__ >= 12
#define CLONES
#define VECTORISED __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define VECTORISED
#endif
/* The iterations of the next loop touch no common memory. */
#if defined(__GNUC__) && !defined(__clang__)
#define INDEPENDENT _Pragma("GCC ivdep")
#else
#define INDEPENDENT
#endif
#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

INLINE float as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE uint32_t as_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

INLINE void release_buffers(Py_buffer *views, int count) {
    for (int i = 0; i < count; i++)
        PyBuffer_Release(&views[i]);
}

/* Take the buffers of `count` objects, of layout `flags`; bit i of `writable` asks to write to
 * number i. 0 and an exception, and none of them held, if one cannot be had. */
INLINE int take_buffers(PyObject *const *objects, Py_buffer *views, int count, int writable,
                        int flags) {
    for (int i = 0; i < count; i++) {
        int access = writable >> i & 1 ? PyBUF_WRITABLE : 0;
        if (PyObject_GetBuffer(objects[i], &views[i], flags | PyBUF_FORMAT | access) != 0) {
            release_buffers(views, i);
            return 0;
        }
    }
    return 1;
}

INLINE int holds_float32(const Py_buffer *view) {
    return view->itemsize == 4 && strcmp(view->format, "f") == 0;
}

/* Take `count` contiguous float buffers of one size; 0 and an exception if one does not fit. */
INLINE int take_vectors(PyObject *const *objects, Py_buffer *views, int count, int writable) {
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

#endif
