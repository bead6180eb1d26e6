/* The state of a fast sensitivity run (internal to it): fast_sensitivity.c measures, and fast_estimate.c
 * makes losses of what it found. Thread rule: as the run. */
#ifndef MOEC_PROFILER_FAST_SENSITIVITY_INTERNAL_H
#define MOEC_PROFILER_FAST_SENSITIVITY_INTERNAL_H

#include "profiler/evaluate/sweep.h"
#include "profiler/evaluate/token_score.h"
#include "profiler/sensitivity/fast_sensitivity.h"
#include "profiler/sensitivity/gain_plan.h"

/* Models with one layer changed, one for each layer of the gain plan, on the first windows of the order. */
struct perturbed {
    float scale;       /* of the change */
    uint32_t n_window; /* of all ranks */
    uint64_t n_row;
    struct {
        uint32_t n_window;
        uint64_t n_row;
        struct moec_windows windows; /* (n_window), and their sweep; none without */
        struct moec_sweep sweep;
        struct moec_states states; /* (n_gain * n_row, stride) */
    } own;                         /* of this rank */
    double *kl;                    /* (n_gain, n_row): of each token */
    double *nll;                   /* (n_gain, n_window): sums */
};

enum { FULL, SMALL, N_PERTURBED };

/* What a window adds to the sums of an expert at a bitwidth. */
struct local {
    double error;      /* u, of all of the expert's choices */
    double difference; /* sum of |d|^2, of those that were picked */
    double output;     /* and of |y|^2 */
};

struct fast_model {
    const struct moec_config *config;
    size_t stride;
    uint32_t n_moe, n_expert, k;
};

/* What is measured. */
struct fast_plan {
    uint32_t n_code; /* bitwidths at which local errors are: those of the options, the baseline's last */
    uint32_t codes[MOEC_PROFILE_MAX_BITS + 1];
    double fraction; /* of an expert's tokens that are measured where not all must be */
    struct moec_gain_plan gains;
    uint64_t pass;
    uint64_t multiply_adds; /* of all */
};

/* In an order of their own: those of the perturbed models at half the size first, then the others at the
 * whole size, then those without, so that each rank has its part of each. */
struct fast_windows {
    uint32_t n;                  /* W */
    uint32_t *order;             /* (W): the caller's number of each window, */
    struct moec_windows ordered; /* and these */
    uint64_t *row_start;         /* (W + 1): first row of each among all */
    struct moec_rank_windows shared;
    uint32_t n_own;
};

/* What ranks do in step: they share the records of so many experts of a layer at all bitwidths, as often as the
 * rank with most batches needs them. */
struct fast_steps {
    uint32_t n_expert; /* that are encoded together; of a process alone too */
    uint32_t n_batch;  /* 0 of a process alone */
    uint32_t n_done;   /* batches of this rank in the layer at work */
};

struct fast_passes {
    struct moec_forward forward;
    struct moec_sweep sweep;   /* of this rank's windows */
    struct moec_states hidden; /* (rows, stride): the original */
    struct perturbed perturbed[N_PERTURBED];
};

/* Of perturbed models, (rows of the reference) each. */
struct fast_scores {
    struct moec_token_scorer tokens;
    struct moec_reference reference;
    double *nll, *kl;
    uint32_t *row_numbers, *targets; /* 0, 1, .. and of those that are scored */
};

/* One batch of one layer. */
struct fast_batch {
    struct moec_mlp_trace trace;
    double *scale;     /* (max_tokens): 1 / |x|^2 */
    uint32_t *start;   /* (E + 1): first choice of each expert in */
    uint32_t *choices; /* (max_tokens * k): row * k + rank, by expert, rows increasing */
    /* Choices of one expert that are measured, (max_tokens) each. */
    struct {
        uint32_t *choices;
        double *errors;  /* |d|^2 */
        double *outputs; /* |y|^2 */
        float *gathered; /* (max_tokens, stride) */
        float *changed;  /* (max_tokens, stride) */
    } picked;
};

struct fast_found {
    struct moec_fast_result *result;
    struct local *local;  /* (W, S, E, codes) */
    float *token_error;   /* (S, rows of FULL, k): u at the lowest bits of each choice, */
    uint16_t *token_rank; /* (S, rows of FULL, k): and its expert */
};

struct fast {
    const struct moec_fast_options *options;
    struct fast_model model;
    struct fast_plan plan;
    struct fast_windows windows;
    struct fast_steps steps;
    struct fast_passes passes;
    struct fast_scores scores;
    struct fast_batch batch;
    struct fast_found found;
};

/* At the bits of the source an expert has no error. */
static inline bool fast_is_source(const struct fast *job, uint32_t code)
{
    return job->plan.codes[code] == moec_variants_source_bits(job->options->of.variants);
}

/* Of a window's number in the order. */
static inline size_t fast_cell(const struct fast *job, uint32_t w, uint32_t s, uint32_t e, uint32_t code)
{
    return (((size_t)w * job->model.n_moe + s) * job->model.n_expert + e) * job->plan.n_code + code;
}

/* Fills the result's gains, local errors and losses from what all ranks measured. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_fast_estimate(struct fast *job, struct moec_error *err);

#endif
