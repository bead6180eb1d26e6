/* Compares what decisions, preloads and evictions save in time, and what profiles say about ranks, choices
 * and popular experts, with the papers and with the figures to reach. Called by decisions_claims.c. Thread
 * rule: plain data. */
#ifndef MOEC_EXPERIMENTS_DECISIONS_TIME_CLAIMS_H
#define MOEC_EXPERIMENTS_DECISIONS_TIME_CLAIMS_H

#include "experiments/decisions_measured.h"
#include "experiments/paper_claim.h"

/* Prompts: their floor, and low copies of unpopular experts. Adds to `claims`. */
void decisions_time_goals(const struct decisions_sample *sample, struct experiment_claims *claims);
/* Adds sentences of cache-conditional experts, HOBBIT and Fate. */
void decisions_cache_findings(const struct decisions_sample *sample, struct experiment_claims *claims);
void decisions_hobbit_findings(const struct decisions_sample *sample, struct experiment_claims *claims);
void decisions_fate_findings(const struct decisions_sample *sample, struct experiment_claims *claims);

/* Adds a paper's sentence with what it is measured of here: "... (here 8 to 4 bits, perplexity)", where
 * `more` is ", perplexity" or nothing. */
struct experiment_claim *decisions_pair_claim(struct experiment_claims *claims, const char *figure,
                                              const struct decisions_pair *pair, const char *sentence,
                                              const char *more);

/* Tokens a second of decoding with this prior (0: the router's own choice), so many slots and tokens of a
 * prompt; NULL where it was not timed. */
const struct decisions_timing *decisions_prior_timing(const struct decisions_sample *sample, double prior,
                                                      uint32_t n_slots, uint32_t prompt_tokens);

/* Rows of Fate's comparison: what they are called, their file and their mode. */
struct decisions_fate_side {
    const char *name, *file, *mode;
};
enum decisions_fate {
    FATE_DEMAND, /* load on demand, 16 bits */
    FATE_DEMAND_INT4,
    FATE_CACHED, /* 16 bits with a cache */
    FATE_CACHED_INT4,
    FATE_PATHS, /* preloads by the path table */
    FATE_GATE,  /* as Fate on its faster machine */
    FATE_LOW,   /* on its slower machine */
    FATE_N_SIDE
};
extern const struct decisions_fate_side decisions_fate_sides[FATE_N_SIDE];
const struct decisions_timing *decisions_fate_timing(const struct decisions_sample *sample,
                                                     enum decisions_fate side, uint32_t prompt_tokens,
                                                     double memory_percent, double rate);

/* What was timed. */
extern const double decisions_priors_timed[6];
extern const uint32_t decisions_short_prompt, decisions_long_prompt;
extern const double decisions_fate_memories[4];
extern const uint32_t decisions_fate_prompts[3];
extern const double decisions_rates[2];

#endif
