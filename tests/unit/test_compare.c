/* Comparing profiles: equal ones agree, known differences are found, other shapes are refused. */
#include "tests/unit/temporary.h"

#include "profiler/report/compare.h"
#include "tests/unit/synthetic_profile.h"

#include <math.h>

static const struct synthetic_shape shape = {.n_dense = 1,
                                             .n_moe_layer = 3,
                                             .n_expert = 8,
                                             .top_k = 2,
                                             .n_window = 32,
                                             .seq_len_tokens = 12,
                                             .n_bits = 3,
                                             .n_uniform = 4,
                                             .n_key = 8};

static void make(const struct synthetic_shape *of, struct moec_profile *p)
{
    assert_int_equal(synthetic_profile(of, p), MOEC_OK);
}

static void assert_says(const struct moec_paragraphs *text, const char *part)
{
    for (uint32_t i = 0; i < text->n; i++)
        if (strstr(text->items[i], part) != NULL)
            return;
    for (uint32_t i = 0; i < text->n; i++)
        print_message("# %s\n", text->items[i]);
    fail_msg("no paragraph says '%s'", part);
}

static void test_compare__a_profile_agrees_with_itself(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_profile a;
    struct moec_compare c;
    struct moec_figures figures;
    struct moec_paragraphs text = {0};
    make(&shape, &a);
    assert_status(moec_compare_make(&a, &a, &c, &err), MOEC_OK, err);
    assert_true(c.same_data && c.same_model && c.same_quantizer && c.same_mode);
    assert_int_equal(c.n_bits, 3);
    assert_int_equal(c.n_reached, 24);
    for (uint32_t b = 0; b < 3; b++) {
        assert_true(c.bits[b].pooled > 1 - 1e-12);
        for (uint32_t s = 0; s < 3; s++)
            assert_true(c.bits[b].layers[s] > 1 - 1e-12);
    }
    assert_true(c.activation_overlap > 1 - 1e-12 && c.activation_rank > 1 - 1e-12);
    assert_true(c.path_coverage == 1 && c.path_overlap == 1);
    for (uint32_t t = 0; t < MOEC_MIXED_TARGETS; t++) {
        assert_true(fabs(c.a_on_b[t].loss - c.a_on_b[t].own_loss) < 1e-12);
        assert_true(c.a_on_b[t].planned_loss <= c.a_on_b[t].loss + 1e-9);
    }
    moec_compare_describe(&c, &text);
    assert_says(&text, "does not matter");
    assert_status(moec_compare_figures(&c, &figures, &err), MOEC_OK, err);
    assert_int_equal(figures.items[0].n_chart, 2);
    assert_int_equal(figures.items[0].charts[0].n_series, 3);
    moec_figures_release(&figures);
    moec_compare_release(&c);
    moec_profile_release(&a);
}

/* The most and the least sensitive expert of the model at 2 bits. */
static void find_ends(const struct moec_profile *p, uint32_t *most, uint32_t *least)
{
    double high = -INFINITY, low = INFINITY;
    for (uint32_t i = 0; i < 24; i++) {
        const double kl = moec_profile_expert_row(p, p->expert_kl, i / 8, i % 8, 0)[0];
        *most = kl > high ? i : *most;
        *least = kl < low ? i : *least;
        high = fmax(high, kl);
        low = fmin(low, kl);
    }
}

static void test_compare__finds_what_differs(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_profile a, b;
    struct moec_compare c;
    struct moec_paragraphs text = {0};
    uint32_t most = 0, least = 0;
    make(&shape, &a);
    make(&shape, &b);
    b.data_digest[0] ^= 1;
    (void)snprintf(b.data_name, sizeof b.data_name, "other.txt");
    find_ends(&a, &most, &least);
    for (uint32_t bit = 0; bit < b.n_bits; bit++) {
        double *x = moec_profile_expert_row(&b, b.expert_kl, most / 8, most % 8, bit);
        double *y = moec_profile_expert_row(&b, b.expert_kl, least / 8, least % 8, bit);
        for (uint32_t w = 0; w < b.n_window; w++) {
            const double kept = x[w];
            x[w] = y[w];
            y[w] = kept;
        }
    }
    assert_status(moec_compare_make(&a, &b, &c, &err), MOEC_OK, err);
    assert_true(!c.same_data && c.same_model);
    /* Spearman: 1 - 6 sum d^2 / (n (n^2 - 1)), two experts 23 places apart. */
    assert_true(fabs(c.bits[0].pooled - (1 - 6.0 * 2 * 23 * 23 / (24 * (24.0 * 24 - 1)))) < 1e-9);
    assert_int_equal(c.listed[0].rank_a == 1 || c.listed[0].rank_b == 1, 1);
    assert_true(fabs(c.listed[0].rank_a - c.listed[0].rank_b) == 23);
    assert_true(fabs(c.listed[1].rank_a - c.listed[1].rank_b) == 23);
    for (uint32_t t = 0; t < MOEC_MIXED_TARGETS; t++)
        assert_true(c.a_on_b[t].loss >= c.a_on_b[t].own_loss &&
                    c.a_on_b[t].planned_loss <= c.a_on_b[t].loss + 1e-9);
    moec_compare_describe(&c, &text);
    assert_says(&text, "the data matters");
    assert_says(&text, "'other.txt'");
    moec_compare_release(&c);
    moec_profile_release(&a);
    moec_profile_release(&b);
}

/* Experts of layers 0 and 2 are ordered alike in even and odd windows, those of layer 1 in reverse. */
static void order_experts(struct moec_profile *p)
{
    for (uint32_t s = 0; s < 3; s++)
        for (uint32_t e = 0; e < 8; e++) {
            double *kl = moec_profile_expert_row(p, p->expert_kl, s, e, 0);
            for (uint32_t w = 0; w < p->n_window; w++)
                kl[w] = p->baseline.kl[w] + p->window_scored[w] * (s == 1 && w % 2 ? 8 - e : e + 1.0);
        }
}

static void test_compare__halves_tell_a_layer_of_noise(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_profile a, b;
    struct moec_compare c;
    struct moec_paragraphs text = {0};
    make(&shape, &a);
    make(&shape, &b);
    order_experts(&b);
    for (uint32_t s = 0; s < 3; s++)
        for (uint32_t e = 0; e < 8; e++)
            *moec_profile_expert_row(&b, b.expert_kl, s, e, 0) += s == 1 ? e : 0; /* the whole has an order */
    assert_status(moec_compare_make(&a, &b, &c, &err), MOEC_OK, err);
    assert_true(c.bits[0].layer_halves_b[0] > 1 - 1e-12 && c.bits[0].layer_halves_b[2] > 1 - 1e-12);
    assert_true(c.bits[0].layer_halves_b[1] < -1 + 1e-12);
    for (uint32_t s = 0; s < 3; s++)
        assert_true(fabs(c.bits[0].layer_halves_a[s]) <= 1 + 1e-12 && !isnan(c.bits[0].layer_halves_a[s]));
    moec_compare_release(&c);
    assert_status(moec_compare_make(&b, &b, &c, &err), MOEC_OK, err);
    c.bits[0].lowest = 1;
    moec_compare_describe(&c, &text);
    assert_says(&text, "where the halves of A have -1.000 and those of B -1.000");
    moec_compare_release(&c);
    moec_profile_release(&a);
    moec_profile_release(&b);
}

/* A bitwidth that only one of them measured has no loss on the other, and no figure says so in words. */
static void test_compare__bitwidths_that_one_lacks(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_profile a, b;
    struct moec_compare c;
    struct moec_paragraphs text = {0};
    make(&shape, &a);
    make(&shape, &b);
    b.bits[2] = 6;
    assert_status(moec_compare_make(&a, &b, &c, &err), MOEC_OK, err);
    for (uint32_t t = 0; t < MOEC_MIXED_TARGETS; t++)
        c.a_on_b[t].loss = (double)NAN;
    moec_compare_describe(&c, &text);
    assert_says(&text, "on A, but use bitwidths that B did not measure");
    for (uint32_t i = 0; i < text.n; i++)
        assert_null(strstr(text.items[i], "nan"));
    moec_compare_release(&c);
    moec_profile_release(&b);
    moec_profile_release(&a);
}

static void test_compare__refuses_other_shapes(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_profile a, b;
    struct moec_compare c;
    struct synthetic_shape other = shape;
    make(&shape, &a);
    other.n_expert = 6;
    make(&other, &b);
    assert_status(moec_compare_make(&a, &b, &c, &err), MOEC_ERR_MISMATCH, err);
    assert_message(err, "8 and 6 experts per layer");
    moec_profile_release(&b);
    other = shape;
    other.n_dense = 2;
    make(&other, &b);
    err = (struct moec_error){0};
    assert_status(moec_compare_make(&a, &b, &c, &err), MOEC_ERR_MISMATCH, err);
    assert_message(err, "layer 1 in the first and 2 in the second");
    moec_profile_release(&b);
    make(&shape, &b);
    b.bits[0] = 5; /* none in common */
    b.bits[1] = 6;
    b.bits[2] = 7;
    err = (struct moec_error){0};
    assert_status(moec_compare_make(&a, &b, &c, &err), MOEC_ERR_MISMATCH, err);
    assert_message(err, "no bitwidth");
    moec_profile_release(&b);
    moec_profile_release(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compare__a_profile_agrees_with_itself),
        cmocka_unit_test(test_compare__finds_what_differs),
        cmocka_unit_test(test_compare__halves_tell_a_layer_of_noise),
        cmocka_unit_test(test_compare__bitwidths_that_one_lacks),
        cmocka_unit_test(test_compare__refuses_other_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
