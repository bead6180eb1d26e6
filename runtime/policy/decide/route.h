/* Routing that prefers what is in memory (cache-conditional experts, arXiv:2412.00099): which experts a token
 * takes when the router's own choice may be changed for one that needs less reading.
 *
 *   cache-prior:L   experts in the cache get L times the router's range on top of what it compares (eq. 9);
 *                   which range: cache-prior:L:running (also without), :calibrated, :own
 *   max-rank:M      experts in the cache come first among the router's M best (eq. 6, Algorithm 1)
 *   cumsum:P        the same with as many as it takes to make up the share P (eq. 8, Algorithm 2)
 *   prune:N         the router's N best alone; the others are skipped
 *   top-k           the router's own; the cache is counted and changes nothing
 *   ...:skip:W      any of these, and of what it takes those that are not in the cache are skipped, from the
 *                   smallest weight on, as long as their weights make up no more than W. They are the
 *                   weights that outputs would be multiplied with: W bounds what a token's layer loses
 *
 * The cache is a logical one (runtime/policy/decide/route_state.h), so a choice is a function of bundle, settings
 * and tokens alone (D15). What stands for the paper's logits z is what the router compares: its logits where
 * it compares by softmax alone, else score plus choice bias; experts of groups that are left out never come
 * in. The range is max(z) - min(z) (eq. 10), averaged over the sequence's tokens so far; or, as appendix D
 * compares (Fig. 15), over calibration, layer by layer; or the token's own. Weights come from the unmodified
 * scores of the experts taken; a skipped expert's weight is lost, the others' stay as they are. */
#ifndef MOEC_RUNTIME_ROUTE_H
#define MOEC_RUNTIME_ROUTE_H

#include "formats/model/config.h"
#include "formats/tables/path_table.h"
#include "runtime/policy/decide/choice.h"
#include "runtime/policy/decide/precision.h"
#include "runtime/policy/decide/prefill.h"

enum moec_route_kind {
    MOEC_ROUTE_TOP_K = 0,
    MOEC_ROUTE_CACHE_PRIOR,
    MOEC_ROUTE_MAX_RANK,
    MOEC_ROUTE_CUMSUM,
    MOEC_ROUTE_PRUNE,
    MOEC_ROUTE_COUNT
};

/* Over what the router's range is averaged. */
enum moec_route_range {
    MOEC_ROUTE_RANGE_RUNNING = 0, /* the sequence's tokens so far, in each layer */
    MOEC_ROUTE_RANGE_CALIBRATED,  /* calibration's, as a path table has it */
    MOEC_ROUTE_RANGE_OWN,         /* nothing: the token's own */
    MOEC_ROUTE_RANGE_COUNT
};

/* What a pass decides about each token. Zero-initialised: the router's own, without a cache. */
struct moec_route {
    uint8_t kind;  /* enum moec_route_kind */
    uint8_t range; /* enum moec_route_range, of cache-prior */
    bool
        decode_only; /* tokens of a prompt take the router's choice at one precision, and advance the cache */
    uint32_t n_slots;    /* experts of a layer that the logical cache holds; 0 = there is none */
    uint32_t keep_top;   /* J: the router's best so many are taken whatever the cache holds */
    uint32_t n_expert;   /* M of max-rank, N of prune */
    float share;         /* L of cache-prior, P of cumsum */
    float skip;          /* W of skip; 0 = nothing is */
    const float *ranges; /* (MoE layers) of MOEC_ROUTE_RANGE_CALIBRATED. Borrowed. */
    /* (MoE layers, n_expert) by falling frequency in calibration: the first ones fill the slots of a sequence
     * that begins, the most frequent as the most recent. NULL: empty at first. Borrowed. */
    const struct moec_path_value *initial;
    struct moec_precision precision; /* of the experts that were chosen; its high copies fill the slots */
    struct moec_prefill prefill;     /* and of those of a prompt */
    uint32_t n_low_slots; /* with either: low copies of a layer that the logical cache holds beside them */
};

/* Slots where a user names none. */
#define MOEC_ROUTE_SLOTS     "50%"
#define MOEC_ROUTE_LOW_SLOTS "25%"

/* Whether decisions look at the expert buffer; then there is no logical cache. */
static inline bool moec_route_looks_at_buffer(const struct moec_route *route)
{
    return route->precision.kind == MOEC_PRECISION_SHARED;
}

/* Whether sequences need a state for it. */
static inline bool moec_route_is_on(const struct moec_route *route)
{
    return route->kind != MOEC_ROUTE_TOP_K || route->n_slots > 0 || moec_route_looks_at_buffer(route);
}

/* Whether experts may be taken in a low copy. */
static inline bool moec_route_takes_low(const struct moec_route *route)
{
    return route->precision.kind != MOEC_PRECISION_ONE || route->prefill.kind != MOEC_PREFILL_SAME;
}

/* Reads "cache-prior:0.2", "cache-prior:0.2:skip:0.1" and their like into kind, range, n_expert, share and
 * skip. Errors: MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED enum moec_status moec_route_read(const char *text, struct moec_route *route,
                                                  struct moec_error *err);

/* Reads "12" or "50%" of a layer's experts; a share gives at least those of one token. Errors:
 * MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED enum moec_status moec_route_read_slots(const char *text, const struct moec_config *config,
                                                        uint32_t *n_slots, struct moec_error *err);

/* Whether the settings fit a model. Errors: MOEC_ERR_USAGE, with the values that would. */
MOEC_WARN_UNUSED enum moec_status moec_route_check(const struct moec_route *route,
                                                   const struct moec_config *config, struct moec_error *err);

/* Lets sequences begin with the experts that calibration used most, as a path table has them. Errors:
 * MOEC_ERR_USAGE where the table is not of this model; `path` names who has it. */
MOEC_WARN_UNUSED enum moec_status moec_route_start_frequent(struct moec_route *route,
                                                            const struct moec_config *config,
                                                            const struct moec_path_table *paths,
                                                            const char *path, struct moec_error *err);

/* Lets a route that wants calibrated ranges have a path table's; others are left as they are. Errors:
 * MOEC_ERR_USAGE where the table (or NULL) has none of this model; `path` names who should have them. */
MOEC_WARN_UNUSED enum moec_status moec_route_know_ranges(struct moec_route *route,
                                                         const struct moec_config *config,
                                                         const struct moec_path_table *paths,
                                                         const char *path, struct moec_error *err);

/* Lets a prefill know what calibration used, and a precision without thresholds how scores are spread, where
 * the table is of this model; else nothing changes. */
void moec_route_know_calibration(struct moec_route *route, const struct moec_config *config,
                                 const struct moec_path_table *paths);

/* The choice by these settings; `route` is borrowed. */
struct moec_choice moec_route_choice(const struct moec_route *route);

/* Of a token's experts (top_k) with these weights, as applied: skips (top_k) gains those that a route with W
 * skips; at equal weights the later rank goes first. The best J are never skipped. */
void moec_route_skip(const struct moec_route *route, const struct moec_scored_token *token,
                     const uint32_t *experts, const float *weights, bool *skips);

#endif
