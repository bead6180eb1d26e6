/* What the files of expert_fit share (internal to compiler/fit/expert_fit*.c).
 *
 *   expert_fit.c         sweeps, moments, encoding, records
 *   expert_fit_units.c   what ranks and an interrupted run's journal have of it
 */
#ifndef MOEC_COMPILER_EXPERT_FIT_INTERNAL_H
#define MOEC_COMPILER_EXPERT_FIT_INTERNAL_H

#include "compiler/fit/expert_fit.h"
#include "compiler/fit/fit_store.h"
#include "compiler/fit/gptq.h"

#define GATHER_TOKENS 256u /* of an expert, added to its moments at once */

/* Moments of an expert in the batch at work; NULL where there are too many inputs. */
struct moments {
    struct moec_gptq *input;      /* gate's and up's, owned */
    struct moec_gptq *activation; /* down's, owned */
    uint64_t n_pair;
};

/* What is known of a matrix whatever it is encoded at: its outputs' energy, its noise, and its expert's tokens. */
enum { FACT_ENERGY, FACT_NOISE, FACT_TOKENS, N_FACT };

/* What the experts are of. */
struct expert_fit_model {
    const struct moec_checkpoint *checkpoint;
    const struct moec_neuron_order *order; /* NULL = the checkpoint's */
    const struct moec_config *config;
    struct moec_pool pool;
};

/* Who encodes projections that were not fitted. */
struct expert_fit_others {
    struct moec_checkpoint_encoder own;
    struct moec_ordered_encoder ordered;
    const struct moec_expert_encoder *encoder; /* one of these, or the request's */
};

struct expert_fit_codes {
    struct moec_expert_fit_codec *codecs; /* (n_codec), owned */
    uint32_t n_codec;
    struct moec_codec plain; /* that noise is of */
    uint8_t *wanted;         /* (MoE layers, n_expert, projections): 1u << codec, several added; owned */
    uint64_t n_matrix;       /* that were wanted */
    uint32_t n_unseen;
};

struct expert_fit_found {
    struct moec_states store; /* encoded rows of all experts, one after the other */
    uint64_t *firsts;         /* (MoE layers * n_expert + 1): where each expert's begin */
    double *errors;           /* (MoE layers, n_expert, projections, n_codec) */
    double *facts;            /* (MoE layers, n_expert, projections, N_FACT) */
};

struct expert_fit_sweep {
    struct moec_units *units;
    struct moec_ranks *ranks;
    const struct moec_rank_block *block; /* NULL without ranks */
    const struct moec_progress *progress;
    uint64_t n_done, n_total; /* experts */
    const struct moec_scorer_watch *also;
    bool also_waits; /* for the inputs of the layer at work */
};

/* What ranks are about to tell of encoded experts. */
struct expert_fit_told {
    bool *shown;                   /* (n_expert), owned: experts of the batch that are this rank's to fit */
    struct moec_ranks_part *parts; /* (n), owned */
    size_t n, n_room;
};

/* The layer at work. */
struct expert_fit_layer {
    uint8_t *left;           /* as `wanted`: what is still to be encoded; owned */
    bool takes_pairs;        /* `gptq` does not have the layer's yet */
    struct moec_gptq *gptq;  /* moments of all its pairs, owned */
    struct moments *moments; /* (n_batch), owned: of experts first_expert.. */
    uint32_t first_expert, n_batch;
};

struct expert_fit_room {
    float *rows;        /* (GATHER_TOKENS, stride) */
    float *activations; /* (GATHER_TOKENS, activation_stride), zero past the neurons */
    size_t activation_stride;
    float factors[GATHER_TOKENS];
    float *weights[MOEC_PROJECTION_COUNT]; /* (n_ff, n_embd) each */
    float *down;                           /* (n_embd, n_ff): as stored */
    float *decoded;                        /* (n_ff, n_embd) */
    uint8_t *encoded;
};

struct expert_fit_states {
    struct moec_states hidden,
        ahead; /* entering the layer, and leaving it; with ranks of the own windows, no `ahead` */
    struct moec_states entered; /* with ranks: of all windows, what enters the layer's MLP */
};

struct moec_expert_fit {
    struct moec_expert_encoder encoder; /* first: this is what others see */
    struct expert_fit_model of;
    struct expert_fit_others others;
    struct expert_fit_codes codes;
    struct expert_fit_found found;
    struct {
        struct expert_fit_sweep sweep;
        struct expert_fit_told told;
        struct expert_fit_layer layer;
        struct expert_fit_room room;
        struct expert_fit_states states;
    } work; /* while it is made */
};

static inline size_t expert_index(const struct moec_expert_fit *fit, uint32_t layer, uint32_t expert)
{
    return (size_t)moec_config_moe_ordinal(fit->of.config, layer) * fit->of.config->n_expert + expert;
}

static inline size_t matrix_bytes(const struct moec_expert_fit *fit, struct moec_codec codec)
{
    return fit->of.config->n_ff_expert * moec_codec_row_bytes(codec, fit->of.config->n_embd);
}

static inline bool has_projection(const struct moec_expert_fit *fit, uint32_t p)
{
    return p != MOEC_PROJECTION_GATE || !fit->of.config->mlp.plain;
}

static inline bool is_kept(const struct moec_expert_fit *fit, uint32_t c, uint32_t p)
{
    return fit->codes.codecs[c].codec.quantizer == MOEC_QUANTIZER_GPTQ &&
           ((unsigned)fit->codes.codecs[c].projections >> p & 1u) != 0 && has_projection(fit, p);
}

/* Of `wanted` or `left`. */
static inline bool has_bit(const uint8_t *masks, size_t expert, uint32_t p, uint32_t c)
{
    return ((unsigned)masks[expert * MOEC_PROJECTION_COUNT + p] >> c & 1u) != 0;
}

/* Bytes of an expert's rows before those of codec c and projection p. */
static inline uint64_t bytes_before(const struct moec_expert_fit *fit, size_t expert, uint32_t p, uint32_t c)
{
    uint64_t n_bytes = 0;
    for (uint32_t at = 0; at < c * MOEC_PROJECTION_COUNT + p; at++) {
        const uint32_t codec = at / MOEC_PROJECTION_COUNT, projection = at % MOEC_PROJECTION_COUNT;
        if (is_kept(fit, codec, projection) && has_bit(fit->codes.wanted, expert, projection, codec))
            n_bytes += matrix_bytes(fit, fit->codes.codecs[codec].codec);
    }
    return n_bytes;
}

static inline uint8_t *rows_of(const struct moec_expert_fit *fit, size_t expert, uint32_t p, uint32_t c)
{
    return moec_fit_store_at(&fit->found.store, fit->found.firsts[expert] + bytes_before(fit, expert, p, c));
}

static inline double *facts_of(const struct moec_expert_fit *fit, size_t expert, uint32_t p)
{
    return fit->found.facts + (expert * MOEC_PROJECTION_COUNT + p) * N_FACT;
}

static inline void leave_rows(const struct moec_expert_fit *fit, size_t expert)
{
    moec_fit_store_leave(&fit->found.store, fit->found.firsts[expert],
                         fit->found.firsts[expert + 1] - fit->found.firsts[expert]);
}

/* Whether something of an expert is still to be encoded. */
static inline bool is_left(const struct moec_expert_fit *fit, size_t expert)
{
    const uint8_t *left = fit->work.layer.left + expert * MOEC_PROJECTION_COUNT;
    return (left[0] | left[1] | left[2]) != 0;
}

/* Takes what an interrupted run has encoded. Errors: those of moec_unit_find. */
MOEC_WARN_UNUSED enum moec_status moec_expert_fit_find(struct moec_expert_fit *fit, struct moec_error *err);
/* What is left of experts first .. first + n - 1, which their ranks have encoded: to all ranks and into the journal.
 * Nothing is left then. Called together. Errors: those of moec_ranks_spread_parts and moec_unit_keep. */
MOEC_WARN_UNUSED enum moec_status moec_expert_fit_share(struct moec_expert_fit *fit, size_t first, size_t n,
                                                        struct moec_error *err);

#endif
