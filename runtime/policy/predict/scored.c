/* The first n_best are a heap with the last of them on top. Each other expert replaces that one if it is
 * before it. Then the heap is sorted. The order is total, NaN last and ties to the lower index, so equal
 * lists give equal orders everywhere. */
#include "runtime/policy/predict/scored.h"

#include <math.h>

/* Whether a stands behind b. */
static bool is_behind(struct moec_scored_expert a, struct moec_scored_expert b)
{
    if (a.score > b.score || isnan(b.score) != isnan(a.score))
        return isnan(a.score);
    return a.score < b.score || a.expert > b.expert;
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

void moec_scored_order(struct moec_scored_expert *list, uint32_t n_expert, uint32_t n_best)
{
    if (n_best == 0)
        return;
    for (uint32_t at = n_best / 2; at-- > 0;)
        sink(list, n_best, at);
    for (uint32_t e = n_best; e < n_expert; e++) {
        if (is_behind(list[0], list[e])) {
            list[0] = list[e];
            sink(list, n_best, 0);
        }
    }
    for (uint32_t left = n_best; left > 1; left--) {
        const struct moec_scored_expert last = list[0];
        list[0] = list[left - 1];
        list[left - 1] = last;
        sink(list, left - 1, 0);
    }
}
