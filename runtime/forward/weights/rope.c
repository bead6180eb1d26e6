/* Powers and logarithms are F64, but each step of a frequency is rounded to F32 in the order of
 * transformers: angles of late positions multiply every bit. A kind of scaling changes the frequencies, the
 * base or the factor of cosines and sines. The rotation knows nothing of it. Pairs that do not turn have
 * frequency 0. */
#include "runtime/forward/weights/rope.h"

#include "runtime/kernels/kernels.h"

#include <math.h>

#define TWO_PI 6.283185307179586

/* The pair, counted in halves of a pair, that turns `n_turns` times in the trained context. */
static double pair_of_turns(const struct moec_layer_kind *kind, double n_turns)
{
    const double positions = kind->rope_scaling.original_positions, dim = moec_layer_rotary_dim(kind);
    return dim * moec_log_f64(positions / (n_turns * TWO_PI)) / (2 * moec_log_f64(kind->rope_theta));
}

/* YaRN's ramp: pairs up to `low` keep their frequency, pairs from `high` on are divided by the factor. */
static void find_ramp(const struct moec_layer_kind *kind, double *low, double *high)
{
    const struct moec_rope_scaling *scaling = &kind->rope_scaling;
    const double last = moec_layer_rotary_dim(kind) - 1.0;
    *low = pair_of_turns(kind, scaling->beta_fast);
    *high = pair_of_turns(kind, scaling->beta_slow);
    if (scaling->truncate) {
        *low = floor(*low);
        *high = ceil(*high);
    }
    *low = *low > 0 ? *low : 0;
    *high = *high < last ? *high : last;
    if (*low == *high)
        *high += 0.001;
}

/* Whether the config's choice is for longer texts than the trained context. */
static bool is_beyond(const struct moec_config *config, const struct moec_rope_scaling *scaling)
{
    return config->position.rope_context > scaling->original_positions;
}

/* The logarithm of the base. Dynamic NTK has (f n / trained - (f - 1))^(dim / (dim - 2)) times the base in
 * texts of n positions. */
static double log_base(const struct moec_config *config, const struct moec_layer_kind *kind)
{
    const struct moec_rope_scaling *scaling = &kind->rope_scaling;
    const double log_theta = moec_log_f64(kind->rope_theta), dim = moec_layer_rotary_dim(kind);
    if (scaling->kind != MOEC_ROPE_DYNAMIC || !is_beyond(config, scaling))
        return log_theta;
    const double longer = (double)config->position.rope_context / scaling->original_positions;
    return log_theta + moec_log_f64(scaling->factor * longer - (scaling->factor - 1)) * dim / (dim - 2);
}

/* A frequency of Llama 3's scaling, by the length of the pair's turn. */
static float llama3_frequency(const struct moec_rope_scaling *scaling, float frequency)
{
    const float trained = (float)scaling->original_positions, slow = (float)scaling->beta_slow,
                fast = (float)scaling->beta_fast, factor = (float)scaling->factor;
    const float length = (float)TWO_PI / frequency;
    if (length > trained / slow)
        return frequency / factor;
    if (length < trained / fast || fast == slow) /* Llama 4: nothing lies between them */
        return frequency;
    const float smooth = (trained / length - slow) / (fast - slow);
    const float divided = (1.0f - smooth) * frequency / factor, kept = smooth * frequency;
    return divided + kept;
}

/* transformers rounds every step to F32; rounding the same steps keeps the angles of late positions together.
 */
void moec_rope_fill(const struct moec_config *config, const struct moec_layer_kind *kind, float *out)
{
    const struct moec_rope_scaling *scaling = &kind->rope_scaling;
    const double log_theta = log_base(config, kind);
    const float *factors = config->position.rope_factors[is_beyond(config, scaling)];
    const uint32_t dim = moec_layer_rotary_dim(kind);
    const uint32_t n_pair = dim / 2;
    const uint32_t n_turning =
        scaling->kind == MOEC_ROPE_PROPORTIONAL ? (uint32_t)(n_pair / scaling->factor + 0.5) : n_pair;
    double low = 0, high = 0;
    if (scaling->kind == MOEC_ROPE_YARN)
        find_ramp(kind, &low, &high);
    for (uint32_t i = 0; i < n_pair; i++) {
        const float exponent = (float)(2 * i) / (float)dim;
        const float power = (float)moec_exp_f64((double)exponent * log_theta);
        out[i] = i < n_turning ? 1.0f / power : 0;
        if (scaling->kind == MOEC_ROPE_LONG)
            out[i] = 1.0f / (factors[i] * power);
        if (scaling->kind == MOEC_ROPE_LINEAR)
            out[i] = out[i] / (float)scaling->factor;
        if (scaling->kind == MOEC_ROPE_LLAMA3)
            out[i] = llama3_frequency(scaling, out[i]);
        if (scaling->kind != MOEC_ROPE_YARN)
            continue;
        const float at = ((float)i - (float)low) / (float)(high - low);
        const float divided = at < 0 ? 0 : at > 1 ? 1 : at, kept = 1.0f - divided;
        const float slow = (1.0f / ((float)scaling->factor * power)) * (1.0f - kept), fast = out[i] * kept;
        out[i] = slow + fast;
    }
}

/* What cosines and sines are multiplied by. */
static float attention_factor(const struct moec_config *config, const struct moec_rope_scaling *scaling)
{
    if (scaling->kind == MOEC_ROPE_LONG && is_beyond(config, scaling))
        return (float)config->position.rope_long_attention;
    return scaling->attention_factor > 0 ? (float)scaling->attention_factor : 1;
}

void moec_rope_angles(const struct moec_config *config, const struct moec_layer_kind *kind,
                      const float *inverse_frequency, uint32_t position, float *cosine, float *sine)
{
    const uint32_t half = moec_layer_rotary_dim(kind) / 2;
    const float factor = attention_factor(config, &kind->rope_scaling);
    for (uint32_t i = 0; i < half; i++) {
        double s = 0;
        double c = 0;
        const float angle = (float)position * inverse_frequency[i];
        moec_sincos_f64((double)angle, &s, &c);
        cosine[i] = (float)c * factor;
        sine[i] = (float)s * factor;
    }
}

float moec_rope_query_factor(const struct moec_config *config, const struct moec_layer_kind *kind,
                             uint32_t position)
{
    const bool is_own = config->position.growth_positions > 0; /* of layers without rotation alone */
    const uint32_t n_trained =
        is_own ? config->position.growth_positions : kind->rope_scaling.original_positions;
    if (config->position.query_growth == 0 || (is_own && kind->rope_theta != 0))
        return 1;
    const uint32_t n_whole = (position + is_own) / n_trained;
    return n_whole == 0 ? 1 : 1 + config->position.query_growth * (float)moec_log_f64(1 + (double)n_whole);
}

/* As in transformers' apply_rotary_pos_emb: each product is rounded, then the sum. */
void moec_rope_rotate(const struct moec_layer_kind *kind, const float *cosine, const float *sine,
                      uint32_t n_heads, float *x)
{
    const uint32_t half = moec_layer_rotary_dim(kind) / 2;
    for (uint32_t head = 0; head < n_heads; head++, x += kind->head_dim) {
        for (uint32_t i = 0; i < half; i++) {
            const float a = x[i];
            const float b = x[i + half];
            x[i] = a * cosine[i] - b * sine[i];
            x[i + half] = b * cosine[i] + a * sine[i];
        }
    }
}
