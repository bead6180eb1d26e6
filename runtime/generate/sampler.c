/* In this order, each on what the one before left: temperature, top-k, top-p, min-p, typical, draw. A token
 * that is dropped has probability 0. Masses are sums of whole numbers (moec_draw_whole), which do not depend
 * on the order. So a device draws the same token from the same logits. */
#include "runtime/generate/sampler.h"

#include "formats/base/elementary.h"
#include "formats/base/half.h"
#include "runtime/kernels/kernels.h"

struct moert_sampler moert_sampler_greedy(void)
{
    return (struct moert_sampler){.temperature = 0, .top_k = 0, .top_p = 1, .state = 0};
}

/* SplitMix64 (Steele, Lea, Flood 2014): one add and a mix for each draw, any seed is fine. */
static double next_uniform(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (double)(z >> 11) * 0x1p-53;
}

/* The first of the largest, in lanes that do not wait for each other. */
static uint32_t argmax(const float *logits, uint32_t n)
{
    float most[MOEC_LANES];
    uint32_t i = 0, best = 0;
    for (uint32_t lane = 0; lane < MOEC_LANES; lane++)
        most[lane] = logits[0];
    for (; i + MOEC_LANES <= n; i += MOEC_LANES)
        for (uint32_t lane = 0; lane < MOEC_LANES; lane++)
            most[lane] = logits[i + lane] > most[lane] ? logits[i + lane] : most[lane];
    for (; i < n; i++)
        most[0] = logits[i] > most[0] ? logits[i] : most[0];
    for (uint32_t lane = 1; lane < MOEC_LANES; lane++)
        most[0] = most[lane] > most[0] ? most[lane] : most[0];
    while (best < n && logits[best] != most[0])
        best++;
    return best < n ? best : 0; /* the first is not a number, and nothing is larger */
}

/* Probabilities relative to the largest lie in 0..1 and order like their bit patterns of 30 bits: a threshold is
 * found in three digits of 10 bits, from the highest, without sorting and without a second buffer. */
enum { DIGIT_BITS = 10, N_DIGITS = 3, N_BINS = 1 << DIGIT_BITS };

/* What weights add up to by their next digit, of those whose higher digits are these. A NaN has no pattern here. */
static void add_by_digit(const float *values, uint32_t n, float scale, uint32_t higher, uint32_t shift,
                         uint64_t sums[N_BINS])
{
    for (uint32_t i = 0; i < N_BINS; i++)
        sums[i] = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t pattern = moec_f32_bits(values[i]);
        if (pattern >> shift >> DIGIT_BITS == higher)
            sums[pattern >> shift & (N_BINS - 1)] += scale > 0 ? moec_draw_whole(values[i], scale) : 1;
    }
}

/* Largest threshold at which the values that are not below it are `wanted`, or with a scale weigh as much; 0 where all
 * do not. Ties at the edge are all kept. */
static float last_threshold(const float *values, uint32_t n, float scale, uint64_t wanted)
{
    uint64_t sums[N_BINS], above = 0;
    uint32_t found = 0;
    wanted = wanted > 0 ? wanted : 1; /* a top_p of nothing keeps the largest */
    for (uint32_t digit = N_DIGITS; digit-- > 0;) {
        uint32_t bin = N_BINS;
        add_by_digit(values, n, scale, found, digit * DIGIT_BITS, sums);
        while (bin > 0 && above + sums[bin - 1] < wanted)
            above += sums[--bin];
        if (bin == 0)
            return 0;
        found = found << DIGIT_BITS | (bin - 1);
    }
    return moec_f32_from_bits(found);
}

static uint64_t drop_below(float *values, uint32_t n, float least)
{
    const float scale = moec_draw_scale(n);
    uint64_t mass = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (values[i] < least)
            values[i] = 0;
        mass += moec_draw_whole(values[i], scale);
    }
    return mass;
}

/* ---- typical ---- */

/* Probabilities p x mass between these belong to tokens whose information, -log p, is at most `distance` from
 * the entropy. */
struct interval {
    double low, high;
};

static struct interval near_entropy(double entropy, double distance, double mass)
{
    return (struct interval){mass * moec_exp_f64(-entropy - distance),
                             mass * moec_exp_f64(-entropy + distance)};
}

static double mass_within(const float *values, uint32_t n, struct interval kept)
{
    double mass = 0;
    for (uint32_t i = 0; i < n; i++)
        mass += values[i] >= kept.low && values[i] <= kept.high ? values[i] : 0;
    return mass;
}

/* Keeps the tokens nearest to the entropy until they have this part of the mass. The distance is found by
 * halving bit patterns: nothing is sorted and no logarithm is taken twice. */
static uint64_t keep_typical(float *values, uint32_t n, double part)
{
    double entropy = 0, mass = 0;
    for (uint32_t i = 0; i < n; i++)
        mass += values[i];
    for (uint32_t i = 0; i < n; i++)
        entropy -= values[i] > 0 ? values[i] / mass * moec_log_f64(values[i] / mass) : 0;
    uint32_t low = 0, high = moec_f32_bits(200.0f); /* more information than an F32 probability can have */
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const double distance = moec_f32_from_bits(middle);
        if (mass_within(values, n, near_entropy(entropy, distance, mass)) >= part * mass)
            high = middle;
        else
            low = middle + 1;
    }
    const struct interval kept = near_entropy(entropy, moec_f32_from_bits(low), mass);
    for (uint32_t i = 0; i < n; i++)
        if (values[i] < kept.low || values[i] > kept.high)
            values[i] = 0;
    return drop_below(values, n, 0);
}

bool moec_sampler_is_draw(const struct moert_sampler *sampler)
{
    return !(sampler->temperature > 0 && sampler->typical_p > 0 && sampler->typical_p < 1);
}

struct moec_draw moec_sampler_draw(struct moert_sampler *sampler)
{
    return (struct moec_draw){.temperature = sampler->temperature,
                              .top_k = sampler->top_k,
                              .top_p = sampler->top_p,
                              .min_p = sampler->min_p,
                              .uniform = sampler->temperature > 0 ? next_uniform(&sampler->state) : 0};
}

uint32_t moert_sampler_next(struct moert_sampler *sampler, float *logits, uint32_t n_vocab)
{
    const struct moec_draw draw = moec_sampler_draw(sampler);
    const uint32_t best = argmax(logits, n_vocab);
    if (!(draw.temperature > 0))
        return best;
    const float largest = logits[best], scale = moec_draw_scale(n_vocab);
    for (uint32_t i = 0; i < n_vocab; i++)
        logits[i] = (logits[i] - largest) / draw.temperature;
    (void)moec_kernels_best()->exp_sum(logits, 0, n_vocab, logits);
    float least = 0;
    if (draw.top_k > 0 && draw.top_k < n_vocab)
        least = last_threshold(logits, n_vocab, 0, draw.top_k);
    uint64_t mass = drop_below(logits, n_vocab, least);
    if (draw.top_p < 1) {
        least = last_threshold(logits, n_vocab, scale, moec_draw_part(mass, draw.top_p));
        mass = drop_below(logits, n_vocab, least);
    }
    if (draw.min_p > 0)
        mass = drop_below(logits, n_vocab, draw.min_p < 1 ? draw.min_p : 1);
    if (!moec_sampler_is_draw(sampler))
        mass = keep_typical(logits, n_vocab, sampler->typical_p);
    if (mass == 0) /* the logits are not finite */
        return best;
    const uint64_t place = moec_draw_place(mass, draw.uniform);
    uint32_t token = 0;
    for (uint64_t sum = moec_draw_whole(logits[0], scale); sum <= place;)
        sum += moec_draw_whole(logits[++token], scale);
    return token;
}
