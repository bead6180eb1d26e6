/* Tokens that a folder declares beside its tokenizer.json: ids are those of transformers, whose answers stand
 * in expected.txt (tests/fixtures/make_declared.py). */
#include "tests/unit/temporary.h"

#include "formats/tokenizer/folder_tokenizer.h"
#include "runtime/text/tokenizer.h"

#define DECLARED "tests/fixtures/declared/"

static void check_ids(const struct moec_tokenizer *tokenizer, const char *name, const char *text,
                      size_t n_text, bool with_special, char *ids)
{
    size_t n_got = 0, n = 0;
    uint32_t *got = NULL;
    struct moec_error err = {0};
    assert_ok(
        moec_tokenizer_encode(tokenizer, (struct moec_text){text, n_text}, with_special, &got, &n_got, &err),
        err);
    for (char *rest = NULL, *id = strtok_r(ids, " ", &rest); id != NULL; id = strtok_r(NULL, " ", &rest), n++)
        if (n >= n_got || got[n] != strtoul(id, NULL, 10))
            fail_msg("%s, text '%.*s': id %zu is %ld, expected %s", name, (int)n_text, text, n,
                     n < n_got ? (long)got[n] : -1, id);
    assert_int_equal(n, n_got);
    free(got);
}

/* A text in hex, its ids, and in some files those with special tokens around it. */
static void check_line(const struct moec_tokenizer *tokenizer, const char *name, char *line)
{
    char text[256], *ids = strchr(line, '\t');
    size_t n_text = 0;
    assert_non_null(ids);
    *ids++ = '\0';
    char *around = strchr(ids, '\t');
    if (around != NULL)
        *around++ = '\0';
    for (; line[2 * n_text] != '\0'; n_text++) {
        unsigned byte = 0;
        assert_int_equal(sscanf(line + 2 * n_text, "%2x", &byte), 1);
        text[n_text] = (char)byte;
    }
    check_ids(tokenizer, name, text, n_text, false, ids);
    if (around != NULL)
        check_ids(tokenizer, name, text, n_text, true, around);
}

static void test_declared_tokens__ids_are_those_of_transformers(void **state)
{
    (void)state;
    static const char *const names[] = {"decoder",    "legacy",    "prefix",
                                        "bare-qwen2", "bare-gpt2", "bare-neox"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const bool is_bare = strncmp(names[i], "bare", 4) == 0;
        char *folder = temporary_path(DECLARED, names[i]);
        struct moec_tokenizer_model model;
        struct moec_tokenizer *tokenizer = NULL;
        const char *const *files = NULL;
        struct moec_error err = {0};
        size_t n_bytes = 0, n_lines = 0;
        assert_ok(moec_folder_tokenizer_load(folder, 4096, &model, &files, &err), err);
        assert_string_equal(files[0], is_bare ? "vocab.json" : "tokenizer.json");
        assert_string_equal(files[1],
                            is_bare ? "merges.txt"
                                    : "tokenizer_config.json"); /* a digest covers what made a difference */
        assert_ok(moec_tokenizer_create(&model, &tokenizer, &err), err);
        uint8_t *read = temporary_read(folder, "expected.txt", &n_bytes);
        char *lines = realloc(read, n_bytes + 1);
        assert_non_null(lines);
        lines[n_bytes] = '\0';
        for (char *line = lines, *end; (end = strchr(line, '\n')) != NULL; line = end + 1, n_lines++) {
            *end = '\0';
            check_line(tokenizer, names[i], line);
        }
        assert_true(n_lines > 100);
        free(lines);
        moec_tokenizer_free(tokenizer);
        moec_tokenizer_model_release(&model);
        free(folder);
    }
}

static uint32_t n_tokens(const char *folder, uint64_t vocab_size, const char *second_file)
{
    struct moec_tokenizer_model model;
    const char *const *files = NULL;
    struct moec_error err = {0};
    assert_ok(moec_folder_tokenizer_load(folder, vocab_size, &model, &files, &err), err);
    if (second_file == NULL)
        assert_null(files[1]);
    else
        assert_string_equal(files[1], second_file);
    const uint32_t n = model.n_tokens;
    moec_tokenizer_model_release(&model);
    return n;
}

/* Tokens past the embedding are left out; a folder whose files say nothing new has the tokenizer of its
 * tokenizer.json, and the digest that it always had. */
static void test_declared_tokens__what_makes_no_difference(void **state)
{
    (void)state;
    const uint32_t all = n_tokens(DECLARED "legacy", 4096, "tokenizer_config.json");
    assert_int_equal(n_tokens(DECLARED "legacy", all - 2, "tokenizer_config.json"), all - 2);
    assert_true(n_tokens("datasets/sample/model", 2048, NULL) <= 2048);
}

static void refuse_in(const char *source, const char *name, const char *text, enum moec_status status,
                      const char *part)
{
    char *folder = temporary_folder();
    struct moec_tokenizer_model model;
    const char *const *files = NULL;
    struct moec_error err = {0};
    temporary_copy(source, folder);
    temporary_write(folder, name, text, strlen(text));
    assert_status(moec_folder_tokenizer_load(folder, 4096, &model, &files, &err), status, err);
    assert_message(err, part);
    assert_null(model.block);
    temporary_remove(folder);
}

static void refuse(const char *name, const char *text, enum moec_status status, const char *part)
{
    refuse_in(DECLARED "legacy", name, text, status, part);
}

static void test_declared_tokens__bare_folders_that_are_refused(void **state)
{
    (void)state;
    const char *folder = DECLARED "bare-qwen2";
    refuse_in(folder, "tokenizer_config.json", "{\"tokenizer_class\": \"RobertaTokenizer\"}",
              MOEC_ERR_UNSUPPORTED,
              "which tokenizer class 'RobertaTokenizer' ('model_type' 'qwen3_moe') needs: without");
    refuse_in(folder, "config.json", "{\"model_type\": \"mixtral\"}", MOEC_ERR_UNSUPPORTED,
              "('model_type' 'mixtral') needs: without that file moec supports only GPT2Tokenizer");
    refuse_in(folder, "merges.txt", "#version: 0.2\na b\nabc\n", MOEC_ERR_FORMAT, "line 3 of the file '");
    refuse_in(folder, "merges.txt", "a b c\n", MOEC_ERR_FORMAT, "is not a merge, expected two tokens");
    refuse_in(folder, "vocab.json", "[1]", MOEC_ERR_FORMAT, "holds an array, expected an object");
    refuse_in(folder, "vocab.json", "-Infinity", MOEC_ERR_FORMAT, "holds -Infinity, expected an object");
    refuse_in(folder, "vocab.json", "{}, \"x\": {}", MOEC_ERR_FORMAT, "vocab.json");
}

static void test_declared_tokens__files_that_are_refused(void **state)
{
    (void)state;
    refuse("tokenizer_config.json", "[]", MOEC_ERR_FORMAT, "holds an array, expected an object");
    refuse("tokenizer_config.json", "{\"split_special_tokens\": true}", MOEC_ERR_UNSUPPORTED,
           "'split_special_tokens' true");
    refuse("tokenizer_config.json", "{\"added_tokens_decoder\": {\"x\": {\"content\": \"a\"}}}",
           MOEC_ERR_FORMAT, "key 'x' of 'added_tokens_decoder' in tokenizer_config.json is not a token id");
    refuse("tokenizer_config.json", "{\"added_tokens_decoder\": {\"1\": {\"special\": true}}}",
           MOEC_ERR_FORMAT, "has no 'content'");
    refuse("special_tokens_map.json", "{\"bos_token\": 7}", MOEC_ERR_FORMAT, "bos_token");
    refuse("added_tokens.json", "{\"<x>\": \"y\"}", MOEC_ERR_FORMAT, "an id of added_tokens.json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_declared_tokens__ids_are_those_of_transformers),
        cmocka_unit_test(test_declared_tokens__what_makes_no_difference),
        cmocka_unit_test(test_declared_tokens__files_that_are_refused),
        cmocka_unit_test(test_declared_tokens__bare_folders_that_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
