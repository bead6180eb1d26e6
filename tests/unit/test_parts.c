/* Which windows search, select and certify: sizes by default and as asked, and drawing by document. */
#include "profiler/evaluate/parts.h"
#include "tests/unit/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#define LEAST 16

static void check_sizes(struct moec_part_request request, uint64_t n_available, uint32_t search,
                        uint32_t select, uint32_t certificate)
{
    uint32_t sizes[MOEC_PART_COUNT];
    struct moec_error err = {0};
    request.min_part_windows = LEAST;
    assert_ok(moec_parts_size(&request, n_available, sizes, &err), err);
    assert_int_equal(sizes[MOEC_PART_SEARCH], search);
    assert_int_equal(sizes[MOEC_PART_SELECT], select);
    assert_int_equal(sizes[MOEC_PART_CERTIFICATE], certificate);
}

static void refuse_sizes(struct moec_part_request request, uint64_t n_available, enum moec_status expected,
                         const char *message)
{
    uint32_t sizes[MOEC_PART_COUNT];
    struct moec_error err = {0};
    request.min_part_windows = LEAST;
    assert_status(moec_parts_size(&request, n_available, sizes, &err), expected, err);
    assert_message(err, message);
}

static void test_parts__half_certify(void **state)
{
    (void)state;
    const struct moec_part_request all = {0};
    check_sizes(all, 100000, 256, 128, 512);
    check_sizes(all, 1024, 256, 128, 512);
    check_sizes(all, 896, 256, 128, 448);
    check_sizes(all, 600, 200, 100, 300);
    check_sizes(all, 32, 16, 0, 16);
    check_sizes(all, 46, 23, 0, 23); /* 7 windows are not worth a part */
    check_sizes(all, 48, 16, 8, 24);
    /* Asked for in all: the same shares, of any size, and no more than there are. */
    check_sizes((struct moec_part_request){.n_window = 96}, 5000, 32, 16, 48);
    check_sizes((struct moec_part_request){.n_window = 6000}, 50000, 2000, 1000, 3000);
    check_sizes((struct moec_part_request){.n_window = 6000}, 96, 32, 16, 48);
    refuse_sizes((struct moec_part_request){.n_window = 31}, 5000, MOEC_ERR_USAGE,
                 "of 31 windows only 15 go to the certificate part, expected at least 16");
}

static void test_parts__sizes_as_asked(void **state)
{
    (void)state;
    check_sizes((struct moec_part_request){.n_part = {[MOEC_PART_CERTIFICATE] = 700}}, 2000, 256, 128, 700);
    check_sizes((struct moec_part_request){.n_part = {[MOEC_PART_SEARCH] = 600}}, 2000, 600, 128, 512);
    check_sizes((struct moec_part_request){.n_part = {[MOEC_PART_SEARCH] = 600}}, 700, 600, 0, 100);
    check_sizes((struct moec_part_request){.n_part = {[MOEC_PART_SELECT] = 4}}, 2000, 256, 4, 512);
    check_sizes((struct moec_part_request){.no_select = true}, 2000, 256, 0, 512);
    check_sizes((struct moec_part_request){.n_window = 60, .no_select = true}, 2000, 30, 0, 30);
    check_sizes((struct moec_part_request){.n_part = {20, 30, 40}}, 90, 20, 40, 30);
    refuse_sizes((struct moec_part_request){.n_part = {20, 30, 40}}, 89, MOEC_ERR_LIMIT,
                 "20 windows to search on, 40 to select with and 30 to certify with are 90 together, "
                 "but the text has only 89");
    refuse_sizes((struct moec_part_request){.n_part = {[MOEC_PART_CERTIFICATE] = 90}}, 100, MOEC_ERR_USAGE,
                 "to the search part");
    refuse_sizes((struct moec_part_request){.n_part = {[MOEC_PART_CERTIFICATE] = UINT32_MAX}}, 100,
                 MOEC_ERR_USAGE, "to the search part");
}

/* Documents of these numbers of windows; which document has a window. */
struct texts {
    uint64_t starts[64], n_window;
    uint32_t n;
};

static struct texts texts_make(const uint32_t *lengths, uint32_t n)
{
    struct texts texts = {.n = n};
    for (uint32_t d = 0; d < n; d++) {
        texts.starts[d] = texts.n_window;
        texts.n_window += lengths[d];
    }
    return texts;
}

static uint32_t document_of(const struct texts *texts, uint64_t window)
{
    uint32_t d = texts->n - 1;
    while (texts->starts[d] > window)
        d--;
    return d;
}

static struct moec_part_draw draw(const struct texts *texts, const uint32_t *sizes, uint64_t seed)
{
    struct moec_part_draw drawn;
    struct moec_error err = {0};
    const struct moec_part_documents documents = {texts->starts, texts->n, texts->n_window};
    assert_ok(moec_parts_draw(&documents, sizes, seed, &drawn, &err), err);
    return drawn;
}

static void test_parts__no_document_is_in_two(void **state)
{
    (void)state;
    uint32_t lengths[50];
    for (uint32_t d = 0; d < 50; d++)
        lengths[d] = d % 7 == 3 ? 0 : 1 + d * d % 9;
    const struct texts texts = texts_make(lengths, 50);
    const uint32_t sizes[MOEC_PART_COUNT] = {40, 80, 20};
    for (uint64_t seed = 0; seed < 20; seed++) {
        uint8_t part_of[50];
        bool seen[512] = {false};
        uint32_t count[MOEC_PART_COUNT] = {0};
        struct moec_part_draw drawn = draw(&texts, sizes, seed);
        assert_true(drawn.by_document);
        memset(part_of, 0xff, sizeof part_of);
        for (uint32_t i = 0; i < drawn.n_window; i++) {
            const uint32_t d = document_of(&texts, drawn.index[i]);
            assert_false(seen[drawn.index[i]]);
            seen[drawn.index[i]] = true;
            assert_true(part_of[d] == 0xff || part_of[d] == drawn.parts[i]);
            part_of[d] = drawn.parts[i];
            count[drawn.parts[i]]++;
            /* The search part first, then select, then certificate. */
            assert_true(i == 0 || drawn.parts[i] == drawn.parts[i - 1] ||
                        drawn.parts[i] == MOEC_PART_CERTIFICATE ||
                        (drawn.parts[i] == MOEC_PART_SELECT && drawn.parts[i - 1] == MOEC_PART_SEARCH));
        }
        for (int p = 0; p < MOEC_PART_COUNT; p++)
            assert_true(count[p] <= sizes[p] && count[p] >= sizes[p] - sizes[p] / 4);
        struct moec_part_draw again = draw(&texts, sizes, seed), other = draw(&texts, sizes, seed + 1);
        assert_memory_equal(drawn.index, again.index, drawn.n_window * sizeof *drawn.index);
        assert_memory_not_equal(drawn.index, other.index, sizes[0] * sizeof *drawn.index);
        moec_part_draw_release(&drawn);
        moec_part_draw_release(&again);
        moec_part_draw_release(&other);
    }
}

/* Few documents, or one that is nearly everything: windows are drawn from all. */
static void test_parts__few_documents_are_shared(void **state)
{
    (void)state;
    uint32_t lengths[40];
    const uint32_t sizes[MOEC_PART_COUNT] = {30, 60, 10};
    for (uint32_t d = 0; d < 40; d++)
        lengths[d] = 10;
    const struct texts few = texts_make(lengths, 31);
    for (uint32_t d = 0; d < 40; d++)
        lengths[d] = d == 17 ? 1000 : 0;
    lengths[3] = 5;
    const struct texts one = texts_make(lengths, 40);
    const struct texts *const texts[] = {&few, &one};
    for (size_t i = 0; i < 2; i++) {
        struct moec_part_draw drawn = draw(texts[i], sizes, 3);
        assert_false(drawn.by_document);
        assert_int_equal(drawn.n_window, 100);
        for (uint32_t w = 0; w < 100; w++)
            assert_int_equal(drawn.parts[w], w < 30   ? MOEC_PART_SEARCH
                                             : w < 40 ? MOEC_PART_SELECT
                                                      : MOEC_PART_CERTIFICATE);
        moec_part_draw_release(&drawn);
    }
    /* Many small ones beside a giant, which leaves too few for the certificate where it goes there. */
    uint32_t n_shared = 0;
    for (uint32_t d = 0; d < 40; d++)
        lengths[d] = d == 0 ? 1000 : 2;
    const struct texts giant = texts_make(lengths, 40);
    for (uint64_t seed = 0; seed < 30; seed++) {
        struct moec_part_draw drawn = draw(&giant, sizes, seed);
        uint32_t documents = 0;
        bool seen[64] = {false};
        for (uint32_t w = 0; w < drawn.n_window; w++) {
            const uint32_t d = document_of(&giant, drawn.index[w]);
            documents += drawn.parts[w] == MOEC_PART_CERTIFICATE && !seen[d];
            seen[d] = true;
        }
        assert_true(!drawn.by_document || documents >= 8);
        n_shared += !drawn.by_document;
        moec_part_draw_release(&drawn);
    }
    assert_true(n_shared > 0 && n_shared < 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts__half_certify),
        cmocka_unit_test(test_parts__sizes_as_asked),
        cmocka_unit_test(test_parts__no_document_is_in_two),
        cmocka_unit_test(test_parts__few_documents_are_shared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
