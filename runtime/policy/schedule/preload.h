/* What to preload, and when to leave it: turns a predictor's ranking into reads (shared by the runtime and
 * the simulator).
 *
 * A read takes a until its bytes begin to come, unless it waits behind others meanwhile, and t while they
 * come. With n reads in flight before it a prefetch is there after g = max(a, n t) + t. When the next router
 * answers, in w, what it demands begins to come after max(n t, w + a) without the prefetch and max(g, w + a)
 * with it. So a wrong prefetch costs the difference h of the two, which is 0 where it fits into the latency of
 * the next demand, and c for the record that makes room. A right one saves t - h where other reads follow
 * anyway, and else all the time until the record would have been there. A prefetch is acted upon when
 *
 *     p (A (max(n t, w + a) + t - max(w, g)) + (1 - A) (t - h)) > (1 - p) (h + c) + o
 *
 * p: how often prefetches of this layer, rank and score that were absent were right so far; A: the chance that
 * nothing else will be missing. p, a, t and w are learned while running; p starts from the predictor's score,
 * and without a time for read and window nothing is prefetched. c is a fixed share of t (what it is: preload.c),
 * o what the reader's handling of a prefetch takes from the threads that compute. Where tokens with prefetches
 * turn out slower than tokens without, nothing is prefetched (runtime/policy/schedule/preload_trial.h). With
 * --preload-count N the first N prefetches that are absent are read whatever they cost, and the router's answer does
 * not stop them; no time enters.
 *
 * A walk (HOBBIT, arXiv:2411.01433, section 3.3) goes on to the layer behind the next one, up to p layers
 * from the one that answered, while everything that the layers before will probably ask for is there or on
 * its way: the first k of one token, of a batch what at least one token is expected to choose. Such a prefetch
 * has until v > w to arrive, and saves, where nothing else is missing, v + a + t - max(v, g) - h. What is
 * likely of any layer goes before the rest. p of the rule is learned for each distance.
 *
 * Where experts may come in a low copy too, a prefetch of one token is of the copy for which its score asks:
 * that of eq. 2 on the weights that the gate foretells (runtime/policy/decide/precision.h). What would be skipped is
 * not read, and a prefetch is right in its own copy alone.
 *
 * With a predictor that knows tokens, what layers will ask for that route by token is no prefetch: it comes
 * before all prefetches, in the order of the layers, whatever a read costs, and is asked for again after each
 * answer as long as its layer has not answered.
 *
 * Thread rule: the caller's lock covers every call on one instance. */
#ifndef MOEC_RUNTIME_PRELOAD_H
#define MOEC_RUNTIME_PRELOAD_H

#include "runtime/policy/decide/precision.h"
#include "runtime/policy/predict/predict.h"

struct moec_preload;

/* p where nobody asks for another. */
#define MOEC_PRELOAD_AHEAD 1u

/* o of records from storage: a thread wakes for each that comes. Measured on two cores, four bundles: with 20
 * to 45 us tokens take the same time, with less and more up to 4 % longer. */
#define MOEC_PRELOAD_HANDLING_NS 30000u

/* What the chooser may ask the cache. */
struct moec_preload_view {
    bool (*is_present)(void *context, uint32_t key);     /* there or on its way */
    uint64_t (*n_bytes_of)(void *context, uint32_t key); /* of its record */
    void *context;
};

/* How far prefetches go. */
struct moec_preload_bounds {
    uint32_t ahead; /* p: layers that a walk may come to, at most MOEC_GATES_AHEAD; 0 = 1 */
    uint32_t count; /* --preload-count; 0 = bounded by time */
    bool is_tried;  /* bounded by time: nothing is prefetched where tokens without prefetches are faster */
    uint32_t handling_ns; /* o of the rule */
};

struct moec_preload_setup {
    const struct moec_predict_ops *predictor;
    struct moec_predict_setup model;
    struct moec_preload_view view;
    struct moec_preload_bounds bounds;
    /* Where experts may be asked for in a low copy too (form 1): which is prefetched. */
    uint32_t n_form; /* that keys tell apart; 0 = 1 */
    struct moec_precision precision;
};

uint64_t moec_preload_state_bytes(const struct moec_preload_setup *setup);
MOEC_WARN_UNUSED enum moec_status moec_preload_create(const struct moec_preload_setup *setup,
                                                      struct moec_preload **out, struct moec_error *err);
void moec_preload_free(struct moec_preload *preload); /* NULL-safe */

/* The tokens that begin to pass the layers will ask for these experts (n) of a layer (MoE ordinal): of a
 * predictor that knows tokens alone. Takes the place of what was known of the layer. */
void moec_preload_know(struct moec_preload *preload, uint32_t ordinal, const uint32_t *experts, uint32_t n);
/* Whether a layer that has not answered yet is known. */
bool moec_preload_knows(const struct moec_preload *preload);

/* A router has answered at now_ns: judges the prefetches that were made for its layer. After it, prefetches for the
 * layer that answered are no more to be made, and none for the next one until its experts are ranked. */
void moec_preload_answer(struct moec_preload *preload, const struct moec_router_answer *answer,
                         uint32_t ordinal, uint64_t now_ns);
/* Whether those of the MoE layer `ahead` of the one that answered are to be ranked now: not while nothing
 * would be prefetched anyway, and beyond 1 where a walk has come to it. */
bool moec_preload_wants_rank(const struct moec_preload *preload, uint32_t ahead);
/* Ranks them, from the same answer. */
void moec_preload_rank(struct moec_preload *preload, const struct moec_router_answer *answer, uint32_t ahead);

/* A read of n_bytes took read_ns by itself: until its bytes were there, from when the device was asked or the
 * read before it was done, whichever is later. is_alone: no other was in flight when it was asked, so that
 * the time holds the whole latency. */
void moec_preload_timed(struct moec_preload *preload, uint64_t n_bytes, uint64_t read_ns, bool is_alone);

/* Whether a read that begins at now_ns is expected to end before the next router answers; true if unknown. If not,
 * no thread needs to wait for it: the session that decodes takes what has come. */
bool moec_preload_has_time(const struct moec_preload *preload, uint64_t now_ns);

/* What is known and absent, else the next prefetch worth reading at now_ns, with n_ahead reads in flight: key
 * ((ordinal * n_form + form) * n_expert + expert), or MOEC_EVICT_NONE. Skips what is present. Each prefetch is
 * given once; one that is not worth it now is asked about again at the next call. */
uint32_t moec_preload_next_behind(struct moec_preload *preload, uint64_t now_ns, uint32_t n_ahead);
/* The same with nothing in flight. */
uint32_t moec_preload_next(struct moec_preload *preload, uint64_t now_ns);

#endif
