/* A sequence's place in the batch is its place in every array. States are of one layer at a time: adding a
 * sequence resets its own. A replay must come before the batch is cleared, for it reads what the layer left
 * there. */
#include "profiler/evaluate/batch_sequences.h"

#include "formats/base/memory.h"

#include <string.h>

static enum moec_status create_routes(const struct moec_config *config,
                                      struct moec_batch_sequences *sequences, struct moec_error *err)
{
    MOEC_TRY(moec_alloc((void **)&sequences->routes, sequences->n_room, sizeof *sequences->routes,
                        "logical caches", err));
    for (uint32_t i = 0; i < sequences->n_room; i++)
        MOEC_TRY(moec_route_state_create(config, sequences->route, 1, 0, &sequences->routes[i], err));
    return MOEC_OK;
}

enum moec_status moec_batch_sequences_create(const struct moec_config *config, uint32_t n_room,
                                             const struct moec_route *route,
                                             struct moec_batch_sequences *sequences, struct moec_error *err)
{
    *sequences =
        (struct moec_batch_sequences){.n_expert = config->n_expert, .n_room = n_room, .route = route};
    const char *what = "tokens of experts";
    if (config->router.expert_capacity == 0 && route == NULL && !moec_config_routes_by_token(config))
        return MOEC_OK;
    enum moec_status status =
        moec_alloc((void **)&sequences->spans, n_room, sizeof *sequences->spans, what, err);
    if (status == MOEC_OK && config->router.expert_capacity > 0)
        status = moec_alloc((void **)&sequences->counts, (uint64_t)n_room * config->n_expert,
                            sizeof *sequences->counts, what, err);
    if (status == MOEC_OK && route != NULL)
        status = create_routes(config, sequences, err);
    sequences->batch.spans = sequences->spans;
    if (status != MOEC_OK)
        moec_batch_sequences_release(sequences);
    return status;
}

void moec_batch_sequences_release(struct moec_batch_sequences *sequences)
{
    for (uint32_t i = 0; sequences->routes != NULL && i < sequences->n_room; i++)
        moec_route_state_release(&sequences->routes[i]);
    free(sequences->routes);
    free(sequences->spans);
    free(sequences->counts);
    free(sequences->touched);
    free(sequences->ranges);
    moec_cache_replay_free(sequences->replay);
    *sequences = (struct moec_batch_sequences){0};
}

enum moec_status moec_batch_sequences_keep(struct moec_batch_sequences *sequences,
                                           const struct moec_config *config, uint32_t max_rows,
                                           struct moec_error *err)
{
    if (sequences->route == NULL)
        return MOEC_OK;
    const char *what = "experts of a batch's tokens";
    MOEC_TRY(moec_alloc((void **)&sequences->touched, (uint64_t)max_rows * config->top_k,
                        sizeof *sequences->touched, what, err));
    MOEC_TRY(moec_alloc((void **)&sequences->ranges, max_rows, sizeof *sequences->ranges, what, err));
    return moec_cache_replay_create(config->n_expert, config->top_k, sequences->route->n_slots, max_rows,
                                    &sequences->replay, err);
}

void moec_batch_sequences_clear(struct moec_batch_sequences *sequences)
{
    sequences->batch.n_spans = 0;
    sequences->n_rows = 0;
}

void moec_batch_sequences_add(struct moec_batch_sequences *sequences, const uint32_t *tokens, uint32_t n_rows,
                              uint32_t n_prompt)
{
    if (sequences->spans == NULL)
        return;
    const uint32_t i = sequences->batch.n_spans++;
    struct moec_sequence_rows *span = &sequences->spans[i];
    *span = (struct moec_sequence_rows){.n_rows = n_rows, .tokens = tokens};
    if (sequences->counts != NULL) {
        span->counts = sequences->counts + (size_t)i * sequences->n_expert;
        memset(span->counts, 0, sequences->n_expert * sizeof *span->counts);
    }
    if (sequences->routes != NULL) {
        span->decides.route = &sequences->routes[i];
        span->decides.route->first_ordinal = sequences->ordinal;
        moec_route_state_reset(span->decides.route, 0);
        if (sequences->replay != NULL)
            moec_route_state_lend(span->decides.route,
                                  sequences->touched + (size_t)sequences->n_rows * span->decides.route->top_k,
                                  sequences->ranges + sequences->n_rows, n_rows);
        sequences->n_rows += n_rows;
        span->decides.n_prompt = n_prompt < n_rows ? n_prompt : n_rows;
    }
}

void moec_batch_sequences_replay(struct moec_batch_sequences *sequences)
{
    for (uint32_t i = 0; sequences->replay != NULL && i < sequences->batch.n_spans; i++) {
        const struct moec_route_state *route = sequences->spans[i].decides.route;
        const struct moec_path_value *initial =
            route->initial != NULL ? route->initial + (size_t)route->first_ordinal * route->n_expert : NULL;
        moec_cache_replay_run(sequences->replay, route->touched, route->n_done[0], initial);
    }
}

struct moec_route_counts moec_batch_sequences_route_counts(const struct moec_batch_sequences *sequences)
{
    struct moec_route_counts all = {0};
    for (uint32_t i = 0; sequences->routes != NULL && i < sequences->n_room; i++)
        moec_route_counts_add(&all, &sequences->routes[i].counts);
    return all;
}
