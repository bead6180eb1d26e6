/* What the simulator knows of the model: the sizes of its records, and what was learned in calibration.
 * Thread rule: immutable after creation. */
#ifndef MOEC_PROFILER_SIMULATED_MODEL_H
#define MOEC_PROFILER_SIMULATED_MODEL_H

#include "formats/bundle/bundle.h"
#include "formats/profile/profile.h"
#include "profiler/simulate/recording.h"
#include "runtime/policy/decide/precision.h"

struct moec_simulated_shape {
    uint32_t n_layer, n_expert, top_k;
    uint32_t n_form;      /* F, in which the recording's experts are taken: low copies are 1 */
    uint32_t n_layer_key; /* F x E: keys of a layer (runtime/policy/schedule/residency.h) */
    uint32_t n_encoder;   /* of n_layer */
    uint32_t n_shallow;   /* of struct moec_path_table; 0 = unknown */
};

/* (S, F, E) each, owned. */
struct moec_simulated_records {
    uint64_t *record_bytes; /* what is read */
    uint64_t *slot_bytes;   /* what it takes in the buffer */
    float *frequency;       /* as struct moec_residency_setup; NULL = unknown */
};

/* How records are stored, and which of these ways each one is, both owned; n 0 = unknown. */
struct moec_simulated_layouts {
    uint32_t n;
    struct moec_record_layout *all; /* (n) */
    uint32_t *of;                   /* (S, F, E) */
};

/* Of the slots, where nothing else is said in form 0. */
struct moec_simulated_slots {
    uint64_t all_bytes;     /* buffer that holds every expert */
    uint64_t every_bytes;   /* the same in all forms */
    uint64_t largest_bytes; /* smallest buffer: of all forms, with pools of each together */
    /* One token's working set: each MoE layer's top-k times its mean slot (D7); an encoder's do not count. */
    uint64_t token_bytes;
    bool is_equal;  /* all slots of all forms have one size */
    bool has_pools; /* low copies have a pool of their own, as with precision shared */
};

struct moec_simulated_model {
    struct moec_simulated_shape shape;
    struct moec_simulated_records records;
    struct moec_simulated_layouts layouts;
    struct moec_simulated_slots slots;
    const struct moec_path_table *paths; /* borrowed; n_layer 0 when there is none, never NULL */
    char sizes[96];                      /* where the sizes come from, for people */
};

/* Sizes of a precision copy of a bundle, and of its copy `low` where the recording has low copies. Errors:
 * MOEC_ERR_USAGE when the recording is of another shape. */
MOEC_WARN_UNUSED enum moec_status moec_simulated_model_of_bundle(const struct moec_bundle *bundle,
                                                                 uint32_t copy, uint32_t low,
                                                                 const struct moec_recording *recording,
                                                                 struct moec_simulated_model *model,
                                                                 struct moec_error *err);
/* Gives high and low copies pools, where the recording has both and was made with precision shared. */
void moec_simulated_model_pool(struct moec_simulated_model *model, const struct moec_precision *precision);
/* Of a buffer of so many bytes, those of the pool of low copies; 0 without pools. */
uint64_t moec_simulated_low_pool(const struct moec_simulated_model *model, uint64_t buffer_bytes);
/* Whether both pools then have room for a record. */
bool moec_simulated_pools_fit(const struct moec_simulated_model *model, uint64_t buffer_bytes,
                              uint64_t low_bytes);
/* Every expert at one bitwidth, in the codec that the profile measured there. */
MOEC_WARN_UNUSED enum moec_status moec_simulated_model_of_profile(const struct moec_profile *profile,
                                                                  uint32_t bits,
                                                                  struct moec_simulated_model *model,
                                                                  struct moec_error *err);
/* What ran while a trace was written. */
MOEC_WARN_UNUSED enum moec_status moec_simulated_model_of_trace(const struct moec_replay *replay,
                                                                struct moec_simulated_model *model,
                                                                struct moec_error *err);
void moec_simulated_model_release(struct moec_simulated_model *model);

#endif
