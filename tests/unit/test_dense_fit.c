/* GPTQ of all dense weights: every family's matrices, nearer to the original than rounding, the same bytes at
 * any thread count and batch, in memory or read again. */
#include "tests/unit/dense_load.h"
#include "tests/unit/fixture_model.h"
#include "tests/unit/thread_ranks.h"

#include "compiler/fit/dense_fit.h"
#include "profiler/evaluate/load_model.h"

#define N_WINDOW 4u
#define SEQ_LEN  12u

/* Windows of any tokens. */
static struct moec_windows windows_make(const struct moec_config *config, struct moec_work_memory *work)
{
    struct moec_windows windows = {.n_window = N_WINDOW, .seq_len_tokens = SEQ_LEN, .work = work};
    windows.tokens = malloc(N_WINDOW * SEQ_LEN * sizeof(uint32_t));
    windows.length = malloc(N_WINDOW * sizeof(uint32_t));
    windows.scored = malloc(N_WINDOW * sizeof(uint32_t));
    windows.index = calloc(N_WINDOW, sizeof(uint64_t));
    for (uint32_t i = 0; i < N_WINDOW * SEQ_LEN; i++)
        windows.tokens[i] = (i * 2654435761u >> 7) % config->n_vocab;
    for (uint32_t w = 0; w < N_WINDOW; w++) {
        windows.length[w] = SEQ_LEN - w;
        windows.scored[w] = SEQ_LEN - w - 1;
    }
    return windows;
}

struct bench {
    struct fixture fixture;
    struct moec_work_memory work;
    struct moec_windows windows;
    struct moec_rank_block block; /* of a bench that ranks share */
    struct moec_scorer *scorer;
    struct moec_measure measure;
};

/* Of a bench with a fixture. */
static void bench_begin(struct bench *bench, int n_threads, uint32_t batch_tokens, struct moec_ranks *ranks)
{
    const struct moec_scorer_options options = {
        .by = {.kernels = moec_kernels_best(), .n_threads = n_threads}};
    struct moec_experts *experts = moec_variants_experts(bench->fixture.variants);
    bench->work = (struct moec_work_memory){.batch_tokens = batch_tokens};
    bench->windows = windows_make(&bench->fixture.model->config, &bench->work);
    bench->measure =
        (struct moec_measure){calloc(N_WINDOW, sizeof(double)), calloc(N_WINDOW, sizeof(double))};
    if (ranks != NULL)
        MUST(moec_rank_block_make(ranks, &bench->windows, &bench->block, &err));
    MUST(moec_scorer_create(bench->fixture.model, experts,
                            ranks != NULL ? &bench->block.own : &bench->windows, &options, &bench->scorer,
                            &err));
}

static void bench_open_shared(struct bench *bench, const char *name, int n_threads, uint32_t batch_tokens,
                              struct moec_ranks *ranks)
{
    *bench = (struct bench){.fixture = fixture_open(name)};
    bench_begin(bench, n_threads, batch_tokens, ranks);
}

static void bench_open(struct bench *bench, const char *name, int n_threads, uint32_t batch_tokens)
{
    bench_open_shared(bench, name, n_threads, batch_tokens, NULL);
    MUST(moec_scorer_set_reference(bench->scorer, bench->fixture.model,
                                   moec_variants_experts(bench->fixture.variants), NULL, NULL, &err));
}

static void bench_close(struct bench *bench)
{
    moec_scorer_free(bench->scorer);
    moec_rank_block_release(&bench->block);
    moec_windows_release(&bench->windows);
    free(bench->measure.nll);
    free(bench->measure.kl);
    fixture_close(&bench->fixture);
}

/* At 4 and 8 bits. */
static struct moec_dense_fit *fit_of(struct bench *bench, int n_threads)
{
    static const uint8_t numbers[] = {4, 8};
    struct moec_codec codecs[MOEC_CODEC_TABLE] = {0};
    struct moec_dense_fit *fit = NULL;
    MUST(moec_codec_for_bits(4, MOEC_SCHEME_SYMMETRIC, 32, MOEC_DTYPE_F32, &codecs[4], &err));
    MUST(moec_codec_for_bits(8, MOEC_SCHEME_SYMMETRIC, 0, MOEC_DTYPE_F32, &codecs[8], &err));
    const struct moec_dense_fit_request request = {
        .checkpoint = bench->fixture.checkpoint,
        .evaluation = {.scorer = bench->scorer, .measure = &bench->measure},
        .codes = {.codecs = codecs, .numbers = numbers, .n_number = 2},
        .n_threads = n_threads,
        .block = bench->block.ranks != NULL ? &bench->block : NULL};
    MUST(moec_dense_fit_create(&request, &fit, &err));
    return fit;
}

/* All matrices at 4 bits for index 0, at 8 for 1. */
static void open_all(const struct moec_dense_fit *fit, uint32_t index, struct moec_dense *dense)
{
    uint8_t numbers[1024];
    memset(numbers, index == 0 ? 4 : 8, sizeof numbers);
    MUST(moec_dense_fit_open(fit, numbers, dense, &err));
}

static struct moec_dense dense_of(const struct moec_dense_fit *fit, uint32_t index)
{
    struct moec_dense dense = {0};
    open_all(fit, index, &dense);
    MUST(moec_dense_load(&dense, &err));
    return dense;
}

static double mean_kl(struct bench *bench, struct moec_dense *dense)
{
    struct moec_model *model = NULL;
    double sum = 0;
    MUST(moec_model_create(&bench->fixture.model->config, dense, &model, &err));
    const struct moec_scorer_variation variation = {.model = model};
    MUST(moec_scorer_run_varied(bench->scorer, &variation, &bench->measure, NULL, &err));
    for (uint32_t w = 0; w < N_WINDOW; w++)
        sum += bench->measure.kl[w];
    moec_model_free(model);
    return sum;
}

static void test_dense_fit__is_nearer_than_rounding(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FIXTURE_FAMILIES; f++) {
        struct bench bench;
        bench_open(&bench, fixture_families[f], 2, 0);
        struct moec_dense_fit *fit = fit_of(&bench, 2);
        for (uint32_t i = 0; i < 2; i++) {
            struct moec_dense ours = dense_of(fit, i), linear = {0};
            const bool tied = bench.fixture.model->config.head.is_tied;
            uint32_t n_changed = 0, n_fitted = 0;
            MUST(dense_load(bench.fixture.checkpoint, i == 0 ? 4 : 8, i == 0 ? 32 : 0, &linear, &err));
            assert_int_equal(ours.blob_bytes, linear.blob_bytes);
            for (uint32_t e = 0; e < ours.n_entries; e++) {
                const struct moec_dense_entry *entry = &ours.entries[e];
                const enum moec_role role = (enum moec_role)entry->role;
                const bool fitted = moec_role_is_quantisable(role) && (role != MOEC_ROLE_EMBEDDING || tied);
                const int order =
                    memcmp(ours.blob + entry->offset, linear.blob + entry->offset, entry->n_bytes);
                assert_true(fitted || order == 0);
                n_changed += order != 0;
                n_fitted += fitted;
            }
            assert_int_equal(moec_dense_fit_count(fit), n_fitted);
            assert_true(n_changed > n_fitted / 2);
            const double gptq = mean_kl(&bench, &ours), rounded = mean_kl(&bench, &linear);
            /* At 8 bits these small random models differ by which experts a token or two took. */
            if (i == 0 && !(gptq < rounded))
                fail_msg("%s: KL %g by GPTQ, %g rounded", fixture_families[f], gptq, rounded);
        }
        moec_dense_fit_free(fit);
        bench_close(&bench);
    }
}

/* Two matrices of rows are given the same inputs, and each is what these rows are in one. */
static void test_dense_fit__rows_in_two_matrices_are_those_of_one(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen2_moe-tied", "qwen2_moe"};
    enum { N_FREQUENT = 64 };
    for (size_t f = 0; f < 2; f++) {
        struct bench bench;
        bench_open(&bench, names[f], 2, 0);
        struct moec_dense_fit *whole = fit_of(&bench, 2);
        struct moec_dense one = dense_of(whole, 0), dense = {0};
        const uint32_t n_fitted = moec_dense_fit_count(whole);
        moec_dense_fit_free(whole);
        bench_close(&bench);
        bench = (struct bench){.fixture = fixture_open(names[f])};
        fixture_cut_rows(&bench.fixture, N_FREQUENT);
        bench_begin(&bench, 2, 0, NULL);
        struct moec_dense_fit *parts = fit_of(&bench, 2);
        dense = dense_of(parts, 0);
        assert_int_equal(moec_dense_fit_count(parts), n_fitted + 1); /* an embedding alone is not fitted */
        for (uint32_t i = 0; i < dense.n_entries; i++) {
            const struct moec_dense_entry *entry = &dense.entries[i];
            const enum moec_role role = moec_role_whole((enum moec_role)entry->role);
            const struct moec_dense_entry *all = moec_dense_entry_find(&one, role, entry->layer);
            const uint64_t skipped = role != (enum moec_role)entry->role ? all->n_bytes - entry->n_bytes : 0;
            assert_memory_equal(dense.blob + entry->offset, one.blob + all->offset + skipped, entry->n_bytes);
        }
        moec_dense_release(&one);
        moec_dense_release(&dense);
        moec_dense_fit_free(parts);
        bench_close(&bench);
    }
}

static void test_dense_fit__does_not_depend_on_threads_or_batches(void **state)
{
    (void)state;
    struct bench one, three;
    bench_open(&one, "qwen2_moe", 1, 0);
    bench_open(&three, "qwen2_moe", 3, SEQ_LEN);
    struct moec_dense_fit *fit[2] = {fit_of(&one, 1), fit_of(&three, 3)};
    for (uint32_t i = 0; i < 2; i++) {
        struct moec_dense a = dense_of(fit[0], i), b = dense_of(fit[1], i);
        assert_memory_equal(a.blob, b.blob, a.blob_bytes);
        moec_dense_release(&a);
        moec_dense_release(&b);
    }
    /* Rows by themselves, as a streamed model reads them. */
    struct moec_dense whole = dense_of(fit[0], 0), streamed = {0};
    open_all(fit[0], 0, &streamed);
    for (uint32_t e = 0; e < whole.n_entries; e++) {
        const struct moec_dense_entry *entry = &streamed.entries[e];
        const size_t row_bytes = moec_codec_row_bytes(entry->codec, entry->columns);
        uint8_t *row = malloc(row_bytes);
        MUST(streamed.source->load(streamed.source, entry, entry->rows - 1, 1, row, &err));
        assert_memory_equal(row, whole.blob + entry->offset + (entry->rows - 1) * row_bytes, row_bytes);
        free(row);
    }
    moec_dense_release(&whole);
    moec_dense_release(&streamed);
    moec_dense_fit_free(fit[0]);
    moec_dense_fit_free(fit[1]);
    bench_close(&one);
    bench_close(&three);
}

struct shared {
    const char *name;
    const struct moec_dense *alone; /* [2] */
    bool is_same;
};

static void fit_shared(struct member *member, struct moec_ranks *ranks)
{
    struct shared *shared = member->context;
    struct bench bench;
    bench_open_shared(&bench, shared->name, 1, 0, ranks);
    struct moec_dense_fit *fit = fit_of(&bench, 1);
    shared->is_same = true;
    for (uint32_t i = 0; i < 2; i++) {
        struct moec_dense dense = dense_of(fit, i);
        shared->is_same &= dense.blob_bytes == shared->alone[i].blob_bytes &&
                           memcmp(dense.blob, shared->alone[i].blob, dense.blob_bytes) == 0;
        moec_dense_release(&dense);
    }
    moec_dense_fit_free(fit);
    bench_close(&bench);
    member->status = moec_ranks_leave(ranks, NULL, &member->err);
}

/* With fewer and more windows than ranks. */
static void test_dense_fit__is_the_same_of_ranks(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FIXTURE_FAMILIES; f++) {
        struct bench bench;
        bench_open(&bench, fixture_families[f], 1, 0);
        struct moec_dense_fit *fit = fit_of(&bench, 1);
        struct moec_dense alone[2] = {dense_of(fit, 0), dense_of(fit, 1)};
        for (uint32_t count = 2; count <= MOST; count += 3) {
            struct member members[MOST] = {0};
            struct shared shared[MOST];
            for (uint32_t r = 0; r < count; r++) {
                shared[r] = (struct shared){fixture_families[f], alone, false};
                members[r].context = &shared[r];
            }
            run_ranks(count, fit_shared, members, count);
            for (uint32_t r = 0; r < count; r++)
                if (!shared[r].is_same)
                    fail_msg("%s: rank %u of %u differs", fixture_families[f], r, count);
        }
        for (int i = 0; i < 2; i++)
            moec_dense_release(&alone[i]);
        moec_dense_fit_free(fit);
        bench_close(&bench);
    }
}

/* Each matrix has its own number: 4 and 8 from GPTQ, 0 from the checkpoint; a number without a codec is
 * refused. */
static void test_dense_fit__matrices_have_numbers_of_their_own(void **state)
{
    (void)state;
    struct bench bench;
    uint8_t numbers[1024] = {4, 8, 0, 4, 0, 8};
    struct moec_dense mixed = {0}, stored = {0};
    uint32_t i = 0;
    bench_open(&bench, "qwen2_moe", 2, 0);
    struct moec_dense_fit *fit = fit_of(&bench, 2);
    struct moec_dense four = dense_of(fit, 0), eight = dense_of(fit, 1);
    MUST(moec_dense_fit_open(fit, numbers, &mixed, &err));
    MUST(moec_dense_load(&mixed, &err));
    MUST(dense_load(bench.fixture.checkpoint, 16, 0, &stored, &err));
    for (uint32_t e = 0; e < mixed.n_entries; e++) {
        const uint8_t number =
            moec_role_is_quantisable((enum moec_role)mixed.entries[e].role) ? numbers[i++] : 0;
        const struct moec_dense *from = number == 4 ? &four : number == 8 ? &eight : &stored;
        assert_true(moec_codec_equal(mixed.entries[e].codec, from->entries[e].codec));
        assert_memory_equal(mixed.blob + mixed.entries[e].offset, from->blob + from->entries[e].offset,
                            mixed.entries[e].n_bytes);
    }
    assert_int_equal(i, moec_plan_dense_count(&bench.fixture.model->config));
    moec_dense_release(&mixed);
    moec_dense_release(&stored);
    moec_dense_release(&four);
    moec_dense_release(&eight);
    struct moec_error refused = {0};
    numbers[1] = 33;
    assert_int_equal(moec_dense_fit_open(fit, numbers, &mixed, &refused), MOEC_ERR_USAGE);
    assert_non_null(strstr(refused.message, "codec 33 does not exist for dense matrix 1"));
    moec_dense_fit_free(fit);
    bench_close(&bench);
}

/* Codecs whose quantizer is GPTQ, beside one whose is not: that one's bytes do not depend on them. */
static void test_dense_fit__codecs_of_gptq_are_nearer_than_hqq(void **state)
{
    (void)state;
    enum { THREE = 33, FIVE = 34, HQQ = 35 };
    static const uint8_t numbers[] = {THREE, 4, FIVE};
    for (size_t f = 0; f < N_FIXTURE_FAMILIES; f++) {
        struct bench bench;
        struct moec_codec codecs[MOEC_CODEC_TABLE] = {0};
        struct moec_dense_fit *fit = NULL;
        double kl[2], sum[2] = {0};
        uint32_t n_unknown = 0;
        bench_open(&bench, fixture_families[f], 2, 0);
        const struct moec_config *config = &bench.fixture.model->config;
        const uint32_t n = moec_plan_dense_count(config);
        for (int i = 0; i < 3; i++) {
            MUST(moec_codec_for_bits(i == 1 ? 5 : 3, MOEC_SCHEME_ASYMMETRIC_NESTED, 32, MOEC_DTYPE_F32,
                                     &codecs[THREE + i], &err));
            codecs[THREE + i].quantizer = i == 2 ? MOEC_QUANTIZER_HQQ : MOEC_QUANTIZER_GPTQ;
        }
        MUST(moec_codec_for_bits(4, MOEC_SCHEME_SYMMETRIC, 32, MOEC_DTYPE_F32, &codecs[4], &err));
        const struct moec_dense_fit_request request = {
            .checkpoint = bench.fixture.checkpoint,
            .evaluation = {.scorer = bench.scorer, .measure = &bench.measure},
            .codes = {.codecs = codecs, .numbers = numbers, .n_number = 3},
            .n_threads = 2};
        MUST(moec_dense_fit_create(&request, &fit, &err));
        for (uint32_t i = 0; i < n; i++) {
            const double three = moec_dense_fit_error(fit, i, THREE),
                         five = moec_dense_fit_error(fit, i, FIVE);
            assert_true(moec_dense_fit_error(fit, i, 4) < 0 && moec_dense_fit_error(fit, i, HQQ) < 0);
            assert_true((three < 0) == (five < 0));
            n_unknown += three < 0;
            if (three < 0)
                continue;
            assert_true(three < 0.2 && five < 0.2 * three);
            sum[0] += three;
            sum[1] += five;
        }
        assert_int_equal(n_unknown, config->head.is_tied ? 0 : 1); /* the embedding */
        assert_true(sum[1] > 0);
        assert_true(moec_dense_fit_error(fit, n, THREE) < 0);
        for (int i = 0; i < 2; i++) {
            uint8_t all[1024];
            struct moec_dense dense = {0};
            memset(all, i == 0 ? THREE : HQQ, n);
            MUST(moec_dense_fit_open(fit, all, &dense, &err));
            MUST(moec_dense_load(&dense, &err));
            kl[i] = mean_kl(&bench, &dense);
        }
        if (!(kl[0] < kl[1]))
            fail_msg("%s: KL %g by GPTQ, %g by HQQ", fixture_families[f], kl[0], kl[1]);
        struct moec_dense_fit *others = fit_of(&bench, 2);
        struct moec_dense alone = dense_of(others, 0), beside = dense_of(fit, 0);
        assert_memory_equal(alone.blob, beside.blob, alone.blob_bytes);
        moec_dense_release(&alone);
        moec_dense_release(&beside);
        moec_dense_fit_free(others);
        moec_dense_fit_free(fit);
        bench_close(&bench);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense_fit__is_nearer_than_rounding),
        cmocka_unit_test(test_dense_fit__codecs_of_gptq_are_nearer_than_hqq),
        cmocka_unit_test(test_dense_fit__matrices_have_numbers_of_their_own),
        cmocka_unit_test(test_dense_fit__rows_in_two_matrices_are_those_of_one),
        cmocka_unit_test(test_dense_fit__does_not_depend_on_threads_or_batches),
        cmocka_unit_test(test_dense_fit__is_the_same_of_ranks),
    };
    return cmocka_run_group_tests_name("dense_fit", tests, NULL, NULL);
}
