/* tokenizer.json files by hand: what is refused, with file and place, and patterns and replacements that
 * would not end. */
#include "formats/tokenizer/tokenizer_json.h"
#include "runtime/text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define HEAD                                                                                                 \
    "{\"added_tokens\": [], \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, "
#define UNIGRAM "{\"model\": {\"type\": \"Unigram\", \"vocab\": "
#define MERGES  "\"merges\": [[\"a\", \"b\"]]}"

static void test_tokenizer_json__refuses_with_file_and_place(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        enum moec_status status;
        const char *part;
    } cases[] = {
        {"{\"model\": ", MOEC_ERR_FORMAT, "'t.json' is not valid JSON at line 1"},
        {"[]", MOEC_ERR_FORMAT, "'t.json' holds an array, expected an object"},
        {"{}", MOEC_ERR_FORMAT, "'t.json' has no 'model'"},
        {"{\"model\": {\"type\": \"WordPiece\"}}", MOEC_ERR_UNSUPPORTED,
         "model.type in 't.json' is 'WordPiece'"},
        {HEAD "\"merges\": [\"a b\", \"ab\"]}}", MOEC_ERR_FORMAT, "model.merges[1] in 't.json' is 'ab'"},
        {HEAD "\"merges\": [[\"b\", \"a\"]]}}", MOEC_ERR_FORMAT,
         "model.merges[0] in the tokenizer 't.json' needs the token 'ba'"},
        {HEAD "\"merges\": [[\"a\", \"b\"], [\"a\"]]}}", MOEC_ERR_FORMAT, "model.merges[1]"},
        {HEAD "\"dropout\": 0.1, " MERGES "}", MOEC_ERR_UNSUPPORTED, "model.dropout"},
        {HEAD "\"end_of_word_suffix\": \"</w>\", " MERGES "}", MOEC_ERR_UNSUPPORTED,
         "model.end_of_word_suffix"},
        {HEAD MERGES ", \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": "
                     "[{\"type\": \"NFC\"}, {\"type\": \"BertNormalizer\"}]}}",
         MOEC_ERR_UNSUPPORTED, "normalizer.normalizers[1] in 't.json' is 'BertNormalizer'"},
        {HEAD MERGES ", \"normalizer\": {\"type\": \"Precompiled\"}}", MOEC_ERR_FORMAT,
         "precompiled_charsmap"},
        {HEAD MERGES ", \"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"AAA\"}}",
         MOEC_ERR_FORMAT, "a multiple of 4"},
        {HEAD MERGES ", \"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"AA*A\"}}",
         MOEC_ERR_FORMAT, "not base64 at characters 0 to 3"},
        {HEAD MERGES ", \"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"AAAA\"}}",
         MOEC_ERR_FORMAT, "the character map of 3 bytes"},
        {HEAD MERGES
         ", \"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"BAAAAAAAAAD/\"}}",
         MOEC_ERR_FORMAT, "not UTF-8"},
        {UNIGRAM "{}}}", MOEC_ERR_FORMAT, "'vocab' in model in 't.json' is an object"},
        {UNIGRAM "[\"a\"]}}", MOEC_ERR_FORMAT, "model.vocab[0] in 't.json' is a string"},
        {UNIGRAM "[[\"a\", 0], [\"\", 0]]}}", MOEC_ERR_FORMAT, "model.vocab[1] in 't.json' is an empty text"},
        {UNIGRAM "[[\"a\", \"b\"]]}}", MOEC_ERR_FORMAT, "model.vocab[0]"},
        {UNIGRAM "[[\"a\", 0], [\"b\", 0], [\"a\", 1]]}}", MOEC_ERR_FORMAT,
         "tokens 0 and 2 of the tokenizer of 't.json' are both 'a'"},
        {UNIGRAM "[[\"a\", 0]], \"unk_id\": 1}}", MOEC_ERR_FORMAT, "unk_id"},
        {UNIGRAM "[], \"unk_id\": 0}}", MOEC_ERR_FORMAT, "unk_id"},
        {HEAD MERGES ", \"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"}}", MOEC_ERR_UNSUPPORTED,
         "pre_tokenizer"},
        {HEAD MERGES ", \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": "
                     "{\"Regex\": \"a\"}, \"behavior\": \"isolated\"}}",
         MOEC_ERR_FORMAT, "'behavior' in pre_tokenizer in 't.json' is 'isolated'"},
        {HEAD MERGES ", \"post_processor\": {\"type\": \"PairProcessing\"}}", MOEC_ERR_UNSUPPORTED,
         "post_processor"},
        {HEAD MERGES ", \"post_processor\": {\"type\": \"BertProcessing\"}}", MOEC_ERR_FORMAT,
         "post_processor in 't.json' has no 'cls'"},
        {HEAD MERGES ", \"post_processor\": {\"type\": \"RobertaProcessing\", \"cls\": [\"a\", 99], "
                     "\"sep\": [\"a\", 0]}}",
         MOEC_ERR_FORMAT, "the id of 'cls' in post_processor in 't.json' is 99, expected an id below"},
        {HEAD MERGES ", \"post_processor\": {\"type\": \"RobertaProcessing\", \"cls\": [\"a\"], "
                     "\"sep\": [\"a\", 0]}}",
         MOEC_ERR_FORMAT, "has 1 items, expected a token and its id"},
        {HEAD MERGES ", \"decoder\": {\"type\": \"CTC\"}}", MOEC_ERR_UNSUPPORTED,
         "decoder in 't.json' is 'CTC'"},
        {HEAD MERGES ", \"decoder\": {\"type\": \"Sequence\", \"decoders\": "
                     "[{\"type\": \"Fuse\"}, {\"type\": \"ByteFallback\"}]}}",
         MOEC_ERR_UNSUPPORTED, "decoder step 1"},
        {HEAD MERGES
         ", \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"ByteLevel\"}, "
         "{\"type\": \"Digits\"}]}}",
         MOEC_ERR_UNSUPPORTED, "after ByteLevel"},
        {"{\"model\": {\"vocab\": {\"a\": 0, \"b\": 0}, \"merges\": []}}", MOEC_ERR_FORMAT,
         "tokens 'a' and 'b' in the tokenizer 't.json' both have id 0"},
        {"{\"model\": {\"vocab\": {\"a\": -1}, \"merges\": []}}", MOEC_ERR_FORMAT, "the id of token 'a'"},
        {"{\"model\": {\"vocab\": {\"a\": 99999999}, \"merges\": []}}", MOEC_ERR_FORMAT,
         "the id of token 'a'"},
        {"{\"model\": {\"vocab\": {\"a\": 0, \"a\": 1}, \"merges\": []}}", MOEC_ERR_FORMAT, "duplicate"},
        {"{\"model\": {\"vocab\": [], \"merges\": []}}", MOEC_ERR_FORMAT,
         "'vocab' in model in 't.json' is an array"},
        {"{\"model\": {\"vocab\": {}, \"merges\": []}, \"added_tokens\": [{\"content\": \"x\"}]}",
         MOEC_ERR_FORMAT, "added_tokens[0] in 't.json' has no 'special'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct moec_tokenizer_model model;
        struct moec_error err = {0};
        enum moec_status status =
            moec_tokenizer_json_read(cases[i].json, strlen(cases[i].json), "t.json", &model, &err);
        if (status != cases[i].status || strstr(err.message, cases[i].part) == NULL)
            fail_msg("case %zu: status %d, '%s'", i, (int)status, err.message);
        assert_null(model.block);
    }
}

/* Creates a byte-level tokenizer that splits with `pattern`; returns the status and the message. */
static enum moec_status create_with_pattern(const char *pattern, struct moec_error *err)
{
    char json[1024];
    struct moec_tokenizer_model model;
    struct moec_tokenizer *tokenizer = NULL;
    *err = (struct moec_error){0};
    (void)snprintf(
        json, sizeof json,
        "{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": []}, \"pre_tokenizer\": {\"type\": \"Split\", "
        "\"pattern\": {\"Regex\": \"%s\"}, \"behavior\": \"Isolated\"}}",
        pattern);
    enum moec_status status = moec_tokenizer_json_read(json, strlen(json), "t.json", &model, err);
    if (status == MOEC_OK)
        status = moec_tokenizer_create(&model, &tokenizer, err);
    moec_tokenizer_free(tokenizer);
    moec_tokenizer_model_release(&model);
    return status;
}

static void test_tokenizer_json__refuses_patterns_that_mean_something_else(void **state)
{
    (void)state;
    static const char *const refused[] = {
        "\\\\h",
        "a\\\\b",
        "\\\\R",
        "\\\\X",
        "(a)\\\\1",
        "[a-[bc]]",
        "[[a]-z]",
        "[a&&]",
        "[&&a]",
        "[a[]]",
        "[a[b]",
        "[[:alpha:]]",
        "[a[[:alpha:]]]",
        "[[[[[[[[[[[[[[[[[[a]]]]]]]]]]]]]]]]]]",
        "(?<name>a)",
        "(?m:a)",
        "(?x:a b)",
        "a{2}?",
        "a{2}+",
        "a**",
        "*a",
        "(",
        ")",
        "[",
        "[]",
        "\\\\",
        "\\\\p{Foo}",
        "\\\\pL",
        "\\\\xA0",
        "\\\\x{110000}",
        "\\\\u12",
        "[\\\\W]",
        "[z-a]",
        "(?i:ss)",
        "(?i:\xc3\x9f)",
        "(?i:\\\\p{Lu})",
        "a(?i)b",
        "(?<=a*)b",
        "\\\\p{L",
        "(?#note)",
        "[\\\\d-z]",
        "\\\\x{d800}",
        "(?:(?:a{60000}){60000})",
    };
    struct moec_error err;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        if (create_with_pattern(refused[i], &err) != MOEC_ERR_UNSUPPORTED ||
            strstr(err.message, "pre-tokenizer step 0 of the tokenizer: pattern '") == NULL)
            fail_msg("pattern '%s': '%s'", refused[i], err.message);
    }
    static const char *const accepted[] = {
        "a{",
        "a{,3}",
        "a{2,}b{1,2}",
        "(a|b)+?c*+",
        "(?i:'s|'t)|x",
        "(?i)ab",
        "[-a]",
        "[a[bc]]",
        "[a&&b]",
        "[^a[b-d]&&[^c]]*+",
        "[a-]",
        "[^\\\\s\\\\p{L}\\\\-]+",
        "\\\\u0041\\\\x41\\\\x{1F600}",
        "(?=a)(?!b)(?<=c)(?<!d)(?>e)",
        "^a.$",
        "\\\\Aa\\\\z",
        "\\\\p{^L}\\\\P{N}",
        "",
    };
    for (size_t i = 0; i + 1 < sizeof accepted / sizeof accepted[0]; i++) {
        if (create_with_pattern(accepted[i], &err) != MOEC_OK)
            fail_msg("pattern '%s': '%s'", accepted[i], err.message);
    }
    assert_int_equal(create_with_pattern("", &err), MOEC_ERR_UNSUPPORTED);
}

/* Ids of a text cut into characters, a mark before those of its first character. */
static void check_first(const char *form, const char *text, const uint32_t *expected, size_t n_expected)
{
    char json[512];
    struct moec_tokenizer_model model;
    struct moec_tokenizer *tokenizer = NULL;
    struct moec_error err = {0};
    uint32_t *ids = NULL;
    size_t n_ids = 0;
    const int n =
        snprintf(json, sizeof json,
                 "{\"model\": {\"vocab\": {\"\u2581\": 0, \"1\": 1, \"\u2044\": 2, \"2\": 3, \"x\": 4, "
                 "\"\u0644\": 5, \"\u0627\": 6, \"\u0653\": 7, \"\u05ad\": 8}, \"merges\": []}, "
                 "\"normalizer\": {\"type\": \"%s\"}, \"pre_tokenizer\": {\"type\": \"Sequence\", "
                 "\"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": \".\"}, "
                 "\"behavior\": \"Isolated\", \"invert\": false}, {\"type\": \"Metaspace\", "
                 "\"replacement\": \"\u2581\", \"prepend_scheme\": \"first\", \"split\": false}]}}",
                 form);
    assert_int_equal(moec_tokenizer_json_read(json, (size_t)n, "t.json", &model, &err), MOEC_OK);
    assert_int_equal(moec_tokenizer_create(&model, &tokenizer, &err), MOEC_OK);
    assert_int_equal(
        moec_tokenizer_encode(tokenizer, (struct moec_text){text, strlen(text)}, false, &ids, &n_ids, &err),
        MOEC_OK);
    assert_int_equal(n_ids, n_expected);
    assert_memory_equal(ids, expected, n_expected * sizeof *expected);
    free(ids);
    moec_tokenizer_free(tokenizer);
    moec_tokenizer_model_release(&model);
}

/* Metaspace's "first" is decided by the character that a part stands for, which a compatibility form may have
 * made several of, and a mark that follows may stand between these (ids of tokenizers 0.23). */
static void test_tokenizer_json__first_is_the_character_given(void **state)
{
    (void)state;
    static const uint32_t half[] = {0, 1, 0, 2, 0, 3, 4, 1, 2, 3}, ligature[] = {0, 5, 0, 6, 0, 7, 4},
                          marked[] = {0, 5, 0, 6, 8, 7, 4};
    check_first("NFKC", "\u00bdx\u00bd", half, sizeof half / sizeof *half);
    check_first("NFKD", "\ufef5x", ligature, sizeof ligature / sizeof *ligature);
    check_first("NFKD", "\ufef5\u05adx", marked, sizeof marked / sizeof *marked);
}

static void test_tokenizer_json__stops_endless_backtracking(void **state)
{
    (void)state;
    static const char json[] = "{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": []}, \"pre_tokenizer\": "
                               "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"(?:a|aa)+c\"}, "
                               "\"behavior\": \"Isolated\"}}";
    struct moec_error err = {0};
    struct moec_tokenizer_model model;
    struct moec_tokenizer *tokenizer = NULL;
    uint32_t *ids = NULL;
    size_t n_ids = 0;
    char text[200];
    memset(text, 'a', sizeof text);
    /* Without a c in the text PCRE2 would see at once that there is no match. */
    memcpy(text + sizeof text - 2, "-c", 2);
    assert_int_equal(moec_tokenizer_json_read(json, sizeof json - 1, "t.json", &model, &err), MOEC_OK);
    assert_int_equal(moec_tokenizer_create(&model, &tokenizer, &err), MOEC_OK);
    assert_int_equal(
        moec_tokenizer_encode(tokenizer, (struct moec_text){text, sizeof text}, false, &ids, &n_ids, &err),
        MOEC_ERR_LIMIT);
    assert_null(ids);
    moec_tokenizer_free(tokenizer);
    moec_tokenizer_model_release(&model);
}

static void test_tokenizer_json__stops_exploding_replacements(void **state)
{
    (void)state;
    char json[8192];
    int used = snprintf(json, sizeof json,
                        "{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": []}, \"normalizer\": {\"type\": "
                        "\"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}");
    for (int i = 0; i < 20; i++)
        used += snprintf(
            json + used, sizeof json - (size_t)used,
            ", {\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, \"content\": \"aaaaaaaaaaaaaaaa\"}");
    used += snprintf(json + used, sizeof json - (size_t)used, "]}}");
    struct moec_error err = {0};
    struct moec_tokenizer_model model;
    struct moec_tokenizer *tokenizer = NULL;
    uint32_t *ids = NULL;
    size_t n_ids = 0;
    assert_int_equal(moec_tokenizer_json_read(json, (size_t)used, "t.json", &model, &err), MOEC_OK);
    assert_int_equal(moec_tokenizer_create(&model, &tokenizer, &err), MOEC_OK);
    assert_int_equal(moec_tokenizer_encode(tokenizer, (struct moec_text){"a", 1}, false, &ids, &n_ids, &err),
                     MOEC_ERR_LIMIT);
    moec_tokenizer_free(tokenizer);
    moec_tokenizer_model_release(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokenizer_json__refuses_with_file_and_place),
        cmocka_unit_test(test_tokenizer_json__refuses_patterns_that_mean_something_else),
        cmocka_unit_test(test_tokenizer_json__first_is_the_character_given),
        cmocka_unit_test(test_tokenizer_json__stops_endless_backtracking),
        cmocka_unit_test(test_tokenizer_json__stops_exploding_replacements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
