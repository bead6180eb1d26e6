/* The path table: predictions against a naive model, its bytes, and hostile bytes. */
#include "tests/unit/temporary.h"

#include "formats/base/bytes.h"
#include "formats/tables/path_table.h"

#include <math.h>

#define N_LAYER  4
#define N_EXPERT 6
#define TOP_K    2
#define N_VALUE  4

/* Keys of layers 1 (single), 2 and 3 (pairs and single); probabilities from a small generator. */
static void make_table(struct moec_path_table *t)
{
    uint64_t state = 3;
    *t = (struct moec_path_table){
        .n_layer = N_LAYER, .n_expert = N_EXPERT, .top_k = TOP_K, .n_value = N_VALUE};
    t->keys = calloc(200, sizeof *t->keys);
    t->values = calloc((size_t)200 * N_VALUE, sizeof *t->values);
    t->frequency = calloc((size_t)N_LAYER * N_EXPERT, sizeof *t->frequency);
    for (uint16_t layer = 1; layer < N_LAYER; layer++)
        for (uint32_t first = layer > 1 ? 0 : N_EXPERT; first <= N_EXPERT; first++)
            for (uint16_t second = 0; second < N_EXPERT; second++) {
                if (random_u32(&state) % 3 == 0) /* not every key was seen */
                    continue;
                struct moec_path_value *values = &t->values[(size_t)t->n_key * N_VALUE];
                uint16_t start = (uint16_t)(random_u32(&state) % N_EXPERT);
                uint32_t n = 1 + random_u32(&state) % N_VALUE;
                for (uint32_t i = 0; i < N_VALUE; i++)
                    values[i] = i < n ? (struct moec_path_value){.expert = (uint16_t)((start + i) % N_EXPERT),
                                                                 .probability = (uint16_t)(50000 / (i + 1))}
                                      : (struct moec_path_value){.expert = MOEC_PATH_NONE};
                t->keys[t->n_key++] =
                    (struct moec_path_key){.layer = layer,
                                           .first = first == N_EXPERT ? MOEC_PATH_NONE : (uint16_t)first,
                                           .second = second,
                                           .count = random_u32(&state) % 99};
            }
    for (uint32_t i = 0; i < N_LAYER * N_EXPERT; i++)
        t->frequency[i] = (struct moec_path_value){.expert = (uint16_t)(N_EXPERT - 1 - i % N_EXPERT),
                                                   .probability = (uint16_t)(60000 - 100 * (i % N_EXPERT))};
}

/* ---- prediction ---- */

static const struct moec_path_value *naive_values(const struct moec_path_table *t, uint32_t layer,
                                                  uint32_t first, uint32_t second)
{
    for (uint32_t i = 0; i < t->n_key; i++)
        if (t->keys[i].layer == layer && t->keys[i].first == first && t->keys[i].second == second)
            return &t->values[(size_t)i * t->n_value];
    return NULL;
}

/* F64, straight from the definition. */
static void naive_predict(const struct moec_path_table *t, uint32_t layer, const uint16_t *before,
                          const float *before_weights, const uint16_t *last, const float *last_weights,
                          double *out)
{
    double total = 0;
    for (uint32_t e = 0; e < N_EXPERT; e++)
        out[e] = 0;
    for (uint32_t i = 0; i < (before != NULL ? TOP_K : 1); i++)
        for (uint32_t j = 0; j < TOP_K; j++) {
            double weight = (before != NULL ? (double)before_weights[i] : 1) * (double)last_weights[j];
            const struct moec_path_value *values =
                before != NULL ? naive_values(t, layer, before[i], last[j]) : NULL;
            uint32_t n = N_VALUE;
            if (values == NULL)
                values = naive_values(t, layer, MOEC_PATH_NONE, last[j]);
            if (values == NULL) {
                values = &t->frequency[layer * N_EXPERT];
                n = N_EXPERT;
            }
            for (uint32_t v = 0; v < n; v++)
                if (values[v].expert != MOEC_PATH_NONE)
                    out[values[v].expert] += weight * values[v].probability / 65535.0;
            total += weight;
        }
    for (uint32_t e = 0; e < N_EXPERT; e++)
        out[e] /= total;
}

static void test_path_table__predicts_as_defined(void **state)
{
    (void)state;
    struct moec_path_table t;
    uint64_t random = 8;
    make_table(&t);
    for (int round = 0; round < 500; round++) {
        uint32_t layer = 1 + random_u32(&random) % (N_LAYER - 1);
        uint16_t before[TOP_K], last[TOP_K];
        float before_weights[TOP_K], last_weights[TOP_K], out[N_EXPERT];
        double expected[N_EXPERT];
        for (int i = 0; i < TOP_K; i++) {
            before[i] = (uint16_t)(random_u32(&random) % N_EXPERT);
            last[i] = (uint16_t)(random_u32(&random) % N_EXPERT);
            before_weights[i] = fabsf(random_float(&random)) + 0.01f;
            last_weights[i] = fabsf(random_float(&random)) + 0.01f;
        }
        moec_path_table_predict(
            &t, layer,
            (struct moec_path_choices){layer > 1 ? before : NULL, layer > 1 ? before_weights : NULL},
            (struct moec_path_choices){last, last_weights}, out);
        naive_predict(&t, layer, layer > 1 ? before : NULL, before_weights, last, last_weights, expected);
        for (uint32_t e = 0; e < N_EXPERT; e++)
            assert_true(fabs((double)out[e] - expected[e]) < 1e-6);
    }
    moec_path_table_release(&t);
}

static void test_path_table__weights_of_zero_count_alike(void **state)
{
    (void)state;
    struct moec_path_table t;
    const uint16_t before[TOP_K] = {0, 1}, last[TOP_K] = {2, 3};
    const float zeros[TOP_K] = {0, 0}, ones[TOP_K] = {1, 1};
    float with_zeros[N_EXPERT], with_ones[N_EXPERT];
    make_table(&t);
    moec_path_table_predict(&t, 2, (struct moec_path_choices){before, zeros},
                            (struct moec_path_choices){last, zeros}, with_zeros);
    moec_path_table_predict(&t, 2, (struct moec_path_choices){before, ones},
                            (struct moec_path_choices){last, ones}, with_ones);
    assert_memory_equal(with_zeros, with_ones, sizeof with_ones);
    moec_path_table_release(&t);
}

/* ---- bytes ---- */

static void test_path_table__round_trip(void **state)
{
    (void)state;
    struct moec_path_table t, back = {0};
    struct moec_error err = {0};
    uint8_t *bytes = NULL;
    size_t n = 0;
    make_table(&t);
    assert_status(moec_path_table_encode(&t, &bytes, &n, &err), MOEC_OK, err);
    assert_status(moec_path_table_decode(bytes, n, &back, &err), MOEC_OK, err);
    assert_int_equal(back.n_key, t.n_key);
    assert_int_equal(back.n_value, N_VALUE);
    assert_memory_equal(back.keys, t.keys, t.n_key * sizeof *t.keys);
    assert_memory_equal(back.values, t.values, t.n_key * N_VALUE * sizeof *t.values);
    assert_memory_equal(back.frequency, t.frequency, N_LAYER * N_EXPERT * sizeof *t.frequency);
    moec_path_table_release(&back);
    for (size_t length = 0; length < n; length++) {
        err = (struct moec_error){0};
        uint8_t *cut = malloc(length + 1);
        memcpy(cut, bytes, length);
        assert_status(moec_path_table_decode(cut, length, &back, &err), MOEC_ERR_FORMAT, err);
        free(cut);
    }
    free(bytes);
    moec_path_table_release(&t);
}

/* Offsets of the columns in the encoded table. */
static size_t frequency_at(uint32_t index)
{
    return 24 + 2 * (size_t)index;
}

static size_t key_at(uint32_t column, uint32_t n_key, uint32_t index)
{
    return 24 + (size_t)4 * N_LAYER * N_EXPERT + (size_t)2 * column * n_key + (size_t)2 * index;
}

static size_t value_at(uint32_t n_key, uint32_t index)
{
    return 24 + (size_t)4 * N_LAYER * N_EXPERT + (size_t)10 * n_key + (size_t)2 * index;
}

static void test_path_table__hostile_bytes_are_refused(void **state)
{
    (void)state;
    struct moec_path_table t, back = {0};
    struct moec_error err = {0};
    uint8_t *bytes = NULL;
    size_t n = 0;
    make_table(&t);
    assert_status(moec_path_table_encode(&t, &bytes, &n, &err), MOEC_OK, err);
    uint32_t k = t.n_key;
    const struct {
        size_t offset;
        uint16_t value;
        const char *message;
    } cases[] = {
        {0, 0, "0 MoE layers"},
        {2, 1, "no model has these dimensions"}, /* 65540 layers */
        {4, 5000, "no model has these dimensions"},
        {8, 0, "top-k 0"},
        {12, 3, "3 predictions per key"},
        {18, 0xffff, "no model has these dimensions"}, /* keys */
        {20, 255, "(255 of them shallow)"},
        {16, 3, "bytes, expected"},
        {frequency_at(0), N_EXPERT, "frequency row 0"},
        {frequency_at(1), N_EXPERT - 1, "frequency row 0"},       /* twice */
        {frequency_at(N_LAYER * N_EXPERT), 1, "frequency row 0"}, /* not falling */
        {key_at(0, k, 0), 0, "damaged: key 0 has layer 0"},
        {key_at(0, k, 0), N_LAYER, "damaged: key 0 has layer 4"},
        {key_at(0, k, k - 1), 1, "out of order"},
        {key_at(1, k, 0), 0, "damaged: key 0"}, /* a pair in layer 1 */
        {key_at(2, k, 0), N_EXPERT, "damaged: key 0"},
        {value_at(k, 0), N_EXPERT, "of key 0"},
        {value_at(k, 0), MOEC_PATH_NONE, "of key 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t *changed = malloc(n);
        memcpy(changed, bytes, n);
        moec_put_u16(changed + cases[i].offset, cases[i].value);
        err = (struct moec_error){0};
        assert_status(moec_path_table_decode(changed, n, &back, &err), MOEC_ERR_FORMAT, err);
        assert_message(err, cases[i].message);
        free(changed);
    }
    free(bytes);
    moec_path_table_release(&t);
}

static void test_path_table__wrong_tables_are_not_written(void **state)
{
    (void)state;
    struct moec_path_table t;
    struct moec_error err = {0};
    uint8_t *bytes = NULL;
    size_t n = 0;
    make_table(&t);
    t.keys[1] = t.keys[0];
    assert_status(moec_path_table_encode(&t, &bytes, &n, &err), MOEC_ERR_FORMAT, err);
    assert_message(err, "out of order");
    moec_path_table_release(&t);
}

static void test_router_ranges__round_trip_and_damage(void **state)
{
    (void)state;
    static const float ranges[] = {0, 2.5f, 17};
    struct moec_error err = {0};
    uint8_t bytes[8 + 3 * 4], damaged[sizeof bytes];
    float *read = NULL;
    assert_int_equal(moec_router_ranges_bytes(3), sizeof bytes);
    moec_router_ranges_encode(ranges, 3, bytes);
    assert_status(moec_router_ranges_decode(bytes, sizeof bytes, 3, &read, &err), MOEC_OK, err);
    assert_memory_equal(read, ranges, sizeof ranges);
    free(read);
    read = NULL;
    for (size_t n = 0; n < sizeof bytes; n++)
        assert_status(moec_router_ranges_decode(bytes, n, 3, &read, &err), MOEC_ERR_FORMAT, err);
    err = (struct moec_error){0};
    assert_status(moec_router_ranges_decode(bytes, sizeof bytes, 2, &read, &err), MOEC_ERR_FORMAT, err);
    assert_message(err, "that state 2 MoE layers");
    static const float wrong[] = {-1, INFINITY, NAN};
    for (size_t i = 0; i < 3; i++) {
        err = (struct moec_error){0};
        moec_router_ranges_encode((const float[]){1, wrong[i], 1}, 3, damaged);
        assert_status(moec_router_ranges_decode(damaged, sizeof damaged, 3, &read, &err), MOEC_ERR_FORMAT,
                      err);
        assert_message(err, "of MoE layer 1");
    }
    memcpy(damaged, bytes, sizeof bytes);
    damaged[0] = 2;
    assert_status(moec_router_ranges_decode(damaged, sizeof damaged, 3, &read, &err), MOEC_ERR_UNSUPPORTED,
                  err);
    assert_null(read);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_path_table__predicts_as_defined),
        cmocka_unit_test(test_path_table__weights_of_zero_count_alike),
        cmocka_unit_test(test_path_table__round_trip),
        cmocka_unit_test(test_path_table__hostile_bytes_are_refused),
        cmocka_unit_test(test_path_table__wrong_tables_are_not_written),
        cmocka_unit_test(test_router_ranges__round_trip_and_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
