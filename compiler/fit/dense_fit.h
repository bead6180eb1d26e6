/* The dense weights of a checkpoint quantised by GPTQ on their inputs (EdgeMoE III-B, "Non-expert
 * weights quantization decision").
 *
 * One evaluation of the original model on calibration windows shows the inputs of every product with dense
 * weights. When all windows have passed a layer, its matrices are encoded, at every bitwidth asked for, and
 * the products of its inputs are freed, so memory holds those of one layer, not of the model. Inputs are the
 * original model's, so that the bitwidths do not depend on each other. Weights that are only looked up (an
 * embedding that is not the head too; one that is has the head's inputs), matrices that no token reached, and
 * those wider than MOEC_GPTQ_MAX_INPUTS stay with quantizers that see only weights: HQQ where the codec's is
 * GPTQ, else the linear one. The roles are those of the table of dense weights, whatever the family.
 *
 * Ranks share the windows, and the tensors of a layer, those with the same inputs together: each gets the inputs of its
 * own from all ranks, sums them up and encodes; then all have all.
 *
 * Encoded weights are kept in memory or, where the work memory ends, in an unlinked file. Thread rule: one
 * thread; it parallelises inside. */
#ifndef MOEC_COMPILER_DENSE_FIT_H
#define MOEC_COMPILER_DENSE_FIT_H

#include "formats/checkpoint/checkpoint.h"
#include "profiler/common/unit.h"
#include "profiler/evaluate/rank_block.h"
#include "profiler/evaluate/score.h"

#define MOEC_DENSE_FIT_MAX_CODECS 8u

struct moec_dense_fit;

struct moec_dense_fit_request {
    const struct moec_checkpoint *checkpoint; /* borrowed until free */
    /* Of moec_dense_fit_create alone. */
    struct {
        /* Of the original's dense weights, whose experts answer with the original's. */
        struct moec_scorer *scorer;
        const struct moec_measure *measure; /* (W of the scorer) each, filled by the evaluation */
    } evaluation;
    struct {
        const struct moec_codec *codecs; /* [MOEC_CODEC_TABLE] by number, those that plans may have */
        const uint8_t *numbers;          /* (n_number): of integer codecs, in which matrices are encoded */
        uint32_t n_number;               /* 1..MOEC_DENSE_FIT_MAX_CODECS */
    } codes;
    int n_threads;
    /* Of encoded weights, and with ranks of a layer's inputs; borrowed until free, NULL: all in memory. */
    struct moec_work_memory *work;
    const struct moec_progress *progress;
    struct moec_units *units; /* rows of a matrix at one codec are one; NULL: none is kept */
    /* Ranks that each take their own windows through the model, which the scorer then has, and call together;
     * borrowed, NULL = this process sees all inputs. */
    const struct moec_rank_block *block;
};

/* Errors: those of the evaluation and of moec_gptq_factor, MOEC_ERR_IO, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_dense_fit_create(const struct moec_dense_fit_request *request,
                                                        struct moec_dense_fit **out, struct moec_error *err);
void moec_dense_fit_free(struct moec_dense_fit *fit);

/* The same where somebody else takes the windows through the model: begins, and takes what an interrupted run has
 * encoded; `is_done` where that is all. Otherwise `watch` looks at the evaluation, the head included, and
 * moec_dense_fit_end then encodes what is left. Only then is anything known of the fit. */
MOEC_WARN_UNUSED enum moec_status moec_dense_fit_begin(const struct moec_dense_fit_request *request,
                                                       struct moec_dense_fit **out, bool *is_done,
                                                       struct moec_error *err);
struct moec_scorer_watch moec_dense_fit_watch(struct moec_dense_fit *fit);
MOEC_WARN_UNUSED enum moec_status moec_dense_fit_end(struct moec_dense_fit *fit, struct moec_error *err);

/* The most memory that creating takes in addition to the scorer and to what the work memory counts, for a
 * plan of memory. */
uint64_t moec_dense_fit_bytes(const struct moec_config *config, int n_threads);

/* Dense weights with the codec of numbers[i] for matrix i, in the order of plans (formats/model/plan.h; 0 =
 * as the checkpoint has it), as a table with a source that borrows `fit`. Numbers that the request did not
 * name are encoded by the codec's quantizer. Errors: MOEC_ERR_USAGE for a number without a codec. */
MOEC_WARN_UNUSED enum moec_status moec_dense_fit_open(const struct moec_dense_fit *fit,
                                                      const uint8_t *numbers, struct moec_dense *dense,
                                                      struct moec_error *err);

/* What the codec of this number, one of the request's whose quantizer is GPTQ, does to matrix `index`, in the
 * order of plans: the error of its outputs on the windows' inputs, tr(D H D') over tr(W H W')
 * (compiler/fit/gptq.h). Negative where it is not known: for other numbers, and matrices that GPTQ did not
 * encode. */
double moec_dense_fit_error(const struct moec_dense_fit *fit, uint32_t index, uint32_t number);

/* Matrices that GPTQ encoded. */
uint32_t moec_dense_fit_count(const struct moec_dense_fit *fit);

#endif
