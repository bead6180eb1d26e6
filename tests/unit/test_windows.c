#include "formats/tokenizer/tokenizer_json.h"
#include "profiler/evaluate/windows.h"
#include "tests/unit/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BOS 26
#define EOS 27

/* A tokenizer whose ids are letters: a = 0, b = 1, ... */
struct letters {
    struct moec_tokenizer_model model;
    struct moec_tokenizer *tokenizer;
};

static void letters_make(const char *post_processor, struct letters *letters)
{
    char json[4096];
    size_t n =
        (size_t)snprintf(json, sizeof json,
                         "{\"version\": \"1.0\", \"added_tokens\": ["
                         "{\"id\": 26, \"content\": \"<s>\", \"single_word\": false, \"lstrip\": false, "
                         "\"rstrip\": false, \"normalized\": false, \"special\": true}, "
                         "{\"id\": 27, \"content\": \"</s>\", \"single_word\": false, \"lstrip\": false, "
                         "\"rstrip\": false, \"normalized\": false, \"special\": true}], "
                         "\"normalizer\": null, \"pre_tokenizer\": null, \"post_processor\": %s, "
                         "\"decoder\": null, \"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {",
                         post_processor);
    for (int c = 0; c < 26; c++)
        n += (size_t)snprintf(json + n, sizeof json - n, "\"%c\": %d, ", 'a' + c, c);
    (void)snprintf(json + n, sizeof json - n, "\"<s>\": 26, \"</s>\": 27}}}");
    struct moec_error err = {0};
    if (moec_tokenizer_json_read(json, strlen(json), "letters", &letters->model, &err) != MOEC_OK ||
        moec_tokenizer_create(&letters->model, &letters->tokenizer, &err) != MOEC_OK)
        fail_msg("%s", err.message);
}

static const char with_bos[] =
    "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\", \"type_id\": 0}}, "
    "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], \"pair\": [{\"Sequence\": {\"id\": \"A\", "
    "\"type_id\": 0}}, {\"Sequence\": {\"id\": \"B\", \"type_id\": 1}}], \"special_tokens\": {\"<s>\": "
    "{\"id\": \"<s>\", \"ids\": [26], \"tokens\": [\"<s>\"]}}}";
static const char with_eos[] =
    "{\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, "
    "{\"SpecialToken\": {\"id\": \"</s>\", \"type_id\": 0}}], \"pair\": [{\"Sequence\": {\"id\": \"A\", "
    "\"type_id\": 0}}, {\"Sequence\": {\"id\": \"B\", \"type_id\": 1}}], \"special_tokens\": {\"</s>\": "
    "{\"id\": \"</s>\", \"ids\": [27], \"tokens\": [\"</s>\"]}}}";

static void letters_release(struct letters *letters)
{
    moec_tokenizer_free(letters->tokenizer);
    moec_tokenizer_model_release(&letters->model);
}

static void rows_make(const char *text, struct moec_rows *rows)
{
    struct moec_error err = {0};
    struct moec_task task = moec_task_text();
    task.split = MOEC_TASK_SPLIT_LINE;
    if (moec_rows_parse(&task, &(struct moec_task_data){MOEC_TASK_FORMAT_TEXT, 0, text, strlen(text), "data"},
                        rows, &err) != MOEC_OK)
        fail_msg("%s", err.message);
    (void)snprintf(rows->name, sizeof rows->name, "data");
}

static enum moec_status make(const char *text, const char *post_processor,
                             struct moec_windows_options options, int n_threads, struct moec_windows *windows,
                             struct moec_error *err)
{
    struct letters letters;
    struct moec_rows rows;
    const struct moec_pool pool = {n_threads};
    letters_make(post_processor, &letters);
    rows_make(text, &rows);
    enum moec_status status = moec_windows_make(&rows, letters.tokenizer, &options, &pool, windows, err);
    moec_rows_release(&rows);
    letters_release(&letters);
    return status;
}

/* Window w is these letters, '<' for BOS, '>' for EOS. */
static void check_window(const struct moec_windows *windows, uint32_t w, const char *expected)
{
    assert_true(w < windows->n_window);
    assert_int_equal(windows->length[w], strlen(expected));
    assert_int_equal(windows->scored[w], strlen(expected) - 1);
    for (uint32_t t = 0; t < windows->seq_len_tokens; t++) {
        uint32_t token = windows->tokens[(size_t)w * windows->seq_len_tokens + t];
        if (t >= windows->length[w])
            assert_int_equal(token, MOEC_PROFILE_NO_TOKEN);
        else
            assert_int_equal(token, expected[t] == '<' ? BOS : expected[t] == '>' ? EOS : expected[t] - 'a');
    }
}

static void test_windows__never_cross_rows(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_windows windows;
    /* 9 letters: 4 + 4 and one left over, which is no window; 6: 4 + 2; 1: none. */
    const struct moec_windows_options options = {.seq_len_tokens = 4};
    assert_int_equal(make("abcdefghi\nklmnop\nz\n", "null", options, 1, &windows, &err), MOEC_OK);
    assert_int_equal(windows.n_window, 4);
    assert_int_equal(windows.n_available, 4);
    check_window(&windows, 0, "abcd");
    check_window(&windows, 1, "efgh");
    check_window(&windows, 2, "klmn");
    check_window(&windows, 3, "op");
    assert_int_equal(moec_windows_token_count(&windows), 14);
    assert_int_equal(moec_windows_scored_count(&windows), 10);
    for (uint32_t w = 0; w < 4; w++)
        assert_int_equal(windows.index[w], w);
    moec_windows_release(&windows);
}

static void test_windows__bos_begins_every_window_once(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_windows windows;
    const struct moec_windows_options options = {.seq_len_tokens = 4};
    assert_int_equal(make("abcdefg\nz\n", with_bos, options, 1, &windows, &err), MOEC_OK);
    assert_int_equal(windows.n_window, 4);
    check_window(&windows, 0, "<abc");
    check_window(&windows, 1, "<def");
    check_window(&windows, 2, "<g");
    check_window(&windows, 3, "<z");
    moec_windows_release(&windows);
    assert_int_equal(make("abcdef\n", with_eos, options, 1, &windows, &err), MOEC_OK);
    assert_int_equal(windows.n_window, 2);
    check_window(&windows, 0, "abcd");
    check_window(&windows, 1, "ef>");
    moec_windows_release(&windows);
}

/* 40 rows of one window each, row r of r + 2 letters. */
static void many_rows(char *text)
{
    for (int r = 0; r < 40; r++) {
        for (int i = 0; i < r + 2; i++)
            *text++ = (char)('a' + (r + i) % 26);
        *text++ = '\n';
    }
    *text = '\0';
}

/* A sample without parts, as eval draws it. */
static void test_windows__the_seed_decides_the_draw(void **state)
{
    (void)state;
    static char text[2048];
    many_rows(text);
    struct moec_error err = {0};
    struct moec_windows windows[3];
    struct moec_windows_options options = {.seq_len_tokens = 64, .n_sample = 12};
    static const uint64_t seeds[] = {3, 3, 4};
    for (size_t i = 0; i < 3; i++) {
        options.seed = seeds[i];
        assert_int_equal(make(text, "null", options, 1, &windows[i], &err), MOEC_OK);
        assert_int_equal(windows[i].n_window, 12);
        for (uint32_t w = 0; w < 12; w++)
            for (uint32_t other = 0; other < w; other++)
                assert_true(windows[i].index[w] != windows[i].index[other]);
    }
    assert_memory_equal(windows[0].index, windows[1].index, 12 * sizeof(uint64_t));
    assert_memory_not_equal(windows[0].index, windows[2].index, 12 * sizeof(uint64_t));
    for (size_t i = 0; i < 3; i++)
        moec_windows_release(&windows[i]);
}

static void test_windows__draws_without_replacement(void **state)
{
    (void)state;
    static char text[2048];
    many_rows(text);
    struct moec_error err = {0};
    struct moec_windows first, again, other, parts[2];
    struct moec_windows_options options = {.seq_len_tokens = 64,
                                           .has_parts = true,
                                           .parts = {.n_window = 34, .min_part_windows = 16},
                                           .seed = 3};
    assert_int_equal(make(text, "null", options, 1, &first, &err), MOEC_OK);
    assert_int_equal(make(text, "null", options, 3, &again, &err), MOEC_OK);
    options.seed = 4;
    assert_int_equal(make(text, "null", options, 1, &other, &err), MOEC_OK);
    assert_int_equal(first.n_window, 34);
    assert_int_equal(first.n_available, 40);
    assert_memory_equal(first.index, again.index, 34 * sizeof *first.index);
    assert_memory_equal(first.tokens, again.tokens, (size_t)34 * 64 * sizeof *first.tokens);
    assert_memory_not_equal(first.index, other.index, 34 * sizeof *first.index);
    bool seen[40] = {false}, in_order = true;
    for (uint32_t w = 0; w < 34; w++) {
        assert_false(seen[first.index[w]]);
        seen[first.index[w]] = true;
        in_order = in_order && first.index[w] == w;
        /* One window a row: its number is the row's, its length tells. */
        assert_int_equal(first.length[w], first.index[w] + 2);
        assert_int_equal(first.tokens[w * 64], first.index[w] % 26);
    }
    assert_false(in_order);
    for (int p = 0; p < 2; p++) {
        assert_int_equal(moec_windows_part(&first, (enum moec_part)p, &parts[p], &err), MOEC_OK);
        assert_int_equal(parts[p].n_window, 17);
        for (uint32_t w = 0; w < 17; w++)
            assert_int_equal(parts[p].index[w], first.index[w + 17 * (uint32_t)p]);
        moec_windows_release(&parts[p]);
    }
    moec_windows_release(&first);
    moec_windows_release(&again);
    moec_windows_release(&other);
}

static void test_windows__fewer_than_asked_are_all_taken(void **state)
{
    (void)state;
    static char text[2048];
    many_rows(text);
    struct moec_error err = {0};
    struct moec_windows windows;
    struct moec_windows_options options = {
        .seq_len_tokens = 64, .has_parts = true, .parts = {.n_window = 1000, .min_part_windows = 16}};
    assert_int_equal(make(text, "null", options, 1, &windows, &err), MOEC_OK);
    assert_int_equal(windows.n_window, 40);
    moec_windows_release(&windows);
    options.parts.min_part_windows = 21;
    assert_int_equal(make(text, "null", options, 1, &windows, &err), MOEC_ERR_LIMIT);
    assert_non_null(strstr(err.message, "'data' has 40 windows of 64 tokens, expected at least 42"));
    assert_non_null(strstr(err.message, "more bytes"));
    assert_null(windows.tokens);
}

/* Rows of 5, 3000 and 7 letters, over and over. */
static char *mixed_rows(size_t n)
{
    static const size_t lengths[] = {5, 3000, 7};
    char *text = malloc(n * 3001 + 1), *at = text;
    assert_non_null(text);
    for (size_t r = 0; r < n; r++) {
        for (size_t i = 0; i < lengths[r % 3]; i++)
            *at++ = (char)('a' + (r + i) % 26);
        *at++ = '\n';
    }
    *at = '\0';
    return text;
}

static void test_windows__memory_is_bounded(void **state)
{
    (void)state;
    struct moec_windows whole, bounded;
    struct moec_error err = {0};
    struct moec_windows_options options = {.seq_len_tokens = 16};
    char *text = mixed_rows(300);
    assert_ok(make(text, "null", options, 2, &whole, &err), err);
    /* 300 kB of text and 1.2 MB of tokens; the large rows do not fit the share of a thread. */
    options.memory_bytes = 3 << 20;
    for (int n_threads = 1; n_threads <= 8; n_threads *= 8) {
        assert_ok(make(text, "null", options, n_threads, &bounded, &err), err);
        assert_int_equal(bounded.n_window, whole.n_window);
        assert_memory_equal(bounded.tokens, whole.tokens, whole.n_window * 16 * sizeof *whole.tokens);
        moec_windows_release(&bounded);
    }
    options.memory_bytes = 1 << 20;
    for (int n_threads = 1; n_threads <= 8; n_threads *= 8) {
        err = (struct moec_error){0};
        assert_status(make(text, "null", options, n_threads, &bounded, &err), MOEC_ERR_BUDGET, err);
        assert_message(err, "--work-memory");
        assert_null(bounded.tokens);
    }
    moec_windows_release(&whole);
    free(text);
    /* One row whose word alone takes twelve times its text. */
    text = malloc(100001);
    assert_non_null(text);
    memset(text, 'a', 100000);
    text[100000] = '\0';
    err = (struct moec_error){0};
    assert_status(make(text, "null", options, 2, &bounded, &err), MOEC_ERR_BUDGET, err);
    assert_message(err, "row at line 1 of 'data': tokenising its 0.1 MiB of text takes more than the");
    options.memory_bytes = 16 << 20;
    err = (struct moec_error){0};
    assert_ok(make(text, "null", options, 2, &bounded, &err), err);
    assert_int_equal(bounded.n_window, 100000 / 16);
    moec_windows_release(&bounded);
    free(text);
}

static void test_windows__wrong_options(void **state)
{
    (void)state;
    struct moec_windows windows;
    static const struct moec_windows_options wrong[] = {
        {.seq_len_tokens = 1},
        {.seq_len_tokens = 0},
        {.seq_len_tokens = MOEC_MAX_POSITIONS + 1},
        {.seq_len_tokens = 4, .has_parts = true, .parts = {.n_window = 31, .min_part_windows = 16}}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct moec_error err = {0};
        assert_int_equal(make("abcdef", "null", wrong[i], 1, &windows, &err), MOEC_ERR_USAGE);
    }
    struct moec_error err = {0};
    const struct moec_windows_options options = {.seq_len_tokens = 4};
    assert_int_equal(make("a\nb\n", "null", options, 1, &windows, &err), MOEC_ERR_LIMIT);
    assert_non_null(strstr(err.message, "no window"));
}

/* Rows {"a": source, "b": target} as an encoder-decoder model reads them; '<' is the start of targets. */
static void make_pairs(const char *rows_text, const char *post_processor, struct moec_windows_options options,
                       struct moec_windows *windows)
{
    struct letters letters;
    struct moec_rows rows;
    struct moec_error err = {0};
    const struct moec_pool pool = {2};
    struct moec_task task = moec_task_text();
    (void)snprintf(task.prompt, sizeof task.prompt, "{a}");
    (void)snprintf(task.reference, sizeof task.reference, "{b}");
    options.has_source = true;
    options.start_token = BOS;
    options.end_token = EOS;
    letters_make(post_processor, &letters);
    if (moec_rows_parse(
            &task, &(struct moec_task_data){MOEC_TASK_FORMAT_JSONL, 0, rows_text, strlen(rows_text), "pairs"},
            &rows, &err) != MOEC_OK ||
        moec_windows_make(&rows, letters.tokenizer, &options, &pool, windows, &err) != MOEC_OK)
        fail_msg("%s", err.message);
    moec_rows_release(&rows);
    letters_release(&letters);
}

/* Window w is a source and a target. */
static void check_pair(const struct moec_windows *windows, uint32_t w, const char *source, const char *target)
{
    char both[64];
    (void)snprintf(both, sizeof both, "%s%s", source, target);
    assert_true(w < windows->n_window);
    assert_int_equal(moec_windows_stride(windows), 2 * windows->seq_len_tokens);
    assert_int_equal(windows->length[w], strlen(both));
    assert_int_equal(moec_windows_source(windows, w), strlen(source));
    assert_int_equal(windows->scored[w], strlen(target) - 1);
    assert_int_equal(moec_windows_traced(windows, w), strlen(both) - 1);
    assert_int_equal(moec_windows_read(windows, MOEC_STACK_ENCODER, w), strlen(source));
    assert_int_equal(moec_windows_read(windows, MOEC_STACK_DECODER, w), strlen(target) - 1);
    assert_int_equal(moec_windows_target(windows, w)[0], BOS);
    for (uint32_t t = 0; t < moec_windows_stride(windows); t++) {
        const uint32_t token = moec_windows_tokens(windows, w)[t];
        if (t >= windows->length[w])
            assert_int_equal(token, MOEC_PROFILE_NO_TOKEN);
        else
            assert_int_equal(token, both[t] == '<' ? BOS : both[t] == '>' ? EOS : both[t] - 'a');
    }
}

static void test_windows__rows_are_sources_and_targets(void **state)
{
    (void)state;
    static const char rows[] = "{\"a\": \"abc\", \"b\": \"de\"}\n{\"a\": \"abcdefgh\", \"b\": \"xyzxyz\"}\n"
                               "{\"a\": \"\", \"b\": \"\"}\n";
    static const char *const processors[] = {"null", with_eos};
    for (size_t i = 0; i < 2; i++) { /* the end is there whoever adds it */
        struct moec_windows windows, part;
        struct moec_error err = {0};
        make_pairs(rows, processors[i], (struct moec_windows_options){.seq_len_tokens = 5}, &windows);
        assert_int_equal(windows.n_window, 3);
        assert_int_equal(windows.n_available, 3);
        check_pair(&windows, 0, "abc>", "<de>");
        check_pair(&windows, 1, "abcd>", "<xyz>");
        check_pair(&windows, 2, ">", "<>");
        assert_int_equal(moec_windows_token_count(&windows), 4 + 3 + 5 + 4 + 1 + 1);
        assert_int_equal(moec_windows_source_count(&windows), 4 + 5 + 1);
        assert_int_equal(moec_windows_scored_count(&windows), 3 + 4 + 1);
        assert_int_equal(moec_windows_state_count(&windows), 18);
        assert_int_equal(moec_windows_part(&windows, MOEC_PART_CERTIFICATE, &part, &err), MOEC_OK);
        assert_int_equal(part.n_window, 1);
        check_pair(&part, 0, "abcd>", "<xyz>");
        moec_windows_release(&part);
        moec_windows_release(&windows);
    }
}

/* The rows that a seed draws, and that tasks without targets are refused. */
static void test_windows__pairs_are_drawn_from_tasks_with_targets(void **state)
{
    (void)state;
    char rows[40 * 32];
    size_t n = 0;
    struct moec_windows windows;
    struct moec_error err = {0};
    static struct moec_config config = {
        .n_layer = 2, .n_encoder_layer = 1, .ids.decoder_start = 3, .ids.n_eos = 1};
    for (int r = 0; r < 40; r++)
        n += (size_t)snprintf(rows + n, sizeof rows - n, "{\"a\": \"%c\", \"b\": \"%c\"}\n", 'a' + r % 26,
                              'a' + r / 26);
    make_pairs(rows, "null",
               (struct moec_windows_options){.seq_len_tokens = 8,
                                             .has_parts = true,
                                             .parts = {.n_window = 34, .min_part_windows = 16},
                                             .seed = 1},
               &windows);
    assert_int_equal(windows.n_window, 34);
    for (uint32_t w = 0; w < windows.n_window; w++) {
        const char source[] = {(char)('a' + windows.index[w] % 26), '>', '\0'};
        const char target[] = {'<', (char)('a' + windows.index[w] / 26), '>', '\0'};
        check_pair(&windows, w, source, target);
    }
    moec_windows_release(&windows);
    struct moec_task task = moec_task_text();
    assert_int_equal(moec_windows_need_task(&config, &task, "a profile", &err), MOEC_ERR_USAGE);
    assert_non_null(strstr(err.message, "task 'text' has only a prompt"));
    (void)snprintf(task.reference, sizeof task.reference, "{b}");
    assert_int_equal(moec_windows_need_task(&config, &task, "a profile", &err), MOEC_OK);
    struct moec_windows_options options = {0};
    config.ids.eos[0] = 5;
    moec_windows_options_for(&config, &options);
    assert_true(options.has_source && options.start_token == 3 && options.end_token == 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows__never_cross_rows),
        cmocka_unit_test(test_windows__bos_begins_every_window_once),
        cmocka_unit_test(test_windows__the_seed_decides_the_draw),
        cmocka_unit_test(test_windows__draws_without_replacement),
        cmocka_unit_test(test_windows__fewer_than_asked_are_all_taken),
        cmocka_unit_test(test_windows__memory_is_bounded),
        cmocka_unit_test(test_windows__wrong_options),
        cmocka_unit_test(test_windows__rows_are_sources_and_targets),
        cmocka_unit_test(test_windows__pairs_are_drawn_from_tasks_with_targets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
