/* One attention of a layer over a block of a batch's rows, as its steps share it (internal to
 * runtime/forward/attention/attention.c and attend.c). */
#ifndef MOEC_RUNTIME_ATTENTION_BLOCK_H
#define MOEC_RUNTIME_ATTENTION_BLOCK_H

#include "runtime/forward/context/context.h"
#include "runtime/forward/context/scratch.h"
#include "runtime/forward/context/span.h"

/* The weights of one of a layer's attentions. */
struct moec_projections {
    const float *norm;
    const struct moec_matrix *q, *k, *v, *o; /* v: NULL where keys are values */
    const struct moec_matrix *gate;          /* or NULL, as all that follow */
    const float *q_bias, *k_bias, *v_bias, *o_bias, *q_norm, *k_norm, *v_norm, *sinks, *post_norm;
    const struct moec_matrix *q_down, *kv_down, *kv_up; /* with a latent, in place of k and v */
    const float *q_down_norm, *kv_down_norm;
};

/* One block; tokens are counted from its first row. */
struct moec_attention {
    const struct moec_forward *forward;
    const struct moec_layer_kind *kind;
    struct moec_projections weights;
    enum moec_stack stack;
    const float *position_bias; /* the stack's table, or NULL */
    bool is_causal;
    bool has_own_keys; /* the batch's rows make keys and values */
    const struct moec_span *spans;
    uint32_t n_spans;
    uint32_t first_row;
    uint32_t n_tok;
    size_t kv_stride;               /* floats of one position's keys */
    size_t kv_room;                 /* those of memory that they take where they are kept */
    size_t head_bytes;              /* from one head's to the next's there */
    size_t q_stride;                /* of the queries of a token in scratch */
    uint32_t key_dim, value_dim;    /* of a head */
    size_t head_stride;             /* key_dim, padded */
    size_t value_stride;            /* value_dim, padded */
    size_t group_bytes;             /* the same from one group's to the next's; 0 = all share one */
    uint32_t tile;                  /* queries in a tile */
    uint32_t group, n_group;        /* query heads that are worked on together */
    uint32_t heads;                 /* of those n_group in an item */
    bool by_heads;                  /* kernels take several of them together where there is one query */
    const float *inverse_frequency; /* this and the two that follow: NULL where nothing is rotated */
    float *rope;
    uint32_t *rope_position;
    float scale;
    size_t outputs;   /* where a token's row of scratch holds its outputs */
    bool whole_spans; /* an item is a whole span, not a tile of it */
    float *hidden;
};

/* Keys or values of n_heads groups from `row` on, as kernels take several heads together. */
static inline struct moec_heads moec_attention_heads(const struct moec_attention *attention, const void *row,
                                                     uint32_t n_heads)
{
    return (struct moec_heads){.rows = row,
                               .stride_bytes = attention->kv_room * sizeof(float),
                               .n_heads = n_heads,
                               .dim = attention->key_dim,
                               .n_queries = attention->group,
                               .codec = attention->kind->kv};
}

/* Of the chunk of positions from `first` on, rows *begin .. *end - 1 are positions from .. to - 1. */
static inline void moec_attention_see(uint32_t from, uint32_t to, uint32_t first, uint32_t *begin,
                                      uint32_t *end)
{
    *begin = from > first ? from - first : 0;
    *end = moec_min_u32(MOEC_SUM_CHUNK, to - first);
}

/* A row's maximum so far becomes `max` where that is more: its total, and its sum of n floats in whole lanes,
 * shrink, since they count against it. */
static inline void moec_attention_raise(float max, float *so_far, float *total, float *sum, size_t n)
{
    if (!(max > *so_far))
        return;
    if (*total > 0) {
        const float shrink = moec_exp_f32(*so_far - max);
        *total *= shrink;
        moec_scale_lanes(sum, n, shrink);
    }
    *so_far = max;
}

/* Outputs of all heads for the block's queries, which stand in scratch, in their place; keys and values are
 * where the spans have them. */
void moec_attend(struct moec_attention *attention);

#endif
