/* Keys are sorted by (layer, first, second). Lookup begins where the key would stand if no pair were
 * missing. A prediction is the mean over a token's pairs, weighted by products of gate weights. A pair that
 * calibration never saw falls back to its last expert, then to the layer's frequencies. The section stores
 * columns, each of which compresses better than rows. */
#include "formats/tables/path_table.h"

#include "formats/base/bytes.h"
#include "formats/base/memory.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define PROBABILITY_ONE 65535.0f
#define MAX_KEYS        (1u << 26)
#define HEADER_BYTES    24u
#define KEY_BYTES       10u /* layer, first, second, count */
#define VALUE_BYTES     4u  /* expert, probability */

void moec_path_table_release(struct moec_path_table *table)
{
    if (table == NULL)
        return;
    free(table->keys);
    free(table->values);
    free(table->frequency);
    free(table->ranges);
    free(table->scores);
    *table = (struct moec_path_table){0};
}

/* ---- prediction ---- */

static uint64_t key_order(uint32_t layer, uint32_t first, uint32_t second)
{
    return (uint64_t)layer << 32 | (uint64_t)first << 16 | second;
}

static uint64_t order_at(const struct moec_path_table *table, uint32_t i)
{
    return key_order(table->keys[i].layer, table->keys[i].first, table->keys[i].second);
}

/* Of the keys from low on and before high, the first that is not before the wanted one. */
static uint32_t lower_bound(const struct moec_path_table *table, uint64_t wanted, uint32_t low, uint32_t high)
{
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (order_at(table, middle) < wanted)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Keys that share their layer and first expert. Each second expert has one, so that the key of `second` is at
 * most `second` keys behind the first of them: there it is where calibration saw all pairs. */
struct row {
    uint32_t layer, first;
    uint32_t begin; /* the first of them */
};

static struct row row_of(const struct moec_path_table *table, uint32_t layer, uint32_t first)
{
    return (struct row){layer, first, lower_bound(table, key_order(layer, first, 0), 0, table->n_key)};
}

/* Values of a key, NULL when calibration did not see it. */
static const struct moec_path_value *find_values(const struct moec_path_table *table, const struct row *row,
                                                 uint32_t second)
{
    const uint64_t wanted = key_order(row->layer, row->first, second);
    const uint32_t left = table->n_key - row->begin;
    if (left == 0)
        return NULL;
    uint32_t at = row->begin + (second < left ? second : left - 1);
    if (order_at(table, at) != wanted)
        at = lower_bound(table, wanted, row->begin, at);
    return order_at(table, at) == wanted ? &table->values[(size_t)at * table->n_value] : NULL;
}

static void add_values(const struct moec_path_value *values, uint32_t n, float weight, float *out)
{
    for (uint32_t i = 0; i < n && values[i].expert != MOEC_PATH_NONE; i++)
        out[values[i].expert] += weight * ((float)values[i].probability / PROBABILITY_ONE);
}

/* Falls back from the pair to its last expert, and from that to the layer's frequency. `pairs` is NULL where
 * there is no pair. */
static void add_prediction(const struct moec_path_table *table, const struct row *pairs,
                           const struct row *singles, uint32_t second, float weight, float *out)
{
    const struct moec_path_value *values = NULL;
    if (pairs != NULL)
        values = find_values(table, pairs, second);
    if (values == NULL)
        values = find_values(table, singles, second);
    if (values != NULL)
        add_values(values, table->n_value, weight, out);
    else
        add_values(table->frequency + (size_t)singles->layer * table->n_expert, table->n_expert, weight, out);
}

static float weight_sum(const float *weights, uint32_t n)
{
    float sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += weights[i];
    return sum;
}

void moec_path_table_predict(const struct moec_path_table *table, uint32_t layer,
                             struct moec_path_choices before, struct moec_path_choices last, float *out)
{
    uint32_t k = table->top_k, n_before = before.experts != NULL ? k : 1;
    memset(out, 0, table->n_expert * sizeof *out);
    float total =
        weight_sum(last.weights, k) * (before.experts != NULL ? weight_sum(before.weights, k) : 1.0f);
    /* Gate weights that underflowed to 0 say nothing about the order: all pairs count alike then. */
    bool even = !(total > 0);
    const struct row singles = row_of(table, layer, MOEC_PATH_NONE);
    for (uint32_t i = 0; i < n_before; i++) {
        const struct row pairs = before.experts != NULL ? row_of(table, layer, before.experts[i]) : singles;
        for (uint32_t j = 0; j < k; j++) {
            float product = (before.experts != NULL ? before.weights[i] : 1.0f) * last.weights[j];
            float weight = even ? 1.0f / (float)(n_before * k) : product / total;
            add_prediction(table, before.experts != NULL ? &pairs : NULL, &singles, last.experts[j], weight,
                           out);
        }
    }
}

/* ---- binary section ---- */

static enum moec_status check_dimensions(const struct moec_path_table *t, struct moec_error *err)
{
    uint32_t values = 2 * t->top_k < t->n_expert ? 2 * t->top_k : t->n_expert;
    if (t->n_layer < 1 || t->n_layer > MOEC_MAX_LAYERS || t->n_expert < 1 || t->n_expert > MOEC_MAX_EXPERTS ||
        t->top_k < 1 || t->top_k > t->n_expert || t->top_k > MOEC_MAX_TOP_K || t->n_value != values ||
        t->n_key > MAX_KEYS || t->n_shallow > t->n_layer)
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "the path table is damaged: it says %u MoE layers (%u of them shallow), %u experts, top-k %u, %u "
            "predictions per key and %u keys, but no model has these dimensions",
            t->n_layer, t->n_shallow, t->n_expert, t->top_k, t->n_value, t->n_key);
    return MOEC_OK;
}

/* Experts that lists have named: those of the list at work have its stamp. */
struct named {
    uint32_t n_expert;
    uint32_t *seen; /* (n_expert) */
    uint32_t stamp;
};

/* Checks one list of values: falling probabilities, experts in range and each once, unused slots last. */
static enum moec_status check_values(struct named *named, const struct moec_path_value *values, uint32_t n,
                                     const char *what, uint32_t index, struct moec_error *err)
{
    const uint32_t stamp = ++named->stamp;
    bool ended = false;
    for (uint32_t i = 0; i < n; i++) {
        if (values[i].expert == MOEC_PATH_NONE && values[i].probability == 0) {
            ended = true;
            continue;
        }
        bool falling =
            i == 0 || values[i - 1].probability > values[i].probability ||
            (values[i - 1].probability == values[i].probability && values[i - 1].expert < values[i].expert);
        if (ended || values[i].expert >= named->n_expert || !falling ||
            named->seen[values[i].expert] == stamp)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "the path table (which experts follow which) is damaged: value %u of %s %u is "
                             "expert %u with probability %u, expected known experts, each at most once, by "
                             "falling probability",
                             i, what, index, values[i].expert, values[i].probability);
        named->seen[values[i].expert] = stamp;
    }
    return MOEC_OK;
}

static enum moec_status check_key(const struct moec_path_table *table, uint32_t index, struct moec_error *err)
{
    const struct moec_path_key *key = &table->keys[index];
    bool single = key->first == MOEC_PATH_NONE;
    bool known = key->layer >= 1 && key->layer < table->n_layer && key->second < table->n_expert &&
                 (single || (key->first < table->n_expert && key->layer >= 2));
    bool sorted = index == 0 || key_order(key[-1].layer, key[-1].first, key[-1].second) <
                                    key_order(key->layer, key->first, key->second);
    if (!known || !sorted)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the path table (which experts follow which) is damaged: key %u has layer %u, "
                         "experts %u and %u%s",
                         index, key->layer, key->first, key->second,
                         sorted ? ", which the model cannot have" : " and is out of order");
    return MOEC_OK;
}

static enum moec_status check_table(const struct moec_path_table *table, struct moec_error *err)
{
    void *memory = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_alloc(&memory, table->n_expert, sizeof(uint32_t), "path table", err));
    struct named named = {.n_expert = table->n_expert, .seen = memory};
    for (uint32_t layer = 0; layer < table->n_layer; layer++) {
        const struct moec_path_value *row = &table->frequency[(size_t)layer * table->n_expert];
        MOEC_TRY_OUT(check_values(&named, row, table->n_expert, "frequency row", layer, err));
    }
    for (uint32_t i = 0; i < table->n_key; i++) {
        const struct moec_path_value *values = &table->values[(size_t)i * table->n_value];
        MOEC_TRY_OUT(check_key(table, i, err));
        MOEC_TRY_OUT(check_values(&named, values, table->n_value, "key", i, err));
    }
out:
    free(memory);
    return status;
}

enum moec_status moec_path_table_check(const struct moec_path_table *table, struct moec_error *err)
{
    MOEC_TRY(check_dimensions(table, err));
    return check_table(table, err);
}

/* Columns instead of rows: each compresses far better beside its like. */
enum moec_status moec_path_table_encode(const struct moec_path_table *table, uint8_t **bytes, size_t *n_bytes,
                                        struct moec_error *err)
{
    size_t n_frequency = (size_t)table->n_layer * table->n_expert;
    size_t n_key = table->n_key, n_values = n_key * table->n_value;
    uint64_t total = HEADER_BYTES + (uint64_t)n_frequency * VALUE_BYTES + (uint64_t)n_key * KEY_BYTES +
                     (uint64_t)n_values * VALUE_BYTES;
    void *memory = NULL;
    MOEC_TRY(moec_path_table_check(table, err));
    MOEC_TRY(moec_alloc(&memory, total, 1, "path table", err));
    uint8_t *at = memory;
    const uint32_t header[6] = {table->n_layer, table->n_expert, table->top_k,
                                table->n_value, table->n_key,    table->n_shallow};
    for (size_t i = 0; i < 6; i++, at += 4)
        moec_put_u32(at, header[i]);
    for (size_t i = 0; i < n_frequency; i++, at += 2)
        moec_put_u16(at, table->frequency[i].expert);
    for (size_t i = 0; i < n_frequency; i++, at += 2)
        moec_put_u16(at, table->frequency[i].probability);
    for (size_t i = 0; i < n_key; i++, at += 2)
        moec_put_u16(at, table->keys[i].layer);
    for (size_t i = 0; i < n_key; i++, at += 2)
        moec_put_u16(at, table->keys[i].first);
    for (size_t i = 0; i < n_key; i++, at += 2)
        moec_put_u16(at, table->keys[i].second);
    for (size_t i = 0; i < n_key; i++, at += 4)
        moec_put_u32(at, table->keys[i].count);
    for (size_t i = 0; i < n_values; i++, at += 2)
        moec_put_u16(at, table->values[i].expert);
    for (size_t i = 0; i < n_values; i++, at += 2)
        moec_put_u16(at, table->values[i].probability);
    *bytes = memory;
    *n_bytes = (size_t)total;
    return MOEC_OK;
}

static const uint8_t *get_values(const uint8_t *at, size_t n, struct moec_path_value *values)
{
    for (size_t i = 0; i < n; i++) {
        values[i].expert = moec_get_u16(at + 2 * i);
        values[i].probability = moec_get_u16(at + 2 * (n + i));
    }
    return at + VALUE_BYTES * n;
}

static void get_keys(const uint8_t *at, size_t n, struct moec_path_key *keys)
{
    for (size_t i = 0; i < n; i++)
        keys[i] = (struct moec_path_key){.layer = moec_get_u16(at + 2 * i),
                                         .first = moec_get_u16(at + 2 * (n + i)),
                                         .second = moec_get_u16(at + 2 * (2 * n + i)),
                                         .count = moec_get_u32(at + 6 * n + 4 * i)};
}

enum moec_status moec_path_table_decode(const uint8_t *bytes, size_t n_bytes, struct moec_path_table *table,
                                        struct moec_error *err)
{
    struct moec_path_table t = {0};
    void *keys = NULL, *values = NULL, *frequency = NULL;
    if (n_bytes < HEADER_BYTES)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the path table (which experts follow which) has %zu bytes, expected at least %u",
                         n_bytes, HEADER_BYTES);
    t.n_layer = moec_get_u32(bytes);
    t.n_expert = moec_get_u32(bytes + 4);
    t.top_k = moec_get_u32(bytes + 8);
    t.n_value = moec_get_u32(bytes + 12);
    t.n_key = moec_get_u32(bytes + 16);
    t.n_shallow = moec_get_u32(bytes + 20);
    MOEC_TRY(check_dimensions(&t, err));
    size_t n_frequency = (size_t)t.n_layer * t.n_expert, n_values = (size_t)t.n_key * t.n_value;
    uint64_t expected = HEADER_BYTES + (uint64_t)n_frequency * VALUE_BYTES + (uint64_t)t.n_key * KEY_BYTES +
                        (uint64_t)n_values * VALUE_BYTES;
    if (n_bytes != expected)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the path table (which experts follow which) has %zu bytes, expected %" PRIu64,
                         n_bytes, expected);
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_alloc(&frequency, n_frequency, sizeof *t.frequency, "path table", err));
    t.frequency = frequency;
    MOEC_TRY_OUT(moec_alloc(&keys, t.n_key, sizeof *t.keys, "path table", err));
    t.keys = keys;
    MOEC_TRY_OUT(moec_alloc(&values, n_values, sizeof *t.values, "path table", err));
    t.values = values;
    const uint8_t *at = get_values(bytes + HEADER_BYTES, n_frequency, t.frequency);
    get_keys(at, t.n_key, t.keys);
    (void)get_values(at + (size_t)KEY_BYTES * t.n_key, n_values, t.values);
    MOEC_TRY_OUT(check_table(&t, err));
    *table = t;
    t = (struct moec_path_table){0};
out:
    moec_path_table_release(&t);
    return status;
}

/* ---- router ranges ---- */

#define RANGES_VERSION 1u

void moec_router_ranges_encode(const float *ranges, uint32_t n_layer, uint8_t *bytes)
{
    moec_put_u32(bytes, RANGES_VERSION);
    moec_put_u32(bytes + 4, n_layer);
    for (uint32_t layer = 0; layer < n_layer; layer++)
        moec_put_f32(bytes + moec_router_ranges_bytes(layer), ranges[layer]);
}

enum moec_status moec_router_ranges_decode(const uint8_t *bytes, size_t n_bytes, uint32_t n_layer,
                                           float **ranges, struct moec_error *err)
{
    float *read = NULL;
    if (n_bytes >= 4 && moec_get_u32(bytes) != RANGES_VERSION)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "the section of router ranges has version %u, expected %u", moec_get_u32(bytes),
                         RANGES_VERSION);
    if (n_bytes != moec_router_ranges_bytes(n_layer) || moec_get_u32(bytes + 4) != n_layer)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the section of router ranges has %zu bytes, expected %zu bytes that state %u MoE "
                         "layers",
                         n_bytes, moec_router_ranges_bytes(n_layer), n_layer);
    MOEC_TRY(moec_alloc((void **)&read, n_layer, sizeof *read, "router ranges", err));
    for (uint32_t layer = 0; layer < n_layer; layer++) {
        read[layer] = moec_get_f32(bytes + moec_router_ranges_bytes(layer));
        if (isfinite(read[layer]) && read[layer] >= 0)
            continue;
        const double wrong = read[layer];
        free(read);
        return moec_fail(err, MOEC_ERR_FORMAT, "the router range of MoE layer %u is %g, expected 0 or more",
                         layer, wrong);
    }
    *ranges = read;
    return MOEC_OK;
}
