/* A key and its token are one word: sorting brings the tokens of a key together, in the table's order. Values
 * are the most probable experts, ties to the lower index. Pruning keeps keys of one expert before those of
 * two, and these by count. The order of keys is part of the format and stays through pruning and joining. */
#include "profiler/routing/paths.h"

#include "formats/base/half.h"
#include "formats/base/memory.h"

#include <inttypes.h>
#include <string.h>

/* A key that a token had: first << 48 | second << 32 | token, so that sorting brings the tokens of a key
 * together in the order of (first, second) that the table wants. MOEC_PATH_NONE sorts last. */
static uint64_t key_word(uint32_t first, uint32_t second, uint64_t token)
{
    return (uint64_t)first << 48 | (uint64_t)second << 32 | token;
}

static int compare_words(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static uint64_t place(const struct moec_path_trace *trace, uint64_t token, uint32_t layer)
{
    const uint32_t row_layers = trace->row_layers != 0 ? trace->row_layers : trace->n_layer;
    return (token * row_layers + trace->first_layer + layer) * trace->top_k;
}

static const uint16_t *choices(const struct moec_path_trace *trace, uint64_t token, uint32_t layer)
{
    return trace->experts + place(trace, token, layer);
}

static void gate_weights(const struct moec_path_trace *trace, uint64_t token, uint32_t layer, float *weights)
{
    const uint16_t *halves = trace->weights + place(trace, token, layer);
    for (uint32_t rank = 0; rank < trace->top_k; rank++)
        weights[rank] = moec_f16_to_f32(halves[rank]);
}

static enum moec_status check_trace(const struct moec_path_trace *trace, struct moec_error *err)
{
    if (trace->n_layer == 0 || trace->top_k == 0 || trace->top_k > MOEC_MAX_TOP_K ||
        trace->n_expert > MOEC_MAX_EXPERTS || trace->top_k > trace->n_expert || trace->n_token > UINT32_MAX)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "a routing trace cannot have %" PRIu64 " tokens, %" PRIu32 " layers, %" PRIu32
                         " experts and top-%" PRIu32 ": one of these numbers is out of range",
                         trace->n_token, trace->n_layer, trace->n_expert, trace->top_k);
    for (uint64_t token = 0; token < trace->n_token; token++) {
        /* Layers of a token are neighbours. */
        const uint16_t *chosen = choices(trace, token, 0);
        for (uint64_t i = 0; i < (uint64_t)trace->n_layer * trace->top_k; i++)
            if (chosen[i] >= trace->n_expert && chosen[i] != MOEC_PATH_NONE)
                return moec_fail(err, MOEC_ERR_USAGE,
                                 "choice %" PRIu64 " of token %" PRIu64
                                 " of the routing trace is expert %u, expected less than %" PRIu32,
                                 i, token, (unsigned)chosen[i], trace->n_expert);
    }
    return MOEC_OK;
}

/* Better first: higher probability, then lower index. */
static bool is_before(const struct moec_path_value *a, const struct moec_path_value *b)
{
    return a->probability != b->probability ? a->probability > b->probability : a->expert < b->expert;
}

/* Writes the n best of counts (n_expert) out of n_token as values; experts never counted are left out when
 * `seen_only`, whose slots become unused. */
static void best_values(const uint64_t *counts, uint32_t n_expert, uint64_t n_token, bool seen_only,
                        uint32_t n, struct moec_path_value *values)
{
    uint32_t used = 0;
    for (uint32_t e = 0; e < n_expert; e++) {
        if (seen_only && counts[e] == 0)
            continue;
        struct moec_path_value value = {.expert = (uint16_t)e};
        if (n_token > 0)
            value.probability = (uint16_t)((counts[e] * 65535 + n_token / 2) / n_token);
        if (used == n && !is_before(&value, &values[n - 1]))
            continue;
        uint32_t at = used < n ? used++ : n - 1;
        for (; at > 0 && is_before(&value, &values[at - 1]); at--)
            values[at] = values[at - 1];
        values[at] = value;
    }
    for (; used < n; used++)
        values[used] = (struct moec_path_value){.expert = MOEC_PATH_NONE};
}

struct builder {
    const struct moec_path_trace *trace;
    const uint8_t *used;
    struct moec_path_table *table;
    size_t key_capacity, value_capacity;
    uint64_t *words; /* keys of one layer */
    size_t n_word, word_capacity;
    uint64_t *counts; /* (n_expert) */
};

static bool is_used(const uint8_t *used, uint64_t token)
{
    return used == NULL || used[token] != 0;
}

static void count_choices(struct builder *builder, uint64_t token, uint32_t layer)
{
    const uint16_t *chosen = choices(builder->trace, token, layer);
    for (uint32_t rank = 0; rank < builder->trace->top_k; rank++)
        if (chosen[rank] != MOEC_PATH_NONE)
            builder->counts[chosen[rank]]++;
}

static void build_frequency(struct builder *builder)
{
    const struct moec_path_trace *trace = builder->trace;
    for (uint32_t layer = 0; layer < trace->n_layer; layer++) {
        uint64_t n_used = 0;
        memset(builder->counts, 0, trace->n_expert * sizeof *builder->counts);
        for (uint64_t token = 0; token < trace->n_token; token++) {
            if (!is_used(builder->used, token))
                continue;
            count_choices(builder, token, layer);
            n_used++;
        }
        best_values(builder->counts, trace->n_expert, n_used, false, trace->n_expert,
                    builder->table->frequency + (size_t)layer * trace->n_expert);
    }
}

static enum moec_status list_keys(struct builder *builder, uint32_t layer, struct moec_error *err)
{
    const struct moec_path_trace *trace = builder->trace;
    const uint32_t k = trace->top_k;
    builder->n_word = 0;
    for (uint64_t token = 0; token < trace->n_token; token++) {
        if (!is_used(builder->used, token))
            continue;
        void *memory = builder->words;
        enum moec_status status = moec_grow(&memory, &builder->word_capacity, builder->n_word + k * k + k,
                                            sizeof *builder->words, "expert paths", err);
        builder->words = memory;
        MOEC_TRY(status);
        const uint16_t *last = choices(trace, token, layer - 1);
        const uint16_t *before = layer >= 2 ? choices(trace, token, layer - 2) : NULL;
        for (uint32_t j = 0; j < k; j++) {
            if (last[j] == MOEC_PATH_NONE)
                continue;
            builder->words[builder->n_word++] = key_word(MOEC_PATH_NONE, last[j], token);
            for (uint32_t i = 0; before != NULL && i < k; i++)
                if (before[i] != MOEC_PATH_NONE)
                    builder->words[builder->n_word++] = key_word(before[i], last[j], token);
        }
    }
    if (builder->n_word > 0)
        qsort(builder->words, builder->n_word, sizeof *builder->words, compare_words);
    return MOEC_OK;
}

static enum moec_status add_key(struct builder *builder, uint32_t layer, size_t begin, size_t end,
                                struct moec_error *err)
{
    struct moec_path_table *table = builder->table;
    void *keys = table->keys, *values = table->values;
    enum moec_status status = moec_grow(&keys, &builder->key_capacity, (size_t)table->n_key + 1,
                                        sizeof *table->keys, "path keys", err);
    table->keys = keys;
    MOEC_TRY(status);
    status = moec_grow(&values, &builder->value_capacity, ((size_t)table->n_key + 1) * table->n_value,
                       sizeof *table->values, "path values", err);
    table->values = values;
    MOEC_TRY(status);
    memset(builder->counts, 0, table->n_expert * sizeof *builder->counts);
    for (size_t i = begin; i < end; i++)
        count_choices(builder, builder->words[i] & 0xffffffffu, layer);
    table->keys[table->n_key] = (struct moec_path_key){.layer = (uint16_t)layer,
                                                       .first = (uint16_t)(builder->words[begin] >> 48),
                                                       .second = (uint16_t)(builder->words[begin] >> 32),
                                                       .count = (uint32_t)(end - begin)};
    best_values(builder->counts, table->n_expert, end - begin, true, table->n_value,
                table->values + (size_t)table->n_key * table->n_value);
    table->n_key++;
    return MOEC_OK;
}

static enum moec_status build_layer(struct builder *builder, uint32_t layer, struct moec_error *err)
{
    MOEC_TRY(list_keys(builder, layer, err));
    for (size_t begin = 0; begin < builder->n_word;) {
        size_t end = begin + 1;
        while (end < builder->n_word && builder->words[end] >> 32 == builder->words[begin] >> 32)
            end++;
        MOEC_TRY(add_key(builder, layer, begin, end, err));
        begin = end;
    }
    return MOEC_OK;
}

enum moec_status moec_paths_build(const struct moec_path_trace *trace, const uint8_t *used,
                                  struct moec_path_table *table, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct builder builder = {.trace = trace, .used = used, .table = table};
    *table = (struct moec_path_table){.n_layer = trace->n_layer,
                                      .n_expert = trace->n_expert,
                                      .top_k = trace->top_k,
                                      .n_value = 2 * trace->top_k < trace->n_expert ? 2 * trace->top_k
                                                                                    : trace->n_expert};
    MOEC_TRY_OUT(check_trace(trace, err));
    MOEC_TRY_OUT(
        moec_alloc((void **)&builder.counts, trace->n_expert, sizeof *builder.counts, "expert counts", err));
    MOEC_TRY_OUT(moec_alloc((void **)&table->frequency, (uint64_t)trace->n_layer * trace->n_expert,
                            sizeof *table->frequency, "expert frequencies", err));
    build_frequency(&builder);
    for (uint32_t layer = 1; layer < trace->n_layer; layer++)
        MOEC_TRY_OUT(build_layer(&builder, layer, err));
out:
    free(builder.words);
    free(builder.counts);
    if (status != MOEC_OK)
        moec_path_table_release(table);
    return status;
}

/* How many experts are more probable than this one, ties to the lower index. */
static uint32_t rank_of(const float *probability, uint32_t n_expert, uint32_t expert)
{
    const float own = probability[expert];
    uint32_t better = 0;
    for (uint32_t e = 0; e < n_expert; e++)
        better += probability[e] > own || (probability[e] == own && e < expert);
    return better;
}

/* Places of the experts in the frequency rows: place (S, E). */
static void list_places(const struct moec_path_table *table, uint16_t *place)
{
    for (size_t layer = 0; layer < table->n_layer; layer++) {
        const size_t row = layer * table->n_expert;
        for (uint32_t i = 0; i < table->n_expert; i++)
            place[row + table->frequency[row + i].expert] = (uint16_t)i;
    }
}

struct hit_counter {
    const struct moec_path_table *table;
    const struct moec_path_trace *trace;
    uint16_t *place;    /* (S, E) */
    float *probability; /* (E) */
    const struct moec_path_hits *found;
};

static void count_hits(const struct hit_counter *counter, uint64_t token, uint32_t layer)
{
    const struct moec_path_trace *trace = counter->trace;
    const size_t row = (size_t)layer * trace->n_expert;
    const uint16_t *chosen = choices(trace, token, layer);
    float last[MOEC_MAX_TOP_K], before[MOEC_MAX_TOP_K];
    if (layer >= 1)
        gate_weights(trace, token, layer - 1, last);
    if (layer >= 2)
        gate_weights(trace, token, layer - 2, before);
    if (layer >= 1)
        moec_path_table_predict(
            counter->table, layer,
            (struct moec_path_choices){layer >= 2 ? choices(trace, token, layer - 2) : NULL, before},
            (struct moec_path_choices){choices(trace, token, layer - 1), last}, counter->probability);
    for (uint32_t i = 0; i < trace->top_k; i++) {
        if (chosen[i] == MOEC_PATH_NONE)
            continue;
        const uint16_t by_frequency = counter->place[row + chosen[i]];
        counter->found->by_frequency[row + by_frequency]++;
        if (layer == 0)
            counter->found->by_path[row + by_frequency]++;
        else
            counter->found->by_path[row + rank_of(counter->probability, trace->n_expert, chosen[i])]++;
    }
}

enum moec_status moec_paths_hits(const struct moec_path_table *table, const struct moec_path_trace *trace,
                                 const uint8_t *used, struct moec_path_hits *hits, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct hit_counter counter = {.table = table, .trace = trace, .found = hits};
    const size_t n_cell = (size_t)trace->n_layer * trace->n_expert;
    MOEC_TRY_OUT(check_trace(trace, err));
    if (table->n_layer != trace->n_layer || table->n_expert != trace->n_expert ||
        table->top_k != trace->top_k)
        return moec_fail(err, MOEC_ERR_MISMATCH,
                         "the path table and the routing trace are from different models");
    MOEC_TRY_OUT(moec_alloc((void **)&counter.place, n_cell, sizeof *counter.place, "predictions", err));
    MOEC_TRY_OUT(moec_alloc((void **)&counter.probability, trace->n_expert, sizeof *counter.probability,
                            "predictions", err));
    list_places(table, counter.place);
    memset(hits->by_path, 0, n_cell * sizeof *hits->by_path);
    memset(hits->by_frequency, 0, n_cell * sizeof *hits->by_frequency);
    hits->n_used = 0;
    for (uint64_t token = 0; token < trace->n_token; token++) {
        if (!is_used(used, token))
            continue;
        hits->n_used++;
        for (uint32_t layer = 0; layer < trace->n_layer; layer++)
            count_hits(&counter, token, layer);
    }
out:
    free(counter.place);
    free(counter.probability);
    return status;
}

void moec_paths_recall(const uint64_t *hits, uint32_t n_layer, uint32_t n_expert, uint32_t top_k,
                       uint64_t n_choice, double *recall)
{
    const uint32_t cuts[3] = {top_k, top_k + 1, 2 * top_k};
    for (uint32_t layer = 0; layer < n_layer; layer++) {
        for (uint32_t c = 0; c < 3; c++) {
            uint64_t found = 0;
            for (uint32_t i = 0; i < cuts[c] && i < n_expert; i++)
                found += hits[(size_t)layer * n_expert + i];
            recall[layer * 3 + c] = n_choice > 0 ? (double)found / (double)n_choice : 0;
        }
    }
}

/* Order in which keys are kept: singles first, then pairs by falling count; the earlier key wins ties. */
struct rank {
    uint32_t index;
    uint32_t count;
    bool single;
};

static int compare_ranks(const void *a, const void *b)
{
    const struct rank *x = a, *y = b;
    if (x->single != y->single)
        return x->single ? -1 : 1;
    if (x->count != y->count)
        return x->count > y->count ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

static int compare_indices(const void *a, const void *b)
{
    const struct rank *x = a, *y = b;
    return (x->index > y->index) - (x->index < y->index);
}

/* Keys that fit: the size of an encoded table grows by the same bytes with each (formats/bundle/FORMAT.md,
 * "paths").
 */
static enum moec_status keys_that_fit(const struct moec_path_table *table, uint64_t max_bytes, uint32_t *n,
                                      struct moec_error *err)
{
    struct moec_path_table some = *table;
    uint8_t *bytes = NULL;
    size_t empty_bytes = 0, one_bytes = 0;
    some.n_key = 0;
    MOEC_TRY(moec_path_table_encode(&some, &bytes, &empty_bytes, err));
    free(bytes);
    if (empty_bytes > max_bytes)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "the expert frequencies alone take %zu bytes, more than the %" PRIu64 " bytes "
                         "allowed for the path table",
                         empty_bytes, max_bytes);
    *n = 0;
    if (table->n_key == 0)
        return MOEC_OK;
    some.n_key = 1;
    MOEC_TRY(moec_path_table_encode(&some, &bytes, &one_bytes, err));
    free(bytes);
    uint64_t fit = (max_bytes - empty_bytes) / (one_bytes - empty_bytes);
    *n = fit < table->n_key ? (uint32_t)fit : table->n_key;
    return MOEC_OK;
}

enum moec_status moec_paths_prune(const struct moec_path_table *table, uint64_t max_bytes,
                                  struct moec_path_table *pruned, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct rank *ranks = NULL;
    uint32_t n = 0;
    const size_t n_frequency = (size_t)table->n_layer * table->n_expert;
    *pruned = *table;
    pruned->keys = NULL;
    pruned->values = NULL;
    pruned->frequency = NULL;
    pruned->ranges = pruned->scores = NULL;
    MOEC_TRY_OUT(keys_that_fit(table, max_bytes, &n, err));
    pruned->n_key = n;
    MOEC_TRY_OUT(moec_alloc((void **)&ranks, table->n_key, sizeof *ranks, "path keys", err));
    MOEC_TRY_OUT(moec_alloc((void **)&pruned->keys, n, sizeof *pruned->keys, "path keys", err));
    MOEC_TRY_OUT(moec_alloc((void **)&pruned->values, (uint64_t)n * table->n_value, sizeof *pruned->values,
                            "path values", err));
    MOEC_TRY_OUT(moec_alloc((void **)&pruned->frequency, n_frequency, sizeof *pruned->frequency,
                            "expert frequencies", err));
    memcpy(pruned->frequency, table->frequency, n_frequency * sizeof *table->frequency);
    for (uint32_t i = 0; i < table->n_key; i++)
        ranks[i] = (struct rank){i, table->keys[i].count, table->keys[i].first == MOEC_PATH_NONE};
    if (table->n_key > 0)
        qsort(ranks, table->n_key, sizeof *ranks, compare_ranks);
    if (n > 0)
        qsort(ranks, n, sizeof *ranks, compare_indices);
    for (uint32_t i = 0; i < n; i++) {
        pruned->keys[i] = table->keys[ranks[i].index];
        memcpy(pruned->values + (size_t)i * table->n_value,
               table->values + (size_t)ranks[i].index * table->n_value,
               table->n_value * sizeof *table->values);
    }
out:
    free(ranks);
    if (status != MOEC_OK)
        moec_path_table_release(pruned);
    return status;
}

static enum moec_status append_arrays(const struct moec_path_table *stack, struct moec_path_table *table,
                                      struct moec_error *err)
{
    const size_t n_value = table->n_value, n_expert = table->n_expert;
    const size_t n_key = (size_t)table->n_key + stack->n_key,
                 n_layer = (size_t)table->n_layer + stack->n_layer;
    size_t keys = table->n_key, values = table->n_key * n_value, frequencies = table->n_layer * n_expert;
    MOEC_TRY(moec_grow((void **)&table->keys, &keys, n_key, sizeof *table->keys, "path keys", err));
    MOEC_TRY(moec_grow((void **)&table->values, &values, n_key * n_value, sizeof *table->values,
                       "path values", err));
    MOEC_TRY(moec_grow((void **)&table->frequency, &frequencies, n_layer * n_expert, sizeof *table->frequency,
                       "expert frequencies", err));
    for (uint32_t i = 0; i < stack->n_key; i++) {
        struct moec_path_key *key = &table->keys[table->n_key + i];
        *key = stack->keys[i];
        key->layer = (uint16_t)(key->layer + table->n_layer);
    }
    if (stack->n_key > 0)
        memcpy(table->values + table->n_key * n_value, stack->values,
               stack->n_key * n_value * sizeof *table->values);
    memcpy(table->frequency + table->n_layer * n_expert, stack->frequency,
           stack->n_layer * n_expert * sizeof *table->frequency);
    return MOEC_OK;
}

enum moec_status moec_paths_append(const struct moec_path_table *stack, struct moec_path_table *table,
                                   struct moec_error *err)
{
    if (stack->n_expert != table->n_expert || stack->top_k != table->top_k ||
        stack->n_value != table->n_value || stack->n_layer > MOEC_MAX_LAYERS - table->n_layer)
        return moec_fail(err, MOEC_ERR_MISMATCH,
                         "the path tables of encoder and decoder are from different models");
    MOEC_TRY(append_arrays(stack, table, err));
    table->n_layer += stack->n_layer;
    table->n_key += stack->n_key;
    return MOEC_OK;
}

/* One token's path, for sorting equal ones together. */
struct walk {
    const struct moec_path_trace *trace;
    uint32_t first_layer, n_layers;
    uint64_t token;
};

static int compare_walks(const void *a, const void *b)
{
    const struct walk *x = a, *y = b;
    for (uint32_t i = 0; i < x->n_layers; i++) {
        int left = choices(x->trace, x->token, x->first_layer + i)[0];
        int right = choices(y->trace, y->token, y->first_layer + i)[0];
        if (left != right)
            return left < right ? -1 : 1;
    }
    return 0;
}

static int compare_falling(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

enum moec_status moec_paths_popularity(const struct moec_path_trace *trace, const uint8_t *used,
                                       struct moec_moe_range layers, double *shares, uint64_t *n_path,
                                       struct moec_error *err)
{
    struct walk *walks = NULL;
    uint64_t n_walk = 0;
    *n_path = 0;
    MOEC_TRY(check_trace(trace, err));
    if (layers.count == 0 || layers.first >= trace->n_layer || layers.count > trace->n_layer - layers.first)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "paths of %" PRIu32 " layers from layer %" PRIu32 " on do not fit into the routing "
                         "trace, which has %" PRIu32 " layers",
                         layers.count, layers.first, trace->n_layer);
    MOEC_TRY(moec_alloc((void **)&walks, trace->n_token, sizeof *walks, "expert paths", err));
    for (uint64_t t = 0; t < trace->n_token; t++)
        if (is_used(used, t))
            walks[n_walk++] = (struct walk){trace, layers.first, layers.count, t};
    if (n_walk > 0)
        qsort(walks, n_walk, sizeof *walks, compare_walks);
    for (uint64_t begin = 0; begin < n_walk;) {
        uint64_t end = begin + 1;
        while (end < n_walk && compare_walks(&walks[begin], &walks[end]) == 0)
            end++;
        shares[(*n_path)++] = (double)(end - begin) / (double)n_walk;
        begin = end;
    }
    if (*n_path > 0)
        qsort(shares, *n_path, sizeof *shares, compare_falling);
    free(walks);
    return MOEC_OK;
}
