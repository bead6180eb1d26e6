/* Writes the seed corpus of the bundle fuzzer: `make_bundle_seeds tests/fuzz/corpus/bundle`. To be run again
 * when the format changes. */
#include "tests/unit/temporary.h"

#include "formats/bundle/bundle_decisions.h"
#include "formats/bundle/bundle_dense.h"
#include "formats/bundle/bundle_evict.h"
#include "formats/bundle/bundle_sparsity.h"
#include "formats/bundle/bundle_strip.h"
#include "formats/tables/score_shares.h"
#include "tests/unit/fixture_bundle.h"
#include "tests/unit/sample_bundle.h"

/* Several codecs of one bitwidth, and dense weights whose pieces are cut by matrix. */
static void write_codecs(struct sample *s, const char *path)
{
    struct moec_error err = {0};
    uint64_t stored = 0;
    s->mixed = sample_experts(s);
    s->codecs[33] = (struct moec_codec){.dtype = MOEC_DTYPE_INT2, .group = 32};
    s->codecs[34] =
        (struct moec_codec){.dtype = MOEC_DTYPE_INT3, .scheme = MOEC_SCHEME_ASYMMETRIC_NESTED, .group = 16};
    s->codecs[35] = (struct moec_codec){.dtype = MOEC_DTYPE_INT2, .scheme = MOEC_SCHEME_TRELLIS};
    s->codecs[36] = (struct moec_codec){.dtype = MOEC_DTYPE_INT1, .group = 32};
    s->codecs[37] = (struct moec_codec){.dtype = MOEC_DTYPE_INT3, .scheme = MOEC_SCHEME_SHIFT};
    s->mixed[0] = (struct moec_variant){{2, 36, 34}};
    s->mixed[3] = (struct moec_variant){{2, 33, 34}};
    s->mixed[1] = moec_variant_uniform(34);
    s->mixed[2] = (struct moec_variant){{35, 35, 37}};
    s->parts.cuts_dense = true;
    s->parts.dense_stored_bytes = 0;
    for (uint32_t e = 0; e < s->dense.n_entries; e += moec_bundle_dense_run(&s->dense, e)) {
        assert_status(moec_bundle_dense_run_bytes(&s->dense, e, &stored, &err), MOEC_OK, err);
        s->parts.dense_stored_bytes += stored;
    }
    (void)sample_write(s, path);
}

/* Scales of scales, groups of 16, INT5 and INT6, and projections that differ: form 1 of the record index. */
static void nest_scales(struct sample *s)
{
    static const uint8_t numbers[] = {2, 3, 4, 5, 6, 8, 33};
    const size_t n = (size_t)SAMPLE_MOE * s->config.n_expert;
    for (size_t i = 0; i < sizeof numbers; i++) {
        const uint32_t bits = numbers[i] == 33 ? 2 : numbers[i];
        struct moec_error err = {0};
        assert_status(moec_codec_for_bits(
                          bits, i % 2 == 0 ? MOEC_SCHEME_ASYMMETRIC_NESTED : MOEC_SCHEME_SYMMETRIC_NESTED,
                          numbers[i] == 33 ? 16 : 32, MOEC_DTYPE_BF16, &s->codecs[numbers[i]], &err),
                      MOEC_OK, err);
    }
    s->mixed = malloc(n * sizeof *s->mixed);
    assert_non_null(s->mixed);
    for (size_t i = 0; i < n; i++)
        for (int p = 0; p < MOEC_PROJECTION_COUNT; p++)
            s->mixed[i].codecs[p] = numbers[(i + (size_t)p * 3) % sizeof numbers];
}

/* The bundle at `from` with thresholds. */
static void write_sparse(const struct sample *s, const char *from, const char *path)
{
    static const uint16_t shares[] = {500, 900};
    struct moec_sparsity_table table;
    struct moec_sparsity_plan plan;
    struct moec_error err = {0};
    assert_status(moec_sparsity_table_create(&s->config, shares, 2, &table, &err), MOEC_OK, err);
    for (uint32_t i = 0; i < table.n_layer * table.n_expert * 2; i++)
        table.thresholds[i] = 0.125f * (float)(i + 1);
    assert_status(moec_sparsity_plan_create(&s->config, MOEC_SPARSITY_BY_NEURON, &plan, &err), MOEC_OK, err);
    plan.threshold = 1;
    plan.certificate = (struct moec_certificate){.present = true, .metric = "perplexity", .loss_high = 0.01};
    for (uint32_t i = 0; i < plan.n_layer * plan.n_expert * plan.n_scale; i++)
        plan.scales[i] = (uint16_t)(0x3f00 + i % 64);
    table.turnover = (struct moec_neuron_turnover){2, {500, 900}, {0.25f, 0.5f}};
    assert_status(moec_bundle_put_sparsity(from, &table, &plan, true, path, &err), MOEC_OK, err);
    moec_sparsity_plan_release(&plan);
    moec_sparsity_table_release(&table);
}

/* The bundle at `from` with settings of decisions, of a route or of a prefill. */
static void write_tuned(const struct sample *s, const char *from, bool has_prefill, const char *path)
{
    struct moec_error err = {0};
    struct moec_bundle_decisions decisions = {
        .settings = {.route = "cache-prior:0.2", .n_slots = s->config.n_expert},
        .certificate = {.present = true,
                        .metric = "perplexity",
                        .loss = 0.01,
                        .loss_high = 0.015,
                        .n_sequence = 1,
                        .sequence = {{.n_bytes = 100, .result = MOEC_SEQUENCE_PASSED, .is_chosen = true}}},
        .traffic = {.n_taken = 10, .n_missed = 2, .token_bytes = 100},
        .plain_traffic = {.n_taken = 10, .n_missed = 3, .token_bytes = 150}};
    if (has_prefill) {
        decisions.settings = (struct moec_decision_settings){.prefill = "unpopular:0.25:512",
                                                             .n_slots = s->config.n_expert,
                                                             .n_low_slots = s->config.top_k,
                                                             .low_bits = 2};
        decisions.prompt_tokens = 256;
    }
    assert_status(moec_bundle_put_decisions(from, &decisions, path, &err), MOEC_OK, err);
}

/* The bundle at `from` with weights of eviction. */
static void write_weighed(const char *from, const char *path)
{
    struct moec_error err = {0};
    const struct moec_bundle_evict evict = {
        .weights = {0.4f, 0.2f, 0.2f, 0.2f}, .buffer_bytes = 1 << 20, .lost_ns = 4e5, .lost_by_lru_ns = 5e5};
    assert_status(moec_bundle_put_evict(from, &evict, path, &err), MOEC_OK, err);
}

/* The bundle at `from` with dense weights that are stored as they are, and checksums of them. */
static void write_unpacked(const char *from, const char *path)
{
    struct moec_error err = {0};
    struct moec_bundle_stripped stripped;
    assert_status(moec_bundle_unpack(from, NULL, 0, path, &stripped, &err), MOEC_OK, err);
}

int main(int argc, char **argv)
{
    struct sample s;
    float spread[MOEC_SCORE_COUNT];
    if (argc != 2) {
        fprintf(stderr, "usage: make_bundle_seeds FOLDER\n");
        return 2;
    }
    char *full = temporary_path(argv[1], "full.moec"), *bare = temporary_path(argv[1], "bare.moec"),
         *levels = temporary_path(argv[1], "levels.moec"), *codecs = temporary_path(argv[1], "codecs.moec"),
         *nested = temporary_path(argv[1], "nested.moec"), *sparse = temporary_path(argv[1], "sparse.moec"),
         *tuned = temporary_path(argv[1], "tuned.moec"), *mxfp4 = temporary_path(argv[1], "mxfp4.moec"),
         *prefill = temporary_path(argv[1], "prefill.moec"),
         *weighed = temporary_path(argv[1], "weighed.moec"),
         *unpacked = temporary_path(argv[1], "unpacked.moec"), *rows = temporary_path(argv[1], "rows.moec");
    sample_make(&s, 3, 6, 3, 1);
    (void)sample_write(&s, full);
    for (uint32_t i = 0; i < MOEC_SCORE_COUNT; i++)
        spread[i] = (float)i / (float)MOEC_SCORE_STEPS;
    struct moec_codec kept[MOEC_CODEC_TABLE];
    memcpy(kept, s.codecs, sizeof kept);
    for (uint32_t bits = 2; bits <= 4; bits++)
        s.codecs[bits].scheme = bits == 3 ? MOEC_SCHEME_LOGARITHMIC : MOEC_SCHEME_GAUSSIAN;
    s.codecs[8].scheme = MOEC_SCHEME_LOGARITHMIC;
    (void)sample_write(&s, levels);
    memcpy(s.codecs, kept, sizeof kept);
    nest_scales(&s);
    (void)sample_write(&s, nested);
    memcpy(s.codecs, kept, sizeof kept);
    free(s.mixed);
    s.mixed = NULL;
    s.parts.generation = NULL;
    s.parts.tokenizer = NULL;
    s.parts.paths = NULL;
    s.parts.routing = NULL;
    s.parts.alignment = 128;
    s.certificate.present = false;
    s.n_extra = 0;
    (void)sample_write(&s, bare);
    write_sparse(&s, bare, sparse);
    write_unpacked(bare, unpacked);
    write_tuned(&s, bare, false, tuned);
    write_tuned(&s, bare, true, prefill);
    s.parts.expert_scores = spread;
    (void)sample_write(&s, weighed);
    s.parts.expert_scores = NULL;
    write_weighed(weighed, weighed);
    write_codecs(&s, codecs);
    fixture_bundle_write("tests/fixtures/families/gpt_oss-mxfp4", mxfp4, 4, true);
    fixture_bundle_write_rows("tests/fixtures/families/qwen2_moe-tied", rows, 4, false, 37);
    sample_release(&s);
    free(full);
    free(bare);
    free(levels);
    free(codecs);
    free(nested);
    free(sparse);
    free(tuned);
    free(prefill);
    free(weighed);
    free(unpacked);
    free(mxfp4);
    free(rows);
    return 0;
}
