/* The table has a column for each offset up to max_distance: on both sides in an encoder, before the query
 * in a decoder. Its first and last columns serve all keys beyond. So a row of scores has three pieces: one
 * that adds a value, one that adds columns, one that adds a value. */
#include "runtime/forward/weights/position_bias.h"

/* The logarithm's steps are rounded to F32 one by one, as transformers rounds them, so that a distance at the
 * edge of a bucket falls on the same side. */
static uint32_t bucket_of_distance(uint32_t n_bucket, uint32_t max_distance, uint32_t distance)
{
    const uint32_t n_exact = n_bucket / 2, n_wide = n_bucket - n_exact;
    if (distance < n_exact)
        return distance;
    if (distance >= max_distance)
        return n_bucket - 1;
    const float ratio = (float)distance / (float)n_exact;
    const float span = (float)moec_log_f64((double)max_distance / (double)n_exact);
    const float place = (float)moec_log_f64((double)ratio) / span * (float)n_wide;
    const uint32_t bucket = n_exact + (uint32_t)place;
    return bucket < n_bucket ? bucket : n_bucket - 1;
}

uint32_t moec_position_bucket(const struct moec_config *config, enum moec_stack stack, int64_t offset)
{
    const int64_t limit = config->position.max_distance;
    const int64_t near = offset < -limit ? -limit : offset > limit ? limit : offset;
    if (stack == MOEC_STACK_DECODER)
        return bucket_of_distance(config->position.n_bucket, config->position.max_distance,
                                  near < 0 ? (uint32_t)-near : 0);
    const uint32_t half = config->position.n_bucket / 2;
    const uint32_t distance = (uint32_t)(near < 0 ? -near : near);
    return bucket_of_distance(half, config->position.max_distance, distance) + (near > 0 ? half : 0);
}

size_t moec_position_bias_width(const struct moec_config *config, enum moec_stack stack)
{
    return (stack == MOEC_STACK_ENCODER ? 2 : 1) * (size_t)config->position.max_distance + 1;
}

uint64_t moec_position_bias_floats(const struct moec_config *config)
{
    if (config->position.n_bucket == 0)
        return 0;
    return (uint64_t)moec_config_layer(config, 0)->n_head *
           (moec_position_bias_width(config, MOEC_STACK_ENCODER) +
            moec_position_bias_width(config, MOEC_STACK_DECODER));
}

void moec_position_bias_fill(const struct moec_config *config, enum moec_stack stack, const float *weights,
                             float *table)
{
    const size_t width = moec_position_bias_width(config, stack);
    for (size_t i = 0; i < width; i++) {
        const uint32_t bucket =
            moec_position_bucket(config, stack, (int64_t)i - config->position.max_distance);
        for (uint32_t head = 0; head < moec_config_layer(config, 0)->n_head; head++)
            table[head * width + i] = weights[(size_t)bucket * moec_config_layer(config, 0)->n_head + head];
    }
}

static void add_same(float value, uint32_t n, float *scores)
{
    for (uint32_t i = 0; i < n; i++)
        scores[i] += value;
}

/* Keys too far before, those whose bias the table tells, keys too far after. */
void moec_position_bias_add(const struct moec_kernels *kernels, const struct moec_config *config,
                            enum moec_stack stack, const float *head, struct moec_seen_keys keys,
                            float *scores)
{
    const uint32_t n = keys.n;
    const size_t width = moec_position_bias_width(config, stack);
    const int64_t offset = (int64_t)keys.first - keys.position, limit = config->position.max_distance;
    const int64_t before = -limit - offset;
    const uint32_t n_before = before <= 0 ? 0 : before < n ? (uint32_t)before : n;
    const int64_t told = (int64_t)width - limit - offset; /* keys up to the table's end */
    const uint32_t end = told <= n_before ? n_before : told < n ? (uint32_t)told : n;
    add_same(head[0], n_before, scores);
    if (end > n_before)
        kernels->add(head + (offset + (int64_t)n_before + limit), end - n_before, scores + n_before);
    add_same(head[width - 1], n - end, scores + end);
}
