/* Which variants of experts are fitted, where a loss says what plans may take. Fitting all of them takes half of a
 * compile, and a plan has one for each projection.
 *
 * Before the fit, harm is measured of plain codes that are quickly encoded. Fitted codes have a share of their error,
 * and those of more bits a share of that: so the harm of all variants is foretold, and with it what a plan takes that
 * loses as much as the target (moec_harm_choose). What plans of a third to 1.5 times as much take is wanted, for a
 * share that is not known yet, and for the safer plans of a certificate. Drafts have several losses: then from a
 * third of the least to 1.5 times the most.
 *
 * After the fit, the errors of what was fitted are known, and the harm of each unit follows from them: what was
 * measured before, as many times as the error is of that of the plain codes (moec_gptq_noise). If plans near the target
 * then take something else in more than a few places, this is fitted too. */
#include "compiler/compile/compile_wanted.h"

#include "compiler/compile/compile_dense_plan.h"
#include "compiler/compile/compile_part.h"
#include "compiler/compile/compile_stages.h"
#include "compiler/compile/compile_variants.h"
#include "formats/base/memory.h"

#include <math.h>
#include <string.h>

#define LOOK_ERROR   0.04   /* about, relative to the weights' square, of the codec that is looked at */
#define LOWEST_ERROR 0.0737 /* of shift codes of 2 bits (formats/codec/shift.h) */
#define FITTED_SHARE 0.5    /* of it that GPTQ leaves, before it is known */
#define LEAST        0.33   /* shares of the target: before the fit, */
#define MOST         1.5
#define LEAST_KNOWN  0.6 /* and afterwards */
#define MOST_KNOWN   1.0
#define FEW          64u /* one unit of so many may do without what it would take */

/* The KL that a loss leaves: about its logarithm (lua/policies/hull.lua). Of the least and the most that plans are
 * searched for, or of the target. */
static double kl_of(const struct moec_compile_run *run, double loss)
{
    return log1p(fmax(loss > 0 ? loss : run->options->target.max_loss, 0));
}

static size_t count_units(const struct moec_compile_run *run)
{
    return moec_plan_count(&run->report->plan) * MOEC_PROJECTION_COUNT;
}

/* ---- bytes ---- */

static enum moec_status list_dense_bytes(struct moec_compile_run *run, uint64_t *bytes,
                                         struct moec_error *err)
{
    const struct moec_compile_offer *offer = &run->offer;
    for (uint32_t d = 0; d < offer->n_matrix; d++)
        for (uint32_t i = 0; i < offer->n_dense_number; i++) {
            const uint32_t number = offer->dense_numbers[i];
            const struct moec_policy_matrix *matrix = &offer->matrices[d];
            struct moec_codec codec = {0};
            uint64_t *own = &bytes[(size_t)d * MOEC_CODEC_TABLE + number];
            MOEC_TRY(moec_compile_dense_codec(run, number, &codec, err));
            *own = number == 0 ? (uint64_t)matrix->rows * matrix->columns * offer->dense_bits[0] / 8
                               : matrix->rows * moec_codec_row_bytes(codec, matrix->columns);
        }
    return MOEC_OK;
}

/* `dense` is the caller's. */
static enum moec_status list_bytes(struct moec_compile_run *run, const struct moec_harm *harm,
                                   struct moec_harm_bytes *bytes, uint64_t **dense, struct moec_error *err)
{
    const struct moec_config *config = moec_checkpoint_config(run->checkpoint);
    *bytes = (struct moec_harm_bytes){0};
    for (int p = 0; p < MOEC_PROJECTION_COUNT; p++)
        for (uint32_t i = 0; i < run->offer.n_number; i++)
            bytes->experts[p][i] = config->n_ff_expert *
                                   moec_codec_row_bytes(run->codecs[run->offer.numbers[i]], config->n_embd);
    if (harm->n_dense == 0)
        return MOEC_OK;
    MOEC_TRY(moec_alloc((void **)dense, (uint64_t)harm->n_dense * MOEC_CODEC_TABLE, sizeof **dense,
                        "sizes of dense matrices", err));
    bytes->dense = *dense;
    return list_dense_bytes(run, *dense, err);
}

/* ---- what plans take ---- */

/* Adds to `wanted` what units take in plans of `least` to `most` nats, where it is fitted. */
static enum moec_status want_between(struct moec_compile_run *run, const struct moec_harm *harm, double least,
                                     double most, uint8_t *wanted, struct moec_error *err)
{
    const struct moec_compile_offer *offer = &run->offer;
    const size_t n = count_units(run);
    enum moec_status status = MOEC_OK;
    struct moec_harm_bytes bytes;
    uint64_t *dense = NULL;
    uint8_t *first = NULL, *last = NULL;
    MOEC_TRY_OUT(list_bytes(run, harm, &bytes, &dense, err));
    MOEC_TRY_OUT(moec_alloc((void **)&first, n, 1, "what plans take", err));
    MOEC_TRY_OUT(moec_alloc((void **)&last, n, 1, "what plans take", err));
    moec_harm_choose(harm, &bytes, most, first);
    moec_harm_choose(harm, &bytes, least, last);
    for (size_t at = 0; at < n; at++)
        for (uint32_t i = first[at]; i <= last[at]; i++)
            if (offer->fitted[offer->numbers[i]] > 0)
                wanted[at] = (uint8_t)(wanted[at] | 1u << (offer->fitted[offer->numbers[i]] - 1u));
out:
    free(dense);
    free(first);
    free(last);
    return status;
}

/* ---- before the fit ---- */

/* Of the codec that is looked at something is measured. */
static double look_error(void *context, uint32_t ordinal, uint32_t expert, enum moec_projection projection,
                         uint32_t number)
{
    (void)context;
    (void)ordinal;
    (void)expert;
    (void)projection;
    return number == MOEC_COMPILE_LOOK_NUMBER ? 1 : -1;
}

static enum moec_status look(struct moec_compile_run *run, struct moec_error *err)
{
    const uint8_t numbers[] = {MOEC_COMPILE_LOOK_NUMBER, 16};
    const uint32_t bits[] = {3, 16};
    const struct moec_compile_harm experts = {
        .numbers = numbers, .bits = bits, .n_number = 2, .is_look = true, .expert_error = look_error};
    struct moec_codec codec;
    MOEC_TRY(moec_compile_look_codec(&codec, err));
    MOEC_TRY(moec_variants_set_codec(run->variants, MOEC_COMPILE_LOOK_NUMBER, codec, err));
    return moec_compile_measure_harm(run, &experts, &run->offer.look, err);
}

/* The harm of a unit at the lowest number, before its fit. */
static double foretold(const struct moec_compile_run *run, uint32_t s, uint32_t e, enum moec_projection p)
{
    return FITTED_SHARE * LOWEST_ERROR / LOOK_ERROR * moec_harm_expert(&run->offer.look, s, e, p)[0];
}

/* The same at all numbers, as struct moec_harm has it; the caller's. */
static enum moec_status foretell(const struct moec_compile_run *run, struct moec_harm *harm,
                                 struct moec_error *err)
{
    const struct moec_compile_offer *offer = &run->offer;
    *harm = (struct moec_harm){
        .n_layer = offer->look.n_layer, .n_expert = offer->look.n_expert, .n_number = offer->n_number};
    MOEC_TRY(moec_alloc((void **)&harm->experts, count_units(run) * harm->n_number, sizeof *harm->experts,
                        "the model of harm", err));
    for (uint32_t s = 0; s < harm->n_layer; s++)
        for (uint32_t e = 0; e < harm->n_expert; e++)
            for (int p = 0; p < MOEC_PROJECTION_COUNT; p++)
                for (uint32_t i = 0; i < harm->n_number; i++)
                    moec_harm_expert(harm, s, e, (enum moec_projection)p)[i] =
                        foretold(run, s, e, (enum moec_projection)p) *
                        pow(0.25, (double)offer->bits[i] - offer->bits[0]);
    return MOEC_OK;
}

enum moec_status moec_compile_wanted_foretell(struct moec_compile_run *run, uint8_t **wanted,
                                              struct moec_error *err)
{
    struct moec_harm harm = {0};
    MOEC_TRY(moec_alloc((void **)wanted, count_units(run), 1, "what is wanted of experts", err));
    enum moec_status status = look(run, err);
    if (status == MOEC_OK)
        status = foretell(run, &harm, err);
    if (status == MOEC_OK)
        status = want_between(run, &harm, LEAST * kl_of(run, run->least_loss),
                              MOST * kl_of(run, run->most_loss), *wanted, err);
    moec_harm_release(&harm);
    if (status != MOEC_OK) {
        free(*wanted);
        *wanted = NULL;
    }
    return status;
}

/* ---- after it ---- */

/* The harm of a unit at each number: by its own error where it is fitted, by a quarter for each bit from the fitted
 * number that is nearest below, else above. `fitted` says which have their own. */
static void list_harm(const struct moec_compile_run *run, uint32_t s, uint32_t e, enum moec_projection p,
                      double *harm, bool fitted[static MOEC_CODEC_TABLE])
{
    const struct moec_compile_offer *offer = &run->offer;
    const double look = moec_harm_expert(&offer->look, s, e, p)[0];
    double known = foretold(run, s, e, p), known_bits = offer->bits[0];
    for (uint32_t i = offer->n_number; i-- > 0;) { /* the lowest that is fitted */
        const double error = moec_compile_expert_error(run, s, e, p, offer->numbers[i], true);
        if (error > 0) {
            known = look * error;
            known_bits = offer->bits[i];
        }
    }
    for (uint32_t i = 0; i < offer->n_number; i++) {
        const double error = moec_compile_expert_error(run, s, e, p, offer->numbers[i], true);
        fitted[i] = error >= 0 || offer->fitted[offer->numbers[i]] == 0;
        if (error > 0) {
            known = look * error;
            known_bits = offer->bits[i];
        }
        harm[i] = known * pow(0.25, (double)offer->bits[i] - known_bits);
    }
}

/* Into offer.harm; with `only_fitted` infinite where there is no fit. Returns how many units lack something that
 * `wanted` (may be NULL) has of them, and leaves just this in it. */
static size_t weigh(struct moec_compile_run *run, bool only_fitted, uint8_t *wanted)
{
    const struct moec_compile_offer *offer = &run->offer;
    const struct moec_harm *harm = &offer->harm;
    const bool has_gate = !moec_checkpoint_config(run->checkpoint)->mlp.plain;
    size_t n_lacking = 0, at = 0;
    for (uint32_t s = 0; s < harm->n_layer; s++)
        for (uint32_t e = 0; e < harm->n_expert; e++)
            for (int p = 0; p < MOEC_PROJECTION_COUNT; p++, at++) {
                double *own = moec_harm_expert(harm, s, e, (enum moec_projection)p);
                bool fitted[MOEC_CODEC_TABLE];
                uint8_t has = 0;
                if (p == MOEC_PROJECTION_GATE && !has_gate)
                    continue;
                list_harm(run, s, e, (enum moec_projection)p, own, fitted);
                for (uint32_t i = 0; i < offer->n_number; i++) {
                    own[i] = only_fitted && !fitted[i] ? INFINITY : own[i];
                    if (fitted[i] && offer->fitted[offer->numbers[i]] > 0)
                        has = (uint8_t)(has | 1u << (offer->fitted[offer->numbers[i]] - 1u));
                }
                if (wanted != NULL) {
                    wanted[at] = (uint8_t)(wanted[at] & ~has);
                    n_lacking += wanted[at] != 0;
                }
            }
    return n_lacking;
}

static enum moec_status fit_more(struct moec_compile_run *run, const uint8_t *wanted, struct moec_error *err)
{
    struct moec_compile_part part = {0};
    moec_compile_begin(run, MOEC_STAGE_FIT_EXPERTS);
    enum moec_status status = moec_compile_part_make_fit(run, &part, err);
    if (status == MOEC_OK)
        status = moec_compile_fit_experts(run, &part, wanted, NULL, err);
    moec_compile_part_release(&part);
    return status;
}

/* What plans near the target take and is not fitted. */
static enum moec_status find_lacking(struct moec_compile_run *run, uint8_t *wanted, size_t *n_lacking,
                                     struct moec_error *err)
{
    const double least = LEAST_KNOWN * kl_of(run, run->least_loss),
                 most = MOST_KNOWN * kl_of(run, run->most_loss);
    memset(wanted, 0, count_units(run));
    (void)weigh(run, false, NULL);
    MOEC_TRY(want_between(run, &run->offer.harm, least, most, wanted, err));
    *n_lacking = weigh(run, false, wanted);
    return MOEC_OK;
}

enum moec_status moec_compile_wanted_settle(struct moec_compile_run *run, struct moec_error *err)
{
    struct moec_compile_harm dense = {.has_dense = true, .expert_error = look_error};
    struct moec_harm harm = {0};
    enum moec_status status = MOEC_OK;
    uint8_t *wanted = NULL;
    MOEC_TRY(moec_alloc((void **)&wanted, count_units(run), 1, "what is wanted of experts", err));
    moec_compile_begin(run, MOEC_STAGE_HARM);
    MOEC_TRY_OUT(foretell(run, &harm, err));
    dense.experts = harm.experts;
    MOEC_TRY_OUT(moec_compile_measure_harm(run, &dense, &run->offer.harm, err));
    while (run->offer.n_fit < MOEC_COMPILE_MAX_FITS) {
        size_t n_lacking = 0;
        MOEC_TRY_OUT(find_lacking(run, wanted, &n_lacking, err));
        if (n_lacking <= count_units(run) / FEW)
            break;
        moec_compile_say(
            run,
            "plans near the target use codes that are not fitted yet in %zu of %zu matrices: these codes "
            "are fitted too",
            n_lacking, count_units(run));
        MOEC_TRY_OUT(fit_more(run, wanted, err));
    }
    (void)weigh(run, true, NULL);
out:
    moec_harm_release(&harm);
    free(wanted);
    return status;
}

bool moec_compile_is_fitted(const struct moec_compile_run *run, const struct moec_plan *plan)
{
    const struct moec_config *config = moec_checkpoint_config(run->checkpoint);
    const int first = config->mlp.plain ? MOEC_PROJECTION_UP : MOEC_PROJECTION_GATE;
    for (size_t i = 0; i < moec_plan_count(plan); i++)
        for (int p = first; p < MOEC_PROJECTION_COUNT; p++) {
            const uint32_t number = plan->experts[i].codecs[p];
            if (run->offer.n_fit > 0 && run->offer.fitted[number] > 0 &&
                moec_compile_expert_error(run, (uint32_t)(i / config->n_expert),
                                          (uint32_t)(i % config->n_expert), (enum moec_projection)p, number,
                                          true) < 0)
                return false;
        }
    return true;
}
