#include "formats/base/half.h"
#include "runtime/kernels/kernels.h"
#include "runtime/moert.h"

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

static uint32_t argmax(const float *logits, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* Largest threshold for which `enough` holds. Probabilities relative to the largest lie in 0..1 and order
 * like their bit patterns, so halving the patterns needs no sorting and no second buffer; ties at the edge
 * are all kept. */
static float last_threshold(const float *values, uint32_t n,
                            bool (*enough)(const float *values, uint32_t n, float least, double wanted),
                            double wanted)
{
    uint32_t low = 0, high = moec_f32_bits(1.0f);
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        if (enough(values, n, moec_f32_from_bits(middle), wanted))
            low = middle;
        else
            high = middle - 1;
    }
    return moec_f32_from_bits(low);
}

static bool enough_values(const float *values, uint32_t n, float least, double wanted)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        count += values[i] >= least;
    return count >= wanted;
}

static bool enough_mass(const float *values, uint32_t n, float least, double wanted)
{
    double mass = 0;
    for (uint32_t i = 0; i < n; i++)
        mass += values[i] >= least ? values[i] : 0;
    return mass >= wanted;
}

static double drop_below(float *values, uint32_t n, float least)
{
    double mass = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (values[i] < least)
            values[i] = 0;
        mass += values[i];
    }
    return mass;
}

uint32_t moert_sampler_next(struct moert_sampler *sampler, float *logits, uint32_t n_vocab)
{
    uint32_t best = argmax(logits, n_vocab);
    if (!(sampler->temperature > 0))
        return best;
    float largest = logits[best];
    for (uint32_t i = 0; i < n_vocab; i++)
        logits[i] = moec_exp_f32((logits[i] - largest) / sampler->temperature);
    float least = 0;
    if (sampler->top_k > 0 && sampler->top_k < n_vocab)
        least = last_threshold(logits, n_vocab, enough_values, sampler->top_k);
    double mass = drop_below(logits, n_vocab, least);
    if (sampler->top_p < 1) {
        least = last_threshold(logits, n_vocab, enough_mass, mass * sampler->top_p);
        mass = drop_below(logits, n_vocab, least);
    }
    double draw = next_uniform(&sampler->state) * mass;
    for (uint32_t i = 0; i < n_vocab; i++) {
        draw -= logits[i];
        if (draw < 0)
            return i;
    }
    return best; /* rounding left a remainder */
}
