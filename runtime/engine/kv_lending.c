/* Always lent + free + taken = bytes of the KV caches at their full length. A session takes free bytes
 * first; only then what is lent shrinks, and the expert buffer with it. What is lent never grows again:
 * bytes that a session gives back stay free. */
#include "runtime/engine/kv_lending.h"

#include "runtime/experts/expert_cache.h"
#include "runtime/forward/pass/session.h"

/* Of all sequences, when each has filled n positions. */
static uint64_t filled_bytes(const struct moec_memory_request *request, uint32_t n)
{
    const struct moec_config *config = request->config;
    const uint64_t n_sessions = request->sessions.n > 0 ? request->sessions.n : 1;
    const uint64_t n_beside = request->sessions.n_beams > 0 ? request->sessions.n_beams - 1 : 0;
    return n_sessions * (moec_session_filled_bytes(config, request->sessions.n_context, n, false) +
                         n_beside * moec_session_filled_bytes(config, request->sessions.n_context, n, true));
}

void moec_kv_lending_plan(struct moec_kv_lending *lending, const struct moec_memory_plan *plan,
                          const struct moec_memory_request *request, uint32_t n_first)
{
    const uint64_t all = filled_bytes(request, request->sessions.n_context);
    const uint64_t later = all - filled_bytes(request, n_first);
    const uint64_t wanted = plan->experts.all_bytes - plan->expert_buffer_bytes;
    lending->own_bytes = plan->expert_buffer_bytes;
    lending->lent_bytes = later < wanted ? later : wanted;
    lending->free_bytes = all - lending->lent_bytes;
}

static void resize(struct moec_kv_lending *lending)
{
    moec_expert_cache_resize(lending->cache, lending->own_bytes + lending->lent_bytes + lending->spare_bytes);
}

static void take(void *context, uint64_t n_bytes)
{
    struct moec_kv_lending *lending = context;
    (void)pthread_mutex_lock(&lending->lock);
    if (n_bytes > lending->free_bytes) {
        lending->lent_bytes -= n_bytes - lending->free_bytes;
        lending->free_bytes = n_bytes;
        resize(lending);
    }
    lending->free_bytes -= n_bytes;
    (void)pthread_mutex_unlock(&lending->lock);
}

static void give(void *context, uint64_t n_bytes)
{
    struct moec_kv_lending *lending = context;
    (void)pthread_mutex_lock(&lending->lock);
    lending->free_bytes += n_bytes;
    (void)pthread_mutex_unlock(&lending->lock);
}

void moec_kv_lending_begin(struct moec_kv_lending *lending, struct moec_expert_cache *cache)
{
    (void)pthread_mutex_init(&lending->lock, NULL);
    lending->cache = cache;
    lending->lender = (struct moec_kv_lender){.take = take, .give = give, .context = lending};
}

void moec_kv_lending_end(struct moec_kv_lending *lending)
{
    if (lending->cache != NULL)
        (void)pthread_mutex_destroy(&lending->lock);
    lending->cache = NULL;
}

void moec_kv_lending_spare(struct moec_kv_lending *lending, uint64_t n_bytes)
{
    if (lending->cache == NULL)
        return;
    (void)pthread_mutex_lock(&lending->lock);
    if (n_bytes != lending->spare_bytes) {
        lending->spare_bytes = n_bytes;
        resize(lending);
    }
    (void)pthread_mutex_unlock(&lending->lock);
}

uint64_t moec_kv_lending_lent_bytes(struct moec_kv_lending *lending)
{
    if (lending->cache == NULL)
        return 0;
    (void)pthread_mutex_lock(&lending->lock);
    const uint64_t lent_bytes = lending->lent_bytes;
    (void)pthread_mutex_unlock(&lending->lock);
    return lent_bytes;
}
