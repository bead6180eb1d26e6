/* A ring of chunks: a chunk is filled again only after the stream has passed its last use. Its list says
 * which pair goes to which row, and the kernel that scatters them also notes the places. After an error the
 * stream is finished first, because given copies still read the record. Sizes are tried by doubling, twice
 * each, and the second time counts. */
#include "runtime/cuda/gpu_gather.h"

#include "formats/base/clock.h"
#include "formats/base/memory.h"

#include <string.h>

#define ALIGNMENT     256u
#define PAIR_STEP     16u                    /* of pairs in a chunk: a kernel copies them by words */
#define AT_ONCE_BYTES ((uint64_t)64 << 10)   /* that one thread gathers */
#define LEAST_CHUNK   ((uint64_t)64 << 10)   /* that is tried */
#define TRIED_BYTES   ((uint64_t)4 << 20)    /* gathered for each size */
#define LIST_BYTES    (2 * sizeof(uint32_t)) /* of a pair: its neuron and its row */

struct chunk {
    uint8_t *pinned, *device;
    struct moec_gpu_event *passed; /* the stream has copied it and put its pairs where they belong */
};

struct moec_gpu_gather {
    struct moec_gpu_gather_setup setup;
    const struct moec_gpu_ops *ops;
    uint64_t room_bytes, list_bytes; /* of a chunk, and of it before the pairs */
    uint8_t *pinned, *device;        /* owned: all chunks */
    struct chunk chunks[MOEC_GPU_GATHER_CHUNKS];
    uint32_t next;
    struct moec_gpu_gather_speed speed;
};

static uint64_t rounded(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* A chunk has room for the list of an expert's neurons, and for some of their pairs. */
static uint64_t list_bytes_of(uint32_t n_neuron)
{
    return rounded(n_neuron * LIST_BYTES, ALIGNMENT);
}

static uint64_t room_bytes_of(uint32_t n_neuron, uint64_t pair_bytes)
{
    const uint64_t step = rounded(pair_bytes, PAIR_STEP), all = n_neuron * step;
    const uint64_t most = step > MOEC_GPU_GATHER_CHUNK_BYTES ? step : MOEC_GPU_GATHER_CHUNK_BYTES;
    return list_bytes_of(n_neuron) + rounded(all < most ? all : most, ALIGNMENT);
}

uint64_t moec_gpu_gather_bytes(uint32_t n_neuron, uint64_t pair_bytes)
{
    return MOEC_GPU_GATHER_CHUNKS * room_bytes_of(n_neuron, pair_bytes);
}

/* ---- chunks ---- */

/* The next chunk, when the stream has passed what it had. */
static enum moec_status begin_chunk(struct moec_gpu_gather *g, struct chunk **out, struct moec_error *err)
{
    *out = &g->chunks[g->next];
    g->next = (g->next + 1) % MOEC_GPU_GATHER_CHUNKS;
    return g->ops->finish_event(g->setup.gpu, (*out)->passed, err);
}

/* Pairs `step` bytes apart: behind their list in a chunk or, with `from`, there. */
struct pairs {
    uint32_t n;
    size_t step;
    const uint8_t *from; /* or NULL */
};

/* What a chunk holds goes to the device. */
static enum moec_status give_chunk(struct moec_gpu_gather *g, const struct chunk *chunk,
                                   const struct moec_gpu_gathering *gathering, struct pairs pairs,
                                   uint64_t *n_bytes, struct moec_error *err)
{
    const uint32_t n = pairs.n;
    const uint8_t *from = pairs.from;
    const uint64_t list_bytes = n * LIST_BYTES, pairs_bytes = (n - 1) * pairs.step + gathering->step;
    const uint64_t first_bytes = from != NULL ? list_bytes : rounded(list_bytes, PAIR_STEP) + pairs_bytes;
    uint8_t *to = chunk->device + (from != NULL ? g->list_bytes : rounded(list_bytes, PAIR_STEP));
    MOEC_TRY(g->ops->copy(
        g->setup.gpu, g->setup.stream,
        (struct moec_gpu_move){MOEC_GPU_TO_DEVICE, chunk->device, chunk->pinned, first_bytes}, err));
    *n_bytes += first_bytes;
    if (from != NULL) {
        MOEC_TRY(g->ops->copy(g->setup.gpu, g->setup.stream,
                              (struct moec_gpu_move){MOEC_GPU_TO_DEVICE, to, from, pairs_bytes}, err));
        *n_bytes += pairs_bytes;
    }
    const struct moec_cuda_scatter scatter = {.list = (const uint32_t *)chunk->device,
                                              .from = to,
                                              .to = gathering->to,
                                              .from_step = pairs.step,
                                              .to_step = gathering->to_step,
                                              .n = n,
                                              .n_bytes = (uint32_t)gathering->step,
                                              .places = gathering->device_places};
    g->setup.kernels->scatter(g->setup.stream, &scatter);
    MOEC_TRY(g->ops->check(g->setup.gpu, err));
    return g->ops->record(g->setup.gpu, g->setup.stream, chunk->passed, err);
}

/* Likewise; after an error nothing that was given reads the chunk or the record any more. */
static enum moec_status send_chunk(struct moec_gpu_gather *g, const struct chunk *chunk,
                                   const struct moec_gpu_gathering *gathering, struct pairs pairs,
                                   uint64_t *n_bytes, struct moec_error *err)
{
    const enum moec_status status = give_chunk(g, chunk, gathering, pairs, n_bytes, err);
    if (status != MOEC_OK)
        (void)g->ops->finish(g->setup.gpu, g->setup.stream, NULL);
    return status;
}

struct gather_job {
    const struct moec_gpu_gathering *gathering;
    const uint32_t *list;
    uint32_t n, n_at_once;
    size_t step;
    uint32_t *rows; /* the chunk's list */
    uint8_t *to;
};

static void gather_item(void *context, size_t item, int thread)
{
    const struct gather_job *job = context;
    const uint32_t first = (uint32_t)item * job->n_at_once, left = job->n - first;
    const uint32_t end = first + (left < job->n_at_once ? left : job->n_at_once);
    const size_t n_bytes = job->gathering->step;
    (void)thread;
    for (uint32_t i = first; i < end; i++) {
        job->rows[2 * i] = job->list[i];
        job->rows[2 * i + 1] = job->gathering->places[job->list[i]];
        memcpy(job->to + i * job->step, job->gathering->pairs + job->list[i] * n_bytes, n_bytes);
    }
}

enum moec_status moec_gpu_gather_some(struct moec_gpu_gather *g, const struct moec_gpu_gathering *gathering,
                                      const uint32_t *list, uint32_t n, uint64_t *n_bytes,
                                      struct moec_error *err)
{
    const size_t step = rounded(gathering->step, PAIR_STEP);
    const uint64_t fit = g->speed.chunk_bytes / step;
    const uint32_t most = fit > 0 ? (uint32_t)fit : 1;
    for (uint32_t done = 0, now; done < n; done += now) {
        struct chunk *chunk = NULL;
        now = n - done < most ? n - done : most;
        MOEC_TRY(begin_chunk(g, &chunk, err));
        const struct gather_job job = {
            .gathering = gathering,
            .list = list + done,
            .n = now,
            .n_at_once = step < AT_ONCE_BYTES ? (uint32_t)(AT_ONCE_BYTES / step) : 1,
            .step = step,
            .rows = (uint32_t *)chunk->pinned,
            .to = chunk->pinned + rounded(now * LIST_BYTES, PAIR_STEP),
        };
        moec_parallel_for_brief(&g->setup.threads, (now - 1) / job.n_at_once + 1, gather_item, (void *)&job);
        MOEC_TRY(send_chunk(g, chunk, gathering, (struct pairs){now, step, NULL}, n_bytes, err));
    }
    return MOEC_OK;
}

enum moec_status moec_gpu_gather_all(struct moec_gpu_gather *g, const struct moec_gpu_gathering *gathering,
                                     uint64_t *n_bytes, struct moec_error *err)
{
    const uint64_t fit = (g->room_bytes - g->list_bytes) / gathering->step;
    const uint32_t n = gathering->n_neuron, most = fit < n ? (uint32_t)fit : n;
    for (uint32_t done = 0, now; done < n; done += now) {
        struct chunk *chunk = NULL;
        now = n - done < most ? n - done : most;
        MOEC_TRY(begin_chunk(g, &chunk, err));
        uint32_t *rows = (uint32_t *)chunk->pinned;
        for (uint32_t i = 0; i < now; i++) {
            rows[2 * i] = done + i;
            rows[2 * i + 1] = gathering->places[done + i];
        }
        MOEC_TRY(send_chunk(g, chunk, gathering,
                            (struct pairs){now, gathering->step, gathering->pairs + done * gathering->step},
                            n_bytes, err));
    }
    return MOEC_OK;
}

bool moec_gpu_gather_copies_all(const struct moec_gpu_gather *g, uint32_t n, uint32_t n_all)
{
    return n >= n_all || n_all * g->speed.copied_byte_ns < n * g->speed.gathered_byte_ns;
}

struct moec_gpu_gather_speed moec_gpu_gather_speed_of(const struct moec_gpu_gather *g)
{
    return g->speed;
}

/* ---- what it takes ---- */

struct trial {
    struct moec_gpu_gathering gathering; /* every other pair of the memory, kept nowhere */
    uint32_t *list;
    uint32_t n; /* of the list */
};

/* Time of a byte of the pairs of the list, gathered, or of all as they lie, until the stream has passed them.
 */
static enum moec_status time_trial(struct moec_gpu_gather *g, const struct trial *trial, bool gathers,
                                   double *byte_ns, struct moec_error *err)
{
    uint64_t n_bytes = 0;
    const uint64_t begin_ns = moec_now_ns();
    MOEC_TRY(gathers ? moec_gpu_gather_some(g, &trial->gathering, trial->list, trial->n, &n_bytes, err)
                     : moec_gpu_gather_all(g, &trial->gathering, &n_bytes, err));
    MOEC_TRY(g->ops->finish(g->setup.gpu, g->setup.stream, err));
    const uint32_t n = gathers ? trial->n : trial->gathering.n_neuron;
    *byte_ns = (double)(moec_now_ns() - begin_ns) / ((double)n * (double)trial->gathering.step);
    return MOEC_OK;
}

static enum moec_status try_sizes(struct moec_gpu_gather *g, const struct trial *trial,
                                  struct moec_error *err)
{
    const uint64_t most = g->room_bytes - g->list_bytes;
    struct moec_gpu_gather_speed best = {0};
    double byte_ns = 0;
    for (uint64_t tried = LEAST_CHUNK < most ? LEAST_CHUNK : most, last = 0; tried > last;
         last = tried, tried = 2 * tried < most ? 2 * tried : most) {
        g->speed.chunk_bytes = tried;
        for (int turn = 0; turn < 2; turn++) /* the first one warms up */
            MOEC_TRY(time_trial(g, trial, true, &byte_ns, err));
        if (best.chunk_bytes == 0 || byte_ns < best.gathered_byte_ns)
            best = (struct moec_gpu_gather_speed){.chunk_bytes = tried, .gathered_byte_ns = byte_ns};
    }
    for (int turn = 0; turn < 2; turn++)
        MOEC_TRY(time_trial(g, trial, false, &best.copied_byte_ns, err));
    g->speed = best;
    return MOEC_OK;
}

static enum moec_status measure(struct moec_gpu_gather *g, struct moec_error *err)
{
    const struct moec_gpu_gather_setup *setup = &g->setup;
    const uint64_t fit = (setup->sample.n_bytes < 2 * TRIED_BYTES ? setup->sample.n_bytes : 2 * TRIED_BYTES) /
                         setup->pair_bytes;
    const uint32_t n = fit < setup->n_neuron ? (uint32_t)fit : setup->n_neuron;
    struct trial trial = {
        .gathering = {.pairs = setup->sample.memory, .step = setup->pair_bytes, .n_neuron = n}, .n = n / 2};
    uint32_t *tables = NULL;
    if (trial.n == 0)
        return MOEC_OK;
    MOEC_TRY(moec_alloc((void **)&tables, 2 * (uint64_t)n, sizeof *tables, "pairs to time", err));
    for (uint32_t i = 0; i < n; i++) {
        tables[i] = MOEC_CUDA_NOWHERE;
        tables[n + i] = 2 * i;
    }
    trial.gathering.places = tables;
    trial.list = tables + n;
    const enum moec_status status = try_sizes(g, &trial, err);
    free(tables);
    return status;
}

/* ---- creation ---- */

static enum moec_status create(struct moec_gpu_gather *g, struct moec_error *err)
{
    const struct moec_gpu_gather_setup *setup = &g->setup;
    const uint64_t n_bytes = MOEC_GPU_GATHER_CHUNKS * g->room_bytes;
    MOEC_TRY(g->ops->alloc_pinned(setup->gpu, n_bytes, "gathered neurons", (void **)&g->pinned, err));
    MOEC_TRY(g->ops->alloc(setup->gpu, n_bytes, "gathered neurons", (void **)&g->device, err));
    for (uint32_t i = 0; i < MOEC_GPU_GATHER_CHUNKS; i++) {
        g->chunks[i].pinned = g->pinned + i * g->room_bytes;
        g->chunks[i].device = g->device + i * g->room_bytes;
        MOEC_TRY(g->ops->event_create(setup->gpu, &g->chunks[i].passed, err));
    }
    g->speed = setup->speed;
    if (g->speed.chunk_bytes > 0) {
        const uint64_t most = g->room_bytes - g->list_bytes;
        g->speed.chunk_bytes = g->speed.chunk_bytes < most ? g->speed.chunk_bytes : most;
        return MOEC_OK;
    }
    g->speed.chunk_bytes = g->room_bytes - g->list_bytes;
    return measure(g, err);
}

enum moec_status moec_gpu_gather_create(const struct moec_gpu_gather_setup *setup,
                                        struct moec_gpu_gather **out, struct moec_error *err)
{
    struct moec_gpu_gather *g = NULL;
    MOEC_TRY(moec_alloc((void **)&g, 1, sizeof *g, "a gatherer of neurons", err));
    g->setup = *setup;
    g->ops = setup->gpu->ops;
    g->list_bytes = list_bytes_of(setup->n_neuron);
    g->room_bytes = room_bytes_of(setup->n_neuron, setup->pair_bytes);
    const enum moec_status status = create(g, err);
    if (status != MOEC_OK) {
        moec_gpu_gather_free(g);
        return status;
    }
    *out = g;
    return MOEC_OK;
}

void moec_gpu_gather_free(struct moec_gpu_gather *g)
{
    if (g == NULL)
        return;
    for (uint32_t i = 0; i < MOEC_GPU_GATHER_CHUNKS; i++)
        g->ops->event_free(g->setup.gpu, g->chunks[i].passed);
    g->ops->free_pinned(g->setup.gpu, g->pinned);
    g->ops->free(g->setup.gpu, g->device);
    free(g);
}
