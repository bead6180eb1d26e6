/* Points stay in the order of measuring, and an equal point is not added twice. Dense codecs are compared by
 * bits and CRC, so points of other dense weights are never mixed. The gain of mixing compares the smallest
 * plan of unlike experts with the smallest of alike ones. Both have at most about the limit's KL, or its loss
 * where that KL is 0. */
#include "compiler/compile/search_trace.h"
#include "formats/base/memory.h"

#include <string.h>

static bool has_same_dense(const struct moec_trace_point *a, const struct moec_trace_point *b)
{
    return a->dense_bits == b->dense_bits && a->dense_digest == b->dense_digest;
}

static bool is_same(const struct moec_trace_point *a, const struct moec_trace_point *b)
{
    return a->part == b->part && a->uniform_bits == b->uniform_bits && has_same_dense(a, b) &&
           a->n_bytes == b->n_bytes && a->loss == b->loss && a->high == b->high && a->kl == b->kl;
}

enum moec_status moec_search_trace_add(struct moec_search_trace *trace, const struct moec_trace_point *point,
                                       struct moec_error *err)
{
    void *points = trace->points;
    for (size_t i = 0; i < trace->n; i++)
        if (is_same(&trace->points[i], point))
            return MOEC_OK;
    MOEC_TRY(moec_grow(&points, &trace->capacity, trace->n + 1, sizeof *trace->points,
                       "what the search measured", err));
    trace->points = points;
    trace->points[trace->n++] = *point;
    return MOEC_OK;
}

void moec_search_trace_release(struct moec_search_trace *trace)
{
    free(trace->points);
    memset(trace, 0, sizeof *trace);
}

const struct moec_trace_point *moec_search_trace_uniform(const struct moec_search_trace *trace, uint32_t bits,
                                                         const struct moec_trace_point *dense)
{
    for (size_t i = 0; i < trace->n; i++)
        if (trace->points[i].part == MOEC_TRACE_SEARCH && trace->points[i].uniform_bits == bits &&
            has_same_dense(&trace->points[i], dense))
            return &trace->points[i];
    return NULL;
}

const struct moec_trace_point *moec_search_trace_smallest(const struct moec_search_trace *trace, double loss)
{
    const struct moec_trace_point *best = NULL;
    for (size_t i = 0; i < trace->n; i++) {
        const struct moec_trace_point *point = &trace->points[i];
        if (point->part == MOEC_TRACE_SEARCH && point->high <= loss &&
            (best == NULL || point->n_bytes < best->n_bytes))
            best = point;
    }
    return best;
}

static bool loses_no_more(const struct moec_trace_point *point, const struct moec_trace_point *limit)
{
    if (limit->kl > 0)
        return point->kl <= limit->kl * (1 + MOEC_MIXING_CLOSE);
    return point->loss <= limit->loss;
}

struct moec_mixing_gain moec_search_trace_mixing(const struct moec_search_trace *trace,
                                                 const struct moec_trace_point *limit)
{
    const struct moec_trace_point *best[2] = {NULL, NULL};
    struct moec_mixing_gain gain = {.saving = 0};
    for (size_t i = 0; i < trace->n; i++) {
        const struct moec_trace_point *point = &trace->points[i], **own = &best[point->is_alike];
        if (point->part == MOEC_TRACE_SEARCH && loses_no_more(point, limit) &&
            (*own == NULL || point->n_bytes < (*own)->n_bytes))
            *own = point;
    }
    if (best[0] == NULL || best[1] == NULL)
        return gain;
    gain = (struct moec_mixing_gain){.is_known = true, .single = *best[1], .mixed = *best[0]};
    gain.saving = 1 - (double)gain.mixed.n_bytes / (double)gain.single.n_bytes;
    return gain;
}
