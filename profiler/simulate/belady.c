/* Next uses are linked backwards once, and all runs share them. A heap holds what is in the buffer, the
 * farthest next use first, equal ones by key. `place` finds a key in it. Records of the present answer leave
 * the heap while room is made. The bound sorts prices of hits once and merges in those of what the buffer
 * holds at the start. */
#include "profiler/simulate/belady.h"

#include "formats/base/memory.h"
#include "profiler/common/quantiles.h"

#include <string.h>

#define ABSENT 0xffffffffu

/* ---- the future ---- */

void moec_belady_release(struct moec_belady_future *future)
{
    free(future->first);
    free(future->next);
    free(future->prices);
    *future = (struct moec_belady_future){0};
}

/* A use that counts, or NEVER: a prompt reads again what it needs at no cost. */
static uint64_t if_decoded(const struct moec_recording *recording, uint64_t use)
{
    const bool counts =
        use != MOEC_BELADY_NEVER && !recording->steps[use / recording->shape.n_layer].is_prefill;
    return counts ? use : MOEC_BELADY_NEVER;
}

/* What it takes to keep a key's slot from one answer to another. */
static double price(const struct moec_simulated_model *model, uint32_t key, uint64_t from, uint64_t to)
{
    return (double)model->records.slot_bytes[key] * (double)(to - from);
}

static enum moec_status add_prices(struct moec_belady_future *future, struct moec_error *err)
{
    const struct moec_recording *recording = future->recording;
    const uint64_t n_answer = recording->n_step * recording->shape.n_layer;
    MOEC_TRY(
        moec_alloc((void **)&future->prices, recording->n_active, sizeof(double), "prices of hits", err));
    for (uint64_t a = 0; a < n_answer; a++) {
        const uint32_t base = (uint32_t)(a % recording->shape.n_layer) * recording->shape.n_layer_key;
        const uint64_t *nexts = moec_belady_nexts(future, a);
        uint32_t n = 0;
        const uint32_t *active = moec_recording_active(recording, a, &n);
        for (uint32_t i = 0; i < n; i++) {
            const uint64_t next = if_decoded(recording, nexts[i]);
            if (next != MOEC_BELADY_NEVER)
                future->prices[future->n_price++] = price(future->model, base + active[i], a, next);
        }
    }
    moec_sort_doubles(future->prices, future->n_price);
    return MOEC_OK;
}

enum moec_status moec_belady_look_ahead(const struct moec_recording *recording,
                                        const struct moec_simulated_model *model,
                                        struct moec_belady_future *future, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const uint64_t n_answer = recording->n_step * recording->shape.n_layer;
    const size_t n_key = (size_t)recording->shape.n_layer * recording->shape.n_layer_key;
    *future = (struct moec_belady_future){.recording = recording, .model = model};
    MOEC_TRY_OUT(moec_alloc((void **)&future->first, n_key, sizeof(uint64_t), "next uses", err));
    MOEC_TRY_OUT(moec_alloc((void **)&future->next, recording->n_active, sizeof(uint64_t), "next uses", err));
    for (size_t key = 0; key < n_key; key++)
        future->first[key] = MOEC_BELADY_NEVER;
    for (uint64_t a = n_answer; a-- > 0;) {
        uint64_t *soonest = future->first + (a % recording->shape.n_layer) * recording->shape.n_layer_key;
        uint64_t *nexts = future->next + recording->replay->answers[a].active;
        uint32_t n = 0;
        const uint32_t *active = moec_recording_active(recording, a, &n);
        for (uint32_t i = 0; i < n; i++) {
            nexts[i] = soonest[active[i]];
            soonest[active[i]] = a;
        }
    }
    if (!model->slots.is_equal)
        MOEC_TRY_OUT(add_prices(future, err));
out:
    if (status != MOEC_OK)
        moec_belady_release(future);
    return status;
}

/* ---- the rule: a heap of what is in the buffer, farthest next use first ---- */

struct buffer {
    const struct moec_simulated_model *model;
    uint64_t capacity_bytes, used_bytes;
    uint32_t n;
    uint32_t *heap;  /* (n_key), owned: keys */
    uint32_t *place; /* (n_key), owned: of a key in the heap, or ABSENT */
    uint64_t *next;  /* (n_key), owned: its next use */
};

static bool is_before(const struct buffer *buffer, uint32_t a, uint32_t b)
{
    return buffer->next[a] > buffer->next[b] || (buffer->next[a] == buffer->next[b] && a < b);
}

static void put(struct buffer *buffer, uint32_t at, uint32_t key)
{
    buffer->heap[at] = key;
    buffer->place[key] = at;
}

/* Moves a key that stands at `at` to where it belongs. */
static void sift(struct buffer *buffer, uint32_t at)
{
    const uint32_t key = buffer->heap[at];
    while (at > 0 && is_before(buffer, key, buffer->heap[(at - 1) / 2])) {
        put(buffer, at, buffer->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (uint32_t child = 2 * at + 1; child < buffer->n; child = 2 * at + 1) {
        if (child + 1 < buffer->n && is_before(buffer, buffer->heap[child + 1], buffer->heap[child]))
            child++;
        if (!is_before(buffer, buffer->heap[child], key))
            break;
        put(buffer, at, buffer->heap[child]);
        at = child;
    }
    put(buffer, at, key);
}

static void insert(struct buffer *buffer, uint32_t key, uint64_t next)
{
    buffer->next[key] = next;
    buffer->used_bytes += buffer->model->records.slot_bytes[key];
    put(buffer, buffer->n, key);
    sift(buffer, buffer->n++);
}

static void take(struct buffer *buffer, uint32_t key)
{
    const uint32_t at = buffer->place[key], last = buffer->heap[--buffer->n];
    buffer->place[key] = ABSENT;
    buffer->used_bytes -= buffer->model->records.slot_bytes[key];
    if (last == key)
        return;
    put(buffer, at, last);
    sift(buffer, at);
}

/* One answer: what is there counts as a hit and leaves the heap, so that others make room; then all go in.
 * What does not count makes no room, and stays as far as it is needed sooner than others. */
static void serve(struct buffer *buffer, const struct moec_belady_future *future, uint64_t a, bool is_counted,
                  struct moec_belady *belady)
{
    const struct moec_recording *recording = future->recording;
    const uint32_t base = (uint32_t)(a % recording->shape.n_layer) * recording->shape.n_layer_key;
    const uint64_t *nexts = moec_belady_nexts(future, a);
    uint64_t needed = 0;
    uint32_t n = 0;
    const uint32_t *active = moec_recording_active(recording, a, &n);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t key = base + active[i];
        const bool is_hit = buffer->place[key] != ABSENT;
        needed += buffer->model->records.slot_bytes[key];
        if (is_hit)
            take(buffer, key);
        if (is_counted) {
            belady->asked++;
            belady->hits += is_hit;
            belady->read_bytes += is_hit ? 0 : buffer->model->records.record_bytes[key];
        }
    }
    while (is_counted && buffer->n > 0 && buffer->used_bytes + needed > buffer->capacity_bytes)
        take(buffer, buffer->heap[0]);
    for (uint32_t i = 0; i < n; i++)
        insert(buffer, base + active[i], if_decoded(recording, nexts[i]));
    /* An answer larger than the buffer is computed in turns: what is needed again soonest stays. */
    while (buffer->used_bytes > buffer->capacity_bytes)
        take(buffer, buffer->heap[0]);
}

/* ---- the bound ---- */

/* How many of the cheapest hits the whole buffer pays for, the last one in part. First uses of what is there
 * at the start are merged in as they come. */
static double most_hits(const struct moec_belady_future *future, uint64_t capacity_bytes, double *start,
                        uint64_t n_start)
{
    const double n_answer = (double)(future->recording->n_step * future->recording->shape.n_layer);
    double left = (double)capacity_bytes * n_answer, hits = 0;
    uint64_t i = 0, s = 0;
    moec_sort_doubles(start, n_start);
    while (i < future->n_price || s < n_start) {
        const bool is_start = s < n_start && (i == future->n_price || start[s] < future->prices[i]);
        const double cost = is_start ? start[s] : future->prices[i];
        if (cost > left)
            return hits + left / cost;
        left -= cost;
        hits++;
        *(is_start ? &s : &i) += 1;
    }
    return hits;
}

static enum moec_status add_bound(const struct moec_belady_future *future, uint64_t capacity_bytes,
                                  const uint32_t *start, uint32_t n_start, struct moec_belady *belady,
                                  struct moec_error *err)
{
    double *prices = NULL;
    uint64_t n = 0;
    belady->most_hits = (double)belady->hits;
    if (future->model->slots.is_equal)
        return MOEC_OK;
    MOEC_TRY(moec_alloc((void **)&prices, n_start, sizeof *prices, "prices of hits", err));
    for (uint32_t i = 0; i < n_start; i++) {
        const uint64_t first = if_decoded(future->recording, future->first[start[i]]);
        if (first != MOEC_BELADY_NEVER)
            prices[n++] = price(future->model, start[i], 0, first);
    }
    belady->most_hits = most_hits(future, capacity_bytes, prices, n);
    free(prices);
    return MOEC_OK;
}

enum moec_status moec_belady_run(const struct moec_belady_future *future, uint64_t capacity_bytes,
                                 const uint32_t *start, uint32_t n_start, struct moec_belady *belady,
                                 struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_recording *recording = future->recording;
    const size_t n_key = (size_t)recording->shape.n_layer * recording->shape.n_layer_key;
    struct buffer buffer = {.model = future->model, .capacity_bytes = capacity_bytes};
    *belady = (struct moec_belady){0};
    MOEC_TRY_OUT(moec_alloc((void **)&buffer.heap, n_key, sizeof(uint32_t), "buffer", err));
    MOEC_TRY_OUT(moec_alloc((void **)&buffer.place, n_key, sizeof(uint32_t), "buffer", err));
    MOEC_TRY_OUT(moec_alloc((void **)&buffer.next, n_key, sizeof(uint64_t), "buffer", err));
    memset(buffer.place, 0xff, n_key * sizeof(uint32_t));
    for (uint32_t i = 0; i < n_start; i++)
        insert(&buffer, start[i], if_decoded(recording, future->first[start[i]]));
    for (uint64_t a = 0; a < recording->n_step * recording->shape.n_layer; a++)
        serve(&buffer, future, a, !recording->steps[a / recording->shape.n_layer].is_prefill, belady);
    MOEC_TRY_OUT(add_bound(future, capacity_bytes, start, n_start, belady, err));
out:
    free(buffer.heap);
    free(buffer.place);
    free(buffer.next);
    return status;
}
