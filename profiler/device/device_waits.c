/* Costs are differences of medians. Tokens with no wait are taken from those with one a layer, and these from
 * those with k. Waits themselves are taken off each token, and the check of a record is left out, being an
 * item of its own. What the reading thread shares with the decoding one is under its lock. */
#include "profiler/device/device_waits.h"

#include "formats/base/clock.h"
#include "formats/base/memory.h"
#include "profiler/common/quantiles.h"
#include "profiler/common/random.h"
#include "runtime/experts/expert_cache.h"
#include "runtime/forward/pass/session.h"
#include "runtime/storage/record_reader.h"

#include <pthread.h>
#include <string.h>

#define BLOCK_TOKENS 10u
#define SETTLING     3u
#define ROUNDS       4u
#define MOST_TOKENS  (ROUNDS * (BLOCK_TOKENS - SETTLING)) /* that are timed, of a kind and a wait */
#define SELDOM       3u                                   /* layers to a wait */
#define INSTANT      1000000000000u /* bytes a second of a device whose answers are all wait */

/* Waits in each MoE layer: none, one, or one for each expert of a token; one in every third layer; and none,
 * while another thread reads a record. */
enum kind { NEVER, ONCE, ALWAYS, RARELY, BESIDE, N_KIND };

static const uint64_t waits_ns[MOEC_DEVICE_WAITS] = {50000, 100000, 150000, 250000, 1000000};

/* The thread that reads beside computing, a record for each answer, as far as it keeps up. */
struct companion {
    struct waiting *waiting;
    struct moec_reader *reader; /* owned */
    uint8_t *slot;              /* owned */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t asked;
    bool is_started, is_asked, is_stopping;
    uint32_t n_read; /* under the lock */
    enum moec_status status;
    struct moec_error error;
};

/* A source of experts, the last of which in each layer are read when they are asked for. */
struct waiting {
    struct moec_experts base;
    const struct moec_device_waits_setup *setup;
    struct moec_forward forward;     /* the setup's, with these experts */
    struct moec_expert_cache *cache; /* owned: reads, and keeps nothing */
    enum kind kind;
    uint32_t n_waits; /* of the layer at work */
    uint32_t n_active, n_taken;
    uint32_t n_held; /* that were read, and not released yet */
    uint32_t held[MOEC_MAX_TOP_K];
    struct companion companion;
};

/* ---- reading ---- */

/* Expert key % n_expert of MoE layer key / n_expert. */
static enum moec_status read_expert(const struct moec_bundle *bundle, struct moec_reader *reader,
                                    uint32_t key, uint8_t *slot, struct moec_error *err)
{
    const uint32_t ordinal = key / bundle->config.n_expert, expert = key % bundle->config.n_expert;
    const struct moec_record_entry *record = moec_bundle_record(bundle, 0, ordinal, expert);
    const struct moec_record_place place = moec_record_place_of(bundle, record->offset, record->n_bytes);
    struct moec_read read = {.offset = place.offset, .n_bytes = place.n_bytes, .buffer = slot};
    struct moec_read *done = NULL;
    reader->ops->submit(reader, &read);
    while (done == NULL)
        done = reader->ops->wait(reader);
    if (read.error != 0)
        return moec_record_failed(bundle, (struct moec_record_id){0, ordinal, expert}, read.error, NULL, err);
    return moec_bundle_check_record(bundle, (struct moec_record_id){0, ordinal, expert}, slot + place.skip,
                                    false, err);
}

static void *run_companion(void *argument)
{
    struct companion *companion = argument;
    const struct moec_bundle *bundle = companion->waiting->setup->bundle;
    const uint32_t n_expert = bundle->config.n_expert, n_layer = moec_config_moe_count(&bundle->config);
    (void)pthread_mutex_lock(&companion->lock);
    while (!companion->is_stopping) {
        if (!companion->is_asked || companion->status != MOEC_OK) {
            (void)pthread_cond_wait(&companion->asked, &companion->lock);
            continue;
        }
        const uint32_t key = companion->n_read++ % (n_layer * n_expert);
        companion->is_asked = false;
        (void)pthread_mutex_unlock(&companion->lock);
        const enum moec_status status =
            read_expert(bundle, companion->reader, key, companion->slot, &companion->error);
        (void)pthread_mutex_lock(&companion->lock);
        companion->status = status;
    }
    (void)pthread_mutex_unlock(&companion->lock);
    return NULL;
}

static void ask_companion(struct companion *companion)
{
    (void)pthread_mutex_lock(&companion->lock);
    companion->is_asked = true;
    (void)pthread_cond_signal(&companion->asked);
    (void)pthread_mutex_unlock(&companion->lock);
}

static uint32_t companion_count(struct companion *companion)
{
    (void)pthread_mutex_lock(&companion->lock);
    const uint32_t n_read = companion->n_read;
    (void)pthread_mutex_unlock(&companion->lock);
    return n_read;
}

/* Of its last read that has ended; after one that failed it reads no more. */
static enum moec_status companion_status(struct companion *companion, struct moec_error *err)
{
    (void)pthread_mutex_lock(&companion->lock);
    const enum moec_status status = companion->status;
    if (status != MOEC_OK)
        *err = companion->error;
    (void)pthread_mutex_unlock(&companion->lock);
    return status;
}

static enum moec_status start_companion(struct waiting *waiting, uint64_t wait_ns, uint64_t slot_bytes,
                                        struct moec_error *err)
{
    const struct moec_record_io io = {
        .emulation = {.bytes_per_second = INSTANT, .latency_ns = wait_ns},
    };
    struct companion *companion = &waiting->companion;
    void *slot = NULL;
    companion->waiting = waiting;
    MOEC_TRY(moec_alloc_pages(&slot, slot_bytes, "a record that is read", err));
    companion->slot = slot;
    MOEC_TRY(moec_record_reader_create(waiting->setup->bundle, 0, &io,
                                       (struct moec_read_buffer){slot, slot_bytes}, &companion->reader, err));
    (void)pthread_mutex_init(&companion->lock, NULL);
    (void)pthread_cond_init(&companion->asked, NULL);
    companion->is_started = pthread_create(&companion->thread, NULL, run_companion, companion) == 0;
    if (companion->is_started)
        return MOEC_OK;
    (void)pthread_cond_destroy(&companion->asked);
    (void)pthread_mutex_destroy(&companion->lock);
    return moec_fail(err, MOEC_ERR_MEMORY, "cannot start a reader thread");
}

static void stop_companion(struct companion *companion)
{
    if (companion->is_started) {
        (void)pthread_mutex_lock(&companion->lock);
        companion->is_stopping = true;
        (void)pthread_cond_signal(&companion->asked);
        (void)pthread_mutex_unlock(&companion->lock);
        (void)pthread_join(companion->thread, NULL);
        (void)pthread_cond_destroy(&companion->asked);
        (void)pthread_mutex_destroy(&companion->lock);
    }
    if (companion->reader != NULL)
        companion->reader->ops->destroy(companion->reader);
    free(companion->slot);
}

/* ---- the source ---- */

static bool must_wait(const struct waiting *waiting)
{
    return waiting->n_taken + waiting->n_waits >= waiting->n_active;
}

static uint32_t ordinal_of(const struct waiting *waiting, uint32_t layer)
{
    return (uint32_t)moec_config_moe_ordinal(&waiting->setup->bundle->config, layer);
}

static uint32_t count_waits(const struct waiting *waiting, uint32_t ordinal)
{
    const struct moec_config *config = &waiting->setup->bundle->config;
    switch (waiting->kind) {
    case ONCE:
        return 1;
    case ALWAYS:
        return config->top_k;
    case RARELY:
        return (ordinal - moec_config_moe_encoder_count(config)) % SELDOM == 0 ? 1 : 0;
    default:
        return 0;
    }
}

static void waiting_expect(struct moec_experts *self, const struct moec_router_answer *answer)
{
    struct waiting *waiting = (struct waiting *)self;
    struct moec_experts *resident = waiting->setup->resident;
    waiting->n_active = answer->active.n;
    waiting->n_waits = count_waits(waiting, ordinal_of(waiting, answer->layer));
    waiting->n_taken = waiting->n_held = 0;
    resident->ops->expect(resident, answer);
    if (waiting->kind == BESIDE)
        ask_companion(&waiting->companion);
}

static bool waiting_ready(struct moec_experts *self, struct moec_expert_request request)
{
    struct waiting *waiting = (struct waiting *)self;
    struct moec_experts *resident = waiting->setup->resident;
    return !must_wait(waiting) && resident->ops->ready(resident, request);
}

/* What is waited for is held in memory too. */
static enum moec_status waiting_acquire(struct moec_experts *self, struct moec_expert_request request,
                                        struct moec_mlp *mlp, struct moec_error *err)
{
    struct waiting *waiting = (struct waiting *)self;
    struct moec_experts *resident = waiting->setup->resident,
                        *reading = moec_expert_cache_experts(waiting->cache);
    const bool is_read = must_wait(waiting);
    waiting->n_taken++;
    MOEC_TRY(resident->ops->acquire(resident, request, mlp, err));
    if (!is_read)
        return MOEC_OK;
    const enum moec_status status = reading->ops->acquire(reading, request, mlp, err);
    if (status == MOEC_OK)
        waiting->held[waiting->n_held++] = request.expert;
    else
        resident->ops->release(resident, request);
    return status;
}

static void waiting_release(struct moec_experts *self, struct moec_expert_request request)
{
    struct waiting *waiting = (struct waiting *)self;
    struct moec_experts *resident = waiting->setup->resident,
                        *reading = moec_expert_cache_experts(waiting->cache);
    for (uint32_t i = 0; i < waiting->n_held; i++)
        if (waiting->held[i] == request.expert)
            reading->ops->release(reading, request);
    resident->ops->release(resident, request);
}

static void waiting_cancel(struct moec_experts *self, struct moec_expert_request request)
{
    struct moec_experts *resident = ((struct waiting *)self)->setup->resident;
    resident->ops->cancel(resident, request);
}

static const struct moec_experts_ops waiting_ops = {
    .acquire = waiting_acquire,
    .release = waiting_release,
    .expect = waiting_expect,
    .cancel = waiting_cancel,
    .ready = waiting_ready,
};

static enum moec_status open_waiting(struct waiting *waiting, const struct moec_device_waits_setup *setup,
                                     uint64_t wait_ns, struct moec_error *err)
{
    const struct moec_bundle *bundle = setup->bundle;
    const struct moec_config *config = &bundle->config;
    const uint64_t slot_bytes = moec_record_sizes_of(bundle, 0).largest_bytes;
    const struct moec_expert_cache_options options = {
        .buffer.n_bytes = slot_bytes * config->top_k,
        .records.io.emulation = {.bytes_per_second = INSTANT, .latency_ns = wait_ns},
        .keeps.nothing = true};
    *waiting = (struct waiting){.base = {.ops = &waiting_ops, .max_held = setup->resident->max_held},
                                .setup = setup,
                                .forward = *setup->forward};
    waiting->forward.experts = &waiting->base;
    MOEC_TRY(moec_expert_cache_create(bundle, &options, &waiting->cache, err));
    return start_companion(waiting, wait_ns, slot_bytes, err);
}

static void close_waiting(struct waiting *waiting)
{
    stop_companion(&waiting->companion);
    moec_expert_cache_free(waiting->cache);
}

/* ---- tokens ---- */

struct times {
    float ns[N_KIND][MOST_TOKENS]; /* of a token, without its waits */
    uint32_t n;                    /* of each kind */
    double n_beside;               /* records that were read beside a token, on average */
};

/* From asking the device to its answers, of all reads so far. */
static uint64_t read_ns(const struct waiting *waiting)
{
    const uint32_t n_layer = moec_config_moe_count(&waiting->setup->bundle->config);
    uint64_t sum_ns = 0;
    for (uint32_t s = 0; s < n_layer; s++)
        sum_ns += moec_expert_cache_layer_counters(waiting->cache, s).read_ns;
    return sum_ns;
}

static enum moec_status decode(struct waiting *waiting, struct moec_session *session, float *logits,
                               struct moec_random *random, float *ns, struct moec_error *err)
{
    const uint32_t at = 0, n_vocab = waiting->setup->bundle->config.n_vocab;
    const uint32_t token = (uint32_t)moec_random_below(random, n_vocab);
    const uint64_t read_before_ns = read_ns(waiting), begun_ns = moec_now_ns();
    MOEC_TRY(moec_session_step(session, &token, 1, &at, 1, logits, err));
    const uint64_t took_ns = moec_now_ns() - begun_ns;
    *ns = (float)took_ns - (float)(read_ns(waiting) - read_before_ns);
    return MOEC_OK;
}

/* Kinds take turns in blocks, the first tokens of which still feel the block before. */
static enum moec_status decode_block(struct waiting *waiting, struct moec_session *session, float *logits,
                                     struct moec_random *random, float *ns, struct moec_error *err)
{
    float unsettled = 0;
    moec_session_truncate(session, 0);
    for (uint32_t i = 0; i < BLOCK_TOKENS; i++)
        MOEC_TRY(
            decode(waiting, session, logits, random, i < SETTLING ? &unsettled : &ns[i - SETTLING], err));
    return MOEC_OK;
}

/* Of an encoder-decoder model, which decodes tokens of a target. */
static enum moec_status encode_source(const struct waiting *waiting, struct moec_session *session,
                                      struct moec_random *random, struct moec_error *err)
{
    const struct moec_config *config = &waiting->setup->bundle->config;
    uint32_t source[BLOCK_TOKENS];
    for (uint32_t i = 0; i < BLOCK_TOKENS; i++)
        source[i] = (uint32_t)moec_random_below(random, config->n_vocab);
    return moec_config_is_encoder_decoder(config) ? moec_session_encode(session, source, BLOCK_TOKENS, err)
                                                  : MOEC_OK;
}

static enum moec_status decode_in_turns(struct waiting *waiting, float *logits, struct times *times,
                                        struct moec_error *err)
{
    const struct moec_device_waits_setup *setup = waiting->setup;
    const uint64_t begun_ns = moec_now_ns();
    struct moec_random random = {1};
    struct moec_session *session = NULL;
    enum moec_status status = MOEC_OK;
    uint32_t n_rounds = 0;
    times->n = 0;
    times->n_beside = 0;
    MOEC_TRY(moec_session_create(&waiting->forward, BLOCK_TOKENS, &session, err));
    MOEC_TRY_OUT(encode_source(waiting, session, &random, err));
    for (uint32_t round = 0; round < ROUNDS && (round == 0 || moec_now_ns() - begun_ns < setup->limit_ns);
         round++) {
        for (enum kind kind = NEVER; kind < N_KIND; kind++) {
            const uint32_t n_read = companion_count(&waiting->companion);
            waiting->kind = kind;
            MOEC_TRY_OUT(decode_block(waiting, session, logits, &random, &times->ns[kind][times->n], err));
            if (kind == BESIDE)
                times->n_beside += (double)(companion_count(&waiting->companion) - n_read) / BLOCK_TOKENS;
            MOEC_TRY_OUT(moec_progress_report(setup->progress, "waiting", round * N_KIND + kind,
                                              ROUNDS * N_KIND, err));
        }
        times->n += BLOCK_TOKENS - SETTLING;
        n_rounds++;
    }
    times->n_beside /= n_rounds;
    status = companion_status(&waiting->companion, err);
out:
    moec_session_free(session);
    return status;
}

static double median(const float *ns, uint32_t n)
{
    static const double middle[] = {0.5};
    float values[MOST_TOKENS], scratch[MOST_TOKENS];
    double value = 0;
    memcpy(values, ns, n * sizeof *ns);
    if (n > 0)
        moec_quantiles(values, scratch, n, middle, 1, &value);
    return value;
}

static uint64_t mean_record_bytes(const struct moec_bundle *bundle)
{
    const uint32_t n_layer = moec_config_moe_count(&bundle->config), n_expert = bundle->config.n_expert;
    uint64_t sum = 0;
    for (uint32_t s = 0; s < n_layer; s++)
        for (uint32_t e = 0; e < n_expert; e++)
            sum += moec_bundle_record(bundle, 0, s, e)->n_bytes;
    return sum / ((uint64_t)n_layer * n_expert);
}

static double beside_ns(const struct times *times)
{
    const double never = median(times->ns[NEVER], times->n), beside = median(times->ns[BESIDE], times->n);
    return times->n_beside > 0 && beside > never ? (beside - never) / times->n_beside : 0;
}

static uint64_t whole(double ns)
{
    return ns > 0 ? (uint64_t)ns : 0;
}

/* The check is an item of its own (check_ns_per_byte), and left out here. */
static void conclude(const struct times *times, const struct moec_bundle *bundle, double check_ns,
                     struct moec_device_wait *wait)
{
    const struct moec_config *config = &bundle->config;
    /* That a decoded token passes. */
    const double n_layer = moec_config_moe_count(config) - moec_config_moe_encoder_count(config);
    const double n_next = config->top_k - 1.0;
    const double never = median(times->ns[NEVER], times->n), once = median(times->ns[ONCE], times->n);
    const double always = median(times->ns[ALWAYS], times->n), rarely = median(times->ns[RARELY], times->n);
    const uint32_t n_rare = ((uint32_t)n_layer - 1) / SELDOM + 1;
    if (n_layer == 0)
        return;
    /* The last layer's wait is a lone one too. */
    const double lone = (rarely - never) / (double)n_rare;
    wait->first_ns = whole((n_layer > 1 ? (once - never - lone) / (n_layer - 1) : lone) - check_ns);
    wait->lone_ns = whole(lone - check_ns);
    wait->lone_ns = wait->lone_ns > wait->first_ns ? wait->lone_ns : wait->first_ns;
    wait->next_ns = n_next > 0 ? whole((always - once) / n_layer / n_next - check_ns) : wait->first_ns;
}

enum moec_status moec_device_measure_waits(const struct moec_device_waits_setup *setup,
                                           struct moec_device *device, struct moec_error *err)
{
    const double check_ns = device->check_ns_per_byte * (double)mean_record_bytes(setup->bundle);
    enum moec_status status = MOEC_OK;
    void *logits = NULL;
    if (setup->bundle->config.n_position < BLOCK_TOKENS)
        return MOEC_OK;
    MOEC_TRY(moec_alloc(&logits, setup->bundle->config.n_vocab, sizeof(float), "logits", err));
    for (uint32_t i = 0; status == MOEC_OK && i < MOEC_DEVICE_WAITS; i++) {
        struct waiting waiting;
        struct times times;
        status = open_waiting(&waiting, setup, waits_ns[i], err);
        if (status == MOEC_OK)
            status = decode_in_turns(&waiting, logits, &times, err);
        close_waiting(&waiting);
        if (status != MOEC_OK)
            break;
        if (i == 0)
            device->preload_ns = whole(beside_ns(&times));
        device->waits[i].stall_ns = waits_ns[i];
        conclude(&times, setup->bundle, check_ns, &device->waits[i]);
        device->n_waits = i + 1;
    }
    free(logits);
    return status;
}
