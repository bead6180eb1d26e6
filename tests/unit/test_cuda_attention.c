/* Attention of a GPU's kernels, run on the processor, has the bits of the scalar set's kernels in the order
 * of runtime/forward/attention/attention.c: heads that share keys, windows, sinks, position biases, sources, several
 * sequences. */
#include "runtime/cuda/kernels/cuda_kernels.h"
#include "runtime/kernels/kernels.h"
#include "tests/unit/kernel_inputs.h"

struct attention_case {
    uint32_t n_head, group, key_dim, value_dim;
    uint32_t first_position, n_rows; /* of the first sequence; a second has three rows from position 0 on */
    uint32_t n_source;               /* 0: causal */
    uint32_t window;
    bool is_latent; /* all heads share one key, whose first value_dim floats are the value */
    bool has_sinks, has_bias, has_scale;
};

/* A sequence's keys and values, the past and its own rows apart. */
struct sequence {
    struct moec_cuda_span span;
    float *k_prefix, *v_prefix, *k_own, *v_own;
};

static struct sequence make_sequence(const struct attention_case *of, size_t kv, uint32_t first_row,
                                     uint32_t first_position, uint32_t n_rows, uint32_t n_source)
{
    const uint32_t own_from = n_source > 0 ? n_source : first_position;
    struct sequence s = {.k_prefix = random_floats(own_from * kv, KIND_ORDINARY),
                         .v_prefix = random_floats(own_from * kv, KIND_ORDINARY),
                         .k_own = random_floats(n_rows * kv, KIND_ORDINARY),
                         .v_own = random_floats(n_rows * kv, KIND_ORDINARY)};
    const bool is_latent = of->is_latent;
    s.span = (struct moec_cuda_span){.first_row = first_row,
                                     .first_position = first_position,
                                     .own_from = own_from,
                                     .n_keys = n_source,
                                     .k_prefix = s.k_prefix,
                                     .v_prefix = is_latent ? s.k_prefix : s.v_prefix,
                                     .k_own = s.k_own,
                                     .v_own = is_latent ? s.k_own : s.v_own};
    return s;
}

static void free_sequence(struct sequence *s)
{
    free(s->k_prefix);
    free(s->v_prefix);
    free(s->k_own);
    free(s->v_own);
}

/* One head's keys or values of positions first .. first + n - 1 as padded rows. */
static void copy_rows(const struct moec_cuda_attention *a, const struct moec_cuda_span *span, bool value,
                      uint32_t group, uint32_t first, uint32_t n, float *rows)
{
    const uint32_t dim = value ? a->heads.value_dim : a->heads.key_dim;
    const size_t stride = moec_lanes_padded(dim);
    memset(rows, 0, n * stride * sizeof *rows);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t p = first + i;
        const float *prefix = value ? span->v_prefix : span->k_prefix,
                    *own = value ? span->v_own : span->k_own;
        const float *row = p < span->own_from ? prefix + p * a->heads.kv_stride
                                              : own + (p - span->own_from) * a->heads.kv_stride;
        memcpy(rows + i * stride, row + group * a->heads.group_step, dim * sizeof *rows);
    }
}

/* One query of one head by the scalar set, chunk by chunk. */
static void attend_scalar(const struct moec_cuda_attention *a, uint32_t token, uint32_t head, float *out)
{
    static float keys[MOEC_SUM_CHUNK * 128], values[MOEC_SUM_CHUNK * 128], scores[MOEC_SUM_CHUNK], part[128],
        q[128];
    const struct moec_cuda_span *span = &a->rows.spans[a->rows.row_span[token]];
    const uint32_t position = span->first_position + (token - span->first_row);
    const uint32_t from = a->sight.is_causal && a->sight.window > 0 && position >= a->sight.window
                              ? position - a->sight.window + 1
                              : 0;
    const uint32_t end = a->sight.is_causal ? position + 1 : span->n_keys;
    float max = a->scores.sinks != NULL ? a->scores.sinks[head] : -INFINITY,
          total = a->scores.sinks != NULL ? 1 : 0;
    memset(q, 0, sizeof q);
    memcpy(q, a->q.first + token * a->q.stride + (size_t)head * a->heads.key_dim,
           a->heads.key_dim * sizeof *q);
    memset(out, 0, a->heads.value_dim * sizeof *out);
    for (uint32_t chunk = from / MOEC_SUM_CHUNK * MOEC_SUM_CHUNK; chunk < end; chunk += MOEC_SUM_CHUNK) {
        const uint32_t first = from > chunk ? from : chunk,
                       last = end < chunk + MOEC_SUM_CHUNK ? end : chunk + MOEC_SUM_CHUNK;
        const uint32_t n = last - first;
        copy_rows(a, span, false, head / a->heads.group, first, n, keys);
        copy_rows(a, span, true, head / a->heads.group, first, n, values);
        moec_kernels_scalar.dot(q, 128, 1, keys, moec_lanes_padded(a->heads.key_dim), n, a->heads.key_dim,
                                scores, n);
        for (uint32_t i = 0; i < n; i++) {
            scores[i] = a->scores.scale != 0 ? scores[i] * a->scores.scale : scores[i];
            const int64_t at = (int64_t)first + i - position + a->scores.bias_limit;
            const int64_t told = at < 0 ? 0 : at >= a->scores.bias_width ? a->scores.bias_width - 1 : at;
            if (a->scores.position_bias != NULL)
                scores[i] += a->scores.position_bias[(int64_t)head * a->scores.bias_width + told];
        }
        const float top = moec_kernels_scalar.max(scores, n);
        if (top > max && total > 0) {
            const float shrink = moec_exp_f32(max - top);
            total *= shrink;
            for (uint32_t c = 0; c < a->heads.value_dim; c++)
                out[c] *= shrink;
        }
        max = top > max ? top : max;
        total += moec_kernels_scalar.exp_sum(scores, max, n, scores);
        moec_kernels_scalar.sum_chunk(scores, n, 1, values, moec_lanes_padded(a->heads.value_dim), n,
                                      a->heads.value_dim, part, a->heads.value_dim);
        moec_kernels_scalar.add(part, a->heads.value_dim, out);
    }
    for (uint32_t c = 0; c < a->heads.value_dim; c++)
        out[c] = out[c] / total;
}

static void check_attention(struct attention_case of)
{
    enum { SECOND = 3, BIAS_LIMIT = 20 };
    const uint32_t n_group = of.n_head / of.group, n_tok = of.n_rows + SECOND;
    const size_t kv = of.is_latent ? of.key_dim : (size_t)n_group * of.key_dim + 1,
                 q_stride = (size_t)of.n_head * of.key_dim + 3;
    const size_t out_step = of.value_dim + 2, out_stride = of.n_head * out_step + 1, n = n_tok * out_stride;
    struct sequence sequences[] = {make_sequence(&of, kv, 0, of.first_position, of.n_rows, of.n_source),
                                   make_sequence(&of, kv, of.n_rows, 0, SECOND, of.n_source > 0 ? 70 : 0)};
    const struct moec_cuda_span spans[] = {sequences[0].span, sequences[1].span};
    uint32_t row_span[64];
    for (uint32_t t = 0; t < n_tok; t++)
        row_span[t] = t >= of.n_rows;
    float *q = random_floats(n_tok * q_stride, KIND_ORDINARY), *want = guarded(n), *got = guarded(n);
    float *sinks = random_floats(of.n_head, KIND_ORDINARY),
          *bias = random_floats((size_t)of.n_head * (2 * BIAS_LIMIT + 1), KIND_ORDINARY);
    struct moec_cuda_attention attention = {
        .rows = {.spans = spans, .row_span = row_span, .n_tok = n_tok},
        .heads = {.n_head = of.n_head,
                  .group = of.group,
                  .key_dim = of.key_dim,
                  .value_dim = of.value_dim,
                  .kv_stride = kv,
                  .group_step = of.is_latent ? 0 : of.key_dim,
                  .out_step = out_step},
        .q = {.first = q, .stride = q_stride},
        .out = {.first = got, .stride = out_stride},
        .scores = {.scale = of.has_scale ? 0.37f : 0,
                   .sinks = of.has_sinks ? sinks : NULL,
                   .position_bias = of.has_bias ? bias : NULL,
                   .bias_width = of.n_source > 0 ? 2 * BIAS_LIMIT + 1 : BIAS_LIMIT + 1,
                   .bias_limit = BIAS_LIMIT},
        .sight = {.window = of.window, .is_causal = of.n_source == 0}};
    for (uint32_t t = 0; t < n_tok; t++)
        for (uint32_t head = 0; head < of.n_head; head++)
            attend_scalar(&attention, t, head, want + t * out_stride + head * out_step);
    moec_cuda_attention_run(NULL, &attention);
    expect_same(want, got, n, "the GPU", "attention");
    release_guarded(want, n);
    release_guarded(got, n);
    free(q);
    free(sinks);
    free(bias);
    free_sequence(&sequences[0]);
    free_sequence(&sequences[1]);
}

static void test_cuda_attention__heads_have_same_bits(void **state)
{
    (void)state;
    check_attention((struct attention_case){.n_head = 4,
                                            .group = 2,
                                            .key_dim = 16,
                                            .value_dim = 16,
                                            .first_position = 130,
                                            .n_rows = 3,
                                            .has_scale = true});
    check_attention((struct attention_case){
        .n_head = 1, .group = 1, .key_dim = 64, .value_dim = 64, .n_rows = 40, .has_scale = true});
    check_attention((struct attention_case){.n_head = 6,
                                            .group = 3,
                                            .key_dim = 20,
                                            .value_dim = 20,
                                            .first_position = 63,
                                            .n_rows = 2,
                                            .has_scale = true});
    check_attention((struct attention_case){
        .n_head = 2, .group = 1, .key_dim = 7, .value_dim = 7, .first_position = 5, .n_rows = 1});
}

static void test_cuda_attention__windows_begin_within_chunks(void **state)
{
    (void)state;
    static const uint32_t windows[] = {1, 3, 16, 64, 100};
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++)
        check_attention((struct attention_case){.n_head = 2,
                                                .group = 2,
                                                .key_dim = 16,
                                                .value_dim = 16,
                                                .first_position = 126,
                                                .n_rows = 5,
                                                .window = windows[i],
                                                .has_scale = true});
}

static void test_cuda_attention__sinks_and_position_biases_count(void **state)
{
    (void)state;
    check_attention((struct attention_case){.n_head = 4,
                                            .group = 2,
                                            .key_dim = 16,
                                            .value_dim = 16,
                                            .first_position = 70,
                                            .n_rows = 4,
                                            .has_sinks = true,
                                            .has_scale = true});
    check_attention((struct attention_case){.n_head = 3,
                                            .group = 1,
                                            .key_dim = 16,
                                            .value_dim = 16,
                                            .first_position = 70,
                                            .n_rows = 4,
                                            .has_bias = true});
    check_attention((struct attention_case){.n_head = 3,
                                            .group = 1,
                                            .key_dim = 16,
                                            .value_dim = 16,
                                            .n_rows = 4,
                                            .n_source = 90,
                                            .has_bias = true});
}

static void test_cuda_attention__many_heads_share_a_latent(void **state)
{
    (void)state;
    check_attention((struct attention_case){.n_head = 19,
                                            .group = 19,
                                            .key_dim = 40,
                                            .value_dim = 32,
                                            .first_position = 67,
                                            .n_rows = 2,
                                            .is_latent = true,
                                            .has_scale = true});
}

static void test_cuda_attention__rows_of_a_source_see_all_of_it(void **state)
{
    (void)state;
    check_attention((struct attention_case){.n_head = 2,
                                            .group = 1,
                                            .key_dim = 16,
                                            .value_dim = 16,
                                            .n_rows = 3,
                                            .n_source = 65,
                                            .has_scale = true});
    check_attention((struct attention_case){.n_head = 2,
                                            .group = 1,
                                            .key_dim = 16,
                                            .value_dim = 16,
                                            .n_rows = 3,
                                            .n_source = 1,
                                            .has_scale = true});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_attention__heads_have_same_bits),
        cmocka_unit_test(test_cuda_attention__windows_begin_within_chunks),
        cmocka_unit_test(test_cuda_attention__sinks_and_position_biases_count),
        cmocka_unit_test(test_cuda_attention__many_heads_share_a_latent),
        cmocka_unit_test(test_cuda_attention__rows_of_a_source_see_all_of_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
