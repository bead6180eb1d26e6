/* Profiles as HDF5 files: what is written is read back, by others' tools too; damage is named, never
 * followed. */
#include "formats/base/bytes.h"
#include "formats/base/compress.h"
#include "formats/base/file.h"
#include "formats/profile/h5.h"
#include "formats/profile/profile_h5.h"
#include "tests/unit/synthetic_profile.h"
#include "tests/unit/temporary.h"

#include <time.h>

/* cmocka's own comparison is of F32. */
#define assert_near(a, b, slack) assert_true(fabs((a) - (b)) <= (slack))

static const struct synthetic_shape small = {.n_dense = 1,
                                             .n_moe_layer = 3,
                                             .n_expert = 8,
                                             .top_k = 2,
                                             .n_window = 6,
                                             .seq_len_tokens = 16,
                                             .n_bits = 2,
                                             .n_uniform = 4,
                                             .every_unreached = 7,
                                             .n_key = 5,
                                             .has_studies = true};

struct place {
    char *folder;
    char *file;
};

static int place_make(void **state)
{
    struct place *place = calloc(1, sizeof *place);
    if (place == NULL)
        return -1;
    place->folder = temporary_folder();
    place->file = temporary_path(place->folder, "profile.h5");
    *state = place;
    return 0;
}

static int place_remove(void **state)
{
    struct place *place = *state;
    free(place->file);
    temporary_remove(place->folder);
    free(place);
    return 0;
}

static void encode(const struct synthetic_shape *shape, uint8_t **bytes, size_t *n_bytes)
{
    struct moec_profile profile;
    struct moec_error err = {0};
    assert_int_equal(synthetic_profile(shape, &profile), MOEC_OK);
    if (moec_profile_encode(&profile, bytes, n_bytes, &err) != MOEC_OK)
        fail_msg("%s", err.message);
    moec_profile_release(&profile);
}

static void rehash(uint8_t *bytes, size_t n_bytes)
{
    moec_sha256(bytes + MOEC_PROFILE_USER_BLOCK_BYTES, n_bytes - MOEC_PROFILE_USER_BLOCK_BYTES, bytes + 32);
}

#define ASSERT_ARRAY(a, b, n) assert_memory_equal((a), (b), (size_t)(n) * sizeof *(a))

static void assert_studies_equal(const struct moec_studies *a, const struct moec_studies *b)
{
    assert_int_equal(a->n, b->n);
    for (uint32_t i = 0; i < a->n; i++) {
        const struct moec_study *x = &a->items[i], *y = &b->items[i];
        assert_string_equal(x->name, y->name);
        assert_string_equal(x->units, y->units);
        assert_string_equal(x->description, y->description);
        assert_string_equal(x->source, y->source);
        assert_int_equal(x->n_axis, y->n_axis);
        for (uint32_t j = 0; j < x->n_axis; j++) {
            const struct moec_study_axis *left = &x->axes[j], *right = &y->axes[j];
            assert_string_equal(left->name, right->name);
            assert_string_equal(left->units, right->units);
            assert_int_equal(left->n, right->n);
            for (uint64_t v = 0; v < left->n; v++)
                assert_true(moec_study_axis_value(left, v) == moec_study_axis_value(right, v));
            assert_true((left->labels == NULL) == (right->labels == NULL));
            if (left->labels != NULL)
                ASSERT_ARRAY(left->labels, right->labels, left->n);
        }
        ASSERT_ARRAY(x->values, y->values, moec_study_count(x));
    }
}

static void assert_profiles_equal(const struct moec_profile *a, const struct moec_profile *b)
{
    uint64_t experts = (uint64_t)a->n_moe_layer * a->n_expert;
    uint64_t losses = experts * a->n_bits * a->n_sensitivity_window;
    uint64_t choices = a->n_trace_token * a->n_moe_layer * a->top_k;
    /* Everything before the first pointer: provenance, config, dimensions. */
    assert_string_equal(a->moec_version, b->moec_version);
    assert_string_equal(a->arithmetic, b->arithmetic);
    assert_string_equal(a->task, b->task);
    assert_string_equal(a->metric, b->metric);
    assert_string_equal(a->data_name, b->data_name);
    assert_int_equal(a->sensitivity, b->sensitivity);
    assert_string_equal(a->sensitivity_choice, b->sensitivity_choice);
    ASSERT_ARRAY(a->model_digest, b->model_digest, MOEC_SHA256_BYTES);
    ASSERT_ARRAY(a->data_digest, b->data_digest, MOEC_SHA256_BYTES);
    assert_int_equal(a->seq_len_tokens, b->seq_len_tokens);
    assert_int_equal(a->seed, b->seed);
    assert_int_equal(a->baseline_bits, b->baseline_bits);
    assert_int_equal(a->quantizer, b->quantizer);
    assert_int_equal(a->scheme, b->scheme);
    ASSERT_ARRAY(a->choices, b->choices, MOEC_CODEC_TABLE);
    assert_int_equal(a->group, b->group);
    assert_string_equal(a->config.family, b->config.family);
    assert_int_equal(a->config.n_layer, b->config.n_layer);
    assert_int_equal(a->config.n_vocab, b->config.n_vocab);
    ASSERT_ARRAY(a->config.layer_kind, b->config.layer_kind, MOEC_MAX_LAYERS);
    assert_int_equal(a->config.n_kind, b->config.n_kind);
    for (uint32_t i = 0; i < a->config.n_kind; i++)
        assert_true(moec_layer_same(&a->config.kinds[i], &b->config.kinds[i]));
    assert_int_equal(a->n_moe_layer, b->n_moe_layer);
    assert_int_equal(a->n_expert, b->n_expert);
    assert_int_equal(a->top_k, b->top_k);
    ASSERT_ARRAY(a->moe_layers, b->moe_layers, a->n_moe_layer);
    assert_int_equal(a->n_window, b->n_window);
    assert_int_equal(a->n_window_available, b->n_window_available);
    assert_int_equal(a->n_drawn, b->n_drawn);
    ASSERT_ARRAY(a->window_length, b->window_length, a->n_drawn);
    ASSERT_ARRAY(a->window_tokens, b->window_tokens, a->n_drawn * a->seq_len_tokens);
    ASSERT_ARRAY(a->window_index, b->window_index, a->n_drawn);
    ASSERT_ARRAY(a->window_scored, b->window_scored, a->n_drawn);
    assert_int_equal(a->n_document, b->n_document);
    assert_int_equal(a->parts_by_document, b->parts_by_document);
    if (a->n_document > 0) {
        ASSERT_ARRAY(a->window_document, b->window_document, a->n_drawn);
        ASSERT_ARRAY(a->window_part, b->window_part, a->n_drawn);
    }
    assert_int_equal(a->n_sensitivity_window, b->n_sensitivity_window);
    ASSERT_ARRAY(a->reference.nll, b->reference.nll, a->n_window);
    ASSERT_ARRAY(a->reference.kl, b->reference.kl, a->n_window);
    ASSERT_ARRAY(a->baseline.nll, b->baseline.nll, a->n_window);
    ASSERT_ARRAY(a->baseline.kl, b->baseline.kl, a->n_window);
    assert_int_equal(a->n_uniform, b->n_uniform);
    ASSERT_ARRAY(a->uniform_bits, b->uniform_bits, a->n_uniform);
    for (uint32_t u = 0; u < a->n_uniform; u++) {
        ASSERT_ARRAY(a->uniform[u].nll, b->uniform[u].nll, a->n_window);
        ASSERT_ARRAY(a->uniform[u].kl, b->uniform[u].kl, a->n_window);
    }
    assert_int_equal(a->n_bits, b->n_bits);
    ASSERT_ARRAY(a->bits, b->bits, a->n_bits);
    ASSERT_ARRAY(a->expert_nll, b->expert_nll, losses);
    ASSERT_ARRAY(a->expert_kl, b->expert_kl, losses);
    ASSERT_ARRAY(a->activations, b->activations, experts);
    ASSERT_ARRAY(a->mean_gate_weight, b->mean_gate_weight, experts);
    assert_int_equal(a->n_trace_token, b->n_trace_token);
    ASSERT_ARRAY(a->trace_experts, b->trace_experts, choices);
    ASSERT_ARRAY(a->trace_weights, b->trace_weights, choices);
    assert_int_equal(a->paths.n_key, b->paths.n_key);
    assert_int_equal(a->paths.n_value, b->paths.n_value);
    ASSERT_ARRAY(a->paths.keys, b->paths.keys, a->paths.n_key);
    ASSERT_ARRAY(a->paths.values, b->paths.values, a->paths.n_key * a->paths.n_value);
    ASSERT_ARRAY(a->paths.frequency, b->paths.frequency, experts);
    ASSERT_ARRAY(a->path_recall, b->path_recall, a->n_moe_layer * 3);
    ASSERT_ARRAY(a->frequency_recall, b->frequency_recall, a->n_moe_layer * 3);
    assert_true(a->cost_passes == b->cost_passes && a->naive_passes == b->naive_passes);
    assert_studies_equal(&a->studies, &b->studies);
}

static void round_trip(const struct synthetic_shape *shape, const struct place *place)
{
    struct moec_profile written, read;
    struct moec_error err = {0};
    uint8_t digest[MOEC_SHA256_BYTES], again[MOEC_SHA256_BYTES];
    assert_int_equal(synthetic_profile(shape, &written), MOEC_OK);
    written.sensitivity = shape->n_bits > 0 ? MOEC_SENSITIVITY_FAST : MOEC_SENSITIVITY_NONE;
    (void)snprintf(written.sensitivity_choice, sizeof written.sensitivity_choice, "asked for");
    if (moec_profile_write(&written, place->file, &err) != MOEC_OK)
        fail_msg("%s", err.message);
    if (moec_profile_read(place->file, false, &read, digest, &err) != MOEC_OK)
        fail_msg("%s", err.message);
    assert_profiles_equal(&written, &read);
    moec_profile_release(&read);
    assert_int_equal(moec_profile_read(place->file, true, &read, again, &err), MOEC_OK);
    assert_memory_equal(digest, again, sizeof digest);
    assert_profiles_equal(&written, &read);
    moec_profile_release(&read);
    moec_profile_release(&written);
}

static void test_profile_h5__round_trip(void **state)
{
    round_trip(&small, *state);
}

/* Axes of extent 0 (no uniform bitwidth, no path) and 1. */
static void test_profile_h5__round_trip_of_least(void **state)
{
    const struct synthetic_shape least = {
        .n_moe_layer = 1, .n_expert = 1, .top_k = 1, .n_window = 1, .seq_len_tokens = 2, .n_bits = 1};
    round_trip(&least, *state);
}

/* Three parts drawn by document, and sensitivities on some of the windows or not at all. */
static void test_profile_h5__round_trip_of_parts(void **state)
{
    struct synthetic_shape shape = small;
    shape.n_document = 4;
    shape.n_sensitivity_window = 2;
    round_trip(&shape, *state);
    shape.n_unmeasured = 3;
    round_trip(&shape, *state);
    shape.n_sensitivity_window = 0;
    round_trip(&shape, *state);
    shape.n_bits = 0;
    round_trip(&shape, *state);
    shape.n_unmeasured = 0;
    round_trip(&shape, *state);
    struct moec_profile p;
    struct moec_error err = {0};
    assert_int_equal(synthetic_profile(&shape, &p), MOEC_OK);
    p.sensitivity = MOEC_SENSITIVITY_NONE;
    assert_int_equal(moec_profile_check(&p, "p", &err), MOEC_OK);
    p.window_part[5] = MOEC_PART_COUNT;
    assert_int_equal(moec_profile_check(&p, "p", &err), MOEC_ERR_FORMAT);
    assert_non_null(
        strstr(err.message, "window 5 belongs to part 3 of the data, expected a number from 0 to 2"));
    err = (struct moec_error){0};
    p.window_part[5] = MOEC_PART_SELECT;
    p.window_document[4] = 4;
    assert_int_equal(moec_profile_check(&p, "p", &err), MOEC_ERR_FORMAT);
    assert_non_null(strstr(err.message, "window 4 has document 4, expected less than 4"));
    moec_profile_release(&p);
}

/* More than one chunk a dataset. */
static void test_profile_h5__round_trip_in_chunks(void **state)
{
    const struct synthetic_shape wide = {.n_moe_layer = 6,
                                         .n_expert = 64,
                                         .top_k = 4,
                                         .n_window = 128,
                                         .seq_len_tokens = 300,
                                         .n_bits = 3,
                                         .n_uniform = 2,
                                         .n_key = 64};
    round_trip(&wide, *state);
}

static void test_profile_h5__same_bytes_a_second_later(void **state)
{
    (void)state;
    uint8_t *first = NULL, *second = NULL;
    size_t n_first = 0, n_second = 0;
    encode(&small, &first, &n_first);
    (void)nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 100000000}, NULL);
    encode(&small, &second, &n_second);
    assert_int_equal(n_first, n_second);
    assert_memory_equal(first, second, n_first);
    free(first);
    free(second);
}

/* Each flipped byte of the file gives an error that names the file, before HDF5 sees it. */
static void test_profile_h5__damage_is_found(void **state)
{
    (void)state;
    uint8_t *bytes = NULL;
    size_t n_bytes = 0;
    encode(&small, &bytes, &n_bytes);
    for (size_t at = 0; at < n_bytes; at += at < MOEC_PROFILE_USER_BLOCK_BYTES ? 1 : 97) {
        struct moec_profile profile;
        struct moec_error err = {0};
        uint8_t digest[MOEC_SHA256_BYTES];
        bytes[at] ^= 0x10;
        enum moec_status status =
            moec_profile_decode(bytes, n_bytes, "profile 'p.h5'", false, &profile, digest, &err);
        bytes[at] ^= 0x10;
        assert_int_not_equal(status, MOEC_OK);
        assert_non_null(strstr(err.message, "profile 'p.h5'"));
        assert_null(profile.expert_nll);
    }
    free(bytes);
}

static void test_profile_h5__truncation_is_found(void **state)
{
    (void)state;
    uint8_t *bytes = NULL;
    size_t n_bytes = 0;
    encode(&small, &bytes, &n_bytes);
    for (size_t n = 0; n < n_bytes; n += 211) {
        struct moec_profile profile;
        struct moec_error err = {0};
        uint8_t digest[MOEC_SHA256_BYTES];
        assert_int_not_equal(moec_profile_decode(bytes, n, "profile 'p.h5'", false, &profile, digest, &err),
                             MOEC_OK);
        assert_non_null(strstr(err.message, "profile 'p.h5'"));
    }
    free(bytes);
}

static void expect_decode(uint8_t *bytes, size_t n_bytes, bool trust, enum moec_status expected,
                          const char *part)
{
    struct moec_profile profile;
    struct moec_error err = {0};
    uint8_t digest[MOEC_SHA256_BYTES];
    assert_int_equal(moec_profile_decode(bytes, n_bytes, "profile 'p.h5'", trust, &profile, digest, &err),
                     expected);
    if (part != NULL && strstr(err.message, part) == NULL)
        fail_msg("'%s' not in '%s'", part, err.message);
    moec_profile_release(&profile);
}

/* What moec of that version wrote of this shape: texts of fixed length. */
static const struct synthetic_shape older = {.n_dense = 1,
                                             .n_moe_layer = 2,
                                             .n_expert = 4,
                                             .top_k = 2,
                                             .n_window = 4,
                                             .seq_len_tokens = 8,
                                             .n_bits = 2,
                                             .n_uniform = 2,
                                             .n_key = 2,
                                             .n_document = 4,
                                             .has_studies = true};

static void read_fixture(const char *path, struct moec_profile *profile)
{
    struct moec_error err = {0};
    uint8_t digest[MOEC_SHA256_BYTES];
    char *packed = NULL, *bytes = NULL;
    size_t n_packed = 0, n_bytes = 0;
    assert_int_equal(moec_file_load(path, 1 << 20, &packed, &n_packed, &err), MOEC_OK);
    assert_int_equal(moec_decompress_all(packed, n_packed, 1 << 20, &bytes, &n_bytes, "fixture", &err),
                     MOEC_OK);
    if (moec_profile_decode((uint8_t *)bytes, n_bytes, "fixture", false, profile, digest, &err) != MOEC_OK)
        fail_msg("%s", err.message);
    free(packed);
    free(bytes);
}

/* With a study rank/loss over (action, rank) and ranks from 0. In memory its ranks count from 1. */
static void test_profile_h5__reads_version_1(void **state)
{
    (void)state;
    struct moec_profile expected, profile;
    assert_int_equal(synthetic_profile(&older, &expected), MOEC_OK);
    read_fixture("tests/fixtures/profile-version-1.h5.zst", &profile);
    assert_string_equal(profile.data_name, expected.data_name);
    assert_memory_equal(profile.expert_nll, expected.expert_nll,
                        (size_t)2 * 4 * 2 * 4 * sizeof *profile.expert_nll);
    const struct moec_study *rank = moec_studies_find(&profile.studies, "rank/loss");
    assert_non_null(rank);
    assert_string_equal(rank->axes[0].labels[1], "replace");
    assert_true(moec_study_axis_value(&rank->axes[1], 0) == 1 &&
                moec_study_axis_value(&rank->axes[1], 1) == 2);
    assert_true(rank->values[3] == 0.4);
    moec_profile_release(&profile);
    moec_profile_release(&expected);
}

/* With the quantizer auto. */
static void test_profile_h5__reads_version_2(void **state)
{
    (void)state;
    struct moec_profile expected, profile;
    assert_int_equal(synthetic_profile(&older, &expected), MOEC_OK);
    expected.quantizer = MOEC_QUANTIZER_AUTO;
    expected.choices[2] = (struct moec_quantizer_choice){MOEC_QUANTIZER_HQQ, MOEC_SCHEME_ASYMMETRIC};
    read_fixture("tests/fixtures/profile-version-2.h5.zst", &profile);
    assert_profiles_equal(&expected, &profile);
    moec_profile_release(&profile);
    moec_profile_release(&expected);
}

/* Two studies with one axis, and two whose axes share a name alone. */
static void add_axes(struct moec_profile *profile)
{
    static double targets[] = {0.01, 0.02, 0.05}, values[] = {1, 2, 3};
    static const struct {
        const char *name, *axis;
        uint64_t n;
    } studies[] = {{"mixed/bytes", "target", 3},
                   {"mixed/loss", "target", 3},
                   {"other/a", "width", 2},
                   {"other/b", "width", 3}};
    struct moec_error err = {0};
    for (size_t i = 0; i < sizeof studies / sizeof *studies; i++) {
        struct moec_study study = {.description = "by target", .n_axis = 1, .values = values};
        (void)snprintf(study.name, sizeof study.name, "%s", studies[i].name);
        study.axes[0] = (struct moec_study_axis){.n = studies[i].n, .values = i < 2 ? targets : NULL};
        (void)snprintf(study.axes[0].name, sizeof study.axes[0].name, "%s", studies[i].axis);
        assert_status(moec_profile_add_study(profile, &study, NULL, &err), MOEC_OK, err);
    }
}

/* With weights of the trace in F16, and an axis for each study. */
static void test_profile_h5__reads_version_3(void **state)
{
    (void)state;
    struct moec_profile expected, profile;
    assert_int_equal(synthetic_profile(&older, &expected), MOEC_OK);
    add_axes(&expected);
    read_fixture("tests/fixtures/profile-version-3.h5.zst", &profile);
    assert_profiles_equal(&expected, &profile);
    assert_memory_equal(profile.trace_weights, expected.trace_weights,
                        (size_t)profile.n_trace_token * profile.n_moe_layer * profile.top_k * 2);
    moec_profile_release(&profile);
    moec_profile_release(&expected);
}

/* One name for one axis of a group, and no type that readers of netCDF lack. */
static void test_profile_h5__axes_of_a_group_are_one(void **state)
{
    (void)state;
    struct moec_profile expected, profile;
    struct moec_error err = {0};
    struct moec_h5 *h5 = NULL;
    uint8_t *bytes = NULL, digest[MOEC_SHA256_BYTES];
    size_t n_bytes = 0;
    assert_int_equal(synthetic_profile(&older, &expected), MOEC_OK);
    add_axes(&expected);
    assert_status(moec_profile_encode(&expected, &bytes, &n_bytes, &err), MOEC_OK, err);
    assert_status(moec_profile_decode(bytes, n_bytes, "p", false, &profile, digest, &err), MOEC_OK, err);
    assert_profiles_equal(&expected, &profile);
    assert_memory_equal(profile.trace_weights, expected.trace_weights,
                        (size_t)profile.n_trace_token * profile.n_moe_layer * profile.top_k * 2);
    const struct moec_study *loss = moec_studies_find(&profile.studies, "mixed/loss");
    assert_non_null(loss);
    assert_string_equal(loss->axes[0].name, "target");
    assert_true(moec_study_axis_value(&loss->axes[0], 2) == 0.05);
    assert_status(moec_h5_open(bytes, n_bytes, "p", &h5, &err), MOEC_OK, err);
    assert_true(moec_h5_has(h5, "/studies/mixed/target"));
    assert_false(moec_h5_has(h5, "/studies/mixed/bytes.target"));
    assert_false(moec_h5_has(h5, "/studies/mixed/loss.target"));
    assert_false(moec_h5_has(h5, "/studies/other/width"));
    assert_true(moec_h5_has(h5, "/studies/other/a.width"));
    assert_true(moec_h5_has(h5, "/studies/other/b.width"));
    struct moec_h5_dataset weights = {.path = "/routing/trace_weights",
                                      .type = MOEC_H5_HALF,
                                      .rank = 3,
                                      .dims = {profile.n_trace_token, profile.n_moe_layer, profile.top_k}};
    assert_status(moec_h5_check(h5, &weights, &err), MOEC_OK, err);
    weights.type = MOEC_H5_F16;
    assert_status(moec_h5_check(h5, &weights, &err), MOEC_ERR_FORMAT, err);
    moec_h5_close(h5);
    free(bytes);
    moec_profile_release(&profile);
    moec_profile_release(&expected);
}

static void test_profile_h5__trust_skips_the_checksum(void **state)
{
    (void)state;
    uint8_t *bytes = NULL;
    size_t n_bytes = 0;
    encode(&small, &bytes, &n_bytes);
    bytes[32] ^= 1;
    expect_decode(bytes, n_bytes, false, MOEC_ERR_CHECKSUM, "--trust-profile");
    expect_decode(bytes, n_bytes, true, MOEC_OK, NULL);
    /* A tool that knows nothing of user blocks may drop what stands in it. */
    memset(bytes, 0, MOEC_PROFILE_USER_BLOCK_BYTES);
    expect_decode(bytes, n_bytes, false, MOEC_ERR_CHECKSUM, "--trust-profile");
    expect_decode(bytes, n_bytes, true, MOEC_OK, NULL);
    free(bytes);
}

static void test_profile_h5__other_files_are_named(void **state)
{
    (void)state;
    uint8_t text[1024] = "not a profile";
    expect_decode(text, sizeof text, false, MOEC_ERR_FORMAT, "is not a profile");
    expect_decode(text, sizeof text, true, MOEC_ERR_FORMAT, "is not a profile");
    expect_decode(text, 0, false, MOEC_ERR_FORMAT, "is not a profile");
    uint8_t *bytes = NULL;
    size_t n_bytes = 0;
    encode(&small, &bytes, &n_bytes);
    bytes[16] = 9;
    expect_decode(bytes, n_bytes, false, MOEC_ERR_UNSUPPORTED, "format version 9");
    free(bytes);
}

/* The bytes of a value, found in the file and replaced with the checksum made good: a file that HDF5 reads
 * well and that is wrong in itself. */
static void expect_after_edit(const void *find, const void *replace, size_t n, const char *part)
{
    uint8_t *bytes = NULL;
    size_t n_bytes = 0;
    encode(&small, &bytes, &n_bytes);
    uint8_t *at =
        memmem(bytes + MOEC_PROFILE_USER_BLOCK_BYTES, n_bytes - MOEC_PROFILE_USER_BLOCK_BYTES, find, n);
    assert_non_null(at);
    memcpy(at, replace, n);
    rehash(bytes, n_bytes);
    expect_decode(bytes, n_bytes, false, MOEC_ERR_FORMAT, part);
    free(bytes);
}

static struct moec_profile chosen_profile(void)
{
    struct moec_profile profile;
    assert_int_equal(synthetic_profile(&small, &profile), MOEC_OK);
    profile.quantizer = MOEC_QUANTIZER_AUTO;
    profile.choices[2] = (struct moec_quantizer_choice){MOEC_QUANTIZER_HQQ, MOEC_SCHEME_ASYMMETRIC};
    profile.choices[8] = (struct moec_quantizer_choice){MOEC_QUANTIZER_LINEAR, MOEC_SCHEME_ASYMMETRIC};
    return profile;
}

/* What --quantizer auto chose comes back, and is what a compile encodes with. */
static void test_profile_h5__choices_of_quantizers(void **state)
{
    const struct place *place = *state;
    struct moec_profile written = chosen_profile(), read;
    struct moec_error err = {0};
    struct moec_codec codecs[MOEC_CODEC_TABLE];
    assert_int_equal(moec_profile_write(&written, place->file, &err), MOEC_OK);
    assert_int_equal(moec_profile_read(place->file, false, &read, (uint8_t[MOEC_SHA256_BYTES]){0}, &err),
                     MOEC_OK);
    assert_profiles_equal(&written, &read);
    assert_int_equal(moec_profile_codecs(&read, codecs, &err), MOEC_OK);
    assert_int_equal(codecs[2].quantizer, MOEC_QUANTIZER_HQQ);
    assert_int_equal(codecs[2].scheme, MOEC_SCHEME_ASYMMETRIC);
    assert_int_equal(codecs[2].group, read.group);
    assert_int_equal(codecs[3].quantizer, MOEC_QUANTIZER_LINEAR);
    assert_int_equal(codecs[3].scheme, MOEC_SCHEME_SYMMETRIC);
    assert_int_equal(codecs[8].scheme, MOEC_SCHEME_ASYMMETRIC);
    assert_true(codecs[16].dtype <= MOEC_DTYPE_BF16 && codecs[16].quantizer == 0);
    moec_profile_release(&read);
    moec_profile_release(&written);
}

static void test_profile_h5__wrong_choices_are_refused(void **state)
{
    (void)state;
    const struct {
        const char *find, *replace, *part;
    } edits[] = {{"hqq asymmetric", "hqx asymmetric", "expected a quantizer and a scheme"},
                 {"hqq asymmetric", "hqq asymmetrix", "expected a quantizer and a scheme"},
                 {"quantizer_4", "quantizer_5", "has no attribute 'quantizer_4'"}};
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        struct moec_profile profile = chosen_profile();
        struct moec_error err = {0};
        uint8_t *bytes = NULL;
        size_t n_bytes = 0, n = strlen(edits[i].find);
        assert_int_equal(moec_profile_encode(&profile, &bytes, &n_bytes, &err), MOEC_OK);
        uint8_t *at = memmem(bytes, n_bytes, edits[i].find, n);
        assert_non_null(at);
        memcpy(at, edits[i].replace, n);
        rehash(bytes, n_bytes);
        expect_decode(bytes, n_bytes, false, MOEC_ERR_FORMAT, edits[i].part);
        free(bytes);
        profile.choices[3].quantizer = MOEC_QUANTIZER_AUTO;
        assert_int_equal(moec_profile_check(&profile, "it", &err), MOEC_ERR_FORMAT);
        moec_profile_release(&profile);
    }
}

/* Those of the quantizer trellis were others before: a profile says which it measured. */
static void test_profile_h5__paths_are_of_shift_codes(void **state)
{
    (void)state;
    static const char *const edits[][2] = {{"trellis shift", "trellis shaft"},
                                           {"quantizer_2", "quantizer_7"}};
    struct moec_profile profile;
    struct moec_error err = {0};
    struct moec_codec codecs[MOEC_CODEC_TABLE];
    assert_int_equal(synthetic_profile(&small, &profile), MOEC_OK);
    profile.quantizer = MOEC_QUANTIZER_TRELLIS;
    assert_int_equal(moec_profile_codecs(&profile, codecs, &err), MOEC_OK);
    for (uint32_t bits = 2; bits <= 4; bits++) {
        assert_int_equal(codecs[bits].scheme, MOEC_SCHEME_SHIFT);
        assert_int_equal(moec_profile_quantizer(&profile, bits).scheme, MOEC_SCHEME_SHIFT);
    }
    assert_int_equal(codecs[8].quantizer, MOEC_QUANTIZER_HQQ);
    for (size_t i = 0; i < 3; i++) {
        uint8_t *bytes = NULL;
        size_t n_bytes = 0;
        assert_int_equal(moec_profile_encode(&profile, &bytes, &n_bytes, &err), MOEC_OK);
        if (i == 2) {
            expect_decode(bytes, n_bytes, false, MOEC_OK, NULL);
        } else {
            uint8_t *at = memmem(bytes, n_bytes, edits[i][0], strlen(edits[i][0]));
            assert_non_null(at);
            memcpy(at, edits[i][1], strlen(edits[i][1]));
            rehash(bytes, n_bytes);
            expect_decode(bytes, n_bytes, false, MOEC_ERR_UNSUPPORTED, "profile again");
        }
        free(bytes);
    }
    moec_profile_release(&profile);
}

static void test_profile_h5__wrong_content_is_refused(void **state)
{
    (void)state;
    expect_after_edit("symmetric", "symmetrix", 9, "expected symmetric, asymmetric, gaussian, logarithmic");
    expect_after_edit("baseline_bits", "baseline_bitz", 13, "has no attribute 'baseline_bits'");
    expect_after_edit("a0a1a2a3", "a0a1a2aX", 8, "expected 64 hexadecimal digits");
    expect_after_edit("mean_gate_weight", "mean_gate_height", 16, "has no '/routing/mean_gate_weight'");
    expect_after_edit("moe_layer,quantile", "moe_layer;quantile", 18, "expected 2 names");
    expect_after_edit("moe_layer,quantile", "moe_layer,quantilf", 18,
                      "has an axis 'quantilf' without a scale");
    expect_after_edit("moe_layer,quantile", "cut,,,,,,,quantile", 18, "expected 2 names");
    expect_after_edit("moe_layer,predictor,cut", "moe_layer,predictor,bit", 23, "axis 'bit' without a scale");
    expect_after_edit("values over known", "values\nover known", 17, "holds the control character 0x0a");
    expect_after_edit("next-layer gate", "next-layer\tgate", 15, "holds the control character 0x09");
}

/* Where an attribute says how long its text is and where it lies, its name was found before. */
static uint8_t *find_place(uint8_t *bytes, size_t n_bytes, const char *name, uint32_t length)
{
    uint8_t *at = memmem(bytes, n_bytes, name, strlen(name) + 1);
    assert_non_null(at);
    for (uint32_t i = 0; i < 128; i += 4)
        if (moec_get_u32(at + i) == length && moec_get_u64(at + i + 4) < n_bytes &&
            memcmp(bytes + MOEC_PROFILE_USER_BLOCK_BYTES + moec_get_u64(at + i + 4), "GCOL", 4) == 0)
            return at + i;
    fail_msg("'%s' has no place", name);
    return NULL;
}

/* A length that the heap does not hold, in a file whose checksum is good: HDF5 is never asked for it. */
static void test_profile_h5__long_texts_of_others_are_refused(void **state)
{
    (void)state;
    uint8_t *bytes = NULL;
    size_t n_bytes = 0;
    encode(&small, &bytes, &n_bytes);
    struct moec_profile profile;
    assert_int_equal(synthetic_profile(&small, &profile), MOEC_OK);
    uint8_t *place = find_place(bytes, n_bytes, "data_name", (uint32_t)strlen(profile.data_name));
    moec_profile_release(&profile);
    moec_put_u32(place, UINT32_MAX);
    rehash(bytes, n_bytes);
    expect_decode(bytes, n_bytes, false, MOEC_ERR_FORMAT,
                  "profile 'p.h5': attribute 'data_name' of '/': text 0 (4294967295 bytes) is not in a heap");
    free(bytes);
}

static void test_profile_h5__check_refuses(void **state)
{
    (void)state;
    struct moec_profile p;
    struct moec_error err = {0};
    assert_int_equal(synthetic_profile(&small, &p), MOEC_OK);
    assert_int_equal(moec_profile_check(&p, "p", &err), MOEC_OK);
#define EXPECT_REFUSED(member, bad, part)                                                                    \
    do {                                                                                                     \
        __typeof__(member) kept_ = (member);                                                                 \
        (member) = (__typeof__(member))(bad);                                                                \
        err = (struct moec_error){0};                                                                        \
        assert_int_equal(moec_profile_check(&p, "p", &err), MOEC_ERR_FORMAT);                                \
        if (strstr(err.message, (part)) == NULL)                                                             \
            fail_msg("'%s' not in '%s'", (part), err.message);                                               \
        (member) = kept_;                                                                                    \
    } while (0)
    EXPECT_REFUSED(p.n_moe_layer, 0, "number of MoE layers is 0");
    EXPECT_REFUSED(p.n_moe_layer, 2, ", but its model has");
    EXPECT_REFUSED(p.top_k, 9, "top-k is 9, expected 1 to 8");
    EXPECT_REFUSED(p.n_bits, 0, "has 0 profiled bitwidths, but its sensitivity is exact or fast");
    EXPECT_REFUSED(p.sensitivity, MOEC_SENSITIVITY_NONE, "profiled bitwidths, but its sensitivity is none");
    EXPECT_REFUSED(p.n_sensitivity_window, p.n_window + 1, "number of windows with sensitivities");
    EXPECT_REFUSED(p.n_window, p.n_drawn + 1, "number of measured windows is");
    EXPECT_REFUSED(p.n_document, 3, "every window must name a part and a document");
    EXPECT_REFUSED(p.n_bits, 9, "number of profiled bitwidths is 9");
    EXPECT_REFUSED(p.bits[0], 4, "a profiled bitwidth and the baseline's");
    EXPECT_REFUSED(p.bits[0], 8, "expected increasing");
    EXPECT_REFUSED(p.bits[0], 7, "is 7, expected 1, 2, 3, 4, 5, 6, 8, 16 or 32");
    EXPECT_REFUSED(p.baseline_bits, 7, "the baseline has 7 bits");
    EXPECT_REFUSED(p.group, 33, "group size is 33");
    EXPECT_REFUSED(p.cost_passes, NAN, "profile's cost");
    EXPECT_REFUSED(p.moe_layers[1], 0, "is layer 0 of the model, expected layer 2");
    EXPECT_REFUSED(p.window_length[2], 17, "window 2 has 17 tokens");
    EXPECT_REFUSED(p.window_scored[2], 0, "window 2 has 0 scored tokens");
    EXPECT_REFUSED(p.window_index[2], 18, "is number 18 of the windows in the data");
    EXPECT_REFUSED(p.window_tokens[1], 1000, "token 1 of window 0 is 1000");
    EXPECT_REFUSED(p.window_tokens[31], 0, "token 15 of window 1 is 0");
    EXPECT_REFUSED(p.reference.nll[0], -1, "value number 0, is -1, expected 0 to 1e+15");
    EXPECT_REFUSED(p.expert_nll[100], NAN, "NLL of the experts, value number 100");
    EXPECT_REFUSED(p.expert_kl[100], INFINITY, "KL of the experts, value number 100");
    EXPECT_REFUSED(p.uniform[3].nll[0], NAN, "whole-model measurement");
    EXPECT_REFUSED(p.activations[5], 1000, "expert 5 of MoE layer 0 has 1000 activations");
    EXPECT_REFUSED(p.mean_gate_weight[5], -1, "mean gate weight");
    EXPECT_REFUSED(p.n_trace_token, 5, "the routing trace has 5 tokens");
    EXPECT_REFUSED(p.trace_experts[7], 8, "choice 7 of the routing trace is expert 8");
    EXPECT_REFUSED(p.trace_weights[7], 0x7c00, "F16 bits 0x7c00");
    EXPECT_REFUSED(p.path_recall[2], 1.5, "expected 0 to 1");
    EXPECT_REFUSED(p.paths.n_layer, 2, "p: the path table has 2 layers");
    EXPECT_REFUSED(p.paths.n_value, 3, "3 predictions per key");
    EXPECT_REFUSED(p.paths.keys[1].second, 9,
                   "p: the path table (which experts follow which) is damaged: key 1");
    EXPECT_REFUSED(p.paths.keys[1].layer, 3, "damaged: key 1");
    EXPECT_REFUSED(p.paths.keys[1].second, 0, "out of order");
    EXPECT_REFUSED(p.paths.values[3].expert, 8, "damaged: value 3 of key 0");
    EXPECT_REFUSED(p.paths.frequency[3].expert, 8, "damaged: value 3 of frequency row 0");
    assert_int_equal(moec_profile_check(&p, "p", NULL), MOEC_OK);
    moec_profile_release(&p);
}

/* Only the certificate part may wait. */
static void test_profile_h5__unmeasured_windows_certify(void **state)
{
    (void)state;
    struct moec_profile p;
    struct moec_error err = {0};
    struct synthetic_shape shape = small;
    shape.n_unmeasured = 2;
    assert_int_equal(synthetic_profile(&shape, &p), MOEC_OK);
    assert_int_equal(moec_profile_check(&p, "p", &err), MOEC_ERR_FORMAT);
    assert_non_null(strstr(err.message, "does not say to which part of the data the others belong"));
    moec_profile_release(&p);
    shape.n_document = 4;
    err = (struct moec_error){0};
    assert_int_equal(synthetic_profile(&shape, &p), MOEC_OK);
    assert_int_equal(moec_profile_check(&p, "p", &err), MOEC_OK);
    assert_int_equal(moec_profile_part_count(&p, MOEC_PART_ALL), small.n_window + 2);
    p.window_part[p.n_window + 1] = MOEC_PART_SELECT;
    assert_int_equal(moec_profile_check(&p, "p", &err), MOEC_ERR_FORMAT);
    assert_non_null(strstr(err.message, "was not measured and belongs to part 2"));
    moec_profile_release(&p);
}

static void test_profile_h5__unfit_profile_is_not_written(void **state)
{
    const struct place *place = *state;
    struct moec_profile p;
    struct moec_error err = {0};
    assert_int_equal(synthetic_profile(&small, &p), MOEC_OK);
    p.expert_nll[0] = NAN;
    assert_int_equal(moec_profile_write(&p, place->file, &err), MOEC_ERR_FORMAT);
    assert_false(moec_path_exists(place->file));
    moec_profile_release(&p);
}

static void test_profile_h5__loss_is_perplexity_relative_to_original(void **state)
{
    (void)state;
    const double nll[] = {3.0, 5.0};
    const uint32_t scored[] = {1, 3};
    assert_near(moec_profile_perplexity(nll, scored, 2), 7.38905609893065, 1e-12);
    struct moec_profile p;
    assert_int_equal(synthetic_profile(&small, &p), MOEC_OK);
    assert_true(moec_profile_loss(&p, p.reference.nll) == 0);
    for (uint32_t w = 0; w < p.n_window; w++)
        p.baseline.nll[w] = p.reference.nll[w] + log(1.02) * p.window_scored[w];
    assert_near(moec_profile_loss(&p, p.baseline.nll), 0.02, 1e-12);
    moec_profile_release(&p);
}

/* Output of a program, NUL-terminated. False when it is not installed. */
static bool run(const char *command, char *output, size_t capacity)
{
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t n = fread(output, 1, capacity - 1, pipe);
    output[n] = '\0';
    while (fgetc(pipe) != EOF)
        ;
    int code = pclose(pipe);
    if (code == 127 << 8)
        return false;
    assert_int_equal(code, 0);
    return true;
}

static void test_profile_h5__hdf5_tools_read_it(void **state)
{
    const struct place *place = *state;
    struct moec_profile p;
    struct moec_error err = {0};
    char command[512], output[8192];
    assert_int_equal(synthetic_profile(&small, &p), MOEC_OK);
    assert_int_equal(moec_profile_write(&p, place->file, &err), MOEC_OK);
    moec_profile_release(&p);

    (void)snprintf(command, sizeof command, "h5ls -r '%s'", place->file);
    if (!run(command, output, sizeof output)) {
        print_message("h5ls is missing: install hdf5-tools\n");
        skip();
    }
    assert_non_null(strstr(output, "/sensitivity/nll         Dataset {3, 8, 2, 6}"));
    assert_non_null(strstr(output, "/routing/trace           Dataset {93, 3, 2}"));

    /* The schema on paper names every group and dataset that is there. */
    size_t n_schema = 0;
    char *schema = (char *)temporary_read("formats/profile", "PROFILE.md", &n_schema);
    uint32_t n_object = 0;
    for (char *line = output; *line != '\0'; line += strcspn(line, "\n") + 1, n_object++) {
        char name[64];
        assert_int_equal(sscanf(line, "%63s", name), 1);
        /* Studies are listed by what they are called behind /studies/, their scales by what they end in. */
        if (strncmp(name, "/studies/", 9) == 0)
            continue;
        /* A scale is listed where it is first found, and is another name of the one in /axes. */
        if (strstr(line, "same as /axes/") != NULL)
            continue;
        if (strstr(schema, name) == NULL)
            fail_msg("'%s' is not in formats/profile/PROFILE.md", name);
    }
    assert_true(n_object > 40);
    free(schema);

    (void)snprintf(command, sizeof command, "h5dump -A -p -d /sensitivity/loss '%s'", place->file);
    assert_true(run(command, output, sizeof output));
    assert_non_null(strstr(output, "COMPRESSION DEFLATE"));
    assert_non_null(strstr(output, "EdgeMoE III-B, Fig. 7(a)"));
    assert_non_null(strstr(output, "DIMENSION_LIST"));
    assert_non_null(strstr(output, "units"));

    (void)snprintf(command, sizeof command, "h5dump -y -w 0 -d /axes/moe_layer '%s'", place->file);
    assert_true(run(command, output, sizeof output));
    assert_non_null(strstr(output, "1, 2, 3"));

    (void)snprintf(command, sizeof command, "h5dump -w 0 -d /studies/predict/recall '%s'", place->file);
    assert_true(run(command, output, sizeof output));
    assert_non_null(strstr(output, "DATASPACE  SIMPLE { ( 3, 3, 3 )"));
    assert_non_null(strstr(output, "\"moe_layer,predictor,cut\""));
    assert_non_null(strstr(output, "\"moe_layer\", \"predictor\", \"cut\""));

    (void)snprintf(command, sizeof command, "h5dump -w 0 -d /studies/predict/predictor '%s'", place->file);
    assert_true(run(command, output, sizeof output));
    assert_non_null(strstr(output, "\"path table\", \"frequency\", \"next-layer gate\""));

    (void)snprintf(command, sizeof command, "h5dump -y -w 0 -d /studies/routing/margin '%s'", place->file);
    assert_true(run(command, output, sizeof output));
    assert_non_null(strstr(output, "Paper, Fig. 1"));
    assert_non_null(strstr(output, "0.5, nan, 0.75, 0.875"));

    (void)snprintf(command, sizeof command, "h5dump -a /data_sha256 '%s'", place->file);
    assert_true(run(command, output, sizeof output));
    assert_non_null(strstr(output, "00070e15"));
    assert_non_null(strstr(output, "H5T_VARIABLE"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_profile_h5__round_trip, place_make, place_remove),
        cmocka_unit_test_setup_teardown(test_profile_h5__round_trip_of_least, place_make, place_remove),
        cmocka_unit_test_setup_teardown(test_profile_h5__round_trip_of_parts, place_make, place_remove),
        cmocka_unit_test_setup_teardown(test_profile_h5__round_trip_in_chunks, place_make, place_remove),
        cmocka_unit_test(test_profile_h5__same_bytes_a_second_later),
        cmocka_unit_test(test_profile_h5__damage_is_found),
        cmocka_unit_test(test_profile_h5__truncation_is_found),
        cmocka_unit_test(test_profile_h5__reads_version_1),
        cmocka_unit_test(test_profile_h5__reads_version_2),
        cmocka_unit_test(test_profile_h5__reads_version_3),
        cmocka_unit_test(test_profile_h5__axes_of_a_group_are_one),
        cmocka_unit_test(test_profile_h5__long_texts_of_others_are_refused),
        cmocka_unit_test(test_profile_h5__trust_skips_the_checksum),
        cmocka_unit_test(test_profile_h5__other_files_are_named),
        cmocka_unit_test(test_profile_h5__wrong_content_is_refused),
        cmocka_unit_test(test_profile_h5__check_refuses),
        cmocka_unit_test(test_profile_h5__unmeasured_windows_certify),
        cmocka_unit_test_setup_teardown(test_profile_h5__unfit_profile_is_not_written, place_make,
                                        place_remove),
        cmocka_unit_test_setup_teardown(test_profile_h5__choices_of_quantizers, place_make, place_remove),
        cmocka_unit_test(test_profile_h5__paths_are_of_shift_codes),
        cmocka_unit_test(test_profile_h5__wrong_choices_are_refused),
        cmocka_unit_test(test_profile_h5__loss_is_perplexity_relative_to_original),
        cmocka_unit_test_setup_teardown(test_profile_h5__hdf5_tools_read_it, place_make, place_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
