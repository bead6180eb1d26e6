/* A run is a copy of the forward pass with another model or hooks, over one scratch: one runs at a time.
 * The reference keeps final hidden states, and its probabilities where the limit allows; otherwise these are
 * made again chunk by chunk. A reference is always computed canonically. Sums go by window in the order of
 * tokens, so no batch shows in them. */
#include "profiler/evaluate/score.h"

#include "formats/base/memory.h"
#include "profiler/evaluate/cost.h"
#include "profiler/evaluate/rank_windows.h"
#include "profiler/evaluate/shared_variants.h"
#include "profiler/evaluate/sweep.h"
#include "profiler/evaluate/token_score.h"
#include "runtime/forward/moe/decide.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Reference rows that are computed at once where not all are kept. */
#define REFERENCE_CHUNK_BYTES ((uint64_t)64 << 20)

/* What a scorer has of the model that it measures against. */
struct moec_scorer_reference {
    struct moec_forward forward; /* where that is another model */
    struct moec_states hidden;   /* (n_source + n_row, stride); empty without a reference */
    struct moec_reference probabilities;
    bool is_kept;   /* `probabilities` holds all rows */
    uint32_t *rows; /* 0, 1, .. up to its n_row */
};

/* Scored tokens of this rank's windows. */
struct scored_rows {
    uint64_t n;                /* scored tokens of all windows */
    uint64_t n_source;         /* tokens of their sources, whose hidden states stand before theirs */
    uint32_t *targets;         /* (n) */
    struct moec_states hidden; /* (n_source + n, stride) */
    double *nll, *kl;          /* (n) */
};

struct scorer_work {
    uint64_t multiply_adds; /* of all ranks, once a run has ended */
    uint64_t pass;          /* over all windows */
    double whole;           /* what all ranks do for each multiply-add of this one */
    /* of the run at work */
    const struct moec_progress *progress;
    const char *phase;
    uint64_t done, total;
};

struct moec_scorer {
    struct moec_rank_windows shared;
    const struct moec_windows *windows; /* this rank's */
    struct moec_scorer_options options;
    struct moec_forward forward;
    struct {
        struct moec_decider decider; /* of `forward`, where there is a route */
        struct moec_sweep sweep;
        struct moec_sweep shown; /* of options.shown; empty without */
        struct moec_token_scorer tokens;
        const struct moec_forward *head; /* the forward that computes the reference's logits */
        struct moec_forward canonical;   /* forward in the canonical arithmetic; borrows its memory */
    } passes;
    struct scored_rows rows;
    struct moec_scorer_reference reference;
    struct scorer_work work;
};

double moec_score_sum(const double *tokens, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += tokens[i];
    return sum;
}

enum moec_status moec_score_check(double nll, uint32_t w, struct moec_error *err)
{
    if (isfinite(nll))
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_FORMAT,
                     "the model's logits on window %" PRIu32 " are not finite; the checkpoint is damaged or "
                     "needs wider arithmetic than F32",
                     w);
}

static void fill_targets(const struct moec_windows *windows, uint32_t *targets)
{
    for (uint32_t w = 0; w < windows->n_window; w++) {
        const uint32_t *tokens = moec_windows_target(windows, w);
        for (uint32_t i = 0; i < windows->scored[w]; i++)
            *targets++ = tokens[i + 1];
    }
}

enum moec_status moec_scorer_set_route(struct moec_scorer *scorer, const struct moec_route *route,
                                       struct moec_error *err)
{
    const uint64_t *const *record_bytes = scorer->options.decisions.record_bytes;
    moec_sweep_release(&scorer->passes.sweep);
    moec_decider_release(&scorer->passes.decider);
    scorer->forward.decider = NULL;
    if (route != NULL) {
        MOEC_TRY(moec_decider_create(&scorer->forward.model->config, route, scorer->forward.max_tokens,
                                     &scorer->passes.decider, err));
        scorer->passes.decider.record_bytes[0] = record_bytes[0];
        scorer->passes.decider.record_bytes[1] = record_bytes[1];
        scorer->forward.decider = &scorer->passes.decider;
    }
    MOEC_TRY(moec_sweep_create(&scorer->forward, scorer->windows, false, &scorer->passes.sweep, err));
    scorer->passes.sweep.n_prompt = scorer->options.decisions.n_prompt;
    if (!scorer->options.decisions.replays)
        return MOEC_OK;
    return moec_batch_sequences_keep(&scorer->passes.sweep.sequences, &scorer->forward.model->config,
                                     scorer->forward.max_tokens, err);
}

void moec_scorer_keep_all(struct moec_scorer *scorer)
{
    moec_forward_keep_all(&scorer->forward);
}

enum moec_status moec_scorer_set_sparsity(struct moec_scorer *scorer, struct moec_sparsity *sparsity,
                                          struct moec_error *err)
{
    return moec_forward_leave_out(&scorer->forward, sparsity, err);
}

enum moec_status moec_scorer_create(const struct moec_model *model, struct moec_experts *experts,
                                    const struct moec_windows *windows,
                                    const struct moec_scorer_options *options, struct moec_scorer **out,
                                    struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_scorer *scorer = NULL;
    const struct moec_config *config = &model->config;
    const size_t stride = moec_forward_stride(config);
    MOEC_TRY(moec_alloc((void **)&scorer, 1, sizeof *scorer, "a scorer", err));
    scorer->options = *options;
    scorer->work.pass = moec_cost_pass(config, windows);
    MOEC_TRY_OUT(moec_rank_windows_make(options->by.ranks, windows, &scorer->shared, err));
    scorer->windows = windows = &scorer->shared.own;
    scorer->work.whole = (double)scorer->work.pass / (double)moec_cost_pass(config, windows);
    scorer->rows.n = moec_windows_scored_count(windows);
    scorer->rows.n_source = moec_windows_source_count(windows);
    for (uint32_t w = 0; w < windows->n_window; w++) {
        const uint32_t *tokens = moec_windows_tokens(windows, w);
        for (uint32_t i = 0; i < windows->length[w]; i++) {
            if (tokens[i] < config->n_vocab)
                continue;
            status = moec_fail(err, MOEC_ERR_MISMATCH,
                               "token %" PRIu32 " of window %" PRIu32 " has id %" PRIu32
                               ", outside the model's vocabulary of %" PRIu32,
                               i, moec_rank_windows_number(&scorer->shared, w), tokens[i], config->n_vocab);
            goto out;
        }
    }
    const uint32_t max_tokens = moec_sweep_max_tokens(options->shown != NULL ? options->shown : windows);
    MOEC_TRY_OUT(moec_forward_init(&scorer->forward, model, options->by.kernels, options->by.n_threads,
                                   experts, max_tokens, err));
    scorer->passes.canonical = scorer->forward;
    MOEC_TRY_OUT(moec_forward_use_arithmetic(&scorer->forward, options->by.arithmetic, err));
    MOEC_TRY_OUT(moec_forward_leave_out(&scorer->forward, options->sparsity, err));
    MOEC_TRY_OUT(moec_scorer_set_route(scorer, options->decisions.route, err));
    if (options->shown != NULL)
        MOEC_TRY_OUT(moec_sweep_create_shown(&scorer->forward, options->shown, &scorer->passes.shown, err));
    MOEC_TRY_OUT(moec_token_scorer_create(config, max_tokens, windows->work, &scorer->passes.tokens, err));
    const char *what = "scores of the tokens";
    MOEC_TRY_OUT(moec_alloc((void **)&scorer->rows.targets, scorer->rows.n, sizeof(uint32_t), what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&scorer->rows.nll, scorer->rows.n, sizeof(double), what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&scorer->rows.kl, scorer->rows.n, sizeof(double), what, err));
    MOEC_TRY_OUT(moec_states_create(windows->work, scorer->rows.n_source + scorer->rows.n, stride,
                                    "hidden states of the windows", &scorer->rows.hidden, err));
    fill_targets(windows, scorer->rows.targets);
    *out = scorer;
    scorer = NULL;
out:
    moec_scorer_free(scorer);
    return status;
}

static void release_reference(struct moec_scorer_reference *reference)
{
    moec_forward_release(&reference->forward);
    moec_reference_release(&reference->probabilities);
    moec_states_release(&reference->hidden);
    free(reference->rows);
    *reference = (struct moec_scorer_reference){0};
}

void moec_scorer_reference_free(struct moec_scorer_reference *reference)
{
    if (reference == NULL)
        return;
    release_reference(reference);
    free(reference);
}

void moec_scorer_free(struct moec_scorer *scorer)
{
    if (scorer == NULL)
        return;
    release_reference(&scorer->reference);
    moec_sweep_release(&scorer->passes.sweep);
    moec_sweep_release(&scorer->passes.shown);
    moec_token_scorer_release(&scorer->passes.tokens);
    moec_forward_release(&scorer->forward);
    moec_decider_release(&scorer->passes.decider);
    free(scorer->rows.targets);
    moec_states_release(&scorer->rows.hidden);
    moec_rank_windows_release(&scorer->shared);
    free(scorer->rows.nll);
    free(scorer->rows.kl);
    free(scorer);
}

static enum moec_status worked(void *context, uint64_t multiply_adds, struct moec_error *err)
{
    struct moec_scorer *scorer = context;
    scorer->work.multiply_adds += multiply_adds;
    scorer->work.done += multiply_adds;
    const double pass = (double)scorer->work.pass / scorer->work.whole;
    return moec_progress_report(scorer->work.progress, scorer->work.phase, (double)scorer->work.done / pass,
                                (double)scorer->work.total / pass, err);
}

static void start(struct moec_scorer *scorer, const struct moec_progress *progress, const char *phase,
                  uint64_t total)
{
    scorer->work.progress = progress;
    scorer->work.phase = phase;
    scorer->work.done = 0;
    scorer->work.total = total;
}

/* The scored tokens' rows of hidden states. */
static float *scored_rows(const struct moec_scorer *scorer, const struct moec_states *states)
{
    return states->rows + scorer->rows.n_source * states->stride;
}

/* What a run takes of this rank's windows. Its states stand at the front of scorer->rows.hidden, those of its sources first;
 * its scores stand where they stand among all. */
struct taken {
    struct moec_window_range windows;
    uint64_t n_source;         /* rows of their sources */
    uint64_t first_row, n_row; /* scored */
};

/* Windows first .. end - 1 of all, as far as they are this rank's. */
static struct taken taken_of(const struct moec_scorer *scorer, uint32_t first, uint32_t end)
{
    const uint32_t own = moec_rank_windows_count(&scorer->shared, first);
    struct taken taken = {.windows = {own, moec_rank_windows_count(&scorer->shared, end) - own}};
    for (uint32_t w = 0; w < own + taken.windows.n; w++) {
        const bool is_before = w < own;
        taken.n_source += is_before ? 0 : moec_windows_source(scorer->windows, w);
        *(is_before ? &taken.first_row : &taken.n_row) += scorer->windows->scored[w];
    }
    return taken;
}

/* Token scores of a run, whose states scorer->rows.hidden has, in chunks that the reference has room for. */
static enum moec_status score_tokens(struct moec_scorer *scorer, const struct moec_forward *forward,
                                     const struct taken *run, struct moec_error *err)
{
    const struct moec_config *config = &scorer->forward.model->config;
    const struct moec_scorer_reference *reference = &scorer->reference;
    const size_t stride = moec_forward_stride(config);
    const bool with_reference = reference->hidden.rows != NULL;
    for (uint64_t done = 0; done < run->n_row;) {
        const uint64_t chunk = with_reference ? reference->probabilities.n_row : scorer->forward.max_tokens;
        const uint32_t n = (uint32_t)(run->n_row - done < chunk ? run->n_row - done : chunk);
        const uint64_t row = run->first_row + done, own = run->n_source + done;
        if (with_reference && !reference->is_kept) {
            const struct moec_final_states original = {n, scored_rows(scorer, &reference->hidden) +
                                                              row * stride};
            MOEC_TRY(moec_token_scorer_refer(&scorer->passes.tokens, scorer->passes.head, &original,
                                             &scorer->reference.probabilities, 0, err));
            moec_states_leave(&reference->hidden, scorer->rows.n_source + row, n);
            MOEC_TRY(worked(scorer, moec_cost_head(config, n), err));
        }
        const struct moec_final_states states = {n, scorer->rows.hidden.rows + own * stride};
        const struct moec_scored_tokens scored = {
            .targets = scorer->rows.targets + row,
            .reference = with_reference ? &reference->probabilities : NULL,
            .reference_rows = with_reference ? reference->rows + (reference->is_kept ? row : 0) : NULL,
            .nll = scorer->rows.nll + row,
            .kl = scorer->rows.kl + row,
        };
        MOEC_TRY(moec_token_scorer_run(&scorer->passes.tokens, forward, &states, &scored, err));
        moec_states_leave(&scorer->rows.hidden, own, n);
        MOEC_TRY(worked(scorer, moec_cost_head(config, n), err));
        done += n;
    }
    return MOEC_OK;
}

const double *moec_scorer_token_nll(const struct moec_scorer *scorer)
{
    return scorer->rows.nll;
}

/* Sums of windows up to n_window of all: those of this rank's that a run took, then everybody's. Others stay. */
static enum moec_status sum_windows(const struct moec_scorer *scorer, const struct taken *run,
                                    uint32_t n_window, double *nll, double *kl, struct moec_error *err)
{
    const struct moec_rank_windows *shared = &scorer->shared;
    uint64_t row = run->first_row;
    for (uint32_t w = run->windows.first; w < run->windows.first + run->windows.n; w++) {
        const uint32_t n = scorer->windows->scored[w], number = moec_rank_windows_number(shared, w);
        double sum = moec_score_sum(scorer->rows.nll + row, n);
        MOEC_TRY(moec_score_check(sum, number, err));
        if (nll != NULL)
            nll[number] = sum;
        if (kl != NULL)
            kl[number] = moec_score_sum(scorer->rows.kl + row, n);
        row += n;
    }
    if (nll != NULL)
        MOEC_TRY(moec_ranks_gather(shared->ranks, nll, n_window, sizeof *nll, err));
    return kl != NULL ? moec_ranks_gather(shared->ranks, kl, n_window, sizeof *kl, err) : MOEC_OK;
}

/* What all ranks have done in a run that began at `before`. */
static enum moec_status sum_work(struct moec_scorer *scorer, uint64_t before, struct moec_error *err)
{
    const bool has_own = moec_rank_windows_count(&scorer->shared, scorer->shared.n_all) > 0;
    uint64_t done = has_own ? scorer->work.multiply_adds - before : 0;
    MOEC_TRY(moec_ranks_sum(scorer->shared.ranks, &done, 1, err));
    scorer->work.multiply_adds = before + done;
    return MOEC_OK;
}

static enum moec_status check_reference(const struct moec_scorer *scorer, const struct moec_model *model,
                                        struct moec_error *err)
{
    const struct moec_config *ours = &scorer->forward.model->config, *theirs = &model->config;
    if (ours->n_vocab != theirs->n_vocab || ours->n_embd != theirs->n_embd)
        return moec_fail(err, MOEC_ERR_MISMATCH,
                         "the reference has a vocabulary of %" PRIu32 " and hidden size %" PRIu32
                         ", but the model has %" PRIu32 " and %" PRIu32 "; the two must be the same model",
                         theirs->n_vocab, theirs->n_embd, ours->n_vocab, ours->n_embd);
    return MOEC_OK;
}

/* Room for the reference's probabilities: all rows where the limit allows, else a chunk. */
static enum moec_status make_room(struct moec_scorer *scorer, const struct moec_config *config,
                                  struct moec_error *err)
{
    const uint64_t row_bytes = moec_reference_row_bytes(config);
    scorer->reference.is_kept =
        scorer->rows.n <= scorer->options.reference_limit_bytes / row_bytes && scorer->rows.n <= UINT32_MAX;
    const struct moec_work_memory *work = scorer->windows->work;
    const uint64_t chunk_bytes =
        work != NULL && work->chunk_bytes > 0 ? work->chunk_bytes : REFERENCE_CHUNK_BYTES;
    uint64_t room = chunk_bytes / row_bytes;
    room = room < scorer->passes.tokens.n_row ? scorer->passes.tokens.n_row : room;
    if (scorer->reference.is_kept || room > scorer->rows.n)
        room = scorer->rows.n;
    MOEC_TRY(moec_reference_create(config, (uint32_t)room, &scorer->reference.probabilities, err));
    MOEC_TRY(moec_alloc((void **)&scorer->reference.rows, room, sizeof(uint32_t), "reference rows", err));
    for (uint32_t i = 0; i < room; i++)
        scorer->reference.rows[i] = i;
    return MOEC_OK;
}

/* What is to be computed of a reference after its layers: its head, for probabilities that are kept, and for
 * NLL. */
static uint64_t heads_cost(const struct moec_scorer *scorer, const struct moec_config *config,
                           const double *nll)
{
    const uint64_t head = moec_cost_head(config, scorer->rows.n);
    return (scorer->reference.is_kept ? head : 0) + (nll != NULL ? head : 0);
}

/* Keeps what KL needs of a reference with these final states, and takes its losses. */
static enum moec_status head_reference(struct moec_scorer *scorer, const struct moec_forward *forward,
                                       const struct moec_states *states, double *nll, struct moec_error *err)
{
    const struct moec_config *config = &forward->model->config;
    const size_t stride = moec_forward_stride(config);
    const float *hidden = scored_rows(scorer, states);
    for (uint64_t row = 0; scorer->reference.is_kept && row < scorer->rows.n;) {
        uint64_t left = scorer->rows.n - row;
        uint32_t n = left < scorer->passes.tokens.n_row ? (uint32_t)left : scorer->passes.tokens.n_row;
        MOEC_TRY(moec_token_scorer_refer(&scorer->passes.tokens, forward,
                                         &(struct moec_final_states){n, hidden + row * stride},
                                         &scorer->reference.probabilities, (uint32_t)row, err));
        moec_states_leave(states, scorer->rows.n_source + row, n);
        MOEC_TRY(worked(scorer, moec_cost_head(config, n), err));
        row += n;
    }
    for (uint64_t row = 0; nll != NULL && row < scorer->rows.n;) {
        uint64_t left = scorer->rows.n - row;
        uint32_t n = left < scorer->passes.tokens.n_row ? (uint32_t)left : scorer->passes.tokens.n_row;
        MOEC_TRY(moec_token_scorer_run(&scorer->passes.tokens, forward,
                                       &(struct moec_final_states){n, hidden + row * stride},
                                       &(struct moec_scored_tokens){.targets = scorer->rows.targets + row,
                                                                    .nll = scorer->rows.nll + row,
                                                                    .kl = scorer->rows.kl + row},
                                       err));
        moec_states_leave(states, scorer->rows.n_source + row, n);
        MOEC_TRY(worked(scorer, moec_cost_head(config, n), err));
        row += n;
    }
    const struct taken all = taken_of(scorer, 0, scorer->shared.n_all);
    return nll != NULL ? sum_windows(scorer, &all, scorer->shared.n_all, nll, NULL, err) : MOEC_OK;
}

/* Runs the reference through `sweep` and keeps what KL needs; the scorer then owns the hidden states.
 */
static enum moec_status run_reference(struct moec_scorer *scorer, struct moec_sweep *sweep,
                                      const struct moec_states *states, double *nll, struct moec_error *err)
{
    const struct moec_config *config = &sweep->forward->model->config;
    const struct moec_sweep_store store = {.states = states, .worked = worked, .context = scorer};
    MOEC_TRY(make_room(scorer, config, err));
    scorer->work.total =
        moec_cost_layers(&scorer->forward.model->config, scorer->windows) + heads_cost(scorer, config, nll);
    MOEC_TRY(moec_sweep_run(sweep, (struct moec_window_range){0, scorer->windows->n_window}, states->rows,
                            &store, err));
    return head_reference(scorer, sweep->forward, states, nll, err);
}

/* Leaves the rows that are scored, one behind the other: nobody scores what follows a window's last token. */
static void keep_scored(const struct moec_windows *windows, struct moec_states *hidden)
{
    const size_t stride = hidden->stride;
    uint64_t from = moec_windows_source_count(windows), to = from;
    for (uint32_t w = 0; w < windows->n_window; w++) {
        const uint32_t n = windows->scored[w];
        if (from != to)
            memmove(hidden->rows + to * stride, hidden->rows + from * stride, n * stride * sizeof(float));
        moec_states_leave(hidden, to, n);
        from += moec_windows_read(windows, MOEC_STACK_DECODER, w);
        to += n;
    }
}

enum moec_status moec_scorer_take_reference(struct moec_scorer *scorer, struct moec_states *hidden,
                                            double *nll, const struct moec_progress *progress,
                                            struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_config *config = &scorer->forward.model->config;
    const uint64_t before = scorer->work.multiply_adds;
    release_reference(&scorer->reference);
    start(scorer, progress, "original", scorer->work.pass);
    scorer->passes.head = &scorer->passes.canonical;
    keep_scored(scorer->windows, hidden);
    MOEC_TRY_OUT(make_room(scorer, config, err));
    scorer->work.total = heads_cost(scorer, config, nll);
    MOEC_TRY_OUT(head_reference(scorer, &scorer->passes.canonical, hidden, nll, err));
    MOEC_TRY_OUT(sum_work(scorer, before, err));
    scorer->reference.hidden = *hidden;
    *hidden = (struct moec_states){0};
out:
    if (status != MOEC_OK)
        release_reference(&scorer->reference);
    moec_states_release(hidden);
    return status;
}

enum moec_status moec_scorer_set_reference(struct moec_scorer *scorer, const struct moec_model *model,
                                           struct moec_experts *experts, double *nll,
                                           const struct moec_progress *progress, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_sweep other = {0}, own = scorer->passes.sweep, *sweep = &own;
    struct moec_forward original =
        scorer->passes.canonical; /* with the reference's experts, if the model is the same */
    struct moec_states hidden = {0};
    const uint64_t before = scorer->work.multiply_adds;
    bool takes = false;
    MOEC_TRY(check_reference(scorer, model, err));
    release_reference(&scorer->reference);
    start(scorer, progress, "original", scorer->work.pass);
    const bool same = model == scorer->forward.model;
    scorer->passes.head = same ? &scorer->passes.canonical : &scorer->reference.forward;
    own.forward = &original;
    if (same) {
        MOEC_TRY_OUT(moec_forward_take_experts(&original, experts, err));
        takes = true;
    } else {
        MOEC_TRY_OUT(moec_forward_init(&scorer->reference.forward, model, scorer->options.by.kernels,
                                       scorer->options.by.n_threads, experts, scorer->forward.max_tokens,
                                       err));
        MOEC_TRY_OUT(moec_sweep_create(&scorer->reference.forward, scorer->windows, false, &other, err));
        sweep = &other;
    }
    MOEC_TRY_OUT(moec_states_create(scorer->windows->work, scorer->rows.n_source + scorer->rows.n,
                                    moec_forward_stride(&model->config), "hidden states of the reference",
                                    &hidden, err));
    MOEC_TRY_OUT(run_reference(scorer, sweep, &hidden, nll, err));
    MOEC_TRY_OUT(sum_work(scorer, before, err));
    scorer->reference.hidden = hidden;
    hidden = (struct moec_states){0};
out:
    if (takes)
        moec_forward_return_experts(&original);
    if (status != MOEC_OK)
        release_reference(&scorer->reference);
    moec_sweep_release(&other);
    moec_states_release(&hidden);
    return status;
}

struct moec_scorer_reference *moec_scorer_leave_reference(struct moec_scorer *scorer)
{
    struct moec_error ignored = {0};
    struct moec_scorer_reference *reference = NULL;
    if (scorer->reference.hidden.rows == NULL || scorer->passes.head != &scorer->reference.forward ||
        moec_alloc((void **)&reference, 1, sizeof *reference, "a reference", &ignored) != MOEC_OK)
        return NULL;
    *reference = scorer->reference;
    scorer->reference = (struct moec_scorer_reference){0};
    return reference;
}

void moec_scorer_use_reference(struct moec_scorer *scorer, struct moec_scorer_reference *reference)
{
    release_reference(&scorer->reference);
    scorer->reference = *reference;
    scorer->passes.head = &scorer->reference.forward;
    free(reference);
}

const float *moec_scorer_reference_hidden(const struct moec_scorer *scorer)
{
    return scorer->reference.hidden.rows != NULL ? scored_rows(scorer, &scorer->reference.hidden) : NULL;
}

const struct moec_states *moec_scorer_reference_states(const struct moec_scorer *scorer)
{
    return &scorer->reference.hidden;
}

enum moec_status moec_scorer_run(struct moec_scorer *scorer, const struct moec_measure *measure,
                                 const struct moec_progress *progress, struct moec_error *err)
{
    static const struct moec_scorer_variation none = {0};
    return moec_scorer_run_varied(scorer, &none, measure, progress, err);
}

/* Layers first.. and the head, of windows. */
static uint64_t cost_from(const struct moec_scorer *scorer, uint32_t first, struct moec_window_range windows)
{
    uint64_t cost = 0;
    for (uint32_t w = windows.first; w < windows.first + windows.n; w++)
        cost += moec_cost_from_layer(&scorer->forward.model->config, first,
                                     moec_windows_source(scorer->windows, w), 0, scorer->windows->scored[w]);
    return cost;
}

/* Copies hidden states batch by batch. */
static void take_hidden(struct moec_scorer *scorer, const struct moec_states *from)
{
    const size_t stride = from->stride;
    for (uint64_t row = 0; row < from->n_row;) {
        const uint64_t left = from->n_row - row, most = scorer->forward.max_tokens;
        const uint64_t n = left < most ? left : most;
        memcpy(scorer->rows.hidden.rows + row * stride, from->rows + row * stride,
               n * stride * sizeof(float));
        moec_states_leave(from, row, n);
        moec_states_leave(&scorer->rows.hidden, row, n);
        row += n;
    }
}

/* A run that a watch traces. */
struct traced {
    struct moec_scorer *scorer;
    const struct moec_scorer_watch *watch;
    const struct moec_forward *forward;
};

static enum moec_status pass_traced(void *context, uint32_t ordinal, const struct moec_sweep_batch *batch,
                                    struct moec_error *err)
{
    const struct traced *traced = context;
    return traced->watch->traced(traced->watch->context, traced->forward, ordinal, batch, err);
}

static enum moec_status pass_worked(void *context, uint64_t multiply_adds, struct moec_error *err)
{
    const struct traced *traced = context;
    return worked(traced->scorer, multiply_adds, err);
}

/* Together: a layer's experts as they are assigned, in the phase at work. */
static enum moec_status share_variants(struct moec_scorer *scorer, uint32_t layer, struct moec_error *err)
{
    static const uint32_t as_assigned = 0;
    const struct moec_config *config = &scorer->forward.model->config;
    const struct moec_variants_range range = {
        .layer = layer, .n = config->n_expert, .codes = &as_assigned, .n_code = 1};
    if (scorer->options.variants == NULL || scorer->shared.ranks == NULL ||
        !moec_config_is_moe(config, layer))
        return MOEC_OK;
    MOEC_TRY(worked(scorer, 0, err));
    return moec_variants_share(scorer->options.variants, scorer->shared.ranks, &range, err);
}

enum moec_status moec_scorer_run_varied(struct moec_scorer *scorer,
                                        const struct moec_scorer_variation *variation,
                                        const struct moec_measure *measure,
                                        const struct moec_progress *progress, struct moec_error *err)
{
    const struct moec_config *config = &scorer->forward.model->config;
    const uint32_t n_all = variation->n_window > 0 ? variation->n_window : scorer->shared.n_all;
    const struct taken run = taken_of(scorer, variation->first_window, n_all);
    const uint64_t before = scorer->work.multiply_adds;
    const struct moec_scorer_watch *watch = variation->watch;
    /* A second face of the same forward pass: one scratch serves both, one after the other. */
    struct moec_forward forward = scorer->forward;
    struct moec_sweep sweep = scorer->passes.sweep;
    struct traced traced = {.scorer = scorer, .watch = watch, .forward = &forward};
    struct moec_sweep_store store = {.states = &scorer->rows.hidden, .worked = worked, .context = scorer};
    uint64_t total = cost_from(scorer, variation->first_layer, run.windows);
    if (scorer->reference.hidden.rows != NULL && !scorer->reference.is_kept)
        total += moec_cost_head(config, run.n_row);
    start(scorer, progress, "evaluation", total);
    if (variation->model != NULL)
        MOEC_TRY(moec_forward_take_model(&forward, variation->model, err));
    forward.choice = variation->choice;
    forward.inputs = watch != NULL ? &watch->inputs : NULL;
    if (watch != NULL)
        moec_forward_stay(&forward);
    if (watch != NULL && watch->trace != NULL) {
        store.trace = watch->trace;
        store.traced = pass_traced;
        store.worked = pass_worked;
        store.context = &traced;
    }
    sweep.forward = &forward;
    if (variation->first_layer > 0)
        take_hidden(scorer, variation->hidden);
    else if (run.windows.n > 0)
        MOEC_TRY(moec_sweep_embed(&sweep, run.windows, scorer->rows.hidden.rows, &store, err));
    for (uint32_t layer = variation->first_layer; layer < config->n_layer; layer++) {
        MOEC_TRY(share_variants(scorer, layer, err));
        if (run.windows.n == 0)
            continue;
        MOEC_TRY(moec_sweep_layer(&sweep, layer, run.windows, scorer->rows.hidden.rows, &store, err));
        if (watch != NULL && watch->layer_done != NULL)
            MOEC_TRY(watch->layer_done(watch->context, layer, err));
    }
    MOEC_TRY(score_tokens(scorer, &forward, &run, err));
    MOEC_TRY(sum_windows(scorer, &run, n_all, measure->nll, measure->kl, err));
    return sum_work(scorer, before, err);
}

enum moec_status moec_scorer_embed(struct moec_scorer *scorer, const struct moec_states *hidden,
                                   struct moec_error *err)
{
    const struct moec_sweep_store store = {.states = hidden};
    return moec_sweep_embed(&scorer->passes.sweep, (struct moec_window_range){0, scorer->windows->n_window},
                            hidden->rows, &store, err);
}

enum moec_status moec_scorer_layer_watched(struct moec_scorer *scorer, uint32_t layer,
                                           const struct moec_inputs_hook *inputs,
                                           const struct moec_states *hidden, float *entered,
                                           const struct moec_progress *progress, struct moec_error *err)
{
    const struct moec_sweep_store store = {
        .states = hidden, .entered = entered, .worked = worked, .context = scorer};
    const struct moec_window_range all = {0, scorer->windows->n_window};
    struct moec_forward forward = scorer->forward;
    struct moec_sweep sweep = scorer->passes.sweep;
    forward.inputs = inputs;
    if (inputs != NULL)
        moec_forward_stay(&forward);
    sweep.forward = &forward;
    start(scorer, progress, "evaluation", cost_from(scorer, layer, all) - cost_from(scorer, layer + 1, all));
    return moec_sweep_layer(&sweep, layer, all, hidden->rows, &store, err);
}

enum moec_status moec_scorer_show(struct moec_scorer *scorer, uint32_t layer,
                                  const struct moec_inputs_hook *inputs, const struct moec_states *entered,
                                  const struct moec_progress *progress, struct moec_error *err)
{
    const struct moec_sweep_store store = {.states = entered, .worked = worked, .context = scorer};
    struct moec_forward forward = scorer->forward;
    struct moec_sweep sweep = scorer->passes.shown;
    forward.inputs = inputs;
    moec_forward_stay(&forward);
    sweep.forward = &forward;
    start(scorer, progress, "evaluation", 0);
    return moec_sweep_show(&sweep, layer, entered->rows, &store, err);
}

enum moec_status moec_scorer_layer(struct moec_scorer *scorer, uint32_t layer,
                                   const struct moec_states *hidden, const struct moec_progress *progress,
                                   struct moec_error *err)
{
    const uint64_t before = scorer->work.multiply_adds;
    MOEC_TRY(moec_scorer_layer_watched(scorer, layer, NULL, hidden, NULL, progress, err));
    return sum_work(scorer, before, err);
}

uint64_t moec_scorer_state_count(const struct moec_scorer *scorer)
{
    return scorer->rows.n_source + scorer->rows.n;
}

struct moec_route_counts moec_scorer_route_counts(const struct moec_scorer *scorer)
{
    return moec_batch_sequences_route_counts(&scorer->passes.sweep.sequences);
}

struct moec_cache_replay_counts moec_scorer_replayed(const struct moec_scorer *scorer)
{
    static const struct moec_cache_replay_counts none = {0};
    const struct moec_cache_replay *replay = scorer->passes.sweep.sequences.replay;
    return replay != NULL ? replay->counts : none;
}

uint64_t moec_scorer_multiply_adds(const struct moec_scorer *scorer)
{
    return scorer->work.multiply_adds;
}
