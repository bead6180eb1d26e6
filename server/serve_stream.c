/* The queue's lock is the job's. A connection is suspended with it held, and only where nothing waits, so no
 * wake is lost. A client that does not read fills the queue: its job is cut and cancelled, and the compute
 * thread never waits. */
#include "server/serve_stream.h"

#include "formats/base/clock.h"
#include "formats/base/memory.h"
#include "server/serve_answer.h"

#include <stdlib.h>
#include <string.h>

#define SILENCE_NS ((uint64_t)15 * 1000000000)

static void wake(struct serve_job *job)
{
    if (!job->is_suspended)
        return;
    job->is_suspended = false;
    if (job->connection != NULL)
        job->wake(job);
}

/* With the lock. */
static void put(struct serve_job *job, const char *text, size_t n)
{
    if (job->is_cut || job->connection == NULL)
        return;
    if (n > SERVE_QUEUE_BYTES - job->n_out ||
        moec_grow((void **)&job->out, &job->out_capacity, job->n_out + n, 1, "a stream", NULL) != MOEC_OK) {
        job->is_cut = job->is_cancelled = true;
    } else {
        memcpy(job->out + job->n_out, text, n);
        job->n_out += n;
    }
    job->told_ns = moec_now_ns();
    wake(job);
}

void serve_stream_put(struct serve_job *job, char *event)
{
    pthread_mutex_lock(&job->lock);
    if (event != NULL)
        put(job, event, strlen(event));
    else
        job->is_cut = job->is_cancelled = true;
    pthread_mutex_unlock(&job->lock);
    free(event);
}

void serve_stream_end(const struct serve_options *options, struct serve_job *job)
{
    if (job->request.is_stream && job->problem.status != 0)
        serve_stream_put(job, serve_answer_problem_event(&job->problem));
    else if (job->request.is_stream && job->request.has_usage)
        serve_stream_put(job, serve_answer_usage_event(options, job));
    pthread_mutex_lock(&job->lock);
    if (job->request.is_stream)
        put(job, "data: [DONE]\n\n", strlen("data: [DONE]\n\n"));
    job->is_done = true;
    wake(job);
    pthread_mutex_unlock(&job->lock);
}

void serve_stream_keep_alive(struct serve_job *job)
{
    pthread_mutex_lock(&job->lock);
    if (job->request.is_stream && !job->is_done && job->n_out == 0 &&
        moec_now_ns() - job->told_ns > SILENCE_NS)
        put(job, ": waiting\n\n", strlen(": waiting\n\n"));
    pthread_mutex_unlock(&job->lock);
}

int64_t serve_stream_take(struct serve_job *job, char *to, size_t n, void (*suspend)(struct serve_job *job))
{
    pthread_mutex_lock(&job->lock);
    int64_t taken = job->is_cut ? -2 : job->is_done ? -1 : 0;
    if (job->n_out > 0 && !job->is_cut) {
        const size_t now = n < job->n_out ? n : job->n_out;
        memcpy(to, job->out, now);
        memmove(job->out, job->out + now, job->n_out - now);
        job->n_out -= now;
        taken = (int64_t)now;
    } else if (taken == 0) {
        job->is_suspended = true;
        suspend(job);
    }
    pthread_mutex_unlock(&job->lock);
    return taken;
}
