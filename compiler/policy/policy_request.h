/* What a policy is asked, what it may ask back, and what it answers (compiler/policy/policy.h runs it). Plain data;
 * pointers are borrowed where they do not say that they are owned. */
#ifndef MOEC_COMPILER_POLICY_REQUEST_H
#define MOEC_COMPILER_POLICY_REQUEST_H

#include "compiler/lua/lua_host.h"
#include "compiler/policy/policy_candidate.h"
#include "formats/model/plan.h"
#include "formats/profile/profile.h"

/* Bitwidths that an assignment may have, increasing. Policies are offered 5 and 6 in moec.bitwidths where
 * they were measured, and 1 too. */
#define MOEC_ASSIGNABLE_BITS                                                                                 \
    {                                                                                                        \
        1, 2, 3, 4, 5, 6, 8, 16                                                                              \
    }
#define MOEC_N_ASSIGNABLE 8

/* Different assignments that a policy may measure. */
#define MOEC_POLICY_MAX_EVALUATIONS 4096

/* Measured on the search part. */
struct moec_evaluation {
    double loss;            /* (compiled - reference) / reference */
    double loss_low;        /* lower end at the chosen confidence */
    double loss_high;       /* upper end at the chosen confidence; equals loss for `point` */
    double kl;              /* mean nats a token against the original */
    bool accepted;          /* loss <= max_loss; true without a loss target */
    uint32_t n_certificate; /* windows that the certificate would take by what is known; 0: not known */
    /* Of candidates with decisions, by the logical cache: */
    bool has_traffic;
    double missed_share; /* missed experts of those taken, 0 to 1 */
    double token_misses; /* for each token, over all MoE layers */
    double token_bytes;  /* of these records, and of them what a sparsity plan leaves */
    /* Foretold of a run by moec fit: what it reads, and how long it takes on a device. */
    bool is_read, has_time;
    double read_bytes, token_ns; /* for each generated token */
};

/* A dense matrix that a plan may encode, and the codecs that it may take. */
struct moec_policy_matrix {
    uint32_t role;  /* enum moec_role */
    uint32_t layer; /* or MOEC_LAYER_NONE */
    uint32_t rows, columns;
    const uint8_t *numbers; /* (n_number), the lowest bits first; 0 = as in the checkpoint */
    uint32_t n_number;
};

struct moec_harm;

/* What moec.variants() offers besides bitwidths: codecs with a number of their own, and what each is expected
 * to cost. */
struct moec_policy_variants {
    const struct moec_codec *codecs; /* [MOEC_CODEC_TABLE] */
    const uint8_t *numbers; /* (n_number) that projections of experts may take, the lowest bits first */
    uint32_t n_number;
    const struct moec_policy_matrix
        *dense; /* (n_dense) in the order of plans; n_dense 0: not to be searched */
    uint32_t n_dense;
    const struct moec_harm *harm; /* of these numbers and matrices */
};

struct moec_policy_ops {
    /* Changes a plan, which is already checked, before it is measured, sized or taken. NULL: as it is. */
    void (*settle)(void *context, struct moec_plan *plan);
    /* `plan` is already checked. `part`: MOEC_PART_SEARCH, or MOEC_PART_SELECT where it has windows. Called
     * once for each assignment and part; a policy that evaluates it again gets the same result. */
    enum moec_status (*evaluate)(void *context, const struct moec_plan *plan, enum moec_part part,
                                 struct moec_evaluation *out, struct moec_error *err);
    /* The same with decisions about each token, which fit the request's rules; NULL without rules. */
    enum moec_status (*decide)(void *context, const struct moec_plan *plan,
                               const struct moec_decision_settings *settings, enum moec_part part,
                               struct moec_evaluation *out, struct moec_error *err);
    /* Bytes of the whole bundle. */
    enum moec_status (*size)(void *context, const struct moec_plan *plan, uint64_t *n_bytes,
                             struct moec_error *err);
    /* Makes the variants, which takes long, when a policy first asks for them; they live as long as the
     * policy runs. NULL: there are none. */
    enum moec_status (*variants)(void *context, const struct moec_policy_variants **out,
                                 struct moec_error *err);
    void (*log)(void *context, const char *line);
};

/* What a plan has to keep to. */
struct moec_policy_target {
    double max_loss;    /* NaN without a loss target */
    uint64_t max_bytes; /* 0 without a size target */
    /* 0: plans are compared by the bundle's size. Else by what tokens read: experts count by how often they
     * are taken, and of their gate and down this share, up to 1, as neurons are left out later. */
    double pair_share;
    /* The share of max_loss by which a plan's expected loss may be above or below it, where about as much will do; 0:
     * the policy's own. */
    double loss_tolerance;
};

/* What the script may take. */
struct moec_policy_limits {
    uint64_t seed;
    uint32_t max_evaluations; /* different assignments that it may measure */
    struct moec_guest_limits guest;
};

struct moec_policy_request {
    const char *policy; /* built-in name or path of a .lua file */
    const struct moec_config *config;
    const struct moec_profile *profile; /* NULL when compiled without data: evaluate is then an error */
    struct moec_policy_target target;
    struct {
        uint32_t n_part_window[MOEC_PART_COUNT]; /* windows (or rows) of each part */
        uint32_t bits;                           /* --bits, 0 when not given */
    } given;
    const struct moec_candidate_rules *rules; /* what evaluate may decide; NULL = nothing. Borrowed */
    struct moec_policy_limits limits;
    struct {
        struct moec_policy_ops ops;
        void *context; /* of ops */
    } answers;
};

/* Plans of a sequence, from the safest to the smallest (D16). */
#define MOEC_POLICY_MAX_PLANS 8

struct moec_policy_answer {
    struct moec_plan plans[MOEC_POLICY_MAX_PLANS]; /* (n_plan), owned; without a sequence one */
    uint32_t n_plan;
    uint32_t n_evaluations; /* different measurements */
};

#endif
