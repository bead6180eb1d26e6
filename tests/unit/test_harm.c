/* The model of harm: classes add up to what whole models lose, shares follow the errors given, and what was
 * interrupted ends in the same numbers. */
#include "tests/unit/fixture_model.h"
#include "tests/unit/temporary.h"

#include "compiler/policy/harm.h"
#include "formats/base/memory.h"
#include "profiler/evaluate/load_model.h"
#include "profiler/evaluate/score.h"

#include <math.h>

#define N_WINDOW       (MOEC_HARM_CLASS_WINDOWS + 2u)
#define SEQ_LEN        24u
#define N_NUMBER       4u
#define N_DENSE_NUMBER 3u

static const uint8_t numbers[N_NUMBER] = {2, 3, 8, 16};
static const uint32_t bits[N_NUMBER] = {2, 3, 8, 16};
static const uint8_t dense_numbers[N_DENSE_NUMBER] = {4, 8, 0};

struct bench {
    struct fixture fixture;
    struct moec_work_memory work;
    struct moec_windows windows;
    uint64_t *activations;
    struct moec_harm_matrix *dense;
    uint32_t n_dense;
    uint32_t dense_bits[MOEC_CODEC_TABLE];
    enum moec_arithmetic arithmetic; /* of what is measured */
};

static void bench_open(struct bench *bench, const char *name)
{
    *bench = (struct bench){.fixture = fixture_open(name), .work = {.batch_tokens = 64}};
    const struct moec_config *config = &bench->fixture.model->config;
    const size_t n_expert = (size_t)moec_config_moe_count(config) * config->n_expert;
    struct moec_windows *windows = &bench->windows;
    *windows = (struct moec_windows){.n_window = N_WINDOW, .seq_len_tokens = SEQ_LEN, .work = &bench->work};
    windows->tokens = malloc(N_WINDOW * 2 * SEQ_LEN * sizeof(uint32_t));
    windows->length = malloc(N_WINDOW * sizeof(uint32_t));
    windows->scored = malloc(N_WINDOW * sizeof(uint32_t));
    windows->index = calloc(N_WINDOW, sizeof(uint64_t));
    if (moec_config_is_encoder_decoder(config))
        windows->source = malloc(N_WINDOW * sizeof(uint32_t));
    for (uint32_t i = 0; i < N_WINDOW * 2 * SEQ_LEN; i++)
        windows->tokens[i] = (i * 2654435761u >> 7) % config->n_vocab;
    for (uint32_t w = 0; w < N_WINDOW; w++) {
        windows->length[w] = SEQ_LEN - w % 6;
        if (windows->source != NULL)
            windows->source[w] = SEQ_LEN / 2;
        windows->scored[w] = windows->length[w] - moec_windows_source(windows, w) - 1;
    }
    bench->activations = calloc(n_expert, sizeof *bench->activations);
    for (size_t i = 0; i < n_expert; i++)
        bench->activations[i] = 1 + i % 7;
    bench->n_dense = moec_plan_dense_count(config);
    bench->dense = calloc(bench->n_dense, sizeof *bench->dense);
    uint32_t at = 0;
    for (uint32_t i = 0; i < bench->fixture.model->dense.n_entries; i++) {
        const uint32_t role = bench->fixture.model->dense.entries[i].role;
        if (moec_role_is_quantisable((enum moec_role)role))
            bench->dense[at++] = (struct moec_harm_matrix){role, dense_numbers, N_DENSE_NUMBER};
    }
    assert_int_equal(at, bench->n_dense);
    for (uint32_t number = 0; number < MOEC_CODEC_TABLE; number++)
        bench->dense_bits[number] = number == 0 ? 16 : number;
}

static void bench_close(struct bench *bench)
{
    free(bench->activations);
    free(bench->dense);
    moec_windows_release(&bench->windows);
    fixture_close(&bench->fixture);
}

/* Errors as a fit would give them: of 2 and 3 bits, differing by expert; 8 and 16 are not known. */
static double expert_error(void *context, uint32_t ordinal, uint32_t expert, enum moec_projection projection,
                           uint32_t number)
{
    (void)context;
    (void)projection;
    return number > 3 ? -1 : (0.1 + 0.01 * ((ordinal + expert) % 3)) / number;
}

static double dense_error(void *context, uint32_t index, uint32_t number)
{
    (void)context;
    return number == 4 ? 0.01 * (1 + index % 2) : -1;
}

static enum moec_status dense_model(void *context, const uint8_t *chosen, struct moec_model **model,
                                    struct moec_error *err)
{
    const struct bench *bench = context;
    struct moec_codec codecs[1024] = {0};
    struct moec_dense dense = {0};
    for (uint32_t i = 0; i < bench->n_dense; i++)
        if (chosen[i] != 0)
            MOEC_TRY(
                moec_codec_for_bits(chosen[i], MOEC_SCHEME_SYMMETRIC, 0, MOEC_DTYPE_F32, &codecs[i], err));
    MOEC_TRY(moec_checkpoint_stream_dense_each(bench->fixture.checkpoint, codecs, &dense, err));
    return moec_load_dense_model(&bench->fixture.model->config, &dense, 0, model, err);
}

static struct moec_harm_request request_of(struct bench *bench)
{
    return (struct moec_harm_request){
        .of = {.original = bench->fixture.model,
               .variants = bench->fixture.variants,
               .windows = &bench->windows,
               .n_class_window = MOEC_HARM_CLASS_WINDOWS,
               .activations = bench->activations},
        .by = {.kernels = moec_kernels_best(), .n_threads = 2, .arithmetic = bench->arithmetic},
        .codecs = {.numbers = numbers, .bits = bits, .n = N_NUMBER},
        .matrices = {.all = bench->dense, .n = bench->n_dense, .bits = bench->dense_bits},
        .errors = {.expert = expert_error, .dense = dense_error, .model = dense_model, .context = bench}};
}

/* Mean KL of a whole model on the windows of classes, measured apart: experts at `code`, dense weights of `model` (NULL: the original).
 */
static double kl_of(struct bench *bench, uint32_t code, const struct moec_model *model)
{
    const struct moec_scorer_options options = {
        .by = {.kernels = moec_kernels_best(), .n_threads = 1, .arithmetic = bench->arithmetic}};
    struct moec_experts *experts = moec_variants_experts(bench->fixture.variants);
    struct moec_scorer *scorer = NULL;
    double nll[N_WINDOW], kl[N_WINDOW], sum = 0;
    const struct moec_measure measure = {nll, kl};
    const struct moec_scorer_variation variation = {.model = model};
    const uint32_t source = moec_variants_source_bits(bench->fixture.variants);
    struct moec_windows windows = bench->windows;
    windows.n_window = MOEC_HARM_CLASS_WINDOWS;
    MUST(moec_scorer_create(bench->fixture.model, experts, &windows, &options, &scorer, &err));
    MUST(moec_variants_assign_all(bench->fixture.variants, source, &err));
    MUST(moec_scorer_set_reference(scorer, bench->fixture.model, experts, NULL, NULL, &err));
    MUST(moec_variants_assign_all(bench->fixture.variants, code, &err));
    MUST(moec_scorer_run_varied(scorer, &variation, &measure, NULL, &err));
    for (uint32_t w = 0; w < windows.n_window; w++)
        sum += kl[w];
    moec_scorer_free(scorer);
    return fmax(sum, 0) / (double)moec_windows_scored_count(&windows);
}

static void assert_near(double a, double b)
{
    assert_true(fabs(a - b) <= 1e-9 * fabs(b));
}

static const char *const families[] = {"olmoe", "mixtral", "qwen2_moe-tied", "switch"};
#define N_FAMILIES (sizeof families / sizeof *families)

static void test_harm__classes_of_experts_add_up(void **state)
{
    (void)state;
    for (size_t f = 0; f < 2 * N_FAMILIES; f++) { /* each in both arithmetics */
        struct bench bench;
        struct moec_harm harm;
        bench_open(&bench, families[f / 2]);
        bench.arithmetic = f % 2 == 1 ? MOEC_ARITHMETIC_INT8 : MOEC_ARITHMETIC_CANONICAL;
        const struct moec_config *config = &bench.fixture.model->config;
        const struct moec_harm_request request = request_of(&bench);
        MUST(moec_harm_measure(&request, &harm, &err));
        assert_int_equal(harm.n_layer, moec_config_moe_count(config));
        for (int p = 0; p < MOEC_PROJECTION_COUNT; p++) {
            const enum moec_projection projection = (enum moec_projection)p;
            double sum[N_NUMBER] = {0};
            for (uint32_t s = 0; s < harm.n_layer; s++)
                for (uint32_t e = 0; e < harm.n_expert; e++) {
                    const double *own = moec_harm_expert(&harm, s, e, projection);
                    for (uint32_t i = 0; i < N_NUMBER; i++) {
                        assert_true(own[i] >= 0 && isfinite(own[i]));
                        sum[i] += own[i];
                    }
                    /* From 3 bits to 8 and 16: a bit more has a quarter of the squared error. */
                    const double known = own[1] / expert_error(NULL, s, e, projection, 3) *
                                         expert_error(NULL, s, e, projection, 2);
                    assert_near(own[2], known * pow(0.25, 6));
                    assert_near(own[3], known * pow(0.25, 14));
                }
            if (p == MOEC_PROJECTION_GATE && moec_config_mlp_matrices(config) < 3) {
                assert_true(sum[0] == 0 && sum[1] == 0);
                continue;
            }
            for (uint32_t i = 0; i < 2; i++)
                assert_near(sum[i],
                            kl_of(&bench, moec_variants_projection_code(numbers[i], projection), NULL));
            assert_true(sum[0] > sum[1] && sum[1] > sum[2] && sum[2] > sum[3]);
        }
        moec_harm_release(&harm);
        bench_close(&bench);
    }
}

static void test_harm__roles_of_dense_matrices_add_up(void **state)
{
    (void)state;
    for (size_t f = 0; f < 2 * N_FAMILIES; f++) { /* each in both arithmetics */
        struct bench bench;
        struct moec_harm harm;
        bench_open(&bench, families[f / 2]);
        bench.arithmetic = f % 2 == 1 ? MOEC_ARITHMETIC_INT8 : MOEC_ARITHMETIC_CANONICAL;
        const struct moec_harm_request request = request_of(&bench);
        uint8_t *chosen = calloc(bench.n_dense, 1);
        MUST(moec_harm_measure(&request, &harm, &err));
        for (uint32_t role = 0; role < MOEC_ROLE_COUNT; role++) {
            struct moec_model *model = NULL;
            uint32_t n = 0;
            double sum = 0;
            for (uint32_t i = 0; i < bench.n_dense; i++) {
                const double *own = harm.dense + (size_t)i * MOEC_CODEC_TABLE;
                chosen[i] = bench.dense[i].role == role ? 4 : 0;
                assert_true(own[0] == 0);
                if (chosen[i] == 0)
                    continue;
                n++;
                sum += own[4];
                assert_near(own[8], own[4] * pow(0.25, 4));
            }
            if (n == 0)
                continue;
            MUST(dense_model(&bench, chosen, &model, &err));
            assert_near(sum, kl_of(&bench, moec_variants_source_bits(bench.fixture.variants), model));
            moec_model_free(model);
        }
        free(chosen);
        moec_harm_release(&harm);
        bench_close(&bench);
    }
}

/* Without local errors, of models with an encoder, experts share by their tokens and errors. */
static void test_harm__encoders_share_by_tokens(void **state)
{
    (void)state;
    struct bench bench;
    struct moec_harm harm;
    bench_open(&bench, "switch");
    const struct moec_harm_request request = request_of(&bench);
    MUST(moec_harm_measure(&request, &harm, &err));
    const double first = moec_harm_expert(&harm, 0, 0, MOEC_PROJECTION_UP)[0];
    for (uint32_t s = 0; s < harm.n_layer; s++)
        for (uint32_t e = 0; e < harm.n_expert; e++)
            assert_near(moec_harm_expert(&harm, s, e, MOEC_PROJECTION_UP)[0],
                        first * (double)bench.activations[(size_t)s * harm.n_expert + e] /
                            (double)bench.activations[0]);
    moec_harm_release(&harm);
    bench_close(&bench);
}

/* Ends the work at a report further on each time. */
static enum moec_status stop_later(void *context, const char *phase, double done, double total)
{
    uint32_t *n_left = context;
    (void)phase;
    (void)done;
    (void)total;
    return (*n_left)-- == 0 ? MOEC_ERR_CANCELLED : MOEC_OK;
}

static void test_harm__goes_on_after_an_end(void **state)
{
    (void)state;
    struct bench bench;
    struct moec_harm whole, harm = {0};
    bench_open(&bench, "olmoe");
    char *folder = temporary_folder(), *path = temporary_path(folder, "x.journal");
    const struct moec_job_text job = {.n_bytes = 0};
    struct moec_harm_request request = request_of(&bench);
    MUST(moec_harm_measure(&request, &whole, &err));
    uint32_t n_end = 0;
    uint64_t n_found = 0;
    enum moec_status status = MOEC_ERR_CANCELLED;
    for (; status != MOEC_OK; n_end++) {
        uint32_t n_left = 4 + 4 * n_end;
        struct moec_error problem = {0};
        const struct moec_progress progress = {.report = stop_later, .context = &n_left};
        assert_true(n_end < 1000);
        MUST(moec_units_open(path, MOEC_UNITS_AUTO, &job, NULL, &request.journal.units, &err));
        request.progress = &progress;
        request.journal.crc = 5;
        status = moec_harm_measure(&request, &harm, &problem);
        assert_true(status == MOEC_OK || status == MOEC_ERR_CANCELLED);
        n_found = moec_units_found_count(request.journal.units);
        moec_units_close(request.journal.units);
    }
    assert_true(n_end > 1 && n_found > 0);
    const size_t n = (size_t)whole.n_layer * whole.n_expert * MOEC_PROJECTION_COUNT * whole.n_number;
    assert_memory_equal(harm.experts, whole.experts, n * sizeof *whole.experts);
    assert_memory_equal(harm.dense, whole.dense,
                        (size_t)whole.n_dense * MOEC_CODEC_TABLE * sizeof *whole.dense);
    moec_harm_release(&harm);
    /* Of other codecs nothing is taken. */
    MUST(moec_units_open(path, MOEC_UNITS_AUTO, &job, NULL, &request.journal.units, &err));
    request.progress = NULL;
    request.journal.crc = 6;
    MUST(moec_harm_measure(&request, &harm, &err));
    assert_int_equal(moec_units_found_count(request.journal.units), 0);
    moec_units_close(request.journal.units);
    moec_harm_release(&harm);
    moec_harm_release(&whole);
    free(path);
    temporary_remove(folder);
    bench_close(&bench);
}

/* Where experts are known nothing of them is measured, and dense matrices have what they have otherwise. */
static void test_harm__takes_experts_that_are_known(void **state)
{
    (void)state;
    struct bench bench;
    struct moec_harm whole, harm;
    bench_open(&bench, "olmoe");
    struct moec_harm_request request = request_of(&bench);
    MUST(moec_harm_measure(&request, &whole, &err));
    const size_t n = (size_t)whole.n_layer * whole.n_expert * MOEC_PROJECTION_COUNT * whole.n_number;
    double *known = malloc(n * sizeof *known);
    for (size_t i = 0; i < n; i++)
        known[i] = (double)i;
    request.experts = known;
    request.errors.expert = NULL;
    MUST(moec_harm_measure(&request, &harm, &err));
    assert_memory_equal(harm.experts, known, n * sizeof *known);
    assert_memory_equal(harm.dense, whole.dense,
                        (size_t)whole.n_dense * MOEC_CODEC_TABLE * sizeof *whole.dense);
    free(known);
    moec_harm_release(&whole);
    moec_harm_release(&harm);
    bench_close(&bench);
}

/* Two experts and a dense matrix, of which one expert's harm is a hundred times the other's. */
static void test_harm__chooses_by_one_price(void **state)
{
    (void)state;
    double experts[2 * MOEC_PROJECTION_COUNT * N_NUMBER], dense[MOEC_CODEC_TABLE] = {[4] = 1, [8] = 0.01};
    uint64_t dense_bytes[MOEC_CODEC_TABLE] = {[0] = 1600, [4] = 400, [8] = 800};
    struct moec_harm_bytes bytes = {.dense = dense_bytes};
    const struct moec_harm harm = {
        .n_layer = 1, .n_expert = 2, .n_number = N_NUMBER, .n_dense = 1, .experts = experts, .dense = dense};
    uint8_t chosen[2 * MOEC_PROJECTION_COUNT];
    for (size_t at = 0; at < 2 * MOEC_PROJECTION_COUNT; at++)
        for (uint32_t i = 0; i < N_NUMBER; i++) {
            experts[at * N_NUMBER + i] =
                bits[i] < 16 ? (at < MOEC_PROJECTION_COUNT ? 100 : 1) * pow(0.25, bits[i]) : 0;
            bytes.experts[at % MOEC_PROJECTION_COUNT][i] = 100 * bits[i];
        }
    double before = INFINITY;
    for (double kl = 32; kl > 1e-9; kl /= 2) {
        double sum = 0, bits_sum[2] = {0};
        moec_harm_choose(&harm, &bytes, kl, chosen);
        for (size_t at = 0; at < 2 * MOEC_PROJECTION_COUNT; at++) {
            sum += experts[at * N_NUMBER + chosen[at]];
            bits_sum[at / MOEC_PROJECTION_COUNT] += bits[chosen[at]];
        }
        assert_true(sum <= kl && bits_sum[0] >= bits_sum[1]);
        assert_true(sum <= before);
        before = sum;
    }
    moec_harm_choose(&harm, &bytes, 1000, chosen);
    for (size_t at = 0; at < 2 * MOEC_PROJECTION_COUNT; at++)
        assert_int_equal(chosen[at], 0);
    /* What is not fitted is not taken. */
    experts[0] = INFINITY;
    moec_harm_choose(&harm, &bytes, 1000, chosen);
    assert_int_equal(chosen[0], 1);
    assert_int_equal(chosen[1], 0);
    moec_harm_choose(&harm, &bytes, 0, chosen);
    for (size_t at = 0; at < 2 * MOEC_PROJECTION_COUNT; at++)
        assert_int_equal(chosen[at], N_NUMBER - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_harm__takes_experts_that_are_known),
        cmocka_unit_test(test_harm__chooses_by_one_price),
        cmocka_unit_test(test_harm__classes_of_experts_add_up),
        cmocka_unit_test(test_harm__roles_of_dense_matrices_add_up),
        cmocka_unit_test(test_harm__encoders_share_by_tokens),
        cmocka_unit_test(test_harm__goes_on_after_an_end),
    };
    return cmocka_run_group_tests_name("harm", tests, NULL, NULL);
}
