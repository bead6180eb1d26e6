/* A slower device on top of a reader: requests end when the emulated device would have ended them.
 *
 * The device works on one request at a time, in the order of issue. Which one it has come to follows from the
 * clock alone, so every call first begins those whose predecessor is over by now. A device works beside the
 * processor; the page cache, from which the bytes come, does not: it copies them in the thread that asks. So
 * the reader underneath is asked only when somebody waits, who has that time to spare. wait takes the bytes
 * from there and sleeps until they are due. A reader underneath that is slower than the emulated device
 * delays what it delivers, not the times of what follows. */
#include "runtime/storage/reader_internal.h"

#include "formats/base/memory.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

/* A request that has begun. */
struct emulated_slot {
    struct moec_read *read; /* the caller's */
    struct moec_read inner; /* the same for the reader underneath */
    uint64_t due_ns;
    bool is_asked_for; /* of the reader underneath */
    bool has_arrived;
};

struct emulated_reader {
    struct moec_reader base;
    struct moec_reader *under; /* owned */
    struct moec_emulation emulation;
    struct moec_read_list waiting; /* not begun; begun_ns holds when they were issued */
    uint64_t busy_until_ns;        /* when the last request begun is due */
    uint64_t lead_ns;              /* how late sleeps end, on average */
    pthread_mutex_t lock;          /* for sleeping alone */
    pthread_cond_t woken;
    atomic_bool is_woken;
    uint32_t first, n_slots; /* of `slots`, in order of issue, going round */
    struct emulated_slot slots[];
};

uint64_t moec_emulation_done_ns(const struct moec_emulation *emulation, uint64_t issued_ns,
                                uint64_t previous_done_ns, uint64_t n_bytes)
{
    uint64_t ready_ns = issued_ns + emulation->latency_ns;
    unsigned __int128 transfer_ns = (unsigned __int128)n_bytes * 1000000000u / emulation->bytes_per_second;
    return (ready_ns > previous_done_ns ? ready_ns : previous_done_ns) + emulation->request_ns +
           (uint64_t)transfer_ns;
}

/* Begins what the device has come to by `now_ns`, and what the caller needs in any case: the bytes of that
 * are fetched together. */
static void advance(struct emulated_reader *self, uint64_t now_ns)
{
    while (self->waiting.first != NULL && self->n_slots < self->base.depth &&
           (self->busy_until_ns <= now_ns || self->n_slots < self->base.n_needed)) {
        struct moec_read *read = moec_read_list_pop(&self->waiting);
        uint64_t issued_ns = read->at.begun_ns, previous_ns = self->busy_until_ns;
        struct emulated_slot *slot = &self->slots[(self->first + self->n_slots) % self->base.depth];
        self->n_slots++;
        self->busy_until_ns = moec_emulation_done_ns(&self->emulation, issued_ns, previous_ns, read->n_bytes);
        read->at.begun_ns = issued_ns > previous_ns ? issued_ns : previous_ns;
        *slot = (struct emulated_slot){
            .read = read,
            .inner = {.offset = read->offset,
                      .n_bytes = read->n_bytes,
                      .buffer = read->buffer,
                      .sum = {.is_wanted = read->sum.is_wanted, .skip = read->sum.skip}},
            .due_ns = self->busy_until_ns,
        };
        slot->inner.tag = (uint64_t)(slot - self->slots);
    }
}

static void ask_underneath(struct emulated_reader *self)
{
    for (uint32_t i = 0; i < self->n_slots; i++) {
        struct emulated_slot *slot = &self->slots[(self->first + i) % self->base.depth];
        self->under->has_more = i + 1 < self->n_slots;
        if (!slot->is_asked_for)
            self->under->ops->submit(self->under, &slot->inner);
        slot->is_asked_for = true;
    }
}

static void emulated_submit(struct moec_reader *base, struct moec_read *read)
{
    struct emulated_reader *self = (struct emulated_reader *)base;
    uint64_t now_ns = moec_now_ns();
    advance(self, now_ns);
    read->at.begun_ns = now_ns;
    moec_read_list_push(&self->waiting, read);
    advance(self, now_ns);
}

static bool emulated_cancel(struct moec_reader *base, struct moec_read *read)
{
    struct emulated_reader *self = (struct emulated_reader *)base;
    advance(self, moec_now_ns());
    return moec_read_list_remove(&self->waiting, read);
}

/* Sleeps end late: by the timer's slack, which is 50 microseconds for a thread unless told otherwise, and by
 * what the system takes to run it, some tens more. That is as much as the latency that is emulated, so sleeps
 * are made shorter by what they are late on average, and what is left then is waited for awake: a few
 * microseconds for a request. */
#define MAX_LEAD_NS 60000u

static void learn_lead(struct emulated_reader *self, uint64_t wanted_ns, uint64_t woken_ns)
{
    uint64_t late_ns = woken_ns > wanted_ns ? woken_ns - wanted_ns : 0;
    late_ns =
        late_ns < MAX_LEAD_NS ? late_ns : MAX_LEAD_NS; /* a core that was busy says nothing of sleeping */
    self->lead_ns = (7 * self->lead_ns + late_ns) / 8;
}

static void sleep_until(struct emulated_reader *self, uint64_t until_ns)
{
    struct timespec time = {.tv_sec = (time_t)(until_ns / 1000000000u),
                            .tv_nsec = (long)(until_ns % 1000000000u)};
    int slack_ns = prctl(PR_GET_TIMERSLACK), answer = 0;
    (void)prctl(PR_SET_TIMERSLACK, 1UL);
    (void)pthread_mutex_lock(&self->lock);
    while (answer == 0 && !atomic_load(&self->is_woken))
        answer = pthread_cond_timedwait(&self->woken, &self->lock, &time);
    (void)pthread_mutex_unlock(&self->lock);
    if (slack_ns > 0)
        (void)prctl(PR_SET_TIMERSLACK, (unsigned long)slack_ns);
    if (answer == ETIMEDOUT)
        learn_lead(self, until_ns, moec_now_ns());
}

/* Until then or until woken. */
static void wait_until(struct emulated_reader *self, uint64_t now_ns, uint64_t until_ns)
{
    const uint64_t wait_ns = until_ns - now_ns;
    if (self->base.spins && wait_ns < MOEC_READER_SPIN_NS)
        while (!atomic_load(&self->is_woken) && moec_read_watch(until_ns))
            continue;
    else if (wait_ns > self->lead_ns)
        sleep_until(self, until_ns - self->lead_ns);
    else
        while (!atomic_load(&self->is_woken) && moec_now_ns() < until_ns)
            continue;
}

static void wait_for_wake(struct emulated_reader *self)
{
    (void)pthread_mutex_lock(&self->lock);
    while (!atomic_load(&self->is_woken))
        (void)pthread_cond_wait(&self->woken, &self->lock);
    (void)pthread_mutex_unlock(&self->lock);
}

static struct moec_read *take_first(struct emulated_reader *self)
{
    struct emulated_slot *slot = &self->slots[self->first];
    struct moec_read *read = slot->read;
    read->error = slot->inner.error;
    read->progress.done_bytes = slot->inner.progress.done_bytes;
    read->sum.is_there = slot->inner.sum.is_there;
    read->sum.crc32c = slot->inner.sum.crc32c;
    read->at.done_ns = slot->due_ns > slot->inner.at.done_ns ? slot->due_ns : slot->inner.at.done_ns;
    self->first = (self->first + 1) % self->base.depth;
    self->n_slots--;
    return read;
}

/* Whether the first request is over by now. */
static bool is_first_done(const struct emulated_reader *self, uint64_t now_ns)
{
    const struct emulated_slot *slot = &self->slots[self->first];
    return self->n_slots > 0 && slot->has_arrived && slot->due_ns <= now_ns;
}

static struct moec_read *emulated_take(struct moec_reader *base)
{
    struct emulated_reader *self = (struct emulated_reader *)base;
    const uint64_t now_ns = moec_now_ns();
    advance(self, now_ns);
    if (self->n_slots == 0 || self->slots[self->first].due_ns > now_ns)
        return NULL;
    ask_underneath(self);
    while (!self->slots[self->first].has_arrived && self->under->ops->take != NULL) {
        struct moec_read *inner = self->under->ops->take(self->under);
        if (inner == NULL)
            break;
        self->slots[inner->tag].has_arrived = true;
    }
    return is_first_done(self, now_ns) ? take_first(self) : NULL;
}

/* Of those that have begun, how many the caller waits for. */
static uint32_t wanted_count(const struct emulated_reader *self)
{
    const uint32_t n = self->base.n_needed > 1 ? self->base.n_needed : 1;
    return n < self->n_slots ? n : self->n_slots;
}

/* Takes an answer of the reader underneath, where some of them are missing; false: all have come. */
static bool await_underneath(struct emulated_reader *self)
{
    for (uint32_t i = 0; i < wanted_count(self); i++) {
        if (self->slots[(self->first + i) % self->base.depth].has_arrived)
            continue;
        struct moec_read *inner = self->under->ops->wait(self->under);
        if (inner != NULL)
            self->slots[inner->tag].has_arrived = true;
        return true;
    }
    return false;
}

static void wait_for_last(struct emulated_reader *self, uint64_t now_ns)
{
    const struct emulated_slot *last =
        &self->slots[(self->first + wanted_count(self) - 1) % self->base.depth];
    if (last->due_ns > now_ns)
        wait_until(self, now_ns, last->due_ns);
}

static struct moec_read *emulated_wait(struct moec_reader *base)
{
    struct emulated_reader *self = (struct emulated_reader *)base;
    self->under->spins = base->spins;
    while (!atomic_exchange(&self->is_woken, false)) {
        uint64_t now_ns = moec_now_ns();
        advance(self, now_ns);
        if (is_first_done(self, now_ns))
            return take_first(self);
        ask_underneath(self);
        if (self->n_slots == 0)
            wait_for_wake(self);
        else if (!await_underneath(self))
            wait_for_last(self, now_ns);
    }
    return NULL;
}

static void emulated_wake(struct moec_reader *base)
{
    struct emulated_reader *self = (struct emulated_reader *)base;
    atomic_store(&self->is_woken, true);
    (void)pthread_mutex_lock(&self->lock);
    (void)pthread_cond_signal(&self->woken);
    (void)pthread_mutex_unlock(&self->lock);
    self->under->ops->wake(self->under);
}

static void emulated_destroy(struct moec_reader *base)
{
    if (base == NULL)
        return;
    struct emulated_reader *self = (struct emulated_reader *)base;
    self->under->ops->destroy(self->under);
    (void)pthread_cond_destroy(&self->woken);
    (void)pthread_mutex_destroy(&self->lock);
    free(self);
}

static const struct moec_reader_ops emulated_ops = {
    .submit = emulated_submit,
    .cancel = emulated_cancel,
    .wait = emulated_wait,
    .take = emulated_take,
    .wake = emulated_wake,
    .destroy = emulated_destroy,
};

/* 0, or an errno. */
static int init_sleeping(struct emulated_reader *self)
{
    pthread_condattr_t attributes;
    int problem = pthread_mutex_init(&self->lock, NULL);
    if (problem == 0)
        problem = pthread_condattr_init(&attributes);
    if (problem != 0)
        return problem;
    problem = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    if (problem == 0)
        problem = pthread_cond_init(&self->woken, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    return problem;
}

uint64_t moec_reader_emulated_bytes(uint32_t depth)
{
    return sizeof(struct emulated_reader) + (uint64_t)depth * sizeof(struct emulated_slot);
}

enum moec_status moec_reader_emulate(struct moec_reader *base, const struct moec_emulation *emulation,
                                     struct moec_reader **out, struct moec_error *err)
{
    void *memory = NULL;
    enum moec_status status =
        moec_alloc(&memory, moec_reader_emulated_bytes(base->depth), 1, "emulated storage", err);
    struct emulated_reader *self = memory;
    int problem = status == MOEC_OK ? init_sleeping(self) : 0;
    if (problem != 0)
        status = moec_fail(err, MOEC_ERR_MEMORY, "cannot emulate storage: %s", strerror(problem));
    if (status != MOEC_OK) {
        base->ops->destroy(base);
        free(memory);
        return status;
    }
    self->base.ops = &emulated_ops;
    self->base.alignment = base->alignment;
    self->base.depth = base->depth;
    self->base.begins_in_turn = true;
    self->under = base;
    self->emulation = *emulation;
    (void)snprintf(self->base.description, sizeof self->base.description,
                   "emulated %.6g MB/s, %.6g us, %.6g us a request over %.64s",
                   (double)emulation->bytes_per_second / 1e6, (double)emulation->latency_ns / 1e3,
                   (double)emulation->request_ns / 1e3, base->description);
    *out = &self->base;
    return MOEC_OK;
}

/* ---- the user's words ---- */

struct unit {
    const char *name;
    double factor;
};

static const struct unit speeds[] = {
    {"B/s", 1},      {"kB/s", 1e3},     {"KB/s", 1e3},     {"MB/s", 1e6}, {"GB/s", 1e9},
    {"KiB/s", 1024}, {"MiB/s", 0x1p20}, {"GiB/s", 0x1p30}, {NULL, 0},
};
static const struct unit times[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {NULL, 0}};

/* Largest figures that make sense: a second of latency, a terabyte a second. */
#define MAX_BYTES_PER_SECOND 1e12
#define MIN_BYTES_PER_SECOND 1e3
#define MAX_LATENCY_NS       1e9

/* "12.5MB/s" in `*text`, which then points behind it: the number times its unit, or -1. Decimal points are
 * points in every locale. */
static double parse_quantity(const char **text, const struct unit *units)
{
    const char *at = *text;
    double value = 0, place = 1;
    bool has_point = false, has_digit = false;
    for (; (*at >= '0' && *at <= '9') || (*at == '.' && !has_point); at++) {
        if (*at == '.') {
            has_point = true;
            continue;
        }
        has_digit = true;
        value = value * 10 + (*at - '0');
        place *= has_point ? 10 : 1;
    }
    for (; has_digit && units->name != NULL; units++) {
        size_t n = strlen(units->name);
        if (strncmp(at, units->name, n) == 0 && (at[n] == '\0' || at[n] == ',')) {
            *text = at + n;
            return value / place * units->factor;
        }
    }
    return -1;
}

enum moec_status moec_emulation_parse(const char *text, struct moec_emulation *out, struct moec_error *err)
{
    const char *at = text;
    double latency_ns = 0, request_ns = MOEC_EMULATED_REQUEST_NS, speed = parse_quantity(&at, speeds);
    if (speed >= 0 && *at == ',') {
        at++;
        latency_ns = parse_quantity(&at, times);
    }
    if (speed >= 0 && latency_ns >= 0 && *at == ',') {
        at++;
        request_ns = parse_quantity(&at, times);
    }
    if (speed < 0 || latency_ns < 0 || request_ns < 0 || *at != '\0')
        return moec_fail(err, MOEC_ERR_USAGE,
                         "cannot read '%s' as storage, expected a bandwidth, a latency and a cost per "
                         "request, such as 550MB/s,80us,10us",
                         text);
    if (!(speed >= MIN_BYTES_PER_SECOND && speed <= MAX_BYTES_PER_SECOND) || latency_ns > MAX_LATENCY_NS ||
        request_ns > MAX_LATENCY_NS)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "storage '%s' is out of range, expected 1KB/s to 1000GB/s, and a latency and a cost per request "
            "of at most 1s each",
            text);
    *out = (struct moec_emulation){.bytes_per_second = (uint64_t)speed,
                                   .latency_ns = (uint64_t)latency_ns,
                                   .request_ns = (uint64_t)request_ns};
    return MOEC_OK;
}
