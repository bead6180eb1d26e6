/* Whether the router's last expert is the best that a token could take (cache-conditional experts, appendix
 * A, Fig. 11): in one MoE layer after the other, every expert is tried in the place of a token's last one,
 * the experts before it and their order staying as they are, and the router is right where no other makes the
 * token's own target likelier.
 *
 * An expert is tried for all tokens at once, so that a token's past has the same change in this layer. Where
 * it is among the token's experts already, nothing changes. Layers that route by token have no such choice.
 */
#include "profiler/profile/weight_study.h"

#include "formats/base/memory.h"
#include "profiler/evaluate/rank_windows.h"
#include "runtime/forward/pass/forward.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct trial {
    uint32_t layer, expert;
};

static void choose(const void *context, const struct moec_scored_token *token, uint32_t *experts, bool *skips)
{
    const struct trial *trial = context;
    moec_choice_top_k.choose(NULL, token, experts, skips);
    if (token->layer != trial->layer)
        return;
    for (uint32_t rank = 0; rank < token->top_k; rank++)
        if (experts[rank] == trial->expert)
            return;
    experts[token->top_k - 1] = trial->expert;
}

/* What one window adds. */
struct window_choice {
    uint64_t n_right;
    double gain;
};

struct choice_study {
    struct moec_weight_run *run;
    struct moec_rank_windows shared;
    struct {
        uint64_t n;               /* scored, of this rank's windows */
        double *original, *least; /* (n): NLL, owned */
    } tokens;
    struct window_choice *windows; /* (W), owned */
    struct moec_states hidden;
    uint32_t layer; /* that `hidden` enters */
    struct {
        double *share, *gain; /* (MoE layers), owned */
    } found;
};

/* Together: the layer's share and gain from those of the windows, in order. */
static enum moec_status add_windows(struct choice_study *study, uint32_t s, struct moec_error *err)
{
    const struct moec_rank_windows *shared = &study->shared;
    uint64_t n_right = 0, t = 0;
    double gain = 0;
    const double n_token = (double)moec_windows_scored_count(shared->all);
    memset(study->windows, 0, shared->n_all * sizeof *study->windows);
    for (uint32_t w = 0; w < moec_rank_windows_count(shared, shared->n_all); w++) {
        struct window_choice *own = &study->windows[moec_rank_windows_number(shared, w)];
        for (uint32_t i = 0; i < shared->own.scored[w]; i++, t++) {
            own->n_right += study->tokens.least[t] == study->tokens.original[t];
            own->gain += study->tokens.original[t] - study->tokens.least[t];
        }
    }
    MOEC_TRY(moec_ranks_gather(shared->ranks, study->windows, shared->n_all, sizeof *study->windows, err));
    for (uint32_t w = 0; w < shared->n_all; w++) {
        n_right += study->windows[w].n_right;
        gain += study->windows[w].gain;
    }
    study->found.share[s] = (double)n_right / n_token;
    study->found.gain[s] = gain / n_token;
    return MOEC_OK;
}

/* The best of all experts for each token of layer `layer`, which is where hidden states are. */
static enum moec_status try_all(struct choice_study *study, uint32_t s, struct moec_error *err)
{
    struct moec_profile_job *job = study->run->job;
    const double *nll = moec_scorer_token_nll(job->scorer);
    struct trial trial = {.layer = study->layer};
    const struct moec_choice choice = {choose, &trial};
    const struct moec_scorer_variation variation = {
        .choice = &choice, .first_layer = study->layer, .hidden = &study->hidden};
    memcpy(study->tokens.least, study->tokens.original, study->tokens.n * sizeof *nll);
    for (; trial.expert < moec_config_choices(job->config); trial.expert++) {
        MOEC_TRY(moec_scorer_run_varied(job->scorer, &variation, &study->run->measure, &study->run->progress,
                                        err));
        moec_weight_run_ended(study->run);
        for (uint64_t t = 0; t < study->tokens.n; t++)
            study->tokens.least[t] = nll[t] < study->tokens.least[t] ? nll[t] : study->tokens.least[t];
    }
    return add_windows(study, s, err);
}

/* One layer: a unit of work. */
static enum moec_status study_layer(struct choice_study *study, uint32_t s, struct moec_error *err)
{
    struct moec_profile_job *job = study->run->job;
    const struct moec_unit_part parts[] = {{&study->found.share[s], sizeof(double)},
                                           {&study->found.gain[s], sizeof(double)}};
    const uint64_t before = moec_scorer_multiply_adds(job->scorer);
    char key[MOEC_JOURNAL_MAX_KEY];
    bool found = false;
    (void)snprintf(key, sizeof key, "choice/%" PRIu32, s);
    const struct moec_unit unit = {key, parts, 2};
    MOEC_TRY(moec_unit_find(job->units, &unit, &job->multiply_adds, &found, err));
    if (found || job->model->layers[study->layer].router_table.rows > 0)
        return MOEC_OK;
    MOEC_TRY(try_all(study, s, err));
    return moec_unit_keep(job->units, &unit, moec_scorer_multiply_adds(job->scorer) - before, err);
}

static enum moec_status study_layers(struct choice_study *study, struct moec_error *err)
{
    static const struct moec_scorer_variation none = {0};
    struct moec_weight_run *run = study->run;
    struct moec_profile_job *job = run->job;
    MOEC_TRY(moec_scorer_run_varied(job->scorer, &none, &run->measure, &run->progress, err));
    moec_weight_run_ended(run);
    memcpy(study->tokens.original, moec_scorer_token_nll(job->scorer), study->tokens.n * sizeof(double));
    MOEC_TRY(moec_scorer_embed(job->scorer, &study->hidden, err));
    for (uint32_t s = 0; s < job->profile->n_moe_layer; s++) {
        for (; study->layer < job->profile->moe_layers[s]; study->layer++) {
            MOEC_TRY(moec_scorer_layer(job->scorer, study->layer, &study->hidden, &run->progress, err));
            moec_weight_run_ended(run);
        }
        MOEC_TRY(study_layer(study, s, err));
    }
    return MOEC_OK;
}

static enum moec_status add_studies(const struct choice_study *study, struct moec_error *err)
{
    struct moec_profile *profile = study->run->job->profile;
    const struct moec_study_axis layer = {.name = "moe_layer", .n = profile->n_moe_layer};
    const struct moec_study studies[] = {
        {.name = "choice/right",
         .description =
             "share of scored tokens for which no other expert in the place of the last one in this "
             "layer makes the target likelier",
         .source = "cache-conditional experts, Fig. 11",
         .n_axis = 1,
         .axes = {layer},
         .values = study->found.share},
        {.name = "choice/gain",
         .units = "nat",
         .description =
             "NLL that the best expert in the place of the last one saves, mean over scored tokens; "
             "known only behind the token",
         .source = "cache-conditional experts, appendix A",
         .n_axis = 1,
         .axes = {layer},
         .values = study->found.gain},
    };
    for (size_t i = 0; i < sizeof studies / sizeof *studies; i++)
        MOEC_TRY(moec_profile_add_study(profile, &studies[i], NULL, err));
    return MOEC_OK;
}

enum moec_status moec_choice_study_run(struct moec_weight_run *run, struct moec_error *err)
{
    static const char what[] = "a study of choices";
    enum moec_status status = MOEC_OK;
    struct moec_profile_job *job = run->job;
    const uint32_t n_layer = job->profile->n_moe_layer;
    struct choice_study study = {.run = run};
    MOEC_TRY_OUT(moec_rank_windows_make(job->options->by.ranks, &job->windows, &study.shared, err));
    study.tokens.n = moec_windows_scored_count(&study.shared.own);
    MOEC_TRY_OUT(
        moec_alloc((void **)&study.windows, job->windows.n_window, sizeof *study.windows, what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&study.tokens.original, study.tokens.n, sizeof(double), what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&study.tokens.least, study.tokens.n, sizeof(double), what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&study.found.share, n_layer, sizeof(double), what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&study.found.gain, n_layer, sizeof(double), what, err));
    for (uint32_t s = 0; s < n_layer; s++)
        study.found.share[s] = study.found.gain[s] = NAN;
    MOEC_TRY_OUT(moec_states_create(job->windows.work, moec_scorer_state_count(job->scorer),
                                    moec_forward_stride(job->config), "hidden states of the windows",
                                    &study.hidden, err));
    MOEC_TRY_OUT(study_layers(&study, err));
    status = add_studies(&study, err);
out:
    moec_states_release(&study.hidden);
    moec_rank_windows_release(&study.shared);
    free(study.windows);
    free(study.tokens.original);
    free(study.tokens.least);
    free(study.found.share);
    free(study.found.gain);
    return status;
}
