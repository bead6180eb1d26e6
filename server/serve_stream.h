/* What a job hands over to the thread of HTTP: bytes of a stream, which wait in a bounded queue, and its end.
 * Thread rule: as each says. */
#ifndef MOEC_SERVER_SERVE_STREAM_H
#define MOEC_SERVER_SERVE_STREAM_H

#include "server/serve_job.h"
#include "server/serve_options.h"

/* Puts an event (freed; NULL: there was no memory, which cancels the job). A reader who lets the queue fill up
 * is cut. Compute thread. */
void serve_stream_put(struct serve_job *job, char *event);
/* No sequence is at work any more: what is still to be sent is put, and the connection goes on. Compute
 * thread. */
void serve_stream_end(const struct serve_options *options, struct serve_job *job);
/* Puts a comment where nothing was sent for 15 seconds. Any thread. */
void serve_stream_keep_alive(struct serve_job *job);
/* Takes up to n bytes of what waits: how many, or -1 at the end, -2 where the stream is cut. With nothing there
 * the answer is 0, and `suspend` is called before anything can come. The thread of HTTP. */
int64_t serve_stream_take(struct serve_job *job, char *to, size_t n, void (*suspend)(struct serve_job *job));

#endif
