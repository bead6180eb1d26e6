/* GPTQ of routed experts: every family's, nearer to the original than HQQ, the same bytes at any thread
 * count, batch and memory. */
#include "tests/unit/fixture_model.h"
#include "tests/unit/temporary.h"
#include "tests/unit/thread_ranks.h"

#include "compiler/fit/expert_fit.h"
#include "compiler/fit/gptq.h"
#include "formats/base/memory.h"

#include <math.h>

#define N_WINDOW 6u
#define SEQ_LEN  24u

struct bench {
    struct fixture fixture;
    struct moec_work_memory work;
    struct moec_windows windows;
    struct moec_rank_block block; /* of a bench that ranks share */
    struct moec_scorer *scorer;
};

/* Windows of any tokens; those of an encoder-decoder model are half source. */
static void bench_open_shared(struct bench *bench, const char *name, int n_threads, uint32_t batch_tokens,
                              struct moec_ranks *ranks)
{
    struct moec_scorer_options options = {.by = {.kernels = moec_kernels_best(), .n_threads = n_threads}};
    *bench = (struct bench){.fixture = fixture_open(name), .work = {.batch_tokens = batch_tokens}};
    struct moec_windows *windows = &bench->windows;
    *windows = (struct moec_windows){.n_window = N_WINDOW, .seq_len_tokens = SEQ_LEN, .work = &bench->work};
    windows->tokens = malloc(N_WINDOW * 2 * SEQ_LEN * sizeof(uint32_t));
    windows->length = malloc(N_WINDOW * sizeof(uint32_t));
    windows->scored = malloc(N_WINDOW * sizeof(uint32_t));
    windows->index = calloc(N_WINDOW, sizeof(uint64_t));
    if (moec_config_is_encoder_decoder(&bench->fixture.model->config))
        windows->source = malloc(N_WINDOW * sizeof(uint32_t));
    for (uint32_t i = 0; i < N_WINDOW * 2 * SEQ_LEN; i++)
        windows->tokens[i] = (i * 2654435761u >> 7) % bench->fixture.model->config.n_vocab;
    for (uint32_t w = 0; w < N_WINDOW; w++) {
        windows->length[w] = SEQ_LEN - w;
        if (windows->source != NULL)
            windows->source[w] = SEQ_LEN / 2;
        windows->scored[w] = windows->length[w] - moec_windows_source(windows, w) - 1;
    }
    if (ranks != NULL) {
        MUST(moec_rank_block_make(ranks, windows, &bench->block, &err));
        options.shown = windows;
    }
    MUST(moec_scorer_create(bench->fixture.model, moec_variants_experts(bench->fixture.variants),
                            ranks != NULL ? &bench->block.own : windows, &options, &bench->scorer, &err));
}

static void bench_open(struct bench *bench, const char *name, int n_threads, uint32_t batch_tokens)
{
    bench_open_shared(bench, name, n_threads, batch_tokens, NULL);
}

static void bench_close(struct bench *bench)
{
    moec_scorer_free(bench->scorer);
    moec_rank_block_release(&bench->block);
    moec_windows_release(&bench->windows);
    fixture_close(&bench->fixture);
}

static struct moec_codec codec_of(uint32_t bits, enum moec_quantizer quantizer)
{
    struct moec_codec codec;
    MUST(moec_codec_for_bits(bits, MOEC_SCHEME_ASYMMETRIC_NESTED, 32, MOEC_DTYPE_F32, &codec, &err));
    codec.quantizer = (uint8_t)quantizer;
    return codec;
}

enum { THREE_GPTQ, TWO_GPTQ, THREE_HQQ, N_CODEC };

static struct moec_expert_fit *fit_of(struct bench *bench, int n_threads, uint64_t memory_bytes)
{
    const struct moec_expert_fit_codec codecs[N_CODEC] = {
        {codec_of(3, MOEC_QUANTIZER_GPTQ), 7},
        {codec_of(2, MOEC_QUANTIZER_GPTQ), 1u << MOEC_PROJECTION_GATE | 1u << MOEC_PROJECTION_UP},
        {codec_of(3, MOEC_QUANTIZER_HQQ), 7}};
    const struct moec_expert_fit_request request = {
        .of = {.checkpoint = bench->fixture.checkpoint, .scorer = bench->scorer, .windows = &bench->windows},
        .codes = {.codecs = codecs, .n_codec = N_CODEC},
        .memory_bytes = memory_bytes,
        .n_threads = n_threads,
        .block = bench->block.ranks != NULL ? &bench->block : NULL};
    struct moec_expert_fit *fit = NULL;
    MUST(moec_expert_fit_create(&request, &fit, &err));
    return fit;
}

/* A record with these codecs; the caller frees it. */
static uint8_t *record_of(const struct bench *bench, const struct moec_expert_encoder *encoder,
                          uint32_t layer, uint32_t expert, struct moec_codec gate, struct moec_codec up,
                          struct moec_codec down, struct moec_record_layout *layout)
{
    struct moec_codec table[MOEC_CODEC_TABLE] = {[2] = gate, [3] = up, [4] = down};
    void *scratch = NULL;
    *layout = moec_record_layout_of(&bench->fixture.model->config, (struct moec_variant){{2, 3, 4}}, table);
    uint8_t *record = calloc(layout->n_bytes, 1);
    MUST(moec_alloc_aligned(&scratch, moec_checkpoint_expert_scratch_bytes(bench->fixture.checkpoint), 1,
                            "scratch", &err));
    MUST(
        encoder->encode(encoder, &(struct moec_expert_record){layer, expert, layout}, scratch, record, &err));
    free(scratch);
    return record;
}

static void test_expert_fit__is_nearer_than_hqq(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FIXTURE_FAMILIES + N_FIXTURE_PAIRS; f++) {
        const char *name =
            f < N_FIXTURE_FAMILIES ? fixture_families[f] : fixture_pairs[f - N_FIXTURE_FAMILIES];
        struct bench bench;
        bench_open(&bench, name, 2, 0);
        const struct moec_config *config = &bench.fixture.model->config;
        struct moec_expert_fit *fit = fit_of(&bench, 2, 0);
        for (uint32_t p = 0; p < MOEC_PROJECTION_COUNT; p++) {
            double gptq = 0, hqq = 0, energy = 0, two = 0;
            for (uint32_t s = 0; s < moec_config_moe_count(config); s++)
                for (uint32_t e = 0; e < config->n_expert; e++) {
                    const uint32_t layer = moec_config_moe_layer(config, s);
                    gptq += moec_expert_fit_error(fit, layer, e, (enum moec_projection)p, THREE_GPTQ);
                    hqq += moec_expert_fit_error(fit, layer, e, (enum moec_projection)p, THREE_HQQ);
                    two += moec_expert_fit_error(fit, layer, e, (enum moec_projection)p, TWO_GPTQ);
                    energy += moec_expert_fit_energy(fit, layer, e, (enum moec_projection)p);
                }
            if (p == MOEC_PROJECTION_GATE && config->mlp.plain) {
                assert_true(gptq == 0 && energy == 0);
                continue;
            }
            if (!(gptq < 0.95 * hqq && hqq < energy))
                fail_msg("%s, projection %u: error %g by GPTQ, %g by HQQ, of %g", name, p, gptq, hqq, energy);
            assert_true(p == MOEC_PROJECTION_DOWN ? two == 0 : two > gptq);
        }
        moec_expert_fit_free(fit);
        bench_close(&bench);
    }
}

static void test_expert_fit__does_not_depend_on_threads_batches_or_memory(void **state)
{
    (void)state;
    struct bench one, three;
    bench_open(&one, "qwen2_moe", 1, 0);
    bench_open(&three, "qwen2_moe", 3, SEQ_LEN);
    const struct moec_config *config = &one.fixture.model->config;
    const struct moec_expert_fit_memory memory = moec_expert_fit_bytes(config, 3);
    const uint64_t each = (memory.most_bytes - memory.least_bytes) / (config->n_expert - 1);
    struct moec_expert_fit *all = fit_of(&one, 1, 0), *single = fit_of(&three, 3, 1),
                           *some = fit_of(&three, 3, memory.least_bytes + 2 * each);
    const struct moec_codec codec = codec_of(3, MOEC_QUANTIZER_GPTQ), two = codec_of(2, MOEC_QUANTIZER_GPTQ);
    for (uint32_t s = 0; s < moec_config_moe_count(config); s++)
        for (uint32_t e = 0; e < config->n_expert; e++) {
            struct moec_record_layout layout;
            const uint32_t layer = moec_config_moe_layer(config, s);
            uint8_t *records[3];
            const struct moec_expert_fit *fits[3] = {all, single, some};
            for (int i = 0; i < 3; i++)
                records[i] = record_of(i == 0 ? &one : &three, moec_expert_fit_encoder(fits[i]), layer, e,
                                       two, codec, codec, &layout);
            for (int i = 1; i < 3; i++) {
                assert_memory_equal(records[0], records[i], layout.n_bytes);
                for (uint32_t p = 0; p < MOEC_PROJECTION_COUNT; p++)
                    assert_true(moec_expert_fit_error(fits[0], layer, e, (enum moec_projection)p, 0) ==
                                moec_expert_fit_error(fits[i], layer, e, (enum moec_projection)p, 0));
            }
            for (int i = 0; i < 3; i++)
                free(records[i]);
        }
    moec_expert_fit_free(all);
    moec_expert_fit_free(single);
    moec_expert_fit_free(some);
    bench_close(&one);
    bench_close(&three);
}

/* What all ranks, the last one too, are to have. */
struct shared {
    const char *name;
    uint64_t memory_bytes;
    const struct bench *alone;
    const struct moec_expert_fit *fit;
    bool is_same; /* as that one's */
};

static bool is_same_expert(const struct shared *shared, const struct bench *bench,
                           const struct moec_expert_fit *fit, uint32_t layer, uint32_t expert)
{
    const struct moec_codec three = codec_of(3, MOEC_QUANTIZER_GPTQ), two = codec_of(2, MOEC_QUANTIZER_GPTQ);
    struct moec_record_layout layout;
    uint8_t *a = record_of(shared->alone, moec_expert_fit_encoder(shared->fit), layer, expert, two, three,
                           three, &layout);
    uint8_t *b = record_of(bench, moec_expert_fit_encoder(fit), layer, expert, two, three, three, &layout);
    bool is_same = memcmp(a, b, layout.n_bytes) == 0;
    for (int p = 0; p < MOEC_PROJECTION_COUNT; p++) {
        const enum moec_projection at = (enum moec_projection)p;
        is_same &= moec_expert_fit_energy(shared->fit, layer, expert, at) ==
                   moec_expert_fit_energy(fit, layer, expert, at);
        for (uint32_t c = 0; c < N_CODEC; c++)
            is_same &= moec_expert_fit_error(shared->fit, layer, expert, at, c) ==
                       moec_expert_fit_error(fit, layer, expert, at, c);
    }
    free(a);
    free(b);
    return is_same;
}

static void fit_shared(struct member *member, struct moec_ranks *ranks)
{
    struct shared *shared = member->context;
    struct bench bench;
    bench_open_shared(&bench, shared->name, 1, 0, ranks);
    const struct moec_config *config = &bench.fixture.model->config;
    if (shared->memory_bytes > 0) { /* little memory: states go to files */
        bench.work.states_bytes = 1;
        bench.work.folder = "/tmp";
    }
    struct moec_expert_fit *fit = fit_of(&bench, 1, shared->memory_bytes);
    shared->is_same = moec_expert_fit_unseen(fit) == moec_expert_fit_unseen(shared->fit);
    for (uint32_t s = 0; s < moec_config_moe_count(config); s++)
        for (uint32_t e = 0; e < config->n_expert; e++)
            shared->is_same &= is_same_expert(shared, &bench, fit, moec_config_moe_layer(config, s), e);
    moec_expert_fit_free(fit);
    bench_close(&bench);
    member->status = moec_ranks_leave(ranks, NULL, &member->err);
}

/* Of all families, with fewer and more windows than ranks, and with a layer's experts in one batch or several. */
static void test_expert_fit__is_the_same_of_ranks(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FIXTURE_FAMILIES + N_FIXTURE_PAIRS; f++) {
        const char *name =
            f < N_FIXTURE_FAMILIES ? fixture_families[f] : fixture_pairs[f - N_FIXTURE_FAMILIES];
        struct bench alone;
        bench_open(&alone, name, 1, 0);
        struct moec_expert_fit *fit = fit_of(&alone, 1, 0);
        for (uint32_t count = 1; count <= 3; count++) {
            struct member members[MOST] = {0};
            struct shared shared[MOST];
            for (uint32_t r = 0; r < count; r++) {
                shared[r] = (struct shared){name, count % 2, &alone, fit, false};
                members[r].context = &shared[r];
            }
            run_ranks(count, fit_shared, members, count);
            for (uint32_t r = 0; r < count; r++)
                if (!shared[r].is_same)
                    fail_msg("%s: rank %u of %u differs", name, r, count);
        }
        moec_expert_fit_free(fit);
        bench_close(&alone);
    }
}

/* Projections that were not fitted are the checkpoint's, beside those that were. */
static void test_expert_fit__records_mix(void **state)
{
    (void)state;
    struct bench bench;
    bench_open(&bench, "olmoe", 2, 0);
    struct moec_expert_fit *fit = fit_of(&bench, 2, 0);
    const struct moec_expert_encoder *ours = moec_expert_fit_encoder(fit);
    const struct moec_checkpoint_encoder checkpoint = moec_checkpoint_encoder_make(bench.fixture.checkpoint);
    const struct moec_codec gptq = codec_of(3, MOEC_QUANTIZER_GPTQ), hqq = codec_of(3, MOEC_QUANTIZER_HQQ);
    const uint32_t layer = moec_config_moe_layer(&bench.fixture.model->config, 1), expert = 2;
    struct moec_record_layout layout;
    struct moec_mlp whole, mixed, plain;
    uint8_t *fitted = record_of(&bench, ours, layer, expert, gptq, gptq, gptq, &layout);
    uint8_t *both = record_of(&bench, ours, layer, expert, hqq, gptq, gptq, &layout);
    uint8_t *theirs = record_of(&bench, &checkpoint.encoder, layer, expert, hqq, hqq, hqq, &layout);
    moec_record_bind(&layout, fitted, &whole);
    moec_record_bind(&layout, both, &mixed);
    moec_record_bind(&layout, theirs, &plain);
    const size_t row_bytes = layout.row_bytes[MOEC_PROJECTION_UP];
    uint32_t n_same = 0;
    for (uint32_t r = 0; r < layout.n_ff; r++) {
        const uint8_t *gate = (const uint8_t *)plain.gate.data + r * plain.gate.stride_bytes;
        assert_memory_equal((const uint8_t *)mixed.gate.data + r * mixed.gate.stride_bytes, gate, row_bytes);
        assert_memory_equal((const uint8_t *)mixed.up.data + r * mixed.up.stride_bytes,
                            (const uint8_t *)whole.up.data + r * whole.up.stride_bytes, row_bytes);
        assert_memory_equal((const uint8_t *)mixed.down.data + r * mixed.down.stride_bytes,
                            (const uint8_t *)whole.down.data + r * whole.down.stride_bytes, row_bytes);
        n_same +=
            memcmp((const uint8_t *)whole.gate.data + r * whole.gate.stride_bytes, gate, row_bytes) == 0;
    }
    assert_true(n_same < layout.n_ff / 2);
    free(fitted);
    free(both);
    free(theirs);
    moec_expert_fit_free(fit);
    bench_close(&bench);
}

/* Moments of one expert's activations, summed up from what a hook sees. */
struct watched {
    uint32_t layer, expert, n_pair;
    struct moec_gptq *gptq;
};

static void take_expert(void *context, const struct moec_expert_inputs *in)
{
    struct watched *watched = context;
    const struct moec_pool pool = {1};
    const struct moec_config *config = &in->forward->model->config;
    const size_t stride = moec_forward_stride(config), width = moec_lanes_padded(config->n_ff_expert);
    if (in->layer != watched->layer || in->expert != watched->expert)
        return;
    watched->n_pair += in->rows.n_pair;
    for (uint32_t i = 0; i < in->rows.n_pair; i++) {
        float *x = calloc(width, sizeof *x);
        moec_forward_activations(in->forward, in->mlp, 1,
                                 in->rows.normed + in->rows.pairs[i] / in->rows.top_k * stride, x, width);
        moec_gptq_add(watched->gptq, &pool, x, width, &in->rows.weights[in->rows.pairs[i]], 1);
        free(x);
    }
}

static enum moec_status layer_done(void *context, uint32_t layer, struct moec_error *error)
{
    (void)context;
    (void)layer;
    (void)error;
    return MOEC_OK;
}

static void test_expert_fit__moments_are_those_of_the_model(void **state)
{
    (void)state;
    struct bench bench;
    bench_open(&bench, "mixtral", 2, 0);
    const struct moec_config *config = &bench.fixture.model->config;
    const struct moec_pool pool = {1};
    struct moec_expert_fit *fit = fit_of(&bench, 2, 0);
    struct watched watched = {.layer = moec_config_moe_layer(config, 1), .expert = 1};
    const struct moec_scorer_watch watch = {.inputs = {.take_expert = take_expert, .context = &watched},
                                            .layer_done = layer_done};
    const struct moec_scorer_variation variation = {.watch = &watch};
    const struct moec_measure measure = {calloc(N_WINDOW, sizeof(double)), NULL};
    const size_t n_weight = (size_t)config->n_ff_expert * config->n_embd;
    float *gate = malloc(n_weight * sizeof *gate), *up = malloc(n_weight * sizeof *up),
          *down = malloc(n_weight * sizeof *down), *rows = malloc(n_weight * sizeof *rows);
    double energy = 0;
    MUST(moec_gptq_create(config->n_ff_expert, MOEC_GPTQ_QUICK, &watched.gptq, &err));
    MUST(moec_scorer_run_varied(bench.scorer, &variation, &measure, NULL, &err));
    MUST(moec_gptq_factor(watched.gptq, MOEC_GPTQ_BY_GROUP, &pool, &err));
    assert_true(watched.n_pair > 0);
    MUST(moec_checkpoint_load_expert(bench.fixture.checkpoint, watched.layer, watched.expert,
                                     (struct moec_expert_floats){gate, up, down}, &err));
    moec_transpose_to_f32(
        (struct moec_float_matrix){MOEC_DTYPE_F32, down, config->n_embd, config->n_ff_expert}, 0,
        config->n_ff_expert, rows);
    const struct moec_gptq_matrix matrix = {rows, config->n_ff_expert, config->n_embd, true};
    MUST(moec_gptq_error(watched.gptq, &pool, &matrix, NULL, &energy, &err));
    assert_true(energy > 0);
    assert_true(energy == moec_expert_fit_energy(fit, watched.layer, watched.expert, MOEC_PROJECTION_DOWN));
    free(gate);
    free(up);
    free(down);
    free(rows);
    free(measure.nll);
    moec_gptq_free(watched.gptq);
    moec_expert_fit_free(fit);
    bench_close(&bench);
}

/* What two fits encode of what was wanted, the second with the first as its base, is what one fit encodes of all. */
static void test_expert_fit__encodes_what_is_wanted(void **state)
{
    (void)state;
    struct bench bench;
    bench_open(&bench, "qwen2_moe", 2, 0);
    const struct moec_config *config = &bench.fixture.model->config;
    const struct moec_codec three = codec_of(3, MOEC_QUANTIZER_GPTQ), two = codec_of(2, MOEC_QUANTIZER_GPTQ);
    const struct moec_expert_fit_codec codecs[] = {{three, 7}, {two, 7}};
    const size_t n = (size_t)moec_config_moe_count(config) * config->n_expert * MOEC_PROJECTION_COUNT;
    uint8_t *masks[2] = {calloc(n, 1), calloc(n, 1)};
    uint64_t n_wanted = 0;
    for (size_t at = 0; at < n; at++) { /* of some experts nothing at first, of others all */
        masks[0][at] = (uint8_t)(at / MOEC_PROJECTION_COUNT % 4 == 1 ? 0 : at % 4);
        masks[1][at] = (uint8_t)(3 ^ masks[0][at]);
        n_wanted += (uint64_t)__builtin_popcount(masks[0][at]);
    }
    struct moec_expert_fit_request request = {
        .of = {.checkpoint = bench.fixture.checkpoint, .scorer = bench.scorer, .windows = &bench.windows},
        .codes = {.codecs = codecs, .n_codec = 2, .plain = codec_of(3, MOEC_QUANTIZER_LINEAR)},
        .n_threads = 2};
    struct moec_expert_fit *all = NULL, *first = NULL, *second = NULL;
    MUST(moec_expert_fit_create(&request, &all, &err));
    request.codes.wanted = masks[0];
    MUST(moec_expert_fit_create(&request, &first, &err));
    request.codes.wanted = masks[1];
    request.codes.base = moec_expert_fit_encoder(first);
    MUST(moec_expert_fit_create(&request, &second, &err));
    assert_int_equal(moec_expert_fit_count(all), 2 * n);
    assert_int_equal(moec_expert_fit_count(first), n_wanted);
    assert_int_equal(moec_expert_fit_count(second), 2 * n - n_wanted);
    for (size_t at = 0; at < n; at++) {
        const enum moec_projection p = (enum moec_projection)(at % MOEC_PROJECTION_COUNT);
        const size_t expert = at / MOEC_PROJECTION_COUNT;
        const uint32_t layer = moec_config_moe_layer(config, (uint32_t)(expert / config->n_expert)),
                       e = (uint32_t)(expert % config->n_expert);
        struct moec_record_layout layout;
        uint8_t *a = record_of(&bench, moec_expert_fit_encoder(all), layer, e, two, three, two, &layout);
        uint8_t *b = record_of(&bench, moec_expert_fit_encoder(second), layer, e, two, three, two, &layout);
        assert_memory_equal(a, b, layout.n_bytes);
        free(a);
        free(b);
        for (uint32_t c = 0; c < 2; c++) {
            const bool is_first = (masks[0][at] >> c & 1) != 0;
            assert_true(moec_expert_fit_error(is_first ? first : second, layer, e, p, c) ==
                        moec_expert_fit_error(all, layer, e, p, c));
            assert_true(moec_expert_fit_error(is_first ? second : first, layer, e, p, c) < 0);
        }
        assert_true(moec_expert_fit_noise(all, layer, e, p) > 0);
    }
    moec_expert_fit_free(all);
    moec_expert_fit_free(second);
    moec_expert_fit_free(first);
    free(masks[0]);
    free(masks[1]);
    bench_close(&bench);
}

struct stop {
    uint32_t n_left;
};

static enum moec_status stop_later(void *context, const char *phase, double done, double total)
{
    struct stop *stop = context;
    assert_string_equal(phase, "fitting experts");
    assert_true(done <= total);
    return stop->n_left-- == 0 ? MOEC_ERR_CANCELLED : MOEC_OK;
}

static void test_expert_fit__stops_when_asked(void **state)
{
    (void)state;
    struct bench bench;
    bench_open(&bench, "olmoe", 2, 0);
    const struct moec_expert_fit_codec codec = {codec_of(2, MOEC_QUANTIZER_GPTQ), 7};
    for (uint32_t n = 0; n < 12; n += 3) {
        struct stop stop = {n};
        struct moec_error problem = {0};
        const struct moec_progress progress = {.report = stop_later, .context = &stop};
        const struct moec_expert_fit_request request = {
            .of = {.checkpoint = bench.fixture.checkpoint, .scorer = bench.scorer, .windows = &bench.windows},
            .codes = {.codecs = &codec, .n_codec = 1},
            .n_threads = 2,
            .progress = &progress};
        struct moec_expert_fit *fit = NULL;
        assert_int_equal(moec_expert_fit_create(&request, &fit, &problem), MOEC_ERR_CANCELLED);
        assert_null(fit);
    }
    bench_close(&bench);
}

/* Cancelled again and again, with other threads and batches each time, a fit ends as if nothing had been. */
static void test_expert_fit__goes_on_after_an_end(void **state)
{
    (void)state;
    struct bench bench;
    bench_open(&bench, "olmoe", 2, 0);
    const struct moec_config *config = &bench.fixture.model->config;
    char *folder = temporary_folder(), *path = temporary_path(folder, "x.journal");
    struct moec_expert_fit *whole = fit_of(&bench, 2, 0), *fit = NULL;
    const struct moec_expert_encoder *ours, *theirs = moec_expert_fit_encoder(whole);
    const struct moec_codec codec = codec_of(3, MOEC_QUANTIZER_GPTQ);
    const struct moec_expert_fit_codec codecs[] = {{codec, 7}, {codec_of(2, MOEC_QUANTIZER_GPTQ), 3}};
    const struct moec_job_text job = {.n_bytes = 0};
    struct moec_units *units = NULL;
    uint32_t n_end = 0;
    uint64_t n_found = 0;
    for (; fit == NULL && n_end < 1000; n_end++) {
        struct stop stop = {5};
        struct moec_error problem = {0};
        const struct moec_progress progress = {.report = stop_later, .context = &stop};
        MUST(moec_units_open(path, MOEC_UNITS_AUTO, &job, NULL, &units, &err));
        const struct moec_expert_fit_request request = {
            .of = {.checkpoint = bench.fixture.checkpoint, .scorer = bench.scorer, .windows = &bench.windows},
            .codes = {.codecs = codecs, .n_codec = 2},
            .memory_bytes = n_end % 2,
            .n_threads = 1 + (int)n_end % 3,
            .progress = n_end < 30 ? &progress : NULL,
            .units = units};
        const enum moec_status status = moec_expert_fit_create(&request, &fit, &problem);
        assert_true(status == MOEC_OK || status == MOEC_ERR_CANCELLED);
        n_found = moec_units_found_count(units);
        moec_units_close(units);
    }
    assert_non_null(fit);
    assert_true(n_end > 1 && n_found > 0);
    ours = moec_expert_fit_encoder(fit);
    assert_int_equal(moec_expert_fit_unseen(fit), moec_expert_fit_unseen(whole));
    for (uint32_t s = 0; s < moec_config_moe_count(config); s++)
        for (uint32_t e = 0; e < config->n_expert; e++) {
            const uint32_t layer = moec_config_moe_layer(config, s);
            struct moec_record_layout layout;
            uint8_t *a = record_of(&bench, ours, layer, e, codec, codec, codec, &layout);
            uint8_t *b = record_of(&bench, theirs, layer, e, codec, codec, codec, &layout);
            assert_memory_equal(a, b, layout.n_bytes);
            free(a);
            free(b);
            for (int p = 0; p < MOEC_PROJECTION_COUNT; p++)
                assert_true(moec_expert_fit_error(fit, layer, e, (enum moec_projection)p, 0) ==
                            moec_expert_fit_error(whole, layer, e, (enum moec_projection)p, 0));
        }
    moec_expert_fit_free(fit);
    moec_expert_fit_free(whole);
    free(path);
    temporary_remove(folder);
    bench_close(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expert_fit__is_nearer_than_hqq),
        cmocka_unit_test(test_expert_fit__does_not_depend_on_threads_batches_or_memory),
        cmocka_unit_test(test_expert_fit__is_the_same_of_ranks),
        cmocka_unit_test(test_expert_fit__records_mix),
        cmocka_unit_test(test_expert_fit__moments_are_those_of_the_model),
        cmocka_unit_test(test_expert_fit__encodes_what_is_wanted),
        cmocka_unit_test(test_expert_fit__stops_when_asked),
        cmocka_unit_test(test_expert_fit__goes_on_after_an_end),
    };
    return cmocka_run_group_tests_name("expert_fit", tests, NULL, NULL);
}
