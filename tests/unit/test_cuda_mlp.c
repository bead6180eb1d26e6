/* MLPs of a GPU's kernels, run on the processor, have the bits of runtime/forward/mlp.h by the scalar set:
 * all activations, biases, filters, jobs of several codecs and lengths, chunks side by side or in turn. */
#include "runtime/cuda/kernels/cuda_matrix.h"
#include "runtime/forward/mlp.h"
#include "tests/unit/kernel_inputs.h"

enum { N_EMBD = 70, STRIDE = 80, MAX_JOBS = 4, MAX_PAIRS = 32, TOP_K = 3 };

struct mlp_case {
    uint8_t activation;
    uint32_t n_ff;
    bool has_gate, has_biases, has_partials;
    bool has_filter;
    enum moec_projection filter_at;
    uint32_t n_rows[MAX_JOBS];
};

/* A layer's experts at work, for both. */
struct layer {
    struct moec_mlp mlps[MAX_JOBS];
    struct moec_cuda_mlp_job jobs[MAX_JOBS];
    float *biases[MAX_JOBS][MOEC_PROJECTION_COUNT];
    uint32_t pairs[MAX_PAIRS];
    uint32_t n_pairs;
    float *x; /* (MAX_PAIRS, STRIDE) */
};

static struct moec_codec random_codec(void)
{
    static const struct moec_codec codecs[] = {
        {.dtype = MOEC_DTYPE_INT4, .group = 32},
        {.dtype = MOEC_DTYPE_INT2, .scheme = MOEC_SCHEME_ASYMMETRIC, .group = 16},
        {.dtype = MOEC_DTYPE_INT8},
        {.dtype = MOEC_DTYPE_BF16},
        {.dtype = MOEC_DTYPE_INT2, .scheme = MOEC_SCHEME_TRELLIS},
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

static void make_job(const struct mlp_case *of, struct layer *layer, uint32_t j)
{
    struct moec_mlp *mlp = &layer->mlps[j];
    struct moec_cuda_mlp_job *job = &layer->jobs[j];
    *mlp = (struct moec_mlp){.activation = of->activation};
    mlp->filter = (struct moec_mlp_filter){.is_on = of->has_filter, .at = of->filter_at, .threshold = 0.4f};
    mlp->up = random_matrix(random_codec(), of->n_ff, N_EMBD, SCALES_ORDINARY);
    mlp->down = random_matrix(random_codec(), of->n_ff, N_EMBD, SCALES_ORDINARY);
    if (of->has_gate)
        mlp->gate = random_matrix(random_codec(), of->n_ff, N_EMBD, SCALES_ORDINARY);
    for (int p = 0; p < MOEC_PROJECTION_COUNT && of->has_biases; p++)
        mlp->biases[p] = make_bias(p == MOEC_PROJECTION_DOWN ? N_EMBD : of->n_ff, &layer->biases[j][p]);
    *job = (struct moec_cuda_mlp_job){.gate = moec_cuda_matrix_make(&mlp->gate, mlp->gate.data),
                                      .up = moec_cuda_matrix_make(&mlp->up, mlp->up.data),
                                      .down = moec_cuda_matrix_make(&mlp->down, mlp->down.data),
                                      .gate_bias = layer->biases[j][MOEC_PROJECTION_GATE],
                                      .up_bias = layer->biases[j][MOEC_PROJECTION_UP],
                                      .down_bias = layer->biases[j][MOEC_PROJECTION_DOWN],
                                      .first = layer->n_pairs,
                                      .n = of->n_rows[j],
                                      .threshold = mlp->filter.threshold,
                                      .filter_at = (uint8_t)of->filter_at,
                                      .has_filter = of->has_filter};
    layer->n_pairs += job->n;
}

/* Jobs share out pairs in an order of their own. */
static void make_layer(const struct mlp_case *of, struct layer *layer)
{
    *layer = (struct layer){.x = random_rows(MAX_PAIRS, N_EMBD, STRIDE, KIND_ORDINARY)};
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
}

/* One row of one MLP by the scalar set: chunks in order, the bias after the first. */
static void run_scalar(const struct moec_mlp *mlp, const float *x, float *out)
{
    float gate[MOEC_SUM_CHUNK], up[MOEC_SUM_CHUNK], exponents[MOEC_SUM_CHUNK], sum[N_EMBD];
    const struct moec_mlp_scratch scratch = {.gate = gate, .up = up, .exponents = exponents};
    const struct moec_mlp_kernels kernels = {&moec_kernels_scalar, NULL};
    const struct moec_matrix *bias = &mlp->biases[MOEC_PROJECTION_DOWN];
    for (uint32_t neuron = 0; neuron < mlp->up.rows; neuron += MOEC_SUM_CHUNK) {
        (void)moec_mlp_chunk(&kernels, mlp, neuron, x, NULL, mlp->filter.threshold, NULL, &scratch, sum);
        if (neuron > 0) {
            moec_kernels_scalar.add(sum, N_EMBD, out);
            continue;
        }
        memcpy(out, sum, sizeof sum);
        if (bias->rows > 0)
            moec_kernels_scalar.add((const float *)(const void *)bias->data, N_EMBD, out);
    }
    memset(out + N_EMBD, 0, (STRIDE - N_EMBD) * sizeof *out);
}

/* The sign of a sum that is 0 may be another where neurons are left out (runtime/forward/mlp.h). */
static void drop_signs_of_zero(float *values, size_t n)
{
    for (size_t i = 0; i < n; i++)
        values[i] = values[i] + 0.0f;
}

static void check_mlp(struct mlp_case of)
{
    struct layer layer;
    make_layer(&of, &layer);
    const size_t n_out = (size_t)layer.n_pairs * STRIDE, h_stride = of.n_ff + 1;
    const uint32_t n_chunk = (of.n_ff - 1) / MOEC_SUM_CHUNK + 1;
    float *want = guarded(n_out), *got = guarded(n_out), *h = guarded(layer.n_pairs * h_stride);
    float *partials = guarded((size_t)layer.n_pairs * n_chunk * N_EMBD);
    uint32_t most = 0;
    for (uint32_t j = 0; j < MAX_JOBS; j++) {
        most = layer.jobs[j].n > most ? layer.jobs[j].n : most;
        for (uint32_t i = 0; i < layer.jobs[j].n; i++) {
            const uint32_t pair = layer.pairs[layer.jobs[j].first + i];
            run_scalar(&layer.mlps[j], layer.x + pair / TOP_K * STRIDE, want + pair * STRIDE);
        }
    }
    moec_cuda_mlp_run(NULL, &(struct moec_cuda_mlp){.jobs = layer.jobs,
                                                    .pairs = layer.pairs,
                                                    .n_jobs = MAX_JOBS,
                                                    .most = most,
                                                    .n_ff = of.n_ff,
                                                    .n_embd = N_EMBD,
                                                    .pairs_per_row = TOP_K,
                                                    .activation = of.activation,
                                                    .x = layer.x,
                                                    .x_stride = STRIDE,
                                                    .h = h,
                                                    .h_stride = h_stride,
                                                    .partials = of.has_partials ? partials : NULL,
                                                    .out = got,
                                                    .out_stride = STRIDE});
    if (of.has_filter) {
        drop_signs_of_zero(want, n_out);
        drop_signs_of_zero(got, n_out);
    }
    expect_same(want, got, n_out, "the GPU", "an MLP");
    release_guarded(want, n_out);
    release_guarded(got, n_out);
    release_guarded(h, layer.n_pairs * h_stride);
    release_guarded(partials, (size_t)layer.n_pairs * n_chunk * N_EMBD);
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
    job->gate.data = to->rows;
    job->down.data = to->rows + gate_bytes;
    job->gate.stride_bytes = job->down.stride_bytes = to_step;
    job->gate.is_aligned = job->down.is_aligned = (gate_bytes | (uintptr_t)to->rows) % 2 == 0;
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
        struct moec_cuda_marking marking = {.mlp = {.jobs = layer.jobs,
                                                    .pairs = layer.pairs,
                                                    .n_jobs = MAX_JOBS,
                                                    .most = 2,
                                                    .n_ff = of.n_ff,
                                                    .n_embd = N_EMBD,
                                                    .pairs_per_row = TOP_K,
                                                    .x = layer.x,
                                                    .x_stride = STRIDE,
                                                    .h = h,
                                                    .h_stride = of.n_ff,
                                                    .partials = partials,
                                                    .out = got,
                                                    .out_stride = STRIDE},
                                            .ups = ups,
                                            .marks = marks,
                                            .n_words = n_words};
        moec_cuda_marking_run(NULL, &marking);
        for (uint32_t j = 0; j < MAX_JOBS; j++) {
            for (uint32_t i = 0; i < layer.jobs[j].n; i++) {
                const uint32_t pair = layer.pairs[layer.jobs[j].first + i];
                run_scalar(&layer.mlps[j], layer.x + pair / TOP_K * STRIDE, want + pair * STRIDE);
            }
            compact_job(&layer.mlps[j], marks + j * n_words, &compacts[j], &layer.jobs[j]);
        }
        marking.mlp.ups = ups;
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
    moec_cuda_mlp_run(NULL, &(struct moec_cuda_mlp){.n_ff = 1, .n_embd = 1, .most = 1, .out = out});
    moec_cuda_mlp_run(NULL, &(struct moec_cuda_mlp){.n_ff = 1, .n_embd = 1, .n_jobs = 1, .out = out});
    assert_int_equal(moec_f32_bits(*out), CANARY);
    release_guarded(out, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_mlp__activations_have_same_bits),
        cmocka_unit_test(test_cuda_mlp__chunks_are_added_in_order),
        cmocka_unit_test(test_cuda_mlp__filters_leave_neurons_out),
        cmocka_unit_test(test_cuda_mlp__marked_neurons_are_all_that_is_read),
        cmocka_unit_test(test_cuda_mlp__no_jobs_and_no_rows_launch_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
