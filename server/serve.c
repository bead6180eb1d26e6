/* The engine reserves held_bytes, which bodies and jobs count towards, and what does not: the largest tree,
 * tokens of sessions, connections, threads. Stopping goes in steps: nobody new, those at work until the time
 * is over, the rest cancelled, answers flushed, both threads ended. HTTP ends first, since whatever it
 * completes wakes the compute thread. */
#include "server/serve.h"

#include "formats/base/memory.h"
#include "server/serve_http.h"
#include "server/serve_state.h"

#include <stdlib.h>
#include <time.h>

#define TICK_SECONDS    0.05
#define FLUSH_SECONDS   2.0
#define BODY_BYTES      ((size_t)64 << 10) /* of a request, whatever the context */
#define TOKEN_BYTES     64u                /* of a request for each token of the context */
#define MOST_BODY_BYTES ((size_t)8 << 20)
#define VALUES          1024u
#define FULL_PROMPTS    16u /* of ids, that a request may hold */
#define BODIES          8u
#define TEMPLATE_BODIES 32u
#define MOST_TEMPLATE   ((size_t)64 << 20)
#define ANSWER_BYTES    ((size_t)2 << 20)
#define SCORED_BYTES    ((size_t)8 << 10) /* for each token of the context: of scores of some full prompts */
#define MOST_SCORED     ((size_t)16 << 20)

/* What a connection takes: its memory in the library, and what that keeps beside. */
#define CONNECTION_BYTES ((uint64_t)20 << 10)
#define THREAD_BYTES     ((uint64_t)512 << 10) /* of stacks and code, of both threads */

struct serve_limits serve_limits_make(uint32_t n_context, uint32_t n_vocab)
{
    struct serve_limits limits = {.n_context = n_context, .n_vocab = n_vocab};
    limits.body_bytes = BODY_BYTES + (size_t)n_context * TOKEN_BYTES;
    if (limits.body_bytes > MOST_BODY_BYTES)
        limits.body_bytes = MOST_BODY_BYTES;
    limits.template_bytes = limits.body_bytes < MOST_TEMPLATE / TEMPLATE_BODIES
                                ? TEMPLATE_BODIES * limits.body_bytes
                                : MOST_TEMPLATE;
    limits.tree_values = VALUES + (size_t)n_context * FULL_PROMPTS;
    const size_t scored_bytes = n_context * SCORED_BYTES;
    limits.held_bytes =
        BODIES * limits.body_bytes + ANSWER_BYTES + (scored_bytes < MOST_SCORED ? scored_bytes : MOST_SCORED);
    return limits;
}

uint64_t serve_reserve_bytes(const struct serve_limits *limits, uint32_t n_connections, uint32_t n_sessions)
{
    const uint64_t tree = limits->tree_values * (uint64_t)SERVE_BYTES_PER_VALUE + limits->template_bytes +
                          8 * limits->body_bytes;
    const uint64_t slots = (uint64_t)n_sessions * limits->n_context * sizeof(uint32_t);
    return limits->held_bytes + tree + slots + n_connections * CONNECTION_BYTES + THREAD_BYTES;
}

static enum moec_status check_engine(const struct serve_options *options, struct moec_error *err)
{
    const struct moert_info info = moert_engine_info(options->engine);
    struct moert_error theirs = {0};
    uint32_t *tokens = NULL;
    size_t n = 0;
    if (info.layers.n_encoder > 0)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "the model of '%s' has an encoder, and moec serve does not support encoders: use "
                         "moec run",
                         options->model);
    const enum moert_status status = moert_tokenize(options->engine, "", 0, true, &tokens, &n, &theirs);
    moert_free(tokens);
    return status == MOERT_OK ? MOEC_OK : moec_fail(err, (enum moec_status)status, "%s", theirs.message);
}

enum moec_status serve_start(const struct serve_options *options, struct serve **out, struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(check_engine(options, err));
    MOEC_TRY(moec_alloc(&memory, 1, sizeof(struct serve), "a server", err));
    struct serve *server = memory;
    server->options = *options;
    enum moec_status status = serve_compute_start(&server->compute, &server->options, &server->metrics, err);
    if (status == MOEC_OK)
        status = serve_http_start(server, &server->http, err);
    if (status != MOEC_OK) {
        serve_compute_stop(&server->compute);
        free(server);
        return status;
    }
    *out = server;
    return MOEC_OK;
}

uint16_t serve_port(const struct serve *server)
{
    return serve_http_port(server->http);
}

void serve_tick(struct serve *server)
{
    serve_http_tick(server->http);
    serve_compute_keep_alive(&server->compute);
}

static void pause_for(double seconds)
{
    const struct timespec time = {.tv_sec = (time_t)seconds,
                                  .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    (void)nanosleep(&time, NULL);
}

uint32_t serve_stop(struct serve *server, double seconds, bool (*hurries)(void))
{
    uint32_t n_cut = 0;
    atomic_store(&server->ends, true);
    serve_http_quiesce(server->http);
    for (double waited = 0;
         waited < seconds && serve_compute_count(&server->compute) > 0 && (hurries == NULL || !hurries());
         waited += TICK_SECONDS) {
        serve_tick(server);
        pause_for(TICK_SECONDS);
    }
    n_cut = (uint32_t)serve_compute_cancel(&server->compute);
    while (serve_compute_count(&server->compute) > 0)
        pause_for(TICK_SECONDS);
    for (double waited = 0; waited < FLUSH_SECONDS && serve_http_count(server->http) > 0;
         waited += TICK_SECONDS)
        pause_for(TICK_SECONDS);
    serve_http_stop(server->http);
    serve_compute_stop(&server->compute);
    free(server);
    return n_cut;
}
