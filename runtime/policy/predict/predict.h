/* Predictors: which experts will the next MoE layer need? Tables of functions, one predictor a file (D9). The
 * expert cache of the runtime and the simulator run the same code.
 *
 * A predictor is asked when a router has answered; it ranks the experts of the next MoE layer (of layer 0 of
 * the next token after the last one; after an encoder's last and a decoder's last, of the decoder's first).
 * How much a guess is worth, and how many are acted upon, is decided in runtime/policy/schedule/preload.h. Equal calls
 * give equal rankings, on every machine. Thread rule: one thread at a time (the caller's lock). */
#ifndef MOEC_RUNTIME_PREDICT_H
#define MOEC_RUNTIME_PREDICT_H

#include "formats/tables/path_table.h"
#include "runtime/seam/experts.h"

struct moec_predict_setup {
    uint32_t n_layer;   /* MoE layers */
    uint32_t n_encoder; /* how many of them, counted from the first, are an encoder's, which the decoder's
                           tokens do not pass */
    uint32_t n_expert;  /* E */
    uint32_t top_k;
    const struct moec_path_table *paths; /* borrowed until destroy; n_layer 0 when there is none */
};

/* First member of every predictor. */
struct moec_predict {
    const struct moec_predict_ops *ops;
};

struct moec_predict_ops {
    const char *name;
    bool needs_paths; /* refused without a path table */
    bool needs_next_gate;
    bool needs_learned; /* refused without a learned predictor in the bundle */
    bool knows_tokens;  /* has layers that route by token read as soon as the token is known, before any guess
                         */
    uint64_t (*state_bytes)(const struct moec_predict_setup *setup);
    MOEC_WARN_UNUSED enum moec_status (*create)(const struct moec_predict_setup *setup,
                                                struct moec_predict **out, struct moec_error *err);
    void (*destroy)(struct moec_predict *self); /* NULL-safe */
    /* Experts of MoE ordinal `next`, most likely first, ties to the lower index: at most
     * moec_predicted_experts for one token, E for more; none with a score of 0. `score` is the expected
     * number of tokens that choose it, as far as the predictor knows. `answer` is that of the MoE layer
     * before (of the last one when next is 0); it has no experts, weights and gates where these are of tokens
     * of the other stack. Writes to out (n_expert), which it may also use to work in, returns how many. */
    uint32_t (*rank)(struct moec_predict *self, const struct moec_router_answer *answer, uint32_t next,
                     struct moec_scored_expert *out);
};

extern const struct moec_predict_ops moec_predict_none;      /* nothing */
extern const struct moec_predict_ops moec_predict_frequency; /* the layer's frequencies in calibration */
extern const struct moec_predict_ops moec_predict_path;      /* EdgeMoE III-C1: the path table */
extern const struct moec_predict_ops moec_predict_gate;      /* the next layer's router on this layer's input
                                                              * (HOBBIT III-C, Fate 3.1) */
/* Both: the gate's probability times the eighth root of the path's. Measured by recall at k of decoded tokens
 * on held-out text, layers after the first: on a model of 8 layers, 32 experts, top 4 the gate alone reaches
 * 64.9 %, paths alone 43.4 %, both 65.4 %; on the sample model 76.5 %, 59.3 % and 77.2 %. Larger roots and
 * weighted sums (best at 10 % for the paths: 65.2 % and 76.6 %) do worse: where the gate can be asked, paths
 * add little but before layer 0, where they know the frequencies. */
extern const struct moec_predict_ops moec_predict_path_gate;

/* The bundle's learned predictor (formats/tables/expert_predictor.h; FloE 3.3.1). Before layer 0 the layer's
 * frequencies, where the bundle knows them. */
extern const struct moec_predict_ops moec_predict_learned;

/* What is known, and no guess: experts of layers that route by token (EdgeMoE III-C, hash layers), all layers
 * at once as soon as the token is there. Nothing of other layers. */
extern const struct moec_predict_ops moec_predict_token;

/* All of them, in the order of the list above, ended by NULL. */
extern const struct moec_predict_ops *const moec_predictors[];

/* "none", "frequency", "path", "gate", "path+gate", "learned", "token". Errors: MOEC_ERR_USAGE, naming those
 * that exist.
 */
MOEC_WARN_UNUSED enum moec_status moec_predict_find(const char *name, const struct moec_predict_ops **out,
                                                    struct moec_error *err);

#endif
