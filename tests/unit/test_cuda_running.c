/* Kernels of a GPU for layers that keep a state, run on the processor, have the bits of the scalar set in the
 * order of runtime/forward/attention/running.c: convolutions, rates, matrices that tokens pass, gates; states in, out
 * and copied. */
#include "formats/base/elementary.h"
#include "runtime/cuda/kernels/cuda_kernels.h"
#include "runtime/kernels/kernels.h"
#include "tests/unit/kernel_inputs.h"

enum { SEQUENCES = 2, MAX_STATE = 16384 };

/* Two sequences, one from the beginning and one with a past, whose state is also copied on the way. */
struct states {
    struct moec_cuda_state device[SEQUENCES];
    float past[MAX_STATE], out[SEQUENCES][MAX_STATE], copy[MAX_STATE];
    uint32_t n_rows;
};

/* Kernels read all of it: it is allocated, as tests/gpu/pinned.h asks. */
static struct states *make_states(size_t n_floats)
{
    struct states *states = malloc(sizeof *states);
    assert_non_null(states);
    assert_true(n_floats <= MAX_STATE);
    for (size_t i = 0; i < MAX_STATE; i++) {
        states->past[i] = random_float(KIND_ORDINARY);
        states->out[0][i] = states->out[1][i] = states->copy[i] = moec_f32_from_bits(CANARY);
    }
    states->device[0] = (struct moec_cuda_state){0, 1 + random_below(5), 0, NULL, states->out[0], NULL};
    states->device[1] =
        (struct moec_cuda_state){states->device[0].n_rows, 3, 2, states->past, states->out[1], states->copy};
    states->n_rows = states->device[0].n_rows + 3;
    return states;
}

/* ---- convolution ---- */

enum { CHANNELS = 70, CHANNEL_STRIDE = 80 };

/* The row `back` before row t of a sequence as it was given. */
static float before(const struct moec_cuda_state *state, const float *x, uint32_t conv_size, uint32_t channel,
                    uint32_t t, uint32_t back)
{
    if (t >= back)
        return x[(state->first_row + t - back) * CHANNEL_STRIDE + channel];
    return state->state_in != NULL ? state->state_in[(conv_size - 1 - (back - t)) * CHANNELS + channel] : 0;
}

static void check_convolution(uint32_t conv_size, bool has_bias, bool has_silu)
{
    const uint32_t n_tail = conv_size - 1;
    struct states *states = make_states((size_t)n_tail * CHANNELS);
    const size_t n = (size_t)states->n_rows * CHANNEL_STRIDE;
    float *x = random_floats(n, KIND_ORDINARY),
          *weights = random_floats((size_t)conv_size * CHANNEL_STRIDE, KIND_ORDINARY);
    float *bias = random_floats(CHANNELS, KIND_ORDINARY), *want = guarded(n), *got = guarded(n);
    memcpy(want, x, n * sizeof *want);
    memcpy(got, x, n * sizeof *got);
    for (uint32_t s = 0; s < SEQUENCES; s++)
        for (uint32_t t = 0; t < states->device[s].n_rows; t++)
            for (uint32_t c = 0; c < CHANNELS; c++) {
                float sum = has_bias ? bias[c] : 0;
                for (uint32_t i = 0; i <= n_tail; i++)
                    sum += weights[i * CHANNEL_STRIDE + c] *
                           before(&states->device[s], x, conv_size, c, t, n_tail - i);
                want[(states->device[s].first_row + t) * CHANNEL_STRIDE + c] =
                    has_silu ? moec_silu_f32(sum) : sum;
            }
    moec_cuda_convolution_run(
        NULL, &(struct moec_cuda_convolution){.states = {.each = states->device, .n = SEQUENCES},
                                              .n_channel = CHANNELS,
                                              .conv_size = conv_size,
                                              .weights = {.first = weights, .stride = CHANNEL_STRIDE},
                                              .bias = has_bias ? bias : NULL,
                                              .has_silu = has_silu,
                                              .x = {.first = got, .stride = CHANNEL_STRIDE}});
    expect_same(want, got, n, "the GPU", "a convolution");
    for (uint32_t i = 0; i < n_tail; i++)
        for (uint32_t c = 0; c < CHANNELS; c++) {
            for (uint32_t s = 0; s < SEQUENCES; s++) {
                const float last =
                    before(&states->device[s], x, conv_size, c, states->device[s].n_rows, n_tail - i);
                expect_same(&last, &states->out[s][i * CHANNELS + c], 1, "the GPU", "a state");
            }
            const float copied = before(&states->device[1], x, conv_size, c, 2, n_tail - i);
            expect_same(&copied, &states->copy[i * CHANNELS + c], 1, "the GPU", "a state's copy");
        }
    assert_int_equal(moec_f32_bits(states->copy[n_tail * CHANNELS]), CANARY);
    release_guarded(want, n);
    release_guarded(got, n);
    free(x);
    free(weights);
    free(bias);
    free(states);
}

static void test_cuda_running__convolutions_keep_their_last_rows(void **state)
{
    (void)state;
    for (uint32_t conv_size = 1; conv_size <= 16; conv_size += conv_size < 4 ? 1 : 6)
        for (int form = 0; form < 4; form++)
            check_convolution(conv_size, form % 2 == 1, form > 1);
}

/* ---- rates ---- */

static void check_rates(bool is_space, uint32_t n_decay)
{
    enum { TOKENS = 3, HEADS = 5 };
    const size_t stride = 16 + HEADS * (size_t)n_decay, n = TOKENS * stride;
    float *x = random_floats(n, KIND_ORDINARY), log[HEADS],
          *bias = random_floats(HEADS * (size_t)n_decay, KIND_ORDINARY);
    float *want = guarded(n);
    memcpy(want, x, n * sizeof *want);
    x[16] = want[16] = 30; /* past the end of softplus's curve */
    for (uint32_t head = 0; head < HEADS; head++)
        log[head] = random_float(KIND_ORDINARY);
    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t head = 0; head < HEADS; head++) {
            float *rate = want + t * stride + head;
            *rate = is_space ? *rate : 1.0f / (1.0f + moec_exp_f32(-*rate));
            for (uint32_t i = 0; i < n_decay; i++) {
                float *decay = want + t * stride + 16 + head * n_decay + i;
                const double a = (double)(*decay + bias[head * n_decay + i]);
                const double step = a > 20 ? a : moec_log_f64(1 + moec_exp_f64(a)),
                             dt = step > 0.25 ? step : 0.25;
                *rate = is_space ? (float)dt : *rate;
                *decay = (float)moec_exp_f64(-moec_exp_f64((double)log[head]) * dt);
            }
        }
    moec_cuda_rates_run(NULL, &(struct moec_cuda_rates){.rates = x,
                                                        .decays = x + 16,
                                                        .stride = stride,
                                                        .n_tok = TOKENS,
                                                        .n_head = HEADS,
                                                        .decay = {.n = n_decay, .log = log, .bias = bias},
                                                        .step_min = 0.25f,
                                                        .is_space = is_space});
    expect_same(want, x, n, "the GPU", "rates");
    release_guarded(want, n);
    free(x);
    free(bias);
}

static void test_cuda_running__rates_have_same_bits(void **state)
{
    (void)state;
    check_rates(true, 1);
    check_rates(false, 1);
    check_rates(false, 7);
}

/* ---- matrices ---- */

enum { KEY_HEADS = 2, HEADS = 4, VALUE_DIM = 19, VALUE_STRIDE = 32, OFFSET = 11 };

static void sum_scalar(const float *h, const float *s, uint32_t n, float *out)
{
    float part[VALUE_STRIDE];
    for (uint32_t first = 0; first < n; first += MOEC_SUM_CHUNK) {
        const uint32_t n_rows = n - first < MOEC_SUM_CHUNK ? n - first : MOEC_SUM_CHUNK;
        moec_kernels_scalar.sum_chunk(h + first, n_rows, 1, s + (size_t)first * VALUE_STRIDE, VALUE_STRIDE,
                                      n_rows, VALUE_DIM, first == 0 ? out : part, VALUE_STRIDE);
        if (first > 0)
            moec_kernels_scalar.add(part, VALUE_DIM, out);
    }
}

/* One token passes one head's matrix by the scalar set. */
static void pass_scalar(const struct moec_cuda_recurrence *of, uint32_t head, float *row, float *s)
{
    const uint32_t dim = of->heads.key_dim;
    const float *q = row + of->at.queries + (size_t)(head / 2) * dim,
                *k = row + of->at.keys + (size_t)(head / 2) * dim;
    float *v = row + of->at.values + (size_t)head * VALUE_DIM, delta[VALUE_STRIDE] = {0}, out[VALUE_STRIDE];
    for (uint32_t i = 0; i < dim; i++)
        for (uint32_t c = 0; c < VALUE_DIM; c++)
            s[i * VALUE_STRIDE + c] *=
                row[of->at.decays + head * of->heads.n_decay + (of->heads.n_decay > 1 ? i : 0)];
    if (of->skip == NULL)
        sum_scalar(k, s, dim, delta);
    for (uint32_t c = 0; c < VALUE_DIM; c++)
        delta[c] = row[of->at.rates + head] * (v[c] - delta[c]);
    for (uint32_t i = 0; i < dim; i++)
        moec_kernels_scalar.add_scaled(k[i], delta, VALUE_DIM, s + (size_t)i * VALUE_STRIDE);
    sum_scalar(q, s, dim, out);
    for (uint32_t c = 0; c < VALUE_DIM; c++)
        v[c] = of->skip == NULL ? out[c] : out[c] + of->skip[head] * v[c];
}

static void check_passage(uint32_t key_dim, bool is_space, bool has_channels)
{
    static float wanted[SEQUENCES][MAX_STATE], copied[MAX_STATE];
    const size_t n_state = OFFSET + (size_t)HEADS * key_dim * VALUE_STRIDE;
    const uint32_t n_decay = has_channels ? key_dim : 1, n_keys = KEY_HEADS * key_dim;
    const float skip[HEADS] = {1, 0.5f, -2, 0};
    struct states *states = make_states(n_state);
    for (size_t i = OFFSET; i < n_state; i++)
        states->past[i] = (i - OFFSET) % VALUE_STRIDE >= VALUE_DIM ? 0 : states->past[i];
    struct moec_cuda_recurrence recurrence = {
        .states = {.each = states->device, .n = SEQUENCES},
        .heads = {.n_head = HEADS,
                  .n_key_head = KEY_HEADS,
                  .key_dim = key_dim,
                  .value_dim = VALUE_DIM,
                  .n_decay = n_decay},
        .state_offset = OFFSET,
        .at = {.keys = n_keys,
               .values = 2 * (size_t)n_keys,
               .rates = 2 * (size_t)n_keys + HEADS * VALUE_DIM,
               .decays = 2 * (size_t)n_keys + HEADS * VALUE_DIM + HEADS},
        .skip = is_space ? skip : NULL};
    recurrence.x.stride = recurrence.at.decays + HEADS * (size_t)n_decay + 1;
    const size_t n = states->n_rows * recurrence.x.stride;
    float *want = guarded(n), *got = guarded(n);
    for (size_t i = 0; i < n; i++)
        want[i] = got[i] = random_float(KIND_ORDINARY) * 0.5f;
    memcpy(wanted, states->out, sizeof wanted);
    memcpy(copied, states->copy, sizeof copied);
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        const struct moec_cuda_state *sequence = &states->device[s];
        for (size_t i = OFFSET; i < n_state; i++)
            wanted[s][i] = sequence->state_in != NULL ? sequence->state_in[i] : 0;
        for (uint32_t t = 0; t < sequence->n_rows; t++) {
            if (sequence->state_copy != NULL && t == sequence->n_before_copy)
                memcpy(copied + OFFSET, wanted[s] + OFFSET, (n_state - OFFSET) * sizeof *copied);
            for (uint32_t head = 0; head < HEADS; head++)
                pass_scalar(&recurrence, head, want + (sequence->first_row + t) * recurrence.x.stride,
                            wanted[s] + OFFSET + (size_t)head * key_dim * VALUE_STRIDE);
        }
    }
    recurrence.x.first = got;
    moec_cuda_recurrence_run(NULL, &recurrence);
    expect_same(want, got, n, "the GPU", "values");
    expect_same(wanted[0], states->out[0], SEQUENCES * MAX_STATE, "the GPU", "states");
    expect_same(copied, states->copy, MAX_STATE, "the GPU", "a state's copy");
    release_guarded(want, n);
    release_guarded(got, n);
    free(states);
}

static void test_cuda_running__tokens_pass_matrices_in_order(void **state)
{
    (void)state;
    static const uint32_t dims[] = {1, 5, 16, 80};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        check_passage(dims[i], false, false);
        check_passage(dims[i], false, dims[i] > 1);
        check_passage(dims[i], true, false);
    }
}

/* ---- gates ---- */

static void test_cuda_running__gates_have_same_bits(void **state)
{
    (void)state;
    enum { TOKENS = 3, N = 77 };
    for (int kind = 0; kind < KIND_COUNT; kind++)
        for (int is_sigmoid = 0; is_sigmoid < 2; is_sigmoid++) {
            float *gate = random_floats(TOKENS * N, (enum kind)kind),
                  *y = random_floats(TOKENS * N, (enum kind)kind);
            float *want = guarded(TOKENS * N);
            moec_kernels_scalar.silu_mul(gate, y, TOKENS * N, want);
            for (size_t i = 0; i < TOKENS * N && is_sigmoid != 0; i++)
                want[i] = y[i] * (1.0f / (1.0f + moec_exp_f32(-gate[i])));
            moec_cuda_gating_run(
                NULL, &(struct moec_cuda_gating){{gate, N, NULL}, {y, N, NULL}, TOKENS, N, is_sigmoid != 0});
            expect_same(want, y, TOKENS * N, "the GPU", "a gate");
            release_guarded(want, TOKENS * N);
            free(gate);
            free(y);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_running__convolutions_keep_their_last_rows),
        cmocka_unit_test(test_cuda_running__rates_have_same_bits),
        cmocka_unit_test(test_cuda_running__tokens_pass_matrices_in_order),
        cmocka_unit_test(test_cuda_running__gates_have_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
