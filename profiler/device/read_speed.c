/* Each round takes the ranges in a new order (Fisher and Yates). With direct reads, one round runs into the
 * next and the depth never falls. Through the page cache a round ends first: pages are dropped while no time
 * counts. A slot of the buffer has one request at a time, which its tag names. */
#include "profiler/device/read_speed.h"

#include "formats/base/clock.h"
#include "formats/base/memory.h"
#include "profiler/common/quantiles.h"
#include "profiler/common/random.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

struct measuring {
    const struct moec_read_speed_request *request;
    struct moec_read *reads; /* (depth): one for each slot of the buffer */
    float *latencies_ns;     /* (max_reads) */
    struct moec_random random;
    uint32_t next;             /* range of this round */
    uint32_t n_begun, n_ended; /* requests of all rounds */
    uint64_t n_bytes;
    uint64_t spent_ns;
    struct moec_read failed; /* the first with an error */
};

/* A new order (Fisher and Yates), and nothing of it in the page cache. */
static void begin_round(struct measuring *m)
{
    struct moec_read_range *ranges = m->request->ranges;
    for (uint32_t i = m->request->n_ranges - 1; i > 0; i--) {
        uint32_t j = (uint32_t)moec_random_below(&m->random, i + 1);
        struct moec_read_range range = ranges[i];
        ranges[i] = ranges[j];
        ranges[j] = range;
    }
    for (uint32_t i = 0; m->request->cached != NULL && i < m->request->n_ranges; i++)
        moec_file_drop(m->request->cached, ranges[i].offset, ranges[i].n_bytes);
    m->next = 0;
}

static void submit_next(struct measuring *m, uint32_t slot)
{
    const struct moec_read_speed_request *request = m->request;
    const struct moec_read_range *range = &request->ranges[m->next++];
    m->reads[slot] = (struct moec_read){.offset = range->offset,
                                        .n_bytes = range->n_bytes,
                                        .buffer = request->room.buffer + slot * request->room.slot_bytes,
                                        .tag = slot};
    m->n_begun++;
    request->reader->ops->submit(request->reader, &m->reads[slot]);
}

/* Whether another request may begin; direct reads go straight on into the next round. */
static bool has_more(struct measuring *m, uint64_t begun_ns)
{
    const struct moec_read_speed_request *request = m->request;
    if (m->failed.error != 0 || m->n_begun >= request->limits.max_reads)
        return false;
    if (m->n_begun >= request->limits.min_reads &&
        m->spent_ns + (moec_now_ns() - begun_ns) >= request->limits.ns)
        return false;
    if (m->next == request->n_ranges && request->cached == NULL)
        begin_round(m);
    return m->next < request->n_ranges;
}

static void end_read(struct measuring *m, const struct moec_read *read)
{
    if (read->error != 0 && m->failed.error == 0)
        m->failed = *read;
    m->latencies_ns[m->n_ended++] = (float)(read->at.done_ns - read->at.begun_ns);
    m->n_bytes += read->n_bytes;
}

static void run_round(struct measuring *m)
{
    struct moec_reader *reader = m->request->reader;
    uint64_t begun_ns = moec_now_ns();
    uint32_t in_flight = 0;
    while (in_flight < m->request->room.depth && has_more(m, begun_ns))
        submit_next(m, in_flight++);
    while (in_flight > 0) {
        const struct moec_read *read = reader->ops->wait(reader);
        if (read == NULL)
            continue;
        end_read(m, read);
        if (has_more(m, begun_ns))
            submit_next(m, (uint32_t)read->tag);
        else
            in_flight--;
    }
    m->spent_ns += moec_now_ns() - begun_ns;
}

enum moec_status moec_read_speed_measure(const struct moec_read_speed_request *request,
                                         struct moec_read_speed *speed, struct moec_error *err)
{
    static const double at[] = {0.5, 0.95};
    double quantiles[2] = {0, 0};
    struct measuring m = {.request = request, .random = {request->seed}};
    void *reads = NULL, *latencies = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_alloc(&reads, request->room.depth, sizeof *m.reads, "requests", err));
    MOEC_TRY_OUT(
        moec_alloc(&latencies, 2 * (uint64_t)request->limits.max_reads, sizeof(float), "latencies", err));
    m.reads = reads;
    m.latencies_ns = latencies;
    do {
        begin_round(&m);
        run_round(&m);
    } while (m.failed.error == 0 && m.n_begun < request->limits.max_reads &&
             (m.n_begun < request->limits.min_reads || m.spent_ns < request->limits.ns));
    if (m.failed.error != 0) {
        status = moec_fail(err, MOEC_ERR_IO,
                           "cannot read %" PRIu64 " bytes at offset %" PRIu64 " of the bundle: %s",
                           m.failed.n_bytes, m.failed.offset,
                           m.failed.error == ENODATA ? "the file is too short" : strerror(m.failed.error));
        goto out;
    }
    moec_quantiles(m.latencies_ns, m.latencies_ns + request->limits.max_reads, m.n_ended, at, 2, quantiles);
    *speed = (struct moec_read_speed){
        .n_reads = m.n_ended,
        .n_bytes = m.n_bytes,
        .spent_ns = m.spent_ns,
        .latency_ns_median = (uint64_t)quantiles[0],
        .latency_ns_p95 = (uint64_t)quantiles[1],
        .bytes_per_second = (uint64_t)((double)m.n_bytes * 1e9 / (double)(m.spent_ns > 0 ? m.spent_ns : 1)),
    };
out:
    free(reads);
    free(latencies);
    return status;
}
