/* Rows are tokenised on all threads within equal shares of memory, and rows that could need more one by one
 * afterwards. The first row that fails is named, whatever thread met it. Windows are numbered through all
 * rows in order, and draws are of these numbers. A row's BOS is taken off and put before each of its windows
 * instead. */
#include "profiler/evaluate/windows.h"

#include "formats/base/memory.h"
#include "profiler/common/random.h"

#include <inttypes.h>
#include <string.h>

/* Token ids of one row, BOS taken off. */
struct row_tokens {
    uint32_t *ids; /* owned */
    size_t n;
    size_t first;     /* 1 when ids[0] is BOS */
    uint32_t *target; /* owned; NULL where windows have no source */
    size_t n_target;
};

struct tokenising {
    const struct moec_rows *rows;
    const struct moec_tokenizer *tokenizer;
    uint32_t bos;    /* begins every window; MOEC_TOKENIZER_NO_ID: none does, or windows have sources */
    bool has_source; /* rows are sources with targets */
    struct row_tokens *tokens; /* (n_row) */
    struct moec_error *errors; /* (n_threads) */
    size_t *failed_row;        /* (n_threads) first row that this thread failed on */
    /* Of a bounded memory an eighth is for what threads need meanwhile, the same for each, and rows that
     * could need more than their share are tokenised one at a time, in order, with all that is left. */
    uint64_t memory_bytes; /* 0 = no bound */
    uint64_t share_bytes;  /* of a thread */
    uint64_t kept_bytes;   /* tokens of finished rows; atomic */
};

#define MIB(n) ((double)(n) / (1 << 20))

/* What tokenising a text takes at most for each of its bytes, where it cannot be cut into pieces: a word that
 * is the whole text, its merges, its ids and two copies of it. */
#define BYTES_PER_BYTE 48

/* What a model is to write after this row's prompt. */
static void find_target(const struct moec_rows *rows, const struct moec_row *row, const char **text,
                        size_t *n_bytes)
{
    *text = rows->text + row->reference_offset;
    *n_bytes = row->reference_bytes;
    if (row->n_choice == 0)
        return;
    const struct moec_row_choice *choice = &rows->choices[row->first_choice + row->label];
    *text = rows->text + choice->offset;
    *n_bytes = choice->n_bytes;
}

static enum moec_status tokenise_texts(const struct tokenising *job, const struct moec_row *text,
                                       uint64_t *left_bytes, struct row_tokens *row, struct moec_error *err)
{
    const char *target = NULL;
    size_t n_bytes = 0;
    MOEC_TRY(moec_tokenizer_encode_within(
        job->tokenizer, (struct moec_text){job->rows->text + text->prompt_offset, text->prompt_bytes}, true,
        left_bytes, &row->ids, &row->n, err));
    if (!job->has_source)
        return MOEC_OK;
    find_target(job->rows, text, &target, &n_bytes);
    return moec_tokenizer_encode_within(job->tokenizer, (struct moec_text){target, n_bytes}, true, left_bytes,
                                        &row->target, &row->n_target, err);
}

/* Memory that is left beside rows and finished tokens. */
static uint64_t left_memory(const struct tokenising *job)
{
    const uint64_t held = moec_rows_memory_bytes(job->rows) +
                          __atomic_load_n(&job->kept_bytes, __ATOMIC_RELAXED) +
                          job->rows->n_row * sizeof *job->tokens;
    return job->memory_bytes > held ? job->memory_bytes - held : 0;
}

static bool is_large(const struct tokenising *job, const struct moec_row *row)
{
    const char *target = NULL;
    size_t n_bytes = 0;
    if (job->memory_bytes == 0)
        return false;
    if (job->has_source)
        find_target(job->rows, row, &target, &n_bytes);
    return row->prompt_bytes + n_bytes > job->share_bytes / BYTES_PER_BYTE;
}

/* Tokenises a row within `left_bytes` and says in a message which row it is. */
static enum moec_status tokenise_one(struct tokenising *job, size_t item, uint64_t left_bytes,
                                     struct moec_error *err)
{
    const struct moec_row *text = &job->rows->rows[item];
    struct row_tokens *row = &job->tokens[item];
    const uint64_t given = left_bytes;
    struct moec_error own = {0};
    enum moec_status status = tokenise_texts(job, text, &left_bytes, row, &own);
    if (status == MOEC_ERR_BUDGET)
        return moec_fail(
            err, status,
            "row at line %" PRIu64
            " of '%s': tokenising its %.1f MiB of text takes more than the %.1f MiB of work memory that are "
            "left; raise --work-memory or give shorter rows",
            text->line, job->rows->name, MIB(text->prompt_bytes), MIB(given));
    if (status != MOEC_OK)
        return moec_fail(err, status, "row at line %" PRIu64 " of '%s': %s", text->line, job->rows->name,
                         own.message);
    row->first = job->bos != MOEC_TOKENIZER_NO_ID && row->n > 0 && row->ids[0] == job->bos;
    (void)__atomic_add_fetch(&job->kept_bytes, given - left_bytes, __ATOMIC_RELAXED);
    return MOEC_OK;
}

static void tokenise_row(void *context, size_t item, int thread)
{
    struct tokenising *job = context;
    struct moec_error *err = &job->errors[thread];
    /* Rows after a failure of this thread need no work; those before it must be tried, so that the first
     * wrong row is named whatever thread ran it. */
    if ((err->status != MOEC_OK && item > job->failed_row[thread]) || is_large(job, &job->rows->rows[item]))
        return;
    /* Without memory for the tokens of all rows the rest need no work either: check_kept says so. */
    if (job->memory_bytes > 0 && left_memory(job) < job->memory_bytes / 8)
        return;
    struct moec_error own = {0};
    const uint64_t share = job->memory_bytes > 0 ? job->share_bytes : UINT64_MAX;
    if (tokenise_one(job, item, share, &own) != MOEC_OK) {
        *err = own;
        job->failed_row[thread] = item;
    }
}

static enum moec_status check_kept(const struct tokenising *job, struct moec_error *err)
{
    if (job->memory_bytes == 0 || left_memory(job) >= job->memory_bytes / 8)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_BUDGET,
                     "the text of '%s' and its tokens take more than the %.1f MiB that text may take; raise "
                     "--work-memory or give less text",
                     job->rows->name, MIB(job->memory_bytes));
}

static enum moec_status tokenise_large(struct tokenising *job, struct moec_error *err)
{
    for (size_t r = 0; r < job->rows->n_row; r++)
        if (is_large(job, &job->rows->rows[r]))
            MOEC_TRY(tokenise_one(job, r, left_memory(job), err));
    return MOEC_OK;
}

static enum moec_status tokenise(struct tokenising *job, const struct moec_pool *pool, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const size_t n_threads = (size_t)pool->n_threads;
    job->share_bytes = job->memory_bytes / 8 / n_threads;
    MOEC_TRY_OUT(
        moec_alloc((void **)&job->tokens, job->rows->n_row, sizeof *job->tokens, "tokens of the rows", err));
    MOEC_TRY_OUT(moec_alloc((void **)&job->errors, n_threads, sizeof *job->errors, "errors", err));
    MOEC_TRY_OUT(moec_alloc((void **)&job->failed_row, n_threads, sizeof *job->failed_row, "errors", err));
    moec_parallel_for(pool, job->rows->n_row, tokenise_row, job);
    size_t worst = n_threads;
    for (size_t t = 0; t < n_threads; t++) {
        if (job->errors[t].status != MOEC_OK &&
            (worst == n_threads || job->failed_row[t] < job->failed_row[worst]))
            worst = t;
    }
    if (worst < n_threads) {
        status = moec_fail(err, job->errors[worst].status, "%s", job->errors[worst].message);
        goto out;
    }
    MOEC_TRY_OUT(check_kept(job, err));
    status = tokenise_large(job, err);
out:
    free(job->errors);
    free(job->failed_row);
    return status;
}

/* Tokens of text that one window takes, and how many windows `n` tokens of text give. */
static uint32_t window_text(const struct moec_windows_options *options, uint32_t bos)
{
    return options->seq_len_tokens - (bos != MOEC_TOKENIZER_NO_ID);
}

static uint64_t window_count(const struct row_tokens *row, uint32_t text_tokens, uint32_t bos)
{
    uint64_t n = row->n - row->first;
    uint64_t rest = n % text_tokens, least = bos != MOEC_TOKENIZER_NO_ID ? 1 : 2;
    return n / text_tokens + (rest >= least);
}

static enum moec_status check_count(const struct moec_rows *rows, const struct moec_windows_options *options,
                                    uint64_t n_available, uint64_t n_data_tokens, struct moec_error *err)
{
    uint64_t needed = options->has_parts ? 2 * (uint64_t)options->parts.min_part_windows : 1;
    if (n_available >= needed)
        return MOEC_OK;
    if (options->has_source)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "the data '%s' has %" PRIu64 " rows, expected at least %" PRIu64 " (%" PRIu32
                         " to search on and %" PRIu32 " to certify with)",
                         rows->name, n_available, needed, options->parts.min_part_windows,
                         options->parts.min_part_windows);
    double bytes_per_token = n_data_tokens > 0 ? (double)rows->text_bytes / (double)n_data_tokens : 4.0;
    double more = (double)(needed - n_available) * options->seq_len_tokens * bytes_per_token;
    if (!options->has_parts)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "the data '%s' has no window of at least 2 tokens; give more text", rows->name);
    return moec_fail(err, MOEC_ERR_LIMIT,
                     "the data '%s' has %" PRIu64 " windows of %" PRIu32 " tokens, expected at least "
                     "%" PRIu64 " (%" PRIu32 " to search on and %" PRIu32 " to certify with); give about "
                     "%.0f more bytes of text, or shorter windows",
                     rows->name, n_available, options->seq_len_tokens, needed,
                     options->parts.min_part_windows, options->parts.min_part_windows, more);
}

/* What is told of each window beside its tokens. */
struct told {
    bool source, document, part;
};

static enum moec_status allocate(struct moec_windows *windows, uint32_t n_window, uint32_t seq_len,
                                 struct told told, struct moec_error *err)
{
    *windows = (struct moec_windows){.n_window = n_window, .seq_len_tokens = seq_len};
    const char *what = "windows";
    enum moec_status status = moec_alloc((void **)&windows->length, n_window, sizeof(uint32_t), what, err);
    if (status == MOEC_OK && told.source)
        status = moec_alloc((void **)&windows->source, n_window, sizeof(uint32_t), what, err);
    if (status == MOEC_OK)
        status = moec_alloc((void **)&windows->tokens, (uint64_t)n_window * moec_windows_stride(windows),
                            sizeof(uint32_t), what, err);
    if (status == MOEC_OK)
        status = moec_alloc((void **)&windows->scored, n_window, sizeof(uint32_t), what, err);
    if (status == MOEC_OK)
        status = moec_alloc((void **)&windows->index, n_window, sizeof(uint64_t), what, err);
    if (status == MOEC_OK && told.document)
        status = moec_alloc((void **)&windows->document, n_window, sizeof(uint64_t), what, err);
    if (status == MOEC_OK && told.part)
        status = moec_alloc((void **)&windows->part, n_window, sizeof(uint8_t), what, err);
    if (status != MOEC_OK)
        moec_windows_release(windows);
    return status;
}

/* draw->index[0..n_window) = the draws. */
static enum moec_status draw_all(uint64_t n_available, const struct moec_windows_options *options,
                                 struct moec_part_draw *draw, struct moec_error *err)
{
    const uint32_t n_sample = options->n_sample;
    draw->n_window = (uint32_t)(n_sample > 0 && n_sample < n_available ? n_sample : n_available);
    MOEC_TRY(moec_alloc((void **)&draw->index, n_available, sizeof *draw->index, "the list of windows", err));
    for (uint64_t i = 0; i < n_available; i++)
        draw->index[i] = i;
    struct moec_random random = {options->seed};
    if (n_sample > 0)
        moec_random_draw(&random, draw->index, n_available, draw->n_window);
    return MOEC_OK;
}

static enum moec_status draw_windows(const struct moec_rows *rows, const uint64_t *starts,
                                     uint64_t n_available, const struct moec_windows_options *options,
                                     struct moec_part_draw *draw, struct moec_error *err)
{
    uint32_t sizes[MOEC_PART_COUNT];
    uint64_t most = options->has_parts ? options->parts.n_window : options->n_sample;
    most = most > 0 && most < n_available ? most : n_available;
    if (options->has_parts && options->parts.n_window == 0)
        most = 0; /* the shares have limits of their own */
    if (most > MOEC_PROFILE_MAX_WINDOWS)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "the data '%s' gives %" PRIu64 " windows, expected at most %u: draw fewer "
                         "(--samples)",
                         rows->name, most, MOEC_PROFILE_MAX_WINDOWS);
    if (!options->has_parts)
        return draw_all(n_available, options, draw, err);
    MOEC_TRY(moec_parts_size(&options->parts, n_available, sizes, err));
    const struct moec_part_documents documents = {starts, rows->n_row, n_available};
    return moec_parts_draw(&documents, sizes, options->seed, draw, err);
}

/* The row that holds window `index`: starts[r] <= index < starts[r + 1]. */
static size_t row_of_window(const uint64_t *starts, size_t n_row, uint64_t index)
{
    size_t low = 0, high = n_row;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (starts[middle] <= index)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Sets what is told of a window of n tokens, and marks the places after them. */
static void end_window(struct moec_windows *windows, uint32_t w, uint32_t n_source, uint32_t n)
{
    uint32_t *tokens = windows->tokens + (size_t)w * moec_windows_stride(windows);
    for (uint32_t t = n; t < moec_windows_stride(windows); t++)
        tokens[t] = MOEC_PROFILE_NO_TOKEN;
    windows->length[w] = n;
    if (windows->source != NULL)
        windows->source[w] = n_source;
    windows->scored[w] = n - n_source - 1;
}

static void fill_window(struct moec_windows *windows, uint32_t w, const struct row_tokens *row,
                        uint64_t ordinal, uint32_t text_tokens, uint32_t bos)
{
    uint32_t *tokens = windows->tokens + (size_t)w * moec_windows_stride(windows);
    uint32_t n = 0;
    if (bos != MOEC_TOKENIZER_NO_ID)
        tokens[n++] = bos;
    size_t at = row->first + (size_t)ordinal * text_tokens;
    size_t take = row->n - at < text_tokens ? row->n - at : text_tokens;
    memcpy(tokens + n, row->ids + at, take * sizeof *tokens);
    n += (uint32_t)take;
    end_window(windows, w, 0, n);
}

/* At most `room` tokens of a text, the last of them the end token. Returns how many. */
static uint32_t copy_text(const uint32_t *ids, size_t n, uint32_t end, uint32_t room, uint32_t *tokens)
{
    if (n > 0 && ids[n - 1] == end)
        n--;
    n = n < room - 1 ? n : room - 1;
    if (n > 0)
        memcpy(tokens, ids, n * sizeof *tokens);
    tokens[n] = end;
    return (uint32_t)n + 1;
}

static void fill_pair(struct moec_windows *windows, uint32_t w, const struct row_tokens *row,
                      const struct moec_windows_options *options)
{
    uint32_t *tokens = windows->tokens + (size_t)w * moec_windows_stride(windows);
    const uint32_t room = options->seq_len_tokens;
    const uint32_t n_source = copy_text(row->ids, row->n, options->end_token, room, tokens);
    tokens[n_source] = options->start_token;
    const uint32_t n_target =
        copy_text(row->target, row->n_target, options->end_token, room - 1, tokens + n_source + 1);
    end_window(windows, w, n_source, n_source + 1 + n_target);
}

static enum moec_status cut(const struct moec_rows *rows, const struct tokenising *job,
                            const struct moec_windows_options *options, struct moec_windows *windows,
                            struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    uint64_t *starts = NULL, n_available = 0, n_data_tokens = 0, n_document = 0;
    struct moec_part_draw draw = {0};
    const uint32_t text_tokens = window_text(options, job->bos);
    MOEC_TRY_OUT(moec_alloc((void **)&starts, rows->n_row, sizeof *starts, "windows of the rows", err));
    for (size_t r = 0; r < rows->n_row; r++) {
        starts[r] = n_available;
        n_available += job->has_source ? 1 : window_count(&job->tokens[r], text_tokens, job->bos);
        n_document += n_available > starts[r];
        n_data_tokens += job->tokens[r].n - job->tokens[r].first;
    }
    MOEC_TRY_OUT(check_count(rows, options, n_available, n_data_tokens, err));
    MOEC_TRY_OUT(draw_windows(rows, starts, n_available, options, &draw, err));
    MOEC_TRY_OUT(allocate(windows, draw.n_window, options->seq_len_tokens,
                          (struct told){job->has_source, true, options->has_parts}, err));
    windows->n_available = n_available;
    windows->n_document = rows->n_row;
    windows->by_document = options->has_parts ? draw.by_document : n_document >= MOEC_MIN_DOCUMENTS;
    for (uint32_t w = 0; w < windows->n_window; w++) {
        const size_t row = row_of_window(starts, rows->n_row, draw.index[w]);
        windows->index[w] = draw.index[w];
        windows->document[w] = row;
        if (options->has_parts)
            windows->part[w] = draw.parts[w];
        if (job->has_source)
            fill_pair(windows, w, &job->tokens[row], options);
        else
            fill_window(windows, w, &job->tokens[row], draw.index[w] - starts[row], text_tokens, job->bos);
    }
out:
    free(starts);
    moec_part_draw_release(&draw);
    return status;
}

void moec_windows_options_for(const struct moec_config *config, struct moec_windows_options *options)
{
    options->has_source = moec_config_is_encoder_decoder(config);
    options->start_token = config->ids.decoder_start;
    options->end_token = config->ids.n_eos > 0 ? config->ids.eos[0] : config->ids.decoder_start;
}

enum moec_status moec_windows_need_task(const struct moec_config *config, const struct moec_task *task,
                                        const char *verb, struct moec_error *err)
{
    if (!moec_config_is_encoder_decoder(config))
        return moec_task_need_windows(task, verb, err);
    if (task->reference[0] != '\0' || moec_task_metric_kind(task->metric) == MOEC_TASK_KIND_CHOICE)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_USAGE,
                     "task '%s' has only a prompt, but %s of an encoder-decoder model needs a prompt and a "
                     "reference: give a --task with both, for example samsum",
                     task->name, verb);
}

enum moec_status moec_windows_make(const struct moec_rows *rows, const struct moec_tokenizer *tokenizer,
                                   const struct moec_windows_options *options, const struct moec_pool *pool,
                                   struct moec_windows *windows, struct moec_error *err)
{
    *windows = (struct moec_windows){0};
    if (options->seq_len_tokens < 2 || options->seq_len_tokens > MOEC_MAX_POSITIONS)
        return moec_fail(err, MOEC_ERR_USAGE, "windows have %" PRIu32 " tokens, expected 2..%u",
                         options->seq_len_tokens, MOEC_MAX_POSITIONS);
    if (options->has_parts && options->parts.n_window > 0) {
        uint32_t sizes[MOEC_PART_COUNT];
        MOEC_TRY(moec_parts_size(&options->parts, options->parts.n_window, sizes, err));
    }
    struct tokenising job = {.rows = rows,
                             .tokenizer = tokenizer,
                             .bos = options->has_source ? MOEC_TOKENIZER_NO_ID
                                                        : moec_tokenizer_bos_id(tokenizer),
                             .has_source = options->has_source,
                             .memory_bytes = options->memory_bytes};
    enum moec_status status = tokenise(&job, pool, err);
    if (status == MOEC_OK)
        status = cut(rows, &job, options, windows, err);
    for (size_t r = 0; job.tokens != NULL && r < rows->n_row; r++) {
        free(job.tokens[r].ids);
        free(job.tokens[r].target);
    }
    free(job.tokens);
    return status;
}

enum moec_status moec_windows_pick(const struct moec_windows *from, const uint32_t *numbers, uint32_t n,
                                   struct moec_windows *out, struct moec_error *err)
{
    const size_t stride = moec_windows_stride(from);
    MOEC_TRY(allocate(out, n, from->seq_len_tokens,
                      (struct told){from->source != NULL, from->document != NULL, from->part != NULL}, err));
    for (uint32_t to = 0; to < n; to++) {
        const uint32_t w = numbers[to];
        memcpy(out->tokens + to * stride, from->tokens + w * stride, stride * sizeof *from->tokens);
        out->length[to] = from->length[w];
        if (from->source != NULL)
            out->source[to] = from->source[w];
        if (from->document != NULL)
            out->document[to] = from->document[w];
        if (from->part != NULL)
            out->part[to] = from->part[w];
        out->scored[to] = from->scored[w];
        out->index[to] = from->index[w];
    }
    out->n_available = from->n_available;
    out->n_document = from->n_document;
    out->by_document = from->by_document;
    out->work = from->work;
    return MOEC_OK;
}

/* Of a part every step-th window, from `first` on. */
static enum moec_status copy_part(const struct moec_windows *from, enum moec_part part, uint32_t first,
                                  uint32_t step, struct moec_windows *out, struct moec_error *err)
{
    uint32_t *numbers = NULL, n = 0, seen = 0;
    MOEC_TRY(moec_alloc((void **)&numbers, from->n_window, sizeof *numbers, "windows", err));
    for (uint32_t w = 0; w < from->n_window; w++)
        if (moec_part_has(part, from->part, w) && seen++ % step == first)
            numbers[n++] = w;
    const enum moec_status status = moec_windows_pick(from, numbers, n, out, err);
    free(numbers);
    return status;
}

enum moec_status moec_windows_part(const struct moec_windows *windows, enum moec_part part,
                                   struct moec_windows *out, struct moec_error *err)
{
    return copy_part(windows, part, 0, 1, out, err);
}

enum moec_status moec_windows_part_every(const struct moec_windows *windows, enum moec_part part,
                                         uint32_t step, struct moec_windows *out, struct moec_error *err)
{
    return copy_part(windows, part, 0, step, out, err);
}

enum moec_status moec_windows_first(const struct moec_windows *windows, uint32_t n, struct moec_windows *out,
                                    struct moec_error *err)
{
    struct moec_windows first = *windows; /* borrows all of them */
    first.n_window = n;
    return copy_part(&first, MOEC_PART_ALL, 0, 1, out, err);
}

enum moec_status moec_windows_every(const struct moec_windows *windows, uint32_t first, uint32_t step,
                                    struct moec_windows *out, struct moec_error *err)
{
    return copy_part(windows, MOEC_PART_ALL, first, step, out, err);
}

enum moec_status moec_windows_from_profile(const struct moec_profile *profile, enum moec_part part,
                                           struct moec_windows *out, struct moec_error *err)
{
    const struct moec_windows all = {.n_window = profile->n_drawn,
                                     .seq_len_tokens = profile->seq_len_tokens,
                                     .tokens = profile->window_tokens,
                                     .length = profile->window_length,
                                     .source = profile->window_source,
                                     .scored = profile->window_scored,
                                     .index = profile->window_index,
                                     .document = profile->window_document,
                                     .part = profile->window_part,
                                     .n_available = profile->n_window_available,
                                     .n_document = profile->n_document,
                                     .by_document = profile->parts_by_document};
    return copy_part(&all, part, 0, 1, out, err);
}

void moec_windows_release(struct moec_windows *windows)
{
    free(windows->tokens);
    free(windows->length);
    free(windows->source);
    free(windows->scored);
    free(windows->index);
    free(windows->document);
    free(windows->part);
    *windows = (struct moec_windows){0};
}

uint64_t moec_windows_token_count(const struct moec_windows *windows)
{
    uint64_t n = 0;
    for (uint32_t w = 0; w < windows->n_window; w++)
        n += moec_windows_traced(windows, w);
    return n;
}

uint64_t moec_windows_source_count(const struct moec_windows *windows)
{
    uint64_t n = 0;
    for (uint32_t w = 0; w < windows->n_window; w++)
        n += moec_windows_source(windows, w);
    return n;
}

uint64_t moec_windows_scored_count(const struct moec_windows *windows)
{
    uint64_t n = 0;
    for (uint32_t w = 0; w < windows->n_window; w++)
        n += windows->scored[w];
    return n;
}

uint64_t moec_windows_state_count(const struct moec_windows *windows)
{
    return moec_windows_source_count(windows) + moec_windows_scored_count(windows);
}
