/* Windows are thinned for all layers alike first, down to MOEC_GAIN_WINDOWS. Only then layers are left out,
 * and two always stay. Windows at half the size are every fourth of those at the whole size, so both see the
 * same tokens. */
#include "profiler/sensitivity/gain_plan.h"

#include "profiler/evaluate/cost.h"

#define SMALL_EVERY 4

static uint64_t layer_cost(const struct moec_config *config, const struct moec_windows *windows, uint32_t s,
                           const struct moec_gain_plan *plan)
{
    const uint32_t first = moec_config_moe_layer(config, s) + 1;
    uint64_t cost = 0;
    for (uint32_t w = 0; w < windows->n_window; w += plan->every)
        cost += (w % plan->small_every == 0 ? 2 : 1) *
                moec_cost_from_layer(config, first, 0, 0, windows->scored[w]);
    return cost;
}

/* n layers, evenly spread from the first to the last. */
static double spread(const struct moec_config *config, const struct moec_windows *windows, uint32_t n,
                     uint32_t every, struct moec_gain_plan *plan)
{
    const uint32_t n_moe = moec_config_moe_count(config);
    *plan = (struct moec_gain_plan){.n_layer = n, .every = every, .small_every = SMALL_EVERY * every};
    for (uint32_t g = 0; g < n; g++) {
        plan->layers[g] = n > 1 ? (g * (n_moe - 1) + (n - 1) / 2) / (n - 1) : 0;
        plan->cost += layer_cost(config, windows, plan->layers[g], plan);
    }
    return (double)plan->cost;
}

void moec_gain_plan_make(const struct moec_config *config, const struct moec_windows *windows,
                         struct moec_gain_plan *plan)
{
    const double most = MOEC_GAIN_PASSES * (double)moec_cost_pass(config, windows);
    const uint32_t n_window = windows->n_window,
                   fewest = n_window > MOEC_GAIN_WINDOWS ? n_window / MOEC_GAIN_WINDOWS : 1;
    uint32_t n = moec_config_moe_count(config);
    for (uint32_t every = 1; every <= fewest; every++)
        if (spread(config, windows, n, every, plan) <= most)
            return;
    while (n > 2 && spread(config, windows, n, fewest, plan) > most)
        n--;
    (void)spread(config, windows, n, fewest, plan);
}

uint64_t moec_gain_plan_layer_rows(const struct moec_gain_plan *plan, const struct moec_windows *windows)
{
    uint64_t n = 0;
    for (uint32_t w = 0; w < windows->n_window; w += plan->every)
        n += windows->scored[w];
    return n;
}

uint64_t moec_gain_plan_rows(const struct moec_gain_plan *plan, const struct moec_windows *windows)
{
    uint64_t n = 0;
    for (uint32_t w = 0; w < windows->n_window; w += plan->every)
        n += (w % plan->small_every == 0 ? 2u : 1u) * (uint64_t)windows->scored[w];
    return n * plan->n_layer;
}

struct moec_gain_place moec_gain_plan_place(const struct moec_gain_plan *plan, uint32_t ordinal)
{
    struct moec_gain_place place = {0, 0, 0};
    for (uint32_t g = 0; g < plan->n_layer; g++)
        if (plan->layers[g] <= ordinal)
            place.before = g;
    place.after = place.before;
    if (plan->layers[place.before] == ordinal || place.before + 1 == plan->n_layer)
        return place;
    place.after = place.before + 1;
    place.share = (double)(ordinal - plan->layers[place.before]) /
                  (double)(plan->layers[place.after] - plan->layers[place.before]);
    return place;
}
