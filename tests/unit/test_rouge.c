#include "formats/base/file.h"
#include "formats/json/json.h"
#include "profiler/tasks/porter_stem.h"
#include "profiler/tasks/rouge.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *load(const char *path, size_t *n_bytes)
{
    struct moec_error err = {0};
    char *bytes = NULL;
    if (moec_file_load(path, 1u << 20, &bytes, n_bytes, &err) != MOEC_OK)
        fail_msg("%s", err.message);
    return bytes;
}

/* Every word of the fixture has the stem that NLTK gives it. */
static void test_rouge__stems_equal_nltk(void **state)
{
    (void)state;
    size_t n_bytes = 0, n_word = 0;
    char *bytes = load("tests/fixtures/rouge/stems.txt", &n_bytes);
    char *rest = NULL;
    for (char *line = strtok_r(bytes, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        char word[64], stem[64], ours[64];
        assert_int_equal(sscanf(line, "%63s %63s", word, stem), 2);
        memcpy(ours, word, sizeof ours);
        size_t n = moec_porter_stem(ours, strlen(ours));
        if (n != strlen(stem) || memcmp(ours, stem, n) != 0)
            fail_msg("'%s' gives '%.*s', expected '%s'", word, (int)n, ours, stem);
        n_word++;
    }
    assert_true(n_word > 1000);
    free(bytes);
}

/* A run of y is the classifier's worst case; the stemmer must not take quadratic time for it. */
static void test_rouge__long_words_are_stemmed(void **state)
{
    (void)state;
    const size_t n = 1u << 20;
    char *word = malloc(n);
    assert_non_null(word);
    memset(word, 'y', n);
    memcpy(word + n - 3, "ing", 3);
    size_t got = moec_porter_stem(word, n);
    assert_true(got <= n && got + 4 >= n);
    free(word);
    assert_int_equal(moec_porter_stem((char[]){'s'}, 1), 1);
    assert_int_equal(moec_porter_stem(NULL, 0), 0);
}

static void check_pair(const struct moec_json *pair, bool stem)
{
    struct moec_error err = {0};
    const char *reference = NULL, *candidate = NULL;
    size_t n_reference = 0, n_candidate = 0;
    const struct moec_json *expected = moec_json_find(pair, stem ? "stemmed" : "plain");
    struct moec_rouge scores[MOEC_ROUGE_KINDS];
    if (moec_json_get_string(pair, "a pair", "reference", &reference, &n_reference, &err) != MOEC_OK ||
        moec_json_get_string(pair, "a pair", "candidate", &candidate, &n_candidate, &err) != MOEC_OK ||
        moec_rouge_measure(&(struct moec_rouge_texts){reference, n_reference, candidate, n_candidate, stem},
                           scores, &err) != MOEC_OK)
        fail_msg("%s", err.message);
    for (size_t i = 0; i < 9; i++) {
        const struct moec_rouge *score = &scores[i / 3];
        double ours = i % 3 == 0 ? score->precision : i % 3 == 1 ? score->recall : score->f1, theirs = 0;
        assert_int_equal(moec_json_as_double(moec_json_at(expected, i), "a score", 0, 1, &theirs, &err),
                         MOEC_OK);
        if (fabs(ours - theirs) > 1e-9)
            fail_msg("score %zu of '%s' and '%s' is %.12f, expected %.12f", i, reference, candidate, ours,
                     theirs);
    }
}

static void test_rouge__scores_equal_rouge_score(void **state)
{
    (void)state;
    size_t n_bytes = 0, n_pair = 0;
    char *bytes = load("tests/fixtures/rouge/pairs.jsonl", &n_bytes);
    char *rest = NULL;
    for (char *line = strtok_r(bytes, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        struct moec_error err = {0};
        struct moec_json *pair = NULL;
        if (moec_json_parse(line, strlen(line), 1u << 20, "a pair", &pair, &err) != MOEC_OK)
            fail_msg("%s", err.message);
        check_pair(pair, false);
        check_pair(pair, true);
        moec_json_free(pair);
        n_pair++;
    }
    assert_true(n_pair > 50);
    free(bytes);
}

/* Bytes that are no UTF-8 part words like any other sign. */
static void test_rouge__broken_text_is_parted(void **state)
{
    (void)state;
    struct moec_rouge scores[MOEC_ROUGE_KINDS];
    const char broken[] = "one\xfftwo\xe2\x82three\xf0", whole[] = "one two three";
    assert_int_equal(moec_rouge_measure(&(struct moec_rouge_texts){whole, sizeof whole - 1, broken,
                                                                   sizeof broken - 1, false},
                                        scores, NULL),
                     MOEC_OK);
    for (size_t k = 0; k < MOEC_ROUGE_KINDS; k++)
        assert_true(scores[k].f1 == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rouge__stems_equal_nltk),
        cmocka_unit_test(test_rouge__long_words_are_stemmed),
        cmocka_unit_test(test_rouge__scores_equal_rouge_score),
        cmocka_unit_test(test_rouge__broken_text_is_parted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
