/* The state of an exact sweep (internal to it): sensitivity.c runs the variants, sensitivity_baseline.c the
 * model that they change. Thread rule: as the sweep. */
#ifndef MOEC_PROFILER_SENSITIVITY_INTERNAL_H
#define MOEC_PROFILER_SENSITIVITY_INTERNAL_H

#include "profiler/evaluate/sweep.h"
#include "profiler/evaluate/token_score.h"
#include "profiler/evaluate/variant_batch.h"
#include "profiler/sensitivity/sensitivity.h"
#include "profiler/sensitivity/sensitivity_units.h"

/* What layer s of the baseline did for the rows of its stack in the group. R rows, k = top-k. */
struct layer_trace {
    uint32_t *experts;    /* (R, k) */
    float *weights;       /* (R, k) */
    float *input;         /* (R, stride) */
    float *rank_outputs;  /* (R, k, stride) */
    float *shared_output; /* (R, stride) */
    float *out;           /* (R, stride): hidden states that leave the layer */
    uint32_t *start;      /* (E + 1): first choice of each expert in */
    uint32_t *choices;    /* (R * k): row * k + rank, by expert, rows increasing */
};

/* Multiply-adds of a variant. */
struct variant_cost {
    uint64_t expert; /* of the changed expert itself */
    uint64_t later;  /* of what followed from it */
};

struct sensitivity_model {
    const struct moec_config *config;
    size_t stride;
    uint32_t n_moe;
};

struct sensitivity_passes {
    struct moec_rank_windows shared;
    const struct moec_windows *windows; /* this rank's */
    struct moec_forward forward;
    struct moec_forward canonical; /* forward in the canonical arithmetic; borrows its memory */
    struct moec_sweep sweep;
    struct moec_token_scorer tokens;
    struct moec_variant_batch batch;
    struct moec_baseline baseline;
};

/* Windows that are measured together. */
struct sensitivity_group {
    uint32_t first_window, n_window;    /* among all */
    uint64_t *row_start, *source_start; /* (W + 1), owned: of this rank's */
    uint64_t capacity, source_capacity; /* rows that a group may have, and rows of sources */
    uint32_t *row_numbers;              /* (R), owned: 0, 1, .. */
};

/* The layer at work. */
struct sensitivity_layer {
    struct layer_trace trace;
    float *gathered;            /* (max_tokens, stride): inputs of the changed expert, piece by piece */
    float *changed;             /* (R, stride): its outputs */
    float *row;                 /* (stride) */
    struct variant_cost *costs; /* (E * B) */
    uint64_t *reached;          /* (E): in the group */
    uint64_t trace_cost;
    uint32_t n_finished; /* its first so many variants have all their measures */
};

struct sensitivity {
    const struct moec_sensitivity_options *options;
    struct moec_sensitivity *result;
    struct sensitivity_model model;
    struct sensitivity_passes passes;
    struct sensitivity_group group;
    struct sensitivity_layer layer;
    struct moec_sensitivity_units kept;
    struct {
        uint64_t pass;
        uint64_t planned; /* multiply-adds if every variant changed every window from the first token on */
        uint64_t done;    /* of these */
    } progress;
};

/* Of window w among all. */
static inline double *sensitivity_cell(const struct sensitivity *job, double *array, uint32_t s, uint32_t e,
                                       uint32_t b, uint32_t w)
{
    const size_t variant = ((size_t)s * job->model.config->n_expert + e) * job->options->of.n_bits + b;
    return array + variant * job->options->of.windows->n_window + w;
}

/* So many multiply-adds of the plan are done: as in struct moec_sweep_store, with a struct sensitivity. */
MOEC_WARN_UNUSED enum moec_status moec_sensitivity_worked(void *context, uint64_t multiply_adds,
                                                          struct moec_error *err);
/* Multiply-adds of all layers and the head on this rank's window w. */
uint64_t moec_sensitivity_window_cost(const struct sensitivity *job, uint32_t w);

/* Room for the baseline on a group of the capacity; released by moec_sensitivity_baseline_release, after an
 * error too. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_sensitivity_baseline_create(struct sensitivity *job,
                                                                   struct moec_error *err);
void moec_sensitivity_baseline_release(struct sensitivity *job);
/* Makes windows first .. first + n - 1 of this rank the group. */
void moec_sensitivity_baseline_open(struct sensitivity *job, uint32_t first, uint32_t n);
/* Together: the baseline of the whole group. Errors: those of the expert source, MOEC_ERR_FORMAT where logits
 * are not finite, MOEC_ERR_MISMATCH where the journal has other losses. */
MOEC_WARN_UNUSED enum moec_status moec_sensitivity_baseline_share(struct sensitivity *job,
                                                                  struct moec_error *err);

#endif
