/* The tokenizer of vocab.txt and emoji.json: what is refused, what is written back, and damaged ones. Its ids
 * are those of transformers in test_tokenizer.c. */
#include "tests/unit/temporary.h"

#include "formats/tokenizer/folder_tokenizer.h"
#include "formats/tokenizer/japanese_vocab.h"
#include "runtime/text/tokenizer.h"

#define FIXTURE "tests/fixtures/tokenizers/gptsan"

#define SPECIAL "<|startoftext|>\n<|endoftext|>\n<|nottoken|>\n<|segmenter|>\n<|separator|>\n"
static const char vocab[] = "a,b\n,\n<SP>\n<|byte195|>\n<|emoji1|>\n<|bagoftoken|>\n" SPECIAL;
static const char emoji[] = "{\"emoji\": {\":)\": \"<|emoji1|>\"}, \"emoji_inv\": {\"<|emoji1|>\": \":)\"}}";

static enum moec_status load(const char *lines, const char *pairs, const char *config,
                             struct moec_tokenizer_model *model, struct moec_error *err)
{
    char *folder = temporary_folder();
    const char *const *files = NULL;
    temporary_write(folder, "vocab.txt", lines, strlen(lines));
    temporary_write(folder, "emoji.json", pairs, strlen(pairs));
    temporary_write(folder, "tokenizer_config.json", config, strlen(config));
    temporary_write(folder, "config.json", "{\"model_type\": \"gptsan-japanese\"}", 33);
    const enum moec_status status = moec_folder_tokenizer_load(folder, 4096, model, &files, err);
    if (status == MOEC_OK)
        assert_string_equal(files[1], "emoji.json");
    temporary_remove(folder);
    return status;
}

static void test_japanese__refuses(void **state)
{
    (void)state;
    const struct {
        const char *vocab, *emoji, *config;
        enum moec_status status;
        const char *part;
    } cases[] = {
        {vocab, emoji, "{\"tokenizer_class\": \"GPTNeoXJapaneseTokenizer\"}", MOEC_ERR_UNSUPPORTED,
         "its class is 'GPTNeoXJapaneseTokenizer'"},
        {vocab, emoji, "{\"do_clean_text\": true}", MOEC_ERR_UNSUPPORTED, "'do_clean_text' true"},
        {vocab, emoji, "{\"sep_token\": null}", MOEC_ERR_UNSUPPORTED, "no 'sep_token'"},
        {vocab, emoji, "{\"sep_token\": \"<s>\"}", MOEC_ERR_UNSUPPORTED, "'<s>', which is not in"},
        {vocab, emoji, "{\"sep_token\": \"b\"}", MOEC_ERR_UNSUPPORTED,
         "'b', which has a different id or more than one spelling"},
        {vocab, emoji, "{\"sep_token\": {\"content\": \"<SP>\", \"lstrip\": true}}", MOEC_ERR_UNSUPPORTED,
         "'<SP>' with 'single_word', 'lstrip'"},
        {vocab, emoji, "{\"added_tokens_decoder\": {\"3\": {\"content\": \"<SP>\"}}}", MOEC_ERR_UNSUPPORTED,
         "'<SP>', which has a different id"},
        {"a\n" SPECIAL ",", emoji, "{}", MOEC_ERR_UNSUPPORTED, "is a comma without a line break"},
        {"a\xff\n" SPECIAL, emoji, "{}", MOEC_ERR_FORMAT, "token 0 is not UTF-8"},
        {vocab, "{\"emoji\": {}}", "{}", MOEC_ERR_FORMAT, "emoji_inv"},
        {vocab, "{\"emoji\": {\"\": \"a\"}, \"emoji_inv\": {}}", "{}", MOEC_ERR_UNSUPPORTED,
         "a key that is empty"},
        {vocab, "{\"emoji\": {\"a\": 1}, \"emoji_inv\": {}}", "{}", MOEC_ERR_FORMAT, "emoji.json"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moec_tokenizer_model model;
        struct moec_error err = {0};
        if (load(cases[i].vocab, cases[i].emoji, cases[i].config, &model, &err) != cases[i].status ||
            strstr(err.message, cases[i].part) == NULL)
            fail_msg("case %zu: '%s', expected '%s'", i, err.message, cases[i].part);
        assert_null(model.block);
    }
}

/* Replacements that make a text longer and longer. */
static void test_japanese__stops_exploding_replacements(void **state)
{
    (void)state;
    char pairs[4096] = "{\"emoji_inv\": {}, \"emoji\": {\"a\": \"b\"";
    for (int i = 0; i < 26; i++) {
        char pair[40];
        (void)snprintf(pair, sizeof pair, ", \"%c\": \"%c%c%c%c%c%c%c%c\"", 'b' + i, 'c' + i, 'c' + i,
                       'c' + i, 'c' + i, 'c' + i, 'c' + i, 'c' + i, 'c' + i);
        (void)strncat(pairs, i < 20 ? pair : "", sizeof pairs - strlen(pairs) - 1);
    }
    (void)strncat(pairs, "}}", sizeof pairs - strlen(pairs) - 1);
    struct moec_tokenizer_model model;
    struct moec_tokenizer *tokenizer = NULL;
    struct moec_error err = {0};
    uint32_t *ids = NULL;
    size_t n_ids = 0;
    assert_ok(load(vocab, pairs, "{}", &model, &err), err);
    assert_ok(moec_tokenizer_create(&model, &tokenizer, &err), err);
    assert_int_equal(
        moec_tokenizer_encode(tokenizer, (struct moec_text){"aaaa", 4}, true, &ids, &n_ids, &err),
        MOEC_ERR_LIMIT);
    assert_non_null(strstr(err.message, "the tokenizer's replacements"));
    moec_tokenizer_free(tokenizer);
    moec_tokenizer_model_release(&model);
}

/* What export writes reads back as the same tokenizer. */
static void test_japanese__is_written_back(void **state)
{
    (void)state;
    struct moec_tokenizer_model first, second;
    struct moec_error err = {0};
    const char *const *files = NULL;
    char *folder = temporary_folder(), *lines = NULL, *pairs = NULL, *config = NULL;
    struct moec_json_out *root = moec_json_out_object();
    void *bytes[2] = {NULL, NULL};
    size_t n_bytes[2] = {0, 0};
    assert_ok(moec_folder_tokenizer_load(FIXTURE, 4096, &first, &files, &err), err);
    assert_ok(moec_japanese_vocab_write(&first, &lines, &pairs, root, &err), err);
    assert_ok(moec_json_out_text(root, &config, &err), err);
    assert_ok(load(lines, pairs, config, &second, &err), err);
    assert_ok(moec_tokenizer_model_encode(&first, &bytes[0], &n_bytes[0], &err), err);
    assert_ok(moec_tokenizer_model_encode(&second, &bytes[1], &n_bytes[1], &err), err);
    assert_int_equal(n_bytes[0], n_bytes[1]);
    assert_memory_equal(bytes[0], bytes[1], n_bytes[0]);
    moec_json_out_free(root);
    moec_tokenizer_model_release(&first);
    moec_tokenizer_model_release(&second);
    free(bytes[0]);
    free(bytes[1]);
    free(lines);
    free(pairs);
    free(config);
    temporary_remove(folder);
}

static void use(const struct moec_tokenizer *tokenizer)
{
    static const char text[] = "a b:),\xc3\xa9 <SP><|bagoftoken|>\xff";
    struct moec_error err = {0};
    uint32_t *ids = NULL;
    size_t n_ids = 0, n_bytes = 0;
    char *decoded = NULL;
    if (moec_tokenizer_encode(tokenizer, (struct moec_text){text, sizeof text - 1}, true, &ids, &n_ids,
                              &err) == MOEC_OK &&
        moec_tokenizer_decode(tokenizer, (struct moec_token_ids){ids, n_ids}, false, &decoded, &n_bytes,
                              &err) == MOEC_OK)
        free(decoded);
    free(ids);
}

/* Every cut is refused; every flipped bit is refused or gives a tokenizer that can be used. */
static void test_japanese__survives_damage(void **state)
{
    (void)state;
    struct moec_tokenizer_model good;
    struct moec_error err = {0};
    void *bytes = NULL;
    size_t n_bytes = 0;
    assert_ok(load(vocab, emoji, "{}", &good, &err), err);
    assert_ok(moec_tokenizer_model_encode(&good, &bytes, &n_bytes, &err), err);
    uint8_t *flipped = bytes;
    for (size_t bit = 0; bit < 8 * n_bytes; bit++) {
        struct moec_tokenizer_model model;
        struct moec_tokenizer *tokenizer = NULL;
        assert_int_not_equal(moec_tokenizer_model_decode(bytes, bit / 8, "b", &model, &err), MOEC_OK);
        flipped[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        if (moec_tokenizer_model_decode(bytes, n_bytes, "b", &model, &err) == MOEC_OK &&
            moec_tokenizer_create(&model, &tokenizer, &err) == MOEC_OK)
            use(tokenizer);
        moec_tokenizer_free(tokenizer);
        moec_tokenizer_model_release(&model);
        flipped[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    free(bytes);
    moec_tokenizer_model_release(&good);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_japanese__refuses),
        cmocka_unit_test(test_japanese__stops_exploding_replacements),
        cmocka_unit_test(test_japanese__is_written_back),
        cmocka_unit_test(test_japanese__survives_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
