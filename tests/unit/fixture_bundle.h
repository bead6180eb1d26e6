/* Bundles of the checkpoints in tests/fixtures/families. */
#ifndef MOEC_TESTS_FIXTURE_BUNDLE_H
#define MOEC_TESTS_FIXTURE_BUNDLE_H

#include "formats/bundle/bundle_writer.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/model/plan.h"
#include "tests/unit/dense_load.h"
#include "tests/unit/temporary.h"

/* Experts of a fixture take turns at these bitwidths where they are mixed, else all have 16; each is there
 * once more at 4. */
static const uint8_t fixture_mixed[] = {2, 16, 3, 8, 4};

/* Dense weights of dense_bits, but rows of the embedding and the head from n_frequent on of INT8; 0: no such rows. */
TEMPORARY_UNUSED static void fixture_bundle_load_dense(struct moec_checkpoint *ck, uint32_t dense_bits,
                                                       uint32_t n_frequent, struct moec_dense *dense)
{
    struct moec_error err = {0};
    struct moec_codec codecs[256] = {{0}};
    moec_checkpoint_set_frequent(ck, n_frequent);
    if (n_frequent == 0) {
        assert_status(dense_load(ck, dense_bits, 0, dense, &err), MOEC_OK, err);
        return;
    }
    const struct moec_config *config = moec_checkpoint_config(ck);
    const uint32_t n = moec_plan_dense_count(config), n_rest = config->head.is_tied ? 1 : 2;
    assert_true(n <= 256);
    for (uint32_t i = 0; i < n; i++)
        if (dense_bits < 16 || i + n_rest >= n)
            assert_status(moec_codec_for_bits(i + n_rest >= n ? 8 : dense_bits, MOEC_SCHEME_SYMMETRIC, 0,
                                              MOEC_DTYPE_F32, &codecs[i], &err),
                          MOEC_OK, err);
    assert_status(moec_checkpoint_stream_dense_each(ck, codecs, dense, &err), MOEC_OK, err);
    assert_status(moec_dense_load(dense, &err), MOEC_OK, err);
}

TEMPORARY_UNUSED static void fixture_bundle_write_rows(const char *fixture, const char *path,
                                                       uint32_t dense_bits, bool is_mixed,
                                                       uint32_t n_frequent)
{
    struct moec_error err = {0};
    struct moec_checkpoint *ck = NULL;
    struct moec_dense dense = {0};
    struct moec_bundle_plan *plan = NULL;
    struct moec_bundle_writer *writer = NULL;
    struct moec_codec codecs[MOEC_CODEC_TABLE] = {0};
    struct moec_bundle_next next;
    assert_status(moec_checkpoint_open(fixture, &ck, &err), MOEC_OK, err);
    const struct moec_config *config = moec_checkpoint_config(ck);
    fixture_bundle_load_dense(ck, dense_bits, n_frequent, &dense);
    for (size_t i = 0; i < sizeof fixture_mixed; i++)
        assert_status(moec_codec_for_bits(fixture_mixed[i],
                                          i % 2 ? MOEC_SCHEME_SYMMETRIC : MOEC_SCHEME_ASYMMETRIC, 32,
                                          config->expert_dtype, &codecs[fixture_mixed[i]], &err),
                      MOEC_OK, err);
    struct moec_bundle_parts parts = {.config = config,
                                      .generation = moec_checkpoint_generation(ck),
                                      .dense = &dense,
                                      .codecs = codecs,
                                      .alignment = 64};
    const uint8_t copies[] = {4};
    size_t n = (size_t)moec_config_moe_count(config) * config->n_expert;
    struct moec_variant *assignment = malloc(n * sizeof *assignment);
    uint8_t *record = NULL;
    void *scratch = malloc(moec_checkpoint_expert_scratch_bytes(ck));
    assert_true(assignment != NULL && scratch != NULL);
    for (size_t i = 0; i < n; i++)
        assignment[i] = moec_variant_uniform(is_mixed ? fixture_mixed[i % sizeof fixture_mixed] : 16);
    if (is_mixed) /* and one whose projections differ */
        assignment[n - 1].codecs[MOEC_PROJECTION_DOWN] =
            assignment[n - 1].codecs[MOEC_PROJECTION_UP] == 4 ? 8 : 4;
    assert_status(moec_bundle_plan_create(&parts, &plan, &err), MOEC_OK, err);
    assert_status(moec_bundle_writer_open(plan, path,
                                          &(struct moec_bundle_assignment){
                                              .experts = assignment, .copy_bits = copies, .n_extra = 1},
                                          &writer, &err),
                  MOEC_OK, err);
    while (moec_bundle_writer_next(writer, &next)) {
        record = malloc(next.layout.n_bytes);
        assert_status(
            moec_checkpoint_encode_expert(ck, next.layer, next.expert, &next.layout, scratch, record, &err),
            MOEC_OK, err);
        assert_status(moec_bundle_writer_append(writer, record, next.layout.n_bytes, &err), MOEC_OK, err);
        free(record);
    }
    struct moec_provenance provenance = {.moec_version = "0", .policy = "test"};
    assert_status(moec_bundle_writer_commit(writer, &provenance, NULL, &err), MOEC_OK, err);
    moec_bundle_plan_free(plan);
    moec_dense_release(&dense);
    moec_checkpoint_close(ck);
    free(assignment);
    free(scratch);
}

TEMPORARY_UNUSED static void fixture_bundle_write(const char *fixture, const char *path, uint32_t dense_bits,
                                                  bool is_mixed)
{
    fixture_bundle_write_rows(fixture, path, dense_bits, is_mixed, 0);
}

#endif
