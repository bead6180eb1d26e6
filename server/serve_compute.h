/* The thread that computes: it owns the engine's sessions, gives each sequence one, and runs them. Prompts are
 * read in chunks, which alternate with steps of all sessions that generate, so that an expert that two of them
 * need is read and decoded once. A sequence goes on from the session that begins as its prompt does, or from a
 * copy of it.
 *
 * Thread rule: the functions may be called from any thread. */
#ifndef MOEC_SERVER_SERVE_COMPUTE_H
#define MOEC_SERVER_SERVE_COMPUTE_H

#include "server/serve_job.h"
#include "server/serve_metrics.h"
#include "server/serve_options.h"

/* A session, and the tokens that it holds. */
struct serve_slot {
    struct moert_session *session; /* owned */
    uint32_t *tokens;              /* owned, (n_context) */
    uint32_t n_tokens;
    uint64_t job_id;                 /* whose it was last */
    uint64_t used;                   /* counts up */
    struct serve_sequence *sequence; /* NULL = idle */
};

struct serve_compute {
    const struct serve_options *options; /* borrowed */
    struct serve_metrics *metrics;       /* borrowed */
    struct moert_info info;
    struct serve_slot *slots; /* (n_sessions), owned */
    float *rows;              /* (n_sessions + 1, n_vocab) of logits, owned */
    uint64_t n_used;
    pthread_t thread;
    bool is_running;

    pthread_mutex_t lock; /* taken before a job's */
    pthread_cond_t change;
    struct serve_job *incoming, **incoming_end;
    struct serve_job *jobs, **jobs_end; /* written by the thread alone */
    size_t n_jobs;                      /* of both lists */
    bool ends;
};

MOEC_WARN_UNUSED enum moec_status serve_compute_start(struct serve_compute *compute,
                                                      const struct serve_options *options,
                                                      struct serve_metrics *metrics, struct moec_error *err);
/* When no job is left. A compute that never started is allowed. */
void serve_compute_stop(struct serve_compute *compute);

/* Takes a job, of which it is one more user. False where the queue is full, or all jobs were cancelled:
 * nobody would end the job then. */
bool serve_compute_submit(struct serve_compute *compute, struct serve_job *job);
/* After something about a job changed. */
void serve_compute_wake(struct serve_compute *compute);
size_t serve_compute_count(struct serve_compute *compute);
/* Cancels all jobs, and takes no more from then on; returns how many. */
size_t serve_compute_cancel(struct serve_compute *compute);
/* Lets streams that have been silent for a while send a comment. */
void serve_compute_keep_alive(struct serve_compute *compute);

#endif
