/* A profile: everything that `moec profile` measured, in memory. formats/profile/profile_h5.h stores it as
 * HDF5.
 *
 * Letters: S MoE layers, E experts, k top-k, B profiled bitwidths other than the baseline, D windows that were
 * drawn, W those of them that were measured, which come first, M windows that sensitivities are of, T tokens of
 * the measured windows. Arrays are row-major and owned by the profile.
 * NLL values are sums in nats over the scored tokens of one window, F64; every loss and interval is computed
 * from them, paired by window (D5). Each window belongs to a part (enum moec_part). Windows that were drawn and not measured are
 * of the certificate part: neither the original nor any other model has seen them.
 *
 * Of an encoder-decoder model (config.n_encoder_layer > 0) a window is a source with its target, and layers
 * are those of both stacks, the encoder's first. T then counts the tokens of the source and those that the
 * decoder reads: the start and the target without its last. In the layers of the stack that does not read it,
 * and where its expert was full, a token has MOEC_PROFILE_NO_EXPERT. Thread rule: plain data. */
#ifndef MOEC_FORMATS_PROFILE_H
#define MOEC_FORMATS_PROFILE_H

#include "formats/base/digest.h"
#include "formats/model/config.h"
#include "formats/profile/study.h"
#include "formats/tables/path_table.h"

#define MOEC_PROFILE_MAX_BITS    8
#define MOEC_PROFILE_MAX_WINDOWS (1u << 24)
#define MOEC_PROFILE_NO_TOKEN    0xffffffffu /* unused tail of a row of window_tokens */
#define MOEC_PROFILE_NO_EXPERT   0xffffu     /* in trace_experts: the token chose none in this layer */

/* What a window may be used for. Nothing that is decided may look at another part. */
enum moec_part {
    MOEC_PART_SEARCH = 0,      /* ranks experts, fits weights, guides the search */
    MOEC_PART_CERTIFICATE = 1, /* proves the loss that is promised */
    MOEC_PART_SELECT = 2,      /* chooses among settings; may be empty */
    MOEC_PART_ALL = 3,
};
#define MOEC_PART_COUNT 3 /* without ALL */

/* Whether window w belongs to the part. `parts`: (W) enum moec_part; NULL, as in profiles from before there
 * were three parts: even windows search, odd ones certify. */
static inline bool moec_part_has(enum moec_part part, const uint8_t *parts, uint32_t w)
{
    return part == MOEC_PART_ALL || (parts != NULL ? parts[w] : w & 1u) == (uint32_t)part;
}

/* How expert_nll and expert_kl were obtained. */
enum moec_sensitivity_mode {
    MOEC_SENSITIVITY_EXACT = 0, /* measured: the whole model with that one expert changed */
    MOEC_SENSITIVITY_FAST =
        1, /* estimated from local output errors (profiler/sensitivity/fast_sensitivity.h) */
    MOEC_SENSITIVITY_AUTO = 2, /* exact where time allows, else fast; never in a profile */
    MOEC_SENSITIVITY_NONE = 3, /* not obtained: n_bits is 0 */
};

/* NLL and KL of one variant on every window. */
struct moec_measure {
    double *nll; /* (W): sum of negative log-likelihoods, nats */
    double *kl;  /* (W): sum over scored tokens of KL(original || variant), nats */
};

/* What MOEC_QUANTIZER_AUTO chose for one bitwidth. */
struct moec_quantizer_choice {
    uint8_t quantizer; /* enum moec_quantizer, not AUTO */
    uint8_t scheme;    /* enum moec_scheme */
};

/* Whether a profile may measure experts at this bitwidth: 2 to 6, 8 or 16. */
bool moec_profile_has_bits(uint32_t bits);

struct moec_profile {
    /* provenance */
    char moec_version[32];
    char arithmetic[32]; /* "canonical-f32" */
    char task[64];       /* name of the task */
    char metric[32];     /* "perplexity" */
    char data_name[256]; /* file name without folders */
    uint8_t model_digest[MOEC_SHA256_BYTES];
    uint8_t data_digest[MOEC_SHA256_BYTES];
    uint32_t seq_len_tokens;
    uint64_t seed;
    uint32_t baseline_bits; /* 4 or 16 */
    uint8_t quantizer;      /* enum moec_quantizer */
    uint8_t scheme;         /* enum moec_scheme; for MOEC_QUANTIZER_AUTO that of bitwidths not chosen for */
    uint16_t group;         /* 0 = channel */
    struct moec_quantizer_choice choices[MOEC_CODEC_TABLE]; /* by bitwidth, for MOEC_QUANTIZER_AUTO */
    uint8_t sensitivity;                                    /* MOEC_SENSITIVITY_EXACT, _FAST or _NONE */
    char sensitivity_choice[64];                            /* who chose it and why */

    /* model */
    struct moec_config config;
    uint32_t n_moe_layer; /* S */
    uint32_t n_expert;    /* E */
    uint32_t top_k;       /* k */
    uint32_t *moe_layers; /* (S): model layer of each MoE layer */

    /* windows */
    uint32_t n_window;           /* W: measured; everything below "windows" is of these */
    uint32_t n_drawn;            /* D >= W: equal in profiles from before the last part waited */
    uint64_t n_window_available; /* windows that the data had */
    uint32_t *window_length;     /* (D): tokens, 2..moec_profile_window_stride */
    uint32_t *window_source;     /* (D): how many of them are the source; NULL without an encoder */
    uint32_t *window_tokens;     /* (D, moec_profile_window_stride), unused tail 0xffffffff */
    uint64_t *window_index;      /* (D): which of the available windows it is */
    uint32_t *window_scored;     /* (D): scored tokens (length - source - 1) */
    /* Documents (rows of the data) that windows come from; 0 in profiles from before there were three parts,
     * which have neither of the arrays. */
    uint64_t n_document;
    uint64_t *window_document; /* (D): less than n_document */
    uint8_t *window_part;   /* (D): enum moec_part; windows of a part follow each other, the search first */
    bool parts_by_document; /* no document has windows in two parts */

    /* losses */
    struct moec_measure reference;                /* original weights; kl is zero */
    struct moec_measure baseline;                 /* all experts at baseline_bits */
    uint32_t n_uniform;                           /* whole-model measurements */
    uint32_t uniform_bits[MOEC_PROFILE_MAX_BITS]; /* (n_uniform), increasing, without 16 unless asked */
    struct moec_measure uniform[MOEC_PROFILE_MAX_BITS];
    uint32_t n_bits;                      /* B; 0 = single experts were not measured */
    uint32_t bits[MOEC_PROFILE_MAX_BITS]; /* (B), increasing, baseline left out */
    /* M: single experts were measured on windows 0 .. M - 1, all of the search part. Profiles from before
     * there were three parts have all windows here. */
    uint32_t n_sensitivity_window;
    double *expert_nll; /* (S, E, B, M): that expert alone at that bitwidth, the others at the baseline */
    double *expert_kl;  /* (S, E, B, M) */

    /* routing, on the original weights */
    uint64_t *activations;    /* (S, E): tokens that chose the expert */
    double *mean_gate_weight; /* (S, E): over those tokens; 0 when none */
    uint16_t *trace_experts;  /* (T, S, k): choices in order of weight, or MOEC_PROFILE_NO_EXPERT */
    uint16_t *trace_weights;  /* (T, S, k): gate weights as F16 bits */
    uint64_t n_trace_token;   /* T */
    struct moec_path_table paths;
    double *path_recall;      /* (S, 3): recall of the activated experts among the top k, k+1, 2k predicted,
                               * counted on windows that the table was not made from
                               * (profiler/evaluate/parts.h); row 0 is frequency */
    double *frequency_recall; /* (S, 3): the same, predicting by frequency alone */

    /* offline cost, in passes (design: multiply-adds of one full evaluation) */
    double cost_passes;
    double naive_passes;

    struct moec_studies studies; /* everything else that was measured, by name */
};

/* Places of a window in window_tokens: seq_len_tokens, twice that with sources. */
static inline uint32_t moec_profile_window_stride(const struct moec_profile *profile)
{
    return profile->config.n_encoder_layer > 0 ? 2 * profile->seq_len_tokens : profile->seq_len_tokens;
}

/* Tokens of the source of window w, 0 without one; and all of its tokens that a layer reads, which are those
 * that the routing trace has of it: the source's before the others. */
static inline uint32_t moec_profile_source(const struct moec_profile *profile, uint32_t w)
{
    return profile->window_source != NULL ? profile->window_source[w] : 0;
}
static inline uint32_t moec_profile_traced(const struct moec_profile *profile, uint32_t w)
{
    return profile->window_length[w] - (profile->window_source != NULL);
}

/* Words for the layers: "layer", or "layer (0 to 5: encoder, 6 to 11: decoder)". And which stack one
 * of a model with two is in: 'e' or 'd', else a space. */
void moec_profile_layer_label(const struct moec_profile *profile, size_t capacity, char *text);
static inline char moec_profile_stack_mark(const struct moec_profile *profile, uint32_t layer)
{
    if (!moec_config_is_encoder_decoder(&profile->config))
        return ' ';
    return moec_config_stack(&profile->config, layer) == MOEC_STACK_ENCODER ? 'e' : 'd';
}

/* Drawn windows of a part. */
uint32_t moec_profile_part_count(const struct moec_profile *profile, enum moec_part part);

/* Frees the members and zeroes the struct. */
void moec_profile_release(struct moec_profile *profile);

/* Allocates every array, zeroed, for the dimensions already set (n_moe_layer, n_expert, top_k, n_window, n_drawn
 * where 0 becomes n_window, seq_len_tokens, n_document, n_uniform, n_bits, n_sensitivity_window likewise,
 * n_trace_token, config.n_encoder_layer); the path table is left alone. On failure the profile is released.
 * Errors: MOEC_ERR_FORMAT for a dimension out of range, MOEC_ERR_LIMIT, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_profile_allocate(struct moec_profile *profile, struct moec_error *err);

/* Checks that the dimensions lie within their limits, so that products of them fit 64 bits. */
MOEC_WARN_UNUSED enum moec_status moec_profile_check_dimensions(const struct moec_profile *profile,
                                                                const char *subject, struct moec_error *err);

/* Checks dimensions, values and relations of a profile that came from a file; afterwards every index in it
 * may be trusted. A profile without routing trace has n_trace_token 0. `subject` opens messages ("profile
 * 'p.h5'"). Errors: MOEC_ERR_FORMAT. */
MOEC_WARN_UNUSED enum moec_status moec_profile_check(const struct moec_profile *profile, const char *subject,
                                                     struct moec_error *err);

/* Quantizer and scheme of one bitwidth below 16. */
static inline struct moec_quantizer_choice moec_profile_quantizer(const struct moec_profile *profile,
                                                                  uint32_t bits)
{
    if (profile->quantizer == MOEC_QUANTIZER_AUTO && bits < MOEC_CODEC_TABLE)
        return profile->choices[bits];
    if (profile->quantizer == MOEC_QUANTIZER_TRELLIS)
        return moec_quantizer_makes_path((enum moec_quantizer)profile->quantizer, bits)
                   ? (struct moec_quantizer_choice){MOEC_QUANTIZER_TRELLIS, MOEC_SCHEME_SHIFT}
                   : (struct moec_quantizer_choice){MOEC_QUANTIZER_HQQ, profile->scheme};
    return (struct moec_quantizer_choice){profile->quantizer, profile->scheme};
}

/* Codecs by bitwidth that the profile measured and a compile from it uses. */
MOEC_WARN_UNUSED enum moec_status moec_profile_codecs(const struct moec_profile *profile,
                                                      struct moec_codec codecs[static MOEC_CODEC_TABLE],
                                                      struct moec_error *err);

/* Perplexity over windows: exp(sum of nll / sum of scored); both arrays hold n_window values, at least one
 * token is scored (D5). */
double moec_profile_perplexity(const double *nll, const uint32_t *scored, uint32_t n_window);

/* Whether the original predicts the windows no better than guessing evenly among its tokens would: its
 * perplexity is the size of the vocabulary or more. */
bool moec_profile_is_chance(const struct moec_profile *profile);

/* Loss of a variant on all measured windows, relative to the original weights (D5): (perplexity - reference) /
 * reference, computed as exp(mean paired difference of NLL) - 1, which keeps small losses exact. nll: (W).
 * 0.02 is 2 %. */
double moec_profile_loss(const struct moec_profile *profile, const double *nll);
/* The same on the windows that sensitivities are of. nll: (M) or more. */
double moec_profile_sensitivity_loss(const struct moec_profile *profile, const double *nll);

/* One of the axes that every profile has and studies share (formats/profile/PROFILE.md, "Axes"). */
struct moec_profile_axis {
    const char *units;
    uint64_t n;
    const uint32_t *values; /* (n) borrowed, NULL = first, first + 1, .. */
    uint32_t first;         /* ranks begin at 1, all else at 0 */
};

static inline double moec_profile_axis_value(const struct moec_profile_axis *axis, uint64_t i)
{
    return axis->values != NULL ? axis->values[i] : (double)(axis->first + i);
}

/* Finds moe_layer, expert, bits, uniform_bits, window, rank or cut; `cuts` gets the values of cut. False for
 * another name. */
bool moec_profile_find_axis(const struct moec_profile *profile, const char *name, uint32_t cuts[static 3],
                            struct moec_profile_axis *axis);

/* moec_studies_add, where an axis of a name that every profile has, of its length and without values and
 * labels, takes values and units from the profile: producers write {.name = "moe_layer", .n = S}. */
MOEC_WARN_UNUSED enum moec_status moec_profile_add_study(struct moec_profile *profile,
                                                         const struct moec_study *study,
                                                         struct moec_study **added, struct moec_error *err);

/* Row of expert_nll / expert_kl: M doubles of (moe ordinal s, expert e, bit index b). */
static inline double *moec_profile_expert_row(const struct moec_profile *profile, double *array, uint32_t s,
                                              uint32_t e, uint32_t b)
{
    return array +
           (((size_t)s * profile->n_expert + e) * profile->n_bits + b) * profile->n_sensitivity_window;
}

#endif
