/* MLPs of a GPU's kernels, run on the processor, have the bits of runtime/forward/moe/mlp.h by the scalar set:
 * all activations, biases, filters, jobs of several codecs and lengths, chunks side by side or in turn. */
#include "runtime/cuda/kernels/cuda_matrix.h"
#include "runtime/forward/moe/mlp.h"
#include "tests/unit/kernel_inputs.h"

enum { N_EMBD = 70, STRIDE = 80, MAX_EMBD = 300, MAX_JOBS = 4, MAX_PAIRS = 160, TOP_K = 3 };

struct mlp_case {
    uint8_t activation;
    uint32_t n_ff, n_embd; /* n_embd 0: N_EMBD */
    bool has_gate, has_biases, has_partials;
    bool has_filter, has_limits; /* limits: one for each row, at the up product */
    enum moec_projection filter_at;
    uint32_t n_rows[MAX_JOBS];
    const struct moec_codec *codec; /* of all matrices; NULL: any */
};

/* A layer's experts at work, for both. */
struct layer {
    struct moec_mlp mlps[MAX_JOBS];
    struct moec_cuda_mlp_job jobs[MAX_JOBS];
    float *biases[MAX_JOBS][MOEC_PROJECTION_COUNT];
    uint32_t pairs[MAX_PAIRS];
    uint32_t n_pairs, n_embd;
    size_t stride;
    float *x;      /* (MAX_PAIRS, stride) */
    float *limits; /* (MAX_PAIRS), or NULL */
};

static struct moec_codec codec_of(const struct mlp_case *of)
{
    if (of->codec != NULL)
        return *of->codec;
    static const struct moec_codec codecs[] = {
        {.dtype = MOEC_DTYPE_INT4, .group = 32},
        {.dtype = MOEC_DTYPE_INT2, .scheme = MOEC_SCHEME_ASYMMETRIC, .group = 16},
        {.dtype = MOEC_DTYPE_INT8},
        {.dtype = MOEC_DTYPE_INT1, .group = 64},
        {.dtype = MOEC_DTYPE_BF16},
        {.dtype = MOEC_DTYPE_INT2, .scheme = MOEC_SCHEME_TRELLIS},
        {.dtype = MOEC_DTYPE_INT4, .scheme = MOEC_SCHEME_SHIFT},
        {.dtype = MOEC_DTYPE_INT3, .scheme = MOEC_SCHEME_ASYMMETRIC_NESTED, .group = 64}};
    return codecs[random_below(sizeof codecs / sizeof *codecs)];
}

static struct moec_matrix make_bias(uint32_t n, float **values)
{
    *values = random_floats(n, KIND_ORDINARY);
    return (struct moec_matrix){.codec = {.dtype = MOEC_DTYPE_F32},
                                .rows = 1,
                                .columns = n,
                                .stride_bytes = 4 * (size_t)n,
                                .data = (const uint8_t *)*values};
}

static struct moec_matrix make_matrix(const struct mlp_case *of, uint32_t n_embd)
{
    const struct moec_codec codec = codec_of(of);
    return moec_codec_is_mxfp4(codec) ? mxfp4_matrix(codec, of->n_ff, n_embd)
                                      : random_matrix(codec, of->n_ff, n_embd, SCALES_ORDINARY);
}

static void make_job(const struct mlp_case *of, struct layer *layer, uint32_t j)
{
    struct moec_mlp *mlp = &layer->mlps[j];
    struct moec_cuda_mlp_job *job = &layer->jobs[j];
    *mlp = (struct moec_mlp){.activation = of->activation};
    mlp->filter = (struct moec_mlp_filter){.is_on = of->has_filter, .at = of->filter_at, .threshold = 0.4f};
    mlp->up = make_matrix(of, layer->n_embd);
    mlp->down = make_matrix(of, layer->n_embd);
    if (of->has_gate)
        mlp->gate = make_matrix(of, layer->n_embd);
    for (int p = 0; p < MOEC_PROJECTION_COUNT && of->has_biases; p++)
        mlp->biases[p] =
            make_bias(p == MOEC_PROJECTION_DOWN ? layer->n_embd : of->n_ff, &layer->biases[j][p]);
    *job = (struct moec_cuda_mlp_job){.gate = {.matrix = moec_cuda_matrix_make(&mlp->gate, mlp->gate.data),
                                               .bias = layer->biases[j][MOEC_PROJECTION_GATE]},
                                      .up = {.matrix = moec_cuda_matrix_make(&mlp->up, mlp->up.data),
                                             .bias = layer->biases[j][MOEC_PROJECTION_UP]},
                                      .down = {.matrix = moec_cuda_matrix_make(&mlp->down, mlp->down.data),
                                               .bias = layer->biases[j][MOEC_PROJECTION_DOWN]},
                                      .first = layer->n_pairs,
                                      .n = of->n_rows[j],
                                      .filter = {.threshold = mlp->filter.threshold,
                                                 .at = (uint8_t)of->filter_at,
                                                 .is_set = of->has_filter}};
    layer->n_pairs += job->n;
}

/* Jobs share out pairs in an order of their own. */
static void make_layer(const struct mlp_case *of, struct layer *layer)
{
    *layer = (struct layer){.n_embd = of->n_embd > 0 ? of->n_embd : N_EMBD};
    layer->stride = moec_lanes_padded(layer->n_embd);
    layer->x = random_rows(MAX_PAIRS, layer->n_embd, layer->stride, KIND_ORDINARY);
    if (of->has_limits)
        layer->limits = random_floats(MAX_PAIRS, KIND_ORDINARY);
    for (uint32_t j = 0; j < MAX_JOBS; j++)
        make_job(of, layer, j);
    assert_true(layer->n_pairs <= MAX_PAIRS);
    for (uint32_t i = 0; i < layer->n_pairs; i++)
        layer->pairs[i] = i;
    for (uint32_t i = layer->n_pairs; i > 1; i--) {
        const uint32_t other = random_below(i), kept = layer->pairs[i - 1];
        layer->pairs[i - 1] = layer->pairs[other];
        layer->pairs[other] = kept;
    }
}

static void release_layer(struct layer *layer)
{
    for (uint32_t j = 0; j < MAX_JOBS; j++) {
        free((void *)(uintptr_t)layer->mlps[j].gate.data);
        free((void *)(uintptr_t)layer->mlps[j].up.data);
        free((void *)(uintptr_t)layer->mlps[j].down.data);
        for (int p = 0; p < MOEC_PROJECTION_COUNT; p++)
            free(layer->biases[j][p]);
    }
    free(layer->x);
    free(layer->limits);
}

/* One row of one MLP by the scalar set: chunks in order, the bias after the first. Returns how many neurons a
 * filter leaves. */
static uint32_t run_scalar(const struct moec_mlp *mlp, const float *x, float limit, float *out)
{
    const uint32_t n_embd = mlp->down.columns;
    float gate[MOEC_SUM_CHUNK], up[MOEC_SUM_CHUNK], exponents[MOEC_SUM_CHUNK], sum[MAX_EMBD];
    const struct moec_mlp_scratch scratch = {.gate = gate, .up = up, .exponents = exponents};
    const struct moec_mlp_kernels kernels = {&moec_kernels_scalar, NULL};
    const struct moec_matrix *bias = &mlp->biases[MOEC_PROJECTION_DOWN];
    const struct moec_mlp_token token = {.x = x, .limit = limit};
    uint32_t n_active = 0;
    for (uint32_t neuron = 0; neuron < mlp->up.rows; neuron += MOEC_SUM_CHUNK) {
        n_active += moec_mlp_chunk(&kernels, mlp, neuron, &token, &scratch, sum);
        if (neuron > 0) {
            moec_kernels_scalar.add(sum, n_embd, out);
            continue;
        }
        memcpy(out, sum, n_embd * sizeof *sum);
        if (bias->rows > 0)
            moec_kernels_scalar.add((const float *)(const void *)bias->data, n_embd, out);
    }
    memset(out + n_embd, 0, (moec_lanes_padded(n_embd) - n_embd) * sizeof *out);
    return n_active;
}

/* The sign of a sum that is 0 may be another where neurons are left out (runtime/forward/moe/mlp.h). */
static void drop_signs_of_zero(float *values, size_t n)
{
    for (size_t i = 0; i < n; i++)
        values[i] = values[i] + 0.0f;
}

static void check_mlp(struct mlp_case of)
{
    struct layer layer;
    make_layer(&of, &layer);
    const size_t stride = layer.stride, n_out = layer.n_pairs * stride, h_stride = of.n_ff + 1;
    const size_t n_partial = (size_t)layer.n_pairs * ((of.n_ff - 1) / MOEC_SUM_CHUNK + 1) * layer.n_embd;
    float *want = guarded(n_out), *got = guarded(n_out), *h = guarded(layer.n_pairs * h_stride),
          *partials = guarded(n_partial);
    uint32_t most = 0, want_active[MAX_JOBS] = {0}, active[MAX_JOBS] = {0};
    for (uint32_t j = 0; j < MAX_JOBS; j++) {
        most = layer.jobs[j].n > most ? layer.jobs[j].n : most;
        for (uint32_t i = 0; i < layer.jobs[j].n; i++) {
            const uint32_t row = layer.jobs[j].first + i, pair = layer.pairs[row];
            const float limit = of.has_limits ? layer.limits[row] : layer.mlps[j].filter.threshold;
            want_active[j] +=
                run_scalar(&layer.mlps[j], layer.x + pair / TOP_K * stride, limit, want + pair * stride);
        }
    }
    moec_cuda_mlp_run(NULL,
                      &(struct moec_cuda_mlp){
                          .jobs = {.each = layer.jobs, .n = MAX_JOBS, .most = most},
                          .pairs = {.list = layer.pairs, .per_row = TOP_K},
                          .filtered = {.limits = layer.limits, .n_active = of.has_limits ? active : NULL},
                          .shape = {.n_ff = of.n_ff, .n_embd = layer.n_embd, .activation = of.activation},
                          .x = {.first = layer.x, .stride = stride},
                          .h = {.first = h, .stride = h_stride},
                          .partials = of.has_partials ? partials : NULL,
                          .out = {.first = got, .stride = stride}});
    if (of.has_filter) {
        drop_signs_of_zero(want, n_out);
        drop_signs_of_zero(got, n_out);
    }
    expect_same(want, got, n_out, "the GPU", "an MLP");
    if (of.has_limits)
        assert_memory_equal(want_active, active, sizeof active);
    release_guarded(want, n_out);
    release_guarded(got, n_out);
    release_guarded(h, layer.n_pairs * h_stride);
    release_guarded(partials, n_partial);
    release_layer(&layer);
}

static void test_cuda_mlp__activations_have_same_bits(void **state)
{
    (void)state;
    for (int activation = 0; activation < MOEC_ACTIVATION_COUNT; activation++)
        for (int form = 0; form < 4; form++) {
            const bool is_gated_kind =
                activation == MOEC_ACTIVATION_CLAMPED_GLU || activation == MOEC_ACTIVATION_CLAMPED_SILU;
            struct mlp_case of = {.activation = (uint8_t)activation,
                                  .n_ff = 67,
                                  .has_gate = is_gated_kind || form % 2 == 0,
                                  .has_biases = form > 1,
                                  .n_rows = {1, 2, 0, 1}};
            check_mlp(of);
            of.n_rows[2] = 9;
            check_mlp(of);
        }
}

static void test_cuda_mlp__chunks_are_added_in_order(void **state)
{
    (void)state;
    static const uint32_t n_ff[] = {1, 63, 64, 65, 128, 200};
    for (size_t i = 0; i < sizeof n_ff / sizeof *n_ff; i++)
        for (int form = 0; form < 4; form++)
            check_mlp((struct mlp_case){.n_ff = n_ff[i],
                                        .has_gate = true,
                                        .has_biases = form % 2 == 1,
                                        .has_partials = form > 1,
                                        .n_rows = {1, 1, 2, 0}});
    check_mlp((struct mlp_case){.n_ff = 200, .has_gate = true, .n_rows = {17, 1, 5, 8}});
}

static void test_cuda_mlp__filters_leave_neurons_out(void **state)
{
    (void)state;
    for (int at = MOEC_PROJECTION_GATE; at < MOEC_PROJECTION_COUNT; at++)
        for (int activation = 0; activation < MOEC_ACTIVATION_COUNT; activation++)
            for (int form = 0; form < 4; form++) {
                const bool has_gate = form % 2 == 0 || at == MOEC_PROJECTION_GATE ||
                                      activation == MOEC_ACTIVATION_CLAMPED_GLU ||
                                      activation == MOEC_ACTIVATION_CLAMPED_SILU;
                struct mlp_case of = {.activation = (uint8_t)activation,
                                      .n_ff = 100,
                                      .has_gate = has_gate,
                                      .has_partials = form > 1,
                                      .has_filter = true,
                                      .filter_at = (enum moec_projection)at,
                                      .n_rows = {1, 2, 0, 1}};
                check_mlp(of);
                of.n_rows[0] = 3;
                check_mlp(of);
            }
}

/* Tiles of many rows, beside jobs of few and of none: all codecs, with rows, neurons and columns left over.
 */
static void test_cuda_mlp__tiles_have_same_bits_in_all_codecs(void **state)
{
    (void)state;
    static const uint32_t n_embd[] = {1, 16, 33, 64, 70, 127, 160, 300}, n_ff[] = {1, 15, 64, 65, 130};
    static const uint32_t n_rows[][MAX_JOBS] = {{17, 0, 2, 16}, {32, 1, 0, 33}, {5, 71, 0, 9}};
    uint32_t n = 0;
    for (int dtype = 0; dtype < MOEC_DTYPE_COUNT; dtype++)
        for (int scheme = MOEC_SCHEME_SYMMETRIC; scheme < MOEC_SCHEME_COUNT; scheme++) {
            const struct moec_codec codec = {
                .dtype = (uint8_t)dtype, .scheme = (uint8_t)scheme, .group = n % 2 == 0 ? 32 : 16};
            struct moec_error err = {0};
            if (moec_codec_is_mxfp4(codec) || moec_codec_check(codec, "a codec", &err) != MOEC_OK)
                continue;
            for (uint32_t i = 0; i < 3; i++, n++) {
                struct mlp_case of = {.n_ff = n_ff[n % 5],
                                      .n_embd = n_embd[n % 8],
                                      .activation = (uint8_t)(n % MOEC_ACTIVATION_COUNT),
                                      .has_gate = true,
                                      .has_biases = i == 1,
                                      .codec = &codec};
                memcpy(of.n_rows, n_rows[n % 3], sizeof of.n_rows);
                check_mlp(of);
            }
        }
    assert_true(n > 50);
    for (int is_down = 0; is_down < 2; is_down++) {
        const struct moec_codec codec = {
            .dtype = (uint8_t)(is_down != 0 ? MOEC_DTYPE_MXFP4_DOWN : MOEC_DTYPE_MXFP4)};
        check_mlp((struct mlp_case){
            .n_ff = 96, .n_embd = 160, .has_gate = true, .n_rows = {40, 0, 3, 17}, .codec = &codec});
    }
}

static void test_cuda_mlp__tiles_filter_and_gate_as_few_rows_do(void **state)
{
    (void)state;
    for (int at = MOEC_PROJECTION_GATE; at < MOEC_PROJECTION_COUNT; at++)
        for (int form = 0; form < 8; form++)
            check_mlp(
                (struct mlp_case){.activation = form % 2 == 0 ? MOEC_ACTIVATION_SILU : MOEC_ACTIVATION_RELU,
                                  .n_ff = 100,
                                  .has_gate = form % 4 < 2 || at == MOEC_PROJECTION_GATE,
                                  .has_biases = form > 3,
                                  .has_filter = true,
                                  .has_limits = at == MOEC_PROJECTION_UP && form < 2,
                                  .filter_at = (enum moec_projection)at,
                                  .n_rows = {33, 0, 1, 20}});
}

/* Rows of gate and down of the marked neurons of a job, side by side in an order of their own, put into rows
 * that nothing else has. */
struct compact {
    uint8_t *pairs, *rows;
    uint32_t *list, *places;
};

static void compact_job(const struct moec_mlp *mlp, const uint32_t *marks, struct compact *to,
                        struct moec_cuda_mlp_job *job)
{
    const size_t gate_bytes = mlp->gate.stride_bytes, step = gate_bytes + mlp->down.stride_bytes,
                 to_step = (step + 15) / 16 * 16;
    const uint32_t n_ff = mlp->up.rows, first = random_below(n_ff);
    uint32_t n = 0;
    *to = (struct compact){calloc(n_ff, step), malloc(n_ff * to_step), calloc(2 * (n_ff + 1), 4),
                           malloc(4 * n_ff)};
    memset(to->rows, 0xff, n_ff * to_step);
    memset(to->places, 0xff, 4 * n_ff);
    for (uint32_t i = 0; i < n_ff; i++) {
        const uint32_t neuron =
            (first + 37 * i) % n_ff; /* each once: 37 and n_ff have no divisor in common */
        if ((marks[neuron / 32] >> (neuron % 32) & 1) == 0)
            continue;
        memcpy(to->pairs + n * step, mlp->gate.data + neuron * gate_bytes, gate_bytes);
        memcpy(to->pairs + n * step + gate_bytes, mlp->down.data + neuron * mlp->down.stride_bytes,
               mlp->down.stride_bytes);
        to->list[2 * n] = neuron;
        to->list[2 * n + 1] = n_ff - 1 - n;
        n++;
    }
    to->list[2 * n] = 0; /* one that is not wanted */
    to->list[2 * n + 1] = MOEC_CUDA_NOWHERE;
    const struct moec_cuda_scatter scatter = {.list = to->list,
                                              .from = to->pairs,
                                              .to = to->rows,
                                              .from_step = step,
                                              .to_step = to_step,
                                              .n = n < n_ff ? n + 1 : n,
                                              .n_bytes = (uint32_t)step,
                                              .places = to->places};
    moec_cuda_scatter_run(NULL, &scatter);
    job->gate.matrix.data = to->rows;
    job->down.matrix.data = to->rows + gate_bytes;
    job->gate.matrix.stride_bytes = job->down.matrix.stride_bytes = to_step;
    job->gate.matrix.is_aligned = job->down.matrix.is_aligned = (gate_bytes | (uintptr_t)to->rows) % 2 == 0;
    job->places = to->places;
}

static void test_cuda_mlp__marked_neurons_are_all_that_is_read(void **state)
{
    (void)state;
    for (int turn = 0; turn < 12; turn++) {
        const struct mlp_case of = {.n_ff = 100,
                                    .has_gate = true,
                                    .has_partials = true,
                                    .has_filter = true,
                                    .filter_at = MOEC_PROJECTION_UP,
                                    .n_rows = {1, 2, 1, 2}};
        const uint32_t n_words = 4;
        struct layer layer;
        struct compact compacts[MAX_JOBS];
        make_layer(&of, &layer);
        const size_t n_out = (size_t)layer.n_pairs * STRIDE, n_h = (size_t)layer.n_pairs * of.n_ff;
        float *want = guarded(n_out), *got = guarded(n_out), *h = guarded(n_h), *ups = guarded(n_h);
        float *partials = guarded((size_t)layer.n_pairs * 2 * N_EMBD);
        uint32_t *marks = calloc(MAX_JOBS * n_words, sizeof *marks);
        struct moec_cuda_marking marking = {.mlp = {.jobs = {.each = layer.jobs, .n = MAX_JOBS, .most = 2},
                                                    .pairs = {.list = layer.pairs, .per_row = TOP_K},
                                                    .shape = {.n_ff = of.n_ff, .n_embd = N_EMBD},
                                                    .x = {.first = layer.x, .stride = STRIDE},
                                                    .h = {.first = h, .stride = of.n_ff},
                                                    .partials = partials,
                                                    .out = {.first = got, .stride = STRIDE}},
                                            .ups = ups,
                                            .marks = marks,
                                            .n_words = n_words};
        moec_cuda_marking_run(NULL, &marking);
        for (uint32_t j = 0; j < MAX_JOBS; j++) {
            for (uint32_t i = 0; i < layer.jobs[j].n; i++) {
                const uint32_t pair = layer.pairs[layer.jobs[j].first + i];
                (void)run_scalar(&layer.mlps[j], layer.x + pair / TOP_K * STRIDE,
                                 layer.mlps[j].filter.threshold, want + pair * STRIDE);
            }
            compact_job(&layer.mlps[j], marks + j * n_words, &compacts[j], &layer.jobs[j]);
        }
        marking.mlp.filtered.ups = ups;
        moec_cuda_mlp_run(NULL, &marking.mlp);
        drop_signs_of_zero(want, n_out);
        drop_signs_of_zero(got, n_out);
        expect_same(want, got, n_out, "the GPU", "marked neurons");
        for (uint32_t j = 0; j < MAX_JOBS; j++) {
            free(compacts[j].pairs);
            free(compacts[j].rows);
            free(compacts[j].list);
            free(compacts[j].places);
        }
        free(marks);
        release_guarded(want, n_out);
        release_guarded(got, n_out);
        release_guarded(h, n_h);
        release_guarded(ups, n_h);
        release_guarded(partials, (size_t)layer.n_pairs * 2 * N_EMBD);
        release_layer(&layer);
    }
}

static void test_cuda_mlp__no_jobs_and_no_rows_launch_nothing(void **state)
{
    (void)state;
    float *out = guarded(1);
    moec_cuda_mlp_run(
        NULL, &(struct moec_cuda_mlp){.shape = {.n_ff = 1, .n_embd = 1}, .jobs.most = 1, .out.first = out});
    moec_cuda_mlp_run(
        NULL, &(struct moec_cuda_mlp){.shape = {.n_ff = 1, .n_embd = 1}, .jobs.n = 1, .out.first = out});
    assert_int_equal(moec_f32_bits(*out), CANARY);
    release_guarded(out, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_mlp__activations_have_same_bits),
        cmocka_unit_test(test_cuda_mlp__chunks_are_added_in_order),
        cmocka_unit_test(test_cuda_mlp__filters_leave_neurons_out),
        cmocka_unit_test(test_cuda_mlp__tiles_have_same_bits_in_all_codecs),
        cmocka_unit_test(test_cuda_mlp__tiles_filter_and_gate_as_few_rows_do),
        cmocka_unit_test(test_cuda_mlp__marked_neurons_are_all_that_is_read),
        cmocka_unit_test(test_cuda_mlp__no_jobs_and_no_rows_launch_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
