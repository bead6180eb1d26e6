#include "formats/base/memory.h"
#include "formats/base/sanitizers.h"
#include "formats/base/utf8.h"
#include "formats/tokenizer/folder_tokenizer.h"
#include "formats/tokenizer/tokenizer_json.h"
#include "runtime/text/tokenizer.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static const char *const names[] = {"gpt2",    "llama3", "metaspace", "mixtral", "olmoe",
                                    "qwen2",   "steps",  "words",     "unigram", "unigram-bytes",
                                    "roberta", "sets",   "mapped",    "gemma",   "gptsan"};
#define N_NAMES (sizeof names / sizeof names[0])

struct loaded {
    struct moec_tokenizer_model model;
    struct moec_tokenizer *tokenizer;
};

static char *read_file(const char *path, size_t *n_bytes)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        fail_msg("cannot open '%s'", path);
    (void)fseek(file, 0, SEEK_END);
    size_t size = (size_t)ftell(file);
    rewind(file);
    char *bytes = test_malloc(size + 1);
    *n_bytes = fread(bytes, 1, size, file);
    bytes[*n_bytes] = '\0';
    (void)fclose(file);
    return bytes;
}

static char *fixture_path(char path[128], const char *name, const char *file)
{
    (void)snprintf(path, 128, "tests/fixtures/tokenizers/%s/%s", name, file);
    return path;
}

/* Into the caller's memory: the tokenizer borrows the model where it lies. */
static void load(struct loaded *l, const char *name)
{
    *l = (struct loaded){0};
    struct moec_error err = {0};
    char path[128];
    size_t n_bytes = 0;
    if (strcmp(name, "gptsan") == 0) { /* vocab.txt and emoji.json */
        const char *const *files = NULL;
        const char *folder = "tests/fixtures/tokenizers/gptsan";
        if (moec_folder_tokenizer_load(folder, UINT32_MAX, &l->model, &files, &err) != MOEC_OK ||
            moec_tokenizer_create(&l->model, &l->tokenizer, &err) != MOEC_OK)
            fail_msg("%s", err.message);
        return;
    }
    char *json = read_file(fixture_path(path, name, "tokenizer.json"), &n_bytes);
    if (moec_tokenizer_json_read(json, n_bytes, path, &l->model, &err) != MOEC_OK ||
        moec_tokenizer_create(&l->model, &l->tokenizer, &err) != MOEC_OK)
        fail_msg("%s", err.message);
    test_free(json);
}

static void unload(struct loaded *l)
{
    moec_tokenizer_free(l->tokenizer);
    moec_tokenizer_model_release(&l->model);
}

/* ---- the reference library's answers ---- */

/* Takes the next tab-separated column, which may be empty. */
static char *next_column(char **line)
{
    char *start = *line;
    size_t n = strcspn(start, "\t\n");
    *line = start[n] != '\0' ? start + n + 1 : start + n;
    start[n] = '\0';
    return start;
}

static size_t from_hex(const char *hex, char *bytes)
{
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) {
        char pair[3] = {hex[2 * i], hex[2 * i + 1], '\0'};
        bytes[i] = (char)strtoul(pair, NULL, 16);
    }
    return n;
}

static void expect_ids(const struct loaded *l, const char *where, const char *text, size_t n_bytes,
                       bool special, const char *expected)
{
    struct moec_error err = {0};
    uint32_t *ids = NULL;
    size_t n_ids = 0;
    if (moec_tokenizer_encode(l->tokenizer, (struct moec_text){text, n_bytes}, special, &ids, &n_ids, &err) !=
        MOEC_OK)
        fail_msg("%s: %s", where, err.message);
    size_t i = 0;
    const char *at = expected;
    while (*at != '\0') {
        char *end = NULL;
        unsigned long id = strtoul(at, &end, 10);
        if (i >= n_ids || ids[i] != id)
            fail_msg("%s: id %zu is %ld, expected %lu", where, i, i < n_ids ? (long)ids[i] : -1L, id);
        i++;
        at = *end == ' ' ? end + 1 : end;
    }
    if (i != n_ids)
        fail_msg("%s: %zu ids, expected %zu", where, n_ids, i);
    free(ids);
}

static void expect_text(const struct loaded *l, const char *where, const uint32_t *ids, size_t n_ids,
                        bool skip, const char *expected_hex)
{
    struct moec_error err = {0};
    char *text = NULL;
    size_t n_bytes = 0;
    char *expected = test_malloc(strlen(expected_hex) + 1);
    size_t n_expected = from_hex(expected_hex, expected);
    if (moec_tokenizer_decode(l->tokenizer, (struct moec_token_ids){ids, n_ids}, skip, &text, &n_bytes,
                              &err) != MOEC_OK)
        fail_msg("%s: %s", where, err.message);
    if (n_bytes != n_expected || memcmp(text, expected, n_bytes) != 0)
        fail_msg("%s: decodes to '%s'", where, text);
    free(text);
    test_free(expected);
}

static void check_line(const struct loaded *l, const char *where, char *line)
{
    struct moec_error err = {0};
    char *hex = next_column(&line);
    char *text = test_malloc(strlen(hex) + 1);
    size_t n_bytes = from_hex(hex, text);
    expect_ids(l, where, text, n_bytes, false, next_column(&line));
    expect_ids(l, where, text, n_bytes, true, next_column(&line));
    uint32_t *ids = NULL;
    size_t n_ids = 0;
    assert_int_equal(
        moec_tokenizer_encode(l->tokenizer, (struct moec_text){text, n_bytes}, true, &ids, &n_ids, &err),
        MOEC_OK);
    expect_text(l, where, ids, n_ids, false, next_column(&line));
    expect_text(l, where, ids, n_ids, true, next_column(&line));
    free(ids);
    test_free(text);
}

static void test_tokenizer__equals_the_reference_library(void **state)
{
    (void)state;
    for (size_t n = 0; n < N_NAMES; n++) {
        struct loaded l;
        load(&l, names[n]);
        char path[128];
        size_t n_bytes = 0;
        char *lines = read_file(fixture_path(path, names[n], "expected.txt"), &n_bytes);
        size_t count = 0;
        for (char *line = lines; *line != '\0';) {
            char *end = strchr(line, '\n');
            assert_non_null(end);
            *end = '\0';
            char where[160];
            (void)snprintf(where, sizeof where, "%s line %zu", path, ++count);
            check_line(&l, where, line);
            line = end + 1;
        }
        assert_true(count > 150);
        test_free(lines);
        unload(&l);
    }
}

/* ---- binary form ---- */

static void test_tokenizer__binary_form_is_stable(void **state)
{
    (void)state;
    for (size_t n = 0; n < N_NAMES; n++) {
        struct loaded l;
        load(&l, names[n]);
        struct moec_error err = {0};
        struct moec_tokenizer_model again;
        void *bytes[2] = {NULL, NULL};
        size_t n_bytes[2] = {0, 0};
        assert_int_equal(moec_tokenizer_model_encode(&l.model, &bytes[0], &n_bytes[0], &err), MOEC_OK);
        assert_int_equal(moec_tokenizer_model_decode(bytes[0], n_bytes[0], "b", &again, &err), MOEC_OK);
        assert_int_equal(moec_tokenizer_model_encode(&again, &bytes[1], &n_bytes[1], &err), MOEC_OK);
        assert_int_equal(n_bytes[0], n_bytes[1]);
        assert_memory_equal(bytes[0], bytes[1], n_bytes[0]);
        moec_tokenizer_model_release(&again);
        free(bytes[0]);
        free(bytes[1]);
        unload(&l);
    }
}

/* A Unigram model of five tokens whose character map turns a tab into a space. */
static const char small_unigram[] =
    "{\"model\": {\"type\": \"Unigram\", \"unk_id\": 0, \"byte_fallback\": false, \"vocab\": [[\"<unk"
    ">\", 0], [\"\\u2581\", -1.5], [\"a\", -2], [\"\\u2581a\", -2.5], [\"aa\", -4.125]]}, \"added_tok"
    "ens\": [{\"content\": \"<x>\", \"special\": true, \"single_word\": false, \"lstrip\": false, \"r"
    "strip\": false, \"normalized\": false}], \"normalizer\": {\"type\": \"Precompiled\", \"precompil"
    "ed_charsmap\": \"LAAAAAAEAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAACQkAAAAAAAAAAACAIAA=\"}, \"pre_"
    "tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"\\u2581\", \"prepend_scheme\": \"alway"
    "s\", \"split\": true}, \"decoder\": {\"type\": \"Metaspace\", \"replacement\": \"\\u2581\", \"pr"
    "epend_scheme\": \"always\", \"split\": true}}";

/* Every cut is refused; every flipped bit is refused or gives a model that can be used. */
static void damage(const struct moec_tokenizer_model *good, const char *text)
{
    struct moec_error err = {0};
    void *bytes = NULL;
    size_t n_bytes = 0;
    assert_int_equal(moec_tokenizer_model_encode(good, &bytes, &n_bytes, &err), MOEC_OK);
    for (size_t cut = 0; cut < n_bytes; cut++) {
        struct moec_tokenizer_model model;
        err = (struct moec_error){0};
        assert_int_not_equal(moec_tokenizer_model_decode(bytes, cut, "b", &model, &err), MOEC_OK);
        assert_null(model.block);
    }
    uint8_t *flipped = bytes;
    for (size_t bit = 0; bit < 8 * n_bytes; bit++) {
        struct moec_tokenizer_model model;
        struct moec_tokenizer *tokenizer = NULL;
        err = (struct moec_error){0};
        flipped[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        if (moec_tokenizer_model_decode(bytes, n_bytes, "b", &model, &err) == MOEC_OK &&
            moec_tokenizer_create(&model, &tokenizer, &err) == MOEC_OK) {
            uint32_t *ids = NULL;
            size_t n_ids = 0;
            if (moec_tokenizer_encode(tokenizer, (struct moec_text){text, strlen(text)}, true, &ids, &n_ids,
                                      &err) == MOEC_OK)
                free(ids);
        }
        moec_tokenizer_free(tokenizer);
        moec_tokenizer_model_release(&model);
        flipped[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    free(bytes);
}

static void test_tokenizer__binary_form_survives_damage(void **state)
{
    (void)state;
    struct loaded l;
    load(&l, "steps");
    damage(&l.model, "the <r> word 12");
    unload(&l);
    struct moec_tokenizer_model model;
    struct moec_error err = {0};
    assert_int_equal(moec_tokenizer_json_read(small_unigram, strlen(small_unigram), "t.json", &model, &err),
                     MOEC_OK);
    damage(&model, "aa\ta <x>b\t");
    moec_tokenizer_model_release(&model);
}

/* BPE without a character map is written as programs know it that know no other. */
static void test_tokenizer__versions(void **state)
{
    (void)state;
    struct loaded l;
    struct moec_error err = {0};
    struct moec_tokenizer_model model, again;
    void *bytes = NULL;
    size_t n_bytes = 0;
    load(&l, "steps");
    assert_int_equal(moec_tokenizer_model_encode(&l.model, &bytes, &n_bytes, &err), MOEC_OK);
    assert_int_equal(((uint8_t *)bytes)[4], 1);
    free(bytes);
    unload(&l);
    assert_int_equal(moec_tokenizer_json_read(small_unigram, strlen(small_unigram), "t.json", &model, &err),
                     MOEC_OK);
    assert_int_equal(moec_tokenizer_model_encode(&model, &bytes, &n_bytes, &err), MOEC_OK);
    uint8_t *header = bytes;
    assert_int_equal(header[4], 2);
    header[4] = 1;
    assert_int_equal(moec_tokenizer_model_decode(bytes, n_bytes, "b", &again, &err), MOEC_ERR_FORMAT);
    header[4] = 3;
    err = (struct moec_error){0};
    assert_int_equal(moec_tokenizer_model_decode(bytes, n_bytes, "b", &again, &err), MOEC_ERR_UNSUPPORTED);
    free(bytes);
    moec_tokenizer_model_release(&model);
}

static void expect_small(const struct moec_tokenizer *tokenizer, const char *text, const uint32_t *ids,
                         size_t n)
{
    struct moec_error err = {0};
    uint32_t *got = NULL;
    size_t n_got = 0;
    assert_int_equal(
        moec_tokenizer_encode(tokenizer, (struct moec_text){text, strlen(text)}, true, &got, &n_got, &err),
        MOEC_OK);
    if (n_got != n || (n > 0 && memcmp(got, ids, n * sizeof *ids) != 0))
        fail_msg("'%s' gives %zu ids, expected %zu", text, n_got, n);
    free(got);
}

static void test_tokenizer__unigram_takes_the_largest_sum(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_tokenizer_model model;
    struct moec_tokenizer *tokenizer = NULL;
    assert_int_equal(moec_tokenizer_json_read(small_unigram, strlen(small_unigram), "t.json", &model, &err),
                     MOEC_OK);
    assert_int_equal(moec_tokenizer_create(&model, &tokenizer, &err), MOEC_OK);
    /* aa costs 4.125, a and a 4; a first piece with the space in it 2.5 instead of 3.5. */
    expect_small(tokenizer, "aaa", (uint32_t[]){3, 2, 2}, 3);
    expect_small(tokenizer, "a\ta", (uint32_t[]){3, 3}, 2);
    /* Unknown neighbours are one. */
    expect_small(tokenizer, "bcda", (uint32_t[]){1, 0, 2}, 3);
    expect_small(tokenizer, "<x>", (uint32_t[]){5}, 1);
    expect_small(tokenizer, "", NULL, 0);
    moec_tokenizer_free(tokenizer);
    moec_tokenizer_model_release(&model);
}

static void test_tokenizer__refuses_ids_past_the_vocabulary(void **state)
{
    (void)state;
    struct loaded l;
    load(&l, "qwen2");
    struct moec_error err = {0};
    assert_int_equal(moec_tokenizer_model_fits(&l.model, l.model.n_tokens, "t.json", &err), MOEC_OK);
    assert_int_equal(moec_tokenizer_model_fits(&l.model, UINT64_MAX, "t.json", &err), MOEC_OK);
    assert_int_equal(moec_tokenizer_model_fits(&l.model, l.model.n_tokens - 1, "t.json", &err),
                     MOEC_ERR_MISMATCH);
    assert_non_null(strstr(err.message, "tokenizer 't.json' has token '</tool_call>' with id 764"));
    unload(&l);
}

/* Only BPE can name an unknown token that it lacks; a Unigram model would hand the mark out as an id. */
static void test_tokenizer__refuses_a_unigram_without_its_unk_token(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_tokenizer_model model, again;
    void *bytes = NULL;
    size_t n_bytes = 0;
    assert_int_equal(moec_tokenizer_json_read(small_unigram, strlen(small_unigram), "t.json", &model, &err),
                     MOEC_OK);
    model.unk_id = MOEC_TOKENIZER_ID_MISSING;
    assert_int_equal(moec_tokenizer_model_encode(&model, &bytes, &n_bytes, &err), MOEC_OK);
    assert_int_equal(moec_tokenizer_model_decode(bytes, n_bytes, "t.moec", &again, &err), MOEC_ERR_FORMAT);
    assert_non_null(strstr(err.message,
                           "tokenizer 't.moec' is a Unigram model whose unk token is not in its vocabulary"));
    assert_null(again.block);
    free(bytes);
    moec_tokenizer_model_release(&model);
}

/* ---- speed ---- */

/* Instrumented code is several times slower, and says nothing of speed. */
#define LIMIT_SECONDS (MOEC_HAS_ASAN || MOEC_HAS_TSAN || MOEC_HAS_UBSAN ? 30 : 1)

/* Processor time, so that a busy machine does not fail the test. */
static double seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void test_tokenizer__a_long_word_takes_no_second(void **state)
{
    (void)state;
    enum { N_BYTES = 100000 };
    static const char *const units[] = {"a", "the",          " ",   "\n", "\xcc\x81\xcc\x96", "=",
                                        "7", "\xe6\x97\xa5", "\xff"};
    char *text = test_malloc(N_BYTES);
    for (size_t n = 0; n < N_NAMES; n++) {
        struct loaded l;
        load(&l, names[n]);
        for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
            size_t length = strlen(units[u]);
            for (size_t i = 0; i < N_BYTES; i++)
                text[i] = units[u][i % length];
            struct moec_error err = {0};
            uint32_t *ids = NULL;
            size_t n_ids = 0;
            double start = seconds();
            assert_int_equal(moec_tokenizer_encode(l.tokenizer, (struct moec_text){text, N_BYTES}, true, &ids,
                                                   &n_ids, &err),
                             MOEC_OK);
            double took = seconds() - start;
            if (took >= LIMIT_SECONDS)
                fail_msg("%s: 100 KB of '%s' took %.2f s", names[n], units[u], took);
            free(ids);
        }
        unload(&l);
    }
    test_free(text);
}

/* ---- decoding as a stream ---- */

static void test_tokenizer__streams_whole_characters(void **state)
{
    (void)state;
    struct loaded l;
    load(&l, "gpt2");
    struct moec_error err = {0};
    struct moec_detokenizer d;
    const char *piece = NULL;
    size_t n_bytes = 0;
    uint32_t *ids = NULL;
    size_t n_ids = 0;
    const char *text = "x\xF0\x9F\x98\xB5\xE2\x82\xACy"; /* x, U+1F635, U+20AC, y */
    assert_int_equal(
        moec_tokenizer_encode(l.tokenizer, (struct moec_text){text, strlen(text)}, false, &ids, &n_ids, &err),
        MOEC_OK);
    assert_true(n_ids > 4);
    char joined[32] = "";
    moec_detokenizer_init(&d, l.tokenizer, false);
    for (size_t i = 0; i < n_ids; i++) {
        assert_int_equal(moec_detokenizer_push(&d, ids[i], &piece, &n_bytes, &err), MOEC_OK);
        assert_int_equal(moec_utf8_valid_bytes(piece, n_bytes), n_bytes);
        assert_null(strstr(piece, "\xEF\xBF\xBD"));
        (void)strncat(joined, piece, sizeof joined - strlen(joined) - 1);
    }
    assert_string_equal(joined, text);
    assert_int_equal(moec_detokenizer_finish(&d, &piece, &n_bytes, &err), MOEC_OK);
    assert_int_equal(n_bytes, 0);

    /* A character that never completes becomes one U+FFFD at the end, and the state starts anew. */
    assert_int_equal(moec_detokenizer_push(&d, moec_tokenizer_token_id(l.tokenizer, "\xC3\xB0", 2), &piece,
                                           &n_bytes, &err),
                     MOEC_OK);
    assert_int_equal(n_bytes, 0);
    assert_int_equal(moec_detokenizer_finish(&d, &piece, &n_bytes, &err), MOEC_OK);
    assert_string_equal(piece, "\xEF\xBF\xBD");
    assert_int_equal(
        moec_detokenizer_push(&d, moec_tokenizer_token_id(l.tokenizer, "x", 1), &piece, &n_bytes, &err),
        MOEC_OK);
    assert_string_equal(piece, "x");
    moec_detokenizer_release(&d);
    free(ids);
    unload(&l);
}

static void test_tokenizer__streams_what_it_decodes_whole(void **state)
{
    (void)state;
    const char *text = "  The <s>quick</s> brown\n\n fox, \xE6\x97\xA5\xE6\x9C\xAC \xF0\x9F\x98\xB5! ";
    for (size_t n = 0; n < N_NAMES; n++) {
        struct loaded l;
        load(&l, names[n]);
        struct moec_error err = {0};
        uint32_t *ids = NULL;
        size_t n_ids = 0;
        char *whole = NULL;
        size_t n_whole = 0;
        assert_int_equal(moec_tokenizer_encode(l.tokenizer, (struct moec_text){text, strlen(text)}, true,
                                               &ids, &n_ids, &err),
                         MOEC_OK);
        assert_int_equal(moec_tokenizer_decode(l.tokenizer, (struct moec_token_ids){ids, n_ids}, true, &whole,
                                               &n_whole, &err),
                         MOEC_OK);
        struct moec_detokenizer d;
        char joined[256] = "";
        moec_detokenizer_init(&d, l.tokenizer, true);
        for (size_t i = 0; i <= n_ids; i++) {
            const char *piece = NULL;
            size_t n_bytes = 0;
            assert_int_equal(i < n_ids ? moec_detokenizer_push(&d, ids[i], &piece, &n_bytes, &err)
                                       : moec_detokenizer_finish(&d, &piece, &n_bytes, &err),
                             MOEC_OK);
            (void)strncat(joined, piece, sizeof joined - strlen(joined) - 1);
        }
        assert_string_equal(joined, whole);
        moec_detokenizer_release(&d);
        free(whole);
        free(ids);
        unload(&l);
    }
}

static void test_tokenizer__broken_byte_runs(void **state)
{
    (void)state;
    struct loaded l;
    load(&l, "mixtral");
    struct moec_error err = {0};
    uint32_t ids[] = {
        moec_tokenizer_token_id(l.tokenizer, "<0xE6>", 6), moec_tokenizer_token_id(l.tokenizer, "<0x97>", 6),
        moec_tokenizer_token_id(l.tokenizer, "<0xA5>", 6), moec_tokenizer_token_id(l.tokenizer, "<0xFF>", 6),
        moec_tokenizer_token_id(l.tokenizer, "a", 1),
    };
    char *whole = NULL;
    size_t n_whole = 0;
    /* The library spoils the whole run, one U+FFFD for each byte. */
    assert_int_equal(
        moec_tokenizer_decode(l.tokenizer, (struct moec_token_ids){ids, 5}, true, &whole, &n_whole, &err),
        MOEC_OK);
    assert_string_equal(whole, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"
                               "a");
    free(whole);
    /* The stream has handed the first character out by then. */
    struct moec_detokenizer d;
    const char *piece = NULL;
    size_t n_bytes = 0;
    char joined[64] = "";
    moec_detokenizer_init(&d, l.tokenizer, true);
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(moec_detokenizer_push(&d, ids[i], &piece, &n_bytes, &err), MOEC_OK);
        (void)strncat(joined, piece, sizeof joined - strlen(joined) - 1);
    }
    assert_string_equal(joined, "\xE6\x97\xA5\xEF\xBF\xBD"
                                "a");
    moec_detokenizer_release(&d);
    unload(&l);
}

/* ---- look-ups and threads ---- */

/* Whether this is the one token that stands around a text. */
static bool adds_only(const struct moec_tokenizer *tokenizer, uint32_t id)
{
    struct moec_error err = {0};
    uint32_t *ids = NULL;
    size_t n_ids = 0;
    assert_int_equal(moec_tokenizer_encode(tokenizer, (struct moec_text){NULL, 0}, true, &ids, &n_ids, &err),
                     MOEC_OK);
    const bool is_only = n_ids == 1 && ids[0] == id;
    free(ids);
    return is_only;
}

static void test_tokenizer__looks_up_tokens(void **state)
{
    (void)state;
    struct loaded mixtral;
    load(&mixtral, "mixtral");
    assert_int_equal(moec_tokenizer_bos_id(mixtral.tokenizer), 1);
    assert_true(adds_only(mixtral.tokenizer, 1)); /* and nothing behind a text */
    assert_int_equal(moec_tokenizer_token_id(mixtral.tokenizer, "</s>", 4), 2);
    assert_true(moec_tokenizer_is_special(mixtral.tokenizer, 2));
    assert_false(moec_tokenizer_is_special(mixtral.tokenizer, 3));
    assert_false(moec_tokenizer_is_special(mixtral.tokenizer, UINT32_MAX));
    assert_int_equal(moec_tokenizer_token_id(mixtral.tokenizer, "no such token", 13), MOEC_TOKENIZER_NO_ID);
    assert_int_equal(moec_tokenizer_token_id(mixtral.tokenizer, "", 0), MOEC_TOKENIZER_NO_ID);
    unload(&mixtral);

    struct loaded gpt2;
    load(&gpt2, "gpt2");
    assert_int_equal(moec_tokenizer_bos_id(gpt2.tokenizer), MOEC_TOKENIZER_NO_ID);
    assert_int_equal(moec_tokenizer_token_id(gpt2.tokenizer, "<|endoftext|>", 13), gpt2.model.n_tokens - 1);
    unload(&gpt2);

    struct loaded olmoe;
    load(&olmoe, "olmoe");
    assert_int_equal(moec_tokenizer_bos_id(olmoe.tokenizer), MOEC_TOKENIZER_NO_ID);
    assert_true(adds_only(olmoe.tokenizer, 0)); /* so it stands behind a text */
    struct moec_error err = {0};
    uint32_t *ids = NULL;
    size_t n_ids = 0;
    assert_int_equal(
        moec_tokenizer_encode(olmoe.tokenizer, (struct moec_text){NULL, 0}, false, &ids, &n_ids, &err),
        MOEC_OK);
    assert_int_equal(n_ids, 0);
    assert_non_null(ids);
    free(ids);
    unload(&olmoe);
}

struct job {
    const struct moec_tokenizer *tokenizer;
    uint64_t sum;
};

static void *encode_often(void *argument)
{
    struct job *job = argument;
    for (int i = 0; i < 200; i++) {
        const char text[] = "It's  the quick\xCC\x81 brown fox 123 <|im_start|>\n\n";
        uint32_t *ids = NULL;
        size_t n_ids = 0;
        if (moec_tokenizer_encode(job->tokenizer, (struct moec_text){text, sizeof text - 1}, true, &ids,
                                  &n_ids, NULL) != MOEC_OK)
            return NULL;
        for (size_t k = 0; k < n_ids; k++)
            job->sum = job->sum * 31 + ids[k];
        free(ids);
    }
    return NULL;
}

static void test_tokenizer__encodes_in_many_threads(void **state)
{
    (void)state;
    struct loaded l;
    load(&l, "qwen2");
    pthread_t threads[4];
    struct job jobs[4];
    for (size_t i = 0; i < 4; i++) {
        jobs[i] = (struct job){.tokenizer = l.tokenizer};
        assert_int_equal(pthread_create(&threads[i], NULL, encode_often, &jobs[i]), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_true(jobs[i].sum != 0 && jobs[i].sum == jobs[0].sum);
    }
    unload(&l);
}

/* Every tokenizer gives the same ids within any budget that is enough, and nothing within one that is not. */
static void test_tokenizer__encodes_within_a_budget(void **state)
{
    (void)state;
    static const char phrase[] = "The old man, \xc3\xbc and 12 more\xff";
    char text[4096];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = phrase[i % sizeof phrase];
    for (size_t i = 0; i < N_NAMES; i++) {
        struct loaded l;
        struct moec_error err = {0};
        uint32_t *ids = NULL, *within = NULL;
        size_t n_ids = 0, n_within = 0;
        load(&l, names[i]);
        if (moec_tokenizer_encode(l.tokenizer, (struct moec_text){text, sizeof text}, true, &ids, &n_ids,
                                  &err) != MOEC_OK)
            fail_msg("%s: %s", names[i], err.message);
        uint64_t budget = 64, left = budget;
        bool was_refused = false;
        for (;; budget = budget + budget / 2, left = budget, err = (struct moec_error){0}) {
            const enum moec_status status = moec_tokenizer_encode_within(
                l.tokenizer, (struct moec_text){text, sizeof text}, true, &left, &within, &n_within, &err);
            if (status == MOEC_OK)
                break;
            assert_int_equal(status, MOEC_ERR_BUDGET);
            assert_null(within);
            assert_true(left == budget && budget < 64 * sizeof text);
            was_refused = true;
        }
        assert_true(was_refused);
        assert_int_equal(n_within, n_ids);
        assert_memory_equal(within, ids, n_ids * sizeof *ids);
        assert_true(budget - left == n_ids * sizeof *ids);
        free(ids);
        free(within);
        unload(&l);
    }
}

/* Prose, code, numbers, added tokens, broken bytes and runs of spaces: a text longer than three pieces. */
static size_t mixed_text(char *text, size_t n_bytes)
{
    static const char *const words[] = {"The",      "old",     "man's",      "boat",          "x_1 = f(y);",
                                        "1234567",  "naïve",   "日本",       "<|endoftext|>", "</s>",
                                        "\xff\xfe", "Straße,", "e\xcc\x81t", "🩷!"};
    static const char *const gaps[] = {" ", " ", " ", " ", " ", "\n", "  ", "\n\n", " \n\t", ". "};
    uint32_t state = 1;
    size_t n = 0;
    for (;;) {
        state = state * 1664525u + 1013904223u;
        const char *word = words[(state >> 8) % (sizeof words / sizeof *words)];
        const char *gap = gaps[(state >> 20) % (sizeof gaps / sizeof *gaps)];
        const size_t n_word = strlen(word), n_gap = strlen(gap);
        if (n + n_word + n_gap > n_bytes)
            return n;
        memcpy(text + n, word, n_word);
        memcpy(text + n + n_word, gap, n_gap);
        n += n_word + n_gap;
    }
}

/* Encoding in pieces, as within a budget, gives the ids of encoding the whole, and needs less than a third.
 */
static void test_tokenizer__pieces_give_the_ids_of_the_whole(void **state)
{
    (void)state;
    const size_t room = 7 * MOEC_TOKENIZER_PIECE_BYTES / 2;
    char *text = test_malloc(room);
    for (size_t i = 0; i < N_NAMES; i++) {
        /* Ends of all sizes, less than half a piece among them. */
        const size_t n_bytes = mixed_text(text, room - i * MOEC_TOKENIZER_PIECE_BYTES / 5);
        struct loaded l;
        struct moec_error err = {0};
        uint32_t *ids = NULL, *pieces = NULL;
        size_t n_ids = 0, n_pieces = 0;
        load(&l, names[i]);
        if (moec_tokenizer_encode(l.tokenizer, (struct moec_text){text, n_bytes}, true, &ids, &n_ids, &err) !=
            MOEC_OK)
            fail_msg("%s: %s", names[i], err.message);
        uint64_t left = 16 * n_bytes;
        if (moec_tokenizer_encode_within(l.tokenizer, (struct moec_text){text, n_bytes}, true, &left, &pieces,
                                         &n_pieces, &err) != MOEC_OK)
            fail_msg("%s: %s", names[i], err.message);
        if (n_pieces != n_ids || memcmp(pieces, ids, n_ids * sizeof *ids) != 0)
            fail_msg("%s: %zu ids in pieces, %zu of the whole, or others", names[i], n_pieces, n_ids);
        assert_true(left == 16 * n_bytes - n_ids * sizeof *ids);
        free(ids);
        free(pieces);
        unload(&l);
    }
    test_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokenizer__equals_the_reference_library),
        cmocka_unit_test(test_tokenizer__binary_form_is_stable),
        cmocka_unit_test(test_tokenizer__binary_form_survives_damage),
        cmocka_unit_test(test_tokenizer__versions),
        cmocka_unit_test(test_tokenizer__unigram_takes_the_largest_sum),
        cmocka_unit_test(test_tokenizer__refuses_ids_past_the_vocabulary),
        cmocka_unit_test(test_tokenizer__refuses_a_unigram_without_its_unk_token),
        cmocka_unit_test(test_tokenizer__a_long_word_takes_no_second),
        cmocka_unit_test(test_tokenizer__streams_whole_characters),
        cmocka_unit_test(test_tokenizer__streams_what_it_decodes_whole),
        cmocka_unit_test(test_tokenizer__broken_byte_runs),
        cmocka_unit_test(test_tokenizer__looks_up_tokens),
        cmocka_unit_test(test_tokenizer__encodes_in_many_threads),
        cmocka_unit_test(test_tokenizer__encodes_within_a_budget),
        cmocka_unit_test(test_tokenizer__pieces_give_the_ids_of_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
