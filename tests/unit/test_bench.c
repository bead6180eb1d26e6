/* Which rows a bench has, and what they come to. */
#include "tests/unit/temporary.h"

#include "tests/unit/sample_bundle.h"

#include "cli/settings/bench_options.h"
#include "profiler/bench/bench_figures.h"
#include "profiler/bench/bench_plan.h"
#include "profiler/bench/bench_row.h"

#include <math.h>

/* ---- memory sizes ---- */

static void test_bench__memory(void **state)
{
    static const char *const wrong[] = {"",       "%",    "0%",   "-5%",
                                        "100.5%", "nan%", "25 %", "25%%",
                                        "0MiB",   "12x",  "1e99", "123456789012345678901234567890%"};
    struct moec_bench_memory memory;
    (void)state;
    assert_true(cli_bench_memory("25%", &memory));
    assert_true(memory.share == 0.25 && memory.bytes == 0);
    assert_string_equal(memory.name, "25%");
    assert_true(cli_bench_memory("12.5%", &memory));
    assert_true(memory.share == 0.125);
    assert_true(cli_bench_memory("100%", &memory));
    assert_true(cli_bench_memory("64MiB", &memory));
    assert_true(memory.share == 0 && memory.bytes == 64u << 20);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_false(cli_bench_memory(wrong[i], &memory));
    assert_int_equal(memory.bytes, 64u << 20); /* left alone */
}

/* ---- rows ---- */

struct fixture {
    struct sample_fixture of;
    struct moec_bench bench;
};

/* The sample with copies of 8 and 16 bits beside the assignment. */
static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    sample_make(&f->of.sample, 4, 8, 4, 12);
    f->of.sample.copy_bits[0] = 8;
    f->of.sample.copy_bits[1] = 16;
    sample_open(&f->of);
    f->bench.options = (struct moec_bench_options){.path = f->of.path, .n_storage = 1};
    assert_true(cli_bench_memory("25%", &f->bench.options.memories[0]));
    assert_true(cli_bench_memory("64MiB", &f->bench.options.memories[1]));
    f->bench.options.n_memory = 2;
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    moec_bench_release(&f->bench);
    sample_close(&f->of);
    free(f);
    return 0;
}

static const struct moec_bench_row *row_named(const struct moec_bench *bench, const char *name)
{
    for (uint32_t r = 0; r < bench->n_row; r++)
        if (strcmp(bench->rows[r].name, name) == 0)
            return &bench->rows[r];
    return NULL;
}

static void test_bench__rows(void **state)
{
    struct fixture *f = *state;
    struct moec_error err = {0};
    assert_status(moec_bench_plan(f->of.bundle, &f->bench, &err), MOEC_OK, err);
    const struct moec_bench_row *resident = row_named(&f->bench, "io-free");
    const struct moec_bench_row *share = row_named(&f->bench, "io-exp+lru 25%");
    const struct moec_bench_row *process = row_named(&f->bench, "io-exp+lru 64MiB");
    assert_true(resident != NULL && share != NULL && process != NULL);
    assert_int_equal(resident->storage, 1);
    assert_int_equal(resident->memory, 2);
    assert_int_equal(share->memory_bytes, f->bench.expert_total_bytes / 4);
    assert_int_equal(share->engine.buffer.size_bytes, f->bench.expert_total_bytes / 4);
    assert_int_equal(share->engine.memory_bytes, 0);
    assert_int_equal(process->engine.memory_bytes, 64u << 20);
    assert_int_equal(process->engine.buffer.size_bytes, 0);
    /* No copy of 4 bits: said, not run. */
    assert_non_null(strstr(f->bench.left_out, "io-qexp+lru"));
    for (uint32_t r = 0; r < f->bench.n_row; r++)
        assert_true(strncmp(f->bench.rows[r].mode, "io-q", 4) != 0 ||
                    strcmp(f->bench.rows[r].mode, "io-qfree") == 0);
}

/* Every copy that is read has a row that computes the same with everything resident. */
static void test_bench__references(void **state)
{
    struct fixture *f = *state;
    struct moec_error err = {0};
    f->bench.options.modes[0] = "cache";
    f->bench.options.n_mode = 1;
    f->bench.options.evicts[0] = "lru";
    f->bench.options.evicts[1] = "lfu";
    f->bench.options.n_evict = 2;
    assert_status(moec_bench_plan(f->of.bundle, &f->bench, &err), MOEC_OK, err);
    assert_int_equal(f->bench.n_row, 5);
    assert_non_null(row_named(&f->bench, "cache 25% lfu"));
    const struct moec_bench_row *reference = row_named(&f->bench, "resident, copy 0");
    assert_true(reference != NULL && reference->kind == MOEC_BENCH_REFERENCE);
    assert_int_equal(reference->storage, 1);
    assert_int_equal(reference->engine.buffer.size_bytes + reference->engine.memory_bytes, 0);
}

static void test_bench__refused_modes(void **state)
{
    struct fixture *f = *state;
    struct moec_error err = {0};
    f->bench.options.modes[0] = "fly";
    f->bench.options.n_mode = 1;
    assert_int_equal(moec_bench_plan(f->of.bundle, &f->bench, &err), MOEC_ERR_USAGE);
    err = (struct moec_error){0};
    f->bench.options.modes[0] = "io-qexp+lru";
    assert_int_equal(moec_bench_plan(f->of.bundle, &f->bench, &err), MOEC_ERR_USAGE);
    assert_non_null(strstr(err.message, "--copies 4"));
    err = (struct moec_error){0};
    f->bench.options.modes[0] = "cache";
    f->bench.options.n_memory = 0;
    assert_int_equal(moec_bench_plan(f->of.bundle, &f->bench, &err), MOEC_ERR_USAGE);
    assert_non_null(strstr(err.message, "--memory"));
}

/* ---- figures ---- */

static void add_row(struct moec_bench *bench, const char *label, uint32_t storage, uint64_t token_ns)
{
    struct moec_bench_row *row = &bench->rows[bench->n_row];
    *row = (struct moec_bench_row){.label = label, .storage = storage, .pair = bench->n_row++};
    (void)snprintf(row->name, sizeof row->name, "%s", label);
    row->samples = calloc(2, sizeof *row->samples);
    row->decoded = calloc(2 * 10, sizeof *row->decoded);
    row->bytes_per_second = calloc(2, sizeof *row->bytes_per_second);
    assert_true(row->samples != NULL && row->decoded != NULL && row->bytes_per_second != NULL);
    for (uint32_t s = 0; s < 2; s++) {
        row->samples[s] = (struct moec_bench_sample){
            .prefill_ns = (s + 1) * 1000000u,
            .prefill = {.read_bytes = 3000000},
            .decode = {.hits = 30, .late = 10, .misses = 60, .read_bytes = 5000000, .stall_ns = 20000000},
            .decode_joules = 2,
            .peak_bytes = 1000 + s,
            .logits_crc = 77 + s,
        };
        row->bytes_per_second[s] = storage == 1 ? 0 : 1e9;
        for (uint32_t i = 0; i < 10; i++)
            row->decoded[s * 10 + i] = (struct moec_bench_token){
                .ns = token_ns + (s == 1 && i == 9 ? 50000000 : 0), .read_bytes = i < 8 ? 0 : 2500000};
    }
}

/* Three rows of two samples with ten tokens: resident, streamed without preloads, streamed with. */
static void make_figures(struct moec_bench *bench)
{
    *bench = (struct moec_bench){.options = {.n_storage = 1, .n_memory = 1},
                                 .tokens = {.n_sample = 2, .n_tokens = 10, .prompt_tokens = 1}};
    bench->rows = calloc(3, sizeof *bench->rows);
    assert_non_null(bench->rows);
    add_row(bench, "resident", 1, 1000000);
    add_row(bench, "io-exp", 0, 4000000);
    add_row(bench, "edgemoe", 0, 2000000);
    bench->rows[1].memory = 1;
    bench->rows[2].pair = 1;
    for (uint32_t s = 0; s < 2; s++)
        bench->rows[2].samples[s].decode.stall_ns = 15000000;
}

static bool is_near(double value, double expected)
{
    return fabs(value - expected) <= 1e-9 * fabs(expected);
}

static void test_bench__figures(void **state)
{
    struct moec_bench bench;
    struct moec_error err = {0};
    (void)state;
    make_figures(&bench);
    assert_status(moec_bench_summarise(&bench, &err), MOEC_OK, err);
    const struct moec_bench_figures *f = &bench.rows[1].figures;
    assert_true(is_near(f->tpot_ms_median, 4));
    assert_true(is_near(f->tpot_ms_p95, 4)); /* one token in twenty is slow */
    assert_true(is_near(f->tpot_ms_mean, 6.5));
    assert_true(is_near(f->ttft_ms, 2) || is_near(f->ttft_ms, 1));
    assert_true(is_near(f->hit_rate, 0.3) && is_near(f->late_rate, 0.1) && is_near(f->miss_rate, 0.6));
    assert_true(is_near(f->bytes_per_token, 500000));
    assert_true(is_near(f->stall_ms, 2));
    assert_true(is_near(f->joules_per_token, 0.2));
    assert_true(is_near(f->compute_ms, 1));
    assert_true(is_near(f->transfer_ms, 0.5));
    /* eight tokens of ten read nothing and compute for 1 ms, the two others read for 2.5 ms */
    assert_true(is_near(f->floor_ms, 1.3));
    assert_true(is_near(f->prompt_bytes, 3000000));
    assert_true(is_near(f->prompt_compute_ms, bench.rows[0].figures.ttft_ms));
    assert_true(is_near(f->prompt_transfer_ms, 3));
    assert_true(is_near(f->prompt_floor_ms, 3));
    assert_true(is_near(bench.rows[0].figures.prompt_floor_ms, bench.rows[0].figures.ttft_ms));
    assert_int_equal(bench.rows[1].peak_bytes, 1001);
    assert_true(is_near(bench.rows[0].figures.floor_ms, 1));
    assert_true(is_near(moec_bench_sample_ms(&bench, &bench.rows[1], 1), 92));
    assert_int_equal(bench.n_failed, 0);

    struct moec_bench_ratio ratios[4];
    assert_int_equal(moec_bench_ratios(&bench, ratios, 4), 1);
    assert_true(is_near(ratios[0].speedup, 2));
    /* 0.5 ms of stall less, of at most 1 ms that computing could hide */
    assert_true(is_near(moec_bench_hidden_share(&bench, &bench.rows[2]), 0.5));
    assert_true(isnan(moec_bench_hidden_share(&bench, &bench.rows[1])));
    moec_bench_release(&bench);
}

/* The device was slow around the first sample, and faster than computing around the second. */
static void test_bench__floors_of_samples(void **state)
{
    struct moec_bench bench;
    struct moec_error err = {0};
    (void)state;
    make_figures(&bench);
    bench.rows[1].bytes_per_second[1] = 5e9;
    assert_status(moec_bench_summarise(&bench, &err), MOEC_OK, err);
    const struct moec_bench_figures *f = &bench.rows[1].figures;
    assert_true(is_near(f->transfer_ms, 0.3)); /* two tokens of ten read, for 2.5 and for 0.5 ms */
    assert_true(is_near(f->floor_ms, 1.15));
    assert_true(is_near(f->prompt_transfer_ms, 1.8));
    assert_true(is_near(f->bytes_per_second, 1e9) || is_near(f->bytes_per_second, 5e9));
    moec_bench_release(&bench);
}

static void test_bench__logits_must_agree(void **state)
{
    struct moec_bench bench;
    struct moec_error err = {0};
    (void)state;
    make_figures(&bench);
    bench.rows[1].copy = 1; /* other weights, other logits */
    bench.rows[1].samples[0].logits_crc++;
    bench.rows[2].samples[1].logits_crc++;
    assert_status(moec_bench_summarise(&bench, &err), MOEC_OK, err);
    assert_int_equal(bench.n_failed, 1);
    assert_int_equal(bench.rows[1].error.status, MOEC_OK);
    assert_int_equal(bench.rows[2].error.status, MOEC_ERR_MISMATCH);
    assert_non_null(strstr(bench.rows[2].error.message, "sample 1 differ"));
    moec_bench_release(&bench);
}

static void test_bench__failed_rows(void **state)
{
    struct moec_bench bench;
    struct moec_error err = {0};
    (void)state;
    make_figures(&bench);
    (void)moec_fail(&bench.rows[0].error, MOEC_ERR_IO, "worker died");
    assert_status(moec_bench_summarise(&bench, &err), MOEC_OK, err);
    assert_int_equal(bench.n_failed, 1);
    assert_true(isnan(bench.rows[0].figures.tpot_ms_median));
    assert_true(is_near(bench.rows[1].figures.tpot_ms_median, 4));
    assert_true(isnan(bench.rows[1].figures.prompt_floor_ms));
    assert_true(isnan(bench.rows[1].figures.floor_ms)); /* nobody knows what computing takes */
    moec_bench_release(&bench);
}

/* ---- plots ---- */

static const struct moec_chart *chart_named(const struct moec_figures *figures, const char *name)
{
    for (uint32_t i = 0; i < figures->n; i++)
        for (uint32_t c = 0; c < figures->items[i].n_chart; c++)
            if (strcmp(figures->items[i].charts[c].name, name) == 0)
                return &figures->items[i].charts[c];
    return NULL;
}

static void test_bench__plots(void **state)
{
    struct moec_bench bench;
    struct moec_figures figures;
    struct moec_error err = {0};
    (void)state;
    make_figures(&bench);
    bench.options.path = "model.moec";
    assert_true(cli_bench_memory("25%", &bench.options.memories[0]));
    (void)snprintf(bench.options.storages[0].name, sizeof bench.options.storages[0].name, "550MB/s,80us");
    assert_status(moec_bench_summarise(&bench, &err), MOEC_OK, err);
    assert_status(moec_bench_figures_make(&bench, &figures, &err), MOEC_OK, err);
    const struct moec_chart *tpot = chart_named(&figures, "tpot_25_550mb_s_80us");
    assert_non_null(tpot);
    assert_int_equal(tpot->x.n_category, 2);
    assert_string_equal(tpot->x.categories[0], "edgemoe");
    assert_string_equal(tpot->x.categories[1], "io-exp");
    assert_true(is_near(tpot->series[0].y[0], 2) && is_near(tpot->series[0].y[1], 4));
    assert_true(is_near(tpot->series[1].y[0], 1.3));
    assert_non_null(strstr(tpot->caption, "2.00 times the speed of io-exp"));
    const struct moec_chart *latency = chart_named(&figures, "latency_25_550mb_s_80us");
    assert_non_null(latency);
    assert_true(is_near(latency->series[1].x[0], 41) && is_near(latency->series[1].y[0], 50));
    assert_true(is_near(latency->series[1].x[1], 92) && is_near(latency->series[1].y[1], 100));
    assert_non_null(chart_named(&figures, "breakdown_25_550mb_s_80us"));
    assert_null(chart_named(&figures, "ablation_25_550mb_s_80us")); /* its rows did not run */
    assert_null(chart_named(&figures, "memory_550mb_s_80us"));      /* one size is no line */
    moec_figures_release(&figures);
    moec_bench_release(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bench__memory),
        cmocka_unit_test_setup_teardown(test_bench__rows, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bench__references, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bench__refused_modes, set_up, tear_down),
        cmocka_unit_test(test_bench__figures),
        cmocka_unit_test(test_bench__floors_of_samples),
        cmocka_unit_test(test_bench__logits_must_agree),
        cmocka_unit_test(test_bench__failed_rows),
        cmocka_unit_test(test_bench__plots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
