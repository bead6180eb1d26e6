/* Units of a key are in three disjoint bit sets: resident, wanted and flying. n_pending is what is wanted
 * and what was asked of a read in flight. A read remembers its slot's visit, which tells it when it lands
 * whether the slot was given up meanwhile. Room in the ring is freed in the order of reads. Small gaps
 * between units are read along, and each unit passes its own CRC before it is resident. */
#include "runtime/experts/expert_units.h"

#include "formats/base/bytes.h"
#include "formats/base/memory.h"
#include "runtime/experts/expert_cache_internal.h"
#include "runtime/experts/unit_bits.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- keys ---- */

static const struct moec_record_layout *layout_of(const struct moec_expert_cache *cache, uint32_t key)
{
    return moec_bundle_layout(cache->bundle, cache->options.records.copy, moec_cache_ordinal(cache, key),
                              moec_cache_expert(cache, key));
}

/* How the pairs of a key's record are cut. */
struct shape {
    const struct moec_record_layout *layout;
    uint32_t n_unit, each; /* neurons */
    uint64_t unit_bytes;   /* but of the last one, which may have fewer */
};

static struct shape shape_of(const struct moec_expert_cache *cache, uint32_t key)
{
    const struct moec_record_parts *parts = cache->units->parts;
    struct shape shape = {.layout = layout_of(cache, key)};
    shape.each = moec_parts_unit_neurons(parts, shape.layout);
    shape.n_unit = moec_parts_unit_count(parts, shape.layout);
    shape.unit_bytes = shape.each * (uint64_t)shape.layout->pair_stride_bytes;
    return shape;
}

/* The bytes of n units in a record. */
static struct moec_record_range span_of(const struct shape *shape, uint32_t first, uint32_t n)
{
    const uint64_t from = first * shape->unit_bytes, end = from + n * shape->unit_bytes,
                   pair_bytes = shape->layout->pair_bytes;
    return (struct moec_record_range){shape->layout->up_bytes + from,
                                      (end < pair_bytes ? end : pair_bytes) - from};
}

static uint64_t *bits_of(const struct moec_expert_units *units, uint64_t *bits, uint32_t key)
{
    return bits + (size_t)key * units->n_words;
}

/* Where a key's record begins in its slot. */
static uint32_t place_in_slot(const struct moec_expert_cache *cache, uint32_t key)
{
    return moec_storage_place_of(cache->storages[0], moec_cache_ordinal(cache, key),
                                 moec_cache_expert(cache, key))
        .skip;
}

static uint8_t *record_of(const struct moec_expert_cache *cache, uint32_t key)
{
    return moec_arena_slot(moec_cache_arena(cache, key), key) + place_in_slot(cache, key);
}

static void enlist(struct moec_expert_units *units, uint32_t key)
{
    if (!units->entries[key].is_listed)
        moec_key_list_append(&units->list, units->links, key);
    units->entries[key].is_listed = true;
}

static void delist(struct moec_expert_units *units, uint32_t key)
{
    if (units->entries[key].is_listed)
        moec_key_list_remove(&units->list, units->links, key);
    units->entries[key].is_listed = false;
}

/* ---- creation ---- */

struct sizes {
    uint32_t n_key, n_unit, n_words;
    uint64_t ring_bytes, read_bytes;
};

static uint64_t gap_bytes_of(const struct moec_emulation *emulation)
{
    if (emulation->bytes_per_second == 0)
        return MOEC_UNIT_GAP_BYTES;
    return (uint64_t)((double)emulation->bytes_per_second * (double)emulation->request_ns / 1e9);
}

static struct sizes sizes_of(const struct moec_bundle *bundle, const struct moec_record_parts *parts)
{
    uint32_t n_unit = 0;
    uint64_t unit_bytes = 0, pair_bytes = 0;
    for (uint32_t i = 0; i < bundle->n_layout; i++) {
        const struct moec_record_layout *layout = &bundle->layouts[i];
        const uint32_t n = moec_parts_unit_count(parts, layout);
        const uint64_t bytes = moec_parts_unit_neurons(parts, layout) * (uint64_t)layout->pair_stride_bytes;
        n_unit = n > n_unit ? n : n_unit;
        unit_bytes = bytes > unit_bytes ? bytes : unit_bytes;
        pair_bytes = layout->pair_bytes > pair_bytes ? layout->pair_bytes : pair_bytes;
    }
    uint64_t most = pair_bytes < MOEC_UNIT_READ_BYTES ? pair_bytes : MOEC_UNIT_READ_BYTES;
    most = most > unit_bytes ? most : unit_bytes;
    /* A request begins and ends at the reader's unit. */
    const uint64_t step = bundle->direct_unit, read_bytes = (most / step + 3) * step;
    /* The ring takes a 32nd of the records at most, but has room for four reads. */
    uint64_t n_read = moec_record_sizes_of(bundle, 0).all_bytes / 32 / read_bytes;
    n_read = n_read < 4 ? 4 : n_read < MOEC_UNIT_RING_READS ? n_read : MOEC_UNIT_RING_READS;
    return (struct sizes){.n_key = parts->n_layer * parts->n_expert,
                          .n_unit = n_unit,
                          .n_words = (n_unit + 63) / 64,
                          .ring_bytes = n_read * read_bytes,
                          .read_bytes = read_bytes};
}

uint64_t moec_units_table_bytes(const struct moec_bundle *bundle,
                                const struct moec_expert_cache_options *options)
{
    if (options->records.parts == NULL)
        return 0;
    const struct sizes sizes = sizes_of(bundle, options->records.parts);
    return sizeof(struct moec_expert_units) +
           sizes.n_key * (3 * (uint64_t)sizes.n_words * sizeof(uint64_t) + sizeof(struct moec_unit_entry) +
                          sizeof(struct moec_key_link)) +
           MOEC_UNIT_READS * sizeof(struct moec_cache_read) + sizes.ring_bytes +
           moec_unit_frames_table_bytes(sizes.n_key, sizes.n_unit);
}

enum moec_status moec_units_create(struct moec_expert_cache *cache, struct moec_error *err)
{
    static const char what[] = "parts of experts";
    void *memory = NULL;
    if (cache->n_form > 1)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "experts of the bundle '%s' can be read in parts only if they are in use in a single form "
            "(precision)",
            cache->bundle->file.path);
    const struct sizes sizes = sizes_of(cache->bundle, cache->options.records.parts);
    const uint64_t n_words = (uint64_t)sizes.n_key * sizes.n_words;
    MOEC_TRY(moec_alloc(&memory, 1, sizeof *cache->units, what, err));
    struct moec_expert_units *units = cache->units = memory;
    units->parts = cache->options.records.parts;
    units->n_words = sizes.n_words;
    units->ring_bytes = sizes.ring_bytes;
    units->read_bytes = sizes.read_bytes;
    MOEC_TRY(moec_unit_frames_create(cache, &units->frames, err));
    units->gap_bytes = gap_bytes_of(&cache->options.records.io.emulation);
    units->list = moec_key_list_empty();
    MOEC_TRY(moec_alloc((void **)&units->resident, n_words, sizeof(uint64_t), what, err));
    MOEC_TRY(moec_alloc((void **)&units->wanted, n_words, sizeof(uint64_t), what, err));
    MOEC_TRY(moec_alloc((void **)&units->flying, n_words, sizeof(uint64_t), what, err));
    MOEC_TRY(moec_alloc((void **)&units->entries, sizes.n_key, sizeof *units->entries, what, err));
    MOEC_TRY(moec_alloc((void **)&units->links, sizes.n_key, sizeof *units->links, what, err));
    MOEC_TRY(moec_alloc((void **)&units->reads, MOEC_UNIT_READS, sizeof *units->reads, what, err));
    MOEC_TRY(moec_alloc_pages(&memory, sizes.ring_bytes, what, err));
    units->ring = memory;
    cache->experts.gives_parts = true;
    return MOEC_OK;
}

void moec_units_free(struct moec_expert_cache *cache)
{
    struct moec_expert_units *units = cache->units;
    if (units == NULL)
        return;
    free(units->resident);
    free(units->wanted);
    free(units->flying);
    free(units->entries);
    free(units->links);
    moec_unit_frames_free(units->frames);
    free(units->reads);
    free(units->ring);
    free(units);
    cache->units = NULL;
}

/* ---- whether it pays ---- */

/* Of one record. Its neurons are a chain of two states, of which an active one is followed by one that is not
 * with the parts' turnover; so are its units, needed or not: q are not, and one that is not by another with
 * probability `stays`. Gaps of up to `most` units are read along. */
static void add_estimate(const struct moec_record_parts *parts, const struct moec_record_layout *layout,
                         uint64_t gap_bytes, double share, struct moec_parts_estimate *sum)
{
    const uint32_t each = moec_parts_unit_neurons(parts, layout);
    const double n = moec_parts_unit_count(parts, layout), unit = (double)layout->pair_bytes / n;
    const double most = floor((double)gap_bytes / unit);
    const double wakes = /* of a neuron after one that is not active */
        share > 0 ? fmin(1, (1 - share) * moec_neuron_turnover_at(&parts->turnover, share) / share) : 1;
    const double stays = pow(1 - wakes, each), q = share * pow(1 - wakes, each - 1), ends = 1 - stays;
    double along = 0, gap = 1; /* units in such gaps; `stays` to the power of the gap */
    for (double length = 1; length <= most && length < n; length++) {
        along += q * ends * ends * gap * length;
        gap *= stays;
    }
    sum->whole_bytes += (double)layout->n_bytes;
    sum->read_bytes += (double)layout->up_bytes + n * unit * (1 - q + along);
    sum->n_reads += 1 + fmax(1, n * q * ends * gap);
}

struct moec_parts_estimate moec_parts_estimate_make(const struct moec_bundle *bundle,
                                                    const struct moec_record_parts *parts,
                                                    const struct moec_emulation *emulation, double share)
{
    const uint64_t gap_bytes = gap_bytes_of(emulation);
    const uint32_t n = parts->n_layer * parts->n_expert;
    struct moec_parts_estimate sum = {0};
    for (uint32_t i = 0; i < n; i++)
        add_estimate(parts, moec_bundle_layout(bundle, 0, i / parts->n_expert, i % parts->n_expert),
                     gap_bytes, share, &sum);
    sum.whole_bytes /= n;
    sum.read_bytes /= n;
    sum.n_reads /= n;
    /* Twice: later tokens ask for more of the same expert, which a whole record would have given them. */
    sum.pays = sum.whole_bytes - sum.read_bytes > 2 * (sum.n_reads - 1) * (double)gap_bytes;
    return sum;
}

/* ---- what is there ---- */

void moec_units_forget(struct moec_expert_cache *cache, uint32_t key)
{
    struct moec_expert_units *units = cache->units;
    if (units == NULL)
        return;
    const size_t n_bytes = units->n_words * sizeof(uint64_t);
    delist(units, key);
    moec_unit_frames_release(cache, key);
    memset(moec_units_resident(units, key), 0, n_bytes);
    memset(bits_of(units, units->wanted, key), 0, n_bytes);
    memset(bits_of(units, units->flying, key), 0, n_bytes);
    units->entries[key] = (struct moec_unit_entry){.visit = units->entries[key].visit + 1};
}

void moec_units_complete(struct moec_expert_cache *cache, uint32_t key)
{
    struct moec_expert_units *units = cache->units;
    if (units == NULL)
        return;
    const struct shape shape = shape_of(cache, key);
    for (uint32_t unit = 0; unit < shape.n_unit; unit++)
        moec_bit_set(moec_units_resident(units, key), unit);
}

static void fill_with_zeros(struct moec_expert_cache *cache, uint32_t key)
{
    struct moec_expert_units *units = cache->units;
    const struct shape shape = shape_of(cache, key);
    uint8_t *record = record_of(cache, key);
    for (uint32_t unit = 0; unit < shape.n_unit; unit++) {
        const struct moec_record_range range = span_of(&shape, unit, 1);
        if (!moec_bit_of(moec_units_resident(units, key), unit))
            memset(record + range.offset, 0, range.n_bytes);
    }
    units->entries[key].is_finite = true;
}

static void want(struct moec_expert_units *units, uint32_t key, uint32_t unit)
{
    uint64_t *wanted = bits_of(units, units->wanted, key);
    if (moec_bit_of(moec_units_resident(units, key), unit) || moec_bit_of(wanted, unit) ||
        moec_bit_of(bits_of(units, units->flying, key), unit))
        return;
    moec_bit_set(wanted, unit);
    units->entries[key].n_pending++;
    enlist(units, key);
}

void moec_units_need(struct moec_expert_cache *cache, uint32_t key, const uint64_t *neurons, bool touches_all)
{
    struct moec_expert_units *units = cache->units;
    struct moec_unit_entry *entry = &units->entries[key];
    const struct shape shape = shape_of(cache, key);
    const uint32_t n_ff = shape.layout->n_ff;
    moec_unit_frames_need(cache, key);
    if (entry->n_pending == 0)
        entry->tries = 0;
    /* Another session may be computing from this slot: what it may look at is not written. */
    if (touches_all && !cache->keeps_expected) {
        for (uint32_t unit = 0; unit < shape.n_unit; unit++)
            want(units, key, unit);
        return;
    }
    if (touches_all && !entry->is_finite && units->frames == NULL)
        fill_with_zeros(cache, key);
    for (uint32_t i = moec_bit_next(neurons, 0, n_ff); i < n_ff; i = moec_bit_next(neurons, i + 1, n_ff))
        want(units, key, i / shape.each);
}

bool moec_units_are_coming(const struct moec_expert_cache *cache, uint32_t key)
{
    return cache->units->entries[key].n_pending > 0;
}

bool moec_units_are_there(const struct moec_expert_cache *cache, uint32_t key, const uint64_t *neurons,
                          bool touches_all)
{
    const struct moec_expert_units *units = cache->units;
    const struct shape shape = shape_of(cache, key);
    const uint64_t *resident = moec_units_resident(units, key);
    const uint32_t n_ff = shape.layout->n_ff;
    for (uint32_t unit = 0; unit < shape.n_unit && touches_all && !cache->keeps_expected; unit++)
        if (!moec_bit_of(resident, unit))
            return false;
    for (uint32_t i = moec_bit_next(neurons, 0, n_ff); i < n_ff; i = moec_bit_next(neurons, i + 1, n_ff))
        if (!moec_bit_of(resident, i / shape.each))
            return false;
    return true;
}

/* ---- reading ---- */

/* How many units from `first` on, which is wanted, are worth one request. */
static uint32_t count_together(const struct moec_bundle *bundle, const struct moec_expert_units *units,
                               const struct shape *shape, uint32_t first, const uint64_t *wanted)
{
    const uint64_t most = units->read_bytes - 2 * bundle->direct_unit;
    uint32_t n = 1, next;
    while ((next = moec_bit_next(wanted, first + n, shape->n_unit)) < shape->n_unit &&
           (next - first - n) * shape->unit_bytes <= units->gap_bytes && next - first < MOEC_READ_MAX_UNITS &&
           (next - first + 1) * shape->unit_bytes <= most)
        n = next - first + 1;
    return n;
}

/* Where n bytes at most of one read would begin in the ring: those before its end that are too few are
 * passed. */
static uint64_t next_position(const struct moec_expert_units *units)
{
    const uint64_t left = units->ring_bytes - units->head % units->ring_bytes;
    return left < units->read_bytes ? units->head + left : units->head;
}

bool moec_units_can_begin(const struct moec_expert_units *units)
{
    return moec_units_are_wanted(units) && units->n < MOEC_UNIT_READS &&
           next_position(units) + units->read_bytes - units->tail <= units->ring_bytes;
}

/* The place of a read of n bytes, padded to the reader's unit. */
static uint8_t *place_in_ring(struct moec_expert_units *units, uint64_t n_bytes, uint64_t step)
{
    const uint64_t at = next_position(units);
    units->head = at + moec_align_up(n_bytes, step);
    return units->ring + at % units->ring_bytes;
}

static void leave_ring(struct moec_expert_units *units)
{
    while (units->n > 0 && !units->reads[units->first].is_flying) {
        units->tail = units->reads[units->first].units.end;
        units->first = (units->first + 1) % MOEC_UNIT_READS;
        units->n--;
    }
}

struct moec_cache_read *moec_units_take(struct moec_expert_cache *cache)
{
    struct moec_expert_units *units = cache->units;
    if (!moec_units_can_begin(units))
        return NULL;
    const uint32_t key = units->list.oldest;
    const struct shape shape = shape_of(cache, key);
    uint64_t *wanted = bits_of(units, units->wanted, key), *flying = bits_of(units, units->flying, key);
    const uint32_t first = moec_bit_next(wanted, 0, shape.n_unit);
    struct moec_unit_read part = {.first = first,
                                  .n = count_together(cache->bundle, units, &shape, first, wanted),
                                  .visit = units->entries[key].visit};
    for (uint32_t i = 0; i < part.n; i++) {
        if (!moec_bit_of(wanted, first + i))
            continue;
        part.asked |= (uint64_t)1 << i;
        moec_bit_clear(wanted, first + i);
        moec_bit_set(flying, first + i);
    }
    const struct moec_record_range range = span_of(&shape, first, part.n);
    const struct moec_record_entry *entry =
        moec_bundle_record(cache->bundle, cache->options.records.copy, moec_cache_ordinal(cache, key),
                           moec_cache_expert(cache, key));
    const struct moec_record_place from =
        moec_record_place_of(cache->bundle, entry->offset + range.offset, range.n_bytes);
    uint8_t *buffer = place_in_ring(units, from.n_bytes, cache->bundle->direct_unit);
    part.skip = from.skip;
    part.end = units->head;
    struct moec_cache_read *read = &units->reads[(units->first + units->n++) % MOEC_UNIT_READS];
    units->n_flying++;
    *read = (struct moec_cache_read){
        .read = {.offset = from.offset, .n_bytes = from.n_bytes, .buffer = buffer, .tag = key},
        .is_flying = true,
        .is_units = true,
        .units = part};
    if (moec_bit_next(wanted, first, shape.n_unit) == shape.n_unit)
        delist(units, key);
    return read;
}

static bool is_right(const struct moec_expert_cache *cache, uint32_t key, uint32_t unit, const uint8_t *bytes,
                     struct moec_error *words)
{
    const struct moec_expert_units *units = cache->units;
    const struct moec_record_layout *layout = layout_of(cache, key);
    const uint32_t ordinal = moec_cache_ordinal(cache, key), expert = moec_cache_expert(cache, key);
    const uint32_t layer = moec_config_moe_layer(&cache->bundle->config, ordinal);
    struct moec_record_part part;
    const struct moec_record_range range = moec_parts_unit_range(units->parts, layout, unit, &part);
    const uint32_t expected = moec_parts_of(units->parts, ordinal, expert)[1 + unit];
    const uint32_t crc = moec_crc32c(0, bytes, range.n_bytes);
    if (crc != expected) {
        (void)moec_fail(words, MOEC_ERR_CHECKSUM,
                        "record of layer %" PRIu32 " expert %" PRIu32 " in '%s' is damaged at neuron %" PRIu32
                        ": CRC32C of %" PRIu64 " bytes is %08" PRIx32 ", expected %08" PRIx32,
                        layer, expert, cache->bundle->file.path, part.first_neuron, range.n_bytes, crc,
                        expected);
        return false;
    }
    if (!moec_record_part_is_finite(layout, &part, bytes)) {
        (void)moec_fail(words, MOEC_ERR_FORMAT,
                        "record of layer %" PRIu32 " expert %" PRIu32
                        " in '%s' has a scale or weight that is not finite at neuron %" PRIu32,
                        layer, expert, cache->bundle->file.path, part.first_neuron);
        return false;
    }
    return true;
}

void moec_units_check(const struct moec_expert_cache *cache, struct moec_cache_read *read,
                      struct moec_error *words)
{
    const uint32_t key = (uint32_t)read->read.tag;
    const struct shape shape = shape_of(cache, key);
    for (uint32_t i = 0; i < read->units.n; i++) {
        const uint64_t at = i * shape.unit_bytes;
        if (is_right(cache, key, read->units.first + i, read->read.buffer + read->units.skip + at, words))
            read->units.good |= (uint64_t)1 << i;
    }
}

/* Where a unit that has come goes; NULL: nowhere. It is resident then. */
static uint8_t *room_for(struct moec_expert_cache *cache, uint32_t key, uint32_t unit,
                         const struct moec_record_range *range)
{
    if (cache->units->frames != NULL)
        return moec_unit_frames_take(cache, key, unit);
    moec_bit_set(moec_units_resident(cache->units, key), unit);
    return record_of(cache, key) + range->offset;
}

/* Unit i of a read has come. */
static void put_in_place(struct moec_expert_cache *cache, const struct moec_cache_read *read,
                         const struct shape *shape, uint32_t i)
{
    struct moec_expert_units *units = cache->units;
    const uint32_t key = (uint32_t)read->read.tag, unit = read->units.first + i;
    const struct moec_record_range range = span_of(shape, unit, 1);
    uint64_t *wanted = bits_of(units, units->wanted, key);
    if (moec_bit_of(moec_units_resident(units, key), unit))
        return;
    uint8_t *to = room_for(cache, key, unit, &range);
    if (to == NULL)
        return;
    memcpy(to, read->read.buffer + read->units.skip + i * shape->unit_bytes, range.n_bytes);
    if (moec_bit_of(wanted, unit)) { /* since this read began */
        moec_bit_clear(wanted, unit);
        units->entries[key].n_pending--;
    }
}

/* Some that were asked for did not come: they are read again, or given up with all that is wanted. */
static void try_again(struct moec_expert_cache *cache, uint32_t key, const struct moec_unit_read *part,
                      uint64_t failed, const struct moec_error *words)
{
    struct moec_expert_units *units = cache->units;
    struct moec_unit_entry *entry = &units->entries[key];
    uint64_t *wanted = bits_of(units, units->wanted, key);
    for (uint32_t i = 0; i < part->n; i++)
        if ((failed >> i & 1) != 0)
            moec_bit_set(wanted, part->first + i);
    enlist(units, key);
    if (++entry->tries < MOEC_RECORD_TRIES)
        return;
    for (uint32_t word = 0; word < units->n_words; word++) {
        entry->n_pending -= (uint32_t)__builtin_popcountll(wanted[word]);
        wanted[word] = 0;
    }
    delist(units, key);
    cache->failure = *words;
    cache->failure_key = key;
}

void moec_units_finish(struct moec_expert_cache *cache, struct moec_cache_read *read,
                       const struct moec_error *words)
{
    struct moec_expert_units *units = cache->units;
    const uint32_t key = (uint32_t)read->read.tag;
    const struct moec_unit_read *part = &read->units;
    struct moec_unit_entry *entry = &units->entries[key];
    uint64_t *flying = bits_of(units, units->flying, key), failed = 0;
    units->n_flying--;
    read->is_flying = false;
    const struct shape shape = shape_of(cache, key);
    if (part->visit != entry->visit) {
        leave_ring(units);
        return;
    }
    for (uint32_t i = 0; i < part->n; i++) {
        const uint64_t bit = (uint64_t)1 << i;
        if ((part->good & bit) != 0)
            put_in_place(cache, read, &shape, i);
        if ((part->asked & bit) == 0)
            continue;
        moec_bit_clear(flying, part->first + i);
        if (moec_bit_of(moec_units_resident(units, key), part->first + i))
            entry->n_pending--;
        else
            failed |= bit;
    }
    leave_ring(units);
    entry->problem = failed != 0 ? read->read.error : entry->problem;
    if (failed != 0)
        try_again(cache, key, part, failed, words);
}
