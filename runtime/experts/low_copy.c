/* Unless its slots are asked for, the low pool has low / (2 high + low) of the buffer, or what all high
 * records leave. It is at most what all low records take. Both pools hold at least their largest record. */
#include "runtime/experts/low_copy.h"

#include "formats/base/memory.h"
#include "runtime/storage/record_reader.h"

#include <inttypes.h>
#include <stdio.h>

enum moec_status moec_low_copy_find(const struct moec_bundle *bundle, uint32_t high, uint32_t bits,
                                    uint32_t *low, struct moec_error *err)
{
    uint64_t least = moec_record_sizes_of(bundle, high).all_bytes;
    uint32_t found = bundle->n_copy;
    for (uint32_t copy = 1; copy < bundle->n_copy; copy++) {
        const uint64_t bytes = moec_record_sizes_of(bundle, copy).all_bytes;
        if (copy == high || bytes >= least || (bits > 0 && bundle->copy_bits[copy] != bits))
            continue;
        found = copy;
        least = bytes;
    }
    *low = found;
    if (found < bundle->n_copy)
        return MOEC_OK;
    char wanted[32] = "";
    if (bits > 0)
        (void)snprintf(wanted, sizeof wanted, " at %" PRIu32 " bits", bits);
    return moec_fail(err, MOEC_ERR_USAGE,
                     "the bundle '%s' has no precision copy%s that is smaller than copy %" PRIu32
                     ", which this run uses: compile the model again with --copies, such as --copies 2",
                     bundle->file.path, wanted, high);
}

uint64_t moec_low_pool_of_sizes(const struct moec_record_sizes *high, const struct moec_record_sizes *low,
                                uint32_t n_expert, uint32_t n_slots, uint64_t buffer_bytes)
{
    const uint64_t slots_bytes = (low->all_bytes + n_expert - 1) / n_expert * n_slots;
    const double share = (double)low->all_bytes / (2 * (double)high->all_bytes + (double)low->all_bytes);
    uint64_t n_bytes = n_slots > 0 ? slots_bytes : (uint64_t)(share * (double)buffer_bytes);
    if (n_slots == 0 && buffer_bytes - n_bytes > high->all_bytes)
        n_bytes = buffer_bytes - high->all_bytes;
    n_bytes = n_bytes < low->all_bytes ? n_bytes : low->all_bytes;
    n_bytes = n_bytes > low->largest_bytes ? n_bytes : low->largest_bytes;
    return buffer_bytes - n_bytes > high->largest_bytes ? n_bytes : buffer_bytes - high->largest_bytes;
}

uint64_t moec_low_pool_bytes(const struct moec_bundle *bundle, uint32_t high, uint32_t low, uint32_t n_slots,
                             uint64_t buffer_bytes)
{
    const struct moec_record_sizes of_high = moec_record_sizes_of(bundle, high),
                                   of_low = moec_record_sizes_of(bundle, low);
    return moec_low_pool_of_sizes(&of_high, &of_low, bundle->config.n_expert, n_slots, buffer_bytes);
}

enum moec_status moec_copy_record_bytes(const struct moec_bundle *bundle, uint32_t copy, uint64_t **bytes,
                                        struct moec_error *err)
{
    const uint32_t n_layer = moec_config_moe_count(&bundle->config), n_expert = bundle->config.n_expert;
    MOEC_TRY(
        moec_alloc((void **)bytes, (uint64_t)n_layer * n_expert, sizeof **bytes, "sizes of records", err));
    for (uint32_t ordinal = 0; ordinal < n_layer; ordinal++)
        for (uint32_t expert = 0; expert < n_expert; expert++)
            (*bytes)[(size_t)ordinal * n_expert + expert] =
                moec_record_slot_bytes(bundle, copy, ordinal, expert);
    return MOEC_OK;
}
