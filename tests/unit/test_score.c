/* A run on some of the windows gives what a run on all gives them, whoever shares them. */
#include "tests/unit/fixture_model.h"
#include "tests/unit/thread_ranks.h"

#include "profiler/evaluate/score.h"

#include <math.h>

#define N_WINDOW 7u
#define SEQ_LEN  12u
#define N_RANK   3u

struct measured {
    double nll[N_WINDOW], kl[N_WINDOW];
};

/* Windows of unlike lengths, with sources where the model reads some. */
struct cut {
    struct moec_windows windows;
    uint32_t length[N_WINDOW], source[N_WINDOW], scored[N_WINDOW];
    uint64_t index[N_WINDOW];
};

static void cut_windows(const struct fixture *fixture, struct cut *cut)
{
    cut->windows = (struct moec_windows){.n_window = N_WINDOW,
                                         .seq_len_tokens = SEQ_LEN,
                                         .tokens = fixture_long_tokens(fixture, 2 * N_WINDOW * SEQ_LEN),
                                         .length = cut->length,
                                         .source = fixture->source != NULL ? cut->source : NULL,
                                         .scored = cut->scored,
                                         .index = cut->index};
    for (uint32_t w = 0; w < N_WINDOW; w++) {
        cut->index[w] = w;
        cut->source[w] = fixture->source != NULL ? 3 + w % 4 : 0;
        cut->length[w] = cut->source[w] + SEQ_LEN - w;
        cut->scored[w] = cut->length[w] - cut->source[w] - 1;
    }
}

/* Windows ends[i - 1] .. ends[i] - 1 in a run each, up to all of them. */
static enum moec_status measure(const struct fixture *fixture, uint64_t kept_bytes, struct moec_ranks *ranks,
                                const uint32_t *ends, struct measured *out, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct cut cut;
    struct moec_scorer *scorer = NULL;
    struct moec_experts *experts = moec_variants_experts(fixture->variants);
    const struct moec_scorer_options options = {
        .by = {.kernels = moec_kernels_best(), .n_threads = 1, .ranks = ranks},
        .reference_limit_bytes = kept_bytes,
        .variants = fixture->variants};
    double reference[N_WINDOW];
    cut_windows(fixture, &cut);
    for (uint32_t w = 0; w < N_WINDOW; w++)
        out->nll[w] = out->kl[w] = (double)NAN;
    MOEC_TRY_OUT(moec_scorer_create(fixture->model, experts, &cut.windows, &options, &scorer, err));
    MOEC_TRY_OUT(
        moec_variants_assign_all(fixture->variants, moec_variants_source_bits(fixture->variants), err));
    MOEC_TRY_OUT(moec_scorer_set_reference(scorer, fixture->model, experts, reference, NULL, err));
    MOEC_TRY_OUT(moec_variants_assign_all(fixture->variants, 2, err));
    for (uint32_t first = 0; first < N_WINDOW; first = *ends++) {
        const struct moec_scorer_variation variation = {.first_window = first, .n_window = *ends};
        MOEC_TRY_OUT(
            moec_scorer_run_varied(scorer, &variation, &(struct moec_measure){out->nll, out->kl}, NULL, err));
    }
out:
    moec_scorer_free(scorer);
    free(cut.windows.tokens);
    return status;
}

static const uint32_t whole[] = {N_WINDOW}, pieces[] = {3, 4, N_WINDOW};

static void test_score__windows_in_pieces(void **state)
{
    (void)state;
    static const char *const families[] = {"olmoe", "qwen3_moe", "switch", "switch-gated"};
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        struct fixture fixture = fixture_open(families[f]);
        struct measured all, some;
        struct moec_error err = {0};
        assert_ok(measure(&fixture, 1 << 30, NULL, whole, &all, &err), err);
        assert_true(all.kl[N_WINDOW - 1] > 0);
        assert_ok(measure(&fixture, 1 << 30, NULL, pieces, &some, &err), err);
        assert_memory_equal(&all, &some, sizeof all);
        assert_ok(measure(&fixture, 0, NULL, pieces, &some, &err),
                  err); /* the original's head again each time */
        assert_memory_equal(&all, &some, sizeof all);
        fixture_close(&fixture);
    }
}

/* What a rank measures of a model of its own. */
struct share {
    struct fixture fixture;
    struct measured measured;
};

static void measure_pieces(struct member *member, struct moec_ranks *ranks)
{
    struct share *share = member->context;
    member->status = measure(&share->fixture, 1 << 30, ranks, pieces, &share->measured, &member->err);
    if (member->status == MOEC_OK)
        member->status = moec_ranks_leave(ranks, NULL, &member->err);
}

static void test_score__pieces_that_ranks_share(void **state)
{
    (void)state;
    static struct share shares[N_RANK];
    struct member members[MOST] = {0};
    struct moec_error err = {0};
    struct measured all;
    for (uint32_t r = 0; r < N_RANK; r++) {
        shares[r].fixture = fixture_open("olmoe");
        members[r].context = &shares[r];
    }
    assert_ok(measure(&shares[0].fixture, 1 << 30, NULL, whole, &all, &err), err);
    run_ranks(N_RANK, measure_pieces, members, N_RANK);
    for (uint32_t r = 0; r < N_RANK; r++) {
        assert_status(members[r].status, MOEC_OK, members[r].err);
        assert_memory_equal(&shares[r].measured, &all, sizeof all);
        fixture_close(&shares[r].fixture);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_score__windows_in_pieces),
                                       cmocka_unit_test(test_score__pieces_that_ranks_share)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
