/* Statistics of expert paths: builds the path table (formats/tables/path_table.h) from a routing trace and
 * measures how well it predicts (EdgeMoE III-C1; design, "Words with one meaning").
 *
 * Trace: (T, S, k) choices of T tokens in order of weight, gate weights as F16 bits; MOEC_PATH_NONE where a
 * token has none because its expert was full. `used` (T) says which tokens count; NULL = all. Each stack of
 * an encoder-decoder model is a trace of its own, of some of the layers and tokens of one array: paths
 * neither cross from one to the other nor does a token pass both. Thread rule: pure functions. */
#ifndef MOEC_PROFILER_PATHS_H
#define MOEC_PROFILER_PATHS_H

#include "formats/tables/path_table.h"

struct moec_path_trace {
    uint32_t n_layer; /* S */
    uint32_t n_expert;
    uint32_t top_k;          /* k */
    uint64_t n_token;        /* T */
    const uint16_t *experts; /* (T, row_layers, k) */
    const uint16_t *weights; /* (T, row_layers, k) */
    uint32_t first_layer;    /* of the array, that layer 0 is */
    uint32_t row_layers;     /* layers of the array; 0 = S */
};

/* Counts, for every pair of a token's choices in the two MoE layers before n (and every single choice in the
 * one before), which experts the token then activated in layer n; a value's probability is the share of the
 * key's tokens that activated the expert. The layers' frequencies likewise.
 * Released with moec_path_table_release. */
MOEC_WARN_UNUSED enum moec_status moec_paths_build(const struct moec_path_trace *trace, const uint8_t *used,
                                                   struct moec_path_table *table, struct moec_error *err);

/* How often predictions were right. */
struct moec_path_hits {
    uint64_t *by_path;      /* (S, E), the caller's, filled */
    uint64_t *by_frequency; /* (S, E): the same, predicting by the layer's frequencies alone */
    uint64_t n_used;        /* tokens, set */
};

/* How often a prediction was right, by its place: by_path (S, E) = tokens used that activated in this layer
 * the expert which the table held for the r-th likeliest; equally likely ones stand by index. Layer 0, which
 * has no layer before it, predicts by frequency. Sums over a row are activations: tokens used times k, fewer
 * where experts were full. Errors: MOEC_ERR_USAGE, MOEC_ERR_MISMATCH, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_paths_hits(const struct moec_path_table *table,
                                                  const struct moec_path_trace *trace, const uint8_t *used,
                                                  struct moec_path_hits *hits, struct moec_error *err);

/* Recall of the activated experts among the top k, k + 1 and 2k predicted, from hits (S, E): the share of the
 * n_choice activations of each layer that stand among them. recall: (S, 3); 0 without any. */
void moec_paths_recall(const uint64_t *hits, uint32_t n_layer, uint32_t n_expert, uint32_t top_k,
                       uint64_t n_choice, double *recall);

/* The table with the fewest-seen pair keys left out, so that its encoded bytes are at most max_bytes; single
 * keys go after all pairs, the frequencies stay. Ties keep the earlier key. */
MOEC_WARN_UNUSED enum moec_status moec_paths_prune(const struct moec_path_table *table, uint64_t max_bytes,
                                                   struct moec_path_table *pruned, struct moec_error *err);

/* Adds a later stack's table to that of the one before: its layers follow. `stack` is left as it is; on
 * failure `table` is too. Errors: MOEC_ERR_MISMATCH, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_paths_append(const struct moec_path_table *stack,
                                                    struct moec_path_table *table, struct moec_error *err);

/* Curves of path popularity (EdgeMoE Fig. 4): a token's path is its rank-1 expert in each of these
 * layers, or that it had none; shares (room for T) receives the share of the tokens used on each
 * distinct path, most popular first. S layers give full paths, 3 those of consecutive layers. */
MOEC_WARN_UNUSED enum moec_status moec_paths_popularity(const struct moec_path_trace *trace,
                                                        const uint8_t *used, struct moec_moe_range layers,
                                                        double *shares, uint64_t *n_path,
                                                        struct moec_error *err);

#endif
