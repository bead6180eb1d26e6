/* Every exchange begins with a meeting: each rank's step, size and failure go to all. Data follow only if all
 * heads agree, so ranks that went different ways cannot take each other's bytes. After a failure all know of
 * it, and no later step waits for anybody. If the transport itself fails nobody can be told, and it is closed
 * without waiting. */
#include "profiler/ranks/ranks.h"

#include "formats/base/clock.h"
#include "formats/base/memory.h"
#include "formats/base/work_tally.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define TELL_EVERY_NS 100000000u /* how far a rank is */

enum step { STEP_GATHER = 1, STEP_SPREAD, STEP_PARTS, STEP_PASS, STEP_SUM, STEP_SAME, STEP_LEAVE };

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
    double *done;       /* (count), owned: what was told last */
    uint64_t told_ns;
    bool is_over;   /* nobody waits for anybody any more */
    bool is_broken; /* and not because everybody got to the end */
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
    if (status == MOEC_OK)
        status = moec_alloc((void **)&ranks->done, transport->count, sizeof *ranks->done, "ranks", err);
    if (status != MOEC_OK) {
        transport->close(transport->context, false);
        if (ranks != NULL)
            free(ranks->heads);
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
    free(ranks->done);
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

void moec_ranks_tell(struct moec_ranks *ranks, double done)
{
    if (ranks == NULL || ranks->is_over)
        return;
    const struct moec_ranks_transport *transport = &ranks->transport;
    const uint64_t now = moec_now_ns();
    ranks->done[transport->own] = done;
    if (transport->own == 0 || now - ranks->told_ns < TELL_EVERY_NS)
        return;
    ranks->told_ns = now;
    transport->tell(transport->context, done);
}

double moec_ranks_mean_done(struct moec_ranks *ranks)
{
    uint32_t from = 0;
    double done = 0, sum = 0;
    if (ranks == NULL)
        return 0;
    const struct moec_ranks_transport *transport = &ranks->transport;
    if (transport->own != 0)
        return ranks->done[transport->own];
    while (!ranks->is_over && transport->hear(transport->context, &from, &done))
        ranks->done[from] = done;
    for (uint32_t r = 0; r < transport->count; r++)
        sum += ranks->done[r];
    return sum / transport->count;
}

void moec_ranks_on_wait(struct moec_ranks *ranks, void (*waits)(void *context), void *context)
{
    if (ranks != NULL)
        ranks->transport.on_wait(ranks->transport.context, waits, context);
}

uint64_t moec_ranks_buffer_bytes(const struct moec_ranks *ranks)
{
    return ranks != NULL ? 3 * MOEC_RANKS_PIECE_BYTES : 0;
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

static enum moec_status pass(const struct moec_ranks *ranks, uint32_t from, uint32_t to, void *data,
                             uint64_t n_bytes, struct moec_error *err)
{
    const struct moec_ranks_transport *transport = &ranks->transport;
    const uint64_t begun_ns = moec_work_begin(MOEC_WORK_RECEIVING);
    const enum moec_status status = transport->pass(transport->context, from, to, data, n_bytes, err);
    moec_work_end(MOEC_WORK_RECEIVING, begun_ns, transport->own == to ? n_bytes : 0);
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
        return moec_fail(err, MOEC_ERR_CANCELLED,
                         "the ranks have already finished or stopped their shared work");
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

/* Own ones of the items first .. first + n - 1 to `packed`; and all of them from there, `most` of each rank. */
static void pack(const struct moec_ranks *ranks, const uint8_t *items, uint64_t first, uint64_t n,
                 size_t item_bytes, uint8_t *packed)
{
    for (uint64_t i = ranks->transport.own; i < n; i += ranks->transport.count)
        memcpy(packed + i / ranks->transport.count * item_bytes, items + (first + i) * item_bytes,
               item_bytes);
}

static void unpack(const struct moec_ranks *ranks, const uint8_t *packed, uint64_t most, uint64_t first,
                   uint64_t n, size_t item_bytes, uint8_t *items)
{
    const uint64_t count = ranks->transport.count;
    for (uint64_t i = 0; i < n; i++)
        memcpy(items + (first + i) * item_bytes, packed + (i % count * most + i / count) * item_bytes,
               item_bytes);
}

enum moec_status moec_ranks_gather(struct moec_ranks *ranks, void *items, uint64_t n_item, size_t item_bytes,
                                   struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    uint8_t *own = NULL, *all = NULL;
    if (ranks == NULL || n_item == 0)
        return MOEC_OK;
    const uint64_t count = ranks->transport.count, share = (n_item + count - 1) / count,
                   most = moec_ranks_piece_items(item_bytes, ranks->transport.count);
    const uint64_t room = most < share ? most : share;
    MOEC_TRY(moec_alloc((void **)&own, room, item_bytes, "results of ranks", err));
    MOEC_TRY_OUT(moec_alloc((void **)&all, room * count, item_bytes, "results of ranks", err));
    for (uint64_t first = 0; first < n_item; first += room * count) {
        const uint64_t left = n_item - first, n = left < room * count ? left : room * count,
                       n_own = (n + count - 1) / count;
        pack(ranks, items, first, n, item_bytes, own);
        MOEC_TRY_OUT(meet(ranks, STEP_GATHER, n * item_bytes, NULL, err));
        MOEC_TRY_OUT(end_if(ranks, gather(ranks, own, all, n_own * item_bytes, err)));
        unpack(ranks, all, n_own, first, n, item_bytes, items);
    }
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

/* How many of the parts are of the same rank as the first and not too long to go together, and their bytes. */
static size_t count_together(const struct moec_ranks_part *parts, size_t n_part, uint64_t *n_bytes)
{
    size_t n = 1;
    for (*n_bytes = parts->n_bytes;
         n < n_part && parts[n].from == parts->from && parts[n].n_bytes + *n_bytes <= MOEC_RANKS_PIECE_BYTES;
         n++)
        *n_bytes += parts[n].n_bytes;
    return n;
}

/* By way of `packed`. */
static enum moec_status spread_packed(const struct moec_ranks *ranks, const struct moec_ranks_part *parts,
                                      size_t n, uint64_t n_bytes, uint8_t *packed, struct moec_error *err)
{
    uint8_t *at = packed;
    for (size_t i = 0; i < n && parts->from == ranks->transport.own; at += parts[i++].n_bytes)
        memcpy(at, parts[i].data, parts[i].n_bytes);
    MOEC_TRY(spread(ranks, parts->from, packed, n_bytes, err));
    at = packed;
    for (size_t i = 0; i < n && parts->from != ranks->transport.own; at += parts[i++].n_bytes)
        memcpy(parts[i].data, at, parts[i].n_bytes);
    return MOEC_OK;
}

enum moec_status moec_ranks_spread_parts(struct moec_ranks *ranks, const struct moec_ranks_part *parts,
                                         size_t n_part, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    uint64_t sum = 0, n_bytes = 0;
    uint8_t *packed = NULL;
    for (size_t i = 0; i < n_part; i++)
        sum += parts[i].n_bytes;
    if (ranks == NULL || sum == 0)
        return MOEC_OK;
    MOEC_TRY(moec_alloc((void **)&packed, sum < MOEC_RANKS_PIECE_BYTES ? sum : MOEC_RANKS_PIECE_BYTES, 1,
                        "results of ranks", err));
    MOEC_TRY_OUT(meet(ranks, STEP_PARTS, sum, NULL, err));
    for (size_t i = 0, n = 0; i < n_part; i += n) {
        n = count_together(parts + i, n_part - i, &n_bytes);
        status = n > 1 ? spread_packed(ranks, parts + i, n, n_bytes, packed, err)
                       : spread(ranks, parts[i].from, parts[i].data, n_bytes, err);
        MOEC_TRY_OUT(end_if(ranks, status));
    }
out:
    free(packed);
    return status;
}

enum moec_status moec_ranks_pass(struct moec_ranks *ranks, uint32_t from, uint32_t to, void *data,
                                 uint64_t n_bytes, struct moec_error *err)
{
    if (ranks == NULL || n_bytes == 0 || from == to)
        return MOEC_OK;
    const uint32_t own = ranks->transport.own;
    MOEC_TRY(meet(ranks, STEP_PASS, n_bytes, NULL, err));
    if (own != from && own != to)
        return MOEC_OK;
    return end_if(ranks, pass(ranks, from, to, data, n_bytes, err));
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
