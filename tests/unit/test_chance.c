/* An original that knows nothing of the text has no loss to promise. */
#include "tests/unit/status.h"

#include "profiler/evaluate/chance.h"

#include <math.h>

static void test_chance__what_is_no_better(void **state)
{
    (void)state;
    static const struct {
        struct moec_chance chance;
        bool is;
    } cases[] = {
        {{.original = 2.24, .guessing = 2048}, false},
        {{.original = 2047.9, .guessing = 2048}, false},
        {{.original = 2048, .guessing = 2048}, true},
        {{.original = 1e9, .guessing = 2048}, true},
        {{.original = (double)NAN, .guessing = 8}, true},
        {{.original = (double)INFINITY, .guessing = 8}, true},
        {{true, 0.5, 0.25, "d", NULL}, false},
        {{true, 0.25, 0.25, "d", NULL}, true},
        {{true, 0, 0.5, "d", NULL}, true},
        {{true, (double)NAN, 0.5, "d", NULL}, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(moec_chance_is(&cases[i].chance), cases[i].is);
}

static void test_chance__is_refused_with_both_numbers(void **state)
{
    (void)state;
    const struct moec_chance bad = {.original = 2051.25, .guessing = 2048, .data_name = "text.txt"},
                             good = {.original = 12, .guessing = 2048, .data_name = "text.txt"},
                             lot = {true, 0.2, 0.25, "rows.jsonl", "the model"};
    char note[MOEC_CHANCE_NOTE_BYTES] = "old";
    struct moec_error err = {0};
    assert_status(moec_chance_check(&good, false, note, &err), MOEC_OK, err);
    assert_string_equal(note, "");
    assert_status(moec_chance_check(&bad, true, note, &err), MOEC_OK, err);
    assert_string_equal(note, "the original predicts 'text.txt' no better than chance: its perplexity is "
                              "2051.25, and guessing evenly among all tokens of its vocabulary gives 2048");
    assert_status(moec_chance_check(&bad, false, note, &err), MOEC_ERR_MISMATCH, err);
    assert_message(
        err, "perplexity is 2051.25, and guessing evenly among all tokens of its vocabulary gives 2048");
    assert_message(err, "tokenizer from another model");
    assert_message(err, "--anyway");
    err = (struct moec_error){0};
    assert_status(moec_chance_check(&lot, false, note, &err), MOEC_ERR_MISMATCH, err);
    assert_message(
        err, "the model predicts 'rows.jsonl' no better than chance: 20.0% of the choices are right, and "
             "random choices give 25.0%");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chance__what_is_no_better),
        cmocka_unit_test(test_chance__is_refused_with_both_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
