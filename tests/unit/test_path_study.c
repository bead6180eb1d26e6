/* Studies of paths on traces made by hand, whose answers can be counted. */
#include "formats/base/half.h"
#include "profiler/routing/path_study.h"
#include "tests/unit/synthetic_profile.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define assert_near(a, b) assert_true(fabs((a) - (b)) <= 1e-12)

static const struct synthetic_shape shape = {
    .n_moe_layer = 4, .n_expert = 4, .top_k = 1, .n_window = 4, .seq_len_tokens = 10, .n_bits = 1};

/* Windows of 10, 9, 10, 9 tokens; which(token of the window, layer) chooses, for every window alike. */
static void profile_make(struct moec_profile *profile, uint32_t (*which)(uint32_t token, uint32_t layer))
{
    assert_int_equal(synthetic_profile(&shape, profile), MOEC_OK);
    moec_path_table_release(&profile->paths);
    memset(profile->activations, 0, sizeof *profile->activations * 16);
    uint64_t row = 0;
    for (uint32_t w = 0; w < shape.n_window; w++) {
        for (uint32_t t = 0; t < profile->window_length[w]; t++, row++) {
            for (uint32_t s = 0; s < 4; s++) {
                const uint32_t expert = which(t, s);
                profile->trace_experts[row * 4 + s] = (uint16_t)expert;
                profile->trace_weights[row * 4 + s] = moec_f32_to_f16(1);
                profile->activations[s * 4 + expert]++;
            }
        }
    }
}

static const struct moec_study *find(const struct moec_profile *profile, const char *name)
{
    const struct moec_study *study = moec_studies_find(&profile->studies, name);
    assert_non_null(study);
    return study;
}

/* Path 0000 for tokens 0 to 4 of a window, 1231 for 5 and 6, 2312 for 7 and 8, 3123 for the last of ten. */
static uint32_t four_paths(uint32_t token, uint32_t layer)
{
    static const uint32_t paths[4][4] = {{0, 0, 0, 0}, {1, 2, 3, 1}, {2, 3, 1, 2}, {3, 1, 2, 3}};
    return paths[token < 5 ? 0 : token < 7 ? 1 : token < 9 ? 2 : 3][layer];
}

static void test_path_study__counts_paths(void **state)
{
    (void)state;
    static const double gate[12] = {NAN, NAN, NAN, 0.25, 0.5, 0.75, 0.25, 0.5, 0.75, 0.25, 0.5, 0.75};
    struct moec_profile profile;
    struct moec_error err = {0};
    profile_make(&profile, four_paths);
    assert_int_equal(moec_path_study_run(&profile, gate, NULL, &err), MOEC_OK);

    /* 38 tokens: 20, 8, 8 and 2 on the four paths. */
    const struct moec_study *full = find(&profile, "paths/full");
    assert_int_equal(full->axes[0].n, 3);
    assert_true(full->axes[0].values[0] == 1 && full->axes[0].values[1] == 2 && full->axes[0].values[2] == 4);
    assert_near(full->values[0], 20.0 / 38);
    assert_near(full->values[1], 28.0 / 38);
    assert_true(full->values[2] == 1);
    const struct moec_study *fraction = find(&profile, "paths/full_fraction");
    for (uint64_t i = 0; i < fraction->axes[0].n; i++) {
        const double part = fraction->axes[0].values[i];
        assert_near(fraction->values[i], part <= 0.25 ? 20.0 / 38 : part == 0.5 ? 28.0 / 38 : 1);
    }
    const struct moec_study *three = find(&profile, "paths/three");
    assert_int_equal(three->axes[0].n, 4);
    assert_int_equal(three->axes[1].n, 3);
    for (uint32_t s = 0; s < 4; s++) {
        assert_true(s < 2 ? fabs(three->values[s * 3] - 20.0 / 38) < 1e-12 : isnan(three->values[s * 3]));
        assert_true(s < 2 ? three->values[s * 3 + 2] == 1 : isnan(three->values[s * 3 + 2]));
    }
    const double p[] = {20.0 / 38, 8.0 / 38, 8.0 / 38, 2.0 / 38};
    double entropy = 0;
    for (size_t i = 0; i < 4; i++)
        entropy -= p[i] * log(p[i]) / log(4);
    for (uint32_t s = 0; s < 4; s++)
        assert_near(find(&profile, "routing/entropy")->values[s], entropy);

    /* The first expert says which path it is: paths predict for certain, frequency in the order of load. Odd
     * windows have 9 tokens each: 5, 2 and 2. Experts of equal load go by index. */
    const struct moec_study *path = find(&profile, "conditional/path");
    const struct moec_study *load = find(&profile, "conditional/frequency");
    const struct moec_study *recall = find(&profile, "predict/recall");
    assert_string_equal(recall->axes[1].labels[2], "next-layer gate");
    for (uint32_t s = 0; s < 4; s++) {
        assert_near(path->values[s * 4], s > 0 ? 1 : 5.0 / 9);
        assert_near(load->values[s * 4], 5.0 / 9);
        assert_near(load->values[s * 4 + 1], 2.0 / 9);
        assert_near(load->values[s * 4 + 2], 2.0 / 9);
        assert_near(load->values[s * 4 + 3], 0);
        const double *row = recall->values + s * 9;
        assert_near(row[0], s > 0 ? 1 : 5.0 / 9);
        assert_near(row[3], 5.0 / 9);
        assert_near(row[4], 7.0 / 9);
        assert_near(row[5], 7.0 / 9);
        assert_true(s > 0 ? row[6] == 0.25 && row[8] == 0.75 : isnan(row[6]));
        assert_near(profile.path_recall[s * 3], row[0]);
        assert_near(profile.frequency_recall[s * 3 + 2], row[5]);
    }
    /* Up to the first layer that is foreseen as well as a layer is on average. */
    static const struct {
        double gate[3];
        uint32_t n;
    } shallow[] = {{{0.25, 0.25, 0.25}, 1}, {{0.2, 0.8, 0.8}, 2}, {{0.2, 0.3, 0.8}, 3}, {{0.8, 0.2, 0.3}, 1}};
    for (size_t i = 0; i < sizeof shallow / sizeof *shallow; i++) {
        for (uint32_t s = 1; s < 4; s++)
            recall->values[s * 9 + 6] = shallow[i].gate[s - 1];
        assert_int_equal(moec_path_study_shallow_layers(&profile), shallow[i].n);
    }
    recall->values[9 + 6] = NAN;
    assert_int_equal(moec_path_study_shallow_layers(&profile), 0);
    for (uint32_t s = 1; s < 4; s++)
        recall->values[s * 9 + 6] = 0.25;
    assert_int_equal(moec_profile_check(&profile, "p", &err), MOEC_OK);
    moec_profile_release(&profile);
}

/* Gates that are sure, right in layer 1 and wrong in layer 2, and that say nothing in layer 3, where the
 * paths speak. */
static void test_path_study__path_and_gate_together(void **state)
{
    (void)state;
    static const double gate[12] = {0};
    static double tokens[4 * MOEC_PATH_GATE_TOKENS], probabilities[16 * MOEC_PATH_GATE_TOKENS];
    const struct moec_path_gate_kept kept = {tokens, probabilities};
    struct moec_profile profile;
    struct moec_error err = {0};
    profile_make(&profile, four_paths);
    for (size_t i = 0; i < 4 * MOEC_PATH_GATE_TOKENS; i++)
        tokens[i] = NAN;
    for (uint32_t s = 1; s < 4; s++)
        for (uint32_t place = 0; place < 9; place++) { /* of the second window, which certifies */
            const size_t at = s * MOEC_PATH_GATE_TOKENS + place;
            const uint32_t chosen = four_paths(place, s);
            tokens[at] = 10 + place;
            for (uint32_t e = 0; e < 4; e++)
                probabilities[at * 4 + e] = s == 3 ? 0.25 : s == 1 ? e == chosen : e == (chosen + 1) % 4;
        }
    assert_int_equal(moec_path_study_run(&profile, gate, &kept, &err), MOEC_OK);
    const struct moec_study *study = find(&profile, "predict/path_gate");
    assert_true(isnan(study->values[0]));
    assert_true(study->values[4] == 1);
    assert_true(study->values[8] < 0.5 && study->values[11] == 1);
    assert_true(study->values[12] == 1);
    moec_profile_release(&profile);
    tokens[MOEC_PATH_GATE_TOKENS] = 38;
    profile_make(&profile, four_paths);
    assert_int_equal(moec_path_study_run(&profile, gate, &kept, &err), MOEC_ERR_FORMAT);
    moec_profile_release(&profile);
}

static uint32_t always_two(uint32_t token, uint32_t layer)
{
    (void)token;
    (void)layer;
    return 2;
}

static void test_path_study__one_path(void **state)
{
    (void)state;
    static const double gate[12] = {0};
    struct moec_profile profile;
    struct moec_error err = {0};
    profile_make(&profile, always_two);
    assert_int_equal(moec_path_study_run(&profile, gate, NULL, &err), MOEC_OK);
    const struct moec_study *full = find(&profile, "paths/full"), *three = find(&profile, "paths/three");
    assert_int_equal(full->axes[0].n, 1);
    assert_true(full->values[0] == 1);
    assert_int_equal(three->axes[1].n, 1);
    assert_true(three->values[0] == 1);
    assert_true(find(&profile, "routing/entropy")->values[3] == 0);
    assert_true(find(&profile, "conditional/frequency")->values[0] == 1);
    moec_profile_release(&profile);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_path_study__counts_paths),
        cmocka_unit_test(test_path_study__path_and_gate_together),
        cmocka_unit_test(test_path_study__one_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
