/* Dense matrices of a plan, also with codecs of their own, and the bundle that they make. Thread rule: one
 * thread, parallel inside. */
#ifndef MOEC_COMPILER_COMPILE_DENSE_PLAN_H
#define MOEC_COMPILER_COMPILE_DENSE_PLAN_H

#include "compiler/compile/compile_run.h"

/* Whether dense weights at these bits are the checkpoint's own. */
bool moec_compile_dense_is_original(const struct moec_compile_run *run, uint32_t dense_bits);

/* What a number in plan->dense stands for, F32 for 0: as the checkpoint has it. A bitwidth is symmetric, in
 * groups as experts are; others are the run's codecs. Errors: MOEC_ERR_USAGE for a number without a codec. */
MOEC_WARN_UNUSED enum moec_status moec_compile_dense_codec(const struct moec_compile_run *run,
                                                           uint32_t number, struct moec_codec *codec,
                                                           struct moec_error *err);
/* A model with the dense matrices of these numbers (n_dense of the plan; 0 = as in the dense weights that are
 * bound; NULL = all of them 0), the caller's. It borrows the run. */
MOEC_WARN_UNUSED enum moec_status moec_compile_dense_model(const struct moec_compile_run *run,
                                                           const uint8_t *numbers, struct moec_model **model,
                                                           struct moec_error *err);
/* The model to measure a plan with: the one that is bound, or one of the plan's own dense weights, which
 * stays until a plan with others. Borrowed. */
MOEC_WARN_UNUSED enum moec_status moec_compile_dense_take(struct moec_compile_run *run,
                                                          const struct moec_plan *plan,
                                                          const struct moec_model **model,
                                                          struct moec_error *err);
/* The bundle plan to size and write a plan with, and its dense weights; borrowed until a plan with others. A
 * matrix is compressed once for each codec that plans give it, after which sizes are sums. An embedding and a head that
 * the checkpoint's config divides are one matrix each again where both parts of each have one codec. */
MOEC_WARN_UNUSED enum moec_status moec_compile_bundle_of(struct moec_compile_run *run,
                                                         const struct moec_plan *plan,
                                                         struct moec_bundle_plan **bundle,
                                                         const struct moec_dense **dense,
                                                         struct moec_error *err);
/* Stored bytes of the dense weights that no plan encodes: of the runs of `dense` that are no matrices. */
MOEC_WARN_UNUSED enum moec_status moec_compile_dense_rest_bytes(const struct moec_dense *dense,
                                                                uint64_t *n_bytes, struct moec_error *err);
/* Stored bytes of each entry of a plan's dense weights as moec_compile_bundle_of gave them: of matrices that
 * are compressed alone, 0 of others; NULL for weights that are bound. The caller's. Errors: MOEC_ERR_MEMORY.
 */
MOEC_WARN_UNUSED enum moec_status moec_compile_dense_bytes(const struct moec_compile_run *run,
                                                           const struct moec_plan *plan,
                                                           const struct moec_dense *dense, uint64_t **n_bytes,
                                                           struct moec_error *err);
/* To be called when run->codecs has got further codecs, and when run->fit has become another one. */
MOEC_WARN_UNUSED enum moec_status moec_compile_codecs_changed(struct moec_compile_run *run,
                                                              struct moec_error *err);
void moec_compile_dense_forget(struct moec_compile_run *run);

/* What each number means for a dense matrix: a bitwidth its own (moec_compile_dense_codec), others the run's.
 */
MOEC_WARN_UNUSED enum moec_status moec_compile_dense_codecs(const struct moec_compile_run *run,
                                                            struct moec_codec codecs[static MOEC_CODEC_TABLE],
                                                            struct moec_error *err);

/* What a bundle of least_bytes or more keeps of the profile's paths, 1 % of it at most, and of its router
 * ranges. Released with moec_path_table_release. */
MOEC_WARN_UNUSED enum moec_status moec_compile_take_paths(const struct moec_compile_run *run,
                                                          uint64_t least_bytes, struct moec_path_table *paths,
                                                          struct moec_error *err);

/* Makes a bundle plan for parts whose config, dense weights, their cut and their size are given: the rest is the
 * run's. */
MOEC_WARN_UNUSED enum moec_status moec_compile_bundle_make(struct moec_compile_run *run,
                                                           const struct moec_path_table *paths,
                                                           struct moec_bundle_parts *parts,
                                                           struct moec_bundle_plan **out,
                                                           struct moec_error *err);

/* Bytes of the bundle of a plan; `context` is the run. */
MOEC_WARN_UNUSED enum moec_status moec_compile_size(void *context, const struct moec_plan *plan,
                                                    uint64_t *n_bytes, struct moec_error *err);

#endif
