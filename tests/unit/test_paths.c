#include "formats/base/half.h"
#include "profiler/common/random.h"
#include "profiler/routing/paths.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A trace with room for its arrays. */
struct sample {
    struct moec_path_trace trace;
    uint16_t *experts, *weights;
};

static struct sample sample_make(uint32_t n_layer, uint32_t n_expert, uint32_t top_k, uint64_t n_token)
{
    const size_t n = n_token * n_layer * top_k;
    struct sample sample = {.experts = calloc(n, sizeof(uint16_t)), .weights = calloc(n, sizeof(uint16_t))};
    for (size_t i = 0; i < n; i++)
        sample.weights[i] = moec_f32_to_f16(0.5f);
    sample.trace = (struct moec_path_trace){.n_layer = n_layer,
                                            .n_expert = n_expert,
                                            .top_k = top_k,
                                            .n_token = n_token,
                                            .experts = sample.experts,
                                            .weights = sample.weights};
    return sample;
}

static void sample_release(struct sample *sample)
{
    free(sample->experts);
    free(sample->weights);
}

/* Random choices that lean on those of the layer before, each token's k distinct. */
static void sample_fill(struct sample *sample, uint64_t seed)
{
    const struct moec_path_trace *trace = &sample->trace;
    struct moec_random random = {seed};
    for (uint64_t t = 0; t < trace->n_token; t++) {
        for (uint32_t s = 0; s < trace->n_layer; s++) {
            uint16_t *chosen = sample->experts + (t * trace->n_layer + s) * trace->top_k;
            for (uint32_t r = 0; r < trace->top_k; r++) {
                bool taken = true;
                while (taken) {
                    uint64_t lean = s > 0 ? (chosen - trace->top_k)[r] + moec_random_below(&random, 2) : 0;
                    uint64_t any = moec_random_below(&random, trace->n_expert);
                    chosen[r] =
                        (uint16_t)(s > 0 && moec_random_below(&random, 4) > 0 ? lean % trace->n_expert : any);
                    taken = false;
                    for (uint32_t i = 0; i < r; i++)
                        taken = taken || chosen[i] == chosen[r];
                }
                sample->weights[(size_t)(chosen - sample->experts) + r] =
                    moec_f32_to_f16((float)(1 + moec_random_below(&random, 8)) / 8);
            }
        }
    }
}

static bool chose(const struct moec_path_trace *trace, uint64_t token, uint32_t layer, uint32_t expert)
{
    for (uint32_t r = 0; r < trace->top_k; r++) {
        if (trace->experts[(token * trace->n_layer + layer) * trace->top_k + r] == expert)
            return true;
    }
    return false;
}

/* Every possible key, counted the slow way. */
static void test_paths__table_equals_counting(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct sample sample = sample_make(4, 6, 2, 300);
    sample_fill(&sample, 11);
    uint8_t used[300];
    for (size_t t = 0; t < 300; t++)
        used[t] = t % 3 != 0;
    struct moec_path_table table;
    assert_int_equal(moec_paths_build(&sample.trace, used, &table, &err), MOEC_OK);
    assert_int_equal(table.n_value, 4);
    uint32_t next = 0;
    for (uint32_t layer = 1; layer < 4; layer++) {
        for (uint32_t first = 0; first <= 6; first++) { /* 6 stands for "any" */
            for (uint32_t second = 0; second < 6; second++) {
                uint32_t count = 0, together[6] = {0};
                for (uint64_t t = 0; t < 300; t++) {
                    bool has = used[t] && chose(&sample.trace, t, layer - 1, second) &&
                               (first == 6 || (layer >= 2 && chose(&sample.trace, t, layer - 2, first)));
                    count += has;
                    for (uint32_t e = 0; has && e < 6; e++)
                        together[e] += chose(&sample.trace, t, layer, e);
                }
                if (count == 0)
                    continue;
                const struct moec_path_key *key = &table.keys[next];
                assert_int_equal(key->layer, layer);
                assert_int_equal(key->first, first == 6 ? MOEC_PATH_NONE : first);
                assert_int_equal(key->second, second);
                assert_int_equal(key->count, count);
                uint32_t least = 65535, n_listed = 0;
                for (uint32_t i = 0; i < 4; i++) {
                    const struct moec_path_value *value = &table.values[next * 4 + i];
                    if (value->expert == MOEC_PATH_NONE)
                        continue;
                    assert_int_equal(value->probability,
                                     (uint32_t)lround(65535.0 * together[value->expert] / count));
                    assert_true(value->probability <= least && together[value->expert] > 0);
                    least = value->probability;
                    together[value->expert] = 0;
                    n_listed++;
                }
                for (uint32_t e = 0; e < 6; e++)
                    assert_true(together[e] == 0 ||
                                (n_listed == 4 && lround(65535.0 * together[e] / count) <= (long)least));
                next++;
            }
        }
    }
    assert_int_equal(table.n_key, next);
    /* What was built is a table that a bundle can hold. */
    uint8_t *bytes = NULL;
    size_t n_bytes = 0;
    if (moec_path_table_encode(&table, &bytes, &n_bytes, &err) != MOEC_OK)
        fail_msg("%s", err.message);
    free(bytes);
    moec_path_table_release(&table);
    sample_release(&sample);
}

/* Choices that follow strictly from the layer before are always found, and frequency finds a half. */
static void test_paths__recall_of_a_certain_path(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct sample sample = sample_make(3, 8, 1, 800);
    for (uint64_t t = 0; t < 800; t++) {
        for (uint32_t s = 0; s < 3; s++)
            sample.experts[t * 3 + s] = (uint16_t)((t * 5 + s * 3) % 8);
    }
    struct moec_path_table table;
    uint64_t hits[3 * 8], frequency_hits[3 * 8];
    struct moec_path_hits found = {hits, frequency_hits, 0};
    double recall[9], frequency[9];
    assert_int_equal(moec_paths_build(&sample.trace, NULL, &table, &err), MOEC_OK);
    assert_int_equal(moec_paths_hits(&table, &sample.trace, NULL, &found, &err), MOEC_OK);
    assert_int_equal(found.n_used, 800);
    moec_paths_recall(hits, 3, 8, 1, found.n_used, recall);
    moec_paths_recall(frequency_hits, 3, 8, 1, found.n_used, frequency);
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(frequency_hits[16 + i], 100);
        assert_int_equal(hits[16 + i], i == 0 ? 800 : 0);
    }
    for (uint32_t s = 0; s < 3; s++) {
        assert_true(fabs(frequency[s * 3] - 1.0 / 8) < 1e-12 && fabs(frequency[s * 3 + 1] - 2.0 / 8) < 1e-12);
        for (uint32_t i = 0; i < 3; i++)
            assert_true(fabs(recall[s * 3 + i] - (s > 0 ? 1.0 : frequency[i])) < 1e-12);
    }
    moec_path_table_release(&table);
    sample_release(&sample);
}

/* Recall by the definition: predict, sort all experts, count. */
static void test_paths__recall_equals_definition(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct sample sample = sample_make(3, 7, 3, 200);
    sample_fill(&sample, 4);
    uint8_t odd[200];
    for (size_t t = 0; t < 200; t++)
        odd[t] = t & 1;
    struct moec_path_table table;
    uint64_t hits[3 * 8], frequency_hits[3 * 8];
    struct moec_path_hits counted = {hits, frequency_hits, 0};
    double recall[9], frequency[9];
    assert_int_equal(moec_paths_build(&sample.trace, NULL, &table, &err), MOEC_OK);
    assert_int_equal(table.n_value, 6);
    assert_int_equal(moec_paths_hits(&table, &sample.trace, odd, &counted, &err), MOEC_OK);
    assert_int_equal(counted.n_used, 100);
    moec_paths_recall(hits, 3, 7, 3, 3 * counted.n_used, recall);
    moec_paths_recall(frequency_hits, 3, 7, 3, 3 * counted.n_used, frequency);
    static const uint32_t sizes[3] = {3, 4, 6};
    for (uint32_t s = 1; s < 3; s++) {
        double found[3] = {0, 0, 0};
        for (uint64_t t = 1; t < 200; t += 2) {
            float weights[2][3], p[7];
            const uint16_t *last = sample.experts + (t * 3 + s - 1) * 3, *before = last - 3;
            for (uint32_t r = 0; r < 3; r++) {
                weights[0][r] = moec_f16_to_f32(sample.weights[(t * 3 + s - 1) * 3 + r]);
                weights[1][r] = s > 1 ? moec_f16_to_f32(sample.weights[(t * 3 + s - 2) * 3 + r]) : 0;
            }
            moec_path_table_predict(&table, s, (struct moec_path_choices){s > 1 ? before : NULL, weights[1]},
                                    (struct moec_path_choices){last, weights[0]}, p);
            for (uint32_t e = 0; e < 7; e++) {
                uint32_t better = 0;
                for (uint32_t o = 0; o < 7; o++)
                    better += p[o] > p[e] || (p[o] == p[e] && o < e);
                for (uint32_t i = 0; i < 3; i++)
                    found[i] += better < sizes[i] && chose(&sample.trace, t, s, e);
            }
        }
        for (uint32_t i = 0; i < 3; i++)
            assert_true(fabs(recall[s * 3 + i] - found[i] / 300) < 1e-12);
        assert_true(recall[s * 3] > frequency[s * 3]);
    }
    moec_path_table_release(&table);
    sample_release(&sample);
}

static void test_paths__prune_keeps_the_seen_most(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct sample sample = sample_make(4, 8, 2, 400);
    sample_fill(&sample, 8);
    struct moec_path_table table, pruned;
    uint8_t *bytes = NULL;
    size_t n_bytes = 0;
    assert_int_equal(moec_paths_build(&sample.trace, NULL, &table, &err), MOEC_OK);
    assert_int_equal(moec_path_table_encode(&table, &bytes, &n_bytes, &err), MOEC_OK);
    free(bytes);
    assert_int_equal(moec_paths_prune(&table, n_bytes, &pruned, &err), MOEC_OK);
    assert_int_equal(pruned.n_key, table.n_key);
    assert_memory_equal(pruned.keys, table.keys, table.n_key * sizeof *table.keys);
    moec_path_table_release(&pruned);

    const uint64_t half = n_bytes / 2;
    assert_int_equal(moec_paths_prune(&table, half, &pruned, &err), MOEC_OK);
    assert_int_equal(moec_path_table_encode(&pruned, &bytes, &n_bytes, &err), MOEC_OK);
    free(bytes);
    assert_true(n_bytes <= half && n_bytes + 64 > half);
    uint32_t next = 0, least_kept = UINT32_MAX, most_dropped = 0;
    for (uint32_t i = 0; i < table.n_key; i++) {
        const bool kept =
            next < pruned.n_key && memcmp(&table.keys[i], &pruned.keys[next], sizeof *table.keys) == 0;
        if (kept)
            assert_memory_equal(table.values + (size_t)i * table.n_value,
                                pruned.values + (size_t)next * table.n_value,
                                table.n_value * sizeof *table.values);
        next += kept;
        assert_true(kept || table.keys[i].first != MOEC_PATH_NONE);
        if (table.keys[i].first == MOEC_PATH_NONE)
            continue;
        if (kept && table.keys[i].count < least_kept)
            least_kept = table.keys[i].count;
        if (!kept && table.keys[i].count > most_dropped)
            most_dropped = table.keys[i].count;
    }
    assert_int_equal(next, pruned.n_key);
    assert_true(most_dropped > 0 && most_dropped <= least_kept);
    moec_path_table_release(&pruned);
    assert_int_equal(moec_paths_prune(&table, 10, &pruned, &err), MOEC_ERR_LIMIT);
    moec_path_table_release(&table);
    sample_release(&sample);
}

/* Layers 0 and 1 are one stack's, read by the even tokens, 2 to 4 another's. */
static void test_paths__stacks_follow_each_other(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct sample sample = sample_make(5, 6, 1, 200);
    sample_fill(&sample, 11);
    struct moec_path_trace stacks[2] = {sample.trace, sample.trace};
    struct moec_path_table joined, table[2];
    uint8_t used[2][200];
    uint64_t hits[3 * 6], frequency_hits[3 * 6];
    struct moec_path_hits found = {hits, frequency_hits, 0};
    stacks[0].n_layer = 2;
    stacks[1].n_layer = 3;
    stacks[1].first_layer = 2;
    stacks[0].row_layers = stacks[1].row_layers = 5;
    for (uint64_t t = 0; t < 200; t++) {
        used[0][t] = t % 2 == 0;
        used[1][t] = t % 2 == 1;
    }
    /* An expert that was full for some tokens. */
    for (uint64_t t = 0; t < 20; t++)
        sample.experts[t * 5 + 3] = MOEC_PATH_NONE;
    assert_int_equal(moec_paths_build(&stacks[0], used[0], &joined, &err), MOEC_OK);
    assert_int_equal(moec_paths_build(&stacks[0], used[0], &table[0], &err), MOEC_OK);
    assert_int_equal(moec_paths_build(&stacks[1], used[1], &table[1], &err), MOEC_OK);
    assert_int_equal(moec_paths_append(&table[1], &joined, &err), MOEC_OK);
    assert_int_equal(joined.n_layer, 5);
    assert_int_equal(joined.n_key, table[0].n_key + table[1].n_key);
    assert_int_equal(moec_path_table_check(&joined, &err), MOEC_OK);
    for (uint32_t i = 0; i < joined.n_key; i++) {
        const struct moec_path_key *key = &joined.keys[i];
        assert_true(key->layer != 2); /* nothing comes before a stack's first layer */
        assert_true(key->layer == 4 || key->first == MOEC_PATH_NONE);
    }
    const float one = 1;
    const uint16_t last = 3;
    float alone[6], both[6];
    moec_path_table_predict(&table[1], 1, (struct moec_path_choices){0},
                            (struct moec_path_choices){&last, &one}, alone);
    moec_path_table_predict(&joined, 3, (struct moec_path_choices){0},
                            (struct moec_path_choices){&last, &one}, both);
    assert_memory_equal(alone, both, sizeof both);

    assert_int_equal(moec_paths_hits(&table[1], &stacks[1], used[1], &found, &err), MOEC_OK);
    assert_int_equal(found.n_used, 100);
    for (uint32_t s = 0; s < 3; s++) {
        uint64_t sum = 0;
        for (uint32_t e = 0; e < 6; e++)
            sum += hits[s * 6 + e];
        assert_int_equal(sum, s == 1 ? 90 : 100);
    }
    moec_path_table_release(&table[0]);
    moec_path_table_release(&table[1]);
    moec_path_table_release(&joined);
    sample_release(&sample);
}

static void test_paths__popularity(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct sample sample = sample_make(3, 4, 2, 10);
    /* Rank-1 experts: (0,1,2) six times, (0,1,3) three times, (1,1,2) once; rank 2 must not matter. */
    for (uint64_t t = 0; t < 10; t++) {
        uint16_t *row = sample.experts + t * 6;
        row[0] = t == 9;
        row[2] = 1;
        row[4] = t >= 6 && t < 9 ? 3 : 2;
        row[1] = (uint16_t)(2 + t % 2);
    }
    double shares[10];
    uint64_t n_path = 0;
    assert_int_equal(
        moec_paths_popularity(&sample.trace, NULL, (struct moec_moe_range){0, 3}, shares, &n_path, &err),
        MOEC_OK);
    assert_int_equal(n_path, 3);
    assert_true(shares[0] == 0.6 && shares[1] == 0.3 && shares[2] == 0.1);
    assert_int_equal(
        moec_paths_popularity(&sample.trace, NULL, (struct moec_moe_range){1, 2}, shares, &n_path, &err),
        MOEC_OK);
    assert_int_equal(n_path, 2);
    assert_true(shares[0] == 0.7 && shares[1] == 0.3);
    assert_int_equal(
        moec_paths_popularity(&sample.trace, NULL, (struct moec_moe_range){1, 3}, shares, &n_path, &err),
        MOEC_ERR_USAGE);
    sample.experts[3] = 4;
    err = (struct moec_error){0};
    assert_int_equal(
        moec_paths_popularity(&sample.trace, NULL, (struct moec_moe_range){0, 1}, shares, &n_path, &err),
        MOEC_ERR_USAGE);
    assert_non_null(strstr(err.message, "expert 4"));
    sample_release(&sample);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paths__table_equals_counting),
        cmocka_unit_test(test_paths__recall_of_a_certain_path),
        cmocka_unit_test(test_paths__recall_equals_definition),
        cmocka_unit_test(test_paths__prune_keeps_the_seen_most),
        cmocka_unit_test(test_paths__stacks_follow_each_other),
        cmocka_unit_test(test_paths__popularity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
