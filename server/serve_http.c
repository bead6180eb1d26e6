/* handle is called once for the headers, for each piece of a body, and with none left; a resumed connection
 * comes there once more and finds its job done. The order of refusals: host, origin, key, path, method, end,
 * body. A refused request's small body is swallowed, so that its client reads the answer. since_ns of a
 * client says since when a request is awaited. Who takes too long has its socket shut down, which the
 * library then notices. */
#include "server/serve_http.h"

#include "formats/base/clock.h"
#include "formats/base/memory.h"
#include "server/serve_answer.h"
#include "server/serve_guard.h"
#include "server/serve_page.h"
#include "server/serve_stream.h"
#include "server/serve_submit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define HEADER_BYTES   ((size_t)16 << 10) /* memory of a connection */
#define STACK_BYTES    ((size_t)1 << 20)
#define BLOCK_BYTES    4096
#define IDLE_SECONDS   60u /* without a byte either way */
#define MOST_SWALLOWED ((uint64_t)1 << 20)
#define JSON           "application/json"
#define STREAM         "text/event-stream; charset=utf-8"
#define METRICS        "text/plain; version=0.0.4; charset=utf-8"
#define THE_END        "the server is shutting down and takes no more requests"

/* A connection, for as long as it exists. */
struct client {
    int descriptor;
    uint64_t since_ns; /* a request has been coming since then; 0 = none is awaited */
    struct client *next, **link;
};

struct serve_http {
    struct serve *server; /* borrowed */
    struct MHD_Daemon *daemon;
    uint16_t port;
    pthread_mutex_t lock; /* of clients */
    struct client *clients;
    atomic_size_t n_exchange;
};

enum action {
    SHOW_PAGE,
    SHOW_SCRIPT,
    SHOW_STYLE,
    SHOW_HEALTH,
    SHOW_MODELS,
    SHOW_TOKENIZER,
    SHOW_METRICS,
    ANSWER,
    CONVERT
};

static const struct route {
    const char *path;
    enum action action;
    bool is_post, is_open; /* is_open: without a key */
    enum serve_kind kind;
} routes[] = {
    {"/", SHOW_PAGE, false, true, SERVE_CHAT},
    {"/page.js", SHOW_SCRIPT, false, true, SERVE_CHAT},
    {"/page.css", SHOW_STYLE, false, true, SERVE_CHAT},
    {"/health", SHOW_HEALTH, false, true, SERVE_CHAT},
    {"/metrics", SHOW_METRICS, false, false, SERVE_CHAT},
    {"/v1/models", SHOW_MODELS, false, false, SERVE_CHAT},
    {"/tokenizer_info", SHOW_TOKENIZER, false, false, SERVE_CHAT},
    {"/v1/chat/completions", ANSWER, true, false, SERVE_CHAT},
    {"/v1/completions", ANSWER, true, false, SERVE_COMPLETION},
    {"/tokenize", CONVERT, true, false, SERVE_TOKENIZE},
    {"/detokenize", CONVERT, true, false, SERVE_DETOKENIZE},
};

/* A request, until its answer has been sent. */
struct exchange {
    struct serve *server;
    struct client *client;
    const struct route *route; /* NULL = none of the table */
    struct serve_problem problem;
    const char *allowed; /* methods, where another was used */
    char *body;
    size_t n_body, capacity, held_bytes;
    struct serve_job *job;
    unsigned status; /* that was answered */
    bool is_options;
    uint64_t begun_ns;
};

/* ---- answers ---- */

static const char *header(struct MHD_Connection *connection, const char *name)
{
    return MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
}

static enum MHD_Result queue(struct exchange *exchange, struct MHD_Connection *connection, unsigned status,
                             const char *type, struct MHD_Response *response)
{
    const char *origin = header(connection, "Origin");
    if (response == NULL)
        return MHD_NO;
    if (type != NULL)
        (void)MHD_add_response_header(response, "Content-Type", type);
    (void)MHD_add_response_header(response, "Cache-Control", "no-store");
    (void)MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (origin != NULL && serve_guard_names_origin(&exchange->server->options, origin)) {
        (void)MHD_add_response_header(response, "Access-Control-Allow-Origin", origin);
        (void)MHD_add_response_header(response, "Vary", "Origin");
    }
    exchange->status = status;
    const enum MHD_Result result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

/* The text is freed once it is sent. */
static enum MHD_Result answer_text(struct exchange *exchange, struct MHD_Connection *connection, char *text,
                                   const char *type)
{
    if (text == NULL)
        return MHD_NO;
    return queue(exchange, connection, MHD_HTTP_OK, type,
                 MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE));
}

static enum MHD_Result answer_problem(struct exchange *exchange, struct MHD_Connection *connection)
{
    const struct serve_problem *problem = &exchange->problem;
    char *text = serve_problem_text(problem);
    if (text == NULL)
        return MHD_NO;
    struct MHD_Response *response =
        MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE);
    if (response != NULL && problem->status == 401)
        (void)MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    if (response != NULL && (problem->status == 429 || problem->status == 503))
        (void)MHD_add_response_header(response, "Retry-After", "1");
    if (response != NULL && exchange->allowed != NULL)
        (void)MHD_add_response_header(response, "Allow", exchange->allowed);
    atomic_fetch_add(&exchange->server->metrics.refused, 1);
    return queue(exchange, connection, problem->status, JSON, response);
}

static enum MHD_Result answer_options(struct exchange *exchange, struct MHD_Connection *connection)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT);
    if (response == NULL)
        return MHD_NO;
    (void)MHD_add_response_header(response, "Access-Control-Allow-Methods", "GET, POST");
    (void)MHD_add_response_header(response, "Access-Control-Allow-Headers", "authorization, content-type");
    (void)MHD_add_response_header(response, "Access-Control-Max-Age", "600");
    return queue(exchange, connection, MHD_HTTP_NO_CONTENT, NULL, response);
}

static enum MHD_Result answer_page(struct exchange *exchange, struct MHD_Connection *connection,
                                   const char *text, const char *type)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(strlen(text), (void *)(uintptr_t)text, MHD_RESPMEM_PERSISTENT);
    if (response == NULL)
        return MHD_NO;
    (void)MHD_add_response_header(response, "Content-Security-Policy", SERVE_PAGE_POLICY);
    (void)MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
    return queue(exchange, connection, MHD_HTTP_OK, type, response);
}

/* ---- jobs ---- */

static void resume(struct serve_job *job)
{
    MHD_resume_connection(job->connection);
}

static void suspend(struct serve_job *job)
{
    MHD_suspend_connection(job->connection);
}

static ssize_t read_stream(void *context, uint64_t position, char *to, size_t n)
{
    struct serve_job *job = context;
    (void)position;
    const int64_t taken = serve_stream_take(job, to, n, suspend);
    return taken == -1   ? MHD_CONTENT_READER_END_OF_STREAM
           : taken == -2 ? MHD_CONTENT_READER_END_WITH_ERROR
                         : (ssize_t)taken;
}

static void free_stream(void *context)
{
    serve_job_let_go(context);
}

static enum MHD_Result answer_stream(struct exchange *exchange, struct MHD_Connection *connection)
{
    struct serve_job *job = exchange->job;
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_stream, job, free_stream);
    if (response == NULL)
        return MHD_NO;
    pthread_mutex_lock(&job->lock);
    job->n_users++;
    pthread_mutex_unlock(&job->lock);
    (void)MHD_add_response_header(response, "X-Accel-Buffering", "no");
    return queue(exchange, connection, MHD_HTTP_OK, STREAM, response);
}

/* Where the job is done its answer, else the connection waits for it. */
static enum MHD_Result answer_job(struct exchange *exchange, struct MHD_Connection *connection)
{
    struct serve_job *job = exchange->job;
    pthread_mutex_lock(&job->lock);
    const bool is_done = job->is_done;
    if (!is_done) {
        job->is_suspended = true;
        suspend(job);
    }
    pthread_mutex_unlock(&job->lock);
    if (!is_done)
        return MHD_YES;
    exchange->problem = job->problem;
    if (job->problem.status != 0)
        return answer_problem(exchange, connection);
    return answer_text(exchange, connection, serve_answer_whole(&exchange->server->options, job), JSON);
}

static enum MHD_Result answer_request(struct exchange *exchange, struct MHD_Connection *connection)
{
    struct serve *server = exchange->server;
    struct serve_job *job =
        serve_make_job(server, exchange->route->kind, exchange->body, exchange->n_body, &exchange->problem);
    if (job == NULL)
        return answer_problem(exchange, connection);
    job->connection = connection;
    job->socket = exchange->client->descriptor;
    job->wake = resume;
    if (!serve_compute_submit(&server->compute, job)) {
        if (atomic_load(&server->ends))
            (void)serve_refuse(&exchange->problem, 503, NULL, THE_END);
        else
            (void)serve_refuse(
                &exchange->problem, 429, NULL,
                "the request asks for %zu sequences, and the queue has no room for them: ask again later",
                job->n_sequence);
        serve_job_let_go(job);
        return answer_problem(exchange, connection);
    }
    atomic_fetch_add(&server->metrics.requests, 1);
    exchange->job = job;
    return job->request.is_stream ? answer_stream(exchange, connection) : answer_job(exchange, connection);
}

/* ---- requests ---- */

static enum MHD_Result dispatch(struct exchange *exchange, struct MHD_Connection *connection)
{
    struct serve *server = exchange->server;
    char *text = NULL;
    switch (exchange->route->action) {
    case SHOW_PAGE:
        return answer_page(exchange, connection, serve_page_html, "text/html; charset=utf-8");
    case SHOW_SCRIPT:
        return answer_page(exchange, connection, serve_page_script, "text/javascript; charset=utf-8");
    case SHOW_STYLE:
        return answer_page(exchange, connection, serve_page_style, "text/css; charset=utf-8");
    case SHOW_HEALTH:
        return answer_text(exchange, connection, strdup("{\"status\":\"ok\"}\n"), JSON);
    case SHOW_METRICS:
        return answer_text(exchange, connection, serve_metrics_text(&server->metrics, server->options.engine),
                           METRICS);
    case SHOW_MODELS:
        return answer_text(exchange, connection, serve_answer_models(&server->options), JSON);
    case SHOW_TOKENIZER:
        return answer_text(exchange, connection, serve_answer_tokenizer(&server->options), JSON);
    case ANSWER:
        return answer_request(exchange, connection);
    case CONVERT:
        text = serve_convert(server, exchange->route->kind, exchange->body, exchange->n_body,
                             &exchange->problem);
        return text != NULL ? answer_text(exchange, connection, text, JSON)
                            : answer_problem(exchange, connection);
    }
    return MHD_NO;
}

static const struct route *find_route(const char *path)
{
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
        if (strcmp(routes[i].path, path) == 0)
            return &routes[i];
    return NULL;
}

static enum MHD_Result count_length(void *context, enum MHD_ValueKind kind, const char *key,
                                    const char *value)
{
    unsigned *count = context;
    (void)kind;
    (void)value;
    *count += strcasecmp(key, "Content-Length") == 0 || strcasecmp(key, "Transfer-Encoding") == 0;
    return MHD_YES;
}

/* What a body says of its length; false for what contradicts itself or is too much. */
static bool check_body(struct exchange *exchange, struct MHD_Connection *connection)
{
    size_t limit = exchange->server->options.limits.body_bytes;
    const char *length = header(connection, "Content-Length");
    unsigned n_length = 0;
    (void)MHD_get_connection_values(connection, MHD_HEADER_KIND, count_length, &n_length);
    if (n_length > 1)
        return serve_refuse(&exchange->problem, 400, NULL,
                            "the request has more than one header that gives its length");
    if (!serve_guard_json(header(connection, "Content-Type")))
        return serve_refuse(&exchange->problem, 415, NULL,
                            "the request's Content-Type is not application/json");
    if (length != NULL && (strlen(length) > 18 || strtoull(length, NULL, 10) > limit))
        return serve_refuse(&exchange->problem, 413, NULL,
                            "the body has %.20s bytes, expected at most %zu: send less, or start the server "
                            "with a larger --ctx",
                            length, limit);
    if (length != NULL)
        limit = (size_t)strtoull(length, NULL, 10);
    if (!serve_take_room(exchange->server, limit, &exchange->problem))
        return false;
    exchange->held_bytes = limit;
    return true;
}

static bool check_guards(struct exchange *exchange, struct MHD_Connection *connection)
{
    const struct serve_options *options = &exchange->server->options;
    const char *host = header(connection, "Host"), *origin = header(connection, "Origin");
    if (!serve_guard_host(options, host))
        return serve_refuse(&exchange->problem, 403, NULL,
                            "the request is for another host: reach the server by an IP address or as "
                            "localhost, or start it with --name");
    if (origin != NULL && !serve_guard_origin(options, origin, host))
        return serve_refuse(
            &exchange->problem, 403, NULL,
            "the request comes from a web page of another origin: start the server with --origin to allow "
            "that origin");
    if (exchange->is_options)
        return origin != NULL && serve_guard_names_origin(options, origin)
                   ? true
                   : serve_refuse(
                         &exchange->problem, 403, NULL,
                         "the origin of this request is not allowed: start the server with --origin to "
                         "allow it");
    if ((exchange->route == NULL || !exchange->route->is_open) &&
        !serve_guard_key(options, header(connection, "Authorization")))
        return serve_refuse(&exchange->problem, 401, NULL,
                            "the key is missing or wrong: send 'Authorization: Bearer KEY'");
    return true;
}

static bool check_request(struct exchange *exchange, struct MHD_Connection *connection, const char *method)
{
    if (!check_guards(exchange, connection) || exchange->is_options)
        return exchange->problem.status == 0;
    if (exchange->route == NULL)
        return serve_refuse(&exchange->problem, 404, NULL, "there is no such path: see docs/serve.md");
    const bool is_post = strcmp(method, "POST") == 0;
    if (is_post != exchange->route->is_post || (!is_post && strcmp(method, "GET") != 0)) {
        exchange->allowed = exchange->route->is_post ? "POST" : "GET";
        return serve_refuse(&exchange->problem, 405, NULL, "'%s' takes only %s requests",
                            exchange->route->path, exchange->allowed);
    }
    if (is_post && atomic_load(&exchange->server->ends))
        return serve_refuse(&exchange->problem, 503, NULL, THE_END);
    return !is_post || check_body(exchange, connection);
}

static struct client *client_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info != NULL ? info->socket_context : NULL;
}

/* The headers are there. A refusal waits for a body that is about to come, so that its client reads it; a large
 * one is not waited for. */
static enum MHD_Result begin(struct serve *server, struct MHD_Connection *connection, const char *path,
                             const char *method, void **context)
{
    struct exchange *exchange = calloc(1, sizeof *exchange);
    if (exchange == NULL)
        return MHD_NO;
    *context = exchange;
    exchange->server = server;
    exchange->client = client_of(connection);
    exchange->route = find_route(path);
    exchange->is_options = strcmp(method, "OPTIONS") == 0;
    exchange->begun_ns = moec_now_ns();
    atomic_fetch_add(&server->http->n_exchange, 1);
    if (exchange->client == NULL)
        return MHD_NO;
    if (check_request(exchange, connection, method))
        return MHD_YES;
    const char *length = header(connection, "Content-Length");
    const bool is_small =
        length == NULL || (strlen(length) < 18 && strtoull(length, NULL, 10) <= MOST_SWALLOWED);
    return is_small && header(connection, "Expect") == NULL ? MHD_YES : answer_problem(exchange, connection);
}

static void collect(struct exchange *exchange, const char *data, size_t n)
{
    if (exchange->problem.status != 0 || exchange->route == NULL || !exchange->route->is_post) {
        exchange->n_body += n; /* swallowed */
        return;
    }
    if (n > exchange->held_bytes - exchange->n_body) {
        (void)serve_refuse(&exchange->problem, 413, NULL, "the body has more than %zu bytes: send less",
                           exchange->held_bytes);
        return;
    }
    if (moec_grow((void **)&exchange->body, &exchange->capacity, exchange->n_body + n, 1, "a body", NULL) !=
        MOEC_OK) {
        (void)serve_refuse(&exchange->problem, 500, NULL, "the server has no memory for the request's body");
        return;
    }
    memcpy(exchange->body + exchange->n_body, data, n);
    exchange->n_body += n;
}

static void await_request(struct serve_http *http, struct client *client, bool awaits)
{
    pthread_mutex_lock(&http->lock);
    client->since_ns = awaits ? moec_now_ns() : 0;
    pthread_mutex_unlock(&http->lock);
}

static enum MHD_Result handle(void *context, struct MHD_Connection *connection, const char *path,
                              const char *method, const char *version, const char *data, size_t *n_data,
                              void **request)
{
    struct serve *server = context;
    struct exchange *exchange = *request;
    (void)version;
    if (exchange == NULL)
        return begin(server, connection, path, method, request);
    if (*n_data > 0) {
        collect(exchange, data, *n_data);
        *n_data = 0;
        return exchange->problem.status != 0 && exchange->n_body > MOST_SWALLOWED ? MHD_NO : MHD_YES;
    }
    if (exchange->job != NULL)
        return answer_job(exchange, connection);
    await_request(server->http, exchange->client, false);
    if (exchange->problem.status != 0)
        return answer_problem(exchange, connection);
    return exchange->is_options ? answer_options(exchange, connection) : dispatch(exchange, connection);
}

/* Method, path and counts alone: nothing of what was asked. */
static void log_exchange(const struct exchange *exchange)
{
    const struct serve_options *options = &exchange->server->options;
    const struct serve_job *job = exchange->job;
    char line[200];
    uint64_t n_prompt = 0, n_generated = 0;
    if (options->log == NULL)
        return;
    for (size_t i = 0; job != NULL && job->is_done && i < job->n_sequence; i++) {
        n_prompt += job->sequences[i].n_prompt;
        n_generated += job->sequences[i].n_generated;
    }
    const bool is_cut = job != NULL && (!job->is_done || job->is_cut);
    (void)snprintf(line, sizeof line, "%s %s %u %.3f s, %" PRIu64 " tokens read, %" PRIu64 " generated%s",
                   exchange->route == NULL    ? "-"
                   : exchange->route->is_post ? "POST"
                                              : "GET",
                   exchange->route != NULL ? exchange->route->path : "-", exchange->status,
                   (double)(moec_now_ns() - exchange->begun_ns) / 1e9, n_prompt, n_generated,
                   is_cut ? ", cut" : "");
    options->log(options->log_context, line);
}

static void complete(void *context, struct MHD_Connection *connection, void **request,
                     enum MHD_RequestTerminationCode how)
{
    struct serve *server = context;
    struct exchange *exchange = *request;
    (void)connection;
    (void)how;
    if (exchange == NULL)
        return;
    struct serve_job *job = exchange->job;
    if (job != NULL) {
        pthread_mutex_lock(&job->lock);
        job->connection = NULL;
        job->socket = -1;
        if (!job->is_done)
            job->is_cancelled = true;
        log_exchange(exchange);
        pthread_mutex_unlock(&job->lock);
        serve_compute_wake(&server->compute);
        serve_job_let_go(job);
    } else {
        log_exchange(exchange);
    }
    if (exchange->client != NULL)
        await_request(server->http, exchange->client, true);
    atomic_fetch_sub(&server->held, exchange->held_bytes);
    atomic_fetch_sub(&server->http->n_exchange, 1);
    free(exchange->body);
    free(exchange);
    *request = NULL;
}

/* ---- connections ---- */

static void notify(void *context, struct MHD_Connection *connection, void **socket_context,
                   enum MHD_ConnectionNotificationCode code)
{
    struct serve_http *http = context;
    pthread_mutex_lock(&http->lock);
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        struct client *client = info != NULL ? calloc(1, sizeof *client) : NULL;
        if (client != NULL) {
            *client = (struct client){.descriptor = info->connect_fd,
                                      .since_ns = moec_now_ns(),
                                      .next = http->clients,
                                      .link = &http->clients};
            if (client->next != NULL)
                client->next->link = &client->next;
            http->clients = client;
        }
        *socket_context = client;
    } else if (*socket_context != NULL) {
        struct client *client = *socket_context;
        *client->link = client->next;
        if (client->next != NULL)
            client->next->link = client->link;
        free(client);
        *socket_context = NULL;
    }
    pthread_mutex_unlock(&http->lock);
}

void serve_http_tick(struct serve_http *http)
{
    const uint64_t limit_ns = (uint64_t)(http->server->options.request_seconds * 1e9), now_ns = moec_now_ns();
    pthread_mutex_lock(&http->lock);
    for (struct client *client = http->clients; client != NULL; client = client->next) {
        if (client->since_ns == 0 || now_ns < client->since_ns || now_ns - client->since_ns < limit_ns)
            continue;
        client->since_ns = 0;
        (void)shutdown(client->descriptor, SHUT_RDWR);
    }
    pthread_mutex_unlock(&http->lock);
}

/* ---- the daemon ---- */

static struct MHD_Daemon *listen_at(struct serve *server, struct serve_http *http, bool is_six,
                                    const struct sockaddr *address)
{
    const struct serve_options *options = &server->options;
    const unsigned n_connections = options->n_connections;
    const unsigned flags =
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | (is_six ? (unsigned)MHD_USE_IPv6 : 0u);
    return MHD_start_daemon(flags, options->port, NULL, NULL, handle, server, MHD_OPTION_SOCK_ADDR, address,
                            MHD_OPTION_CONNECTION_LIMIT, n_connections, MHD_OPTION_PER_IP_CONNECTION_LIMIT,
                            n_connections > 1 ? n_connections / 2 : 1u, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                            HEADER_BYTES, MHD_OPTION_CONNECTION_TIMEOUT, IDLE_SECONDS,
                            MHD_OPTION_THREAD_STACK_SIZE, STACK_BYTES, MHD_OPTION_LISTENING_ADDRESS_REUSE, 1u,
                            MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1,
                            MHD_OPTION_NOTIFY_COMPLETED, complete, server, MHD_OPTION_NOTIFY_CONNECTION,
                            notify, http, MHD_OPTION_END);
}

static struct MHD_Daemon *open_daemon(struct serve *server, struct serve_http *http)
{
    const struct serve_options *options = &server->options;
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(options->port)};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(options->port)};
    if (inet_pton(AF_INET, options->address, &four.sin_addr) == 1)
        return listen_at(server, http, false, (const struct sockaddr *)(const void *)&four);
    if (inet_pton(AF_INET6, options->address, &six.sin6_addr) == 1)
        return listen_at(server, http, true, (const struct sockaddr *)(const void *)&six);
    errno = EINVAL;
    return NULL;
}

enum moec_status serve_http_start(struct serve *server, struct serve_http **out, struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, 1, sizeof(struct serve_http), "a server", err));
    struct serve_http *http = memory;
    http->server = server;
    pthread_mutex_init(&http->lock, NULL);
    server->http = http; /* requests may come before the daemon is known here */
    http->daemon = open_daemon(server, http);
    if (http->daemon == NULL) {
        const int reason = errno;
        server->http = NULL;
        pthread_mutex_destroy(&http->lock);
        free(http);
        return moec_fail(err, MOEC_ERR_IO, "cannot listen on %s port %u: %s", server->options.address,
                         server->options.port, strerror(reason));
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_BIND_PORT);
    http->port = info != NULL ? info->port : server->options.port;
    *out = http;
    return MOEC_OK;
}

uint16_t serve_http_port(const struct serve_http *http)
{
    return http->port;
}

void serve_http_quiesce(struct serve_http *http)
{
    const MHD_socket listener = MHD_quiesce_daemon(http->daemon);
    if (listener != MHD_INVALID_SOCKET)
        (void)close(listener);
}

size_t serve_http_count(struct serve_http *http)
{
    return atomic_load(&http->n_exchange);
}

void serve_http_stop(struct serve_http *http)
{
    if (http == NULL)
        return;
    MHD_stop_daemon(http->daemon);
    pthread_mutex_destroy(&http->lock);
    free(http);
}

const char *serve_http_version(void)
{
    return MHD_get_version();
}
