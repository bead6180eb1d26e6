/* One part is open at a time, and with it one scorer that holds the original's probabilities. References
 * that are kept, one a part, outlive the scorer. Digests name all windows of a part, not only
 * those tested, so that reuse is seen at any prefix. */
#include "compiler/certify/trial.h"

#include "compiler/certify/promise.h"
#include "profiler/evaluate/chance.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void moec_trial_init(const struct moec_trial_inputs *inputs, const struct moec_trial_options *options,
                     const struct moec_progress *progress, struct moec_trial *trial)
{
    static const struct moec_progress silent = {0};
    *trial = (struct moec_trial){
        .inputs = inputs, .options = options, .progress = progress != NULL ? progress : &silent};
    for (uint32_t w = 0; w < inputs->windows->n_window; w++) {
        trial->n_search += moec_part_has(MOEC_PART_SEARCH, inputs->windows->part, w);
        trial->n_select += moec_part_has(MOEC_PART_SELECT, inputs->windows->part, w);
        trial->n_certify += moec_part_has(MOEC_PART_CERTIFICATE, inputs->windows->part, w);
    }
}

/* ---- progress ---- */

static enum moec_status report_pass(void *context, const char *phase, double done, double total)
{
    const struct moec_trial *trial = context;
    const double n = trial->measured.windows.n_window;
    (void)phase;
    if (trial->progress->report == NULL)
        return MOEC_OK;
    return trial->progress->report(trial->progress->context, trial->phase, done * n, total * n);
}

uint32_t moec_trial_count(const struct moec_trial *trial, enum moec_part part)
{
    const uint32_t n = part == MOEC_PART_SEARCH   ? trial->n_search
                       : part == MOEC_PART_SELECT ? trial->n_select
                                                  : trial->n_certify;
    const uint32_t most = part == MOEC_PART_SEARCH   ? trial->most_search
                          : part == MOEC_PART_SELECT ? trial->most_select
                                                     : trial->most_certify;
    return most > 0 && most < n ? most : n;
}

void moec_trial_expect(const struct moec_trial *trial, double n_search, double n_certify)
{
    moec_progress_expect(trial->progress, n_search * moec_trial_count(trial, MOEC_PART_SEARCH) +
                                              n_certify * moec_trial_count(trial, MOEC_PART_CERTIFICATE));
}

void moec_trial_say(const struct moec_trial *trial, const char *line)
{
    if (trial->progress->note != NULL)
        trial->progress->note(trial->progress->context, line);
}

/* ---- a part ---- */

static void forget_kept(struct moec_trial *trial)
{
    for (int part = 0; part < MOEC_PART_COUNT; part++) {
        moec_scorer_reference_free(trial->kept[part].reference);
        free(trial->kept[part].nll);
        trial->kept[part] = (struct moec_trial_original){0};
    }
}

void moec_trial_close(struct moec_trial *trial)
{
    moec_measured_part_release(&trial->measured);
    forget_kept(trial);
}

void moec_trial_leave(struct moec_trial *trial)
{
    struct moec_trial_original *kept = &trial->kept[trial->part];
    if (trial->measured.scorer != NULL)
        kept->reference = moec_scorer_leave_reference(trial->measured.scorer);
    if (kept->reference != NULL) {
        kept->nll = trial->measured.reference_nll;
        trial->measured.reference_nll = NULL;
    }
    moec_measured_part_release(&trial->measured);
}

static struct moec_chance chance_of(const struct moec_trial *trial)
{
    return (struct moec_chance){.original = moec_profile_perplexity(trial->measured.reference_nll,
                                                                    trial->measured.windows.scored,
                                                                    trial->measured.windows.n_window),
                                .guessing = trial->inputs->original->model->config.n_vocab,
                                .data_name = trial->inputs->data_name};
}

static enum moec_status check_chance(const struct moec_trial *trial, struct moec_error *err)
{
    const struct moec_chance chance = chance_of(trial);
    char note[MOEC_CHANCE_NOTE_BYTES];
    MOEC_TRY(moec_chance_check(&chance, trial->options->goes_on_by_chance, note, err));
    if (note[0] != '\0')
        moec_trial_say(trial, note);
    return MOEC_OK;
}

/* The original on the part: what was kept of it, or now. */
static enum moec_status refer(struct moec_trial *trial, struct moec_error *err)
{
    const struct moec_source *original = trial->inputs->original;
    const struct moec_progress progress = {.report = report_pass, .context = trial};
    struct moec_trial_original *kept = &trial->kept[trial->part];
    if (kept->reference != NULL) {
        moec_scorer_use_reference(trial->measured.scorer, kept->reference);
        kept->reference = NULL;
        return MOEC_OK;
    }
    if (trial->leaves_original)
        return MOEC_OK;
    trial->phase = "original";
    MOEC_TRY(moec_scorer_set_reference(trial->measured.scorer, original->model, original->experts,
                                       trial->measured.reference_nll, &progress, err));
    return check_chance(trial, err);
}

enum moec_status moec_trial_open(struct moec_trial *trial, enum moec_part part, struct moec_error *err)
{
    const struct moec_source *bundle = trial->inputs->bundle;
    moec_measured_part_release(&trial->measured);
    if (part == MOEC_PART_CERTIFICATE && trial->part != part)
        forget_kept(trial);
    trial->part = part;
    trial->measured.reference_nll = trial->kept[part].nll;
    trial->kept[part].nll = NULL;
    MOEC_TRY(moec_windows_part(trial->inputs->windows, part, &trial->measured.windows, err));
    MOEC_TRY(moec_measured_part_begin(&trial->measured, moec_trial_count(trial, part), err));
    const struct moec_scorer_options options = {
        .by = {.kernels = trial->options->kernels,
               .n_threads = trial->options->n_threads,
               .arithmetic = trial->options->arithmetic},
        .reference_limit_bytes = trial->options->reference_bytes,
        .decisions = {.record_bytes = {bundle->record_bytes[0], bundle->record_bytes[1]},
                      .n_prompt = trial->options->n_prompt},
        .sparsity = trial->options->sparsity,
    };
    MOEC_TRY(moec_scorer_create(bundle->model, bundle->experts, &trial->measured.windows, &options,
                                &trial->measured.scorer, err));
    MOEC_TRY(refer(trial, err));
    trial->phase = part == MOEC_PART_SEARCH   ? "search"
                   : part == MOEC_PART_SELECT ? "selection"
                                              : "certificate";
    return MOEC_OK;
}

enum moec_status moec_trial_run(struct moec_trial *trial, const struct moec_scorer_variation *variation,
                                const struct moec_measure *measure, struct moec_error *err)
{
    const struct moec_progress progress = {.report = report_pass, .context = trial};
    return moec_scorer_run_varied(trial->measured.scorer, variation, measure, &progress, err);
}

enum moec_status moec_trial_measure(struct moec_trial *trial, struct moec_loss *loss, struct moec_error *err)
{
    static const struct moec_scorer_variation none = {0};
    MOEC_TRY(moec_trial_run(trial, &none, &trial->measured.losses, err));
    return moec_trial_weigh(trial, loss, err);
}

enum moec_status moec_trial_weigh(const struct moec_trial *trial, struct moec_loss *loss,
                                  struct moec_error *err)
{
    return moec_measured_part_loss(&trial->measured, trial->options->confidence, loss, err);
}

/* ---- the certificate ---- */

void moec_trial_certify(const struct moec_trial *trial, const struct moec_loss *loss,
                        const struct moec_loss *search, struct moec_certificate *certificate)
{
    const struct moec_chance chance = chance_of(trial);
    const struct moec_promise promise = {.metric = "perplexity",
                                         .data_name = trial->inputs->data_name,
                                         .data_digest = trial->inputs->data_digest,
                                         .seq_len_tokens = trial->measured.windows.seq_len_tokens,
                                         .arithmetic = trial->options->arithmetic,
                                         .target = trial->options->max_loss,
                                         .confidence = trial->options->confidence,
                                         .is_chance = moec_chance_is(&chance)};
    moec_promise_certify(&promise, loss, search, certificate);
    /* Of all windows of the part: a certificate on the first of them warns of one on more. */
    struct moec_windows whole = trial->measured.windows;
    whole.n_window = trial->measured.n_window;
    moec_promise_digest_windows(trial->inputs->data_digest, &whole, certificate->part_digest);
}

/* ---- the tests ---- */

struct trial_tests {
    struct moec_trial *trial;
    const struct moec_trial_sequence *sequence;
    const struct moec_sequence_step *steps;
    struct moec_loss *first;
    struct moec_certificate *certificate;
};

static enum moec_status measure_test(void *context, uint32_t i, struct moec_loss *loss,
                                     struct moec_error *err)
{
    const struct trial_tests *tests = context;
    moec_trial_expect(tests->trial, 0, tests->sequence->n - i);
    if (tests->sequence->measure != NULL)
        return tests->sequence->measure(tests->sequence->context, i, loss, err);
    MOEC_TRY(tests->sequence->prepare(tests->sequence->context, i, err));
    return moec_trial_measure(tests->trial, loss, err);
}

static void take_test(void *context, uint32_t i, const struct moec_loss *loss)
{
    const struct trial_tests *tests = context;
    const struct moec_trial_sequence *sequence = tests->sequence;
    const bool has_passed = tests->steps[i].result == MOEC_SEQUENCE_PASSED;
    char line[192];
    (void)snprintf(line, sizeof line,
                   "test %" PRIu32 " of %" PRIu32 ", %s: loss %.3f%% (upper bound %.3f%%): %s", i + 1,
                   sequence->n, sequence->name(sequence->context, i), 100 * loss->loss, 100 * loss->high,
                   has_passed ? "proven" : "not proven");
    moec_trial_say(tests->trial, line);
    if (i == 0)
        *tests->first = *loss;
    if (!has_passed)
        return;
    sequence->passed(sequence->context, i);
    moec_trial_certify(tests->trial, loss, sequence->search[i], tests->certificate);
}

enum moec_status moec_trial_test(struct moec_trial *trial, const struct moec_trial_sequence *sequence,
                                 struct moec_loss *first, uint32_t *n_passed,
                                 struct moec_certificate *certificate, struct moec_error *err)
{
    struct moec_sequence_step steps[MOEC_MAX_SEQUENCE];
    struct trial_tests context = {trial, sequence, steps, first, certificate};
    const struct moec_sequence_tests tests = {.steps = steps,
                                              .n = sequence->n,
                                              .target = trial->options->max_loss,
                                              .has_p = true,
                                              .measure = measure_test,
                                              .judged = take_test,
                                              .context = &context};
    for (uint32_t i = 0; i < sequence->n; i++)
        steps[i] = moec_sequence_step_of(sequence->n_bytes[i], sequence->search[i]);
    MOEC_TRY(moec_sequence_test(&tests, n_passed, err));
    if (*n_passed == 0)
        return MOEC_OK;
    steps[*n_passed - 1].is_chosen = true;
    certificate->n_sequence = sequence->n;
    memcpy(certificate->sequence, steps, sequence->n * sizeof *steps);
    return MOEC_OK;
}

enum moec_status moec_trial_refuse(const struct moec_trial *trial, const struct moec_trial_missed *missed,
                                   struct moec_error *err)
{
    const struct moec_loss *safest = missed->safest, *plain = missed->plain;
    char advice[MOEC_SEQUENCE_ADVICE_BYTES];
    const double target = trial->options->max_loss;
    return moec_fail(
        err, MOEC_ERR_TARGET,
        "on the certificate part, the loss with the mildest %s, %s, is %.3f%% (upper bound with %g%% "
        "confidence: %.3f%%), but the target is %.3f%%, so nothing was written. %s, the loss is %.3f%% "
        "(upper bound %.3f%%): %s",
        missed->kind, missed->mildest, 100 * safest->loss, 100 * trial->options->confidence,
        100 * safest->high, 100 * target, missed->alone, 100 * plain->loss, 100 * plain->high,
        moec_sequence_advice(safest, target, "windows", advice));
}

bool moec_trial_is_reused(const struct moec_trial *trial, const struct moec_certificate *certificate)
{
    const struct moec_certificate *own = &trial->inputs->bundle->bundle->certificate;
    return moec_promise_is_of_part(own, certificate->part_digest);
}
