/* A worker closes its copies of other workers' sockets: only so does each see the end of the bench. It leaves
 * by _exit, for buffers and exit handlers are the bench's. The bench waits in short polls, so that it can be
 * stopped. A frame that has begun must end within a minute, or the worker is killed. What it sends is checked
 * for kind and size before it is read. */
#include "profiler/bench/bench_worker.h"

#include "formats/base/clock.h"
#include "formats/base/memory.h"
#include "formats/base/pipe.h"
#include "profiler/bench/energy.h"
#include "runtime/engine/memory_plan.h"
#include "runtime/moert.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define POLL_MS         100
#define FRAME_LIMIT_MS  60000 /* for the rest of a frame that has begun */
#define FINISH_LIMIT_MS 20000 /* for closing an engine */

enum frame_kind { FRAME_OPENED = 'O', FRAME_SAMPLE = 'S', FRAME_FAILED = 'F', FRAME_RUN = 'R' };

/* ---- the worker's side ---- */

struct server {
    const struct moec_bench_worker_setup *setup;
    int socket;
    struct moert_engine *engine;
    struct moert_session *session;
    float *logits; /* owned: (n_vocab) */
    uint32_t n_vocab;
    uint8_t *answer; /* owned: a sample and its tokens */
    struct moec_energy energy;
};

/* libmoert has a message type of its own; its statuses are the same numbers. */
static enum moec_status from_runtime(enum moert_status status, const struct moert_error *theirs,
                                     struct moec_error *err)
{
    return status == MOERT_OK ? MOEC_OK : moec_fail(err, (enum moec_status)status, "%s", theirs->message);
}

static void describe(const struct server *server, struct moec_bench_opened *opened)
{
    struct moert_info info = moert_engine_info(server->engine);
    opened->n_threads = info.compute.n_threads;
    opened->prefill_tokens = info.compute.prefill_tokens;
    opened->copy = info.experts.copy;
    opened->base_bytes = info.memory.base_bytes;
    opened->dense_bytes = info.memory.dense_bytes;
    opened->kv_bytes = info.memory.kv_bytes;
    opened->scratch_bytes = info.memory.scratch_bytes;
    opened->expert_buffer_bytes = info.memory.expert_buffer_bytes;
    opened->expert_total_bytes = info.buffer.all_bytes;
    opened->working_set_bytes = info.buffer.working_set_bytes;
    opened->logical_cache_bytes = info.buffer.logical_cache_bytes;
    opened->logical_passing_bytes = info.buffer.logical_passing_bytes;
    opened->keeps_logical_cache = info.buffer.keeps_logical_cache;
    (void)snprintf(opened->cpu, sizeof opened->cpu, "%s", info.compute.cpu);
    (void)snprintf(opened->arithmetic, sizeof opened->arithmetic, "%s", info.compute.arithmetic);
    (void)snprintf(opened->kv, sizeof opened->kv, "%s", info.compute.kv);
    (void)snprintf(opened->evict, sizeof opened->evict, "%s", info.experts.evict);
    (void)snprintf(opened->predict, sizeof opened->predict, "%s", info.experts.predict);
    (void)snprintf(opened->reader, sizeof opened->reader, "%s", info.storage.io);
    (void)snprintf(opened->device, sizeof opened->device, "%s",
                   info.device.name != NULL ? info.device.name : "");
    opened->vram_bytes = info.device.vram_bytes;
    opened->vram_pool_bytes = info.device.vram_pool_bytes;
    const struct moert_decisions tuned = moert_engine_tuned(server->engine);
    const bool is_planned = moert_engine_neurons(server->engine).is_planned;
    char text[MOERT_DECISIONS_TEXT_BYTES];
    moert_decisions_text(&tuned, text);
    (void)snprintf(opened->tuned, sizeof opened->tuned, "%s%s%s", text,
                   is_planned && text[0] != '\0' ? ", " : "", is_planned ? "planned sparsity" : "");
    if (!moert_engine_warning(server->engine, opened->warning, sizeof opened->warning))
        opened->warning[0] = '\0';
}

static enum moec_status open_engine(struct server *server, struct moec_bench_opened *opened,
                                    struct moec_error *err)
{
    const struct moec_bench_worker_setup *setup = server->setup;
    const struct moec_bench_tokens *tokens = setup->tokens;
    const uint64_t begin_ns = moec_now_ns();
    struct moert_options options = setup->engine;
    options.sessions.n_context = tokens->prompt_tokens + tokens->n_tokens;
    struct moert_error theirs = {0};
    MOEC_TRY(from_runtime(moert_engine_open(setup->path, &options, &server->engine, &theirs), &theirs, err));
    moert_engine_warm(server->engine);
    MOEC_TRY(from_runtime(moert_session_create(server->engine, &server->session, &theirs), &theirs, err));
    describe(server, opened);
    opened->open_seconds = (double)(moec_now_ns() - begin_ns) * 1e-9;
    server->n_vocab = moert_engine_info(server->engine).model.n_vocab;
    const uint64_t n_answer =
        sizeof(struct moec_bench_sample) + (uint64_t)tokens->n_tokens * sizeof(struct moec_bench_token);
    MOEC_TRY(moec_alloc((void **)&server->answer, n_answer, 1, "times of tokens", err));
    return moec_alloc((void **)&server->logits, server->n_vocab, sizeof(float), "logits", err);
}

static struct moec_bench_counters count(const struct server *server)
{
    struct moert_stats stats = moert_engine_stats(server->engine);
    struct moert_pool_stats pool = moert_engine_pool_stats(server->engine);
    struct moert_decided decided = moert_session_decided(server->session);
    return (struct moec_bench_counters){
        .hits = stats.hits,
        .late = stats.late,
        .misses = stats.misses,
        .read_bytes = stats.read_bytes,
        .useful_preloads = stats.useful_preloads,
        .wasted_preloads = stats.wasted_preloads,
        .stall_ns = stats.stall_ns,
        .compute_ns = stats.compute_ns,
        .n_taken = decided.n_taken,
        .n_decided_miss = decided.n_missed,
        .n_low = decided.n_low,
        .n_skipped = decided.n_skipped,
        .pool_hits = pool.hits,
        .pool_late = pool.late,
        .pool_misses = pool.misses,
        .copied_bytes = pool.copied_bytes,
        .record_bytes = pool.record_bytes,
    };
}

static struct moec_bench_counters subtract(struct moec_bench_counters end, struct moec_bench_counters begin)
{
    return (struct moec_bench_counters){
        .hits = end.hits - begin.hits,
        .late = end.late - begin.late,
        .misses = end.misses - begin.misses,
        .useful_preloads = end.useful_preloads - begin.useful_preloads,
        /* One that is present counts as wasted until it is asked for: then the count falls. */
        .wasted_preloads =
            end.wasted_preloads > begin.wasted_preloads ? end.wasted_preloads - begin.wasted_preloads : 0,
        .read_bytes = end.read_bytes - begin.read_bytes,
        .stall_ns = end.stall_ns - begin.stall_ns,
        .compute_ns = end.compute_ns - begin.compute_ns,
        .n_taken = end.n_taken - begin.n_taken,
        .n_decided_miss = end.n_decided_miss - begin.n_decided_miss,
        .n_low = end.n_low - begin.n_low,
        .n_skipped = end.n_skipped - begin.n_skipped,
        .pool_hits = end.pool_hits - begin.pool_hits,
        .pool_late = end.pool_late - begin.pool_late,
        .pool_misses = end.pool_misses - begin.pool_misses,
        .copied_bytes = end.copied_bytes - begin.copied_bytes,
        .record_bytes = end.record_bytes - begin.record_bytes,
    };
}

/* The prompt, or the source and the token that every target begins with. */
static enum moert_status read_prompt(struct server *server, const uint32_t *ids, struct moert_error *err)
{
    const uint32_t n = server->setup->tokens->prompt_tokens;
    const struct moert_info info = moert_engine_info(server->engine);
    moert_session_set_prompt(server->session, info.layers.n_encoder == 0 ? n : 0);
    if (info.layers.n_encoder == 0)
        return moert_session_step(server->session, ids, n, server->logits, err);
    const enum moert_status status = moert_session_encode(server->session, ids, n, err);
    if (status != MOERT_OK)
        return status;
    return moert_session_step(server->session, &info.model.decoder_start_id, 1, server->logits, err);
}

/* The prompt, then one token after the other, each with the choice that a user would wait for. */
static enum moec_status compute(struct server *server, uint32_t sample, struct moec_bench_sample *out,
                                struct moec_bench_token *decoded, struct moec_error *err)
{
    const struct moec_bench_tokens *tokens = server->setup->tokens;
    const uint32_t *ids = tokens->tokens + (uint64_t)sample * (tokens->prompt_tokens + tokens->n_tokens);
    const size_t logits_bytes = server->n_vocab * sizeof *server->logits;
    struct moert_sampler greedy = moert_sampler_greedy();
    struct moert_error theirs = {0};
    moert_session_truncate(server->session, 0);
    const struct moec_bench_counters at_start = count(server);
    uint64_t begin_ns = moec_now_ns();
    MOEC_TRY(from_runtime(read_prompt(server, ids, &theirs), &theirs, err));
    (void)moert_sampler_next(&greedy, server->logits, server->n_vocab);
    out->prefill_ns = moec_now_ns() - begin_ns;
    out->logits_crc = moec_crc32c(0, server->logits, logits_bytes);
    const struct moec_bench_counters at_decode = count(server);
    out->prefill = subtract(at_decode, at_start);
    (void)moec_energy_take(&server->energy);
    uint64_t read_bytes = at_decode.read_bytes;
    for (uint32_t i = 0; i < tokens->n_tokens; i++) {
        begin_ns = moec_now_ns();
        MOEC_TRY(from_runtime(
            moert_session_step(server->session, &ids[tokens->prompt_tokens + i], 1, server->logits, &theirs),
            &theirs, err));
        (void)moert_sampler_next(&greedy, server->logits, server->n_vocab);
        decoded[i].ns = moec_now_ns() - begin_ns;
        const uint64_t so_far_bytes = moert_engine_stats(server->engine).read_bytes;
        decoded[i].read_bytes = so_far_bytes - read_bytes;
        read_bytes = so_far_bytes;
        out->logits_crc = moec_crc32c(out->logits_crc, server->logits, logits_bytes);
    }
    out->decode_joules = moec_energy_take(&server->energy);
    out->decode = subtract(count(server), at_decode);
    return moec_memory_peak_bytes(&out->peak_bytes, err);
}

static enum moec_status answer_runs(struct server *server, struct moec_error *err)
{
    const struct moec_bench_tokens *tokens = server->setup->tokens;
    for (;;) {
        uint8_t kind = 0;
        uint32_t n = 0, sample = 0;
        if (moec_pipe_read_head(server->socket, &kind, &n, -1) != MOEC_PIPE_OK || kind != FRAME_RUN ||
            n != sizeof sample || moec_pipe_read(server->socket, &sample, sizeof sample, -1) != MOEC_PIPE_OK)
            return MOEC_OK; /* the bench is gone or has enough */
        struct moec_bench_sample *answer = (struct moec_bench_sample *)server->answer;
        *answer = (struct moec_bench_sample){0};
        MOEC_TRY(compute(server, sample, answer, (struct moec_bench_token *)(answer + 1), err));
        if (!moec_pipe_send(server->socket, FRAME_SAMPLE, answer,
                            sizeof *answer + tokens->n_tokens * sizeof(struct moec_bench_token)))
            return MOEC_OK;
    }
}

/* Ctrl-C reaches the whole process group; the bench decides what ends. */
static void prepare_signals(pid_t bench)
{
    (void)signal(SIGINT, SIG_IGN);
    (void)signal(SIGTERM, SIG_DFL);
    (void)signal(SIGHUP, SIG_DFL);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != bench)
        _exit(1);
}

/* What the engine writes appears at its end, if it can be written. */
static enum moec_status end_engine(struct server *server, struct moec_error *err)
{
    struct moert_error theirs = {0};
    const enum moert_status status = moert_engine_end(server->engine, &theirs);
    return err->status == MOEC_OK ? from_runtime(status, &theirs, err) : MOEC_OK;
}

static _Noreturn void serve(const struct moec_bench_worker_setup *setup, int socket)
{
    struct server server = {.setup = setup, .socket = socket};
    struct moec_bench_opened opened = {0};
    struct moec_error err = {0};
    enum moec_status status = open_engine(&server, &opened, &err);
    moec_energy_open(&server.energy, MOEC_ENERGY_FOLDER);
    if (status == MOEC_OK && moec_pipe_send(socket, FRAME_OPENED, &opened, sizeof opened))
        status = answer_runs(&server, &err);
    if (status != MOEC_OK)
        (void)moec_pipe_send(socket, FRAME_FAILED, &err, sizeof err);
    moec_energy_close(&server.energy);
    moert_session_free(server.session);
    const enum moec_status ended = end_engine(&server, &err);
    if (status == MOEC_OK && ended != MOEC_OK)
        (void)moec_pipe_send(socket, FRAME_FAILED, &err, sizeof err);
    status = status != MOEC_OK ? status : ended;
    free(server.logits);
    free(server.answer);
    _exit(status == MOEC_OK ? 0 : 1); /* exit handlers and buffers are the bench's */
}

/* ---- the bench's side ---- */

enum moec_status moec_bench_worker_start(const struct moec_bench_worker_setup *setup,
                                         const struct moec_bench_worker *others, uint32_t n_others,
                                         struct moec_bench_worker *worker, struct moec_error *err)
{
    int sockets[2];
    *worker = (struct moec_bench_worker){.socket = -1};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0)
        return moec_fail(err, MOEC_ERR_IO, "cannot start a worker: %s", strerror(errno));
    const pid_t bench = getpid();
    pid_t child = fork();
    if (child < 0) {
        (void)close(sockets[0]);
        (void)close(sockets[1]);
        return moec_fail(err, MOEC_ERR_IO, "cannot start a worker: %s", strerror(errno));
    }
    if (child == 0) {
        prepare_signals(bench);
        (void)close(sockets[0]);
        for (uint32_t i = 0; i < n_others; i++)
            if (others[i].socket >= 0)
                (void)close(others[i].socket);
        serve(setup, sockets[1]);
    }
    (void)close(sockets[1]);
    *worker = (struct moec_bench_worker){.pid = child, .socket = sockets[0]};
    return MOEC_OK;
}

static int reap(struct moec_bench_worker *worker)
{
    int status = 0;
    while (waitpid(worker->pid, &status, 0) < 0 && errno == EINTR)
        continue;
    worker->pid = 0;
    (void)close(worker->socket);
    worker->socket = -1;
    return status;
}

void moec_bench_worker_end(struct moec_bench_worker *worker)
{
    if (worker == NULL || worker->pid == 0)
        return;
    (void)kill(worker->pid, SIGKILL);
    (void)reap(worker);
}

/* What ended a worker that closed its socket without a last word. */
static enum moec_status explain_death(struct moec_bench_worker *worker, struct moec_error *err)
{
    const pid_t pid = worker->pid;
    const int status = reap(worker);
    if (WIFSIGNALED(status))
        return moec_fail(err, MOEC_ERR_IO, "the bench's worker process %d was ended by signal %d (%s)%s",
                         (int)pid, WTERMSIG(status), strsignal(WTERMSIG(status)),
                         WTERMSIG(status) == SIGKILL ? "; the row may have run out of memory" : "");
    return moec_fail(err, MOEC_ERR_IO, "the bench's worker process %d ended with status %d without an answer",
                     (int)pid, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

static enum moec_status await(struct moec_bench_worker *worker, const struct moec_bench_wait *wait,
                              struct moec_error *err)
{
    for (;;) {
        struct pollfd ready = {.fd = worker->socket, .events = POLLIN};
        int n = poll(&ready, 1, POLL_MS);
        if (n > 0)
            return MOEC_OK;
        if (n < 0 && errno != EINTR)
            return moec_fail(err, MOEC_ERR_IO, "cannot wait for a worker: %s", strerror(errno));
        if (wait != NULL && wait->poll != NULL)
            MOEC_TRY(wait->poll(wait->context, err));
    }
}

/* Receives a frame of `kind` with a payload of exactly these two parts, or the worker's message. */
static enum moec_status receive(struct moec_bench_worker *worker, const struct moec_bench_wait *wait,
                                enum frame_kind kind, const struct iovec payload[static 2],
                                struct moec_error *err)
{
    const size_t n_payload = payload[0].iov_len + payload[1].iov_len;
    uint8_t got = 0;
    uint32_t n = 0;
    struct moec_error theirs = {0};
    if (worker->pid == 0)
        return moec_fail(err, MOEC_ERR_IO, "the worker process has already ended");
    MOEC_TRY(await(worker, wait, err));
    const int64_t deadline = moec_pipe_now_ms() + FRAME_LIMIT_MS;
    enum moec_pipe_outcome outcome = moec_pipe_read_head(worker->socket, &got, &n, deadline);
    if (outcome == MOEC_PIPE_OK && got == kind && n == n_payload) {
        outcome = moec_pipe_read(worker->socket, payload[0].iov_base, payload[0].iov_len, deadline);
        if (outcome == MOEC_PIPE_OK)
            outcome = moec_pipe_read(worker->socket, payload[1].iov_base, payload[1].iov_len, deadline);
        if (outcome == MOEC_PIPE_OK)
            return MOEC_OK;
    } else if (outcome == MOEC_PIPE_OK && got == FRAME_FAILED && n == sizeof theirs) {
        outcome = moec_pipe_read(worker->socket, &theirs, sizeof theirs, deadline);
        theirs.message[sizeof theirs.message - 1] = '\0';
        if (outcome == MOEC_PIPE_OK && theirs.status != MOEC_OK) {
            moec_bench_worker_end(worker);
            return moec_fail(err, theirs.status, "%s", theirs.message);
        }
    } else if (outcome == MOEC_PIPE_OK) {
        moec_bench_worker_end(worker);
        return moec_fail(err, MOEC_ERR_IO,
                         "the bench's worker process sent a message of kind %u with %u bytes, expected "
                         "%zu bytes",
                         got, n, n_payload);
    }
    if (outcome == MOEC_PIPE_LATE) {
        moec_bench_worker_end(worker);
        return moec_fail(err, MOEC_ERR_IO,
                         "the bench's own worker process stopped in the middle of an answer");
    }
    return explain_death(worker, err);
}

enum moec_status moec_bench_worker_opened(struct moec_bench_worker *worker,
                                          const struct moec_bench_wait *wait,
                                          struct moec_bench_opened *opened, struct moec_error *err)
{
    const struct iovec payload[2] = {{opened, sizeof *opened}};
    return receive(worker, wait, FRAME_OPENED, payload, err);
}

enum moec_status moec_bench_worker_run(struct moec_bench_worker *worker, uint32_t sample,
                                       const struct moec_bench_wait *wait, struct moec_bench_sample *out,
                                       const struct moec_bench_decoded *decoded, struct moec_error *err)
{
    /* A worker that is gone shows at the answer, with its reason. */
    if (worker->pid != 0)
        (void)moec_pipe_send(worker->socket, FRAME_RUN, &sample, sizeof sample);
    const struct iovec payload[2] = {{out, sizeof *out},
                                     {decoded->tokens, decoded->n_tokens * sizeof *decoded->tokens}};
    return receive(worker, wait, FRAME_SAMPLE, payload, err);
}

enum moec_status moec_bench_worker_finish(struct moec_bench_worker *worker, struct moec_error *err)
{
    uint8_t kind = 0;
    uint32_t n = 0;
    struct moec_error theirs = {0};
    if (worker == NULL || worker->pid == 0)
        return MOEC_OK;
    const int64_t deadline = moec_pipe_now_ms() + FINISH_LIMIT_MS;
    enum moec_pipe_outcome outcome = MOEC_PIPE_LATE;
    if (shutdown(worker->socket, SHUT_WR) == 0)
        outcome = moec_pipe_read_head(worker->socket, &kind, &n, deadline);
    if (outcome == MOEC_PIPE_CLOSED && reap(worker) == 0)
        return MOEC_OK;
    if (outcome == MOEC_PIPE_OK && kind == FRAME_FAILED && n == sizeof theirs &&
        moec_pipe_read(worker->socket, &theirs, sizeof theirs, deadline) == MOEC_PIPE_OK &&
        theirs.status != MOEC_OK) {
        theirs.message[sizeof theirs.message - 1] = '\0';
        (void)moec_fail(err, theirs.status, "%s", theirs.message);
    } else {
        (void)moec_fail(err, MOEC_ERR_IO,
                        "the bench's worker process was stopped because it did not close its engine "
                        "within %d s",
                        FINISH_LIMIT_MS / 1000);
    }
    moec_bench_worker_end(worker);
    return err->status;
}
