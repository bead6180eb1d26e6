/* Studies in memory: what is added is found by name, what is malformed is refused with nothing changed. */
#include "tests/unit/synthetic_profile.h"
#include "tests/unit/temporary.h"

static struct moec_study study_of(const char *name)
{
    struct moec_study study = {.description = "a study", .units = "1"};
    (void)snprintf(study.name, sizeof study.name, "%s", name);
    return study;
}

static void test_study__are_kept_by_name(void **state)
{
    (void)state;
    static const char *const names[] = {"b/x", "a_b/x", "a/x", "a/x_1", "a1/x", "c/x"};
    static const char *const sorted[] = {"a/x", "a/x_1", "a1/x", "a_b/x", "b/x", "c/x"};
    struct moec_studies studies = {0};
    struct moec_error err = {0};
    for (size_t i = 0; i < 6; i++) {
        double values[2] = {(double)i, 7};
        struct moec_study study = study_of(names[i]), *added = NULL;
        study.n_axis = 1;
        study.axes[0] = (struct moec_study_axis){.name = "side", .n = 2};
        study.values = values;
        assert_int_equal(moec_studies_add(&studies, &study, &added, &err), MOEC_OK);
        assert_string_equal(added->name, names[i]);
        assert_string_equal(added->units, "");
        assert_ptr_not_equal(added->values, values);
    }
    assert_int_equal(studies.n, 6);
    for (size_t i = 0; i < 6; i++) {
        assert_string_equal(studies.items[i].name, sorted[i]);
        const struct moec_study *found = moec_studies_find(&studies, names[i]);
        assert_non_null(found);
        assert_true(found->values[0] == (double)i && found->values[1] == 7);
        assert_int_equal(moec_study_count(found), 2);
    }
    assert_null(moec_studies_find(&studies, "a/y"));
    assert_null(moec_studies_find(&studies, ""));
    struct moec_study again = study_of("a/x");
    assert_int_equal(moec_studies_add(&studies, &again, NULL, &err), MOEC_OK);
    assert_int_equal(studies.n, 6);
    assert_int_equal(moec_studies_find(&studies, "a/x")->n_axis, 0);
    assert_true(moec_studies_find(&studies, "a/x")->values[0] == 0);
    assert_int_equal(moec_studies_check(&studies, "s", &err), MOEC_OK);
    moec_studies_release(&studies);
    assert_null(studies.items);
}

static void expect_refused(const struct moec_study *study, const char *part)
{
    struct moec_studies studies = {0};
    struct moec_error err = {0};
    assert_int_equal(moec_studies_add(&studies, study, NULL, &err), MOEC_ERR_USAGE);
    if (strstr(err.message, part) == NULL)
        fail_msg("'%s' not in '%s'", part, err.message);
    assert_int_equal(studies.n, 0);
    assert_null(studies.items);
}

static void test_study__malformed_ones_are_refused(void **state)
{
    (void)state;
    static const char *const names[] = {"", "a", "a/", "/a", "a/b/c", "A/b", "a/b.c", "a-b/c", "a b/c"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct moec_study study = study_of(names[i]);
        expect_refused(&study, "expected 'group/name'");
        assert_false(moec_study_name_is_valid(names[i]));
    }
    double two[2] = {1, 2};
    char labels[2][MOEC_STUDY_LABEL] = {"gate", "up"};
    struct moec_study good = study_of("a/b");
    good.n_axis = 2;
    good.axes[0] = (struct moec_study_axis){.name = "side", .n = 2, .values = two, .labels = labels};
    good.axes[1] = (struct moec_study_axis){.name = "other", .n = 1};
#define EXPECT_REFUSED(change, part)                                                                         \
    do {                                                                                                     \
        struct moec_study study = good;                                                                      \
        change;                                                                                              \
        expect_refused(&study, (part));                                                                      \
    } while (0)
    EXPECT_REFUSED(study.n_axis = 5, "5 axes, expected at most 4");
    EXPECT_REFUSED(study.axes[0].n = 0, "has length 0");
    EXPECT_REFUSED(study.axes[0].n = 1025, "has length 1025, expected 1 to 1024");
    EXPECT_REFUSED(study.axes[1].n = (uint64_t)1 << 33, "has length 8589934592");
    EXPECT_REFUSED(study.axes[1].n = (uint64_t)1 << 32, "more than 4294967296 values");
    EXPECT_REFUSED(memcpy(study.axes[1].name, "side", 5), "two axes called 'side'");
    EXPECT_REFUSED(memcpy(study.axes[1].name, "a,b", 4), "is called 'a,b'");
    EXPECT_REFUSED(study.axes[1].name[0] = '\0', "axis 1 of study 'a/b' is called ''");
    EXPECT_REFUSED(memset(study.axes[1].units, 'x', 24), "the units of an axis");
    EXPECT_REFUSED(memset(study.description, 'x', sizeof study.description), "the description of a study");
    EXPECT_REFUSED(study.source[0] = '\n', "the source of a study holds the control character 0x0a");
    two[1] = NAN;
    EXPECT_REFUSED((void)0, "value 1 of axis 'side' of study 'a/b' is");
    two[1] = 2;
    memset(labels[1], 'x', sizeof labels[1]);
    EXPECT_REFUSED((void)0, "a label");
    labels[1][3] = '\0';
    double values[2] = {NAN, INFINITY};
    EXPECT_REFUSED(study.values = values, "value 1 of study 'a/b' is infinite");

    struct moec_studies studies = {0};
    struct moec_error err = {0};
    values[1] = 3;
    good.values = values;
    assert_int_equal(moec_studies_add(&studies, &good, NULL, &err), MOEC_OK);
    studies.items[0].values[1] = -INFINITY;
    assert_int_equal(moec_studies_check(&studies, "profile 'p'", &err), MOEC_ERR_FORMAT);
    assert_non_null(strstr(err.message, "profile 'p': value 1 of study 'a/b' is infinite"));
    moec_studies_release(&studies);
}

static void test_study__their_number_is_limited(void **state)
{
    (void)state;
    struct moec_studies studies = {0};
    struct moec_error err = {0};
    char name[64];
    for (uint32_t i = 0; i < MOEC_STUDY_MAX_COUNT; i++) {
        (void)snprintf(name, sizeof name, "a/b%u", (unsigned)i);
        const struct moec_study study = study_of(name);
        assert_int_equal(moec_studies_add(&studies, &study, NULL, &err), MOEC_OK);
    }
    const struct moec_study more = study_of("a/c"), again = study_of("a/b9");
    assert_int_equal(moec_studies_add(&studies, &again, NULL, &err), MOEC_OK);
    assert_int_equal(moec_studies_add(&studies, &more, NULL, &err), MOEC_ERR_LIMIT);
    assert_int_equal(studies.n, MOEC_STUDY_MAX_COUNT);
    moec_studies_release(&studies);
}

/* Axes that every profile has are filled in, others and axes of another length are left alone. */
static void test_study__take_axes_of_the_profile(void **state)
{
    (void)state;
    const struct synthetic_shape shape = {.n_dense = 2,
                                          .n_moe_layer = 3,
                                          .n_expert = 4,
                                          .top_k = 2,
                                          .n_window = 2,
                                          .seq_len_tokens = 4,
                                          .n_bits = 3,
                                          .n_uniform = 2};
    struct moec_profile profile;
    struct moec_error err = {0};
    struct moec_study study = study_of("a/b"), *added = NULL;
    double bits[3] = {2, 4, 8};
    assert_int_equal(synthetic_profile(&shape, &profile), MOEC_OK);
    study.n_axis = 4;
    study.axes[0] = (struct moec_study_axis){.name = "moe_layer", .n = 3};
    study.axes[1] = (struct moec_study_axis){.name = "bits", .n = 3, .values = bits, .units = "bit"};
    study.axes[2] = (struct moec_study_axis){.name = "cut", .n = 3};
    study.axes[3] = (struct moec_study_axis){.name = "expert", .n = 2};
    assert_int_equal(moec_profile_add_study(&profile, &study, &added, &err), MOEC_OK);
    for (uint32_t i = 0; i < 3; i++)
        assert_true(moec_study_axis_value(&added->axes[0], i) == 2 + i);
    assert_string_equal(added->axes[0].units, "layer");
    assert_true(added->axes[1].values[1] == 4);
    assert_true(added->axes[2].values[0] == 2 && added->axes[2].values[1] == 3 &&
                added->axes[2].values[2] == 4);
    assert_null(added->axes[3].values);
    assert_string_equal(added->axes[3].units, "");
    moec_profile_release(&profile);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_study__are_kept_by_name),
        cmocka_unit_test(test_study__malformed_ones_are_refused),
        cmocka_unit_test(test_study__their_number_is_limited),
        cmocka_unit_test(test_study__take_axes_of_the_profile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
