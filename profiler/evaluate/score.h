/* Evaluates models on windows: NLL and KL of each window, the numbers behind every loss.
 *
 * A scorer is made once for a model and its windows and run as often as wanted, each time with whatever the
 * expert source then answers: compile's search assigns bitwidths and runs. A reference, usually the original
 * weights, is evaluated once; afterwards every run also gives KL(reference || run). A run's numbers depend on
 * the weights alone, not on batches, threads or what ran before. Thread rule: one thread at a time; it
 * parallelises inside. */
#ifndef MOEC_PROFILER_SCORE_H
#define MOEC_PROFILER_SCORE_H

#include "profiler/common/progress.h"
#include "profiler/evaluate/cache_replay.h"
#include "profiler/evaluate/pass_means.h"
#include "profiler/evaluate/sweep.h"
#include "profiler/evaluate/variants.h"
#include "profiler/evaluate/windows.h"
#include "runtime/forward/pass/forward.h"
#include "runtime/policy/decide/route_state.h"

struct moec_scorer;

/* What every run decides, not the reference. */
struct moec_scorer_decisions {
    const struct moec_route *route;  /* borrowed, NULL = nothing */
    uint32_t n_prompt;               /* of each window the first so many tokens are a prompt's */
    bool replays;                    /* for moec_scorer_replayed */
    const uint64_t *record_bytes[2]; /* of struct moec_decider: for counts of bytes, borrowed, or NULL */
};

struct moec_scorer_options {
    /* The arithmetic is that of every run; the reference is canonical. With ranks, all call the reference and
     * runs together, and each gets the losses of all windows. Rows of states, rows of tokens and counts of
     * decisions are of this rank's windows alone. */
    struct moec_pass_means by;
    /* The reference's probabilities (n_vocab floats a scored token) are kept up to this many bytes; what does
     * not fit is computed again in every run, at the price of the head. 0 = keep none. */
    uint64_t reference_limit_bytes;
    struct moec_scorer_decisions decisions;
    struct moec_sparsity *sparsity; /* of every run, not of the reference; borrowed, NULL = none */
    /* Windows of others too, whose experts moec_scorer_show shows; borrowed, NULL = none. */
    const struct moec_windows *shown;
    /* Those behind the experts, whose records ranks share before each layer of a run (shared_variants.h);
     * borrowed. NULL: every rank makes those that its windows need. */
    struct moec_variants *variants;
};

/* Borrows model, experts and windows until free. Hidden states of all windows, twice with a reference, stand
 * where the windows' work memory lets them. Errors: MOEC_ERR_LIMIT (a token outside the vocabulary shows
 * at the first run), MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_scorer_create(const struct moec_model *model,
                                                     struct moec_experts *experts,
                                                     const struct moec_windows *windows,
                                                     const struct moec_scorer_options *options,
                                                     struct moec_scorer **out, struct moec_error *err);
void moec_scorer_free(struct moec_scorer *scorer);

/* Evaluates the reference as `experts` answers now. `model` (borrowed until free) may be another than the
 * scorer's, of the same vocabulary and hidden size; errors: MOEC_ERR_MISMATCH when it is not. `nll` (W)
 * receives its NLL; may be NULL. */
MOEC_WARN_UNUSED enum moec_status moec_scorer_set_reference(struct moec_scorer *scorer,
                                                            const struct moec_model *model,
                                                            struct moec_experts *experts, double *nll,
                                                            const struct moec_progress *progress,
                                                            struct moec_error *err);

/* The same for the scorer's own model, whose windows went through all layers elsewhere, as a reference does:
 * `hidden` are the final states of whole windows (struct moec_routing), of this rank's where they are shared,
 * which the scorer takes over in any case. Only the head is left to do. */
MOEC_WARN_UNUSED enum moec_status moec_scorer_take_reference(struct moec_scorer *scorer,
                                                             struct moec_states *hidden, double *nll,
                                                             const struct moec_progress *progress,
                                                             struct moec_error *err);

/* What a reference left, without its scorer: for another scorer of the same windows, whose model is another than
 * the reference's too. */
struct moec_scorer_reference;

/* Takes the reference away from a scorer, whose runs have none from then on; the caller's. NULL where the
 * scorer has none of another model. */
struct moec_scorer_reference *moec_scorer_leave_reference(struct moec_scorer *scorer);
/* Gives it to a scorer of the same windows, which takes it over. */
void moec_scorer_use_reference(struct moec_scorer *scorer, struct moec_scorer_reference *reference);
void moec_scorer_reference_free(struct moec_scorer_reference *reference); /* NULL-safe */

/* From now on runs decide by `route` (borrowed, NULL = not at all), and their counts begin anew. The
 * reference stays what it is. Errors: MOEC_ERR_MEMORY, after which the scorer can only be freed. */
MOEC_WARN_UNUSED enum moec_status
moec_scorer_set_route(struct moec_scorer *scorer, const struct moec_route *route, struct moec_error *err);

/* From now on runs keep all neurons, or leave out some by `sparsity`, which is borrowed. The reference does
 * not. Errors: a device's. */
void moec_scorer_keep_all(struct moec_scorer *scorer);
MOEC_WARN_UNUSED enum moec_status
moec_scorer_set_sparsity(struct moec_scorer *scorer, struct moec_sparsity *sparsity, struct moec_error *err);

/* Final hidden states of the reference, (scored tokens, moec_forward_stride), borrowed;
 * NULL before set_reference. */
const float *moec_scorer_reference_hidden(const struct moec_scorer *scorer);
/* The same as states, for those who leave rows behind. */
const struct moec_states *moec_scorer_reference_states(const struct moec_scorer *scorer);

/* Evaluates: measure->nll and measure->kl (NULL allowed), (W) each, are the caller's. kl is 0 without a
 * reference. Errors: those of the expert source, MOEC_ERR_FORMAT when logits are not finite, what `progress`
 * (NULL allowed) answers. */
MOEC_WARN_UNUSED enum moec_status moec_scorer_run(struct moec_scorer *scorer,
                                                  const struct moec_measure *measure,
                                                  const struct moec_progress *progress,
                                                  struct moec_error *err);

/* NLL of each scored token (moec_windows_scored_count), window after window, as the last run left them.
 * Borrowed. */
const double *moec_scorer_token_nll(const struct moec_scorer *scorer);

/* Looks at a run: at the inputs of dense products (all windows of a layer before the next layer's), and when
 * all windows have passed a layer; other than MOEC_OK stops. The head comes after the last layer. NULL members
 * are not called. */
struct moec_scorer_watch {
    struct moec_inputs_hook inputs;
    enum moec_status (*layer_done)(void *context, uint32_t layer, struct moec_error *err);
    /* MoE layers are traced into these arrays, which hold one batch, and `traced` is told of each batch, as in
     * struct moec_sweep_store. NULL: nothing is. */
    const struct moec_mlp_trace *trace;
    enum moec_status (*traced)(void *context, const struct moec_forward *forward, uint32_t ordinal,
                               const struct moec_sweep_batch *batch, struct moec_error *err);
    void *context; /* of layer_done and traced */
};

/* How a run differs from the scorer's own model; all zero: not at all. */
struct moec_scorer_variation {
    const struct moec_model *model;        /* of the same config, other codecs; NULL = the scorer's */
    const struct moec_choice *choice;      /* NULL = the router's */
    uint32_t first_layer;                  /* earlier layers are left out: */
    const struct moec_states *hidden;      /* (moec_scorer_state_count) these enter it */
    const struct moec_scorer_watch *watch; /* NULL = nobody looks */
    uint32_t first_window, n_window; /* on windows first_window .. n_window - 1 alone; 0 and 0 = on all */
};

/* The same with a variation; the measure is then of variation->n_window windows, and what it has of those before
 * first_window stays. A run that leaves out layers leaves out no such windows. The reference stays what it is. */
MOEC_WARN_UNUSED enum moec_status moec_scorer_run_varied(struct moec_scorer *scorer,
                                                         const struct moec_scorer_variation *variation,
                                                         const struct moec_measure *measure,
                                                         const struct moec_progress *progress,
                                                         struct moec_error *err);

/* Rows of hidden states that a run has, of this rank's windows: moec_windows_state_count of them. */
uint64_t moec_scorer_state_count(const struct moec_scorer *scorer);

/* Hidden states (moec_scorer_state_count) for runs that begin at a later layer: those that enter layer 0,
 * and from those that enter a layer those that leave it, with what the expert source answers now. Together, where
 * ranks share the windows. Of an
 * encoder-decoder model those of the encoder stand first, and stay as its last layer left them. */
MOEC_WARN_UNUSED enum moec_status moec_scorer_embed(struct moec_scorer *scorer,
                                                    const struct moec_states *hidden, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_scorer_layer(struct moec_scorer *scorer, uint32_t layer,
                                                    const struct moec_states *hidden,
                                                    const struct moec_progress *progress,
                                                    struct moec_error *err);

/* The same, with a look at the layer's inputs; `entered` (rows of the layer's stack, stride) receives what enters its
 * MLP. Both may be NULL. */
MOEC_WARN_UNUSED enum moec_status moec_scorer_layer_watched(struct moec_scorer *scorer, uint32_t layer,
                                                            const struct moec_inputs_hook *inputs,
                                                            const struct moec_states *hidden, float *entered,
                                                            const struct moec_progress *progress,
                                                            struct moec_error *err);

/* Shows the experts of a MoE layer (`inputs` has only_shown) to which options.shown is given, where `entered` enters
 * its MLP: rows of the layer's stack of all those windows. */
MOEC_WARN_UNUSED enum moec_status moec_scorer_show(struct moec_scorer *scorer, uint32_t layer,
                                                   const struct moec_inputs_hook *inputs,
                                                   const struct moec_states *entered,
                                                   const struct moec_progress *progress,
                                                   struct moec_error *err);

/* What was decided in all runs since the route was set; 0 without one. */
struct moec_route_counts moec_scorer_route_counts(const struct moec_scorer *scorer);

/* Belady's misses and the stays of all runs since the route was set, where the scorer replays it; else 0. */
struct moec_cache_replay_counts moec_scorer_replayed(const struct moec_scorer *scorer);

/* Multiply-adds done so far by this scorer. */
uint64_t moec_scorer_multiply_adds(const struct moec_scorer *scorer);

/* The sum that stands for a window: token values added in the order of their positions. */
double moec_score_sum(const double *tokens, uint32_t n);

/* Fails with MOEC_ERR_FORMAT when a window's NLL is not finite. */
MOEC_WARN_UNUSED enum moec_status moec_score_check(double nll, uint32_t w, struct moec_error *err);

#endif
