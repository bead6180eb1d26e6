#include "cli/settings/part_windows.h"

#include <inttypes.h>

static enum moec_status make(const struct cli_measure_options *measure, const struct moec_source *source,
                             const char *purpose, bool has_parts, struct cli_part_windows *out,
                             struct moec_error *err)
{
    const struct moec_config *config = source->config;
    const uint64_t rows_bytes = moec_rows_budget(measure->memory.work_bytes);
    if (source->tokenizer == NULL)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "the model '%s' has no tokenizer, so no text can be read with it", source->path);
    if (measure->data.seq_len_tokens > config->n_position)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "windows of %" PRIu32 " tokens are too long: the model has only %" PRIu32
                         " positions ('%s'); lower --seq-len",
                         measure->data.seq_len_tokens, config->n_position, source->path);
    MOEC_TRY(moec_windows_need_task(config, &measure->data.task, purpose, err));
    MOEC_TRY(moec_tokenizer_create(source->tokenizer, &out->tokenizer, err));
    MOEC_TRY(moec_rows_read(&measure->data.task, measure->data.path, rows_bytes, &out->rows, err));
    struct moec_windows_options options = {.seq_len_tokens = measure->data.seq_len_tokens,
                                           .has_parts = has_parts,
                                           .parts = measure->data.parts,
                                           .n_sample = measure->data.parts.n_window,
                                           .seed = measure->data.seed,
                                           .memory_bytes = rows_bytes};
    moec_windows_options_for(config, &options);
    const struct moec_pool pool = moec_pool_make(measure->by.n_threads);
    MOEC_TRY(moec_windows_make(&out->rows, out->tokenizer, &options, &pool, &out->windows, err));
    moec_rows_drop_texts(&out->rows);
    return MOEC_OK;
}

enum moec_status cli_part_windows_make(const struct cli_measure_options *measure,
                                       const struct moec_source *source, const char *purpose,
                                       struct cli_part_windows *out, struct moec_error *err)
{
    return make(measure, source, purpose, true, out, err);
}

enum moec_status cli_whole_windows_make(const struct cli_measure_options *measure,
                                        const struct moec_source *source, const char *purpose,
                                        struct cli_part_windows *out, struct moec_error *err)
{
    return make(measure, source, purpose, false, out, err);
}

void cli_part_windows_release(struct cli_part_windows *made)
{
    moec_windows_release(&made->windows);
    moec_rows_release(&made->rows);
    moec_tokenizer_free(made->tokenizer);
}
