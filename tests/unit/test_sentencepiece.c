#include "formats/base/file.h"
#include "formats/base/protobuf.h"
#include "formats/tokenizer/sentencepiece.h"
#include "formats/tokenizer/tokenizer_json.h"
#include "runtime/text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"unigram", "unigram-bytes", "bpe", "bpe-plain", "bpe-user", "suffix"};
#define N_NAMES (sizeof names / sizeof *names)

static char *load(const char *name, const char *file, size_t *n_bytes)
{
    char path[256], *bytes = NULL;
    struct moec_error err = {0};
    (void)snprintf(path, sizeof path, "tests/fixtures/sentencepiece/%s/%s", name, file);
    if (moec_file_load(path, 1u << 24, &bytes, n_bytes, &err) != MOEC_OK)
        fail_msg("%s", err.message);
    return bytes;
}

static void check_line(const struct moec_tokenizer *tokenizer, const char *name, size_t number, char *line)
{
    struct moec_error err = {0};
    char *ids = strchr(line, '\t');
    assert_non_null(ids);
    *ids++ = '\0';
    const size_t n_text = strlen(line) / 2;
    char *text = malloc(n_text + 1);
    assert_non_null(text);
    for (size_t i = 0; i < n_text; i++) {
        unsigned byte = 0;
        assert_int_equal(sscanf(line + 2 * i, "%2x", &byte), 1);
        text[i] = (char)byte;
    }
    uint32_t *got = NULL;
    size_t n_got = 0, n = 0;
    if (moec_tokenizer_encode(tokenizer, (struct moec_text){text, n_text}, true, &got, &n_got, &err) !=
        MOEC_OK)
        fail_msg("%s, case %zu: %s", name, number, err.message);
    for (char *rest = NULL, *id = strtok_r(ids, " ", &rest); id != NULL; id = strtok_r(NULL, " ", &rest), n++)
        if (n >= n_got || got[n] != strtoul(id, NULL, 10))
            fail_msg("%s, case %zu: id %zu is %u of %zu, expected %s", name, number, n,
                     n < n_got ? got[n] : 0, n_got, id);
    if (n != n_got)
        fail_msg("%s, case %zu: %zu ids, expected %zu", name, number, n_got, n);
    free(got);
    free(text);
}

/* Through the binary form, as a bundle carries it. */
static void test_sentencepiece__equals_its_library(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_NAMES; i++) {
        struct moec_error err = {0};
        struct moec_tokenizer_model read, model;
        struct moec_tokenizer *tokenizer = NULL;
        const struct moec_sentencepiece_affixes none = {0};
        size_t n_bytes = 0, n_expected = 0, n_case = 0, n_section = 0;
        char *bytes = load(names[i], "tokenizer.model", &n_bytes);
        char *expected = load(names[i], "expected.txt", &n_expected);
        void *section = NULL;
        if (moec_sentencepiece_read((uint8_t *)bytes, n_bytes, names[i], none, &read, &err) != MOEC_OK ||
            moec_tokenizer_model_encode(&read, &section, &n_section, &err) != MOEC_OK ||
            moec_tokenizer_model_decode(section, n_section, names[i], &model, &err) != MOEC_OK ||
            moec_tokenizer_create(&model, &tokenizer, &err) != MOEC_OK)
            fail_msg("%s", err.message);
        assert_int_equal(((uint8_t *)section)[4], 2);
        for (char *rest = NULL, *line = strtok_r(expected, "\n", &rest); line != NULL;
             line = strtok_r(NULL, "\n", &rest))
            check_line(tokenizer, names[i], n_case++, line);
        assert_true(n_case > 100);
        char *json = NULL;
        assert_int_equal(moec_tokenizer_json_write(&model, names[i], &json, &n_bytes, &err),
                         MOEC_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.message, ".model"));
        moec_tokenizer_free(tokenizer);
        moec_tokenizer_model_release(&model);
        moec_tokenizer_model_release(&read);
        free(section);
        free(expected);
        free(bytes);
    }
}

static void test_sentencepiece__decodes_and_adds_ends(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_tokenizer_model model;
    struct moec_tokenizer *tokenizer = NULL;
    const char *text = "The router's gate weights: é 日本";
    size_t n_bytes = 0, n_ids = 0, n_again = 0;
    uint32_t *ids = NULL;
    char *again = NULL, *bytes = load("bpe", "tokenizer.model", &n_bytes);
    const struct moec_sentencepiece_affixes both = {.bos = true, .eos = true};
    assert_int_equal(moec_sentencepiece_read((uint8_t *)bytes, n_bytes, "bpe", both, &model, &err), MOEC_OK);
    assert_int_equal(moec_tokenizer_create(&model, &tokenizer, &err), MOEC_OK);
    assert_int_equal(
        moec_tokenizer_encode(tokenizer, (struct moec_text){text, strlen(text)}, true, &ids, &n_ids, &err),
        MOEC_OK);
    assert_int_equal(ids[0], 1);
    assert_int_equal(ids[n_ids - 1], 2);
    assert_int_equal(moec_tokenizer_decode(tokenizer, (struct moec_token_ids){ids + 1, n_ids - 2}, true,
                                           &again, &n_again, &err),
                     MOEC_OK);
    assert_string_equal(again, text);
    free(again);
    free(ids);
    moec_tokenizer_free(tokenizer);
    moec_tokenizer_model_release(&model);
    free(bytes);
    /* The first kind has no BOS. */
    bytes = load("unigram", "tokenizer.model", &n_bytes);
    assert_int_equal(moec_sentencepiece_read((uint8_t *)bytes, n_bytes, "t5", both, &model, &err),
                     MOEC_ERR_FORMAT);
    assert_non_null(strstr(err.message, "'t5' has bos_id -1"));
    free(bytes);
}

#define SPACE "\xe2\x96\x81" /* what stands for a space in tokens */

static uint32_t find_token(const struct moec_tokenizer_model *model, const char *text, uint32_t n_bytes)
{
    for (uint32_t id = 0; id < model->n_tokens; id++) {
        uint32_t n = 0;
        const char *token = moec_tokenizer_model_text(model, id, &n);
        if (n == n_bytes && memcmp(token, text, n) == 0)
            return id;
    }
    return MOEC_TOKENIZER_NO_ID;
}

/* A token of letters with a space before it that two others make up too: its id and theirs. */
static bool find_pair(const struct moec_tokenizer_model *model, uint32_t ids[static 3])
{
    for (ids[0] = 0; ids[0] < model->n_tokens; ids[0]++) {
        uint32_t n = 0;
        const char *token = moec_tokenizer_model_text(model, ids[0], &n);
        bool is_plain = n >= 6 && memcmp(token, SPACE, 3) == 0;
        for (uint32_t i = 3; i < n && is_plain; i++)
            is_plain = token[i] >= 'a' && token[i] <= 'z';
        for (uint32_t cut = 4; cut < n && is_plain; cut++) {
            ids[1] = find_token(model, token, cut);
            ids[2] = find_token(model, token + cut, n - cut);
            if (ids[1] != MOEC_TOKENIZER_NO_ID && ids[2] != MOEC_TOKENIZER_NO_ID)
                return true;
        }
    }
    return false;
}

static void set_score(const struct moec_tokenizer_model *model, uint32_t id, double score)
{
    uint32_t words[2];
    moec_tokenizer_score_words(score, words);
    memcpy((uint32_t *)(uintptr_t)model->scores + 2 * (size_t)id, words, sizeof words);
}

/* The library adds scores up as F32: sums that differ by less than that are equal, and of equals the cut
 * whose last token starts first is taken. */
static void test_sentencepiece__sums_of_scores_are_f32(void **state)
{
    (void)state;
    struct moec_error err = {0};
    size_t n_bytes = 0;
    uint32_t pair[3] = {0};
    const struct moec_sentencepiece_affixes none = {0};
    char *bytes = load("unigram", "tokenizer.model", &n_bytes);
    /* Of one token, and of the two that are as long: in F64 the second is larger in both, in F32 in the last
     * alone. */
    static const double second[] = {-0x1.fffffep-1, -0.75};
    for (size_t c = 0; c < 2; c++) {
        struct moec_tokenizer_model model;
        struct moec_tokenizer *tokenizer = NULL;
        uint32_t *ids = NULL, n = 0;
        size_t n_ids = 0;
        assert_int_equal(moec_sentencepiece_read((uint8_t *)bytes, n_bytes, "unigram", none, &model, &err),
                         MOEC_OK);
        assert_true(find_pair(&model, pair));
        for (uint32_t id = 0; id < model.n_tokens; id++)
            if (moec_tokenizer_model_score(&model, id) < 0)
                set_score(&model, id, -1000);
        set_score(&model, pair[0], -3);
        set_score(&model, pair[1], second[c]);
        set_score(&model, pair[2], -2);
        assert_int_equal(moec_tokenizer_create(&model, &tokenizer, &err), MOEC_OK);
        const char *text = moec_tokenizer_model_text(&model, pair[0], &n);
        assert_int_equal(
            moec_tokenizer_encode(tokenizer, (struct moec_text){text + 3, n - 3}, false, &ids, &n_ids, &err),
            MOEC_OK);
        assert_int_equal(n_ids, c == 0 ? 1 : 2);
        assert_int_equal(ids[0], c == 0 ? pair[0] : pair[1]);
        free(ids);
        moec_tokenizer_free(tokenizer);
        moec_tokenizer_model_release(&model);
    }
    free(bytes);
}

/* Cuts and flipped bits are refused with a message, or give a model that can be used. */
static void test_sentencepiece__survives_damage(void **state)
{
    (void)state;
    const struct moec_sentencepiece_affixes none = {0};
    for (size_t i = 0; i < 3; i += 2) {
        size_t n_bytes = 0, refused = 0;
        uint8_t *bytes = (uint8_t *)load(names[i], "tokenizer.model", &n_bytes);
        for (size_t k = 0; k < n_bytes; k += 7) {
            struct moec_error err = {0};
            struct moec_tokenizer_model model;
            struct moec_tokenizer *tokenizer = NULL;
            const uint8_t bit = (uint8_t)(1u << (k % 8));
            bytes[k] ^= bit;
            const size_t n = k % 2 == 0 ? n_bytes : k;
            if (moec_sentencepiece_read(bytes, n, "damaged", none, &model, &err) != MOEC_OK) {
                assert_true(err.message[0] != '\0');
                assert_null(model.block);
                refused++;
            } else if (moec_tokenizer_create(&model, &tokenizer, &err) == MOEC_OK) {
                uint32_t *ids = NULL;
                size_t n_ids = 0;
                if (moec_tokenizer_encode(tokenizer, (struct moec_text){"Les élèves  ①x", 17}, true, &ids,
                                          &n_ids, &err) == MOEC_OK)
                    free(ids);
            }
            moec_tokenizer_free(tokenizer);
            moec_tokenizer_model_release(&model);
            bytes[k] ^= bit;
        }
        assert_true(refused > 100);
        free(bytes);
    }
}

/* Messages by hand: a piece is field 1 with text (1), score (2) and type (3). */
#define PIECE(length, text, type) "\x0A" length "\x0A" text "\x18" type
#define UNK                       PIECE("\x09", "\x05<unk>", "\x02")

static void test_sentencepiece__refusals(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
        enum moec_status status;
        const char *part;
    } cases[] = {
#define CASE(bytes, status, part) {bytes, sizeof(bytes) - 1, status, part}
        CASE("", MOEC_ERR_FORMAT, "has 0 pieces and no piece of type 'unknown'"),
        CASE("\x0A", MOEC_ERR_FORMAT, "a number is cut short at byte 1"),
        CASE("\x0A\x05"
             "ab",
             MOEC_ERR_FORMAT, "a field is cut short"),
        CASE("\x0B", MOEC_ERR_FORMAT, "a field has an unknown wire type"),
        CASE("\x02", MOEC_ERR_FORMAT, "a field has an invalid number"),
        CASE("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", MOEC_ERR_FORMAT, "more than 10 bytes"),
        CASE(PIECE("\x05",
                   "\x01"
                   "a",
                   "\x01"),
             MOEC_ERR_FORMAT, "no piece of type 'unknown'"),
        CASE(UNK UNK, MOEC_ERR_FORMAT, "both have type 'unknown'"),
        CASE(UNK PIECE("\x05",
                       "\x01"
                       "a",
                       "\x01") PIECE("\x05",
                                     "\x01"
                                     "a",
                                     "\x01"),
             MOEC_ERR_FORMAT, "are both 'a'"),
        CASE(UNK PIECE("\x05",
                       "\x01"
                       "a",
                       "\x04"),
             MOEC_ERR_UNSUPPORTED, "piece 1 ('a') of the tokenizer of 'm' is user-defined"),
        CASE(UNK PIECE("\x05",
                       "\x01"
                       "a",
                       "\x05"),
             MOEC_ERR_UNSUPPORTED, "has type 'unused'"),
        CASE(UNK PIECE("\x05",
                       "\x01"
                       "a",
                       "\x07"),
             MOEC_ERR_FORMAT, "has type 7"),
        CASE(UNK PIECE("\x05", "\x01\xff", "\x01"), MOEC_ERR_FORMAT,
             "piece 1 of the tokenizer of 'm' is empty, is not UTF-8"),
        CASE(UNK PIECE("\x04", "\x00", "\x01"), MOEC_ERR_FORMAT, "piece 1 of the tokenizer of 'm' is empty"),
        CASE(UNK "\x12\x02\x18\x03", MOEC_ERR_UNSUPPORTED, "model of type 3"),
        CASE(UNK "\x1A\x02\x28\x00", MOEC_ERR_UNSUPPORTED, "escape_whitespaces"),
        CASE(UNK "\x1A\x03\x12\x01x", MOEC_ERR_FORMAT, "character map"),
        CASE(UNK "\x12\x02\x18\x02" PIECE("\x06",
                                          "\x02"
                                          "ab",
                                          "\x01"),
             MOEC_ERR_UNSUPPORTED, "which is not itself a piece"),
    };
    const struct moec_sentencepiece_affixes none = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moec_error err = {0};
        struct moec_tokenizer_model model;
        enum moec_status status =
            moec_sentencepiece_read((const uint8_t *)cases[i].bytes, cases[i].n, "m", none, &model, &err);
        if (status != cases[i].status || strstr(err.message, cases[i].part) == NULL)
            fail_msg("case %zu: status %d, '%s'", i, (int)status, err.message);
        assert_null(model.block);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sentencepiece__equals_its_library),
        cmocka_unit_test(test_sentencepiece__decodes_and_adds_ends),
        cmocka_unit_test(test_sentencepiece__sums_of_scores_are_f32),
        cmocka_unit_test(test_sentencepiece__survives_damage),
        cmocka_unit_test(test_sentencepiece__refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
