/* All choices compare token->compared, and end in the order in which the router ranks what they chose.
 * Experts that cannot be compared come last, as in the router's own choice. Skipping drops the lightest
 * missing expert again and again, while the weights lost together stay within its share. */
#include "runtime/policy/decide/route.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- settings ---- */

static const struct {
    const char *name;
    const char *parameter; /* NULL: none */
    bool is_count;
} kinds[MOEC_ROUTE_COUNT] = {
    [MOEC_ROUTE_TOP_K] = {"top-k", NULL, false},
    [MOEC_ROUTE_CACHE_PRIOR] = {"cache-prior", "a share of 0 to 1", false},
    [MOEC_ROUTE_MAX_RANK] = {"max-rank", "a number of experts", true},
    [MOEC_ROUTE_CUMSUM] = {"cumsum", "a share of 0 to 1", false},
    [MOEC_ROUTE_PRUNE] = {"prune", "a number of experts", true},
};

static const char *const range_names[MOEC_ROUTE_RANGE_COUNT] = {
    [MOEC_ROUTE_RANGE_RUNNING] = "running",
    [MOEC_ROUTE_RANGE_CALIBRATED] = "calibrated",
    [MOEC_ROUTE_RANGE_OWN] = "own",
};

static const char skip_word[] = ":skip:";

static enum moec_status read_range(const char *text, struct moec_route *route, struct moec_error *err)
{
    for (uint8_t range = 0; range < MOEC_ROUTE_RANGE_COUNT; range++)
        if (strcmp(text, range_names[range]) == 0) {
            route->range = range;
            return MOEC_OK;
        }
    return moec_fail(err, MOEC_ERR_USAGE,
                     "route 'cache-prior' has the range '%s', expected running, calibrated or own", text);
}

static enum moec_status read_parameter(const char *text, uint8_t kind, struct moec_route *route,
                                       struct moec_error *err)
{
    char *end = NULL;
    const double value = *text != '\0' ? strtod(text, &end) : 0;
    const double most = kinds[kind].is_count ? MOEC_MAX_EXPERTS : 1;
    const double least = kinds[kind].is_count ? 1 : 0;
    const bool has_range = kind == MOEC_ROUTE_CACHE_PRIOR && end != NULL && *end == ':';
    if (end == NULL || end == text || (*end != '\0' && !has_range) || !(value >= least && value <= most) ||
        (kinds[kind].is_count && value != floor(value)))
        return moec_fail(err, MOEC_ERR_USAGE, "route '%s' has the parameter '%s', expected %s",
                         kinds[kind].name, text, kinds[kind].parameter);
    if (kinds[kind].is_count)
        route->n_expert = (uint32_t)value;
    else
        route->share = (float)value;
    route->kind = kind;
    return has_range ? read_range(end + 1, route, err) : MOEC_OK;
}

/* What stands behind the route, "skip:0.1". */
static enum moec_status read_skip(const char *text, struct moec_route *route, struct moec_error *err)
{
    char *end = NULL;
    const double value = strtod(text + strlen(skip_word), &end);
    route->skip = (float)value;
    if (end != text + strlen(skip_word) && *end == '\0' && value <= 1 && route->skip > 0)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_USAGE,
                     "the text of the route ends in '%s', expected skip:W with a weight W above 0 and at "
                     "most 1",
                     text + 1);
}

static enum moec_status read_kind(const char *text, struct moec_route *route, struct moec_error *err)
{
    for (unsigned kind = 0; kind < MOEC_ROUTE_COUNT; kind++) {
        const size_t length = strlen(kinds[kind].name);
        if (strncmp(text, kinds[kind].name, length) != 0)
            continue;
        if (text[length] == '\0' && kinds[kind].parameter == NULL) {
            route->kind = (uint8_t)kind;
            return MOEC_OK;
        }
        if (kinds[kind].parameter != NULL && (text[length] == ':' || text[length] == '\0'))
            return read_parameter(text + length + (text[length] == ':'), (uint8_t)kind, route, err);
    }
    return moec_fail(err, MOEC_ERR_USAGE,
                     "unknown route '%s', expected cache-prior:SHARE[:RANGE], max-rank:EXPERTS, "
                     "cumsum:SHARE, prune:EXPERTS or top-k, each optionally followed by :skip:WEIGHT",
                     text);
}

enum moec_status moec_route_read(const char *text, struct moec_route *route, struct moec_error *err)
{
    char kind[64];
    const char *skip = strstr(text, skip_word);
    route->skip = 0;
    if (skip == NULL || (size_t)(skip - text) >= sizeof kind)
        return read_kind(text, route, err);
    memcpy(kind, text, (size_t)(skip - text));
    kind[skip - text] = '\0';
    MOEC_TRY(read_kind(kind, route, err));
    return read_skip(skip, route, err);
}

enum moec_status moec_route_read_slots(const char *text, const struct moec_config *config, uint32_t *n_slots,
                                       struct moec_error *err)
{
    char *end = NULL;
    const double value = strtod(text, &end);
    const bool is_share = end != text && strcmp(end, "%") == 0;
    if (end == text || (*end != '\0' && !is_share) || !(value > 0) ||
        value > (is_share ? 100 : MOEC_MAX_EXPERTS) || (!is_share && value != floor(value)))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "cannot read '%s' as the size of a logical cache, expected a number of experts "
                         "per layer such as 12, or a share of them up to 100%% such as 50%%",
                         text);
    *n_slots = (uint32_t)(is_share ? value / 100 * config->n_expert : value);
    if (is_share && *n_slots < config->top_k)
        *n_slots = config->top_k;
    return MOEC_OK;
}

static enum moec_status check_low(const struct moec_route *route, const struct moec_config *config,
                                  struct moec_error *err)
{
    if (route->n_slots == 0)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "a precision or prefill needs the size of its logical cache: set the number of "
                         "experts that this cache holds per layer (slots)");
    if (route->prefill.kind != MOEC_PREFILL_SAME && route->decode_only)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "a prefill applies to prompts, but decisions are set for generated tokens only: "
                         "set them for all tokens, or leave out the prefill");
    if (route->n_low_slots >= config->top_k && route->n_low_slots <= config->n_expert)
        return MOEC_OK;
    return moec_fail(
        err, MOEC_ERR_USAGE,
        "the logical cache has room for %u low-precision copies in each layer, expected %u (as many as one "
        "token uses) to %u (all)",
        route->n_low_slots, config->top_k, config->n_expert);
}

/* What looks at the buffer has nothing beside it that looks at a logical cache. */
static enum moec_status check_shared(const struct moec_route *route, const struct moec_config *config,
                                     struct moec_error *err)
{
    const bool has_cache = route->n_slots > 0 || route->n_low_slots > 0 || route->initial != NULL;
    if (route->kind != MOEC_ROUTE_TOP_K || route->prefill.kind != MOEC_PREFILL_SAME)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "a %s decides by a logical cache, but precision 'shared' by the experts "
                         "in memory: leave out one of them, or use precision 'hobbit', "
                         "which decides by a logical cache too",
                         route->kind != MOEC_ROUTE_TOP_K ? "route" : "prefill");
    if (has_cache)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "precision 'shared' decides by the experts in memory, so slots and start of a logical cache "
            "have no effect: leave them out, or use precision 'hobbit'");
    if (moec_config_is_encoder_decoder(config))
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "precision shared does not record the decisions of an encoder, which family '%s' "
                         "has: use precision hobbit",
                         config->family);
    return moec_precision_check(&route->precision, config, err);
}

enum moec_status moec_route_check(const struct moec_route *route, const struct moec_config *config,
                                  struct moec_error *err)
{
    if (moec_route_looks_at_buffer(route))
        return check_shared(route, config, err);
    const bool needs_cache =
        (route->kind != MOEC_ROUTE_TOP_K && route->kind != MOEC_ROUTE_PRUNE) || route->skip > 0;
    if (needs_cache && route->n_slots == 0)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "route %s needs the size of its logical cache: set the number of experts that "
                         "this cache holds per layer (slots)",
                         kinds[route->kind].name);
    MOEC_TRY(moec_precision_check(&route->precision, config, err));
    if (moec_route_takes_low(route))
        MOEC_TRY(check_low(route, config, err));
    if (route->n_slots > 0 && (route->n_slots < config->top_k || route->n_slots > config->n_expert))
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "the logical cache has room for %u experts in each layer, expected %u (as many as one token "
            "uses) to %u (all)",
            route->n_slots, config->top_k, config->n_expert);
    if (route->keep_top > 0 && !needs_cache)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "keep_top %u has no effect with route %s: choose a route that may replace experts",
                         route->keep_top, kinds[route->kind].name);
    if (route->keep_top > config->top_k)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "keep_top is %u, expected at most %u, the number of experts that a token uses",
                         route->keep_top, config->top_k);
    if (needs_cache && route->keep_top == config->top_k)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "a token takes %u experts and the best %u are kept, so route %s changes nothing: give a smaller "
            "keep_top",
            config->top_k, route->keep_top, kinds[route->kind].name);
    if (route->kind == MOEC_ROUTE_PRUNE && route->n_expert == 1 &&
        route->precision.kind != MOEC_PRECISION_ONE && route->precision.kind != MOEC_PRECISION_FATE)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "prune:1 keeps only the best expert, always in its high-precision copy, so a precision changes "
            "nothing: leave it out");
    if (route->kind == MOEC_ROUTE_PRUNE && route->n_expert >= config->top_k)
        return moec_fail(err, MOEC_ERR_USAGE, "prune:%u keeps all %u experts of a token, expected fewer",
                         route->n_expert, config->top_k);
    if (route->kind == MOEC_ROUTE_MAX_RANK &&
        (route->n_expert <= config->top_k || route->n_expert > config->n_expert))
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "max-rank:%u is out of range, expected more than %u (as many as one token uses) and at most %u",
            route->n_expert, config->top_k, config->n_expert);
    return MOEC_OK;
}

static bool is_of_model(const struct moec_path_table *paths, const struct moec_config *config)
{
    return paths != NULL && paths->n_layer == moec_config_moe_count(config) &&
           paths->n_expert == config->n_expert;
}

void moec_route_know_calibration(struct moec_route *route, const struct moec_config *config,
                                 const struct moec_path_table *paths)
{
    if (!is_of_model(paths, config))
        return;
    route->prefill.frequency = paths->frequency;
    if (paths->scores != NULL)
        moec_precision_know_scores(&route->precision, paths->scores);
}

enum moec_status moec_route_start_frequent(struct moec_route *route, const struct moec_config *config,
                                           const struct moec_path_table *paths, const char *path,
                                           struct moec_error *err)
{
    if (!is_of_model(paths, config))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the bundle '%s' does not say how often experts are used: compile the model with "
                         "a profile, or start with an empty logical cache",
                         path);
    route->initial = paths->frequency;
    return MOEC_OK;
}

enum moec_status moec_route_know_ranges(struct moec_route *route, const struct moec_config *config,
                                        const struct moec_path_table *paths, const char *path,
                                        struct moec_error *err)
{
    if (route->kind != MOEC_ROUTE_CACHE_PRIOR || route->range != MOEC_ROUTE_RANGE_CALIBRATED)
        return MOEC_OK;
    if (!is_of_model(paths, config) || paths->ranges == NULL)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "the bundle '%s' has no calibrated ranges of its routers' scores: use a bundle that was "
            "compiled with --data or --profile, or the route cache-prior:%g:running, which needs none",
            path, (double)route->share);
    route->ranges = paths->ranges;
    return MOEC_OK;
}

/* ---- choices ---- */

static bool is_resident(const struct moec_scored_token *token, uint32_t expert)
{
    return token->residents != NULL && token->residents->has(token->residents, token->layer, expert);
}

/* The n_best of what the router compares, the best first. */
static void rank_best(const struct moec_scored_token *token, uint32_t n_best, uint32_t *experts,
                      float *values)
{
    const struct moec_scored_token compared = {.n_expert = token->n_expert, .scores = token->ranked.compared};
    moec_choose_best(&compared, n_best, experts, values);
}

/* The chosen in the order in which the router ranks them. */
static void sort_by_rank(const struct moec_scored_token *token, uint32_t *experts)
{
    const float *z = token->ranked.compared;
    for (uint32_t i = 1; i < token->top_k; i++) {
        const uint32_t e = experts[i];
        uint32_t at = i;
        for (; at > 0 && (z[e] > z[experts[at - 1]] || (z[e] == z[experts[at - 1]] && e < experts[at - 1]));
             at--)
            experts[at] = experts[at - 1];
        experts[at] = e;
    }
}

static void choose_cache_prior(const void *context, const struct moec_scored_token *token, uint32_t *experts,
                               bool *skips)
{
    const struct moec_route *route = context;
    float boosted[MOEC_MAX_EXPERTS], values[MOEC_MAX_TOP_K];
    const float boost = route->share * token->ranked.range;
    (void)skips;
    memcpy(boosted, token->ranked.compared, token->n_expert * sizeof *boosted);
    if (route->keep_top > 0)
        rank_best(token, route->keep_top, experts, values);
    for (uint32_t e = 0; e < token->n_expert; e++) {
        bool gains = is_resident(token, e);
        for (uint32_t rank = 0; rank < route->keep_top && !gains; rank++)
            gains = experts[rank] == e;
        if (gains)
            boosted[e] += boost;
    }
    const struct moec_scored_token prior = {.n_expert = token->n_expert, .scores = boosted};
    moec_choose_best(&prior, token->top_k, experts, values);
    sort_by_rank(token, experts);
}

/* promote(r[:J]; promote(r[:M] and C; r)), of which the first k are taken. */
static void promote(const struct moec_route *route, const struct moec_scored_token *token, uint32_t max_rank,
                    uint32_t *experts)
{
    uint32_t ranked[MOEC_MAX_EXPERTS];
    float values[MOEC_MAX_EXPERTS];
    bool is_taken[MOEC_MAX_EXPERTS] = {false};
    const uint32_t k = token->top_k, n_ranked = max_rank > k ? max_rank : k;
    uint32_t n = 0;
    rank_best(token, n_ranked, ranked, values);
    for (; n < route->keep_top; n++) {
        experts[n] = ranked[n];
        is_taken[n] = true;
    }
    for (int resident = 1; resident >= 0; resident--) {
        const uint32_t end = resident == 1 ? max_rank : n_ranked;
        for (uint32_t rank = 0; rank < end && n < k; rank++) {
            if (is_taken[rank] || !isfinite(values[rank]) ||
                (resident == 1 && !is_resident(token, ranked[rank])))
                continue;
            is_taken[rank] = true;
            experts[n++] = ranked[rank];
        }
    }
    /* Fewer than k experts that can be compared: as the router's own choice does. */
    for (uint32_t rank = 0; n < k; rank++)
        if (!is_taken[rank])
            experts[n++] = ranked[rank];
    sort_by_rank(token, experts);
}

static void choose_max_rank(const void *context, const struct moec_scored_token *token, uint32_t *experts,
                            bool *skips)
{
    const struct moec_route *route = context;
    (void)skips;
    promote(route, token, route->n_expert, experts);
}

static void choose_cumsum(const void *context, const struct moec_scored_token *token, uint32_t *experts,
                          bool *skips)
{
    const struct moec_route *route = context;
    uint32_t ranked[MOEC_MAX_EXPERTS];
    float values[MOEC_MAX_EXPERTS], sum = 0;
    uint32_t max_rank = 0;
    (void)skips;
    rank_best(token, token->n_expert, ranked, values);
    while (max_rank < token->n_expert && sum < route->share)
        sum += token->ranked.shares[ranked[max_rank++]];
    promote(route, token, max_rank, experts);
}

static void choose_pruned(const void *context, const struct moec_scored_token *token, uint32_t *experts,
                          bool *skips)
{
    const struct moec_route *route = context;
    moec_choice_top_k.choose(NULL, token, experts, skips);
    for (uint32_t rank = route->n_expert; rank < token->top_k; rank++)
        skips[rank] = true;
}

struct moec_choice moec_route_choice(const struct moec_route *route)
{
    static void (*const choose[MOEC_ROUTE_COUNT])(const void *, const struct moec_scored_token *, uint32_t *,
                                                  bool *) = {
        [MOEC_ROUTE_CACHE_PRIOR] = choose_cache_prior,
        [MOEC_ROUTE_MAX_RANK] = choose_max_rank,
        [MOEC_ROUTE_CUMSUM] = choose_cumsum,
        [MOEC_ROUTE_PRUNE] = choose_pruned,
    };
    if (route->kind == MOEC_ROUTE_TOP_K)
        return moec_choice_top_k;
    return (struct moec_choice){.choose = choose[route->kind], .context = route};
}

/* Of what a route may skip the last of the smallest weight; top_k = there is none. */
static uint32_t find_lightest(const struct moec_route *route, const struct moec_scored_token *token,
                              const uint32_t *experts, const float *weights, const bool *skips)
{
    uint32_t lightest = token->top_k;
    for (uint32_t rank = route->keep_top; rank < token->top_k; rank++)
        if (!skips[rank] && !is_resident(token, experts[rank]) &&
            (lightest == token->top_k || fabsf(weights[rank]) <= fabsf(weights[lightest])))
            lightest = rank;
    return lightest;
}

void moec_route_skip(const struct moec_route *route, const struct moec_scored_token *token,
                     const uint32_t *experts, const float *weights, bool *skips)
{
    float lost = 0;
    if (route->skip <= 0)
        return;
    for (uint32_t rank; (rank = find_lightest(route, token, experts, weights, skips)) < token->top_k;) {
        lost += fabsf(weights[rank]);
        if (!(lost <= route->skip))
            return;
        skips[rank] = true;
    }
}
