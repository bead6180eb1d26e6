/* Every exchange begins with a meeting: each rank's step, size and failure go to all. Data follow only if all
 * heads agree, so ranks that went different ways cannot take each other's bytes. After a failure all know of
 * it, and no later step waits for anybody. If the transport itself fails nobody can be told, and it is closed
 * without waiting. */
#include "profiler/ranks/ranks.h"

#include "formats/base/memory.h"
#include "formats/base/work_tally.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum step { STEP_GATHER = 1, STEP_SPREAD, STEP_SUM, STEP_SAME, STEP_LEAVE };

/* What ranks tell each other before anything else: where they are and whether they failed. */
struct head {
    uint32_t step;   /* enum step */
    uint32_t status; /* enum moec_status */
    uint64_t n_bytes;
    char host[MOEC_RANKS_HOST_BYTES];
    char message[MOEC_ERROR_BYTES];
};

struct moec_ranks {
    struct moec_ranks_transport transport;
    struct head *heads; /* (count), owned */
    bool is_over;       /* nobody waits for anybody any more */
    bool is_broken;     /* and not because everybody got to the end */
};

enum moec_status moec_ranks_create(const struct moec_ranks_transport *transport, struct moec_ranks **out,
                                   struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_ranks *ranks = NULL;
    if (transport->count > MOEC_RANKS_MAX)
        status = moec_fail(err, MOEC_ERR_LIMIT, "%" PRIu32 " ranks are too many, expected at most %u",
                           transport->count, MOEC_RANKS_MAX);
    if (status == MOEC_OK)
        status = moec_alloc((void **)&ranks, 1, sizeof *ranks, "ranks", err);
    if (status == MOEC_OK)
        status = moec_alloc((void **)&ranks->heads, transport->count, sizeof *ranks->heads, "ranks", err);
    if (status != MOEC_OK) {
        transport->close(transport->context, false);
        free(ranks);
        return status;
    }
    ranks->transport = *transport;
    *out = ranks;
    return MOEC_OK;
}

void moec_ranks_free(struct moec_ranks *ranks)
{
    if (ranks == NULL)
        return;
    ranks->transport.close(ranks->transport.context, ranks->is_over && !ranks->is_broken);
    free(ranks->heads);
    free(ranks);
}

uint32_t moec_ranks_count(const struct moec_ranks *ranks)
{
    return ranks != NULL ? ranks->transport.count : 1;
}

uint32_t moec_ranks_own(const struct moec_ranks *ranks)
{
    return ranks != NULL ? ranks->transport.own : 0;
}

const char *moec_ranks_host(const struct moec_ranks *ranks)
{
    return ranks != NULL ? ranks->transport.host : "";
}

/* ---- steps ---- */

static enum moec_status gather(const struct moec_ranks *ranks, const void *own, void *all, uint64_t n_bytes,
                               struct moec_error *err)
{
    const struct moec_ranks_transport *transport = &ranks->transport;
    const uint64_t begun_ns = moec_work_begin(MOEC_WORK_RECEIVING);
    const enum moec_status status = transport->gather(transport->context, own, all, n_bytes, err);
    moec_work_end(MOEC_WORK_RECEIVING, begun_ns, (transport->count - 1) * n_bytes);
    return status;
}

static enum moec_status spread(const struct moec_ranks *ranks, uint32_t from, void *data, uint64_t n_bytes,
                               struct moec_error *err)
{
    const struct moec_ranks_transport *transport = &ranks->transport;
    const uint64_t begun_ns = moec_work_begin(MOEC_WORK_RECEIVING);
    const enum moec_status status = transport->spread(transport->context, from, data, n_bytes, err);
    moec_work_end(MOEC_WORK_RECEIVING, begun_ns, transport->own != from ? n_bytes : 0);
    return status;
}

/* Fails with the first rank's failure, or where a rank is at another step than rank 0. */
static enum moec_status judge(struct moec_ranks *ranks, struct moec_error *err)
{
    const uint32_t count = ranks->transport.count;
    for (uint32_t r = 0; r < count; r++) {
        struct head *head = &ranks->heads[r];
        head->host[sizeof head->host - 1] = '\0';
        head->message[sizeof head->message - 1] = '\0';
        if (head->status != MOEC_OK)
            return moec_fail(err, (enum moec_status)head->status,
                             "rank %" PRIu32 " of %" PRIu32 ", on '%s': %s", r, count, head->host,
                             head->message);
    }
    for (uint32_t r = 1; r < count; r++)
        if (ranks->heads[r].step != ranks->heads[0].step ||
            ranks->heads[r].n_bytes != ranks->heads[0].n_bytes)
            return moec_fail(err, MOEC_ERR_MISMATCH,
                             "rank %" PRIu32 " of %" PRIu32 ", on '%s', is at another step than rank 0: give "
                             "all ranks the same program, options and files",
                             r, count, ranks->heads[r].host);
    return MOEC_OK;
}

/* Ranks meet: nothing else passes between them before each knows that all are there. */
static enum moec_status meet(struct moec_ranks *ranks, enum step step, uint64_t n_bytes,
                             const struct moec_error *problem, struct moec_error *err)
{
    struct moec_ranks_transport *transport = &ranks->transport;
    struct head own = {.step = step, .n_bytes = n_bytes};
    if (ranks->is_over)
        return moec_fail(err, MOEC_ERR_CANCELLED, "the work that ranks share has ended");
    memcpy(own.host, transport->host, sizeof own.host);
    if (problem != NULL && problem->status != MOEC_OK) {
        own.status = problem->status;
        memcpy(own.message, problem->message, sizeof own.message);
    }
    enum moec_status status = gather(ranks, &own, ranks->heads, sizeof own, err);
    ranks->is_broken = status != MOEC_OK; /* the transport itself: nobody can be told of it */
    if (status == MOEC_OK)
        status = judge(ranks, err);
    ranks->is_over = status != MOEC_OK;
    return status;
}

/* What follows a meeting fails for good: the others may be waiting. */
static enum moec_status end_if(struct moec_ranks *ranks, enum moec_status status)
{
    if (status != MOEC_OK)
        ranks->is_over = ranks->is_broken = true;
    return status;
}

static void unpack(const struct moec_ranks *ranks, const uint8_t *all, uint64_t n_item, size_t item_bytes,
                   uint8_t *items)
{
    const uint64_t count = ranks->transport.count, most = (n_item + count - 1) / count;
    for (uint64_t i = 0; i < n_item; i++)
        memcpy(items + i * item_bytes, all + (i % count * most + i / count) * item_bytes, item_bytes);
}

enum moec_status moec_ranks_gather(struct moec_ranks *ranks, void *items, uint64_t n_item, size_t item_bytes,
                                   struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    uint8_t *own = NULL, *all = NULL, *bytes = items;
    if (ranks == NULL || n_item == 0)
        return MOEC_OK;
    const uint64_t count = ranks->transport.count, most = (n_item + count - 1) / count;
    MOEC_TRY(moec_alloc((void **)&own, most, item_bytes, "results of ranks", err));
    MOEC_TRY_OUT(moec_alloc((void **)&all, most * count, item_bytes, "results of ranks", err));
    for (uint64_t i = ranks->transport.own; i < n_item; i += count)
        memcpy(own + i / count * item_bytes, bytes + i * item_bytes, item_bytes);
    MOEC_TRY_OUT(meet(ranks, STEP_GATHER, n_item * item_bytes, NULL, err));
    MOEC_TRY_OUT(end_if(ranks, gather(ranks, own, all, most * item_bytes, err)));
    unpack(ranks, all, n_item, item_bytes, bytes);
out:
    free(own);
    free(all);
    return status;
}

enum moec_status moec_ranks_spread(struct moec_ranks *ranks, uint32_t from, void *data, uint64_t n_bytes,
                                   struct moec_error *err)
{
    if (ranks == NULL || n_bytes == 0)
        return MOEC_OK;
    MOEC_TRY(meet(ranks, STEP_SPREAD, n_bytes, NULL, err));
    return end_if(ranks, spread(ranks, from, data, n_bytes, err));
}

enum moec_status moec_ranks_sum(struct moec_ranks *ranks, uint64_t *values, uint32_t n,
                                struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    uint64_t *all = NULL;
    if (ranks == NULL || n == 0)
        return MOEC_OK;
    const uint32_t count = ranks->transport.count;
    MOEC_TRY(moec_alloc((void **)&all, (uint64_t)n * count, sizeof *all, "sums of ranks", err));
    MOEC_TRY_OUT(meet(ranks, STEP_SUM, n, NULL, err));
    MOEC_TRY_OUT(end_if(ranks, gather(ranks, values, all, n * sizeof *all, err)));
    for (uint32_t i = 0; i < n; i++) {
        values[i] = 0;
        for (uint32_t r = 0; r < count; r++)
            values[i] += all[(size_t)r * n + i];
    }
out:
    free(all);
    return status;
}

enum moec_status moec_ranks_same(struct moec_ranks *ranks, const char *what, const void *data, size_t n_bytes,
                                 struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    uint8_t *all = NULL;
    if (ranks == NULL || n_bytes == 0)
        return MOEC_OK;
    const uint32_t count = ranks->transport.count;
    MOEC_TRY(moec_alloc((void **)&all, count, n_bytes, "what ranks compare", err));
    MOEC_TRY_OUT(meet(ranks, STEP_SAME, n_bytes, NULL, err));
    MOEC_TRY_OUT(end_if(ranks, gather(ranks, data, all, n_bytes, err)));
    for (uint32_t r = 1; r < count && status == MOEC_OK; r++)
        if (memcmp(all, all + r * n_bytes, n_bytes) != 0)
            status = moec_fail(err, MOEC_ERR_MISMATCH,
                               "rank %" PRIu32 " of %" PRIu32 ", on '%s', has %s than rank 0, on '%s'", r,
                               count, ranks->heads[r].host, what, ranks->heads[0].host);
    ranks->is_over = status != MOEC_OK; /* everybody knows */
out:
    free(all);
    return status;
}

enum moec_status moec_ranks_leave(struct moec_ranks *ranks, const struct moec_error *problem,
                                  struct moec_error *err)
{
    if (ranks == NULL || ranks->is_over)
        return MOEC_OK;
    const enum moec_status status = meet(ranks, STEP_LEAVE, 0, problem, err);
    ranks->is_over = true;
    return status;
}
