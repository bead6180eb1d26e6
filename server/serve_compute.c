/* A turn takes new jobs, ends those that are over and gives out idle sessions. Then it reads one chunk of
 * the oldest prompt and steps all that generate. Of idle sessions the longest common prefix wins. A prefix
 * of up to SHORT_PREFIX tokens does not: the least recently used is taken then, so that a longer text stays.
 * Where another session has a longer prefix, at work or not, it is copied. Choices of a prompt wait for the
 * first, and copy what it has read. */
#include "server/serve_compute.h"

#include "formats/base/clock.h"
#include "formats/base/memory.h"
#include "server/serve_sequence.h"
#include "server/serve_stream.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

/* A session that begins with no more of a prompt than this is not worth losing what else it holds. */
#define SHORT_PREFIX 8u

/* ---- jobs ---- */

/* Whether the client has closed its end: a connection that waits is not looked at by anybody else. */
static bool is_gone(int descriptor)
{
    struct pollfd poll_for = {.fd = descriptor, .events = POLLRDHUP};
    return poll(&poll_for, 1, 0) > 0 && (poll_for.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

static bool is_cancelled(struct serve_job *job)
{
    pthread_mutex_lock(&job->lock);
    if (job->socket >= 0 && is_gone(job->socket))
        job->is_cancelled = true;
    const bool is_over = job->is_cancelled;
    pthread_mutex_unlock(&job->lock);
    return is_over;
}

/* What came in since. Waits where nothing is to do. False: the end. */
static bool take_jobs(struct serve_compute *compute)
{
    pthread_mutex_lock(&compute->lock);
    while (!compute->ends && compute->incoming == NULL && compute->jobs == NULL)
        pthread_cond_wait(&compute->change, &compute->lock);
    if (compute->incoming != NULL) {
        *compute->jobs_end = compute->incoming;
        compute->jobs_end = compute->incoming_end;
        compute->incoming = NULL;
        compute->incoming_end = &compute->incoming;
    }
    const bool goes_on = compute->jobs != NULL || !compute->ends;
    pthread_mutex_unlock(&compute->lock);
    return goes_on;
}

static void leave_slot(struct serve_compute *compute, struct serve_sequence *sequence)
{
    if (sequence->slot == NULL)
        return;
    sequence->slot->sequence = NULL;
    sequence->slot = NULL;
    atomic_fetch_sub(&compute->metrics->n_running, 1);
}

/* Sequences that ended no longer need their session; those of a job that failed or was cancelled end here. */
static void settle(struct serve_compute *compute, struct serve_job *job, bool is_over)
{
    for (size_t i = 0; i < job->n_sequence; i++) {
        struct serve_sequence *sequence = &job->sequences[i];
        if (is_over && sequence->state == SERVE_WAITING)
            atomic_fetch_sub(&compute->metrics->n_waiting, 1);
        if (is_over && sequence->state != SERVE_DONE)
            serve_sequence_release(sequence);
        if (sequence->state == SERVE_DONE)
            leave_slot(compute, sequence);
    }
}

static size_t count_done(const struct serve_job *job)
{
    size_t n = 0;
    for (size_t i = 0; i < job->n_sequence; i++)
        n += job->sequences[i].state == SERVE_DONE;
    return n;
}

/* Takes jobs that are over off the list and tells who waits for them. */
static void end_jobs(struct serve_compute *compute)
{
    struct serve_job **link = &compute->jobs;
    while (*link != NULL) {
        struct serve_job *job = *link;
        const bool is_over = job->problem.status != 0 || is_cancelled(job);
        if (is_over) /* whoever still listens is told */
            (void)serve_refuse(&job->problem, 503, NULL,
                               "the request was cancelled, because the server is shutting down");
        settle(compute, job, is_over);
        if (count_done(job) < job->n_sequence) {
            link = &job->next;
            continue;
        }
        pthread_mutex_lock(&compute->lock);
        *link = job->next;
        if (compute->jobs_end == &job->next)
            compute->jobs_end = link;
        compute->n_jobs--;
        pthread_mutex_unlock(&compute->lock);
        if (job->problem.status != 0)
            atomic_fetch_add(
                job->problem.status == 503 ? &compute->metrics->cancelled : &compute->metrics->failed, 1);
        serve_stream_end(compute->options, job);
        serve_job_let_go(job);
    }
}

/* ---- sessions ---- */

static uint32_t common_prefix(const struct serve_slot *slot, const struct serve_sequence *sequence)
{
    uint32_t n = 0;
    while (n < slot->n_tokens && n + 1 < sequence->n_prompt && slot->tokens[n] == sequence->prompt[n])
        n++;
    return n;
}

/* What a sequence may go on from: anything, or with --no-share what its own request left. */
static bool may_share(const struct serve_compute *compute, const struct serve_slot *slot,
                      const struct serve_sequence *sequence)
{
    return (compute->options->shares || slot->job_id == sequence->job->id) && !sequence->job->is_scored;
}

/* The idle session that begins with the most of the prompt, else the one that nobody used for the longest. */
static struct serve_slot *find_idle(struct serve_compute *compute, const struct serve_sequence *sequence,
                                    uint32_t *prefix)
{
    struct serve_slot *best = NULL, *oldest = NULL;
    *prefix = 0;
    for (uint32_t i = 0; i < compute->options->n_sessions; i++) {
        struct serve_slot *slot = &compute->slots[i];
        if (slot->sequence != NULL)
            continue;
        const uint32_t n = may_share(compute, slot, sequence) ? common_prefix(slot, sequence) : 0;
        if (oldest == NULL || slot->used < oldest->used)
            oldest = slot;
        if (best == NULL || n > *prefix || (n == *prefix && slot->used < best->used)) {
            best = slot;
            *prefix = n;
        }
    }
    if (best == NULL || *prefix > SHORT_PREFIX || best == oldest)
        return best;
    *prefix = may_share(compute, oldest, sequence) ? common_prefix(oldest, sequence) : 0;
    return oldest;
}

/* Lets the session hold what it can of the prompt's beginning. */
static uint32_t fill_slot(struct serve_compute *compute, struct serve_slot *slot,
                          const struct serve_sequence *sequence, uint32_t prefix)
{
    const struct serve_slot *from = NULL;
    for (uint32_t i = 0; i < compute->options->n_sessions; i++) {
        const struct serve_slot *other = &compute->slots[i];
        if (other == slot || !may_share(compute, other, sequence))
            continue;
        const uint32_t n = common_prefix(other, sequence);
        if (n > prefix) {
            prefix = n;
            from = other;
        }
    }
    if (from == NULL) {
        slot->n_tokens = moert_session_keep(slot->session, prefix);
    } else {
        slot->n_tokens = moert_session_copy(slot->session, from->session, prefix);
        memcpy(slot->tokens, from->tokens, slot->n_tokens * sizeof *slot->tokens);
    }
    return slot->n_tokens;
}

static void begin(struct serve_compute *compute, struct serve_sequence *sequence, struct serve_slot *slot,
                  uint32_t prefix)
{
    atomic_fetch_sub(&compute->metrics->n_waiting, 1);
    atomic_fetch_add(&compute->metrics->n_running, 1);
    slot->sequence = sequence;
    sequence->slot = slot;
    sequence->n_cached = sequence->n_read = fill_slot(compute, slot, sequence, prefix);
    slot->job_id = sequence->job->id;
    slot->used = ++compute->n_used;
    atomic_fetch_add(&compute->metrics->prompt_tokens, sequence->n_prompt);
    atomic_fetch_add(&compute->metrics->cached_tokens, sequence->n_cached);
    serve_sequence_begin(compute, sequence);
}

/* Choices of one prompt wait until the first has read it: they copy it then. */
static bool waits_for_sibling(const struct serve_sequence *sequence)
{
    const struct serve_job *job = sequence->job;
    const size_t first = sequence->index - sequence->index % job->request.n;
    return !job->is_scored && sequence->index != first && job->sequences[first].state < SERVE_DECODING;
}

/* Gives sessions to those that wait, in the order in which they came. */
static void assign(struct serve_compute *compute)
{
    for (struct serve_job *job = compute->jobs; job != NULL; job = job->next) {
        for (size_t i = 0; i < job->n_sequence && job->problem.status == 0; i++) {
            struct serve_sequence *sequence = &job->sequences[i];
            uint32_t prefix = 0;
            if (sequence->state != SERVE_WAITING || waits_for_sibling(sequence))
                continue;
            struct serve_slot *slot = find_idle(compute, sequence, &prefix);
            if (slot == NULL)
                return;
            begin(compute, sequence, slot, prefix);
        }
    }
}

/* ---- steps ---- */

/* A chunk of the oldest prompt that is being read. */
static void read_chunk(struct serve_compute *compute)
{
    for (struct serve_job *job = compute->jobs; job != NULL; job = job->next)
        for (size_t i = 0; i < job->n_sequence && job->problem.status == 0; i++)
            if (job->sequences[i].state == SERVE_READING) {
                serve_sequence_read(compute, &job->sequences[i]);
                return;
            }
}

/* A token of every session that generates. */
static void decode(struct serve_compute *compute)
{
    const uint32_t n_vocab = compute->info.model.n_vocab, n_sessions = compute->options->n_sessions;
    struct moert_session *sessions[SERVE_MAX_SESSIONS];
    struct serve_slot *slots[SERVE_MAX_SESSIONS];
    uint32_t tokens[SERVE_MAX_SESSIONS], n = 0;
    for (uint32_t i = 0; i < n_sessions; i++) {
        struct serve_slot *slot = &compute->slots[i];
        if (slot->sequence == NULL || slot->sequence->state != SERVE_DECODING ||
            slot->sequence->job->problem.status != 0)
            continue;
        slots[n] = slot;
        sessions[n] = slot->session;
        tokens[n++] = slot->sequence->last;
    }
    if (n == 0)
        return;
    struct moert_error err = {0};
    const enum moert_status status = moert_step_each(sessions, tokens, n, compute->rows, &err);
    atomic_fetch_add(&compute->metrics->steps, 1);
    for (uint32_t i = 0; i < n; i++) {
        if (status != MOERT_OK) {
            (void)serve_refuse_error(&slots[i]->sequence->job->problem, NULL, (enum moec_status)status,
                                     err.message);
            continue;
        }
        slots[i]->tokens[slots[i]->n_tokens++] = tokens[i];
        serve_sequence_take(compute, slots[i]->sequence, compute->rows + (size_t)i * n_vocab,
                            compute->rows + (size_t)n_sessions * n_vocab);
    }
}

static void *run(void *context)
{
    struct serve_compute *compute = context;
    while (take_jobs(compute)) {
        end_jobs(compute);
        assign(compute);
        read_chunk(compute);
        decode(compute);
        end_jobs(compute);
    }
    return NULL;
}

/* ---- for other threads ---- */

static enum moec_status create_slots(struct serve_compute *compute, struct moec_error *err)
{
    const uint32_t n = compute->options->n_sessions;
    MOEC_TRY(moec_alloc((void **)&compute->slots, n, sizeof *compute->slots, "sessions", err));
    MOEC_TRY(moec_alloc_aligned((void **)&compute->rows, n + 1, compute->info.model.n_vocab * sizeof(float),
                                "logits", err));
    for (uint32_t i = 0; i < n; i++) {
        struct moert_error theirs = {0};
        struct serve_slot *slot = &compute->slots[i];
        MOEC_TRY(moec_alloc((void **)&slot->tokens, compute->info.compute.n_context, sizeof *slot->tokens,
                            "tokens of a session", err));
        const enum moert_status status =
            moert_session_create(compute->options->engine, &slot->session, &theirs);
        if (status != MOERT_OK)
            return moec_fail(err, (enum moec_status)status, "%s", theirs.message);
    }
    return MOEC_OK;
}

static void release(struct serve_compute *compute)
{
    for (uint32_t i = 0; compute->slots != NULL && i < compute->options->n_sessions; i++) {
        moert_session_free(compute->slots[i].session);
        free(compute->slots[i].tokens);
    }
    free(compute->slots);
    free(compute->rows);
    compute->slots = NULL;
    compute->rows = NULL;
}

enum moec_status serve_compute_start(struct serve_compute *compute, const struct serve_options *options,
                                     struct serve_metrics *metrics, struct moec_error *err)
{
    *compute = (struct serve_compute){
        .options = options, .metrics = metrics, .info = moert_engine_info(options->engine)};
    compute->incoming_end = &compute->incoming;
    compute->jobs_end = &compute->jobs;
    enum moec_status status = create_slots(compute, err);
    pthread_mutex_init(&compute->lock, NULL);
    pthread_cond_init(&compute->change, NULL);
    if (status == MOEC_OK && pthread_create(&compute->thread, NULL, run, compute) != 0)
        status = moec_fail(err, MOEC_ERR_MEMORY, "cannot start the thread that computes");
    compute->is_running = status == MOEC_OK;
    if (status != MOEC_OK) {
        release(compute);
        pthread_cond_destroy(&compute->change);
        pthread_mutex_destroy(&compute->lock);
    }
    return status;
}

void serve_compute_stop(struct serve_compute *compute)
{
    if (!compute->is_running)
        return;
    pthread_mutex_lock(&compute->lock);
    compute->ends = true;
    pthread_cond_signal(&compute->change);
    pthread_mutex_unlock(&compute->lock);
    pthread_join(compute->thread, NULL);
    release(compute);
    pthread_cond_destroy(&compute->change);
    pthread_mutex_destroy(&compute->lock);
    compute->is_running = false;
}

bool serve_compute_submit(struct serve_compute *compute, struct serve_job *job)
{
    const unsigned n = (unsigned)job->n_sequence;
    pthread_mutex_lock(&compute->lock);
    const unsigned n_waiting = atomic_load(&compute->metrics->n_waiting);
    const bool has_room = n_waiting == 0 || n_waiting + n <= compute->options->n_queue;
    const bool is_taken = has_room && !compute->ends;
    if (is_taken) {
        atomic_fetch_add(&compute->metrics->n_waiting, n);
        job->n_users++;
        job->next = NULL;
        *compute->incoming_end = job;
        compute->incoming_end = &job->next;
        compute->n_jobs++;
        pthread_cond_signal(&compute->change);
    }
    pthread_mutex_unlock(&compute->lock);
    return is_taken;
}

void serve_compute_wake(struct serve_compute *compute)
{
    pthread_mutex_lock(&compute->lock);
    pthread_cond_signal(&compute->change);
    pthread_mutex_unlock(&compute->lock);
}

size_t serve_compute_count(struct serve_compute *compute)
{
    pthread_mutex_lock(&compute->lock);
    const size_t n = compute->n_jobs;
    pthread_mutex_unlock(&compute->lock);
    return n;
}

/* Calls `act` for every job, with the compute's lock; `ends`: for the last ones, no more are taken. */
static size_t for_each_job(struct serve_compute *compute, bool ends, void (*act)(struct serve_job *job))
{
    size_t n = 0;
    pthread_mutex_lock(&compute->lock);
    compute->ends = compute->ends || ends;
    for (struct serve_job *job = compute->jobs; job != NULL; job = job->next, n++)
        act(job);
    for (struct serve_job *job = compute->incoming; job != NULL; job = job->next, n++)
        act(job);
    pthread_cond_signal(&compute->change);
    pthread_mutex_unlock(&compute->lock);
    return n;
}

static void cancel(struct serve_job *job)
{
    pthread_mutex_lock(&job->lock);
    job->is_cancelled = true;
    pthread_mutex_unlock(&job->lock);
}

size_t serve_compute_cancel(struct serve_compute *compute)
{
    return for_each_job(compute, true, cancel);
}

void serve_compute_keep_alive(struct serve_compute *compute)
{
    (void)for_each_job(compute, false, serve_stream_keep_alive);
}
