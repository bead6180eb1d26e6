#include "tests/unit/fixture_bundle.h"

#include "formats/base/bytes.h"
#include "formats/bundle/bundle_format.h"
#include "formats/bundle/bundle_rewrite.h"
#include "formats/bundle/section_pieces.h"
#include "formats/checkpoint/checkpoint_write.h"
#include "formats/checkpoint/safetensors.h"
#include "formats/checkpoint/safetensors_write.h"
#include "formats/family/family.h"
#include "formats/tokenizer/tokenizer_json.h"
#include "tests/unit/dense_load.h"
#include "tests/unit/sample_bundle.h"
#include "tests/unit/tensor_entry.h"

#define FAMILIES "tests/fixtures/families/"

static const char *const fixtures[] = {
    FAMILIES "qwen2_moe", FAMILIES "qwen2_moe-tied", FAMILIES "olmoe",
    FAMILIES "olmoe-b",   FAMILIES "mixtral",        FAMILIES "mixtral-window",
    FAMILIES "switch",    FAMILIES "switch-gated",   FAMILIES "switch-full"};
#define N_FIXTURES (sizeof fixtures / sizeof *fixtures)

static float *decode_matrix(const struct moec_matrix *matrix)
{
    float *out = malloc((size_t)matrix->rows * matrix->columns * sizeof *out);
    assert_non_null(out);
    for (size_t row = 0; row < matrix->rows; row++)
        moec_codec_decode_row(matrix->codec, matrix->data + row * matrix->stride_bytes, matrix->columns,
                              out + row * matrix->columns);
    return out;
}

/* Weights of the folder against the decoded ones of the bundle, bit for bit. */
static void check_dense(const struct moec_bundle *bundle, const struct moec_checkpoint *ck)
{
    struct moec_error err = {0};
    struct moec_dense theirs = {0}, ours = {0};
    assert_status(moec_bundle_load_dense(bundle, &theirs, &err), MOEC_OK, err);
    assert_status(dense_load(ck, 16, 0, &ours, &err), MOEC_OK, err);
    assert_int_equal(ours.n_entries, theirs.n_entries);
    for (uint32_t i = 0; i < ours.n_entries; i++) {
        struct moec_matrix a, b;
        assert_true(moec_dense_find(&ours, ours.entries[i].role, ours.entries[i].layer, &a));
        assert_true(moec_dense_find(&theirs, ours.entries[i].role, ours.entries[i].layer, &b));
        assert_int_equal(a.codec.dtype, b.codec.dtype <= MOEC_DTYPE_BF16 ? b.codec.dtype : MOEC_DTYPE_F32);
        float *x = decode_matrix(&a), *y = decode_matrix(&b);
        assert_memory_equal(x, y, (size_t)a.rows * a.columns * sizeof *x);
        free(x);
        free(y);
    }
    moec_dense_release(&theirs);
    moec_dense_release(&ours);
}

static void check_expert(const struct moec_bundle *bundle, const struct moec_checkpoint *ck, uint32_t copy,
                         uint32_t s, uint32_t e)
{
    struct moec_error err = {0};
    const struct moec_record_entry *entry = moec_bundle_record(bundle, copy, s, e);
    struct moec_record_layout layout = moec_record_layout_of(&bundle->config, entry->variant, bundle->codecs);
    size_t n = (size_t)layout.n_ff * layout.n_embd;
    uint8_t *record = malloc(entry->n_bytes);
    float *ours[3];
    struct moec_mlp mlp;
    for (int p = 0; p < 3; p++)
        ours[p] = malloc(n * sizeof(float));
    assert_status(moec_bundle_read_record(bundle, (struct moec_record_id){copy, s, e}, record, &err), MOEC_OK,
                  err);
    assert_status(moec_checkpoint_load_expert(ck, moec_config_moe_layer(&bundle->config, s), e,
                                              (struct moec_expert_floats){ours[0], ours[1], ours[2]}, &err),
                  MOEC_OK, err);
    moec_record_bind(&layout, record, &mlp);
    float *gate = moec_mlp_has_gate(&mlp) ? decode_matrix(&mlp.gate) : NULL;
    float *up = decode_matrix(&mlp.up), *down = decode_matrix(&mlp.down);
    assert_int_equal(gate == NULL, bundle->config.mlp.plain);
    if (gate != NULL)
        assert_memory_equal(ours[0], gate, n * sizeof *gate);
    assert_memory_equal(ours[1], up, n * sizeof *up);
    for (size_t i = 0; i < layout.n_ff; i++)
        for (size_t j = 0; j < layout.n_embd; j++)
            assert_memory_equal(&ours[2][j * layout.n_ff + i], &down[i * layout.n_embd + j], sizeof *down);
    for (int p = 0; p < 3; p++)
        free(ours[p]);
    free(gate);
    free(up);
    free(down);
    free(record);
}

static void check_config(const struct moec_bundle *bundle, const struct moec_checkpoint *ck, uint8_t dtype)
{
    struct moec_error err = {0};
    struct moec_config expected = bundle->config;
    uint8_t *a = NULL, *b = NULL;
    size_t n_a = 0, n_b = 0;
    expected.expert_dtype = dtype;
    expected.n_frequent = 0; /* a tensor has all rows */
    assert_status(moec_config_encode(&expected, &a, &n_a, &err), MOEC_OK, err);
    assert_status(moec_config_encode(moec_checkpoint_config(ck), &b, &n_b, &err), MOEC_OK, err);
    assert_int_equal(n_a, n_b);
    assert_memory_equal(a, b, n_a);
    free(a);
    free(b);
}

static void check_export_rows(const char *fixture, uint32_t dense_bits, bool is_mixed, uint32_t copy,
                              uint64_t shard_bytes, uint32_t n_frequent)
{
    struct moec_error err = {0};
    char *folder = temporary_folder();
    char *path = temporary_path(folder, "m.moec"), *out = temporary_path(folder, "out");
    struct moec_bundle *bundle = NULL;
    struct moec_checkpoint *ck = NULL;
    struct moec_checkpoint_written written = {0};
    struct moec_checkpoint_write_options options = {.copy = copy, .shard_bytes = shard_bytes};
    fixture_bundle_write_rows(fixture, path, dense_bits, is_mixed, n_frequent);
    assert_status(moec_bundle_open(path, &bundle, &err), MOEC_OK, err);
    assert_status(moec_checkpoint_write(bundle, &options, out, &written, &err), MOEC_OK, err);
    assert_int_equal(temporary_count(folder), 2);
    assert_int_equal(written.n_shard > 1, shard_bytes > 0);
    assert_int_equal(temporary_count(out), 2 + written.n_shard + (written.n_shard > 1));
    assert_status(moec_checkpoint_open(out, &ck, &err), MOEC_OK, err);
    assert_int_equal(moec_checkpoint_weight_bytes(ck), written.weight_bytes);
    check_config(bundle, ck, is_mixed || copy > 0 ? MOEC_DTYPE_F32 : bundle->codecs[16].dtype);
    moec_checkpoint_set_frequent(ck, n_frequent);
    check_dense(bundle, ck);
    for (uint32_t s = 0; s < moec_config_moe_count(&bundle->config); s++)
        for (uint32_t e = 0; e < bundle->config.n_expert; e++)
            check_expert(bundle, ck, copy, s, e);
    moec_checkpoint_close(ck);
    moec_bundle_close(bundle);
    free(path);
    free(out);
    temporary_remove(folder);
}

static void check_export(const char *fixture, uint32_t dense_bits, bool is_mixed, uint32_t copy,
                         uint64_t shard_bytes)
{
    check_export_rows(fixture, dense_bits, is_mixed, copy, shard_bytes, 0);
}

static void test_checkpoint_write__every_family_reads_back_exactly(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FIXTURES; i++) {
        check_export(fixtures[i], 16, true, 0, 0);
        check_export(fixtures[i], 4, false, 0, 4000);
        check_export(fixtures[i], 8, false, 1, 0);
        check_export_rows(fixtures[i], 4, false, 0, 0, 1 + 11 * (uint32_t)i);
    }
}

static void test_checkpoint_write__keeps_16_bit_experts(void **state)
{
    (void)state;
    check_export(FAMILIES "qwen2_moe", 16, false, 0, 0);
}

static enum moec_status stop_halfway(void *context, uint64_t done, uint64_t total, struct moec_error *err)
{
    (void)context;
    return done * 2 < total ? MOEC_OK : moec_fail(err, MOEC_ERR_CANCELLED, "stopped");
}

static void test_checkpoint_write__all_or_nothing(void **state)
{
    (void)state;
    struct moec_error err = {0};
    char *folder = temporary_folder();
    char *path = temporary_path(folder, "m.moec"), *out = temporary_path(folder, "out");
    struct moec_bundle *bundle = NULL;
    struct moec_checkpoint_written written = {0};
    struct moec_checkpoint_write_options options = {.shard_bytes = 3000, .progress = stop_halfway};
    fixture_bundle_write(fixtures[0], path, 16, true);
    assert_status(moec_bundle_open(path, &bundle, &err), MOEC_OK, err);
    assert_status(moec_checkpoint_write(bundle, &options, out, &written, &err), MOEC_ERR_CANCELLED, err);
    assert_int_equal(temporary_count(folder), 1);
    options.progress = NULL;
    options.copy = 2;
    err = (struct moec_error){0};
    assert_status(moec_checkpoint_write(bundle, &options, out, &written, &err), MOEC_ERR_USAGE, err);
    options.copy = 0;
    err = (struct moec_error){0};
    assert_int_equal(mkdir(out, 0777), 0);
    assert_status(moec_checkpoint_write(bundle, &options, out, &written, &err), MOEC_ERR_IO, err);
    assert_message(err, "it exists");
    assert_int_equal(temporary_count(out), 0);
    assert_int_equal(temporary_count(folder), 2);
    err = (struct moec_error){0};
    uint32_t copy = 0;
    assert_status(moec_bundle_find_copy(bundle, 4, &copy, &err), MOEC_OK, err);
    assert_int_equal(copy, 1);
    assert_status(moec_bundle_find_copy(bundle, 2, &copy, &err), MOEC_ERR_USAGE, err);
    assert_message(err, "only copies at 4 bits");
    moec_bundle_close(bundle);
    free(path);
    free(out);
    temporary_remove(folder);
}

/* Folders that a killed process left under construction go when the next one begins; others' folders stay. */
static void test_checkpoint_write__removes_abandoned_folders(void **state)
{
    (void)state;
    struct moec_error err = {0};
    char *folder = temporary_folder();
    char *left = temporary_path(folder, ".out.moec-tmp-999999999-0"), *out = temporary_path(folder, "out");
    struct moec_output_folder output;
    assert_int_equal(mkdir(left, 0777), 0);
    temporary_write(left, "a", "x", 1);
    assert_status(moec_output_folder_open(&output, out, &err), MOEC_OK, err);
    assert_int_equal(temporary_count(folder), 1);
    temporary_write(output.temporary, "b", "y", 1);
    assert_status(moec_output_folder_commit(&output, &err), MOEC_OK, err);
    assert_int_equal(temporary_count(out), 1);
    moec_output_folder_abort(&output);
    assert_int_equal(temporary_count(folder), 1);
    free(left);
    free(out);
    temporary_remove(folder);
}

static void test_checkpoint_write__refuses_unknown_families(void **state)
{
    (void)state;
    struct moec_error err = {0};
    char *folder = temporary_folder();
    char *path = temporary_path(folder, "m.moec"), *out = temporary_path(folder, "out");
    struct sample s;
    struct moec_bundle *bundle = NULL;
    struct moec_checkpoint_written written = {0};
    struct moec_checkpoint_write_options options = {0};
    sample_make(&s, 4, 32, 8, 1);
    (void)sample_write(&s, path);
    assert_status(moec_bundle_open(path, &bundle, &err), MOEC_OK, err);
    assert_status(moec_checkpoint_write(bundle, &options, out, &written, &err), MOEC_ERR_UNSUPPORTED, err);
    assert_message(err, "'sample'");
    /* A family whose file cannot say what the config says. */
    (void)snprintf(bundle->config.family, sizeof bundle->config.family, "olmoe");
    err = (struct moec_error){0};
    assert_status(moec_checkpoint_write(bundle, &options, out, &written, &err), MOEC_ERR_UNSUPPORTED, err);
    assert_int_equal(temporary_count(folder), 1);
    struct moec_family_texts texts = {0};
    err = (struct moec_error){0};
    assert_status(
        moec_family_write_config(&bundle->config, &bundle->generation, "float32", "m", &texts, &err),
        MOEC_ERR_UNSUPPORTED, err);
    assert_message(err, "cannot be expressed");
    moec_bundle_close(bundle);
    sample_release(&s);
    free(path);
    free(out);
    temporary_remove(folder);
}

/* Whole numbers of a bundle are experts; others have no 64-bit integer that a file could hold. */
static void test_checkpoint_write__refuses_routes_to_no_expert(void **state)
{
    (void)state;
    static const uint16_t halves[] = {0xBC00, 0x7BFF, 0x3800}; /* -1, 65504, a half */
    struct moec_error err = {0};
    char *folder = temporary_folder();
    char *path = temporary_path(folder, "m.moec"), *bad = temporary_path(folder, "bad.moec"),
         *out = temporary_path(folder, "out");
    struct moec_bundle *bundle = NULL;
    struct moec_dense dense = {0};
    struct moec_checkpoint_written written = {0};
    const struct moec_checkpoint_write_options options = {0};
    fixture_bundle_write(FAMILIES "hash_moe", path, 16, false);
    assert_status(moec_bundle_open(path, &bundle, &err), MOEC_OK, err);
    assert_status(moec_bundle_load_dense(bundle, &dense, &err), MOEC_OK, err);
    const struct moec_dense_entry *table = moec_dense_entry_find(&dense, MOEC_ROLE_ROUTER_TABLE, 0);
    assert_true(table != NULL && table->codec.dtype == MOEC_DTYPE_F16);
    const size_t n_sum = moec_section_sums_bytes(dense.blob_bytes);
    uint8_t *sums = malloc(n_sum), *blob = malloc(dense.blob_bytes);
    assert_true(sums != NULL && blob != NULL);
    memcpy(blob, dense.blob, dense.blob_bytes);
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++) {
        struct moec_bundle *changed = NULL;
        uint64_t n_bytes = 0;
        moec_put_u16(blob + table->offset, halves[i]);
        moec_section_sums_encode(blob, dense.blob_bytes, sums);
        const struct moec_bundle_changes changes = {
            .note = "",
            .puts = {{MOEC_SECTION_DENSE, blob, dense.blob_bytes}, {MOEC_SECTION_DENSE_SUMS, sums, n_sum}}};
        err = (struct moec_error){0};
        assert_status(moec_bundle_rewrite(bundle, &changes, bad, &n_bytes, &err), MOEC_OK, err);
        assert_status(moec_bundle_open(bad, &changed, &err), MOEC_OK, err);
        assert_status(moec_checkpoint_write(changed, &options, out, &written, &err), MOEC_ERR_FORMAT, err);
        assert_message(err, "the routing table of layer 0 sends token id 0 to expert");
        assert_int_equal(temporary_count(folder), 2);
        moec_bundle_close(changed);
    }
    moec_dense_release(&dense);
    moec_bundle_close(bundle);
    free(sums);
    free(blob);
    free(path);
    free(bad);
    free(out);
    temporary_remove(folder);
}

/* ---- safetensors ---- */

static void test_checkpoint_write__safetensors(void **state)
{
    (void)state;
    struct moec_error err = {0};
    char *folder = temporary_folder();
    char *path = temporary_path(folder, "w.safetensors");
    struct moec_safetensors_writer writer;
    struct moec_safetensors read;
    const struct moec_safetensors_tensor tensors[] = {
        {.name = "b", .dtype = MOEC_DTYPE_BF16, .n_dims = 1, .shape = {3}},
        {.name = "a.\"quoted\"", .dtype = MOEC_DTYPE_F32, .n_dims = 2, .shape = {2, 1}}};
    const uint8_t bytes[14] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
    assert_status(moec_safetensors_writer_open(&writer, path, tensors, 2, &err), MOEC_OK, err);
    assert_status(moec_safetensors_writer_append(&writer, bytes, 5, &err), MOEC_OK, err);
    assert_status(moec_safetensors_writer_append(&writer, bytes + 5, 9, &err), MOEC_OK, err);
    assert_status(moec_safetensors_writer_commit(&writer, &err), MOEC_OK, err);
    assert_status(moec_safetensors_open(&read, path, &err), MOEC_OK, err);
    const struct moec_safetensors_entry *a = tensor_entry(&read, "a.\"quoted\""),
                                        *b = tensor_entry(&read, "b");
    assert_true(a != NULL && b != NULL);
    assert_int_equal(b->offset % 8, 0);
    assert_int_equal(a->offset, b->offset + 6);
    assert_int_equal(a->n_dims, 2);
    assert_int_equal(b->dtype, MOEC_DTYPE_BF16);
    uint8_t again[14];
    assert_status(moec_file_read(&read.file, b->offset, again, sizeof again, &err), MOEC_OK, err);
    assert_memory_equal(again, bytes, sizeof bytes);
    moec_safetensors_close(&read);
    assert_int_equal(unlink(path), 0);
    /* Fewer bytes than the table says leave nothing. */
    assert_status(moec_safetensors_writer_open(&writer, path, tensors, 2, &err), MOEC_OK, err);
    assert_status(moec_safetensors_writer_append(&writer, bytes, 13, &err), MOEC_OK, err);
    assert_status(moec_safetensors_writer_commit(&writer, &err), MOEC_ERR_USAGE, err);
    assert_int_equal(temporary_count(folder), 0);
    free(path);
    temporary_remove(folder);
}

/* ---- tokenizer.json ---- */

/* Reads, writes, reads and compares the binary sections; returns the written text. */
static char *round_trip(const char *json, size_t n, const char *subject)
{
    struct moec_error err = {0};
    struct moec_tokenizer_model model = {0}, again = {0};
    char *text = NULL;
    void *a = NULL, *b = NULL;
    size_t n_text = 0, n_a = 0, n_b = 0;
    assert_status(moec_tokenizer_json_read(json, n, subject, &model, &err), MOEC_OK, err);
    assert_status(moec_tokenizer_json_write(&model, subject, &text, &n_text, &err), MOEC_OK, err);
    assert_int_equal(strlen(text), n_text);
    assert_status(moec_tokenizer_json_read(text, n_text, subject, &again, &err), MOEC_OK, err);
    assert_status(moec_tokenizer_model_encode(&model, &a, &n_a, &err), MOEC_OK, err);
    assert_status(moec_tokenizer_model_encode(&again, &b, &n_b, &err), MOEC_OK, err);
    assert_int_equal(n_a, n_b);
    assert_memory_equal(a, b, n_a);
    moec_tokenizer_model_release(&model);
    moec_tokenizer_model_release(&again);
    free(a);
    free(b);
    return text;
}

static void test_checkpoint_write__tokenizer_fixtures(void **state)
{
    (void)state;
    DIR *entries = opendir("tests/fixtures/tokenizers");
    int n_fixture = 0;
    assert_non_null(entries);
    for (struct dirent *entry = readdir(entries); entry != NULL; entry = readdir(entries)) {
        if (entry->d_name[0] == '.')
            continue;
        size_t n = 0;
        char *folder = temporary_path("tests/fixtures/tokenizers", entry->d_name);
        if (strcmp(entry->d_name, "gptsan") == 0) { /* vocab.txt and emoji.json: test_japanese.c */
            free(folder);
            continue;
        }
        uint8_t *json = temporary_read(folder, "tokenizer.json", &n);
        free(round_trip((const char *)json, n, entry->d_name));
        free(json);
        free(folder);
        n_fixture++;
    }
    assert_int_equal(closedir(entries), 0);
    assert_true(n_fixture >= 8);
}

#define BPE "{\"model\": {\"type\": \"BPE\", "

static void test_checkpoint_write__tokenizer_corners(void **state)
{
    (void)state;
    static const char *const corners[] = {
        /* an unk_token that is not there, while <unk> is */
        BPE "\"vocab\": {\"a\": 0, \"<unk>\": 1}, \"merges\": [], \"unk_token\": \"gone\"}}",
        /* a pair listed twice, whose later rank counts */
        BPE
        "\"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2, \"ba\": 3}, \"merges\": [\"a b\", \"b a\", \"a b\"]}}",
        /* ids with holes before and an empty token among them, so that an added token comes past the count */
        BPE
        "\"vocab\": {\"a\": 5, \"\": 2, \"c\": 0}, \"merges\": []}, \"added_tokens\": [{\"content\": \"x\", "
        "\"special\": true, \"single_word\": false, \"lstrip\": true, "
        "\"rstrip\": false, \"normalized\": false}]}",
        /* the last id is the empty token */
        BPE "\"vocab\": {\"a\": 0, \"\": 7}, \"merges\": []}}",
        /* added tokens with a NUL and in the post-processor, on both sides */
        BPE
        "\"vocab\": {\"a\": 0, \"<s>\": 1}, \"merges\": []}, \"added_tokens\": [{\"content\": \"n\\u0000l\", "
        "\"special\": true, \"single_word\": true, \"lstrip\": false, \"rstrip\": true, \"normalized\": "
        "true}], \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": "
        "{\"id\": \"<s>\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, "
        "{\"SpecialToken\": {\"id\": \"e\", \"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"<s>\", "
        "\"type_id\": 0}}], \"special_tokens\": {\"<s>\": {\"ids\": [1]}, \"e\": {\"ids\": [2]}}}}",
        BPE "\"vocab\": {}, \"merges\": []}}",
        /* Unigram: scores of every kind, no unk_id, an added token behind the vocabulary */
        "{\"model\": {\"type\": \"Unigram\", \"byte_fallback\": true, \"vocab\": [[\"a\", -0.0], "
        "[\"n\\u0000l\", 3], [\"b\", -1e-310], [\"c\", -2.0122928619384766]]}, \"added_tokens\": "
        "[{\"content\": \"x\", \"special\": true, \"single_word\": false, \"lstrip\": true, \"rstrip\": "
        "false, \"normalized\": false}]}",
        "{\"model\": {\"type\": \"Unigram\", \"vocab\": []}}",
    };
    for (size_t i = 0; i < sizeof corners / sizeof *corners; i++)
        free(round_trip(corners[i], strlen(corners[i]), "corner"));
}

static void test_checkpoint_write__tokenizer_that_no_file_gives(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_tokenizer_model model = {0};
    const char *json = BPE "\"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, \"merges\": [\"a b\"]}, "
                           "\"normalizer\": {\"type\": \"NFC\"}}";
    char *text = NULL;
    size_t n = 0;
    assert_status(moec_tokenizer_json_read(json, strlen(json), "t", &model, &err), MOEC_OK, err);
    struct moec_tokenizer_step *step = (struct moec_tokenizer_step *)(uintptr_t)model.normalizer;
    step->flags = MOEC_STEP_INVERT;
    assert_status(moec_tokenizer_json_write(&model, "t", &text, &n, &err), MOEC_ERR_UNSUPPORTED, err);
    assert_message(err, "would give a different tokenizer");
    step->flags = 0;
    struct moec_tokenizer_merge *merge = (struct moec_tokenizer_merge *)(uintptr_t)model.merges;
    merge->rank = UINT32_MAX;
    err = (struct moec_error){0};
    assert_status(moec_tokenizer_json_write(&model, "t", &text, &n, &err), MOEC_ERR_UNSUPPORTED, err);
    assert_message(err, "rank");
    moec_tokenizer_model_release(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint_write__every_family_reads_back_exactly),
        cmocka_unit_test(test_checkpoint_write__keeps_16_bit_experts),
        cmocka_unit_test(test_checkpoint_write__all_or_nothing),
        cmocka_unit_test(test_checkpoint_write__removes_abandoned_folders),
        cmocka_unit_test(test_checkpoint_write__refuses_unknown_families),
        cmocka_unit_test(test_checkpoint_write__refuses_routes_to_no_expert),
        cmocka_unit_test(test_checkpoint_write__safetensors),
        cmocka_unit_test(test_checkpoint_write__tokenizer_fixtures),
        cmocka_unit_test(test_checkpoint_write__tokenizer_corners),
        cmocka_unit_test(test_checkpoint_write__tokenizer_that_no_file_gives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
