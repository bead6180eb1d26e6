/* files_bytes is what the plan counts for pages of files: a reader's code, and the base less memory that is
 * no page of a file. Spare is that, less the pages of files now, less a reserve. Only a small budget that
 * one session has to itself lends it; any budget gives back code. */
#include "runtime/engine/memory_watch.h"

#include "runtime/storage/reader.h"

#define CODE_RUN_TOKENS 2 /* after so many the code of a text has run */

enum moec_status moec_memory_watch_plan(struct moec_memory_watch *watch, const struct moec_memory_plan *plan,
                                        uint64_t budget_bytes, bool is_alone, struct moec_error *err)
{
    struct moec_memory_pages now;
    *watch = (struct moec_memory_watch){.is_on = budget_bytes > 0, .budget_bytes = budget_bytes};
    if (!watch->is_on)
        return MOEC_OK;
    MOEC_TRY(moec_memory_pages_now(&now, err));
    const uint64_t own_bytes = now.resident_bytes - now.file_bytes;
    watch->files_bytes = MOEC_READER_CODE_BYTES;
    watch->files_bytes += plan->parts.base_bytes > own_bytes ? plan->parts.base_bytes - own_bytes : 0;
    if (is_alone && !plan->experts.all_stay && budget_bytes <= MOEC_WATCH_SMALL_BYTES)
        watch->most_bytes = watch->files_bytes;
    return MOEC_OK;
}

void moec_memory_watch_begin(struct moec_memory_watch *watch, struct moec_kv_lending *lending)
{
    watch->n_alone = 0;
    if (watch->most_bytes > 0)
        moec_kv_lending_spare(lending, 0);
}

static void give_spare(struct moec_memory_watch *watch, struct moec_kv_lending *lending, uint64_t file_bytes)
{
    const uint64_t taken = file_bytes + MOEC_WATCH_RESERVE_BYTES;
    const uint64_t spare = watch->files_bytes > taken ? watch->files_bytes - taken : 0;
    moec_kv_lending_spare(lending, spare < watch->most_bytes ? spare : watch->most_bytes);
}

void moec_memory_watch_end(struct moec_memory_watch *watch, struct moec_kv_lending *lending,
                           uint32_t n_tokens)
{
    struct moec_memory_pages now;
    if (!watch->is_on || moec_memory_pages_now(&now, NULL) != MOEC_OK)
        return;
    if (now.resident_bytes + MOEC_WATCH_NEAR_BYTES > watch->budget_bytes)
        moec_memory_give_back_code();
    if (watch->most_bytes == 0)
        return;
    watch->n_alone = n_tokens == 1 ? watch->n_alone + 1 : 0;
    if (watch->n_alone >= CODE_RUN_TOKENS)
        give_spare(watch, lending, now.file_bytes);
}
