/* Run modes: at which precision experts run, and how they come into memory. One table, which everything else
 * uses.
 *
 *     name         experts        kept across tokens       makes room        guesses      start
 *     cache        assignment     yes                      any               any          warm
 *     edgemoe      assignment     yes                      edgemoe           path table   warm
 *     io-free      16 bits        all of them              -                 -            all read
 *     io-qfree     8 bits         all of them              -                 -            all read
 *     io-exp       16 bits        no                       -                 -            cold
 *     io-qexp      4 bits         no                       -                 -            cold
 *     sti          assignment     no                       -                 every expert in order
 *     io-exp+lru   16 bits        yes                      lru               none         cold
 *     io-qexp+lru  4 bits         yes                      lru               none         cold
 *     lod          assignment     no                       -                 none         cold
 *     eap          assignment     yes                      fate              path table   cold
 *     moe-offloading  assignment  yes                      lru               next gate    cold
 *     moe-infinity    assignment  yes                      lfu               path table   cold
 *
 * edgemoe is EdgeMoE, III-C; io-free to sti are the baselines of its evaluation (IV-A), and the next two give
 * io-exp and io-qexp the buffer that edgemoe has. The last four are what others compare with, here with the
 * records and the reads that all modes share, so that policies alone differ: Fate's Load on Demand and its
 * strategy by expert activation paths (5.1, whose caching is identical to Fate's; a bundle that does not know
 * its shallow layers has ARC alone); MoE-Offloading and MoE-Infinity as HOBBIT
 * describes them (section 2, Fig. 14), the latter with the path table for its traces of requests. Whole
 * layers on demand, as Transformers and DeepSpeed-Inference load them there, are sti. The assignment is the
 * compiled model (precision copy 0); 16 bits are the checkpoint's own precision, and copies are made with
 * `moec compile --copies`. */
#ifndef MOEC_RUNTIME_MODE_H
#define MOEC_RUNTIME_MODE_H

#include "formats/bundle/bundle.h"
#include "runtime/engine/memory_plan.h"
#include "runtime/policy/evict/evict.h"
#include "runtime/policy/predict/predict.h"

struct moec_mode {
    const char *name;
    uint32_t bits;     /* of the copy that it runs; 0 = the assignment */
    bool takes_any;    /* other copies, policies and predictors may be chosen; those below are defaults */
    bool is_resident;  /* refused where not every expert fits */
    bool is_warm;      /* the buffer is filled by frequency before the first token */
    bool keeps;        /* experts stay until others need the room; else they go when they are released */
    bool by_name;      /* moec bench runs it only where it is named */
    bool streams_all;  /* every expert of every layer is read in order (runtime/experts/expert_stream.h) */
    const char *evict; /* NULL = nothing is evicted */
    const char *predict;
};

/* All of them, in the order above, ended by a NULL name. */
extern const struct moec_mode moec_modes[];

/* What is asked for; NULL and 0 leave it to the mode, mode NULL is "cache". */
struct moec_mode_request {
    const char *mode;
    const char *evict; /* a word of moec_evict_read */
    const char *predict;
    uint32_t copy;
    uint32_t preload_count;
    uint32_t preload_ahead;
    bool has_device; /* that holds experts */
    bool
        decides; /* tokens take experts by what a logical cache holds: gates foretell it, nothing else does */
};

struct moec_mode_choice {
    const struct moec_mode *mode;
    uint32_t copy;
    struct moec_evict_choice evict; /* ops NULL = nothing is evicted */
    const struct moec_predict_ops *predict;
    uint32_t preload_count;
    uint32_t preload_ahead; /* 1 .. MOEC_GATES_AHEAD; 0 where nothing is predicted */
    /* The mode would guess by the path table, but the bundle has none, so it guesses nothing. */
    bool lacks_paths;
};

/* Decides how this bundle is run. Errors: MOEC_ERR_USAGE for names that there are not, for choices that
 * contradict the mode, and for copies that the bundle lacks, naming the flag that makes them. */
MOEC_WARN_UNUSED enum moec_status moec_mode_choose(const struct moec_bundle *bundle,
                                                   const struct moec_mode_request *request,
                                                   struct moec_mode_choice *out, struct moec_error *err);

/* The policy by which the mode evicts where nobody names one, as the bundle was fitted; NULL where it evicts
 * nothing. */
const char *moec_mode_evict(const struct moec_mode *mode, const struct moec_bundle *bundle);

/* What a mode's own predictor goes by. */
struct moec_mode_facts {
    bool routes_by_token; /* some layers do */
    bool is_taught;     /* the bundle has a predictor of moec predict, written because it was proven better */
    bool has_device;    /* as in the request */
    bool decides;       /* likewise */
    const char *fitted; /* what moec fit found the fastest; NULL = the bundle was not fitted */
};

struct moec_mode_facts moec_mode_facts_of(const struct moec_bundle *bundle, bool has_device);

/* How the mode predicts where nobody says how. */
const char *moec_mode_predict(const struct moec_mode *mode, struct moec_mode_facts facts);

/* Whether the plan suits the mode. Errors: MOEC_ERR_BUDGET with sizes,
 * where a resident mode's experts do not fit. */
MOEC_WARN_UNUSED enum moec_status moec_mode_check_plan(const struct moec_mode *mode,
                                                       const struct moec_memory_plan *plan,
                                                       struct moec_error *err);

#endif
