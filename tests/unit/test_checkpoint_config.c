/* Checkpoints that are opened by their JSON files, before any weights are there. */
#include "tests/unit/dense_load.h"
#include "tests/unit/fixture_checkpoint.h"

/* A folder with the fixture's JSON files; the caller removes it. */
static char *without_weights(const char *fixture)
{
    static const char *const names[] = {"config.json", "generation_config.json",
                                        "model.safetensors.index.json"};
    char *folder = temporary_folder();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = temporary_path(fixture, names[i]);
        if (access(path, R_OK) == 0) {
            size_t n = 0;
            uint8_t *bytes = temporary_read(fixture, names[i], &n);
            temporary_write(folder, names[i], bytes, n);
            free(bytes);
        }
        free(path);
    }
    return folder;
}

static struct moec_checkpoint *open_config(const char *path)
{
    struct moec_checkpoint *ck = NULL;
    struct moec_error err = {0};
    assert_status(moec_checkpoint_open_config(path, &ck, &err), MOEC_OK, err);
    return ck;
}

static void test_config__says_what_weights_would(void **state)
{
    (void)state;
    static const char *const fixtures[] = {
        FAMILIES "olmoe",     FAMILIES "olmoe-fp8",   FAMILIES "gpt_oss-mxfp4", FAMILIES "qwen2_moe-tied",
        FAMILIES "qwen2_moe", FAMILIES "deepseek_v3", FAMILIES "switch-full",   FAMILIES "gemma4",
    };
    for (size_t i = 0; i < sizeof fixtures / sizeof *fixtures; i++) {
        char *folder = without_weights(fixtures[i]);
        struct moec_checkpoint *whole = open_good(fixtures[i]), *ck = open_config(folder);
        struct moec_dense dense = {0}, expected = {0};
        struct moec_error err = {0};
        assert_true(moec_checkpoint_has_weights(whole) && !moec_checkpoint_has_weights(ck));
        assert_int_equal(moec_checkpoint_weight_bytes(ck), moec_checkpoint_weight_bytes(whole));
        assert_int_equal(moec_checkpoint_expert_bytes(ck), moec_checkpoint_expert_bytes(whole));
        assert_int_equal(moec_checkpoint_config(ck)->expert_dtype,
                         moec_checkpoint_config(whole)->expert_dtype);
        assert_status(moec_checkpoint_stream_dense(ck, 4, 0, &dense, &err), MOEC_OK, err);
        assert_status(moec_checkpoint_stream_dense(whole, 4, 0, &expected, &err), MOEC_OK, err);
        assert_int_equal(dense.blob_bytes, expected.blob_bytes);
        moec_dense_release(&dense);
        moec_dense_release(&expected);
        moec_checkpoint_close(whole);
        moec_checkpoint_close(ck);
        temporary_remove(folder);
    }
}

static void test_config__has_no_weights_to_read(void **state)
{
    (void)state;
    char *folder = without_weights(FAMILIES "olmoe");
    struct moec_checkpoint *ck = open_config(folder);
    struct expert_weights expert = expert_weights(moec_checkpoint_config(ck));
    struct moec_dense dense = {0};
    struct moec_error err = {0};
    uint8_t digest[MOEC_SHA256_BYTES];
    assert_non_null(strstr(moec_checkpoint_note(ck), "has no weights"));
    assert_status(dense_load(ck, 16, 0, &dense, &err), MOEC_ERR_NOT_FOUND, err);
    assert_status(moec_checkpoint_load_expert(
                      ck, 0, 0, (struct moec_expert_floats){expert.gate, expert.up, expert.down}, &err),
                  MOEC_ERR_NOT_FOUND, err);
    assert_status(moec_checkpoint_digest(ck, NULL, NULL, digest, &err), MOEC_ERR_NOT_FOUND, err);
    assert_non_null(strstr(err.message, "has no weights"));
    free(expert.gate);
    moec_checkpoint_close(ck);
    temporary_remove(folder);
}

/* Where weights are there they count, in the same words. */
static void test_config__opens_weights_that_are_there(void **state)
{
    (void)state;
    struct moec_checkpoint *ck = open_config(FAMILIES "olmoe/config.json");
    assert_true(moec_checkpoint_has_weights(ck));
    assert_null(moec_checkpoint_note(ck));
    moec_checkpoint_close(ck);
}

static void refuse(const char *name, const char *text, enum moec_status status, const char *words)
{
    char *folder = without_weights(FAMILIES "qwen2_moe");
    struct moec_checkpoint *ck = NULL;
    struct moec_error err = {0};
    temporary_write(folder, name, text, strlen(text));
    assert_status(moec_checkpoint_open_config(folder, &ck, &err), status, err);
    assert_non_null(strstr(err.message, words));
    assert_null(ck);
    temporary_remove(folder);
}

static void test_config__looks_for_names_in_the_index(void **state)
{
    (void)state;
    refuse("model.safetensors.index.json", "{\"weight_map\": {\"model.norm.weight\": \"a.safetensors\"}}",
           MOEC_ERR_FORMAT, "lists no tensor 'model.layers.0");
    refuse("model.safetensors.index.json", "{\"weight_map\": 1}", MOEC_ERR_FORMAT, "weight_map");
    refuse("model.safetensors.index.json", "{", MOEC_ERR_FORMAT, "index.json");
}

static void test_config__knows_types_of_weights(void **state)
{
    (void)state;
    size_t n = 0;
    char *text = (char *)temporary_read(FAMILIES "qwen2_moe", "config.json", &n);
    char changed[8192];
    const char *at = strstr(text, "\"bfloat16\"");
    assert_non_null(at);
    (void)snprintf(changed, sizeof changed, "%.*s\"int8\"%.*s", (int)(at - text), text,
                   (int)(n - (size_t)(at - text) - strlen("\"bfloat16\"")), at + strlen("\"bfloat16\""));
    char *folder = without_weights(FAMILIES "qwen2_moe");
    temporary_write(folder, "config.json", changed, strlen(changed));
    struct moec_checkpoint *ck = open_config(folder);
    assert_non_null(strstr(moec_checkpoint_note(ck), "for bfloat16 weights (it names no other type)"));
    moec_checkpoint_close(ck);
    temporary_remove(folder);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config__says_what_weights_would),
        cmocka_unit_test(test_config__has_no_weights_to_read),
        cmocka_unit_test(test_config__opens_weights_that_are_there),
        cmocka_unit_test(test_config__looks_for_names_in_the_index),
        cmocka_unit_test(test_config__knows_types_of_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
