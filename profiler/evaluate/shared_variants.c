/* All ranks list the same records, as their assignments are the same; they differ in what they still have of
 * them. So each first tells what it lacks, whether it has room, and how fast it last was. From this all decide
 * alike. Which rank makes a record follows from its place among those that anybody lacks. */
#include "profiler/evaluate/shared_variants.h"

#include "formats/base/clock.h"
#include "formats/base/memory.h"
#include "profiler/evaluate/variants_internal.h"

#include <math.h>
#include <string.h>

#define SHORT_NS  20e6 /* of an exchange that nobody weighs */
#define TRY_AFTER 15u  /* exchanges that were not worth it: the pace may be another by then */

struct record {
    uint32_t expert, index;
    uint64_t n_bytes;
    uint8_t *bytes;     /* taken from the store and not kept yet, or NULL */
    uint64_t encode_ns; /* that making it took this rank; 0: it did not */
};

struct sharing {
    struct moec_variants *variants;
    struct moec_ranks *ranks;
    const struct moec_variants_range *range;
    struct record *records; /* (n), owned: first all of the range, then those that are exchanged */
    size_t n;
    bool has_room; /* all ranks have */
    bool is_known; /* on the slowest rank: what sending takes, and what encoding all alone takes longer */
    double exchange_ns, saved_ns;
};

/* What a rank tells first; after it (n) bytes: whether it lacks each record. */
struct told {
    float encode_ns[N_VARIANTS_INDICES]; /* as in struct variants_pace */
    float exchange_ns;                   /* a byte; 0: unknown */
    uint32_t n_threads;
    uint32_t has_room;
};

static struct moec_record_slot *slot_of(const struct sharing *sharing, const struct record *record)
{
    return variants_slot_at(sharing->variants, sharing->range->layer, record->expert, record->index);
}

/* Whether making it takes more than copying: a projection has codes that the checkpoint does not. */
static bool has_codes(const struct moec_record_layout *layout)
{
    bool any = false;
    for (int p = 0; p < MOEC_PROJECTION_COUNT; p++)
        if (p != MOEC_PROJECTION_GATE || layout->n_matrix == 3)
            any = any || (moec_codec_bits(layout->codecs[p]) < 16 &&
                          !moec_codec_traits(layout->codecs[p])->is_exact);
    return any;
}

/* Once, also where several codes come from one record. */
static void list_expert(struct sharing *sharing, uint32_t expert)
{
    const struct moec_variants *variants = sharing->variants;
    const struct moec_variants_range *range = sharing->range;
    const size_t first = sharing->n;
    for (uint32_t c = 0; c < range->n_code; c++) {
        const struct variants_parts parts = range->codes[c] != 0
                                                ? variants_parts_of(variants, range->codes[c])
                                                : variants_assigned_parts(variants, range->layer, expert);
        for (uint32_t i = 0; i < parts.n; i++) {
            const struct moec_record_layout layout =
                variants_layout_of(variants, range->layer, expert, parts.index[i]);
            bool is_new = has_codes(&layout);
            for (size_t r = first; r < sharing->n; r++)
                is_new = is_new && sharing->records[r].index != parts.index[i];
            if (is_new)
                sharing->records[sharing->n++] =
                    (struct record){.expert = expert, .index = parts.index[i], .n_bytes = layout.n_bytes};
        }
    }
}

static enum moec_status list_records(struct sharing *sharing, struct moec_error *err)
{
    const struct moec_variants_range *range = sharing->range;
    const uint32_t n_expert = sharing->variants->of.config->n_expert, left = n_expert - range->first,
                   n = range->n < left ? range->n : left;
    MOEC_TRY(moec_alloc((void **)&sharing->records, 2 * (uint64_t)range->n_code * n, sizeof *sharing->records,
                        "records that ranks share", err));
    for (uint32_t expert = range->first; expert < range->first + n; expert++)
        list_expert(sharing, expert);
    return MOEC_OK;
}

static uint64_t count_missing_bytes(const struct sharing *sharing)
{
    uint64_t n_bytes = 0;
    for (size_t r = 0; r < sharing->n; r++)
        n_bytes += slot_of(sharing, &sharing->records[r])->bytes == NULL ? sharing->records[r].n_bytes : 0;
    return n_bytes;
}

/* Under the lock: makes room for what is missing, beside what is there of the range. */
static bool make_room(const struct sharing *sharing)
{
    struct moec_record_store *store = &sharing->variants->store;
    uint64_t n_bytes = 0;
    for (size_t r = sharing->n; r-- > 0;) {
        n_bytes += sharing->records[r].n_bytes;
        moec_record_store_move(store, slot_of(sharing, &sharing->records[r]), true);
    }
    if (store->limit_bytes > 0 && n_bytes > store->limit_bytes)
        return false;
    const uint64_t missing_bytes = count_missing_bytes(sharing);
    return moec_record_store_make_room(store, missing_bytes) && count_missing_bytes(sharing) == missing_bytes;
}

static void fill_told(const struct sharing *sharing, uint8_t *item)
{
    struct moec_variants *variants = sharing->variants;
    const struct variants_pace *pace = &variants->pace;
    struct told told = {.n_threads = (uint32_t)variants->encoding.pool.n_threads};
    memcpy(told.encode_ns, pace->encode_ns, sizeof told.encode_ns);
    if (pace->exchange_bytes > 0)
        told.exchange_ns = (float)(pace->exchange_ns / pace->exchange_bytes);
    pthread_mutex_lock(&variants->lock);
    told.has_room = make_room(sharing);
    for (size_t r = 0; r < sharing->n; r++)
        item[sizeof told + r] = slot_of(sharing, &sharing->records[r])->bytes == NULL;
    pthread_mutex_unlock(&variants->lock);
    memcpy(item, &told, sizeof told);
}

/* Leaves the records that any rank lacks. */
static void keep_missing(struct sharing *sharing, const uint8_t *items, size_t item_bytes)
{
    const uint32_t count = moec_ranks_count(sharing->ranks);
    const size_t n = sharing->n;
    sharing->n = 0;
    for (size_t r = 0; r < n; r++) {
        bool is_missing = false;
        for (uint32_t rank = 0; rank < count; rank++)
            is_missing = is_missing || items[rank * item_bytes + sizeof(struct told) + r] != 0;
        if (is_missing)
            sharing->records[sharing->n++] = sharing->records[r];
    }
}

/* How often n_threads take a record each until n are made. */
static double rounds(size_t n, uint32_t n_threads)
{
    return (double)((n + n_threads - 1) / n_threads);
}

/* What encoding all records alone takes a rank longer than its part. */
static double saved_ns(const struct sharing *sharing, const struct told *told)
{
    const size_t n = sharing->n, count = moec_ranks_count(sharing->ranks);
    double sum = 0;
    for (size_t r = 0; r < n; r++)
        sum += (double)told->encode_ns[sharing->records[r].index];
    return n > 0 ? sum / (double)n *
                       (rounds(n, told->n_threads) - rounds((n + count - 1) / count, told->n_threads))
                 : 0;
}

/* Whether any rank has made such a record. */
static bool is_known(const struct sharing *sharing, const uint8_t *items, size_t item_bytes, uint32_t index)
{
    bool any = false;
    for (uint32_t rank = 0; rank < moec_ranks_count(sharing->ranks); rank++) {
        struct told told;
        memcpy(&told, items + rank * item_bytes, sizeof told);
        any = any || told.encode_ns[index] > 0;
    }
    return any;
}

static void read_told(struct sharing *sharing, const uint8_t *items, size_t item_bytes)
{
    double n_bytes = 0;
    keep_missing(sharing, items, item_bytes);
    sharing->has_room = sharing->is_known = true;
    for (size_t r = 0; r < sharing->n; r++) {
        const struct record *record = &sharing->records[r];
        const bool is_told = r > 0 && record->index == sharing->records[r - 1].index;
        n_bytes += (double)record->n_bytes;
        sharing->is_known =
            sharing->is_known && (is_told || is_known(sharing, items, item_bytes, record->index));
    }
    for (uint32_t rank = 0; rank < moec_ranks_count(sharing->ranks); rank++) {
        struct told told;
        memcpy(&told, items + rank * item_bytes, sizeof told);
        sharing->has_room = sharing->has_room && told.has_room != 0;
        sharing->exchange_ns = fmax(sharing->exchange_ns, (double)told.exchange_ns * n_bytes);
        sharing->saved_ns = fmax(sharing->saved_ns, saved_ns(sharing, &told));
    }
}

static enum moec_status tell(struct sharing *sharing, struct moec_error *err)
{
    const uint32_t count = moec_ranks_count(sharing->ranks);
    const size_t item_bytes = sizeof(struct told) + sharing->n;
    uint8_t *items = NULL;
    MOEC_TRY(moec_alloc((void **)&items, count, item_bytes, "what ranks lack", err));
    fill_told(sharing, items + moec_ranks_own(sharing->ranks) * item_bytes);
    const enum moec_status status = moec_ranks_gather(sharing->ranks, items, count, item_bytes, err);
    if (status == MOEC_OK)
        read_told(sharing, items, item_bytes);
    free(items);
    return status;
}

/* By numbers that all ranks have alike. */
static bool is_worth_it(const struct sharing *sharing)
{
    struct variants_pace *pace = &sharing->variants->pace;
    if (!sharing->has_room || sharing->n == 0)
        return false;
    if (!sharing->is_known || sharing->exchange_ns <= SHORT_NS || sharing->exchange_ns <= sharing->saved_ns ||
        pace->n_skipped == TRY_AFTER) {
        pace->n_skipped = 0;
        return true;
    }
    pace->n_skipped++;
    return false;
}

/* ---- the exchange ---- */

static enum moec_status take_memory(struct sharing *sharing, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    pthread_mutex_lock(&sharing->variants->lock);
    for (size_t r = 0; r < sharing->n && status == MOEC_OK; r++) {
        struct record *record = &sharing->records[r];
        if (slot_of(sharing, record)->bytes == NULL)
            status = moec_record_store_take(&sharing->variants->store, record->n_bytes, &record->bytes, err);
    }
    pthread_mutex_unlock(&sharing->variants->lock);
    return status;
}

/* What was taken into the slots, as far as it was made, and back else. */
static void leave_memory(struct sharing *sharing, const uint8_t *made)
{
    struct moec_variants *variants = sharing->variants;
    pthread_mutex_lock(&variants->lock);
    for (size_t r = 0; r < sharing->n; r++) {
        struct record *record = &sharing->records[r];
        if (record->bytes == NULL)
            continue;
        if (made[r] != 0)
            moec_record_store_keep(&variants->store, slot_of(sharing, record), record->bytes,
                                   record->n_bytes);
        else
            moec_record_store_give_back(&variants->store, record->n_bytes, record->bytes);
        variants->encoding.n_encoded += record->encode_ns > 0;
        record->bytes = NULL;
    }
    pthread_mutex_unlock(&variants->lock);
}

struct making {
    struct sharing *sharing;
    uint8_t *made; /* (n) */
};

static void make_one(void *context, size_t item, int thread)
{
    const struct making *making = context;
    struct sharing *sharing = making->sharing;
    struct moec_variants *variants = sharing->variants;
    const size_t r = item * moec_ranks_count(sharing->ranks) + moec_ranks_own(sharing->ranks);
    struct record *record = &sharing->records[r];
    const struct moec_record_layout layout =
        variants_layout_of(variants, sharing->range->layer, record->expert, record->index);
    making->made[r] = 1;
    if (record->bytes == NULL) /* it is there */
        return;
    const struct moec_expert_record made = {sharing->range->layer, record->expert, &layout};
    uint8_t *scratch = variants->encoding.scratch + (size_t)thread * variants->encoding.scratch_bytes;
    const uint64_t begun_ns = moec_now_ns();
    making->made[r] = moec_variants_encode(variants, &made, scratch, record->bytes, NULL) == MOEC_OK;
    record->encode_ns = making->made[r] != 0 ? moec_now_ns() - begun_ns + 1 : 0;
}

/* Those of this rank, on all threads. */
static void make_own(struct sharing *sharing, uint8_t *made)
{
    struct making making = {sharing, made};
    moec_parallel_for(&sharing->variants->encoding.pool, moec_ranks_share(sharing->ranks, sharing->n),
                      make_one, &making);
    for (size_t r = 0; r < sharing->n; r++)
        if (sharing->records[r].encode_ns > 0)
            sharing->variants->pace.encode_ns[sharing->records[r].index] =
                (float)sharing->records[r].encode_ns;
}

/* Rank by rank, so that small records of one go together. */
static enum moec_status spread(struct sharing *sharing, const uint8_t *made, struct moec_error *err)
{
    const uint32_t count = moec_ranks_count(sharing->ranks);
    struct moec_ranks_part *parts = NULL;
    size_t n_part = 0;
    uint64_t n_bytes = 0;
    MOEC_TRY(moec_alloc((void **)&parts, sharing->n, sizeof *parts, "records that ranks share", err));
    for (uint32_t rank = 0; rank < count; rank++)
        for (size_t r = rank; r < sharing->n; r += count) {
            const struct record *record = &sharing->records[r];
            uint8_t *bytes = record->bytes != NULL ? record->bytes : slot_of(sharing, record)->bytes;
            if (made[r] != 0)
                parts[n_part++] = (struct moec_ranks_part){rank, bytes, record->n_bytes};
            n_bytes += made[r] != 0 ? record->n_bytes : 0;
        }
    const uint64_t begun_ns = moec_now_ns();
    const enum moec_status status = moec_ranks_spread_parts(sharing->ranks, parts, n_part, err);
    struct variants_pace *pace = &sharing->variants->pace;
    pace->exchange_ns = pace->exchange_ns / 2 + (double)(moec_now_ns() - begun_ns);
    pace->exchange_bytes = pace->exchange_bytes / 2 + (double)n_bytes;
    free(parts);
    return status;
}

static enum moec_status exchange(struct sharing *sharing, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    uint8_t *made = NULL;
    MOEC_TRY(moec_alloc((void **)&made, sharing->n, 1, "records that ranks share", err));
    MOEC_TRY_OUT(take_memory(sharing, err));
    make_own(sharing, made);
    MOEC_TRY_OUT(moec_ranks_gather(sharing->ranks, made, sharing->n, 1, err));
    MOEC_TRY_OUT(spread(sharing, made, err));
out:
    if (status != MOEC_OK)
        memset(made, 0, sharing->n);
    leave_memory(sharing, made);
    free(made);
    return status;
}

enum moec_status moec_variants_share(struct moec_variants *variants, struct moec_ranks *ranks,
                                     const struct moec_variants_range *range, struct moec_error *err)
{
    struct sharing sharing = {.variants = variants, .ranks = ranks, .range = range};
    if (moec_ranks_count(ranks) < 2 || variants->encoding.by->copies)
        return MOEC_OK;
    enum moec_status status = list_records(&sharing, err);
    if (status == MOEC_OK && sharing.n > 0)
        status = tell(&sharing, err);
    if (status == MOEC_OK && is_worth_it(&sharing))
        status = exchange(&sharing, err);
    free(sharing.records);
    return status;
}
