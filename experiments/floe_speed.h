/* What FloE (arXiv:2505.05950) says of speed, beside what experiments/floe.sh measured on storage: decoding
 * in little memory (Fig. 6 and 8) and requests by size (Fig. 7). Thread rule: one thread at a time. */
#ifndef MOEC_EXPERIMENTS_FLOE_SPEED_H
#define MOEC_EXPERIMENTS_FLOE_SPEED_H

#include "experiments/page.h"

#define FLOE_SHARES  4
#define FLOE_LENGTHS 8 /* at most */
#define FLOE_READS   16

/* NaN and 0 where it was not measured. */
struct floe_speed {
    /* ms a token by the share of the plan's memory for experts: with the plan, with all neurons, and bits
     * alone of the same promise with an LRU cache and the next layer's gate. */
    double plan_ms[FLOE_SHARES], none_ms[FLOE_SHARES], static_ms[FLOE_SHARES];
    /* Tokens a second in a quarter of that memory, and with all experts at two bits there. */
    struct {
        char length[32]; /* tokens of the prompt:decoded */
        double plan, fixed, resident;
    } lengths[FLOE_LENGTHS];
    struct {
        double n_bytes, bytes_per_second;
    } reads[FLOE_READS];
    uint32_t n_length, n_read;
};

/* Reads what is in `folder`. Errors: MOEC_ERR_FORMAT for a damaged file. */
MOEC_WARN_UNUSED enum moec_status floe_speed_read(const char *folder, struct floe_speed *speed,
                                                  struct moec_error *err);

/* Tables of what was measured. */
MOEC_WARN_UNUSED enum moec_status floe_speed_put(const struct floe_speed *speed,
                                                 const struct experiment_page *page, struct moec_error *err);

/* The paper's sentences. */
void floe_speed_find(const struct floe_speed *speed, struct experiment_claims *findings);

#endif
