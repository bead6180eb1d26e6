/* The model of harm: what each projection of each expert, and each dense matrix, costs at each codec it may
 * take, as mean KL divergence from the original in nats a token. A search spends its loss by it; what it
 * finds is measured.
 *
 * Harm is measured where it is cheap, at whole models, and shared out by what is known of the parts:
 *
 *   classes   the model with one projection of every expert at one codec, everything else original, is
 *             evaluated: its KL is the sum over the experts. Likewise with all dense matrices of one role at
 *             their lowest codec.
 *   shares    experts take from their class in proportion to gain * local error: both from the fast
 *             sensitivity (profiler/sensitivity/fast_sensitivity.h) at the lowest codec, the local error at
 *             other codecs scaled by GPTQ's own error on the expert's inputs. Matrices of a role take in
 *             proportion to their relative error on their inputs.
 *
 * A compile for a loss measures classes and shares before it fits experts, of plain codes, and scales them by what is
 * fitted afterwards (compiler/compile/compile_wanted.c).
 *
 * Codecs without an error of their own (8 bits and above by the linear quantizer) are extrapolated: a bit
 * more has a quarter of the squared error. On models with an encoder, whose errors are not local, shares are
 * by tokens and relative error alone.
 *
 * The cost is that of the fast sensitivity on the windows given, and one evaluation for each class and role on
 * the first of them. Thread rule: one thread, parallel inside. */
#ifndef MOEC_COMPILER_HARM_H
#define MOEC_COMPILER_HARM_H

#include "formats/model/plan.h"
#include "profiler/common/unit.h"
#include "profiler/evaluate/pass_means.h"
#include "profiler/evaluate/variants.h"
#include "profiler/evaluate/windows.h"
#include "runtime/forward/weights/model.h"

/* Windows that whole models are evaluated on: the sum over all experts is far less noisy than what each takes
 * of it. */
#define MOEC_HARM_CLASS_WINDOWS 16

/* Squared error of a matrix encoded at `number` on its inputs, relative to its outputs; negative where it is
 * not known. */
struct moec_harm_errors {
    double (*expert)(void *context, uint32_t ordinal, uint32_t expert, enum moec_projection projection,
                     uint32_t number);
    double (*dense)(void *context, uint32_t index, uint32_t number);
    /* The model with these codec numbers (n_dense) of its dense matrices; freed by the caller. */
    enum moec_status (*model)(void *context, const uint8_t *numbers, struct moec_model **model,
                              struct moec_error *err);
    void *context;
};

/* A dense matrix that a plan may encode. */
struct moec_harm_matrix {
    uint32_t role;          /* enum moec_role */
    const uint8_t *numbers; /* (n_number), by falling harm: the lowest bits first; 0 = as in the checkpoint */
    uint32_t n_number;
};

/* What is measured, and on which windows. */
struct moec_harm_subject {
    const struct moec_model *original;
    struct moec_variants *variants; /* experts at their source bits afterwards */
    const struct moec_windows *windows;
    uint32_t n_class_window;     /* the first of them, that whole models are evaluated on */
    const uint64_t *activations; /* (S, E): tokens that chose each expert */
};

/* Codecs that projections may take. */
struct moec_harm_codecs {
    const uint8_t *numbers; /* (n), the lowest bits first */
    const uint32_t *bits;   /* (n) bits of each */
    uint32_t n;             /* 2.. */
};

struct moec_harm_matrices {
    const struct moec_harm_matrix *all; /* (n), in the order of plans */
    uint32_t n;
    const uint32_t *bits; /* (MOEC_CODEC_TABLE) of each codec number; [0] = those of the checkpoint */
};

struct moec_harm_request {
    struct moec_harm_subject of;
    struct moec_pass_means by; /* its arithmetic is of whole models; the original's is canonical */
    struct moec_harm_codecs codecs;
    struct moec_harm_matrices matrices;
    struct moec_harm_errors errors;
    /* (S, E, MOEC_PROJECTION_COUNT, codecs.n) where experts are known: dense alone is measured; or NULL.
     * Borrowed. */
    const double *experts;
    const struct moec_progress *progress; /* may be NULL */
    struct {
        struct moec_units *units; /* what is measured at once is one; NULL: none is kept */
        uint32_t crc;             /* of the codecs and matrices, which the units' keys tell apart */
    } journal;
};

struct moec_harm {
    uint32_t n_layer, n_expert, n_number, n_dense;
    double *experts; /* (S, E, MOEC_PROJECTION_COUNT, n_number), owned; 0 for projections that do not exist */
    double *dense;   /* (n_dense, MOEC_CODEC_TABLE), owned; by codec number */
};

/* Errors: those of the evaluations, MOEC_ERR_MEMORY, what `progress` answers. Released by the caller. */
MOEC_WARN_UNUSED enum moec_status moec_harm_measure(const struct moec_harm_request *request,
                                                    struct moec_harm *harm, struct moec_error *err);
void moec_harm_release(struct moec_harm *harm);

/* Bytes of a projection, which all experts have alike, and of each dense matrix. */
struct moec_harm_bytes {
    uint64_t experts[MOEC_PROJECTION_COUNT][MOEC_CODEC_TABLE]; /* by index into numbers */
    const uint64_t
        *dense; /* (n_dense, MOEC_CODEC_TABLE), borrowed; 0 for numbers that a matrix may not have */
};

/* The index of the number that each projection has in the smallest plan whose harm is `kl` nats a token or less, into
 * chosen (S, E, MOEC_PROJECTION_COUNT): each unit takes what costs least by one price of a byte (Everett, 1963). A
 * number of infinite harm is not taken; each unit has one of finite harm. */
void moec_harm_choose(const struct moec_harm *harm, const struct moec_harm_bytes *bytes, double kl,
                      uint8_t *chosen);

static inline double *moec_harm_expert(const struct moec_harm *harm, uint32_t s, uint32_t e,
                                       enum moec_projection projection)
{
    return harm->experts +
           (((size_t)s * harm->n_expert + e) * MOEC_PROJECTION_COUNT + projection) * harm->n_number;
}

#endif
