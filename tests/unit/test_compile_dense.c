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

/* Dense weights as in the checkpoint are bound, or at 8 bits; rows of tokens below n_frequent are matrices of their own,
 * 0: no such. */
static void bench_open(struct bench *bench, const char *family, uint32_t dense_bits, uint32_t n_frequent)
{
    char path[256];
    *bench = (struct bench){.options = {.dense.bits = dense_bits, .by.n_threads = 2, .target.max_loss = NAN}};
    snprintf(path, sizeof path, "tests/fixtures/families/%s", family);
    MUST(moec_checkpoint_open(path, &bench->checkpoint, &err));
    moec_checkpoint_set_frequent(bench->checkpoint, n_frequent);
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

/* The file's rows are those of the model that a plan is measured with, whether or not the file divides them. */
static void check_rows(const struct moec_dense *dense, const struct moec_dense_entry *file,
                       const struct moec_dense *model, bool is_joined)
{
    const enum moec_role role = (enum moec_role)file->role, rest = is_joined ? moec_role_rest(role) : role;
    uint64_t done = 0;
    for (int part = 0; part < (rest != role ? 2 : 1); part++) {
        const struct moec_dense_entry *measured =
            moec_dense_entry_find(model, part == 0 ? role : rest, file->layer);
        assert_non_null(measured);
        assert_true(moec_codec_equal(file->codec, measured->codec));
        assert_true(measured->n_bytes <= file->n_bytes - done);
        assert_memory_equal(dense->blob + file->offset + done, model->blob + measured->offset,
                            measured->n_bytes);
        done += measured->n_bytes;
    }
    assert_int_equal(done, file->n_bytes);
}

/* Each matrix of the file, in which embedding and head are divided or joined. */
static void check_plan(struct bench *bench, const struct moec_plan *plan, bool is_joined)
{
    const struct moec_config *config = moec_checkpoint_config(bench->checkpoint);
    const uint32_t n_joined = is_joined ? config->head.is_tied ? 1 : 2 : 0;
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
    assert_int_equal(bundle->config.n_frequent, is_joined ? 0 : config->n_frequent);
    assert_int_equal(dense.n_entries, model->dense.n_entries - n_joined);
    for (uint32_t e = 0; e < dense.n_entries; e++) {
        const struct moec_dense_entry *file = &dense.entries[e];
        struct moec_codec codec;
        check_rows(&dense, file, &model->dense, is_joined);
        if (!moec_role_is_quantisable((enum moec_role)file->role))
            continue;
        const uint8_t number = plan->dense[i++];
        MUST(moec_compile_dense_codec(&bench->run, number, &codec, &err));
        if (number != 0 && moec_codec_bits(codec) < 16)
            assert_true(moec_codec_equal(file->codec, codec));
        if (number == 0)
            assert_int_equal(moec_codec_bits(file->codec), bench->options.dense.bits);
    }
    assert_int_equal(i, plan->n_dense - n_joined);
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
            bench_open(&bench, families[f], bits, 0);
            bench.run.codecs[33] = (struct moec_codec){.dtype = MOEC_DTYPE_INT3, .group = 64};
            MUST(moec_compile_codecs_changed(&bench.run, &err));
            MUST(moec_plan_create(&plan, moec_checkpoint_config(bench.checkpoint), &err));
            plan.dense_bits = bits;
            moec_plan_fill(&plan, 33);
            MUST(moec_compile_size(&bench.run, &plan, &plain, &err));
            for (uint32_t round = 0; round < 3; round++) {
                for (uint32_t i = 0; i < plan.n_dense; i++)
                    plan.dense[i] = numbers[(i + round) % sizeof numbers];
                check_plan(&bench, &plan, false);
            }
            memset(plan.dense, 0, plan.n_dense);
            MUST(moec_compile_size(&bench.run, &plan, &again, &err));
            assert_int_equal(again, plain);
            moec_plan_release(&plan);
            bench_close(&bench);
        }
}

/* The place of a matrix in plans. */
static uint32_t place_of(const struct bench *bench, enum moec_role role)
{
    uint32_t i = 0;
    for (struct moec_dense_walk at = {0};
         moec_dense_next_matrix(moec_checkpoint_config(bench->checkpoint), &at) && at.role != role;)
        i++;
    return i;
}

static uint64_t size_of(struct bench *bench, const struct moec_plan *plan)
{
    uint64_t n_bytes = 0;
    MUST(moec_compile_size(&bench->run, plan, &n_bytes, &err));
    return n_bytes;
}

/* Where each matrix of tokens' rows that is divided has one codec, the file does not divide it. */
static void test_compile_dense__parts_of_one_codec_are_joined(void **state)
{
    (void)state;
    static const char *const families[] = {"qwen2_moe", "qwen2_moe-tied"};
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        struct bench bench;
        struct moec_plan plan;
        bench_open(&bench, families[f], 16, 37);
        const bool is_tied = moec_checkpoint_config(bench.checkpoint)->head.is_tied;
        const uint32_t first = place_of(&bench, MOEC_ROLE_EMBEDDING),
                       rest = place_of(&bench, MOEC_ROLE_EMBEDDING_REST);
        MUST(moec_plan_create(&plan, moec_checkpoint_config(bench.checkpoint), &err));
        assert_int_equal(rest, plan.n_dense - (is_tied ? 1 : 2));
        plan.dense_bits = 16;
        check_plan(&bench, &plan, true);
        memset(plan.dense, 3, plan.n_dense);
        check_plan(&bench, &plan, true);
        const uint64_t joined = size_of(&bench, &plan);
        plan.dense[first] = 4;
        check_plan(&bench, &plan, false);
        plan.dense[rest] = 4;
        check_plan(&bench, &plan, true);
        plan.dense[rest] = 8;
        check_plan(&bench, &plan, false);
        plan.dense[first] = 16; /* as in the checkpoint, by two names */
        plan.dense[rest] = 0;
        check_plan(&bench, &plan, true);
        plan.dense[first] = plan.dense[rest] = 3;
        assert_int_equal(size_of(&bench, &plan), joined);
        if (!is_tied) { /* the head alone is divided, and so both are */
            plan.dense[rest + 1] = 8;
            check_plan(&bench, &plan, false);
        }
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
    bench_open(&bench, "qwen2_moe", 16, 0);
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
        cmocka_unit_test(test_compile_dense__parts_of_one_codec_are_joined),
        cmocka_unit_test(test_compile_dense__a_number_without_a_codec_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
