/* Slots of the ring are freed in the order of reading. A record is read as soon as those before it leave
 * room, and never more than one round ahead. The clocks of storage, checks and freeing only rise. A change of
 * runtime/experts/expert_stream.c is followed here. */
#include "profiler/simulate/simulated_stream.h"

#include "formats/base/memory.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Records are numbered in the order of reading, over all tokens; the ring remembers one round of them, which
 * is the most that a buffer holds: all keys, or those of a decoder, which an encoder's go before once an
 * input. As runtime/experts/expert_stream.c. */
struct stream {
    const struct moec_simulated_setup *setup;
    const struct moec_simulated_model *model;
    const struct moec_simulated_device *device;
    struct {
        uint32_t n_key;
        double *free_ns;  /* (n_key), owned: when the slot of a record of the last round was free again */
        uint32_t *keys;   /* (n_key), owned: of the last round's records, by number modulo n_key */
        uint32_t n_round; /* records of a round */
        uint64_t n_read;  /* records so far */
        uint64_t n_freed; /* records whose slots are counted as free */
    } ring;
    struct {
        uint64_t capacity_bytes; /* no more than all records take */
        uint64_t used_bytes;
    } room;
    struct {
        double storage_ns, ready_ns, freed_ns, now_ns;
    } clock;
    struct moec_simulated_counts *counts;
};

/* Reads the next record as soon as those before it leave room; returns when it was asked of storage. */
static double read_next(struct stream *stream, uint32_t key)
{
    const uint64_t slot = stream->model->records.slot_bytes[key];
    double issued_ns = 0;
    while ((stream->room.used_bytes + slot > stream->room.capacity_bytes ||
            stream->ring.n_read - stream->ring.n_freed >= stream->ring.n_round) &&
           stream->ring.n_freed < stream->ring.n_read) {
        const uint32_t oldest = stream->ring.keys[stream->ring.n_freed++ % stream->ring.n_key];
        issued_ns = fmax(issued_ns, stream->ring.free_ns[oldest]);
        stream->room.used_bytes -= stream->model->records.slot_bytes[oldest];
    }
    stream->room.used_bytes += slot;
    stream->ring.keys[stream->ring.n_read++ % stream->ring.n_key] = key;
    const double begun_ns = fmax(issued_ns, stream->clock.storage_ns);
    stream->clock.storage_ns =
        fmax(issued_ns + stream->device->latency_ns, stream->clock.storage_ns) + stream->device->read_ns[key];
    stream->clock.ready_ns =
        fmax(stream->clock.storage_ns, stream->clock.ready_ns) + stream->device->check_ns[key];
    stream->counts->read_bytes += stream->model->records.record_bytes[key];
    return begun_ns;
}

static void judge(struct stream *stream, double begun_ns, double answer_ns, bool is_needed)
{
    struct moec_simulated_counts *counts = stream->counts;
    counts->preloads += begun_ns < answer_ns;
    if (!is_needed) {
        counts->wasted += begun_ns < answer_ns;
        return;
    }
    counts->asked++;
    counts->useful += begun_ns < answer_ns;
    if (stream->clock.ready_ns <= answer_ns)
        counts->hits++;
    else if (begun_ns < answer_ns)
        counts->late++;
    else
        counts->misses++;
}

static void run_layer(struct stream *stream, const struct moec_router_answer *answer, uint32_t ordinal,
                      double uses)
{
    const double answer_ns = stream->clock.now_ns;
    const double shared_ns = stream->device->shared_ns[ordinal] * answer->n_tok;
    uint32_t next = 0, n_waits = 0;
    stream->clock.now_ns += shared_ns;
    stream->counts->compute_ns += shared_ns;
    for (uint32_t e = 0; e < stream->model->shape.n_expert; e++) {
        const uint32_t key = ordinal * stream->model->shape.n_expert + e;
        const bool is_needed = next < answer->active.n && answer->active.list[next] == e;
        const double begun_ns = read_next(stream, key);
        judge(stream, begun_ns, answer_ns, is_needed);
        if (is_needed) {
            const double wait_ns = fmax(0, stream->clock.ready_ns - stream->clock.now_ns);
            double work_ns = uses * stream->device->compute_ns[key];
            if (wait_ns > 0)
                work_ns += moec_simulated_wait_cost(stream->device, wait_ns,
                                                    n_waits++ == 0 ? MOEC_WAIT_FIRST : MOEC_WAIT_NEXT);
            next++;
            stream->counts->stall_ns += wait_ns;
            stream->counts->compute_ns += work_ns;
            stream->clock.now_ns += wait_ns + work_ns;
        }
        const double left_ns = is_needed ? stream->clock.now_ns : fmax(stream->clock.ready_ns, answer_ns);
        stream->clock.freed_ns = fmax(stream->clock.freed_ns, left_ns);
        stream->ring.free_ns[key] = stream->clock.freed_ns;
    }
}

/* Another source has come, or another chunk of one: the stream drops what it read ahead and goes on with the
 * encoder's layer. */
static void begin_again(struct stream *stream)
{
    stream->ring.n_freed = stream->ring.n_read;
    stream->room.used_bytes = 0;
    stream->clock.storage_ns = fmax(stream->clock.storage_ns, stream->clock.now_ns);
}

static void run_step(struct stream *stream, uint64_t step)
{
    const struct moec_simulated_device *device = stream->device;
    const struct moec_recorded_step *at = &stream->setup->recording->steps[step];
    const double position = at->position + (at->n_tok - 1) / 2.0;
    if (step > 0 && at->layers.first < stream->model->shape.n_encoder &&
        at->layers.first != at[-1].layers.end)
        begin_again(stream);
    for (uint32_t s = at->layers.first; s < at->layers.end; s++) {
        const struct moec_router_answer answer = moec_recording_answer(stream->setup->recording, step, s);
        const double gap_ns = (device->gap_ns[s] + device->gap_ns_per_position[s] * position) * at->n_tok;
        const double uses =
            answer.active.n > 0 ? (double)at->n_tok * stream->model->shape.top_k / answer.active.n : 0;
        stream->clock.now_ns += gap_ns;
        stream->counts->compute_ns += gap_ns;
        run_layer(stream, &answer, s, uses);
    }
    if (at->layers.end < stream->model->shape.n_layer)
        return;
    const double last_ns = (device->last_ns + device->last_ns_per_position * position) * at->n_tok;
    stream->clock.now_ns += last_ns;
    stream->counts->compute_ns += last_ns;
}

enum moec_status moec_simulated_stream(const struct moec_simulated_setup *setup,
                                       struct moec_simulated_result *result, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_recording *recording = setup->recording;
    struct stream stream = {
        .setup = setup,
        .model = setup->model,
        .device = setup->device,
        .room.capacity_bytes = setup->buffer.capacity_bytes < setup->model->slots.all_bytes
                                   ? setup->buffer.capacity_bytes
                                   : setup->model->slots.all_bytes,
        .ring = {.n_key = setup->model->shape.n_layer * setup->model->shape.n_expert,
                 .n_round = (setup->model->shape.n_layer - setup->model->shape.n_encoder) *
                            setup->model->shape.n_expert}};
    float *step_ns = NULL;
    uint64_t n_decoded = 0;
    *result = (struct moec_simulated_result){.lifetime_tokens = NAN};
    if (setup->buffer.capacity_bytes < setup->model->slots.largest_bytes)
        return moec_fail(err, MOEC_ERR_BUDGET,
                         "an expert buffer of %" PRIu64 " bytes has no room for the largest expert's "
                         "record of %" PRIu64 " bytes; give a larger --memory",
                         setup->buffer.capacity_bytes, setup->model->slots.largest_bytes);
    if (stream.ring.n_round == 0)
        stream.ring.n_round = stream.ring.n_key;
    MOEC_TRY_OUT(
        moec_alloc((void **)&stream.ring.free_ns, stream.ring.n_key, sizeof(double), "simulated ring", err));
    MOEC_TRY_OUT(moec_alloc((void **)&stream.ring.keys, stream.ring.n_key, sizeof *stream.ring.keys,
                            "simulated ring", err));
    MOEC_TRY_OUT(
        moec_alloc((void **)&step_ns, recording->n_step, 2 * sizeof *step_ns, "times of steps", err));
    for (uint64_t step = 0; step < recording->n_step; step++) {
        const double begun_ns = stream.clock.now_ns;
        if (step == recording->counted.first) {
            *result = (struct moec_simulated_result){.lifetime_tokens = NAN};
            n_decoded = 0;
        }
        stream.counts = recording->steps[step].is_prefill ? &result->prefill : &result->decode;
        run_step(&stream, step);
        if (!recording->steps[step].is_prefill)
            step_ns[n_decoded++] = (float)(stream.clock.now_ns - begun_ns);
    }
    moec_simulated_set_times(step_ns, step_ns + recording->n_step, n_decoded, result);
out:
    free(stream.ring.free_ns);
    free(stream.ring.keys);
    free(step_ns);
    return status;
}
