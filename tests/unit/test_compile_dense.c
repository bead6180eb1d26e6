/* Plans whose dense matrices have codecs of their own: the size that is promised is the size of the file, and
 * what is measured is what is written. */
#include "tests/unit/fixture_model.h"
#include "tests/unit/temporary.h"

#include "compiler/compile/compile_dense.h"
#include "compiler/compile/compile_dense_plan.h"
#include "compiler/compile/compile_run.h"
#include "compiler/pack/pack.h"
#include "tests/unit/status.h"

#include <math.h>

struct bench {
    struct moec_checkpoint *checkpoint;
    struct moec_compile_options options;
    struct moec_compile_report report;
    struct moec_compile_run run;
    char *folder, *path;
};

/* Dense weights as in the checkpoint are bound, or at 8 bits. */
static void bench_open(struct bench *bench, const char *family, uint32_t dense_bits)
{
    char path[256];
    *bench = (struct bench){.options = {.dense.bits = dense_bits, .by.n_threads = 2, .target.max_loss = NAN}};
    snprintf(path, sizeof path, "tests/fixtures/families/%s", family);
    MUST(moec_checkpoint_open(path, &bench->checkpoint, &err));
    struct moec_compile_run *run = &bench->run;
    run->checkpoint = bench->checkpoint;
    run->options = &bench->options;
    run->report = &bench->report;
    run->group = 32;
    const struct moec_config *config = moec_checkpoint_config(bench->checkpoint);
    MUST(moec_codec_table(MOEC_QUANTIZER_LINEAR, MOEC_SCHEME_SYMMETRIC, 32,
                          (enum moec_dtype)config->expert_dtype, run->codecs, &err));
    MUST(moec_plan_create(&bench->report.plan, config, &err));
    MUST(moec_compile_dense_list(run, &err));
    MUST(moec_compile_dense_bind(run, dense_bits, &err));
    MUST(moec_variants_create(bench->checkpoint,
                              &(struct moec_variants_options){MOEC_SCHEME_SYMMETRIC, 32, 0, 2},
                              &run->variants, &err));
    bench->folder = temporary_folder();
    bench->path = temporary_path(bench->folder, "sample.moec");
}

static void bench_close(struct bench *bench)
{
    moec_compile_dense_unbind(&bench->run);
    moec_variants_free(bench->run.variants);
    moec_compile_report_release(&bench->report);
    moec_checkpoint_close(bench->checkpoint);
    temporary_remove(bench->folder);
    free(bench->path);
}

static void write_plan(struct bench *bench, const struct moec_plan *plan)
{
    struct moec_bundle_plan *bundle = NULL;
    const struct moec_dense *dense = NULL;
    struct moec_bundle_writer *writer = NULL;
    static const struct moec_provenance provenance = {.policy = "none"};
    MUST(moec_compile_bundle_of(&bench->run, plan, &bundle, &dense, &err));
    MUST(moec_bundle_writer_open(bundle, bench->path,
                                 &(struct moec_bundle_assignment){.experts = plan->experts}, &writer, &err));
    MUST(moec_pack_records(bench->checkpoint, NULL, writer, 2, NULL, &err));
    MUST(moec_bundle_writer_commit(writer, &provenance, NULL, &err));
}

/* Each matrix of the model that a plan is measured with, against the file's. */
static void check_plan(struct bench *bench, const struct moec_plan *plan)
{
    struct moec_bundle *bundle = NULL;
    struct moec_dense dense = {0};
    const struct moec_model *model = NULL;
    uint64_t n_bytes = 0;
    uint32_t i = 0;
    MUST(moec_compile_size(&bench->run, plan, &n_bytes, &err));
    MUST(moec_compile_dense_take(&bench->run, plan, &model, &err));
    write_plan(bench, plan);
    MUST(moec_bundle_verify(bench->path, NULL, NULL, &err));
    MUST(moec_bundle_open(bench->path, &bundle, &err));
    assert_int_equal(bundle->file.n_bytes, n_bytes);
    MUST(moec_bundle_load_dense(bundle, &dense, &err));
    assert_int_equal(dense.n_entries, model->dense.n_entries);
    for (uint32_t e = 0; e < dense.n_entries; e++) {
        const struct moec_dense_entry *file = &dense.entries[e], *measured = &model->dense.entries[e];
        struct moec_codec codec;
        assert_true(moec_codec_equal(file->codec, measured->codec));
        assert_memory_equal(dense.blob + file->offset, model->dense.blob + measured->offset, file->n_bytes);
        if (!moec_role_is_quantisable((enum moec_role)file->role))
            continue;
        const uint8_t number = plan->dense[i++];
        MUST(moec_compile_dense_codec(&bench->run, number, &codec, &err));
        if (number != 0 && moec_codec_bits(codec) < 16)
            assert_true(moec_codec_equal(file->codec, codec));
        if (number == 0)
            assert_int_equal(moec_codec_bits(file->codec), bench->options.dense.bits);
    }
    assert_int_equal(i, plan->n_dense);
    moec_dense_release(&dense);
    moec_bundle_close(bundle);
}

static void test_compile_dense__what_is_measured_is_written(void **state)
{
    (void)state;
    static const uint8_t numbers[] = {4, 0, 8, 33, 2, 16, 3};
    static const char *const families[] = {"qwen2_moe", "mixtral", "switch"};
    for (size_t f = 0; f < sizeof families / sizeof *families; f++)
        for (uint32_t bits = 8; bits <= 16; bits += 8) {
            struct bench bench;
            struct moec_plan plan;
            uint64_t plain = 0, again = 0;
            bench_open(&bench, families[f], bits);
            bench.run.codecs[33] = (struct moec_codec){.dtype = MOEC_DTYPE_INT3, .group = 64};
            MUST(moec_compile_codecs_changed(&bench.run, &err));
            MUST(moec_plan_create(&plan, moec_checkpoint_config(bench.checkpoint), &err));
            plan.dense_bits = bits;
            moec_plan_fill(&plan, 33);
            MUST(moec_compile_size(&bench.run, &plan, &plain, &err));
            for (uint32_t round = 0; round < 3; round++) {
                for (uint32_t i = 0; i < plan.n_dense; i++)
                    plan.dense[i] = numbers[(i + round) % sizeof numbers];
                check_plan(&bench, &plan);
            }
            memset(plan.dense, 0, plan.n_dense);
            MUST(moec_compile_size(&bench.run, &plan, &again, &err));
            assert_int_equal(again, plain);
            moec_plan_release(&plan);
            bench_close(&bench);
        }
}

static void test_compile_dense__a_number_without_a_codec_is_refused(void **state)
{
    (void)state;
    struct bench bench;
    struct moec_plan plan;
    struct moec_error refused = {0};
    uint64_t n_bytes = 0;
    bench_open(&bench, "qwen2_moe", 16);
    MUST(moec_plan_create(&plan, moec_checkpoint_config(bench.checkpoint), &err));
    for (uint32_t number = 34; number < 256; number += 100) {
        refused = (struct moec_error){0};
        plan.dense[1] = (uint8_t)number;
        assert_int_equal(moec_compile_size(&bench.run, &plan, &n_bytes, &refused), MOEC_ERR_USAGE);
        assert_non_null(strstr(refused.message, "for a dense matrix"));
    }
    plan.dense[1] = 4; /* and leaves nothing behind */
    MUST(moec_compile_size(&bench.run, &plan, &n_bytes, &err));
    moec_plan_release(&plan);
    bench_close(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compile_dense__what_is_measured_is_written),
        cmocka_unit_test(test_compile_dense__a_number_without_a_codec_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
