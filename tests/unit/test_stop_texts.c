#include "formats/base/stop_texts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

/* Whatever the pieces, what is given out is the text before the first stop text. */
static void test_stop_texts__any_pieces(void **state)
{
    (void)state;
    static const struct moec_stop_text texts[] = {{"END", 3}, {"EN", 0}, {"\n\n", 2}, {"aab", 3}};
    static const struct {
        const char *whole, *given;
        bool is_found;
    } cases[] = {
        {"some text", "some text", false},
        {"some ENDless", "some ", true},
        {"EN EN END", "EN EN ", true},
        {"a\nb\n\nc", "a\nb", true},
        {"aaaab", "aa", true},
        {"ends with EN", "ends with EN", false},
        {"", "", false},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        for (size_t n_piece = 1; n_piece < 6; n_piece++) {
            struct moec_stop_texts stops = {.texts = texts, .n_text = 4};
            const size_t n = strlen(cases[c].whole);
            char given[64] = "";
            size_t n_given = 0, n_out = 0;
            const char *out = "";
            for (size_t at = 0; at < n && !stops.is_found; at += n_piece) {
                assert_int_equal(moec_stop_texts_push(&stops, cases[c].whole + at,
                                                      n - at < n_piece ? n - at : n_piece, false, &out,
                                                      &n_out, NULL),
                                 MOEC_OK);
                memcpy(given + n_given, out, n_out);
                n_given += n_out;
            }
            if (!stops.is_found) {
                assert_int_equal(moec_stop_texts_push(&stops, "", 0, true, &out, &n_out, NULL), MOEC_OK);
                memcpy(given + n_given, out, n_out);
                n_given += n_out;
            }
            given[n_given] = '\0';
            assert_string_equal(given, cases[c].given);
            assert_int_equal(stops.is_found, cases[c].is_found);
            moec_stop_texts_release(&stops);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_stop_texts__any_pieces)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
