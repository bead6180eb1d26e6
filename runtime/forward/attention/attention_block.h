/* One attention of a layer over a block of a batch's rows, as its steps share it (internal to
 * runtime/forward/attention/attention.c and attend.c). */
#ifndef MOEC_RUNTIME_ATTENTION_BLOCK_H
#define MOEC_RUNTIME_ATTENTION_BLOCK_H

#include "runtime/forward/context/context.h"
#include "runtime/forward/context/scratch.h"
#include "runtime/forward/context/span.h"

/* A product of an attention: its matrix, and its bias and norm or NULL. */
struct moec_projected {
    const struct moec_matrix *matrix; /* NULL where there is no such product */
    const float *bias;
    const float *norm; /* of what it gives: of q, k and v by heads or whole, of o as it is added */
};

/* With a latent, in place of k and v. */
struct moec_latent_weights {
    const struct moec_matrix *q_down, *kv_down, *kv_up;
    const float *q_down_norm, *kv_down_norm;
};

/* The weights of one of a layer's attentions. */
struct moec_projections {
    const float *norm;
    struct moec_projected q, k, v, o; /* v has no matrix where keys are values */
    const struct moec_matrix *gate;   /* or NULL, as what follows */
    const float *sinks;
    struct moec_latent_weights latent;
};

/* The batch's rows that a block has. */
struct moec_attention_rows {
    const struct moec_span *spans;
    uint32_t n_spans;
    uint32_t first; /* tokens are counted from it */
    uint32_t n_tok;
    float *hidden;     /* from the first row on */
    bool has_own_keys; /* the rows make keys and values */
};

/* What positions mean: which a query sees, and how far ones count. */
struct moec_attention_positions {
    enum moec_stack stack;
    const float *bias; /* the stack's table, or NULL */
    bool is_causal;
    const float *inverse_frequency; /* this and the two that follow: NULL where nothing is rotated */
    float *rope;
    uint32_t *rope_position;
};

/* How heads stand in rows of keys and values, and in scratch. */
struct moec_attention_layout {
    size_t kv_stride;            /* floats of one position's keys */
    size_t kv_room;              /* those of memory that they take where they are kept */
    size_t head_bytes;           /* from one head's to the next's there */
    size_t group_bytes;          /* the same from one group's to the next's; 0 = all share one */
    uint32_t key_dim, value_dim; /* of a head */
    size_t head_stride;          /* key_dim, padded */
    size_t value_stride;         /* value_dim, padded */
};

/* Queries of the block's tokens, which stand in scratch. */
struct moec_attention_queries {
    size_t stride;  /* of those of a token */
    size_t outputs; /* where a token's row holds its outputs */
    float scale;    /* of scores */
};

/* The items that threads share the block's work by. */
struct moec_attention_items {
    uint32_t tile;           /* queries in a tile */
    uint32_t group, n_group; /* query heads that are worked on together */
    uint32_t heads;          /* of those n_group in an item */
    bool by_heads;           /* kernels take several of them together where there is one query */
    bool whole_spans;        /* an item is a whole span, not a tile of it */
};

/* One block. */
struct moec_attention {
    const struct moec_forward *forward;
    const struct moec_layer_kind *kind;
    struct moec_projections weights;
    struct moec_attention_rows rows;
    struct moec_attention_positions positions;
    struct moec_attention_layout layout;
    struct moec_attention_queries queries;
    struct moec_attention_items items;
};

/* Keys or values of n_heads groups from `row` on, as kernels take several heads together. */
static inline struct moec_heads moec_attention_heads(const struct moec_attention *attention, const void *row,
                                                     uint32_t n_heads)
{
    return (struct moec_heads){.rows = row,
                               .stride_bytes = attention->layout.kv_room * sizeof(float),
                               .n_heads = n_heads,
                               .dim = attention->layout.key_dim,
                               .n_queries = attention->items.group,
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
