/* Matrices transposed in memory, four by four where there are vectors of four. */
#ifndef POLICYSEARCH_TURN_H
#define POLICYSEARCH_TURN_H

#include "../../rounding/_compiled.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

typedef Py_ssize_t Size;

INLINE void turn_each(const float *from, Size from_step, Size rows, Size columns, float *to,
                      Size to_step) {
    for (Size i = 0; i < rows; i++)
        for (Size j = 0; j < columns; j++)
            to[j * to_step + i] = from[i * from_step + j];
}

INLINE void turn_four(const float *from, Size from_step, float *to, Size to_step) {
#if defined(__x86_64__) && defined(__GNUC__)
    __m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + from_step);
    __m128 c = _mm_loadu_ps(from + 2 * from_step), d = _mm_loadu_ps(from + 3 * from_step);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(to, a);
    _mm_storeu_ps(to + to_step, b);
    _mm_storeu_ps(to + 2 * to_step, c);
    _mm_storeu_ps(to + 3 * to_step, d);
#else
    turn_each(from, from_step, 4, 4, to, to_step);
#endif
}

/* to[j * to_step + i] = from[i * from_step + j] for i < rows, j < columns. The side whose rows are
 * further apart is gone through row by row, as those may share few places in the cache. */
static inline void turn(const float *from, Size from_step, Size rows, Size columns, float *to,
                        Size to_step) {
    Size high = rows / 4 * 4, wide = columns / 4 * 4;
    if (from_step > to_step) {
        for (Size i = 0; i < high; i += 4)
            for (Size j = 0; j < wide; j += 4)
                turn_four(from + i * from_step + j, from_step, to + j * to_step + i, to_step);
    } else {
        for (Size j = 0; j < wide; j += 4)
            for (Size i = 0; i < high; i += 4)
                turn_four(from + i * from_step + j, from_step, to + j * to_step + i, to_step);
    }
    turn_each(from + wide, from_step, high, columns - wide, to + wide * to_step, to_step);
    turn_each(from + high * from_step, from_step, rows - high, columns, to + high, to_step);
}

#endif
