/* Radix sort from the lowest digit, three digits of 11 bits over the bits of F32. It orders values that are
 * not negative, as their bits order like integers; others must go through the sort of doubles. After an odd
 * number of rounds the sorted values are in the scratch array and are copied back. */
#include "profiler/common/quantiles.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Digits of a sort by digits: bits of floats that are not negative order as integers do. */
#define DIGIT_BITS 11
#define N_DIGIT    ((size_t)1 << DIGIT_BITS)
#define N_ROUND    3

static uint32_t digit_of(float value, uint32_t round)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits >> (round * DIGIT_BITS) & (uint32_t)(N_DIGIT - 1);
}

static void sort_round(const float *from, size_t n, uint32_t round, float *to)
{
    size_t start[N_DIGIT] = {0};
    for (size_t i = 0; i < n; i++)
        start[digit_of(from[i], round)]++;
    size_t sum = 0;
    for (size_t digit = 0; digit < N_DIGIT; digit++) {
        const size_t count = start[digit];
        start[digit] = sum;
        sum += count;
    }
    for (size_t i = 0; i < n; i++)
        to[start[digit_of(from[i], round)]++] = from[i];
}

void moec_quantiles(float *values, float *scratch, size_t n, const double *at, size_t n_at, double *out)
{
    float *from = values, *to = scratch;
    for (uint32_t round = 0; round < N_ROUND; round++) {
        sort_round(from, n, round, to);
        float *other = from;
        from = to;
        to = other;
    }
    if (from != values)
        memcpy(values, from, n * sizeof *values);
    for (size_t i = 0; i < n_at; i++) {
        const double place = ceil(at[i] * (double)n);
        out[i] = n == 0 ? (double)NAN
                        : values[place < 1            ? 0
                                 : place >= (double)n ? n - 1
                                                      : (size_t)place - 1];
    }
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void moec_sort_doubles(double *values, size_t n)
{
    qsort(values, n, sizeof *values, compare_doubles);
}

double moec_median(double *values, size_t n)
{
    moec_sort_doubles(values, n);
    return values[n / 2];
}

double moec_quantile_of_sorted(const double *sorted, size_t n, double p)
{
    const double rank = ceil(p * (double)n);
    const size_t at = rank < 1 ? 0 : (size_t)rank - 1;
    return sorted[at < n ? at : n - 1];
}

double moec_quantile_of_finite(const double *values, size_t n, double p, double *scratch)
{
    size_t n_finite = 0;
    for (size_t i = 0; i < n; i++)
        if (isfinite(values[i]))
            scratch[n_finite++] = values[i];
    if (n_finite == 0)
        return (double)NAN;
    moec_sort_doubles(scratch, n_finite);
    return scratch[(size_t)((double)(n_finite - 1) * p + 0.5)];
}
