/* GPTQ: codes of one matrix that compensate each other's errors on the matrix's inputs
 * (Frantar, Ashkboos, Hoefler & Alistarh, "GPTQ: Accurate Post-Training Quantization for Generative
 * Pre-trained Transformers", 2022; EdgeMoE III-B uses it for weights outside experts).
 *
 * With inputs X (tokens, K) the error of an output's weights w, quantised to q, is (w - q)' H (w - q), H =
 * X'X. Inputs are taken one after the other, those with the largest H_ii first ("act-order"); each weight,
 * before it is rounded, is corrected for what the weights rounded before it did to the outputs. H = R R' with
 * R upper triangular, in that order, gives the same weights as the publication's inverse of H without
 * inverting it:
 *
 *     u_i = w_i + sum over j < i of R_ji / R_ii (w_j - q_j),    q_i = round(u_i)
 *
 * A share of the mean of H_ii is added to every H_ii. There are three ways from there:
 *
 * - The published one, with a share of 0.01: codecs of any other quantizer keep the linear quantizer's scales
 *   and zero points, found on the weights as they are, so groups stay in their places whatever the order;
 *   only codes are chosen here.
 * - Codecs whose quantizer is GPTQ have their ranges searched (compiler/fit/gptq_range.h) on the weights as
 *   corrected when a group's turn comes, each error weighted by R_ii^2, which is what it costs when the
 *   inputs after it make up for it. Whole groups follow each other for that, those with the largest sum of
 *   H_ii first, at every length that groups have. Afterwards sweeps over all inputs give each weight the code
 *   of least error, all others staying, and each group the scale of least error for its codes. Measured on
 *   inputs that were not fitted, experts at 2 bits in groups of 64 lose a quarter less for the sweeps, and a
 *   fortieth less with a share of 0.06 than with 0.01.
 *
 * - Codecs of the shift scheme (formats/codec/shift.h) take the path through the trellis that costs the
 *   outputs least, each path with its own corrections (gptq_trellis.c).
 *
 * Tokens may be weighted: those of an expert by what the router multiplies its output with, for that is how
 * its error reaches the model.
 *
 * Results are summed in one order: the same bytes on every machine, at any number of threads, however the
 * inputs were cut into batches. */
#ifndef MOEC_COMPILER_GPTQ_H
#define MOEC_COMPILER_GPTQ_H

#include "formats/codec/codec.h"
#include "runtime/threads/parallel.h"

#define MOEC_GPTQ_DAMPING     0.01
#define MOEC_GPTQ_FIT_DAMPING 0.06
#define MOEC_GPTQ_FIT_TOKENS  128 /* over the number of tokens, added to the share: few of them say little */

/* H is kept for matrices of up to this many inputs (268 MB); wider ones stay with the quantizers that see
 * only weights, on every machine alike. */
#define MOEC_GPTQ_MAX_INPUTS 8192u

/* Of what fits encode from the same inputs: raised whenever codes or scales may come out otherwise. Journals name it,
 * so that one does not mix codes of two versions. 2: shift codes begin with the scales foretold for them. */
#define MOEC_GPTQ_REVISION 2u

struct moec_gptq;

/* For matrices with K inputs, 1 <= K <= MOEC_GPTQ_MAX_INPUTS. Takes moec_gptq_bytes(K), from
 * moec_gptq_factor on moec_gptq_factor_bytes(K) more. Thread rule: one thread at a time; pools parallelise
 * inside. */
enum moec_gptq_sums {
    MOEC_GPTQ_EXACT, /* products and sums of H in F64: codecs of other quantizers than GPTQ need it */
    MOEC_GPTQ_QUICK, /* sums of 64 tokens in F32, those in F64: four times as fast */
};
MOEC_WARN_UNUSED enum moec_status moec_gptq_create(uint32_t n_input, enum moec_gptq_sums sums,
                                                   struct moec_gptq **out, struct moec_error *err);
void moec_gptq_free(struct moec_gptq *gptq);
uint64_t moec_gptq_bytes(uint32_t n_input);
uint64_t moec_gptq_factor_bytes(uint32_t n_input);
uint64_t moec_gptq_encode_bytes(uint32_t n_row, uint32_t columns, bool by_input, int n_threads);

/* Adds the inputs of n_tok tokens, rows of x that are zero from K to a multiple of 16, each times its factor
 * (NULL: 1). */
void moec_gptq_add(struct moec_gptq *gptq, const struct moec_pool *pool, const float *x, size_t stride,
                   const float *factors, uint32_t n_tok);

/* From now on adding sums up every n_part-th band of H's rows alone, from `part` on; n_part 1: all. */
void moec_gptq_take_part(struct moec_gptq *gptq, uint32_t part, uint32_t n_part);
/* Ends adding what waits, and gives band `band` of moec_gptq_bands: n_value F64 to be read, or written from where it
 * was summed up. */
uint32_t moec_gptq_bands(const struct moec_gptq *gptq);
double *moec_gptq_band(struct moec_gptq *gptq, const struct moec_pool *pool, uint32_t band,
                       uint64_t *n_value);

/* H += weight * H of another with as many inputs. */
void moec_gptq_mix(struct moec_gptq *gptq, struct moec_gptq *other, double weight);

/* Tokens added, and of others mixed in their share. */
double moec_gptq_token_count(const struct moec_gptq *gptq);

enum moec_gptq_order {
    MOEC_GPTQ_BY_INPUT,  /* for codecs of other quantizers */
    MOEC_GPTQ_BY_GROUP,  /* for those of MOEC_QUANTIZER_GPTQ; of the trellis scheme where rows are inputs */
    MOEC_GPTQ_BY_COLUMN, /* as they stand: for the trellis scheme where rows are outputs */
};

/* Ends adding and computes order and factor, again if there were others. Errors: MOEC_ERR_FORMAT when the
 * inputs were not finite. */
MOEC_WARN_UNUSED enum moec_status moec_gptq_factor(struct moec_gptq *gptq, enum moec_gptq_order order,
                                                   const struct moec_pool *pool, struct moec_error *err);

/* Rows of a matrix: each an output's K weights, or with `by_input` an input's weights (K rows, all at once).
 */
struct moec_gptq_matrix {
    const float *weights; /* (n_row, columns) */
    uint32_t n_row, columns;
    bool by_input;
};

/* Encodes a matrix with an integer codec: `rows` receives n_row encoded rows. Without inputs codes are those
 * of the linear quantizer, or where the codec's is GPTQ of HQQ. Errors: those of moec_codec_encode_row,
 * MOEC_ERR_USAGE for an order that the codec's quantizer does not take. */
MOEC_WARN_UNUSED enum moec_status moec_gptq_encode(const struct moec_gptq *gptq, const struct moec_pool *pool,
                                                   const struct moec_gptq_matrix *matrix,
                                                   struct moec_codec codec, uint8_t *rows,
                                                   struct moec_error *err);

/* tr(D H D'), D the weights less `decoded` (NULL: the weights themselves), H with what is added to H_ii; 0
 * without inputs. The matrix has all its rows. */
MOEC_WARN_UNUSED enum moec_status moec_gptq_error(const struct moec_gptq *gptq, const struct moec_pool *pool,
                                                  const struct moec_gptq_matrix *matrix, const float *decoded,
                                                  double *error, struct moec_error *err);

/* What moec_gptq_error would be if the errors of `decoded` had nothing in common: of codes that were chosen without a
 * look at the inputs, nearly what it is, for a hundredth of the work. 0 without inputs, or without `gptq`. */
double moec_gptq_noise(const struct moec_gptq *gptq, const struct moec_gptq_matrix *matrix,
                       const float *decoded);

#endif
