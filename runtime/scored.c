#include "runtime/scored.h"

#include <math.h>

/* Whether a stands behind b. */
static bool is_behind(struct moec_scored_expert a, struct moec_scored_expert b)
{
    if (a.score != b.score)
        return a.score < b.score;
    return a.expert > b.expert;
}

/* Restores the heap (the hindmost on top) of n below `at`. */
static void sink(struct moec_scored_expert *heap, uint32_t n, uint32_t at)
{
    const struct moec_scored_expert sunk = heap[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= n)
            break;
        if (child + 1 < n && is_behind(heap[child + 1], heap[child]))
            child++;
        if (!is_behind(heap[child], sunk))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = sunk;
}

static struct moec_scored_expert scored(const float *scores, uint32_t expert)
{
    return (struct moec_scored_expert){expert, isnan(scores[expert]) ? -INFINITY : scores[expert]};
}

void moec_scored_best(const float *scores, uint32_t n_expert, uint32_t n_best, struct moec_scored_expert *out)
{
    if (n_best == 0)
        return;
    for (uint32_t e = 0; e < n_best; e++)
        out[e] = scored(scores, e);
    for (uint32_t at = n_best / 2; at-- > 0;)
        sink(out, n_best, at);
    for (uint32_t e = n_best; e < n_expert; e++) {
        const struct moec_scored_expert next = scored(scores, e);
        if (is_behind(out[0], next)) {
            out[0] = next;
            sink(out, n_best, 0);
        }
    }
    for (uint32_t left = n_best; left > 1; left--) {
        const struct moec_scored_expert last = out[0];
        out[0] = out[left - 1];
        out[left - 1] = last;
        sink(out, left - 1, 0);
    }
}
