/* A fit's promises: what is kept before the certificate part is read, what is found again, that nothing slower than
 * compile's plan is written, and that a scorer's run chooses what an engine chooses. */
#include "compiler/tune/tune.h"
#include "compiler/tune/tune_internal.h"
#include "formats/trace/trace_json.h"
#include "profiler/evaluate/router_record.h"
#include "profiler/simulate/simulated_decisions.h"
#include "runtime/moert.h"
#include "runtime/policy/decide/route_settings.h"

#include "tests/unit/bench_of_parts.h"

#include <math.h>
#include <unistd.h>

#define N_PROMPT 4u
#define N_SLOT   2u

/* ---- a fit whose times are made up ---- */

struct fit_bench {
    struct bench_of_parts parts;
    struct moec_tune_fit fit;
    struct moec_tune_options options;
    struct moec_tune_drafts drafts;
    struct moec_tune_report report;
    uint8_t digests[1][MOEC_SHA256_BYTES];
    struct moec_units *units;
    char *journal;
    uint32_t n_foretold;
    double decided_ns; /* what deciding takes; without 100 */
};

static enum moec_status foretell(void *context, uint32_t draft, const struct moec_foretell_run *ran,
                                 struct moec_foretold *out, struct moec_error *err)
{
    struct fit_bench *b = context;
    (void)err;
    assert_int_equal(draft, 0);
    assert_true(ran->replay->n_step > 0);
    moec_replay_release(ran->replay);
    b->n_foretold++;
    *out =
        (struct moec_foretold){.token_ns = moec_decision_settings_are_on(ran->settings) ? b->decided_ns : 100,
                               .evict = "lru",
                               .predict = "none"};
    return MOEC_OK;
}

static enum moec_status open_draft(void *context, uint32_t draft, struct moec_error *err)
{
    (void)context;
    (void)draft;
    (void)err;
    return MOEC_OK;
}

static void open_fit(struct fit_bench *b, double decided_ns)
{
    *b = (struct fit_bench){.decided_ns = decided_ns, .digests = {{1}}};
    open_parts(&b->parts, true);
    b->journal = temporary_path(b->parts.folder, "journal");
    b->fit = (struct moec_tune_fit){
        .foretell = foretell, .context = b, .n_slots = {N_SLOT}, .n_measured = 6, .n_search = N_SEARCH - 1};
    b->drafts = (struct moec_tune_drafts){.n = 1, .open = open_draft};
    b->options = (struct moec_tune_options){.trial = trial_options(5),
                                            .with_route = true,
                                            .with_skip = true,
                                            .shared = {.n_slots = N_SLOT, .decode_only = true},
                                            .fit = &b->fit,
                                            .draft_digests = b->digests};
    b->options.trial.n_prompt = N_PROMPT;
}

static enum moec_status run_fit(struct fit_bench *b, struct moec_error *error)
{
    static struct moec_job_text text;
    text = (struct moec_job_text){.n_bytes = 0};
    moec_job_line(&text, "job", "test");
    MUST(moec_units_open(b->journal, MOEC_UNITS_AUTO, &text, NULL, &b->units, &err));
    b->options.units = b->units;
    const enum moec_status status =
        moec_tune(&b->parts.inputs, &b->options, &b->drafts, NULL, &b->report, error);
    moec_units_close(b->units);
    return status;
}

static void close_fit(struct fit_bench *b)
{
    moec_tune_report_release(&b->report);
    (void)unlink(b->journal);
    free(b->journal);
    close_parts(&b->parts);
}

static bool has_unit(const char *journal, const char *key)
{
    static char bytes[1 << 20];
    FILE *file = fopen(journal, "rb");
    assert_non_null(file);
    const size_t n = fread(bytes, 1, sizeof bytes, file);
    assert_true(n < sizeof bytes);
    (void)fclose(file);
    return memmem(bytes, n, key, strlen(key)) != NULL;
}

static void move_tokens(struct fit_bench *b, uint32_t by)
{
    for (uint32_t w = N_SEARCH + N_SELECT; w < N_WINDOW; w++)
        b->parts.windows.tokens[(size_t)w * moec_windows_stride(&b->parts.windows)] += by;
}

/* A window of the certificate part that no model can read stops the fit where a model first looks at it: not before
 * the sequence is kept. */
static void test_tune_fit__looks_at_no_certificate_window_before_the_sequence_is_kept(void **state)
{
    (void)state;
    static struct fit_bench b;
    struct moec_error told_error = {0};
    char search[32], certificate[32];
    open_fit(&b, 50);
    (void)snprintf(search, sizeof search, "run/%d/%u/", (int)MOEC_PART_SEARCH, N_SEARCH - 1);
    (void)snprintf(certificate, sizeof certificate, "run/%d/", (int)MOEC_PART_CERTIFICATE);
    move_tokens(&b, 1u << 20);
    assert_status(run_fit(&b, &told_error), MOEC_ERR_MISMATCH, told_error);
    assert_message(told_error, "outside the model's vocabulary");
    assert_true(has_unit(b.journal, search));
    assert_true(has_unit(b.journal, "sequence/"));
    assert_false(has_unit(b.journal, certificate));

    /* The same command goes on from there: nothing of the search is measured anew. */
    const uint32_t n_foretold = b.n_foretold;
    move_tokens(&b, 0u - (1u << 20));
    MUST(run_fit(&b, &err));
    assert_int_equal(b.n_foretold, n_foretold);
    assert_true(has_unit(b.journal, certificate));
    const struct moec_tune_report first = b.report;
    MUST(run_fit(&b, &err));
    assert_int_equal(b.report.n_sequence, first.n_sequence);
    assert_memory_equal(b.report.sequence, first.sequence, sizeof first.sequence);
    assert_string_equal(b.report.winner.settings.route, first.winner.settings.route);
    assert_true(b.report.certificate.loss_high == first.certificate.loss_high);
    close_fit(&b);
}

/* ---- beside compile's plan ---- */

struct told {
    uint32_t draft;
    const char *route;
    double loss, ns;
    double error; /* 0: hardly any */
};

/* A report of four candidates: two plans, the second compile's, and what decides on the first. */
static void tell(const struct told *told, uint32_t n, struct moec_tune_report *report)
{
    *report = (struct moec_tune_report){.compiled = 1, .n_candidate = n};
    for (uint32_t i = 0; i < n; i++) {
        struct moec_tune_candidate *candidate = &report->candidates[i];
        candidate->draft = told[i].draft;
        (void)snprintf(candidate->settings.route, sizeof candidate->settings.route, "%s", told[i].route);
        candidate->foretold.token_ns = told[i].ns;
        const double error = told[i].error > 0 ? told[i].error : 1e-4;
        candidate->search = candidate->chosen = (struct moec_loss){.loss = told[i].loss,
                                                                   .high = told[i].loss + 1.7 * error,
                                                                   .difference = log1p(told[i].loss),
                                                                   .n_window = 64,
                                                                   .n_unit = 64,
                                                                   .error = error};
        if (told[i].route[0] == '\0')
            report->plain[told[i].draft] = *candidate;
    }
}

static void assert_sequence(struct fit_bench *b, const struct told *told, uint32_t n,
                            const uint32_t *sequence, uint32_t n_sequence)
{
    struct tune tune = {.options = &b->options, .report = &b->report};
    moec_trial_init(&b->parts.inputs, &b->options.trial, NULL, &tune.trial);
    tell(told, n, &b->report);
    b->fit.n_measured = n; /* no more tries */
    MUST(moec_tune_sequence_make(&tune, &err));
    assert_int_equal(b->report.n_sequence, n_sequence);
    for (uint32_t i = 0; i < n_sequence; i++)
        assert_int_equal(b->report.sequence[i], sequence[i]);
}

static void test_tune_fit__nothing_that_decides_and_is_slower_than_compile_is_tested(void **state)
{
    (void)state;
    static struct fit_bench b;
    open_fit(&b, 50);
    b.options.trial.max_loss = 0.02;
    const struct told all[] = {{0, "", 0.001, 3000, 0},
                               {1, "", 0.018, 2000, 0},
                               {0, "cache-prior:0.1", 0.005, 2500, 0},
                               {0, "cache-prior:0.2", 0.010, 1500, 0}};
    /* Compile's plan loses more and is slower than the last: it is pointless. */
    assert_sequence(&b, all, 4, (const uint32_t[]){0, 3}, 2);
    assert_sequence(&b, all, 3, (const uint32_t[]){0, 1}, 2);
    /* What is hardly slower would take its place. */
    const struct told near[] = {
        {0, "", 0.001, 3000, 0}, {1, "", 0.018, 2000, 0}, {0, "cache-prior:0.1", 0.015, 2020, 0}};
    assert_sequence(&b, near, 3, (const uint32_t[]){0, 2, 1}, 3);
    close_fit(&b);
}

/* On few windows decisions may seem to lose less than bits alone. The first test is still of what is safest, or its
 * failure would leave nothing to write; and compile's plan is tested before decisions with its own bits. */
static void test_tune_fit__the_safest_bits_alone_are_tested_first(void **state)
{
    (void)state;
    static struct fit_bench b;
    open_fit(&b, 50);
    b.options.trial.max_loss = 0.02;
    const struct told first[] = {
        {0, "", 0.0012, 3000, 0}, {1, "", 0.018, 2000, 0}, {0, "cache-prior:0.1", 0.001, 1500, 0}};
    assert_sequence(&b, first, 3, (const uint32_t[]){0, 2}, 2);
    const struct told own[] = {
        {0, "", 0.001, 3000, 0}, {1, "", 0.012, 2000, 0}, {1, "cache-prior:0.1", 0.011, 1500, 0}};
    assert_sequence(&b, own, 3, (const uint32_t[]){0, 1, 2}, 3);
    /* Safer bits with decisions stand for compile's plan only where they are likely to be proven. */
    const struct told noisy[] = {
        {0, "", 0.001, 3000, 0.003}, {1, "", 0.012, 2000, 0.003}, {0, "cache-prior:0.1", 0.011, 1500, 0.003}};
    assert_sequence(&b, noisy, 3, (const uint32_t[]){0, 1, 2}, 3);
    const struct told clear[] = {
        {0, "", 0.001, 3000, 0}, {1, "", 0.012, 2000, 0}, {0, "cache-prior:0.1", 0.011, 1500, 0}};
    assert_sequence(&b, clear, 3, (const uint32_t[]){0, 2}, 2);
    /* What is safest is not what noise lets lose least. */
    const struct told lucky[] = {
        {0, "", 0.0012, 3000, 0}, {1, "", 0.001, 2000, 0.005}, {1, "cache-prior:0.1", 0.0005, 1500, 0.005}};
    assert_sequence(&b, lucky, 3, (const uint32_t[]){0, 1, 2}, 3);
    /* What is no faster than the first could only be written in its place. */
    const struct told slower[] = {{0, "", 0.0012, 1900, 0},
                                  {1, "", 0.018, 2000, 0},
                                  {0, "cache-prior:0.1", 0.001, 1950, 0},
                                  {0, "cache-prior:0.2", 0.015, 1500, 0}};
    assert_sequence(&b, slower, 4, (const uint32_t[]){0, 3}, 2);
    /* What is not expected to pass is not tested for the sake of order. */
    const struct told lossy[] = {
        {0, "", 0.03, 3000, 0}, {1, "", 0.04, 2000, 0}, {0, "cache-prior:0.1", 0.015, 1500, 0}};
    assert_sequence(&b, lossy, 3, (const uint32_t[]){2}, 1);
    close_fit(&b);
}

/* A front of as many as a front gives, none of which is one of the two plans that are always tested. */
static void test_tune_fit__both_plans_that_are_always_tested_have_room(void **state)
{
    (void)state;
    static struct fit_bench b;
    open_fit(&b, 50);
    b.options.trial.max_loss = 0.02;
    const struct told all[] = {{0, "", 0.0012, 9000, 0},
                               {1, "", 0.0125, 5000, 0},
                               {0, "cache-prior:0.1", 0.001, 5080, 0},
                               {1, "cache-prior:0.1", 0.0105, 4700, 0},
                               {1, "cache-prior:0.2", 0.012, 4300, 0},
                               {1, "cache-prior:0.3", 0.0135, 3900, 0},
                               {1, "cache-prior:0.4", 0.015, 3500, 0},
                               {1, "cache-prior:0.5", 0.0165, 3100, 0},
                               {1, "cache-prior:0.6", 0.018, 2700, 0}};
    assert_sequence(&b, all, 9, (const uint32_t[]){0, 1, 3, 4, 5, 6, 7, 8}, MOEC_MAX_SEQUENCE);
    close_fit(&b);
}

static void test_tune_fit__a_refusal_names_the_plan_that_its_advice_is_about(void **state)
{
    (void)state;
    static struct fit_bench b;
    struct moec_error told_error = {0};
    open_fit(&b, 50);
    b.options.trial.max_loss = 0.05;
    struct tune tune = {.options = &b.options, .drafts = &b.drafts, .report = &b.report};
    const struct told all[] = {{2, "", 0.0012, 3000, 0}, {1, "", 0.018, 2000, 0}};
    const struct moec_loss safest = {.loss = 0.03, .high = 0.050005, .error = 0.0117, .n_window = 24};
    tell(all, 2, &b.report);
    b.report.n_sequence = 2;
    b.report.sequence[1] = 1;
    assert_status(moec_tune_fit_refuse(&tune, &safest, &told_error), MOEC_ERR_TARGET, told_error);
    assert_message(told_error,
                   "the safest of 2 combinations, plan 3 without decisions, has a loss of 3.000%");
    assert_message(told_error, "(--certificate-samples 54)");
    close_fit(&b);
}

/* The tests are on as many windows as were asked for. */
static void test_tune_fit__windows_that_were_asked_for_are_all_taken(void **state)
{
    (void)state;
    static struct fit_bench b;
    const struct told all[] = {{0, "", 0.001, 3000, 0}};
    open_fit(&b, 50);
    struct tune tune = {.options = &b.options, .report = &b.report};
    moec_trial_init(&b.parts.inputs, &b.options.trial, NULL, &tune.trial);
    tell(all, 1, &b.report);
    b.report.n_sequence = 1;
    MUST(moec_tune_fit_choose_windows(&tune, &err));
    assert_int_equal(tune.trial.most_certify, N_WINDOW - N_SEARCH - N_SELECT);
    tune.trial.most_certify = 0;
    b.fit.takes_all_certificate = true;
    MUST(moec_tune_fit_choose_windows(&tune, &err));
    assert_int_equal(tune.trial.most_certify, 0); /* no limit */
    close_fit(&b);
}

/* With all experts in memory only what loses no more than the plan that is taken is left. It must be tested although
 * it is hardly faster than a safer one, which is too slow beside compile's. */
static void test_tune_fit__what_is_as_fast_as_compile_is_tested_where_safer_is_slower(void **state)
{
    (void)state;
    static struct fit_bench b;
    open_fit(&b, 50);
    b.options.trial.max_loss = 0.02;
    const struct told all[] = {{0, "", 0.001, 6000, 0}, {2, "", 0.005, 5881, 0}, {1, "", 0.015, 5870, 0}};
    struct tune tune = {.options = &b.options, .report = &b.report};
    moec_trial_init(&b.parts.inputs, &b.options.trial, NULL, &tune.trial);
    tell(all, 3, &b.report);
    b.report.n_candidate = b.fit.n_measured = 2; /* no more tries */
    MUST(moec_tune_sequence_make(&tune, &err));
    assert_int_equal(b.report.n_sequence, 2);
    assert_int_equal(b.report.sequence[1], 1);
    close_fit(&b);
}

/* All tests that were proven are of what is slower: whether compile's plan would have been proven is looked up. */
static void test_tune_fit__a_slower_winner_is_refused_unless_compile_is_refuted(void **state)
{
    (void)state;
    static struct fit_bench b;
    struct moec_error told_error = {0};
    open_fit(&b, 50);
    struct tune tune = {
        .options = &b.options, .drafts = &b.drafts, .report = &b.report, .part = MOEC_PART_ALL};
    moec_trial_init(&b.parts.inputs, &b.options.trial, NULL, &tune.trial);
    const struct told all[] = {{0, "", 0.001, 2000, 0}, {0, "cache-prior:0.2", 0.010, 3000, 0}};
    tell(all, 2, &b.report);
    b.report.compiled = 0;
    b.report.winner = b.report.candidates[1];
    b.report.n_sequence = 1;
    b.report.sequence[0] = 1;
    assert_status(moec_tune_fit_check_winner(&tune, 1, &told_error), MOEC_ERR_TARGET, told_error);
    assert_message(told_error, "so nothing was written: use moec compile with the same --max-loss");
    b.options.trial.max_loss = -0.9;
    MUST(moec_tune_fit_check_winner(&tune, 1, &err));
    b.options.trial.max_loss = 5;
    b.report.winner = b.report.candidates[0];
    MUST(moec_tune_fit_check_winner(&tune, 1, &err));
    moec_trial_close(&tune.trial);
    close_fit(&b);
}

/* The selection part has left one plan alone within the loss, and nothing was tried beside it. */
static void test_tune_fit__a_plan_that_is_left_alone_is_tried_with_routes(void **state)
{
    (void)state;
    static struct fit_bench b;
    struct moec_decision_settings settings;
    const struct told all[] = {{0, "", 0.0116, 4500, 0},
                               {1, "", 0.0169, 4000, 0},
                               {1, "cache-prior:0.105:skip:0.035", 0.0174, 2600, 0},
                               {1, "cache-prior:0.028:skip:0.154", 0.0211, 1900, 0}};
    open_fit(&b, 50);
    b.options.trial.max_loss = 0.02;
    struct tune tune = {.options = &b.options, .report = &b.report};
    moec_trial_init(&b.parts.inputs, &b.options.trial, NULL, &tune.trial);
    tell(all, 4, &b.report);
    assert_true(moec_tune_fit_further(&tune, &b.report.candidates[0], &settings));
    assert_string_equal(settings.route, "cache-prior:0.105:skip:0.035");
    struct moec_tune_candidate tried = b.report.candidates[0];
    tried.settings = settings;
    assert_true(moec_tune_fit_further(&tune, &tried, &settings));
    assert_string_equal(settings.route, "cache-prior:0.168:skip:0.056");
    b.report.candidates[b.report.n_candidate] = tried;
    b.report.candidates[b.report.n_candidate++].settings = settings;
    assert_false(moec_tune_fit_further(&tune, &tried, &settings));
    tried = b.report.candidates[0];
    tried.chosen.loss = 0.018;
    assert_false(moec_tune_fit_further(&tune, &tried, &settings));
    b.fit.holds_all[0] = true;
    assert_false(moec_tune_fit_further(&tune, &b.report.candidates[0], &settings));
    moec_trial_close(&tune.trial);
    close_fit(&b);
}

/* ---- a scorer's run and an engine's ---- */

static void run_engine(const struct bench_of_parts *b, const char *path, const char *trace, const char *route)
{
    struct moert_options options = moert_options_default();
    struct moert_engine *engine = NULL;
    struct moert_session *session = NULL;
    struct moert_error err = {0};
    options.n_threads = 1;
    options.sessions.n_context = SEQ_LEN;
    options.buffer.evict = "lru";
    options.buffer.predict = "gate";
    options.trace.path = trace;
    options.trace.scores = true;
    options.decisions = (struct moert_decisions){.none = route == NULL,
                                                 .route = route,
                                                 .slots = route != NULL ? "2" : NULL,
                                                 .decode_only = route != NULL};
    assert_int_equal(moert_engine_open(path, &options, &engine, &err), MOERT_OK);
    float *logits = calloc(moert_engine_info(engine).model.n_vocab, sizeof *logits);
    assert_int_equal(moert_session_create(engine, &session, &err), MOERT_OK);
    for (uint32_t w = 0; w < b->windows.n_window; w++) {
        const uint32_t *tokens = moec_windows_tokens(&b->windows, w), n = b->windows.scored[w];
        const uint32_t n_prompt = n < N_PROMPT ? n : N_PROMPT;
        moert_session_truncate(session, 0);
        moert_session_set_prompt(session, n_prompt);
        assert_int_equal(moert_session_step(session, tokens, n_prompt, logits, &err), MOERT_OK);
        for (uint32_t i = n_prompt; i < n; i++)
            assert_int_equal(moert_session_step(session, &tokens[i], 1, logits, &err), MOERT_OK);
    }
    free(logits);
    moert_session_free(session);
    assert_int_equal(moert_engine_end(engine, &err), MOERT_OK);
}

static void run_scorer(const struct bench_of_parts *b, const struct moec_route *route,
                       struct moec_replay *out)
{
    struct moec_scorer *scorer = NULL;
    struct moec_router_record *record = NULL;
    const struct moec_scorer_options options = {
        .by = {.kernels = &moec_kernels_scalar, .n_threads = 1},
        .decisions = {
            .route = route, .n_prompt = N_PROMPT, .record_bytes = {b->bundle.record_bytes[0], NULL}}};
    double nll[N_WINDOW];
    const struct moec_measure measure = {.nll = nll};
    MUST(moec_scorer_create(b->bundle.model, b->bundle.experts, &b->windows, &options, &scorer, &err));
    MUST(moec_router_record_create(b->bundle.model, &b->windows, N_PROMPT, UINT64_MAX, &record, &err));
    const struct moec_scorer_variation variation = {.watch = moec_router_record_watch(record)};
    MUST(moec_scorer_run_varied(scorer, &variation, &measure, NULL, &err));
    moec_router_record_take(record, out);
    moec_router_record_free(record);
    moec_scorer_free(scorer);
}

/* Choices are the same bit for bit, but for order among equal weights, and what gates guess. */
static void assert_same(const struct moec_replay *ours, const struct moec_replay *theirs)
{
    assert_int_equal(ours->n_step, theirs->n_step);
    for (uint64_t a = 0; a < ours->n_step * ours->n_layer; a++) {
        const struct moec_replay_answer *x = &ours->answers[a], *y = &theirs->answers[a];
        const uint32_t n_tok = ours->n_tok[a / ours->n_layer];
        assert_int_equal(n_tok, theirs->n_tok[a / ours->n_layer]);
        assert_int_equal(x->n_active, y->n_active);
        assert_memory_equal(ours->active + x->active, theirs->active + y->active,
                            x->n_active * sizeof *ours->active);
        for (uint32_t c = 0; c < n_tok * ours->top_k; c++) {
            assert_int_equal(ours->experts[x->choices + c], theirs->experts[y->choices + c]);
            assert_true(fabsf(ours->weights[x->choices + c] - theirs->weights[y->choices + c]) < 1e-5f);
        }
        assert_int_equal(x->n_next_gate, y->n_next_gate);
        for (uint32_t g = 0; g < x->n_next_gate; g++) {
            const struct moec_scored_expert *p = &ours->scored[x->next_gate + g],
                                            *q = &theirs->scored[y->next_gate + g];
            assert_int_equal(p->expert, q->expert);
            assert_true(fabsf(p->score - q->score) < 1e-5f);
        }
    }
}

static void test_tune_fit__a_scorer_chooses_what_an_engine_chooses(void **state)
{
    (void)state;
    static const char *const words = "cache-prior:0.3:skip:0.2";
    struct bench_of_parts b;
    struct moec_replay ours = {0}, theirs = {0};
    open_parts(&b, true);
    char *path = temporary_path(b.folder, "mixed.moec"), *trace = temporary_path(b.folder, "trace.json");
    run_engine(&b, path, trace, NULL);
    MUST(moec_replay_load(trace, &theirs, &err));
    run_scorer(&b, NULL, &ours);
    assert_same(&ours, &theirs);
    moec_replay_release(&ours);
    moec_replay_release(&theirs);

    struct moec_decision_settings settings = {.n_slots = 2, .decode_only = true};
    struct moec_recording recording = {0};
    struct moec_simulated_decisions decided = {0};
    struct moec_route route = {0};
    (void)snprintf(settings.route, sizeof settings.route, "%s", words);
    MUST(moec_route_from_settings(&settings, b.bundle.config, &b.bundle.bundle->paths, path, &route, &err));
    run_engine(&b, path, trace, words);
    MUST(moec_replay_load(trace, &theirs, &err));
    run_scorer(&b, &route, &ours);
    MUST(moec_recording_make(&ours, NULL, 0, &recording, &err));
    const struct moec_simulated_decisions_setup setup = {
        .replay = &ours, .recording = &recording, .model = b.bundle.model, .route = &route};
    MUST(moec_simulated_decisions_make(&setup, &decided, &err));
    assert_same(&decided.replay, &theirs);
    moec_simulated_decisions_release(&decided);
    moec_recording_release(&recording);
    moec_replay_release(&ours);
    moec_replay_release(&theirs);
    (void)unlink(trace);
    free(path);
    free(trace);
    close_parts(&b);
}

/* Between what loses 1.57 and 2.08 % on the selection part, a loss of 1.86 % is expected 0.57 of the way. */
static void test_tune_fit__tries_between_what_the_selection_part_parts(void **state)
{
    (void)state;
    struct moec_tune_candidate within = {.settings = {.route = "cache-prior:0.07:skip:0.084", .n_slots = 4},
                                         .chosen = {.loss = 0.0157}};
    struct moec_tune_candidate beyond = {.settings = {.route = "cache-prior:0.112:skip:0.134", .n_slots = 4},
                                         .chosen = {.loss = 0.0208}};
    struct moec_decision_settings settings;
    assert_true(moec_tune_fit_between(&within, &beyond, 0.02, &settings));
    assert_string_equal(settings.route, "cache-prior:0.094:skip:0.112");
    assert_int_equal(settings.n_slots, 4);
    beyond.chosen.loss = 0.2; /* never so near to either */
    assert_true(moec_tune_fit_between(&within, &beyond, 0.02, &settings));
    assert_string_equal(settings.route, "cache-prior:0.078:skip:0.094");
    within.settings.route[0] = '\0'; /* bits alone */
    assert_true(moec_tune_fit_between(&within, &beyond, 0.02, &settings));
    assert_string_equal(settings.route, "cache-prior:0.022:skip:0.027");

    within.chosen.loss = 0.0185; /* at the aim */
    assert_false(moec_tune_fit_between(&within, &beyond, 0.02, &settings));
    within.chosen.loss = 0.0157;
    beyond.chosen.loss = 0.016; /* there is no room */
    assert_false(moec_tune_fit_between(&within, &beyond, 0.02, &settings));
    beyond.chosen.loss = 0.0208;
    beyond.draft = 1;
    assert_false(moec_tune_fit_between(&within, &beyond, 0.02, &settings));
    beyond.draft = 0;
    (void)strcpy(within.settings.route, "cache-prior:0.001:skip:0.001");
    (void)strcpy(beyond.settings.route, "cache-prior:0.002:skip:0.002"); /* too fine for words */
    assert_false(moec_tune_fit_between(&within, &beyond, 0.02, &settings));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tune_fit__looks_at_no_certificate_window_before_the_sequence_is_kept),
        cmocka_unit_test(test_tune_fit__nothing_that_decides_and_is_slower_than_compile_is_tested),
        cmocka_unit_test(test_tune_fit__the_safest_bits_alone_are_tested_first),
        cmocka_unit_test(test_tune_fit__both_plans_that_are_always_tested_have_room),
        cmocka_unit_test(test_tune_fit__a_refusal_names_the_plan_that_its_advice_is_about),
        cmocka_unit_test(test_tune_fit__windows_that_were_asked_for_are_all_taken),
        cmocka_unit_test(test_tune_fit__what_is_as_fast_as_compile_is_tested_where_safer_is_slower),
        cmocka_unit_test(test_tune_fit__a_slower_winner_is_refused_unless_compile_is_refuted),
        cmocka_unit_test(test_tune_fit__a_plan_that_is_left_alone_is_tried_with_routes),
        cmocka_unit_test(test_tune_fit__a_scorer_chooses_what_an_engine_chooses),
        cmocka_unit_test(test_tune_fit__tries_between_what_the_selection_part_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
