/* Two passes: means first, then sums around them, which large equal offsets do not spoil. Tied values share
 * the mean of their ranks, so Spearman's is Pearson's of ranks. Roots are multiplied, not the sums under
 * them, as that product may overflow. */
#include "profiler/common/correlation.h"

#include "formats/base/memory.h"

#include <math.h>

double moec_correlation_pearson(const double *a, const double *b, size_t n)
{
    double mean_a = 0, mean_b = 0, aa = 0, bb = 0, ab = 0;
    size_t n_pair = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i]))
            continue;
        mean_a += a[i];
        mean_b += b[i];
        n_pair++;
    }
    if (n_pair < 2)
        return NAN;
    mean_a /= (double)n_pair;
    mean_b /= (double)n_pair;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i]))
            continue;
        const double from_a = a[i] - mean_a, from_b = b[i] - mean_b;
        aa += from_a * from_a;
        bb += from_b * from_b;
        ab += from_a * from_b;
    }
    if (!(aa > 0) || !(bb > 0))
        return NAN;
    return fmax(-1, fmin(1, ab / (sqrt(aa) * sqrt(bb))));
}

struct placed {
    double value;
    size_t place;
};

static int compare_placed(const void *left, const void *right)
{
    const struct placed *a = left, *b = right;
    if (a->value != b->value)
        return a->value < b->value ? -1 : 1;
    return a->place < b->place ? -1 : a->place > b->place;
}

enum moec_status moec_correlation_ranks(const double *values, size_t n, double *ranks, struct moec_error *err)
{
    struct placed *sorted = NULL;
    MOEC_TRY(moec_alloc((void **)&sorted, n > 0 ? n : 1, sizeof *sorted, "values to be ranked", err));
    for (size_t i = 0; i < n; i++)
        sorted[i] = (struct placed){values[i], i};
    qsort(sorted, n, sizeof *sorted, compare_placed);
    for (size_t first = 0; first < n;) {
        size_t end = first + 1;
        while (end < n && sorted[end].value == sorted[first].value)
            end++;
        /* Places first + 1 .. end, counted from 1. */
        const double rank = ((double)first + 1 + (double)end) / 2;
        for (size_t i = first; i < end; i++)
            ranks[sorted[i].place] = rank;
        first = end;
    }
    free(sorted);
    return MOEC_OK;
}

enum moec_status moec_correlation_spearman(const double *a, const double *b, size_t n, double *out,
                                           struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    double *pairs = NULL; /* a, b, ranks of a, ranks of b: (n) each */
    size_t n_pair = 0;
    *out = NAN;
    MOEC_TRY(moec_alloc((void **)&pairs, 4 * (uint64_t)n + 1, sizeof *pairs, "values to be ranked", err));
    double *kept_a = pairs, *kept_b = pairs + n, *ranks_a = pairs + 2 * n, *ranks_b = pairs + 3 * n;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i]))
            continue;
        kept_a[n_pair] = a[i];
        kept_b[n_pair++] = b[i];
    }
    MOEC_TRY_OUT(moec_correlation_ranks(kept_a, n_pair, ranks_a, err));
    MOEC_TRY_OUT(moec_correlation_ranks(kept_b, n_pair, ranks_b, err));
    *out = moec_correlation_pearson(ranks_a, ranks_b, n_pair);
out:
    free(pairs);
    return status;
}
