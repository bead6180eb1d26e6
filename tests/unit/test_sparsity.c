/* Activation sparsity: thresholds, plans and their sections, and models that leave neurons out: with the same
 * bits as zeros in their place, one result however it is run, and counts of what was left. */
#include "tests/unit/temporary.h"

#include "tests/unit/fixture_model.h"
#include "tests/unit/kernel_sets.h"
#include "tests/unit/sample_bundle.h"

#include "formats/bundle/bundle_format.h"
#include "formats/bundle/bundle_sparsity.h"
#include "formats/bundle/bundle_strip.h"
#include "profiler/evaluate/score.h"
#include "profiler/profile/neuron_harm.h"
#include "profiler/profile/thresholds.h"
#include "runtime/forward/moe/mlp.h"
#include "runtime/forward/moe/sparsity.h"

#include <math.h>

static const uint16_t shares[] = {250, 500, 750};
#define N_SHARE 3

/* ---- tables ---- */

static struct moec_sparsity_table sample_table(const struct moec_config *config)
{
    struct moec_sparsity_table table;
    struct moec_error err = {0};
    assert_ok(moec_sparsity_table_create(config, shares, N_SHARE, &table, &err), err);
    for (uint32_t i = 0; i < table.n_layer * table.n_expert * N_SHARE; i++)
        table.thresholds[i] = (float)(i / N_SHARE) * 0.5f + (float)(i % N_SHARE + 1);
    table.n_token = 77;
    table.data_digest[3] = 9;
    return table;
}

static void test_sparsity__thresholds_lie_between_those_of_the_table(void **state)
{
    (void)state;
    struct sample sample;
    struct moec_error err = {0};
    float out[64];
    sample_make(&sample, 3, 8, 4, 1);
    struct moec_sparsity_table table = sample_table(&sample.config);
    static const struct {
        uint32_t share;
        float expected; /* of expert 2 of the second layer, which has 3.5, 4.5, 5.5 */
    } cases[] = {{500, 4.5f}, {750, 5.5f}, {250, 3.5f}, {375, 4.0f}, {125, 1.75f}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_ok(moec_sparsity_table_choose(&table, cases[i].share, out, &err), err);
        assert_true(out[5] == cases[i].expected);
    }
    assert_status(moec_sparsity_table_choose(&table, 751, out, &err), MOEC_ERR_USAGE, err);
    assert_message(err, "0.751 is outside the bundle's table of thresholds, expected 0.001 to 0.750");
    assert_status(moec_sparsity_table_choose(&table, 0, out, &err), MOEC_ERR_USAGE, err);
    static const uint16_t wrong[][2] = {{500, 500}, {500, 400}, {0, 500}, {500, 1000}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct moec_sparsity_table none;
        assert_status(moec_sparsity_table_create(&sample.config, wrong[i], 2, &none, &err), MOEC_ERR_USAGE,
                      err);
    }
    moec_sparsity_table_release(&table);
    sample_release(&sample);
}

static void test_sparsity__the_section_holds_a_table(void **state)
{
    (void)state;
    struct sample sample;
    struct moec_error err = {0};
    sample_make(&sample, 3, 8, 4, 1);
    struct moec_sparsity_table table = sample_table(&sample.config), read;
    uint8_t *bytes = NULL;
    size_t n = 0;
    assert_ok(moec_sparsity_table_encode(&table, &bytes, &n, &err), err);
    assert_ok(moec_sparsity_table_decode(bytes, n, &sample.config, &read, &err), err);
    assert_int_equal(read.n_token, 77);
    assert_memory_equal(read.data_digest, table.data_digest, sizeof read.data_digest);
    assert_memory_equal(read.shares, shares, sizeof shares);
    assert_memory_equal(read.thresholds, table.thresholds,
                        (size_t)table.n_layer * table.n_expert * N_SHARE * sizeof(float));
    moec_sparsity_table_release(&read);
    for (size_t short_by = 1; short_by <= n; short_by++)
        assert_status(moec_sparsity_table_decode(bytes, n - short_by, &sample.config, &read, &err),
                      MOEC_ERR_FORMAT, err);
    static const struct {
        size_t at;
        uint8_t value;
        enum moec_status status;
    } wrong[] = {
        {0, 2, MOEC_ERR_UNSUPPORTED},     {4, 1, MOEC_ERR_FORMAT},  {8, 9, MOEC_ERR_FORMAT},
        {12, 4, MOEC_ERR_FORMAT},         {12, 0, MOEC_ERR_FORMAT}, {15, 0xff, MOEC_ERR_FORMAT},
        {57, 0xff, MOEC_ERR_FORMAT},      {59, 0, MOEC_ERR_FORMAT}, {56 + 6 + 3, 0xff, MOEC_ERR_FORMAT},
        {56 + 6 + 7, 0, MOEC_ERR_FORMAT},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const uint8_t kept = bytes[wrong[i].at];
        bytes[wrong[i].at] = wrong[i].value;
        assert_status(moec_sparsity_table_decode(bytes, n, &sample.config, &read, &err), wrong[i].status,
                      err);
        assert_null(read.thresholds);
        bytes[wrong[i].at] = kept;
    }
    free(bytes);
    moec_sparsity_table_release(&table);
    sample_release(&sample);
}

static void test_sparsity__a_bundle_takes_a_table(void **state)
{
    (void)state;
    struct sample sample;
    struct moec_error err = {0};
    char *folder = temporary_folder(), *path = temporary_path(folder, "a.moec"),
         *out = temporary_path(folder, "b.moec");
    struct moec_bundle *before = NULL, *after = NULL;
    struct moec_bundle_stripped stripped;
    const uint32_t bits[] = {2};
    sample_make(&sample, 3, 8, 4, 1);
    (void)sample_write(&sample, path);
    struct moec_sparsity_table table = sample_table(&sample.config), read;
    assert_ok(moec_bundle_put_sparsity(path, &table, NULL, false, out, &err), err);
    table.thresholds[0] = 0.25f; /* a second time, in place */
    assert_ok(moec_bundle_put_sparsity(out, &table, NULL, false, out, &err), err);
    assert_ok(moec_bundle_strip(out, bits, 1, out, &stripped, &err), err);
    assert_ok(moec_bundle_verify(out, NULL, NULL, &err), err);
    assert_ok(moec_bundle_open(path, &before, &err), err);
    assert_ok(moec_bundle_open(out, &after, &err), err);
    const struct moec_contents *old = before->sections, *new = after->sections;
    assert_int_equal(new->n_sections, old->n_sections + 1 - 2);
    for (uint32_t i = 0; i < new->n_sections; i++) {
        const struct moec_section *section = &new->sections[i];
        const struct moec_section *was = moec_contents_find(old, section->kind, section->level);
        assert_true(was != NULL || section->kind == MOEC_SECTION_SPARSITY);
        if (was != NULL && section->kind != MOEC_SECTION_PROVENANCE)
            assert_memory_equal(section->digest, was->digest, sizeof was->digest);
    }
    assert_string_equal(after->provenance.options, "--bits 4; sparsify; stripped --copies 2");
    assert_ok(moec_bundle_load_sparsity(after, &read, &err), err);
    assert_true(read.thresholds[0] == 0.25f && read.thresholds[1] == table.thresholds[1]);
    moec_sparsity_table_release(&read);
    assert_ok(moec_bundle_load_sparsity(before, &read, &err), err);
    assert_int_equal(read.n_layer, 0);
    struct moec_sparsity *sparsity = NULL;
    assert_status(moec_sparsity_open(before, 0, 0.5, &sparsity, &err), MOEC_ERR_UNSUPPORTED, err);
    assert_message(err, "no sparsity thresholds: make them with moec sparsify");
    assert_status(moec_sparsity_open(after, 1, 0.5, &sparsity, &err), MOEC_ERR_USAGE, err);
    assert_status(moec_sparsity_open(after, 0, 0.9, &sparsity, &err), MOEC_ERR_USAGE, err);
    assert_status(moec_sparsity_open(after, 0, 1.5, &sparsity, &err), MOEC_ERR_USAGE, err);
    assert_ok(moec_sparsity_open(after, 0, 0.5, &sparsity, &err), err);
    moec_sparsity_free(sparsity);
    moec_bundle_close(before);
    moec_bundle_close(after);
    moec_sparsity_table_release(&table);
    sample_release(&sample);
    temporary_remove(folder);
    free(path);
    free(out);
}

/* ---- plans ---- */

static struct moec_sparsity_plan sample_plan(const struct moec_config *config, enum moec_sparsity_by by)
{
    struct moec_sparsity_plan plan;
    struct moec_error err = {0};
    assert_ok(moec_sparsity_plan_create(config, by, &plan, &err), err);
    plan.threshold = 0.5f;
    for (uint32_t i = 0; i < plan.n_layer * plan.n_expert * plan.n_scale; i++)
        plan.scales[i] = (uint16_t)(0x3e00 + i % 256); /* 0.125 to 0.5 */
    plan.certificate = (struct moec_certificate){
        .present = true,
        .metric = "perplexity",
        .loss = 0.01,
        .n_sequence = 1,
        .sequence = {{.n_bytes = 7, .result = MOEC_SEQUENCE_PASSED, .is_chosen = true}}};
    plan.plain_high = 0.25;
    plan.traffic =
        (struct moec_sparsity_traffic){.active_share = 0.3, .token_bytes = 5, .dense_token_bytes = 9};
    return plan;
}

static void test_sparsity__the_section_holds_a_plan(void **state)
{
    (void)state;
    struct sample sample;
    struct moec_error err = {0};
    sample_make(&sample, 3, 8, 4, 1);
    for (int by = 0; by < MOEC_SPARSITY_BY_COUNT; by++) {
        struct moec_sparsity_plan plan = sample_plan(&sample.config, (enum moec_sparsity_by)by), read;
        plan.is_at_gate = by != MOEC_SPARSITY_BY_EXPERT;
        uint8_t *bytes = NULL;
        size_t n = 0;
        assert_ok(moec_sparsity_plan_encode(&plan, &bytes, &n, &err), err);
        assert_ok(moec_sparsity_plan_decode(bytes, n, &sample.config, &read, &err), err);
        assert_true(read.by == (enum moec_sparsity_by)by && read.threshold == 0.5f);
        assert_true(read.is_at_gate == plan.is_at_gate);
        assert_int_equal(read.n_scale, by == MOEC_SPARSITY_BY_NEURON ? sample.config.n_ff_expert : 1);
        assert_memory_equal(read.scales, plan.scales,
                            (size_t)plan.n_layer * plan.n_expert * plan.n_scale * sizeof *plan.scales);
        assert_true(read.plain_high == 0.25 && read.traffic.dense_token_bytes == 9);
        assert_true(read.certificate.loss == 0.01 && read.certificate.sequence[0].n_bytes == 7);
        moec_sparsity_plan_release(&read);
        for (size_t short_by = 1; short_by <= n; short_by += short_by < 40 ? 1 : 37)
            assert_status(moec_sparsity_plan_decode(bytes, n - short_by, &sample.config, &read, &err),
                          MOEC_ERR_FORMAT, err);
        static const struct {
            size_t at;
            uint8_t value;
            enum moec_status status;
        } wrong[] = {
            {0, 2, MOEC_ERR_UNSUPPORTED}, {4, 3, MOEC_ERR_FORMAT},     {5, 2, MOEC_ERR_FORMAT},
            {8, 9, MOEC_ERR_FORMAT},      {12, 4, MOEC_ERR_FORMAT},    {16, 250, MOEC_ERR_FORMAT},
            {23, 0xff, MOEC_ERR_FORMAT},  {31, 0x7f, MOEC_ERR_FORMAT}, {1145, 0xff, MOEC_ERR_FORMAT},
        };
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
            const uint8_t kept = bytes[wrong[i].at];
            bytes[wrong[i].at] = wrong[i].value;
            if (wrong[i].at == 31)
                bytes[30] = 0xff; /* not a number */
            assert_status(moec_sparsity_plan_decode(bytes, n, &sample.config, &read, &err), wrong[i].status,
                          err);
            assert_null(read.scales);
            bytes[wrong[i].at] = kept;
            bytes[30] = wrong[i].at == 31 ? 0 : bytes[30];
        }
        free(bytes);
        moec_sparsity_plan_release(&plan);
    }
    sample_release(&sample);
}

static void test_sparsity__a_bundle_takes_a_plan(void **state)
{
    (void)state;
    struct sample sample;
    struct moec_error err = {0};
    char *folder = temporary_folder(), *path = temporary_path(folder, "a.moec");
    struct moec_bundle *bundle = NULL;
    struct moec_sparsity *sparsity = NULL;
    struct moec_certificate certificate = {0};
    sample_make(&sample, 3, 8, 4, 1);
    (void)sample_write(&sample, path);
    assert_ok(moec_bundle_open(path, &bundle, &err), err);
    assert_ok(moec_sparsity_open_planned(bundle, &sparsity, &certificate, &err), err);
    assert_null(sparsity);
    assert_false(certificate.present);
    moec_bundle_close(bundle);
    struct moec_sparsity_table table = sample_table(&sample.config);
    struct moec_sparsity_plan plan = sample_plan(&sample.config, MOEC_SPARSITY_BY_NEURON), read;
    assert_ok(moec_bundle_put_sparsity(path, &table, &plan, true, path, &err), err);
    assert_ok(moec_bundle_put_sparsity(path, &table, NULL, false, path, &err),
              err); /* which keeps the plan */
    assert_ok(moec_bundle_verify(path, NULL, NULL, &err), err);
    assert_ok(moec_bundle_open(path, &bundle, &err), err);
    assert_ok(moec_bundle_load_plan(bundle, &read, &err), err);
    assert_int_equal(read.scales[3], plan.scales[3]);
    assert_ok(moec_sparsity_open_planned(bundle, &sparsity, &certificate, &err), err);
    assert_non_null(sparsity);
    assert_memory_equal(&certificate, &read.certificate, sizeof certificate);
    moec_sparsity_free(sparsity);
    moec_sparsity_plan_release(&read);
    moec_bundle_close(bundle);
    moec_sparsity_plan_release(&plan);
    moec_sparsity_table_release(&table);
    sample_release(&sample);
    temporary_remove(folder);
    free(path);
}

/* ---- models ---- */

#define N_WINDOW 3

/* The fixture's tokens as windows. */
struct cut {
    struct moec_windows windows;
    uint32_t length[N_WINDOW], scored[N_WINDOW];
};

static void cut_make(const struct fixture *fixture, struct cut *cut)
{
    const uint32_t n = fixture->n_tok / N_WINDOW;
    for (uint32_t w = 0; w < N_WINDOW; w++) {
        cut->length[w] = n;
        cut->scored[w] = n - 1;
    }
    cut->windows = (struct moec_windows){.n_window = N_WINDOW,
                                         .seq_len_tokens = n,
                                         .tokens = fixture->tokens,
                                         .length = cut->length,
                                         .scored = cut->scored};
}

static struct moec_sparsity *sparsity_of_windows(const struct fixture *fixture,
                                                 const struct moec_windows *windows, uint32_t share)
{
    struct moec_error err = {0};
    struct moec_sparsity_table table;
    struct moec_sparsity *sparsity = NULL;
    const struct moec_config *config = &fixture->model->config;
    const struct moec_thresholds_job job = {.of = {.model = fixture->model,
                                                   .experts = moec_variants_experts(fixture->variants),
                                                   .windows = windows},
                                            .kernels = moec_kernels_best(),
                                            .n_threads = 2};
    assert_ok(moec_sparsity_table_create(config, shares, N_SHARE, &table, &err), err);
    assert_ok(moec_thresholds_fill(&job, NULL, &table, &err), err);
    assert_ok(moec_sparsity_create(&table, config, share, &sparsity, &err), err);
    moec_sparsity_table_release(&table);
    return sparsity;
}

static struct moec_sparsity *sparsity_of(const struct fixture *fixture, uint32_t share)
{
    struct cut cut;
    cut_make(fixture, &cut);
    return sparsity_of_windows(fixture, &cut.windows, share);
}

/* By a plan, found on all tokens, that leaves out `share` of the bytes. */
static struct moec_sparsity *plan_of(const struct fixture *fixture, enum moec_sparsity_by by, bool at_gate,
                                     double share, int n_threads, struct moec_sparsity_plan *kept)
{
    struct moec_error err = {0};
    struct moec_neuron_harm *harm = NULL;
    struct moec_scorer *scorer = NULL;
    struct moec_sparsity *sparsity = NULL;
    struct moec_sparsity_plan plan;
    struct cut cut;
    double nll[N_WINDOW], factors[64];
    const struct moec_measure measure = {.nll = nll};
    const struct moec_config *config = &fixture->model->config;
    const struct moec_scorer_options options = {
        .by = {.kernels = moec_kernels_best(), .n_threads = n_threads}};
    cut_make(fixture, &cut);
    for (uint32_t l = 0; l < moec_config_moe_count(config); l++)
        factors[l] = 1;
    assert_ok(moec_neuron_harm_create(
                  config, &(struct moec_neuron_harm_options){by, at_gate, options.by.kernels, n_threads},
                  &harm, &err),
              err);
    assert_ok(moec_scorer_create(fixture->model, moec_variants_experts(fixture->variants), &cut.windows,
                                 &options, &scorer, &err),
              err);
    for (int turn = 0; turn < 2; turn++) {
        const struct moec_scorer_watch watch =
            turn == 0 ? moec_neuron_harm_measure(harm) : moec_neuron_harm_count(harm);
        const struct moec_scorer_variation variation = {.watch = &watch};
        assert_ok(moec_scorer_run_varied(scorer, &variation, &measure, NULL, &err), err);
    }
    assert_ok(moec_sparsity_plan_create(config, by, &plan, &err), err);
    plan.is_at_gate = at_gate;
    moec_neuron_harm_plan(harm, factors, moec_neuron_harm_threshold(harm, factors, share), &plan);
    assert_ok(moec_sparsity_create_planned(&plan, config, &sparsity, &err), err);
    const double threshold = moec_neuron_harm_layer_threshold(harm, 0, share);
    assert_true(threshold > 0 && moec_neuron_harm_layer_error(harm, 0, threshold) > 0);
    assert_true(moec_neuron_harm_layer_error(harm, 0, threshold) <
                moec_neuron_harm_layer_error(harm, 0, 2 * threshold));
    moec_scorer_free(scorer);
    moec_neuron_harm_free(harm);
    if (kept != NULL)
        *kept = plan;
    else
        moec_sparsity_plan_release(&plan);
    return sparsity;
}

#define PLANNED 1000 /* a share that stands for a plan by neuron of half of the bytes */
#define BY_GATE 1001 /* the same at the gate */

/* Logits of all positions, stepped `chunk` tokens at a time, and what was counted. */
static float *run(const char *name, uint32_t share, const struct moec_kernels *kernels, int n_threads,
                  uint32_t chunk, struct moec_sparsity_counts *counts)
{
    struct fixture fixture = fixture_open(name);
    struct moec_error err = {0};
    struct moec_forward forward = {0};
    struct moec_session *session = NULL;
    struct moec_sparsity *sparsity =
        share >= PLANNED ? plan_of(&fixture, MOEC_SPARSITY_BY_NEURON, share == BY_GATE, 0.5, 2, NULL)
        : share > 0      ? sparsity_of(&fixture, share)
                         : NULL;
    const size_t n_vocab = fixture.model->config.n_vocab;
    float *logits = calloc(fixture.n_tok * n_vocab, sizeof *logits);
    uint32_t *at = calloc(fixture.n_tok, sizeof *at);
    assert_true(logits != NULL && at != NULL);
    for (uint32_t i = 0; i < fixture.n_tok; i++)
        at[i] = i;
    assert_ok(moec_forward_init(&forward, fixture.model, kernels, n_threads,
                                moec_variants_experts(fixture.variants), chunk, &err),
              err);
    moec_forward_scratch(&forward)->test_hook.shares_all_work = true;
    forward.sparsity = sparsity;
    assert_ok(moec_session_create(&forward, fixture.n_tok, &session, &err), err);
    for (uint32_t done = 0, n = 0; done < fixture.n_tok; done += n) {
        n = fixture.n_tok - done < chunk ? fixture.n_tok - done : chunk;
        assert_ok(moec_session_step(session, fixture.tokens + done, n, at, n, logits + done * n_vocab, &err),
                  err);
    }
    if (sparsity != NULL)
        *counts = moec_sparsity_counts(sparsity);
    moec_session_free(session);
    moec_forward_release(&forward);
    moec_sparsity_free(sparsity);
    free(at);
    fixture_close(&fixture);
    return logits;
}

static const char *const families[] = {"qwen2_moe", "olmoe", "mixtral", "dots1", "gemma4", "deepseek_v2"};
#define N_FAMILY (sizeof families / sizeof *families)

static void run_in_all_ways(const char *family, uint32_t share)
{
    struct moec_sparsity_counts counts, others;
    struct fixture fixture = fixture_open(family);
    const uint32_t n_tok = fixture.n_tok;
    const size_t n = (size_t)n_tok * fixture.model->config.n_vocab;
    const uint64_t n_neuron = (uint64_t)n_tok * moec_config_moe_count(&fixture.model->config) *
                              fixture.model->config.top_k * fixture.model->config.n_ff_expert;
    fixture_close(&fixture);
    float *dense = run(family, 0, &moec_kernels_scalar, 1, n_tok, &counts);
    float *expected = run(family, share, &moec_kernels_scalar, 1, n_tok, &counts);
    assert_true(memcmp(dense, expected, n * sizeof *dense) != 0);
    assert_int_equal(counts.n_neuron, n_neuron);
    assert_true(counts.n_active > 3 * n_neuron / 10 && counts.n_active < 7 * n_neuron / 10);
    assert_true(counts.active_bytes > counts.dense_bytes / 3 && counts.active_bytes < counts.dense_bytes);
    for (uint32_t chunk = 1; chunk <= 20; chunk += chunk < 3 ? 1 : chunk) {
        for (int threads = 1; threads <= 3; threads += 2) {
            const struct moec_kernels *set = kernel_set(chunk % 3);
            float *got =
                run(family, share, set != NULL ? set : &moec_kernels_scalar, threads, chunk, &others);
            assert_same_bits(got, expected, n, family);
            assert_int_equal(others.n_active, counts.n_active);
            assert_int_equal(others.n_neuron, counts.n_neuron);
            assert_int_equal(others.active_bytes, counts.active_bytes);
            free(got);
        }
    }
    free(dense);
    free(expected);
}

static void test_sparsity__one_result_however_it_is_run(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FAMILY; f++)
        run_in_all_ways(families[f], 500);
}

/* Of an expert that enough tokens reach, its own thresholds leave out the share that they are named by. */
static void test_sparsity__thresholds_leave_out_their_share(void **state)
{
    (void)state;
    enum { N_REPEAT = 40 };
    struct fixture fixture = fixture_open("olmoe");
    struct moec_error err = {0};
    struct moec_experts *experts = moec_variants_experts(fixture.variants);
    const struct moec_scorer_options options = {.by = {.kernels = moec_kernels_best(), .n_threads = 2}};
    uint32_t length[N_REPEAT], scored[N_REPEAT];
    uint32_t *tokens = calloc((size_t)N_REPEAT * fixture.n_tok, sizeof *tokens);
    double nll[N_REPEAT];
    const struct moec_measure measure = {.nll = nll};
    assert_non_null(tokens);
    for (uint32_t w = 0; w < N_REPEAT; w++) {
        memcpy(tokens + (size_t)w * fixture.n_tok, fixture.tokens, fixture.n_tok * sizeof *tokens);
        length[w] = fixture.n_tok;
        scored[w] = fixture.n_tok - 1;
    }
    const struct moec_windows windows = {.n_window = N_REPEAT,
                                         .seq_len_tokens = fixture.n_tok,
                                         .tokens = tokens,
                                         .length = length,
                                         .scored = scored};
    for (size_t s = 0; s < N_SHARE; s++) {
        struct moec_scorer *scorer = NULL;
        struct moec_sparsity *sparsity = sparsity_of_windows(&fixture, &windows, shares[s]);
        assert_ok(moec_scorer_create(fixture.model, experts, &windows, &options, &scorer, &err), err);
        assert_ok(moec_scorer_set_sparsity(scorer, sparsity, &err), err);
        assert_ok(moec_scorer_run(scorer, &measure, NULL, &err), err);
        const struct moec_sparsity_counts counts = moec_sparsity_counts(sparsity);
        const double left_out = 1 - (double)counts.n_active / (double)counts.n_neuron;
        assert_true(fabs(left_out - shares[s] * 1e-3) < 0.02);
        moec_scorer_free(scorer);
        moec_sparsity_free(sparsity);
    }
    free(tokens);
    fixture_close(&fixture);
}

static void test_sparsity__one_result_of_a_plan_however_it_is_run(void **state)
{
    (void)state;
    run_in_all_ways("qwen2_moe", PLANNED);
    run_in_all_ways("deepseek_v2", PLANNED);
    for (size_t f = 0; f < N_FAMILY; f++)
        run_in_all_ways(families[f], BY_GATE);
}

static void test_sparsity__plans_do_not_depend_on_threads(void **state)
{
    (void)state;
    struct fixture fixture = fixture_open("olmoe");
    for (int by = MOEC_SPARSITY_BY_EXPERT; by <= MOEC_SPARSITY_BY_NEURON; by++) {
        struct moec_sparsity_plan plans[2];
        for (int i = 0; i < 2; i++)
            moec_sparsity_free(plan_of(&fixture, (enum moec_sparsity_by)by, by == MOEC_SPARSITY_BY_NEURON,
                                       0.6, 1 + 2 * i, &plans[i]));
        assert_memory_equal(plans[0].scales, plans[1].scales,
                            (size_t)plans[0].n_layer * plans[0].n_expert * plans[0].n_scale *
                                sizeof *plans[0].scales);
        for (int i = 0; i < 2; i++)
            moec_sparsity_plan_release(&plans[i]);
    }
    fixture_close(&fixture);
}

/* Of one share of the bytes, leaving out what harms least harms less than one share of each expert's
 * neurons. */
static void test_sparsity__plans_by_harm_harm_less(void **state)
{
    (void)state;
    struct fixture fixture = fixture_open("qwen2_moe");
    struct moec_error err = {0};
    struct cut cut;
    struct moec_experts *experts = moec_variants_experts(fixture.variants);
    double nll[N_WINDOW], kl[N_WINDOW], sums[2] = {0};
    const struct moec_measure measure = {.nll = nll, .kl = kl};
    cut_make(&fixture, &cut);
    for (int turn = 0; turn < 2; turn++) {
        struct moec_scorer *scorer = NULL;
        struct moec_sparsity *sparsity =
            turn == 0 ? sparsity_of(&fixture, 750)
                      : plan_of(&fixture, MOEC_SPARSITY_BY_NEURON, false, 0.75, 2, NULL);
        const struct moec_scorer_options options = {.by = {.kernels = moec_kernels_best(), .n_threads = 2}};
        assert_ok(moec_scorer_create(fixture.model, experts, &cut.windows, &options, &scorer, &err), err);
        assert_ok(moec_scorer_set_reference(scorer, fixture.model, experts, NULL, NULL, &err), err);
        assert_ok(moec_scorer_set_sparsity(scorer, sparsity, &err), err);
        assert_ok(moec_scorer_run(scorer, &measure, NULL, &err), err);
        for (uint32_t w = 0; w < N_WINDOW; w++)
            sums[turn] += kl[w];
        moec_scorer_keep_all(scorer);
        assert_ok(moec_scorer_run(scorer, &measure, NULL, &err), err);
        assert_true(kl[0] == 0);
        moec_scorer_free(scorer);
        moec_sparsity_free(sparsity);
    }
    assert_true(sums[1] > 0 && sums[1] < sums[0]);
    fixture_close(&fixture);
}

/* Every product computed, zeros put in, and all added up. */
static void sum_with_zeros(const struct moec_kernels *kernels, const struct moec_mlp *mlp, const float *x,
                           float *out)
{
    const uint32_t n_ff = mlp->up.rows, columns = mlp->up.columns;
    float gate[MOEC_SUM_CHUNK], up[MOEC_SUM_CHUNK], *y = calloc(columns, sizeof *y);
    memset(out, 0, columns * sizeof *out);
    for (uint32_t neuron = 0; neuron < n_ff; neuron += MOEC_SUM_CHUNK) {
        const uint32_t n = moec_min_u32(MOEC_SUM_CHUNK, n_ff - neuron);
        kernels->dot_encoded(&mlp->gate, neuron, n, x, gate);
        kernels->dot_encoded(&mlp->up, neuron, n, x, up);
        for (uint32_t i = 0; i < n; i++) {
            const float value = mlp->filter.at == MOEC_PROJECTION_GATE ? moec_silu_f32(gate[i]) : up[i];
            up[i] = fabsf(value) < mlp->filter.threshold ? 0 : up[i];
        }
        kernels->silu_mul(gate, up, n, gate);
        kernels->sum_chunk_encoded(&mlp->down, neuron, n, gate, y);
        kernels->add(y, columns, out);
    }
    free(y);
}

static void test_sparsity__neurons_left_out_are_zeros(void **state)
{
    (void)state;
    struct fixture fixture = fixture_open("olmoe");
    struct moec_error err = {0};
    struct moec_forward forward = {0};
    const struct moec_config *config = &fixture.model->config;
    struct moec_experts *experts = moec_variants_experts(fixture.variants);
    const size_t stride = moec_forward_stride(config);
    float *x = calloc(4 * stride, sizeof *x), *got = calloc(4 * stride, sizeof *got),
          *expected = calloc(stride, sizeof *expected);
    assert_true(x != NULL && got != NULL && expected != NULL);
    for (uint32_t t = 0; t < 4; t++)
        for (uint32_t i = 0; i < config->n_embd; i++)
            x[t * stride + i] = (float)((int)((i * 37 + t * 11) % 101) - 50) * 0.02f;
    assert_ok(moec_forward_init(&forward, fixture.model, moec_kernels_best(), 1, experts, 4, &err), err);
    for (uint32_t e = 0; e < config->n_expert; e++) {
        const struct moec_expert_request request = moec_expert_request_of(0, e);
        struct moec_mlp mlp;
        assert_ok(experts->ops->acquire(experts, request, &mlp, &err), err);
        for (int turn = 0; turn < 8; turn++) { /* nothing, some, and all neurons are left out, by either */
            mlp.filter =
                (struct moec_mlp_filter){.is_on = true,
                                         .at = turn < 4 ? MOEC_PROJECTION_UP : MOEC_PROJECTION_GATE,
                                         .threshold = turn % 4 == 3 ? 1e9f : (float)(turn % 4) * 0.03f};
            for (uint32_t n = 1; n <= 4; n += 3) {
                moec_forward_expert(&forward, &mlp, n, x, got);
                for (uint32_t t = 0; t < n; t++) {
                    sum_with_zeros(&moec_kernels_scalar, &mlp, x + t * stride, expected);
                    assert_same_bits(got + t * stride, expected, config->n_embd, "zeros");
                }
            }
        }
        experts->ops->release(experts, request);
    }
    moec_forward_release(&forward);
    free(x);
    free(got);
    free(expected);
    fixture_close(&fixture);
}

/* An evaluation decides as a session does, and its reference does not. */
static void test_sparsity__evaluations_agree_with_sessions(void **state)
{
    (void)state;
    struct fixture fixture = fixture_open("qwen2_moe");
    struct moec_error err = {0};
    struct cut cut;
    struct moec_experts *experts = moec_variants_experts(fixture.variants);
    struct moec_scorer *scorer = NULL;
    double dense[N_WINDOW], reference[N_WINDOW], sparse[N_WINDOW], kl[N_WINDOW];
    const struct moec_measure measure = {.nll = sparse, .kl = kl}, plain = {.nll = dense};
    cut_make(&fixture, &cut);
    for (int turn = 0; turn < 2; turn++) {
        struct moec_sparsity *sparsity = turn == 0 ? NULL : sparsity_of(&fixture, 750);
        const struct moec_scorer_options options = {.by = {.kernels = moec_kernels_best(), .n_threads = 2},
                                                    .sparsity = sparsity};
        assert_ok(moec_scorer_create(fixture.model, experts, &cut.windows, &options, &scorer, &err), err);
        if (turn == 1)
            assert_ok(moec_scorer_set_reference(scorer, fixture.model, experts, reference, NULL, &err), err);
        assert_ok(moec_scorer_run(scorer, turn == 0 ? &plain : &measure, NULL, &err), err);
        moec_scorer_free(scorer);
        moec_sparsity_free(sparsity);
    }
    assert_memory_equal(dense, reference, sizeof dense);
    for (uint32_t w = 0; w < N_WINDOW; w++)
        assert_true(sparse[w] != dense[w] && kl[w] > 0);
    fixture_close(&fixture);
}

static void test_sparsity__refuses_other_neurons(void **state)
{
    (void)state;
    static const struct {
        const char *name, *why;
    } cases[] = {{"gpt_oss", "contribute even if up . x is 0"}, {"switch", "have no gate"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fixture fixture = fixture_open(cases[i].name);
        struct moec_error err = {0};
        assert_status(moec_sparsity_check_config(&fixture.model->config, &err), MOEC_ERR_UNSUPPORTED, err);
        assert_message(err, cases[i].why);
        fixture_close(&fixture);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sparsity__thresholds_lie_between_those_of_the_table),
        cmocka_unit_test(test_sparsity__the_section_holds_a_table),
        cmocka_unit_test(test_sparsity__a_bundle_takes_a_table),
        cmocka_unit_test(test_sparsity__the_section_holds_a_plan),
        cmocka_unit_test(test_sparsity__a_bundle_takes_a_plan),
        cmocka_unit_test(test_sparsity__one_result_however_it_is_run),
        cmocka_unit_test(test_sparsity__thresholds_leave_out_their_share),
        cmocka_unit_test(test_sparsity__one_result_of_a_plan_however_it_is_run),
        cmocka_unit_test(test_sparsity__plans_do_not_depend_on_threads),
        cmocka_unit_test(test_sparsity__plans_by_harm_harm_less),
        cmocka_unit_test(test_sparsity__neurons_left_out_are_zeros),
        cmocka_unit_test(test_sparsity__evaluations_agree_with_sessions),
        cmocka_unit_test(test_sparsity__refuses_other_neurons),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
