/* A filter stands at up, at the activated gate or at down. A weighed one compares with its threshold /
 * |weight of the expert|. Clamps come before the activation. The functions that list active neurons must
 * leave out exactly those that the activation sets to 0. Otherwise a batch and a single token would differ.
 * SiLU and GELU are v / (1 + exp(-z)). */
#include "runtime/forward/context/activation.h"

#include "formats/base/half.h"

#include <math.h>
#include <string.h>

static void zero_small(float *values, size_t n, float threshold)
{
    for (size_t i = 0; i < n; i++) {
        if (fabsf(values[i]) < threshold)
            values[i] = 0;
    }
}

static float scale_of(const struct moec_mlp_filter *filter, uint32_t neuron)
{
    return filter->scales == NULL ? 1 : moec_bf16_to_f32(filter->scales[neuron]);
}

/* Whether a filter at the gate leaves out the activation that stands at `at` of the rows. */
static bool leaves_gate(const struct moec_mlp_filter *filter, struct moec_neurons neurons,
                        const float *limits, size_t at, float value)
{
    const uint32_t neuron = neurons.first + (uint32_t)(at % neurons.n_row);
    return fabsf(value) * scale_of(filter, neuron) < limits[at / neurons.n_row];
}

float moec_mlp_limit(const struct moec_mlp_filter *filter, float weight)
{
    const bool is_weighed =
        filter->scales != NULL && (filter->at == MOEC_PROJECTION_UP || filter->is_weighed);
    return is_weighed ? filter->threshold / fabsf(weight) : filter->threshold;
}

bool moec_mlp_stays(const struct moec_mlp_filter *filter, uint32_t neuron, float up, float limit)
{
    return !(fabsf(up) * scale_of(filter, neuron) < limit);
}

/* Up products of neurons first .. first + n - 1 of a token that do not stay become 0; returns how many stay.
 */
static uint32_t zero_left_out(const struct moec_mlp_filter *filter, uint32_t first, float limit, uint32_t n,
                              float *up)
{
    uint32_t n_left = 0;
    for (uint32_t i = 0; i < n; i++) {
        const bool is_left = moec_mlp_stays(filter, first + i, up[i], limit);
        up[i] = is_left ? up[i] : 0;
        n_left += is_left;
    }
    return n_left;
}

static void multiply(const float *up, size_t n, float *gate)
{
    for (size_t i = 0; i < n; i++)
        gate[i] *= up[i];
}

/* values = activation(values); `scratch` is as long. */
static void activate_alone(const struct moec_kernels *kernels, uint8_t activation, float *values,
                           float *scratch, size_t n)
{
    if (activation == MOEC_ACTIVATION_RELU || activation == MOEC_ACTIVATION_RELU_SQUARED) {
        for (size_t i = 0; i < n; i++)
            values[i] = values[i] < 0 ? 0 : values[i];
        if (activation == MOEC_ACTIVATION_RELU_SQUARED)
            multiply(values, n, values);
        return;
    }
    /* Both are v / (1 + exp(-z)): SiLU with z = v, GELU by tanh with z = 2 sqrt(2 / pi) (v + 0.044715 v^3).
     */
    const bool is_silu = activation == MOEC_ACTIVATION_SILU;
    for (size_t i = 0; i < n; i++) {
        const float v = values[i];
        scratch[i] = is_silu ? -v : -1.59576912160573f * (0.044715f * v * v * v + v);
    }
    (void)kernels->exp_sum(scratch, 0, n, scratch);
    for (size_t i = 0; i < n; i++)
        values[i] = values[i] / (1.0f + scratch[i]);
}

/* gate = (up + 1) * gate * sigmoid(1.702 gate), both clamped before. */
static void activate_clamped(const struct moec_kernels *kernels, const struct moec_mlp_scratch *scratch,
                             size_t n)
{
    const float limit = 7.0f, gain = 1.702f;
    float *gate = scratch->gate;
    for (size_t i = 0; i < n; i++) {
        gate[i] = gate[i] > limit ? limit : gate[i];
        scratch->exponents[i] = -(gain * gate[i]);
    }
    (void)kernels->exp_sum(scratch->exponents, 0, n, scratch->exponents);
    for (size_t i = 0; i < n; i++) {
        const float up = scratch->up[i] > limit ? limit : scratch->up[i] < -limit ? -limit : scratch->up[i];
        gate[i] = (up + 1.0f) * (gate[i] / (1.0f + scratch->exponents[i]));
    }
}

#define SILU_LIMIT 10.0f /* of MOEC_ACTIVATION_CLAMPED_SILU */

static void clamp(float *values, size_t n, float low, float high)
{
    for (size_t i = 0; i < n; i++)
        values[i] = values[i] > high ? high : values[i] < low ? low : values[i];
}

/* Adds a bias's values of n neurons from `first` on, a multiple of MOEC_SUM_CHUNK, to n_tok rows. */
static void add_chunk_bias(const struct moec_kernels *kernels, const struct moec_matrix *bias, size_t first,
                           uint32_t n_tok, uint32_t n, float *values)
{
    float piece[MOEC_SUM_CHUNK];
    if (bias->rows == 0)
        return;
    moec_codec_decode_span(bias->codec, bias->data, bias->columns, first, n, piece);
    for (uint32_t t = 0; t < n_tok; t++)
        kernels->add(piece, n, values + (size_t)t * n);
}

uint32_t moec_mlp_activate_gated(const struct moec_kernels *kernels, const struct moec_mlp *mlp,
                                 const struct moec_mlp_scratch *scratch, struct moec_neurons neurons,
                                 const float *limits, size_t n)
{
    const struct moec_mlp_filter *filter = &mlp->filter;
    const bool is_at_gate = filter->is_on && filter->at == MOEC_PROJECTION_GATE;
    float *gate = scratch->gate, *up = scratch->up;
    const bool is_clamped = mlp->activation == MOEC_ACTIVATION_CLAMPED_SILU;
    uint32_t n_out = 0;
    if (is_clamped) {
        clamp(gate, n, -INFINITY, SILU_LIMIT);
        clamp(up, n, -SILU_LIMIT, SILU_LIMIT);
    }
    if (is_clamped || mlp->activation == MOEC_ACTIVATION_SILU) {
        for (size_t i = 0; is_at_gate && i < n; i++) {
            const bool is_out = leaves_gate(filter, neurons, limits, i, moec_silu_f32(gate[i]));
            up[i] = is_out ? 0 : up[i];
            n_out += is_out;
        }
        kernels->silu_mul(gate, up, n, gate);
    } else if (mlp->activation == MOEC_ACTIVATION_CLAMPED_GLU) {
        activate_clamped(kernels, scratch, n);
    } else {
        activate_alone(kernels, mlp->activation, gate, scratch->exponents, n);
        for (size_t i = 0; is_at_gate && i < n; i++) {
            const bool is_out = leaves_gate(filter, neurons, limits, i, gate[i]);
            gate[i] = is_out ? 0 : gate[i];
            n_out += is_out;
        }
        multiply(up, n, gate);
    }
    if (filter->is_on && filter->at == MOEC_PROJECTION_DOWN)
        zero_small(gate, n, filter->threshold);
    return n_out;
}

bool moec_mlp_leaves_out_by_gate(const struct moec_mlp *mlp)
{
    return mlp->filter.is_on && mlp->filter.at == MOEC_PROJECTION_GATE && moec_mlp_has_gate(mlp) &&
           mlp->activation != MOEC_ACTIVATION_CLAMPED_GLU && mlp->biases[MOEC_PROJECTION_GATE].rows == 0 &&
           mlp->biases[MOEC_PROJECTION_UP].rows == 0;
}

uint32_t moec_mlp_find_by_gate(const struct moec_kernels *kernels, const struct moec_mlp *mlp,
                               const struct moec_mlp_scratch *scratch, struct moec_neurons neurons,
                               float limit, uint8_t *active)
{
    const uint32_t n = neurons.n_row;
    const bool is_clamped = mlp->activation == MOEC_ACTIVATION_CLAMPED_SILU;
    float activated[MOEC_SUM_CHUNK], *gate = scratch->gate;
    uint32_t n_active = 0;
    if (is_clamped)
        clamp(gate, n, -INFINITY, SILU_LIMIT);
    memcpy(activated, gate, n * sizeof *activated);
    if (is_clamped || mlp->activation == MOEC_ACTIVATION_SILU)
        for (uint32_t i = 0; i < n; i++)
            activated[i] = moec_silu_f32(gate[i]);
    else
        activate_alone(kernels, mlp->activation, activated, scratch->exponents, n);
    for (uint32_t i = 0; i < n; i++) {
        const float value = gate[i];
        active[n_active] = (uint8_t)i;
        gate[n_active] = value;
        n_active += !leaves_gate(&mlp->filter, neurons, &limit, i, activated[i]);
    }
    return n_active;
}

void moec_mlp_factors(const struct moec_kernels *kernels, uint8_t activation, size_t n, float *gate,
                      const float *up, float *down)
{
    const bool is_clamped = activation == MOEC_ACTIVATION_CLAMPED_SILU;
    if (is_clamped)
        clamp(gate, n, -INFINITY, SILU_LIMIT);
    if (is_clamped || activation == MOEC_ACTIVATION_SILU) {
        for (size_t i = 0; i < n; i++)
            gate[i] = moec_silu_f32(gate[i]);
    } else {
        activate_alone(kernels, activation, gate, down, n);
    }
    memcpy(down, up, n * sizeof *down);
    if (is_clamped)
        clamp(down, n, -SILU_LIMIT, SILU_LIMIT);
    multiply(gate, n, down);
}

/* What the down projection reads, from the up product alone, which stands in `gate`. */
static void activate_plain(const struct moec_kernels *kernels, const struct moec_mlp *mlp,
                           const struct moec_mlp_scratch *scratch, size_t n)
{
    const struct moec_mlp_filter *filter = &mlp->filter;
    activate_alone(kernels, mlp->activation, scratch->gate, scratch->exponents, n);
    if (filter->is_on && filter->at == MOEC_PROJECTION_DOWN)
        zero_small(scratch->gate, n, filter->threshold);
}

uint32_t moec_mlp_activate(const struct moec_kernels *kernels, const struct moec_mlp *mlp,
                           const struct moec_mlp_scratch *scratch, struct moec_neurons neurons,
                           const float *limits, uint32_t n_tok)
{
    const uint32_t neuron = neurons.first, n = neurons.n_row;
    const struct moec_matrix *biases = mlp->biases;
    const bool has_gate = moec_mlp_has_gate(mlp);
    float *up = has_gate ? scratch->up : scratch->gate;
    uint32_t n_left = n_tok * n;
    if (has_gate)
        add_chunk_bias(kernels, &biases[MOEC_PROJECTION_GATE], neuron, n_tok, n, scratch->gate);
    add_chunk_bias(kernels, &biases[MOEC_PROJECTION_UP], neuron, n_tok, n, up);
    if (mlp->filter.is_on && mlp->filter.at == MOEC_PROJECTION_UP) {
        n_left = 0;
        for (uint32_t t = 0; t < n_tok; t++)
            n_left += zero_left_out(&mlp->filter, neuron, limits[t], n, up + (size_t)t * n);
    }
    if (has_gate)
        n_left -= moec_mlp_activate_gated(kernels, mlp, scratch, neurons, limits, (size_t)n_tok * n);
    else
        activate_plain(kernels, mlp, scratch, (size_t)n_tok * n);
    return n_left;
}

bool moec_mlp_leaves_out(const struct moec_mlp *mlp)
{
    return mlp->filter.is_on && mlp->filter.at == MOEC_PROJECTION_UP && moec_mlp_has_gate(mlp) &&
           mlp->activation != MOEC_ACTIVATION_CLAMPED_GLU && mlp->biases[MOEC_PROJECTION_UP].rows == 0;
}

uint32_t moec_mlp_find_active(const struct moec_mlp_filter *filter, uint32_t neuron, float limit, uint32_t n,
                              float *up, uint8_t *active)
{
    uint32_t n_active = 0;
    for (uint32_t i = 0; i < n; i++) {
        const float value = up[i];
        active[n_active] = (uint8_t)i;
        up[n_active] = value;
        n_active += moec_mlp_stays(filter, neuron + i, value, limit);
    }
    return n_active;
}
