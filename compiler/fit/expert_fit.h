/* The routed experts of a checkpoint quantised by GPTQ on their inputs (compiler/fit/gptq.h).
 *
 * Windows go through the original model layer by layer. While they pass a layer, the second moments of what
 * each expert is given are summed up: inputs, which gate and up share, and activations, which down is given.
 * Every token counts g^2, g the weight that the router gives the expert's output: an error of the output
 * reaches the model g times. Then each projection is encoded with every codec asked for, and measured:
 *
 *     H = H_e + MOEC_EXPERT_FIT_TOKENS H_l / n_l   gate and up: H_l of all n_l pairs of token and expert in
 *                                                  the layer, so that rare experts lean on it
 *     H = H_e                                      down: one expert's neurons are not another's
 *
 * and compiler/fit/gptq.h adds its share of the mean to H_ii. An expert without tokens has its layer's H for
 * gate and up, and HQQ's codes for down. Experts are taken in batches whose moments fit into the memory
 * given; a layer is run once for each batch.
 *
 * Encoded rows are kept in memory or, where the windows' work memory ends, in an unlinked file. Results do
 * not depend on memory, threads or batches. Thread rule: one thread, it parallelises inside; the encoder may
 * be called from several. */
#ifndef MOEC_COMPILER_EXPERT_FIT_H
#define MOEC_COMPILER_EXPERT_FIT_H

#include "formats/checkpoint/expert_encoder.h"
#include "formats/tables/neuron_order.h"
#include "profiler/common/unit.h"
#include "profiler/evaluate/rank_block.h"
#include "profiler/evaluate/score.h"

#define MOEC_EXPERT_FIT_TOKENS 128 /* measured from 8 to 141 windows, better than 32 at each */

struct moec_expert_fit;

/* A codec to encode with. Only codecs whose quantizer is GPTQ are kept; others are measured alone. */
struct moec_expert_fit_codec {
    struct moec_codec codec;
    uint8_t projections; /* 1u << enum moec_projection, several added */
};

/* The model, and what goes through it. */
struct moec_expert_fit_subject {
    const struct moec_checkpoint *checkpoint; /* borrowed until free */
    const struct moec_neuron_order *order;    /* of records, and of the scorer's experts; likewise; NULL = the
                                               * checkpoint's */
    struct moec_scorer *scorer;               /* of the original, whose experts answer with the original's */
    const struct moec_windows *windows;       /* all; their work memory is borrowed until free */
};

/* What experts are encoded at. */
struct moec_expert_fit_codes {
    const struct moec_expert_fit_codec *codecs;
    uint32_t n_codec; /* 1 to 8 */
    /* (MoE layers, n_expert, MOEC_PROJECTION_COUNT) sums of 1u << codec: those that each is wanted at; NULL = all.
     * Borrowed while creating. */
    const uint8_t *wanted;
    struct moec_codec plain; /* that noise is of (moec_gptq_noise); F32: of none */
    /* Who encodes projections that this fit does not have, borrowed until free; NULL = the checkpoint. */
    const struct moec_expert_encoder *base;
};

/* Who is given the inputs of dense products in the same sweep, which then goes on to the model's end, the
 * head included; layer by layer, each once, of the scorer's windows. */
struct moec_expert_fit_also {
    const struct moec_scorer_watch *watch; /* NULL: nobody is */
    const struct moec_measure *measure;    /* (W of the scorer) each, filled */
};

struct moec_expert_fit_request {
    struct moec_expert_fit_subject of;
    struct moec_expert_fit_codes codes;
    uint64_t memory_bytes; /* of moments; one expert's are always taken. 0 = no bound */
    int n_threads;
    const struct moec_progress *progress;
    struct moec_units *units; /* each matrix at a codec is one; NULL: none is kept */
    /* Ranks that share the work, and this one's windows, which are then the scorer's, with all of them to be
     * shown: each takes its own windows through the model and tells all what enters a layer's experts; then
     * it sums up the moments of its own experts over all windows and encodes them. Borrowed; NULL = this
     * process does all. Creating is then called together. */
    const struct moec_rank_block *block;
    struct moec_expert_fit_also also;
};

/* Errors: those of the evaluation and of moec_gptq_factor and moec_gptq_encode, with layer and expert, of
 * moec_states_create, and of `also`. */
MOEC_WARN_UNUSED enum moec_status moec_expert_fit_create(const struct moec_expert_fit_request *request,
                                                         struct moec_expert_fit **out,
                                                         struct moec_error *err);
void moec_expert_fit_free(struct moec_expert_fit *fit);

/* Memory that creating takes in addition to the scorer and to what the windows' work memory counts, for a
 * plan of memory: the least, with one expert at a time, and what all experts of a layer at once take. */
struct moec_expert_fit_memory {
    uint64_t least_bytes;
    uint64_t most_bytes;
};
struct moec_expert_fit_memory moec_expert_fit_bytes(const struct moec_config *config, int n_threads);

/* Gives records whose projections with codecs of the request and quantizer GPTQ are the encoded ones, all
 * others the checkpoint's. Borrowed until free. */
const struct moec_expert_encoder *moec_expert_fit_encoder(const struct moec_expert_fit *fit);

/* Sum over the expert's tokens of g^2 |(W - Q) x|^2, after H above, with codec `index` of the request, and
 * of g^2 |W x|^2. 0 for a projection that the codec is not for, or that an expert does not have; negative where it was
 * not wanted. `noise`: moec_gptq_noise of the projection in the request's plain codec, 0 where nothing was wanted of
 * it or no token reached it. */
double moec_expert_fit_error(const struct moec_expert_fit *fit, uint32_t layer, uint32_t expert,
                             enum moec_projection projection, uint32_t index);
double moec_expert_fit_energy(const struct moec_expert_fit *fit, uint32_t layer, uint32_t expert,
                              enum moec_projection projection);

double moec_expert_fit_noise(const struct moec_expert_fit *fit, uint32_t layer, uint32_t expert,
                             enum moec_projection projection);

/* Matrices that are encoded, each codec for itself. */
uint64_t moec_expert_fit_count(const struct moec_expert_fit *fit);
/* Experts that no token reached. */
uint32_t moec_expert_fit_unseen(const struct moec_expert_fit *fit);

#endif
