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
 * 0.01 of the mean of H_ii is added to every H_ii, as published. Scales and zero points are the linear
 * quantizer's, found on the weights as they are, so groups stay in their places whatever the order; only
 * codes are chosen here. Everything is F64, summed in one order: the same bytes on every machine, at any
 * number of threads, however the inputs were cut into batches. */
#ifndef MOEC_COMPILER_GPTQ_H
#define MOEC_COMPILER_GPTQ_H

#include "formats/codec/codec.h"
#include "runtime/threads/parallel.h"

#define MOEC_GPTQ_DAMPING 0.01

/* H is kept for matrices of up to this many inputs (268 MB); wider ones stay with the linear quantizer, on
 * every machine alike. */
#define MOEC_GPTQ_MAX_INPUTS 8192u

struct moec_gptq;

/* For matrices with K inputs, 1 <= K <= MOEC_GPTQ_MAX_INPUTS. Takes moec_gptq_bytes(K), and as much again
 * while it encodes. Thread rule: one thread at a time; pools parallelise inside. */
MOEC_WARN_UNUSED enum moec_status moec_gptq_create(uint32_t n_input, struct moec_gptq **out,
                                                   struct moec_error *err);
void moec_gptq_free(struct moec_gptq *gptq);
uint64_t moec_gptq_bytes(uint32_t n_input);

/* Adds the inputs of n_tok tokens, rows of x that are zero from K to a multiple of 16. */
void moec_gptq_add(struct moec_gptq *gptq, const struct moec_pool *pool, const float *x, size_t stride,
                   uint32_t n_tok);

/* Ends adding and computes order and factor. Errors: MOEC_ERR_FORMAT when the inputs were not finite. */
MOEC_WARN_UNUSED enum moec_status moec_gptq_factor(struct moec_gptq *gptq, const struct moec_pool *pool,
                                                   struct moec_error *err);

/* Encodes rows of a matrix with an integer codec: (n_row, columns) weights, each row an output's K weights,
 * or with `by_input` an input's weights (K rows, all at once). `rows` receives n_row encoded rows. Without
 * inputs this is the linear quantizer. Errors: those of moec_codec_encode_row. */
MOEC_WARN_UNUSED enum moec_status moec_gptq_encode(const struct moec_gptq *gptq, const struct moec_pool *pool,
                                                   struct moec_codec codec, bool by_input,
                                                   const float *weights, uint32_t n_row, uint32_t columns,
                                                   uint8_t *rows, struct moec_error *err);

#endif
