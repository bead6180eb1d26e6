#include "compiler/tune/tune.h"

#include "compiler/certify/sequence.h"
#include "formats/base/memory.h"
#include "profiler/evaluate/score.h"
#include "runtime/policy/route_settings.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Thousandths: L of cache-prior and T1 of hobbit, from mild to strong; 0 = none of it. Where a walk along the
 * priors ends, one half way back is tried too. */
static const uint32_t priors[] = {0, 20, 50, 80, 110, 150, 200, 250, 300, 400};
static const uint32_t scores[] = {0, 900, 800, 600, 400};
#define N_PRIOR (sizeof priors / sizeof *priors)
#define N_SCORE (sizeof scores / sizeof *scores)
/* Passes of the certificate part: the original and no decisions too. */
#define MAX_TESTS (MOEC_MAX_SEQUENCE + 2)
_Static_assert((N_PRIOR + 1) * N_SCORE <= MOEC_TUNE_MAX_CANDIDATES, "there is room for all candidates");

/* A part of the windows with what evaluates on it. Zero-initialised before it is opened. */
struct part {
    struct moec_windows windows;
    struct moec_scorer *scorer;
    double *reference_nll;        /* (W), owned */
    struct moec_measure measured; /* (W) each, owned: of the last run */
    const char *phase;
};

struct tune {
    const struct moec_tune_inputs *inputs;
    const struct moec_tune_options *options;
    const struct moec_progress *progress;
    struct moec_tune_report *report;
    struct part part;             /* the one at work */
    struct moec_route route;      /* of the run at work; the scorer borrows it */
    uint32_t n_search, n_certify; /* windows of these parts */
};

/* ---- progress ---- */

static enum moec_status report_pass(void *context, const char *phase, double done, double total)
{
    const struct tune *tune = context;
    const double n = tune->part.windows.n_window;
    (void)phase;
    if (tune->progress->report == NULL)
        return MOEC_OK;
    return tune->progress->report(tune->progress->context, tune->part.phase, done * n, total * n);
}

/* Passes of both parts that are still to come: at most, since a walk ends where the loss is spent and tests
 * end where one fails. */
static void expect(const struct tune *tune, double n_search, double n_certify)
{
    if (tune->progress->expect != NULL)
        tune->progress->expect(tune->progress->context,
                               n_search * tune->n_search + n_certify * tune->n_certify);
}

static void say(const struct tune *tune, const char *line)
{
    if (tune->progress->note != NULL)
        tune->progress->note(tune->progress->context, line);
}

/* ---- settings ---- */

const char *moec_tune_name(const struct moec_decision_settings *settings,
                           char text[static MOEC_TUNE_NAME_BYTES])
{
    const bool has_both = settings->route[0] != '\0' && settings->precision[0] != '\0';
    (void)snprintf(text, MOEC_TUNE_NAME_BYTES, "%s%s%s", settings->route, has_both ? " with " : "",
                   settings->precision);
    return text[0] != '\0' ? text : "none";
}

/* Of so many thousandths; 0 and 0: what counts misses and decides nothing. */
static struct moec_decision_settings settings_of(const struct moec_tune_options *options, uint32_t prior,
                                                 uint32_t score)
{
    struct moec_decision_settings settings = options->shared;
    if (prior > 0)
        (void)snprintf(settings.route, sizeof settings.route, "cache-prior:%g", prior * 1e-3);
    else
        settings.keep_top = 0;
    if (score > 0)
        (void)snprintf(settings.precision, sizeof settings.precision, "hobbit:%g:1", score * 1e-3);
    else
        settings.n_low_slots = settings.low_bits = 0;
    return settings;
}

static enum moec_status read_settings(const struct tune *tune, const struct moec_decision_settings *settings,
                                      struct moec_route *route, struct moec_error *err)
{
    const struct moec_bundle *bundle = tune->inputs->bundle->bundle;
    return moec_route_from_settings(settings, &bundle->config, &bundle->paths, bundle->file.path, route, err);
}

/* ---- measuring ---- */

static void close_part(struct part *part)
{
    moec_scorer_free(part->scorer);
    moec_windows_release(&part->windows);
    free(part->reference_nll);
    free(part->measured.nll);
    free(part->measured.kl);
    memset(part, 0, sizeof *part);
}

/* Evaluates the original on a part. */
static enum moec_status open_part(struct tune *tune, enum moec_part which, struct moec_error *err)
{
    struct part *part = &tune->part;
    const struct moec_source *bundle = tune->inputs->bundle, *original = tune->inputs->original;
    const struct moec_progress progress = {.report = report_pass, .context = tune};
    close_part(part);
    part->phase = "original";
    MOEC_TRY(moec_windows_part(tune->inputs->windows, which, &part->windows, err));
    const uint64_t n = part->windows.n_window;
    MOEC_TRY(moec_alloc((void **)&part->reference_nll, n, sizeof(double), "window losses", err));
    MOEC_TRY(moec_alloc((void **)&part->measured.nll, n, sizeof(double), "window losses", err));
    MOEC_TRY(moec_alloc((void **)&part->measured.kl, n, sizeof(double), "window losses", err));
    const struct moec_scorer_options options = {
        .kernels = tune->options->kernels,
        .n_threads = tune->options->n_threads,
        .reference_limit_bytes = tune->options->reference_bytes,
        .int8 = tune->options->int8,
        .record_bytes = {bundle->record_bytes[0], bundle->record_bytes[1]},
    };
    MOEC_TRY(
        moec_scorer_create(bundle->model, bundle->experts, &part->windows, &options, &part->scorer, err));
    MOEC_TRY(moec_scorer_set_reference(part->scorer, original->model, original->experts, part->reference_nll,
                                       &progress, err));
    part->phase = which == MOEC_PART_SEARCH ? "search" : "certificate";
    return MOEC_OK;
}

static enum moec_status measure(struct tune *tune, const struct moec_decision_settings *settings,
                                struct moec_loss *loss, struct moec_decision_traffic *traffic,
                                struct moec_error *err)
{
    struct part *part = &tune->part;
    const struct moec_progress progress = {.report = report_pass, .context = tune};
    const uint32_t n_layer = moec_config_moe_count(&tune->inputs->bundle->bundle->config);
    struct moec_loss_options loss_options = moec_loss_options_default();
    loss_options.confidence = tune->options->confidence;
    MOEC_TRY(read_settings(tune, settings, &tune->route, err));
    MOEC_TRY(moec_scorer_set_route(part->scorer, &tune->route, err));
    MOEC_TRY(moec_scorer_run(part->scorer, &part->measured, &progress, err));
    const struct moec_route_counts counts = moec_scorer_route_counts(part->scorer);
    *traffic = (struct moec_decision_traffic){.n_taken = counts.n_taken,
                                              .n_missed = counts.n_missed,
                                              .token_bytes = moec_route_token_bytes(&counts, n_layer)};
    const struct moec_loss_windows windows = moec_windows_loss_windows(&part->windows);
    return moec_loss_measure(&windows, part->reference_nll, part->measured.nll, part->measured.kl,
                             &loss_options, loss, err);
}

/* ---- the search ---- */

static enum moec_status try_candidate(struct tune *tune, const struct moec_decision_settings *settings,
                                      struct moec_tune_candidate *candidate, struct moec_error *err)
{
    char name[MOEC_TUNE_NAME_BYTES], line[192];
    *candidate = (struct moec_tune_candidate){.settings = *settings};
    MOEC_TRY(measure(tune, settings, &candidate->search, &candidate->traffic, err));
    (void)snprintf(line, sizeof line, "%s: loss %.3f%%, at most %.3f%%, %.1f KiB a token",
                   moec_tune_name(settings, name), 100 * candidate->search.loss, 100 * candidate->search.high,
                   candidate->traffic.token_bytes / 1024);
    say(tune, line);
    return MOEC_OK;
}

static enum moec_status try_next(struct tune *tune, uint32_t prior, uint32_t score, bool *is_spent,
                                 struct moec_error *err)
{
    struct moec_tune_report *report = tune->report;
    const struct moec_decision_settings settings = settings_of(tune->options, prior, score);
    struct moec_tune_candidate *candidate = &report->candidates[report->n_candidate];
    MOEC_TRY(try_candidate(tune, &settings, candidate, err));
    report->n_candidate++;
    *is_spent = candidate->search.loss > tune->options->max_loss;
    return MOEC_OK;
}

/* Priors with one score of hobbit, from none on; with score 0 from the first on. Stronger settings lose more:
 * the walk ends with the first one beyond the target, and one half way back. `n_later` candidates come after
 * the walk at most. */
static enum moec_status walk(struct tune *tune, uint32_t score, size_t n_prior, size_t n_later,
                             bool *is_spent, struct moec_error *err)
{
    size_t p = score == 0 ? 1 : 0;
    *is_spent = false;
    for (; p < n_prior && !*is_spent; p++) {
        expect(tune, (double)(n_prior - p + 1 + n_later), MAX_TESTS);
        MOEC_TRY(try_next(tune, priors[p], score, is_spent, err));
    }
    bool is_half_spent = false;
    if (*is_spent && p > 1)
        MOEC_TRY(try_next(tune, (priors[p - 2] + priors[p - 1]) / 2, score, &is_half_spent, err));
    /* What even no prior keeps within the target, no stronger score does. */
    *is_spent = *is_spent && p == 1;
    return MOEC_OK;
}

static enum moec_status search(struct tune *tune, struct moec_error *err)
{
    const struct moec_tune_options *options = tune->options;
    struct moec_tune_report *report = tune->report;
    const size_t n_prior = options->with_route ? N_PRIOR : 1, n_score = options->with_precision ? N_SCORE : 1;
    bool is_spent = false;
    expect(tune, (double)((n_prior + 1) * n_score) + 1, MAX_TESTS);
    MOEC_TRY(open_part(tune, MOEC_PART_SEARCH, err));
    const struct moec_decision_settings plain = settings_of(options, 0, 0);
    MOEC_TRY(try_candidate(tune, &plain, &report->plain, err));
    if (report->plain.search.loss > options->max_loss)
        return MOEC_OK;
    for (size_t s = 0; s < n_score && !is_spent; s++)
        MOEC_TRY(walk(tune, scores[s], n_prior, (n_prior + 1) * (n_score - s - 1), &is_spent, err));
    return MOEC_OK;
}

/* Whole bytes a token, at least one: sizes of a sequence are compared by ratio. */
static uint64_t bytes_of(const struct moec_tune_candidate *candidate)
{
    return candidate->traffic.token_bytes > 1 ? (uint64_t)llround(candidate->traffic.token_bytes) : 1;
}

/* Whether `a` makes `b` pointless; of equals the first one stays. */
static bool is_better(const struct moec_tune_candidate *a, const struct moec_tune_candidate *b)
{
    const bool is_equal = bytes_of(a) == bytes_of(b) && a->search.loss == b->search.loss;
    return bytes_of(a) <= bytes_of(b) && a->search.loss <= b->search.loss && (!is_equal || a < b);
}

/* Places of the front's candidates, by falling bytes. Returns how many there are. */
static size_t list_front(struct moec_tune_report *report, double max_loss, uint32_t *places)
{
    size_t n = 0;
    for (uint32_t i = 0; i < report->n_candidate; i++) {
        struct moec_tune_candidate *candidate = &report->candidates[i];
        candidate->is_on_front = candidate->search.loss <= max_loss;
        for (uint32_t j = 0; j < report->n_candidate && candidate->is_on_front; j++)
            candidate->is_on_front = j == i || !is_better(&report->candidates[j], candidate);
        if (!candidate->is_on_front)
            continue;
        size_t at = n++;
        for (; at > 0 && bytes_of(&report->candidates[places[at - 1]]) < bytes_of(candidate); at--)
            places[at] = places[at - 1];
        places[at] = i;
    }
    return n;
}

/* The front's safest, some between, and its smallest. */
static void make_sequence(struct tune *tune)
{
    struct moec_tune_report *report = tune->report;
    uint32_t places[MOEC_TUNE_MAX_CANDIDATES];
    struct moec_sequence_candidate front[MOEC_TUNE_MAX_CANDIDATES];
    bool taken[MOEC_TUNE_MAX_CANDIDATES];
    const double max_loss = tune->options->max_loss;
    const size_t n = list_front(report, max_loss, places);
    if (n == 0)
        return;
    for (size_t i = 0; i < n; i++) {
        const struct moec_tune_candidate *candidate = &report->candidates[places[i]];
        front[i] = (struct moec_sequence_candidate){.n_bytes = bytes_of(candidate),
                                                    .difference = candidate->search.difference};
    }
    const struct moec_sequence_spacing spacing =
        moec_sequence_spacing_of(log1p(max_loss), &report->candidates[places[n - 1]].search,
                                 tune->part.windows.n_window, tune->n_certify, tune->options->confidence);
    moec_sequence_choose(front, n, &spacing, front[n - 1].n_bytes, front[0].n_bytes, taken);
    for (size_t i = 0; i < n; i++)
        if (taken[i] || i == 0 || i + 1 == n)
            report->sequence[report->n_sequence++] = places[i];
}

/* ---- the certificate ---- */

/* As compile's: bundles with the same one were certified on the same windows. */
static void digest_part(const struct tune *tune, uint8_t digest[static MOEC_SHA256_BYTES])
{
    const struct moec_windows *windows = &tune->part.windows;
    struct moec_sha256 sha;
    moec_sha256_init(&sha);
    moec_sha256_update(&sha, tune->inputs->data_digest, MOEC_SHA256_BYTES);
    moec_sha256_update_u64(&sha, windows->seq_len_tokens);
    for (uint32_t w = 0; w < windows->n_window; w++)
        moec_sha256_update_u64(&sha, windows->index[w]);
    moec_sha256_finish(&sha, digest);
}

static void fill_certificate(const struct tune *tune, const struct moec_loss *loss,
                             const struct moec_loss *search, struct moec_certificate *certificate)
{
    *certificate = (struct moec_certificate){
        .present = true,
        .metric = "perplexity",
        .reference = loss->reference,
        .compiled = loss->compiled,
        .loss = loss->loss,
        .loss_low = loss->low,
        .loss_high = loss->high,
        .search_loss = search->loss,
        .search_loss_high = search->high,
        .target = tune->options->max_loss,
        .confidence = tune->options->confidence,
        .mean_kl = loss->mean_kl,
        .n_window = loss->n_window,
        .n_token = loss->n_token,
        .seq_len_tokens = tune->part.windows.seq_len_tokens,
        .n_sequence = tune->report->n_sequence,
    };
    memcpy(certificate->data_digest, tune->inputs->data_digest, MOEC_SHA256_BYTES);
    (void)snprintf(certificate->data_name, sizeof certificate->data_name, "%s", tune->inputs->data_name);
    (void)snprintf(certificate->arithmetic, sizeof certificate->arithmetic, "%s",
                   tune->options->int8 ? MOEC_CERTIFICATE_INT8 : MOEC_CERTIFICATE_CANONICAL);
    digest_part(tune, certificate->part_digest);
}

/* The search has found nothing within the target: the certificate part stays unseen. */
static enum moec_status refuse_search(const struct tune *tune, struct moec_error *err)
{
    const struct moec_tune_report *report = tune->report;
    const struct moec_loss *plain = &report->plain.search;
    double least = INFINITY;
    for (uint32_t i = 0; i < report->n_candidate; i++)
        least = fmin(least, report->candidates[i].search.high);
    if (report->n_candidate == 0)
        least = plain->high;
    return moec_fail(
        err, MOEC_ERR_TARGET,
        "the bundle itself, without decisions, loses %.3f%% on the search part, with %g%% "
        "confidence at most %.3f%%, and no decision stays within the target of %.3f%%; nothing was "
        "written: compile with a smaller --max-loss, or ask for --max-loss %.1f%% or more here",
        100 * plain->loss, 100 * tune->options->confidence, 100 * plain->high, 100 * tune->options->max_loss,
        ceil(1e3 * least) / 10);
}

static enum moec_status refuse_test(const struct tune *tune, const struct moec_loss *plain,
                                    const struct moec_loss *safest, struct moec_error *err)
{
    char advice[MOEC_SEQUENCE_ADVICE_BYTES], name[MOEC_TUNE_NAME_BYTES];
    const double target = tune->options->max_loss;
    return moec_fail(
        err, MOEC_ERR_TARGET,
        "the bundle itself, without decisions, loses %.3f%% on the certificate part, at most %.3f%%; with "
        "the mildest decisions of the sequence, %s, it loses %.3f%%, with %g%% confidence at most %.3f%%; "
        "the "
        "target is %.3f%%; nothing was written: %s",
        100 * plain->loss, 100 * plain->high,
        moec_tune_name(&tune->report->candidates[tune->report->sequence[0]].settings, name),
        100 * safest->loss, 100 * tune->options->confidence, 100 * safest->high, 100 * target,
        moec_sequence_advice(safest, target, "windows", advice));
}

/* Tests the sequence until one fails; the last that passed becomes the report's. */
static enum moec_status test_all(struct tune *tune, struct moec_loss *first, uint32_t *n_passed,
                                 struct moec_error *err)
{
    struct moec_tune_report *report = tune->report;
    struct moec_bundle_decisions *decisions = &report->decisions;
    struct moec_sequence_step steps[MOEC_MAX_SEQUENCE];
    for (uint32_t i = 0; i < report->n_sequence; i++) {
        const struct moec_tune_candidate *candidate = &report->candidates[report->sequence[i]];
        steps[i] = moec_sequence_step_of(bytes_of(candidate), &candidate->search);
    }
    for (*n_passed = 0; *n_passed < report->n_sequence; (*n_passed)++) {
        const struct moec_tune_candidate *candidate = &report->candidates[report->sequence[*n_passed]];
        struct moec_sequence_step *step = &steps[*n_passed];
        struct moec_decision_traffic traffic;
        struct moec_loss loss;
        char name[MOEC_TUNE_NAME_BYTES], line[192];
        expect(tune, 0, report->n_sequence - *n_passed);
        MOEC_TRY(measure(tune, &candidate->settings, &loss, &traffic, err));
        moec_sequence_judge(step, &loss, tune->options->max_loss, true);
        if (*n_passed == 0)
            *first = loss;
        const bool has_passed = step->result == MOEC_SEQUENCE_PASSED;
        (void)snprintf(line, sizeof line,
                       "test %" PRIu32 " of %" PRIu32 ", %s: loss %.3f%%, at most %.3f%%: %s", *n_passed + 1,
                       report->n_sequence, moec_tune_name(&candidate->settings, name), 100 * loss.loss,
                       100 * loss.high, has_passed ? "proven" : "not proven");
        say(tune, line);
        if (!has_passed)
            break;
        decisions->settings = candidate->settings;
        decisions->traffic = traffic;
        fill_certificate(tune, &loss, &candidate->search, &decisions->certificate);
    }
    if (*n_passed > 0)
        steps[*n_passed - 1].is_chosen = true;
    memcpy(decisions->certificate.sequence, steps, report->n_sequence * sizeof *steps);
    return MOEC_OK;
}

static enum moec_status certify(struct tune *tune, struct moec_error *err)
{
    struct moec_tune_report *report = tune->report;
    const struct moec_certificate *own = &tune->inputs->bundle->bundle->certificate;
    struct moec_loss plain, first = {0};
    uint32_t n_passed = 0;
    expect(tune, 0, report->n_sequence + 2);
    MOEC_TRY(open_part(tune, MOEC_PART_CERTIFICATE, err));
    /* No test: what the bundle loses and misses without decisions, to be shown beside them. */
    MOEC_TRY(measure(tune, &report->plain.settings, &plain, &report->decisions.plain_traffic, err));
    MOEC_TRY(test_all(tune, &first, &n_passed, err));
    report->decisions.plain_loss = plain.loss;
    report->decisions.plain_low = plain.low;
    report->decisions.plain_high = plain.high;
    if (n_passed == 0)
        return refuse_test(tune, &plain, &first, err);
    report->is_reused =
        own->present && own->n_sequence > 0 &&
        memcmp(own->part_digest, report->decisions.certificate.part_digest, sizeof own->part_digest) == 0;
    return MOEC_OK;
}

/* What would only show after the search. */
static enum moec_status check(const struct tune *tune, struct moec_error *err)
{
    const struct moec_tune_options *options = tune->options;
    struct moec_route route;
    const struct moec_decision_settings settings =
        settings_of(options, options->with_route ? priors[1] : 0, options->with_precision ? scores[1] : 0);
    return read_settings(tune, &settings, &route, err);
}

enum moec_status moec_tune(const struct moec_tune_inputs *inputs, const struct moec_tune_options *options,
                           const struct moec_progress *progress, struct moec_tune_report *report,
                           struct moec_error *err)
{
    static const struct moec_progress silent = {0};
    struct tune tune = {.inputs = inputs,
                        .options = options,
                        .progress = progress != NULL ? progress : &silent,
                        .report = report};
    enum moec_status status = MOEC_OK;
    *report = (struct moec_tune_report){0};
    for (uint32_t w = 0; w < inputs->windows->n_window; w++) {
        tune.n_search += moec_part_has(MOEC_PART_SEARCH, inputs->windows->part, w);
        tune.n_certify += moec_part_has(MOEC_PART_CERTIFICATE, inputs->windows->part, w);
    }
    MOEC_TRY_OUT(check(&tune, err));
    MOEC_TRY_OUT(search(&tune, err));
    make_sequence(&tune);
    if (report->n_sequence == 0)
        status = refuse_search(&tune, err);
    else
        status = certify(&tune, err);
out:
    close_part(&tune.part);
    return status;
}
