/* Experts that come in parts: what an acquired expert is promised to have is there, bit for bit, at every
 * budget, with several sessions and with reads that fail, and less is read than whole records are. */
#include "tests/unit/temporary.h"

#include "tests/unit/cache_totals.h"
#include "tests/unit/faulty_reader.h"
#include "tests/unit/sample_bundle.h"

#include "formats/bundle/bundle_sparsity.h"
#include "formats/bundle/record_parts.h"
#include "runtime/experts/expert_cache_internal.h"

#include <fcntl.h>
#include <pthread.h>

#define N_EXPERT 10
#define N_EMBD   160
#define N_FF     70
#define N_WORD   2

static const uint32_t layers[SAMPLE_MOE] = {0, 2}; /* model layers with experts */

struct place {
    struct sample_fixture of;
    struct moec_record_parts parts;
};

/* With records of several sizes, or of one with `bits`. */
static struct place *place_make(uint32_t alignment, uint32_t direct_unit, int bits)
{
    static const uint16_t shares[] = {500};
    struct place *place = calloc(1, sizeof *place);
    struct moec_error err = {0};
    struct moec_sparsity_table table;
    sample_make(&place->of.sample, N_EXPERT, N_EMBD, N_FF, 91);
    place->of.sample.parts.alignment = alignment;
    if (bits > 0)
        memset(place->of.sample.assignment, bits, SAMPLE_MOE * N_EXPERT);
    sample_open(&place->of);
    moec_bundle_close(place->of.bundle);
    assert_status(moec_sparsity_table_create(&place->of.sample.config, shares, 1, &table, &err), MOEC_OK,
                  err);
    assert_status(moec_bundle_put_sparsity(place->of.path, &table, NULL, true, place->of.path, &err), MOEC_OK,
                  err);
    moec_sparsity_table_release(&table);
    assert_status(moec_bundle_open(place->of.path, &place->of.bundle, &err), MOEC_OK, err);
    place->of.bundle->direct_unit = direct_unit;
    assert_status(moec_bundle_load_parts(place->of.bundle, &place->parts, &err), MOEC_OK, err);
    assert_int_equal(place->parts.n_expert, N_EXPERT);
    return place;
}

static struct place *place_open(uint32_t alignment, uint32_t direct_unit)
{
    return place_make(alignment, direct_unit, 0);
}

static void place_close(struct place *place)
{
    moec_record_parts_release(&place->parts);
    sample_close(&place->of);
    free(place);
}

static struct moec_expert_cache *cache_of(const struct place *place,
                                          const struct moec_expert_cache_options *options)
{
    struct moec_expert_cache *cache = NULL;
    struct moec_error err = {0};
    struct moec_expert_cache_options ours = *options;
    ours.records.parts = &place->parts;
    /* No gaps between units are read along. */
    ours.records.io.emulation.bytes_per_second = 1000000000000u;
    assert_status(moec_expert_cache_create(place->of.bundle, &ours, &cache, &err), MOEC_OK, err);
    return cache;
}

static bool is_marked(const uint64_t *neurons, uint32_t i)
{
    return (neurons[i / 64] >> (i % 64) & 1) != 0;
}

static void draw(uint64_t *random, uint32_t in_8, uint64_t neurons[static N_WORD])
{
    memset(neurons, 0, N_WORD * sizeof *neurons);
    for (uint32_t i = 0; i < N_FF; i++)
        if (random_u32(random) % 8 < in_8)
            neurons[i / 64] |= (uint64_t)1 << (i % 64);
}

/* Whether an expert has up, and the pairs of the neurons; with touches_all, other pairs are theirs or zero.
 */
static bool is_right(const struct place *place, uint32_t ordinal, uint32_t expert, const struct moec_mlp *mlp,
                     const uint64_t *neurons, bool touches_all)
{
    const struct moec_record_layout *layout = moec_bundle_layout(place->of.bundle, 0, ordinal, expert);
    const size_t pair = layout->pair_stride_bytes;
    uint8_t *record = malloc(layout->n_bytes), *zeros = calloc(1, pair);
    sample_record(&place->of.sample, layout, 0, ordinal, expert, record);
    bool right = memcmp(mlp->up.data, record, layout->up_bytes) == 0;
    for (uint32_t i = 0; i < N_FF; i++) {
        const bool is_framed = mlp->frames.of_units != NULL;
        const uint8_t *at = is_framed ? moec_mlp_framed_pair(mlp, i) : mlp->gate.data + i * pair;
        const uint8_t *got = at != NULL ? at : zeros, *expected = record + layout->up_bytes + i * pair;
        const bool is_there = (is_marked(neurons, i) || touches_all) && memcmp(got, expected, pair) == 0;
        if (is_marked(neurons, i))
            right = right && is_there;
        else if (touches_all)
            right = right && (is_there || memcmp(got, zeros, pair) == 0);
    }
    free(record);
    free(zeros);
    return right;
}

/* One expert as a forward pass takes it; false where it cannot be had or is not what it must be. */
static bool use(const struct place *place, struct moec_experts *source, uint32_t ordinal, uint32_t expert,
                const uint64_t *neurons, bool touches_all, uint32_t *n_wrong, struct moec_error *err)
{
    const struct moec_expert_request request = moec_expert_request_of(layers[ordinal], expert);
    struct moec_mlp mlp;
    if (source->ops->acquire(source, request, &mlp, err) != MOEC_OK)
        return false;
    source->ops->need(source, request, neurons, touches_all);
    const bool is_had = source->ops->await(source, request, neurons, touches_all, err) == MOEC_OK;
    if (is_had && !is_right(place, ordinal, expert, &mlp, neurons, touches_all))
        ++*n_wrong;
    source->ops->release(source, request);
    return is_had;
}

/* ---- one session ---- */

static void run_budgets(uint32_t alignment, uint32_t direct_unit)
{
    struct place *place = place_open(alignment, direct_unit);
    const struct moec_record_sizes sizes = moec_record_sizes_of(place->of.bundle, 0);
    uint64_t random = 5;
    for (uint64_t bytes = sizes.largest_bytes; bytes < sizes.all_bytes; bytes += sizes.all_bytes / 9) {
        const struct moec_expert_cache_options options = {
            .buffer.n_bytes = bytes,
            .keeps.is_warm = bytes % 2 == 0,
            .preload = {.predictor = &moec_predict_frequency, .count = 1}};
        struct moec_expert_cache *cache = cache_of(place, &options);
        struct moec_experts *source = moec_expert_cache_experts(cache);
        uint32_t n_wrong = 0;
        assert_true(source->gives_parts);
        for (uint32_t i = 0; i < 300; i++) {
            uint64_t neurons[N_WORD];
            struct moec_error err = {0};
            draw(&random, i % 9, neurons);
            assert_true(use(place, source, random_u32(&random) % SAMPLE_MOE, random_u32(&random) % N_EXPERT,
                            neurons, random_u32(&random) % 4 == 0, &n_wrong, &err));
        }
        assert_int_equal(n_wrong, 0);
        const struct moec_cache_counters counters = cache_totals(cache);
        assert_true(counters.unit_bytes > 0 && counters.unit_bytes < counters.read_bytes);
        moec_expert_cache_free(cache);
    }
    place_close(place);
}

static void test_expert_units__every_budget_gives_the_same_bytes(void **state)
{
    (void)state;
    run_budgets(64, 64);
    run_budgets(MOEC_BUNDLE_SMALL_ALIGNMENT, 512);
    run_budgets(MOEC_BUNDLE_SMALL_ALIGNMENT, 4096);
}

/* With frames more experts are in a buffer than whole records would fit, in no more bytes than it has: those
 * of up sections, which stay, and of units, each in a frame of its own. */
static void check_frames(const struct moec_expert_cache *cache)
{
    const struct moec_unit_frames *frames = cache->units->frames;
    const uint32_t n_unit = cache->n_key * frames->n_unit;
    uint8_t *is_taken = calloc(frames->n_frame + 1, 1);
    uint32_t n_used = 0;
    assert_true(frames->up_bytes + frames->n_frame * frames->frame_bytes <= cache->buffer_bytes);
    for (uint32_t i = 0; i < n_unit; i++) {
        const uint32_t place = frames->of_units[i];
        const uint64_t *resident = moec_units_resident(cache->units, i / frames->n_unit);
        assert_true(place <= frames->n_frame && !(place > 0 && is_taken[place]));
        assert_int_equal(place > 0, is_marked(resident, i % frames->n_unit));
        is_taken[place] = 1;
        n_used += place > 0;
    }
    assert_int_equal(n_used, frames->n_used);
    free(is_taken);
}

static void run_frames(struct place *place, uint32_t least_records)
{
    const struct moec_record_sizes sizes = moec_record_sizes_of(place->of.bundle, 0);
    uint64_t random = 9;
    for (uint64_t n = least_records; n <= least_records + 2; n++) {
        const struct moec_expert_cache_options options = {
            .buffer = {.n_bytes = n * sizes.largest_bytes,
                       .least_bytes = least_records * sizes.largest_bytes},
            .keeps.is_warm = n % 2 == 0};
        struct moec_expert_cache *cache = cache_of(place, &options);
        struct moec_experts *source = moec_expert_cache_experts(cache);
        uint32_t n_wrong = 0, most = 0;
        assert_non_null(cache->units->frames);
        for (uint32_t i = 0; i < 400; i++) {
            uint64_t neurons[N_WORD];
            struct moec_error err = {0};
            draw(&random, i < 200 ? 1 : i % 9, neurons);
            assert_true(use(place, source, random_u32(&random) % SAMPLE_MOE, random_u32(&random) % N_EXPERT,
                            neurons, i > 200 && i % 8 == 0, &n_wrong, &err));
            uint32_t n_there = 0;
            assert_int_equal(pthread_mutex_lock(&cache->lock), 0);
            for (uint32_t key = 0; key < cache->n_key; key++)
                n_there += cache->entries[key].state == MOEC_CACHE_READY;
            check_frames(cache);
            assert_int_equal(pthread_mutex_unlock(&cache->lock), 0);
            most = n_there > most ? n_there : most;
            if (i == 300)
                moec_expert_cache_resize(cache, options.buffer.least_bytes);
        }
        assert_int_equal(n_wrong, 0);
        assert_true(most > n);
        moec_expert_cache_free(cache);
    }
}

static void test_expert_units__buffer_holds_more_experts(void **state)
{
    (void)state;
    struct place *place = place_make(4096, 4096, 16);
    run_frames(place, 6);
    place_close(place);
    place = place_make(64, 64, 16);
    run_frames(place, 4);
    place_close(place);
}

/* Where no frame is free, the expert that was needed the longest ago gives its units up, and keeps its up
 * section; one that is held gives nothing. */
static void test_expert_units__units_leave_before_up_sections(void **state)
{
    (void)state;
    struct place *place = place_make(64, 64, 16);
    const struct moec_record_sizes sizes = moec_record_sizes_of(place->of.bundle, 0);
    const struct moec_expert_cache_options options = {.buffer.n_bytes = 7 * sizes.largest_bytes};
    struct moec_expert_cache *cache = cache_of(place, &options);
    struct moec_experts *source = moec_expert_cache_experts(cache);
    const struct moec_unit_frames *frames = cache->units->frames;
    const uint64_t all[N_WORD] = {UINT64_MAX, ((uint64_t)1 << (N_FF - 64)) - 1};
    const struct moec_expert_request first = moec_expert_request_of(layers[0], 0);
    struct moec_error err = {0};
    struct moec_mlp mlp;
    uint32_t n_wrong = 0;
    assert_non_null(frames);
    assert_true(use(place, source, 0, 1, all, false, &n_wrong, &err));
    assert_int_equal(source->ops->acquire(source, first, &mlp, &err), MOEC_OK);
    source->ops->need(source, first, all, false);
    assert_int_equal(source->ops->await(source, first, all, false, &err), MOEC_OK);
    const uint32_t n_unit = frames->n_taken[1];
    for (uint32_t expert = 2; frames->n_taken[1] == n_unit; expert++) {
        assert_true(expert < N_EXPERT);
        assert_true(use(place, source, 0, expert, all, false, &n_wrong, &err));
    }
    assert_true(use(place, source, 1, 0, all, false, &n_wrong, &err));
    assert_int_equal(frames->n_taken[0], n_unit);
    assert_true(frames->n_taken[1] < n_unit);
    assert_int_equal(cache->entries[1].state, MOEC_CACHE_READY);
    assert_true(is_right(place, 0, 0, &mlp, all, false));
    source->ops->release(source, first);
    assert_int_equal(n_wrong, 0);
    moec_expert_cache_free(cache);
    place_close(place);
}

/* What is there is not read again, and nothing that was not asked for is read. */
static void test_expert_units__reads_what_is_missing(void **state)
{
    (void)state;
    struct place *place = place_open(64, 64);
    const struct moec_expert_cache_options options = {.buffer.n_bytes = 1 << 24};
    struct moec_expert_cache *cache = cache_of(place, &options);
    struct moec_experts *source = moec_expert_cache_experts(cache);
    struct moec_error err = {0};
    uint32_t n_wrong = 0, expert = 0;
    while (moec_bundle_record(place->of.bundle, 0, 0, expert)->bits != 16)
        expert++;
    const struct moec_record_layout *layout = moec_bundle_layout(place->of.bundle, 0, 0, expert);
    const uint32_t each = moec_parts_unit_neurons(&place->parts, layout);
    const uint64_t unit = each * (uint64_t)layout->pair_stride_bytes;
    assert_true(each * 5 < N_FF && unit <= MOEC_PARTS_UNIT_BYTES);
    uint64_t neurons[N_WORD] = {0};
    uint64_t read = layout->up_bytes;
    assert_true(use(place, source, 0, expert, neurons, false, &n_wrong, &err));
    assert_int_equal(cache_totals(cache).read_bytes, read);
    neurons[0] = (uint64_t)1 << each | (uint64_t)1 << (3 * each); /* units 1 and 3 */
    for (int turn = 0; turn < 2; turn++) {
        assert_true(use(place, source, 0, expert, neurons, false, &n_wrong, &err));
        const uint64_t now = cache_totals(cache).unit_bytes;
        assert_in_range(now, 2 * unit, 2 * unit + 2 * 64);
        assert_int_equal(cache_totals(cache).n_reads, 3);
    }
    neurons[0] |= (uint64_t)1 << (2 * each);
    assert_true(use(place, source, 0, expert, neurons, false, &n_wrong, &err));
    assert_int_equal(cache_totals(cache).n_reads, 4);
    memset(neurons, 0xff, sizeof neurons);
    assert_true(use(place, source, 0, expert, neurons, true, &n_wrong, &err));
    assert_in_range(cache_totals(cache).unit_bytes, layout->pair_bytes, layout->pair_bytes + 8 * 64);
    assert_int_equal(n_wrong, 0);
    moec_expert_cache_free(cache);
    place_close(place);
}

/* ---- faults ---- */

static void test_expert_units__failed_reads_are_tried_again(void **state)
{
    (void)state;
    struct place *place = place_open(64, 64);
    const struct moec_record_sizes sizes = moec_record_sizes_of(place->of.bundle, 0);
    uint32_t n_failed = 0, n_wrong = 0;
    for (uint32_t round = 0; round < 4; round++) {
        struct faults faults = {.errors = round % 2 == 0 ? 3000 : 20000,
                                .flips = round % 2 == 0 ? 3000 : 20000,
                                .delays = 20000,
                                .swaps = 20000,
                                .delay_ns = 100000,
                                .state = 7 + round};
        const struct moec_expert_cache_options options = {
            .buffer.n_bytes = (1 + 3 * round) * sizes.largest_bytes,
            .records.io = {.depth = 4, .test_hook = {faulty_wrap, &faults}}};
        struct moec_expert_cache *cache = cache_of(place, &options);
        uint64_t random = 3 + round;
        for (uint32_t i = 0; i < 250; i++) {
            uint64_t neurons[N_WORD];
            struct moec_error err = {0};
            draw(&random, i % 9, neurons);
            if (!use(place, moec_expert_cache_experts(cache), i % SAMPLE_MOE, random_u32(&random) % N_EXPERT,
                     neurons, i % 4 == 0, &n_wrong, &err)) {
                n_failed++;
                assert_true(err.status == MOEC_ERR_IO || err.status == MOEC_ERR_CHECKSUM);
                assert_message(err, "layer");
            }
        }
        assert_true(faults.n_errors > 0 && faults.n_flips > 0);
        moec_expert_cache_free(cache);
    }
    assert_int_equal(n_wrong, 0);
    assert_true(n_failed > 0);
    place_close(place);
}

/* A pair that is damaged in the file is named, and the others are had. */
static void test_expert_units__damage_is_named(void **state)
{
    (void)state;
    struct place *place = place_open(64, 64);
    const struct moec_record_layout *layout = moec_bundle_layout(place->of.bundle, 0, 1, 3);
    const uint64_t at = moec_bundle_record(place->of.bundle, 0, 1, 3)->offset + layout->n_bytes - 2;
    const struct moec_expert_cache_options options = {.buffer.n_bytes = 1 << 24};
    struct moec_expert_cache *cache = cache_of(place, &options);
    struct moec_experts *source = moec_expert_cache_experts(cache);
    uint64_t first[N_WORD] = {1}, last[N_WORD] = {0, (uint64_t)1 << (N_FF - 65)};
    struct moec_error err = {0};
    uint32_t n_wrong = 0;
    uint8_t byte;
    const int fd = open(place->of.path, O_RDWR);
    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 8;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    if (moec_parts_unit_count(&place->parts, layout) > 1)
        assert_true(use(place, source, 1, 3, first, false, &n_wrong, &err));
    assert_false(use(place, source, 1, 3, last, false, &n_wrong, &err));
    assert_int_equal(err.status, MOEC_ERR_CHECKSUM);
    assert_message(err, "layer 2 expert 3");
    assert_message(err, "neuron");
    err = (struct moec_error){0};
    assert_status(moec_bundle_verify(place->of.path, NULL, NULL, &err), MOEC_ERR_CHECKSUM, err);
    byte ^= 8;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    assert_int_equal(close(fd), 0);
    err = (struct moec_error){0};
    assert_true(use(place, source, 1, 3, last, false, &n_wrong, &err));
    assert_int_equal(n_wrong, 0);
    moec_expert_cache_free(cache);
    place_close(place);
}

/* ---- several sessions ---- */

struct session {
    const struct place *place;
    struct moec_experts *source;
    uint64_t random;
    uint32_t n_wrong, n_failed;
};

/* Holds several experts before it waits for their neurons, as a forward pass does. */
static void *run_session(void *context)
{
    struct session *session = context;
    struct moec_experts *source = session->source;
    for (uint32_t turn = 0; turn < 150; turn++) {
        uint32_t n = 1 + random_u32(&session->random) % source->max_held, keys[4];
        uint64_t neurons[4][N_WORD];
        bool touches_all[4];
        struct moec_mlp held[4];
        n = n < 4 ? n : 4;
        for (uint32_t i = 0; i < n; i++) {
            keys[i] = random_u32(&session->random) % (SAMPLE_MOE * N_EXPERT);
            touches_all[i] = random_u32(&session->random) % 4 == 0;
            draw(&session->random, turn % 9, neurons[i]);
            const struct moec_expert_request request =
                moec_expert_request_of(layers[keys[i] / N_EXPERT], keys[i] % N_EXPERT);
            session->n_failed += source->ops->acquire(source, request, &held[i], NULL) != MOEC_OK;
            source->ops->need(source, request, neurons[i], touches_all[i]);
        }
        for (uint32_t i = 0; i < n; i++) {
            const struct moec_expert_request request =
                moec_expert_request_of(layers[keys[i] / N_EXPERT], keys[i] % N_EXPERT);
            session->n_failed +=
                source->ops->await(source, request, neurons[i], touches_all[i], NULL) != MOEC_OK;
            session->n_wrong += !is_right(session->place, keys[i] / N_EXPERT, keys[i] % N_EXPERT, &held[i],
                                          neurons[i], touches_all[i]);
        }
        for (uint32_t i = 0; i < n; i++)
            source->ops->release(source,
                                 moec_expert_request_of(layers[keys[i] / N_EXPERT], keys[i] % N_EXPERT));
    }
    return NULL;
}

static void test_expert_units__several_sessions(void **state)
{
    (void)state;
    struct place *place = place_open(64, 64);
    const struct moec_record_sizes sizes = moec_record_sizes_of(place->of.bundle, 0);
    const uint64_t budgets[] = {sizes.largest_bytes, 5 * sizes.largest_bytes, sizes.all_bytes};
    for (size_t b = 0; b < sizeof budgets / sizeof *budgets; b++) {
        struct faults faults = {
            .delays = 20000, .swaps = 20000, .delay_ns = 50000, .state = 11 + (uint64_t)b};
        const struct moec_expert_cache_options options = {
            .buffer.n_bytes = budgets[b],
            .n_sessions = 3,
            .records.io = {.test_hook = {faulty_wrap, &faults}}};
        struct moec_expert_cache *cache = cache_of(place, &options);
        struct session sessions[3];
        pthread_t threads[3];
        for (uint32_t i = 0; i < 3; i++) {
            sessions[i] = (struct session){
                .place = place, .source = moec_expert_cache_experts(cache), .random = 100 * b + i + 1};
            assert_int_equal(pthread_create(&threads[i], NULL, run_session, &sessions[i]), 0);
        }
        for (uint32_t i = 0; i < 3; i++) {
            assert_int_equal(pthread_join(threads[i], NULL), 0);
            assert_int_equal(sessions[i].n_failed, 0);
            assert_int_equal(sessions[i].n_wrong, 0);
        }
        moec_expert_cache_free(cache);
    }
    place_close(place);
}

/* ---- the section, and whether it pays ---- */

static void test_expert_units__section_is_checked(void **state)
{
    (void)state;
    struct place *place = place_open(64, 64);
    struct moec_record_parts read;
    struct moec_error err = {0};
    uint8_t *bytes = NULL;
    size_t n = 0;
    assert_status(moec_record_parts_encode(&place->parts, &bytes, &n, &err), MOEC_OK, err);
    assert_status(moec_record_parts_decode(bytes, n, place->of.bundle, &read, &err), MOEC_OK, err);
    assert_int_equal(read.unit_bytes, place->parts.unit_bytes);
    assert_int_equal(moec_parts_of(&read, 1, 2)[0], moec_parts_of(&place->parts, 1, 2)[0]);
    moec_record_parts_release(&read);
    for (size_t at = 0; at < 24; at += 4) {
        err = (struct moec_error){0};
        bytes[at + 2] ^= 0x40;
        assert_int_not_equal(moec_record_parts_decode(bytes, n, place->of.bundle, &read, &err), MOEC_OK);
        assert_true(read.crc32c == NULL && err.message[0] != '\0');
        bytes[at + 2] ^= 0x40;
    }
    for (size_t less = 1; less < n; less += n / 7 + 1) {
        err = (struct moec_error){0};
        assert_status(moec_record_parts_decode(bytes, n - less, place->of.bundle, &read, &err),
                      MOEC_ERR_FORMAT, err);
    }
    free(bytes);
    place_close(place);
}

static void test_expert_units__section_may_have_a_turnover(void **state)
{
    (void)state;
    struct place *place = place_open(64, 64);
    struct moec_record_parts read;
    struct moec_error err = {0};
    uint8_t *bytes = NULL;
    size_t n = 0;
    place->parts.turnover = (struct moec_neuron_turnover){2, {500, 900}, {0.25f, 1}};
    assert_status(moec_record_parts_encode(&place->parts, &bytes, &n, &err), MOEC_OK, err);
    assert_status(moec_record_parts_decode(bytes, n, place->of.bundle, &read, &err), MOEC_OK, err);
    assert_int_equal(read.turnover.n_share, 2);
    assert_int_equal(read.turnover.shares[1], 900);
    assert_true(read.turnover.turnover[0] == 0.25f && read.turnover.turnover[1] == 1);
    assert_true(fabs(moec_neuron_turnover_at(&read.turnover, 0.25) - 0.125) < 1e-6);
    assert_true(fabs(moec_neuron_turnover_at(&read.turnover, 0.7) - 0.7 * (0.5 + (1 / 0.9 - 0.5) / 2)) <
                1e-6);
    assert_true(moec_neuron_turnover_at(&read.turnover, 0.95) == 1);
    moec_record_parts_release(&read);
    static const struct {
        size_t from_end;
        uint8_t value;
    } wrong[] = {{20, 0}, {20, 3}, {20, 33}, {15, 0xff}, {7, 0}, {1, 0x40}, {1, 0xff}, {9, 0xbf}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        uint8_t *at = bytes + n - wrong[i].from_end;
        const uint8_t kept = *at;
        err = (struct moec_error){0};
        *at = wrong[i].value;
        assert_status(moec_record_parts_decode(bytes, n, place->of.bundle, &read, &err), MOEC_ERR_FORMAT,
                      err);
        assert_null(read.crc32c);
        *at = kept;
    }
    for (size_t less = 1; less <= 20; less++) {
        err = (struct moec_error){0};
        assert_status(moec_record_parts_decode(bytes, n - less, place->of.bundle, &read, &err),
                      MOEC_ERR_FORMAT, err);
    }
    free(bytes);
    place->parts.turnover.n_share = 0;
    place_close(place);
}

static void test_expert_units__estimate(void **state)
{
    (void)state;
    struct place *place = place_open(64, 64);
    const struct moec_emulation free_requests = {.bytes_per_second = 1000000000};
    const struct moec_parts_estimate none =
        moec_parts_estimate_make(place->of.bundle, &place->parts, &free_requests, 0);
    assert_true(none.read_bytes > 0.999 * none.whole_bytes && none.read_bytes < 1.001 * none.whole_bytes);
    assert_false(none.pays);
    const struct moec_parts_estimate most =
        moec_parts_estimate_make(place->of.bundle, &place->parts, &free_requests, 0.95);
    assert_true(most.pays && most.read_bytes < none.read_bytes && most.n_reads > none.n_reads);
    /* Active neurons that stand together lie in fewer ranges, of fewer bytes; by lot their turnover is the
     * share. */
    place->parts.turnover = (struct moec_neuron_turnover){1, {900}, {0.9f}};
    const struct moec_parts_estimate by_lot =
        moec_parts_estimate_make(place->of.bundle, &place->parts, &free_requests, 0.95);
    assert_true(fabs(by_lot.read_bytes - most.read_bytes) < 1e-3 &&
                fabs(by_lot.n_reads - most.n_reads) < 1e-3);
    place->parts.turnover.turnover[0] = 0.3f;
    const struct moec_parts_estimate together =
        moec_parts_estimate_make(place->of.bundle, &place->parts, &free_requests, 0.95);
    assert_true(together.read_bytes < most.read_bytes && together.n_reads < most.n_reads);
    /* So parts pay where they would not by lot. */
    bool differs = false;
    for (double share = 0.05; share < 1; share += 0.05)
        for (uint64_t bandwidth = 1000000; bandwidth < 1000000000; bandwidth *= 2) {
            const struct moec_emulation slow = {.bytes_per_second = bandwidth, .request_ns = 10000};
            struct moec_record_parts plain = place->parts;
            plain.turnover.n_share = 0;
            const bool pays = moec_parts_estimate_make(place->of.bundle, &place->parts, &slow, share).pays;
            const bool pays_by_lot = moec_parts_estimate_make(place->of.bundle, &plain, &slow, share).pays;
            assert_true(pays || !pays_by_lot);
            differs = differs || pays != pays_by_lot;
        }
    assert_true(differs);
    place->parts.turnover.n_share = 0;
    /* Pairs are far smaller than what a request costs. */
    const struct moec_emulation real = {0};
    assert_false(moec_parts_estimate_make(place->of.bundle, &place->parts, &real, 0.5).pays);
    place_close(place);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expert_units__every_budget_gives_the_same_bytes),
        cmocka_unit_test(test_expert_units__buffer_holds_more_experts),
        cmocka_unit_test(test_expert_units__units_leave_before_up_sections),
        cmocka_unit_test(test_expert_units__reads_what_is_missing),
        cmocka_unit_test(test_expert_units__failed_reads_are_tried_again),
        cmocka_unit_test(test_expert_units__damage_is_named),
        cmocka_unit_test(test_expert_units__several_sessions),
        cmocka_unit_test(test_expert_units__section_is_checked),
        cmocka_unit_test(test_expert_units__section_may_have_a_turnover),
        cmocka_unit_test(test_expert_units__estimate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
