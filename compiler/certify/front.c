/* Pareto front of bytes and search loss, by comparing all pairs. Of equal points the first stays, so every
 * front has one answer. The front is thinned before it is spaced: noise alone decides between neighbours in
 * size. The two ends of what is left are always taken, whatever the spacing chooses. */
#include "compiler/certify/front.h"

#include <math.h>

_Static_assert(MOEC_SEQUENCE_MAX_BETWEEN + 2 <= MOEC_MAX_SEQUENCE, "a sequence holds all that is chosen");

/* A share of the bytes that is not worth a test of its own. */
#define NEAR 0.02

/* Whether `a` makes `b` pointless; of equals the first one stays. */
static bool is_better(const struct moec_front_point *a, const struct moec_front_point *b)
{
    const bool is_equal = a->n_bytes == b->n_bytes && a->loss->loss == b->loss->loss;
    return a->n_bytes <= b->n_bytes && a->loss->loss <= b->loss->loss && (!is_equal || a < b);
}

/* Places of the front's points, by falling bytes. Returns how many there are. */
static size_t list_front(const struct moec_front_request *request, bool *is_on_front, uint32_t *places)
{
    const struct moec_front_point *points = request->points;
    size_t n = 0;
    for (uint32_t i = 0; i < request->n_point; i++) {
        is_on_front[i] = points[i].loss->loss <= request->max_loss;
        for (size_t j = 0; j < request->n_point && is_on_front[i]; j++)
            is_on_front[i] = j == i || !is_better(&points[j], &points[i]);
        if (!is_on_front[i])
            continue;
        size_t at = n++;
        for (; at > 0 && points[places[at - 1]].n_bytes < points[i].n_bytes; at--)
            places[at] = places[at - 1];
        places[at] = i;
    }
    return n;
}

/* Of the front's n places by falling bytes those that are worth a test: what saves hardly more than a safer
 * one takes its place in vain, as noise decides which of both loses less. Returns how many there are. */
static size_t drop_near(const struct moec_front_point *points, size_t n, uint32_t *places)
{
    size_t n_kept = 1;
    for (size_t i = 1; i < n; i++) {
        const double before = (double)points[places[n_kept - 1]].n_bytes;
        if ((double)points[places[i]].n_bytes <= (1 - NEAR) * before)
            places[n_kept++] = places[i];
    }
    return n_kept;
}

uint32_t moec_front_choose(const struct moec_front_request *request, bool *is_on_front, uint32_t *sequence)
{
    const struct moec_front_point *points = request->points;
    uint32_t places[MOEC_FRONT_MAX], n_sequence = 0;
    struct moec_sequence_candidate front[MOEC_FRONT_MAX];
    bool taken[MOEC_FRONT_MAX];
    size_t n = list_front(request, is_on_front, places);
    if (n == 0)
        return 0;
    n = drop_near(points, n, places);
    for (size_t i = 0; i < n; i++)
        front[i] = (struct moec_sequence_candidate){.n_bytes = points[places[i]].n_bytes,
                                                    .difference = points[places[i]].loss->difference};
    const struct moec_sequence_spacing spacing =
        moec_sequence_spacing_of(log1p(request->max_loss), points[places[n - 1]].loss, request->n_search,
                                 request->n_certify, request->confidence);
    moec_sequence_choose(front, n, &spacing, front[n - 1].n_bytes, front[0].n_bytes, taken);
    for (size_t i = 0; i < n; i++)
        if (taken[i] || i == 0 || i + 1 == n)
            sequence[n_sequence++] = places[i];
    return n_sequence;
}
