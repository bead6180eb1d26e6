/* The state of variants (internal to them): variants.c makes records on demand, shared_variants.c among ranks.
 * Thread rule: as variants.h; slots, the store and what is expected under the lock. */
#ifndef MOEC_PROFILER_VARIANTS_INTERNAL_H
#define MOEC_PROFILER_VARIANTS_INTERNAL_H

#include "profiler/evaluate/record_store.h"
#include "profiler/evaluate/variants.h"

#include <pthread.h>

#define VARIANTS_MIXED                                                                                       \
    MOEC_CODEC_TABLE /* in place of a number: the variant whose projections a plan lets differ */
#define N_VARIANTS_INDICES (MOEC_CODEC_TABLE + 1)

/* The model whose experts these are. */
struct variants_model {
    const struct moec_checkpoint *checkpoint;
    const struct moec_config *config;
    uint32_t n_moe;
    int32_t ordinals[MOEC_MAX_LAYERS]; /* MoE ordinal of each layer, -1 for dense ones */
};

/* By number. */
struct variants_numbers {
    struct moec_codec codecs[MOEC_CODEC_TABLE];          /* at 32 F32 is a codec, elsewhere it means none */
    struct moec_record_layout layouts[MOEC_CODEC_TABLE]; /* n_bytes 0: no such number */
    struct moec_record_slot
        *slots[N_VARIANTS_INDICES]; /* (n_moe, n_expert) each, owned; NULL: no such number */
    uint32_t n_change;              /* of codecs or the encoder: records made before may differ */
};

/* What experts are taken at. */
struct variants_choice {
    uint8_t *assignment;        /* (n_moe, n_expert) numbers or codes, 0: */
    struct moec_variant *mixed; /* (n_moe, n_expert) */
    uint32_t rest_number;
    uint32_t low_code;                     /* of form 1 */
    const struct moec_mlp_filter *filters; /* (n_moe, n_expert) or NULL */
};

struct variants_encoding {
    struct moec_checkpoint_encoder own;
    const struct moec_expert_encoder *by; /* the own one, or borrowed */
    struct moec_pool pool;
    uint8_t *scratch; /* (n_threads, scratch_bytes) for encoding */
    size_t scratch_bytes;
    struct encode_job *jobs; /* (2, n_expert) for what is encoded together */
    uint64_t n_encoded;
};

/* How fast this rank encoded, and ranks told each other records (shared_variants.c). */
struct variants_pace {
    float encode_ns[N_VARIANTS_INDICES]; /* a record, on one thread, when any was last made; 0: unknown */
    double exchange_ns, exchange_bytes;  /* of exchanges so far, the older ones for less and less */
    uint32_t n_skipped;                  /* exchanges since the last one, which would have taken longer */
};

struct moec_variants {
    struct moec_experts experts; /* first: the forward pass sees this */
    struct variants_model of;
    struct variants_numbers numbers;
    struct variants_choice choice;
    struct variants_encoding encoding;
    struct moec_record_store store;
    struct variants_pace pace;
    struct {
        uint32_t *all; /* (n_expert): experts that the forward pass will acquire next, in order */
        uint32_t n;
        uint32_t layer;
    } next;
    pthread_mutex_t lock;
};

static inline bool variants_has_number(const struct moec_variants *variants, uint32_t number)
{
    return number < MOEC_CODEC_TABLE && variants->numbers.layouts[number].n_bytes > 0;
}

/* The indices that a code needs, and the projection that comes from the first of them. */
struct variants_parts {
    uint32_t index[2];
    uint32_t n; /* 1: the whole expert from index[0] */
    enum moec_projection projection;
};

/* n = 0 for a code that does not exist. */
static inline struct variants_parts variants_parts_of(const struct moec_variants *variants, uint32_t code)
{
    struct variants_parts parts = {{code & 63u, variants->choice.rest_number}, .n = 1};
    if (!variants_has_number(variants, parts.index[0]) || code > UINT8_MAX)
        return (struct variants_parts){.n = 0};
    if (code >> 6 != 0) {
        parts.projection = (enum moec_projection)((code >> 6) - 1);
        parts.n = 2;
    }
    return parts;
}

static inline size_t variants_place_of(const struct moec_variants *variants, uint32_t layer, uint32_t expert)
{
    return (size_t)variants->of.ordinals[layer] * variants->of.config->n_expert + expert;
}

static inline struct moec_record_slot *variants_slot_at(const struct moec_variants *variants, uint32_t layer,
                                                        uint32_t expert, uint32_t index)
{
    return &variants->numbers.slots[index][variants_place_of(variants, layer, expert)];
}

static inline struct moec_record_layout variants_layout_of(const struct moec_variants *variants,
                                                           uint32_t layer, uint32_t expert, uint32_t index)
{
    if (index != VARIANTS_MIXED)
        return variants->numbers.layouts[index];
    return moec_record_layout_of(variants->of.config,
                                 variants->choice.mixed[variants_place_of(variants, layer, expert)],
                                 variants->numbers.codecs);
}

/* What an expert is assigned. */
static inline struct variants_parts variants_assigned_parts(const struct moec_variants *variants,
                                                            uint32_t layer, uint32_t expert)
{
    const uint8_t code = variants->choice.assignment[variants_place_of(variants, layer, expert)];
    return code == 0 ? (struct variants_parts){.index = {VARIANTS_MIXED}, .n = 1}
                     : variants_parts_of(variants, code);
}

/* The bytes of a record, from the exact weights where these are in memory; `scratch` as an encoder wants it.
 * Any thread, while nobody changes slots. Errors: those of the encoder. */
MOEC_WARN_UNUSED enum moec_status moec_variants_encode(const struct moec_variants *variants,
                                                       const struct moec_expert_record *made,
                                                       uint8_t *scratch, uint8_t *bytes,
                                                       struct moec_error *err);

#endif
