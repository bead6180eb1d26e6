/* Options of `moec simulate`, read once. */
#ifndef MOEC_CLI_SIMULATE_OPTIONS_H
#define MOEC_CLI_SIMULATE_OPTIONS_H

#include "cli/options/options.h"
#include "profiler/simulate/tiers.h"

/* A buffer as asked for: a share of the bytes of all experts, or bytes. */
struct cli_simulate_budget {
    double share; /* 0: */
    uint64_t bytes;
};

struct cli_simulate_options {
    uint32_t bits; /* 0 = not given */
    uint32_t prompt_tokens;
    uint32_t preload_count; /* 0 = not given */
    uint32_t preload_ahead; /* 0 = not given */
    int n_threads;
    uint32_t n_policy, n_predictor; /* 0 = all, or the usual ones */
    bool is_every_policy, is_every_predictor, is_every_budget;
    struct moec_evict_choice policies[MOEC_SIMULATE_MAX_POLICIES];
    const struct moec_predict_ops *predictors[MOEC_SIMULATE_MAX_PREDICTORS];
    bool searches_evict;      /* hobbit, which is among the policies then */
    const float *own_weights; /* of hobbit where its word has none: a bundle's, borrowed; NULL: equal */
    uint32_t n_budget;        /* 0 = 5 % to 100 %, or the usual ones */
    struct cli_simulate_budget budgets[MOEC_SIMULATE_MAX_BUDGETS];
    uint32_t n_pool; /* of --vram */
    struct cli_simulate_budget pools[MOEC_SIMULATE_MAX_BUDGETS];
    uint32_t n_mode; /* of --modes; 0 = all that the recording can feed */
    enum moec_tiers_mode modes[MOEC_TIERS_MODES];
};

MOEC_WARN_UNUSED enum moec_status cli_read_simulate_options(const struct cli_args *args,
                                                            struct cli_simulate_options *out,
                                                            struct moec_error *err);

/* The usual policies; with "all" every one, fate where the model says which layers are shallow (n_shallow is
 * not 0). */
void cli_set_policies(const struct cli_simulate_options *options, uint32_t n_shallow,
                      struct moec_simulate_sweep *sweep);

/* Fills the budgets of a sweep in increasing order, without repeats; those too small for a record are raised
 * to the largest record. */
void cli_set_budgets(const struct cli_simulate_options *options, struct moec_simulate_sweep *sweep);

/* Sizes of pools and buffers, likewise; the buffer's without --memory holds all. */
void cli_set_tiers(const struct cli_simulate_options *options, struct moec_tiers_sweep *sweep);

#endif
