/* Free frames are a list that stands in the frames themselves. Those past n_begun were never used and are no
 * part of it, so memory is touched only when it is needed. A place is 1 + its frame, and 0 is none. A frame
 * is taken from the key that was needed longest ago. Keys that nobody expects come first, then those that
 * nobody holds. Sections of up get at most three quarters, so they cannot push out all the pairs. */
#include "runtime/experts/unit_frames.h"

#include "formats/base/bytes.h"
#include "formats/base/mapped_memory.h"
#include "formats/base/memory.h"
#include "runtime/experts/expert_cache_internal.h"
#include "runtime/experts/unit_bits.h"

#include <string.h>

/* ---- creation ---- */

uint64_t moec_unit_frames_table_bytes(uint32_t n_key, uint32_t n_unit)
{
    return sizeof(struct moec_unit_frames) +
           n_key *
               (sizeof(uint64_t) + (1 + (uint64_t)n_unit) * sizeof(uint32_t) + sizeof(struct moec_key_link));
}

/* The largest of all keys. */
struct sizes {
    uint64_t up_bytes; /* of a slot */
    uint64_t unit_bytes;
    uint32_t n_unit;
    bool are_units; /* neurons can be had alone, and their weights take no more than floats would */
};

static struct sizes sizes_of(const struct moec_expert_cache *cache)
{
    const struct moec_record_parts *parts = cache->options.records.parts;
    const struct moec_bundle *bundle = cache->bundle;
    const uint64_t read_unit = bundle->direct_unit,
                   step = bundle->alignment > read_unit ? bundle->alignment : read_unit;
    struct sizes sizes = {.are_units = true};
    for (uint32_t key = 0; key < cache->n_key; key++) {
        const uint32_t ordinal = moec_cache_ordinal(cache, key), expert = moec_cache_expert(cache, key);
        const struct moec_record_layout *layout =
            moec_bundle_layout(bundle, cache->options.records.copy, ordinal, expert);
        const uint64_t up = moec_storage_up_place_of(cache->storages[0], ordinal, expert).n_bytes;
        const uint64_t slot = moec_align_up(up, step),
                       unit = moec_parts_unit_neurons(parts, layout) * (uint64_t)layout->pair_stride_bytes;
        const uint32_t n_unit = moec_parts_unit_count(parts, layout);
        sizes.up_bytes = slot > sizes.up_bytes ? slot : sizes.up_bytes;
        sizes.unit_bytes = unit > sizes.unit_bytes ? unit : sizes.unit_bytes;
        sizes.n_unit = n_unit > sizes.n_unit ? n_unit : sizes.n_unit;
        sizes.are_units =
            sizes.are_units && n_unit > 1 && layout->pair_stride_bytes <= layout->n_embd * sizeof(float);
    }
    return sizes;
}

/* What the up sections have of a buffer of so many bytes, which are never fewer; 0 where there is too little
 * for what a token takes. */
static uint64_t up_share(const struct moec_expert_cache *cache, const struct sizes *sizes, uint64_t n_bytes)
{
    const uint64_t top_k = cache->bundle->config.top_k, units = sizes->n_unit * sizes->unit_bytes;
    if (n_bytes / (sizes->up_bytes + units) < top_k)
        return 0;
    const uint64_t room = n_bytes - top_k * units, share = n_bytes / 4 * 3;
    const uint64_t n_up = (room < share ? room : share) / sizes->up_bytes,
                   n = n_up < cache->n_key ? n_up : cache->n_key;
    return (n > top_k ? n : top_k) * sizes->up_bytes;
}

static enum moec_status create_tables(struct moec_unit_frames *frames, uint32_t n_key, struct moec_error *err)
{
    static const char what[] = "frames of experts' parts";
    MOEC_TRY(moec_alloc((void **)&frames->slot_bytes, n_key, sizeof *frames->slot_bytes, what, err));
    MOEC_TRY(moec_alloc((void **)&frames->of_units, (uint64_t)n_key * frames->n_unit,
                        sizeof *frames->of_units, what, err));
    MOEC_TRY(moec_alloc((void **)&frames->n_taken, n_key, sizeof *frames->n_taken, what, err));
    MOEC_TRY(moec_alloc((void **)&frames->links, n_key, sizeof *frames->links, what, err));
    void *bytes = NULL;
    MOEC_TRY(moec_alloc_pages(&bytes, frames->n_frame * frames->frame_bytes, "expert buffer", err));
    frames->bytes = bytes;
    return MOEC_OK;
}

enum moec_status moec_unit_frames_create(const struct moec_expert_cache *cache, struct moec_unit_frames **out,
                                         struct moec_error *err)
{
    const uint64_t buffer = cache->buffer_bytes, floor = cache->options.buffer.least_bytes;
    const uint64_t least = floor > 0 && floor < buffer ? floor : buffer;
    const struct sizes sizes = sizes_of(cache);
    const uint64_t up_bytes = sizes.are_units ? up_share(cache, &sizes, least) : 0;
    uint64_t all_bytes = 0;
    *out = NULL;
    for (uint32_t key = 0; key < cache->n_key; key++)
        all_bytes += cache->slot_bytes[key];
    if (up_bytes == 0 || !cache->keeps_expected || buffer >= all_bytes ||
        (buffer - up_bytes) / sizes.unit_bytes >= UINT32_MAX)
        return MOEC_OK;
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, 1, sizeof **out, "frames of experts' parts", err));
    struct moec_unit_frames *frames = memory;
    const uint64_t n_held = (least - up_bytes) / sizes.unit_bytes / sizes.n_unit,
                   n_up = up_bytes / sizes.up_bytes;
    frames->up_bytes = up_bytes;
    frames->max_held = (uint32_t)(n_held < n_up ? n_held : n_up);
    frames->frame_bytes = sizes.unit_bytes;
    frames->n_frame = (uint32_t)((buffer - up_bytes) / sizes.unit_bytes);
    frames->n_unit = sizes.n_unit;
    frames->list = moec_key_list_empty();
    const enum moec_status status = create_tables(frames, cache->n_key, err);
    if (status != MOEC_OK) {
        moec_unit_frames_free(frames);
        return status;
    }
    for (uint32_t key = 0; key < cache->n_key; key++)
        frames->slot_bytes[key] = sizes.up_bytes;
    *out = frames;
    return MOEC_OK;
}

void moec_unit_frames_free(struct moec_unit_frames *frames)
{
    if (frames == NULL)
        return;
    free(frames->slot_bytes);
    free(frames->of_units);
    free(frames->n_taken);
    free(frames->links);
    free(frames->bytes);
    free(frames);
}

/* ---- frames that hold nothing ---- */

static uint8_t *frame_at(const struct moec_unit_frames *frames, uint32_t place)
{
    return frames->bytes + (place - 1) * frames->frame_bytes;
}

static void push_free(struct moec_unit_frames *frames, uint32_t place)
{
    memcpy(frame_at(frames, place), &frames->free, sizeof frames->free);
    frames->free = place;
}

/* 1 + one of them, or 0. */
static uint32_t pop_free(struct moec_unit_frames *frames)
{
    const uint32_t place = frames->free;
    if (place == 0)
        return frames->n_begun < frames->n_frame ? ++frames->n_begun : 0;
    memcpy(&frames->free, frame_at(frames, place), sizeof frames->free);
    return place;
}

/* ---- frames of units ---- */

static uint32_t *places_of(const struct moec_unit_frames *frames, uint32_t key)
{
    return frames->of_units + (size_t)key * frames->n_unit;
}

/* A resident unit becomes absent; its frame. */
static uint32_t take_away(struct moec_expert_cache *cache, uint32_t key, uint32_t unit)
{
    struct moec_unit_frames *frames = cache->units->frames;
    const uint32_t place = places_of(frames, key)[unit];
    moec_bit_clear(moec_units_resident(cache->units, key), unit);
    places_of(frames, key)[unit] = 0;
    frames->n_used--;
    if (--frames->n_taken[key] == 0)
        moec_key_list_remove(&frames->list, frames->links, key);
    return place;
}

/* Of the key that was needed the longest ago: of one that nobody expects, else of one that nobody holds. 0:
 * there is none. */
static uint32_t steal(struct moec_expert_cache *cache)
{
    const struct moec_unit_frames *frames = cache->units->frames;
    for (int spares_expected = 1; spares_expected >= 0; spares_expected--)
        for (uint32_t key = frames->list.oldest; key != MOEC_EVICT_NONE; key = frames->links[key].newer) {
            const struct moec_cache_entry *entry = &cache->entries[key];
            if (entry->held > 0 || (spares_expected && moec_cache_wishes(entry) > 0))
                continue;
            return take_away(cache, key,
                             moec_bit_next(moec_units_resident(cache->units, key), 0, frames->n_unit));
        }
    return 0;
}

void moec_unit_frames_need(struct moec_expert_cache *cache, uint32_t key)
{
    struct moec_unit_frames *frames = cache->units->frames;
    if (frames == NULL || frames->n_taken[key] == 0)
        return;
    moec_key_list_remove(&frames->list, frames->links, key);
    moec_key_list_append(&frames->list, frames->links, key);
}

uint8_t *moec_unit_frames_take(struct moec_expert_cache *cache, uint32_t key, uint32_t unit)
{
    struct moec_unit_frames *frames = cache->units->frames;
    uint32_t place = pop_free(frames);
    if (place == 0)
        place = steal(cache);
    if (place == 0)
        return NULL;
    if (frames->n_taken[key]++ == 0)
        moec_key_list_append(&frames->list, frames->links, key);
    frames->n_used++;
    places_of(frames, key)[unit] = place;
    moec_bit_set(moec_units_resident(cache->units, key), unit);
    return frame_at(frames, place);
}

void moec_unit_frames_release(struct moec_expert_cache *cache, uint32_t key)
{
    struct moec_unit_frames *frames = cache->units->frames;
    if (frames == NULL)
        return;
    const uint64_t *resident = moec_units_resident(cache->units, key);
    for (uint32_t unit = 0; (unit = moec_bit_next(resident, unit, frames->n_unit)) < frames->n_unit; unit++)
        push_free(frames, take_away(cache, key, unit));
}

/* ---- fewer frames ---- */

/* Makes units absent that stand behind frame n. False where some are held. */
static bool clear_behind(struct moec_expert_cache *cache, uint32_t n)
{
    struct moec_unit_frames *frames = cache->units->frames;
    for (uint32_t key = 0; key < cache->n_key; key++)
        for (uint32_t unit = 0; unit < frames->n_unit && frames->n_taken[key] > 0; unit++) {
            if (places_of(frames, key)[unit] <= n)
                continue;
            if (cache->entries[key].held > 0)
                return false;
            push_free(frames, take_away(cache, key, unit));
        }
    return true;
}

bool moec_unit_frames_limit(struct moec_expert_cache *cache, uint64_t n_bytes)
{
    struct moec_unit_frames *frames = cache->units->frames;
    const uint64_t fit = n_bytes > frames->up_bytes ? (n_bytes - frames->up_bytes) / frames->frame_bytes : 0;
    if (fit >= frames->n_frame)
        return true;
    const uint32_t n = (uint32_t)fit;
    if (!clear_behind(cache, n))
        return false;
    uint32_t place = frames->free;
    for (frames->free = 0; place != 0;) {
        uint32_t next;
        memcpy(&next, frame_at(frames, place), sizeof next);
        if (place <= n)
            push_free(frames, place);
        place = next;
    }
    moec_give_back_memory(frames->bytes, n * frames->frame_bytes, frames->n_frame * frames->frame_bytes);
    frames->n_frame = n;
    frames->n_begun = frames->n_begun < n ? frames->n_begun : n;
    return true;
}

/* ---- computing from them ---- */

void moec_unit_frames_bind(const struct moec_expert_cache *cache, uint32_t key, struct moec_mlp *mlp)
{
    const struct moec_unit_frames *frames = cache->units->frames;
    const struct moec_record_layout *layout =
        moec_bundle_layout(cache->bundle, cache->options.records.copy, moec_cache_ordinal(cache, key),
                           moec_cache_expert(cache, key));
    mlp->gate.data = mlp->down.data = NULL;
    mlp->frames = (struct moec_mlp_frames){.bytes = frames->bytes,
                                           .frame_bytes = frames->frame_bytes,
                                           .of_units = places_of(frames, key),
                                           .each = moec_parts_unit_neurons(cache->units->parts, layout),
                                           .down_offset = (uint32_t)layout->row_bytes[MOEC_PROJECTION_GATE]};
}
