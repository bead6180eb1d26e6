/* Characters that PCRE2 may not know yet are cut as the tokenizers library cuts them (0.23.3, which knows
 * Unicode 16): where the parts of a text end is what Split gives for the pattern. */
#include "tests/unit/status.h"

#include "runtime/text/stand_ins.h"
#include "runtime/text/tokenizer_internal.h"

#include "formats/base/utf8.h"

#define MAX_PARTS 8

static const char *const patterns[] = {
    ("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
     "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"),
    "\\p{S}+|\\p{L}+|\\p{Nd}",
    "[\\p{Han}]+|[^\\p{Han}]+",
    "\\p{P}+|\\p{M}+",
    "\\w+|[^\\w\\s]+",
};
#define N_PATTERNS (sizeof patterns / sizeof *patterns)

static const struct {
    const char *text;
    size_t ends[N_PATTERNS][MAX_PARTS];
} cases[] = {
    /* a pink heart, of 2022 */
    {"I \U0001FA77 you", {{1, 6, 10}, {1, 2, 6, 7, 10}, {10}, {10}, {1, 2, 6, 7, 10}}},
    {"\U0001FA77\U0001FA77!", {{9}, {8, 9}, {9}, {8, 9}, {9}}},
    /* CJK extensions H and I */
    {"x\U00031350y z", {{6, 8}, {6, 7, 8}, {1, 5, 8}, {8}, {6, 7, 8}}},
    {"\u4e00\U0002EBF0\U00031350b", {{12}, {12}, {11, 12}, {12}, {12}}},
    /* letters and digits of Garay, of 2024 */
    {"a \U00010D50\U00010D42 1", {{1, 6, 10, 11, 12}, {1, 2, 6, 10, 11, 12}, {12}, {12}, {1, 2, 10, 11, 12}}},
    /* a mark, punctuation, letters with case, a symbol */
    {"a\u0897b \u1b4e\u1b7f", {{1, 5, 12}, {1, 4, 5, 12}, {12}, {1, 4, 6, 12}, {5, 6, 12}}},
    {"\u1c89\u1c8a \u31ef", {{6, 10}, {6, 7, 10}, {10}, {10}, {6, 7, 10}}},
};

static void test_stand_ins__texts_are_cut_as_by_the_library(void **state)
{
    (void)state;
    void *memory = NULL; /* of all walks: texts with and without such characters take turns */
    for (size_t p = 0; p < N_PATTERNS; p++) {
        struct moec_pattern *pattern = NULL;
        MUST(moec_pattern_create(patterns[p], strlen(patterns[p]), true, &pattern, &err));
        for (size_t c = 0; c < 2 * sizeof cases / sizeof *cases; c++) {
            const bool is_plain = c % 2 == 1;
            const char *text = is_plain ? "x" : cases[c / 2].text;
            struct moec_pattern_walk walk;
            struct moec_pattern_part part;
            size_t n = 0;
            bool more = true;
            MUST(moec_pattern_walk_init(&walk, pattern, text, strlen(text), &memory, &err));
            for (;; n++) {
                MUST(moec_pattern_walk_next(&walk, &part, &more, &err));
                if (!more)
                    break;
                const size_t expected = is_plain ? 1 : cases[c / 2].ends[p][n];
                if (part.end != expected)
                    fail_msg("pattern %zu, text '%s': part %zu ends at %zu, expected %zu", p, text, n,
                             part.end, expected);
            }
            assert_int_equal(is_plain ? n == 1 : cases[c / 2].ends[p][n] == 0, true);
        }
        moec_pattern_free(pattern);
    }
    moec_pattern_memory_free(memory);
}

/* Every character: what stands in for it has its length, and needs none itself. */
static void test_stand_ins__have_the_same_length(void **state)
{
    (void)state;
    uint32_t n = 0;
    for (uint32_t code_point = 0x80; code_point < 0x110000; code_point++) {
        char text[4], other[4];
        if (code_point >= 0xd800 && code_point < 0xe000)
            continue;
        const size_t n_bytes = moec_utf8_write(code_point, text);
        memcpy(other, text, n_bytes);
        moec_stand_ins_put(other, n_bytes);
        if (moec_stand_ins_find(text, n_bytes) == n_bytes) {
            assert_memory_equal(other, text, n_bytes);
            continue;
        }
        n++;
        assert_int_equal(moec_utf8_read(other, n_bytes).n_bytes, n_bytes);
        assert_memory_not_equal(other, text, n_bytes);
        assert_int_equal(moec_stand_ins_find(other, n_bytes), n_bytes);
    }
    assert_int_equal(n, 10301);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stand_ins__texts_are_cut_as_by_the_library),
        cmocka_unit_test(test_stand_ins__have_the_same_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
