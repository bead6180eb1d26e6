/* What experiments/decisions.sh left in a folder of one model, read back: losses, misses and bytes by
 * settings of decisions.
 *
 * A file that is missing leaves its group empty, so that a report can be written of part of an experiment; a
 * damaged one is an error. Losses are fractions (0.02 is 2 %). Thread rule: plain data. */
#ifndef MOEC_EXPERIMENTS_DECISIONS_MEASURED_H
#define MOEC_EXPERIMENTS_DECISIONS_MEASURED_H

#include "experiments/decisions_tasks.h"
#include "experiments/decisions_timings.h"
#include "formats/base/error.h"
#include "formats/profile/profile.h"

#include <stdbool.h>
#include <stdint.h>

enum decisions_method {
    DECISIONS_TOP_K,
    DECISIONS_PRIOR,
    DECISIONS_MAX_RANK,
    DECISIONS_CUMSUM,
    DECISIONS_PRUNE,
    DECISIONS_N_METHOD
};
extern const char *const decisions_methods[DECISIONS_N_METHOD]; /* as --route calls them */

enum decisions_precision {
    DECISIONS_ONE_PRECISION,
    DECISIONS_HOBBIT, /* at a miss */
    DECISIONS_ALWAYS,
    DECISIONS_FATE /* at a misprediction */
};

#define DECISIONS_SETTING 112

/* One `moec eval` with decisions. */
struct decisions_point {
    char name[64];                   /* of its file */
    char setting[DECISIONS_SETTING]; /* "cache-prior:0.2 with hobbit:0.8:1" */
    enum decisions_method method;
    double strength; /* L, M, P or N of the method */
    enum decisions_precision precision;
    double first_score, second_score; /* T1, T2 of the precision */
    uint32_t n_slots, n_low_slots, keep_top;
    bool starts_frequent;
    double n_chosen; /* experts that the router would take */
    double n_taken, n_missed, n_low, n_skipped, n_belady_missed;
    double token_bytes; /* of missed experts */
    double stay_tokens, stay_deviation;
    double loss, low, high; /* 90 % interval */
    double n_window;
};

struct decisions_group {
    uint32_t n;
    struct decisions_point *points; /* owned, by name */
};

/* A bundle of `bits` with low copies of `low_bits`. */
struct decisions_pair {
    uint32_t bits, low_bits;
    struct decisions_group group;          /* decisions at a miss */
    struct decisions_group prefill;        /* unpopular experts of prompts in a low copy */
    struct decisions_timings prompt_times; /* of those */
    struct decisions_timings dynamic;      /* decisions at a miss and preloads, on and off */
};
#define DECISIONS_MAX_PAIRS 4

/* A prompt read from such a bundle by HOBBIT's thresholds 0.6 and 0.9: "none" of it, "tokens" that decide each for
 * themselves, and "blocks" of them. */
struct decisions_blocks {
    uint32_t bits, low_bits;
    struct decisions_group losses; /* of the prompts' own tokens, against the same bundle without decisions */
    struct decisions_timings times;
};

/* Whether the precisions are those of the systems of HOBBIT's Fig. 14. */
static inline bool decisions_blocks_are_of_systems(const struct decisions_blocks *blocks)
{
    return blocks->bits == 16 || (blocks->bits == 8 && blocks->low_bits == 2);
}

/* One `moec tune`, and the tuned bundle on the test text. */
struct decisions_tuning {
    char name[64], setting[DECISIONS_SETTING];
    double target, loss, low, high; /* the certificate's */
    double token_bytes, plain_bytes, missed_share, plain_missed_share;
    struct decisions_point test; /* loss NaN: not measured */
};

/* Decoding in as much memory as `share` percent of the static bundle's experts take. */
enum decisions_side {
    DECISIONS_STATIC,
    DECISIONS_ROUTE,
    DECISIONS_PRECISION,
    DECISIONS_BOTH,
    DECISIONS_N_SIDE
};
struct decisions_decoding {
    uint32_t share, rate; /* MB/s */
    struct {
        double tpot_ms, hit_rate, token_bytes; /* by the fastest predictor; NaN: not measured */
        char predictor[16];
    } sides[DECISIONS_N_SIDE];
};
#define DECISIONS_N_DECODING 4

struct decisions_sample {
    char name[32], folder[512];
    char family[32];
    uint32_t n_layer, n_expert, top_k;
    struct decisions_group routes, starts, ranges;
    bool has_profile, has_studies;
    struct moec_profile profile,
        studies; /* of calibration; the second of fewer windows, with ranks and choices */
    struct decisions_timings throughput;  /* of cache-conditional experts, Fig. 8 */
    struct decisions_timings fate;        /* Fig. 11 to 14 */
    struct decisions_timings systems;     /* of HOBBIT, Fig. 14 */
    struct decisions_evictions evictions; /* of HOBBIT, Fig. 18 */
    struct decisions_tasks tasks;
    uint32_t n_pair;
    struct decisions_pair pairs[DECISIONS_MAX_PAIRS];
    uint32_t n_blocks;
    struct decisions_blocks blocks[DECISIONS_MAX_PAIRS];
    uint32_t n_tuning;                /* first those of the combinations, then seeds */
    struct decisions_tuning *tunings; /* owned */
    struct decisions_decoding decodings[DECISIONS_N_DECODING];
};

/* Reads `folder`/`name`/. Released by the caller in every case. */
MOEC_WARN_UNUSED enum moec_status decisions_read(const char *folder, const char *name,
                                                 struct decisions_sample *sample, struct moec_error *err);
void decisions_release(struct decisions_sample *sample);

/* "static", and what moec tune searched with. */
const char *decisions_side_name(enum decisions_side side);

/* Whether a tuning drew its windows by a seed of its own, to be counted with others. */
bool decisions_tuning_is_seeded(const struct decisions_tuning *tuning);

/* A point of the group by the name of its file; NULL where it was not measured. */
const struct decisions_point *decisions_find(const struct decisions_group *group, const char *name);
/* The router's own choice with so many slots, empty at first; NULL likewise. */
const struct decisions_point *decisions_plain(const struct decisions_group *group, uint32_t n_slots);

/* J: the best experts that the paper keeps in any case, of models with many experts a token and of others. */
static inline uint32_t decisions_usual_keep(const struct decisions_sample *sample)
{
    return sample->top_k > 2 ? 2 : 1;
}

/* Misses, and Belady's, of the experts that the router would take. */
static inline double decisions_miss_rate(const struct decisions_point *point)
{
    return point->n_missed / point->n_chosen;
}
static inline double decisions_belady_rate(const struct decisions_point *point)
{
    return point->n_belady_missed / point->n_chosen;
}

#endif
