/* Every expert of a checkpoint in any codec, made on demand: the expert source that profiling runs on.
 *
 * A variant is one expert encoded in one codec, byte for byte the record that a bundle would hold.
 * Variants are made when first asked for, from the checkpoint or an exact record of it in memory, and kept in
 * memory up to a limit; the least recently used one makes room and is encoded again when it is needed again,
 * so checkpoints larger than memory work. An assignment says which variant the forward pass gets for each
 * expert.
 *
 * Codecs have numbers (formats/codec/codec.h). Bitwidths below 16 are there from the start; 16 = the
 * checkpoint's own 16-bit type unchanged (F32 sources round to BF16); 32 = F32, the exact weights of any
 * source. moec_variants_source_bits gives the smallest one that is exact. Further codecs, from
 * MOEC_CODEC_FIRST_OTHER on, are there once they are set.
 *
 * Where a function takes a code, this is a number, or one projection at a number
 * (moec_variants_projection_code): the other two projections then have the number of moec_variants_set_rest.
 * Any other mixture comes from a plan.
 *
 * Thread rule: every function may be called from any thread (one lock inside), except that assigning, setting
 * a codec or the encoder, and freeing need that no forward pass is running on the source. */
#ifndef MOEC_PROFILER_VARIANTS_H
#define MOEC_PROFILER_VARIANTS_H

#include "formats/checkpoint/checkpoint.h"
#include "formats/checkpoint/expert_encoder.h"
#include "formats/model/plan.h"
#include "runtime/seam/experts.h"
#include "runtime/threads/parallel.h"

struct moec_variants;

struct moec_variants_options {
    /* Of every INT variant, quantised linearly unless moec_variants_set_codec says otherwise. */
    enum moec_scheme scheme;
    uint32_t group;             /* 0, 32, 64, 128 */
    uint64_t cache_limit_bytes; /* of records in memory; 0 = no bound */
    int n_threads;              /* that moec_variants_prepare encodes with, as moec_pool_make */
};

/* `checkpoint` is borrowed until free. Every expert starts assigned to its source bits. Errors:
 * MOEC_ERR_USAGE for a wrong group, MOEC_ERR_BUDGET when the limit is under one record at source bits. */
MOEC_WARN_UNUSED enum moec_status moec_variants_create(const struct moec_checkpoint *checkpoint,
                                                       const struct moec_variants_options *options,
                                                       struct moec_variants **out, struct moec_error *err);
void moec_variants_free(struct moec_variants *variants);

/* Encodes the variants of this number, the codec's bitwidth or a further codec's, with this codec (quantizer,
 * scheme and group) from now on; records of another codec at that number are dropped. None of them may be
 * borrowed. Errors: MOEC_ERR_USAGE for codecs of 16 bits and above and for a number that the codec cannot
 * have, MOEC_ERR_FORMAT for a codec that does not exist, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_variants_set_codec(struct moec_variants *variants, uint32_t number,
                                                          struct moec_codec codec, struct moec_error *err);

/* The same for every codec below 16 bits of a table; numbers without one stay as they are. */
MOEC_WARN_UNUSED enum moec_status
moec_variants_set_codecs(struct moec_variants *variants,
                         const struct moec_codec codecs[static MOEC_CODEC_TABLE], struct moec_error *err);

/* Codec of the variants of this number, which exists. */
struct moec_codec moec_variants_codec(const struct moec_variants *variants, uint32_t number);

/* Who encodes from now on, borrowed until the next call; NULL = the checkpoint, as at first. Records of
 * integers are dropped, and those of floats where one of both puts neurons in another order; none of them may
 * be borrowed. */
void moec_variants_set_encoder(struct moec_variants *variants, const struct moec_expert_encoder *encoder);

/* The source to give to moec_forward_init; borrowed until free. acquire answers with the assigned variant.
 * Errors of acquire: MOEC_ERR_USAGE (layer, expert), MOEC_ERR_BUDGET when acquired variants alone fill the
 * limit, and those of the encoder. */
struct moec_experts *moec_variants_experts(struct moec_variants *variants);

/* From now on the source offers a second form of every expert, the variant of this code, beside the assigned
 * one: the low copy of runtime/policy/decide/precision.h. Like assigning. Errors: MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED enum moec_status moec_variants_serve_low(struct moec_variants *variants, uint32_t code,
                                                          struct moec_error *err);

/* Bits that hold the checkpoint's experts exactly: 16 for BF16 and F16 sources, 32 for F32. */
uint32_t moec_variants_source_bits(const struct moec_variants *variants);

/* The code of an expert with one projection at `number` and the others at the rest's. */
static inline uint8_t moec_variants_projection_code(uint32_t number, enum moec_projection projection)
{
    return (uint8_t)(number | ((uint32_t)projection + 1) << 6);
}

/* Number of the projections that a code does not name; at first the source bits. Errors: MOEC_ERR_USAGE. Like
 * assigning, needs that nothing is borrowed under such a code. */
MOEC_WARN_UNUSED enum moec_status moec_variants_set_rest(struct moec_variants *variants, uint32_t number,
                                                         struct moec_error *err);

/* Filters (MoE layers, n_expert) that assigned experts get when the forward pass acquires them, borrowed
 * until the next call; NULL = none. */
void moec_variants_set_filters(struct moec_variants *variants, const struct moec_mlp_filter *filters);

/* Copies a table of (MoE layers, n_expert) codes. Errors: MOEC_ERR_USAGE naming the first wrong entry
 * (nothing is changed then). */
MOEC_WARN_UNUSED enum moec_status moec_variants_assign(struct moec_variants *variants,
                                                       const uint8_t *assignment, struct moec_error *err);

/* The same by a plan, whose projections may differ: the record is then encoded as the bundle would hold it.
 */
MOEC_WARN_UNUSED enum moec_status moec_variants_assign_plan(struct moec_variants *variants,
                                                            const struct moec_plan *plan,
                                                            struct moec_error *err);

/* The same for one expert of one model layer; for every expert at once. */
MOEC_WARN_UNUSED enum moec_status moec_variants_assign_one(struct moec_variants *variants, uint32_t layer,
                                                           uint32_t expert, uint32_t code,
                                                           struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_variants_assign_all(struct moec_variants *variants, uint32_t code,
                                                           struct moec_error *err);

/* Encodes on all threads those variants of one layer's experts of `code` (0 = as assigned) that are not in
 * memory, in increasing index as long as they fit into the limit. Never needed, only faster. */
MOEC_WARN_UNUSED enum moec_status moec_variants_prepare(struct moec_variants *variants, uint32_t layer,
                                                        uint32_t code, struct moec_error *err);

/* The same for the experts first .. first + n - 1, as far as there are so many. */
MOEC_WARN_UNUSED enum moec_status moec_variants_prepare_some(struct moec_variants *variants, uint32_t layer,
                                                             uint32_t first, uint32_t n, uint32_t code,
                                                             struct moec_error *err);

enum moec_variants_need {
    MOEC_VARIANTS_SOON, /* they make room after all others, the first of them last */
    MOEC_VARIANTS_DONE  /* they make room before all others */
};

/* Says of the records of a code, of experts first .. first + n - 1 of a layer with experts, those that are
 * in memory, when they are needed again. */
void moec_variants_rank(struct moec_variants *variants, uint32_t layer, uint32_t first, uint32_t n,
                        uint32_t code, enum moec_variants_need need);

/* Bytes of one record of this code (of one projection: of the record that it comes from); 0 for a code that
 * does not exist. */
uint64_t moec_variants_record_bytes(const struct moec_variants *variants, uint32_t code);

/* The limit that they were created with. */
uint64_t moec_variants_limit_bytes(const struct moec_variants *variants);

#endif
