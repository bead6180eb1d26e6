/* The digest in the last line covers every byte before it, so a file that was cut or edited is refused.
 * Reading counts lines first, compares the count with the bytes that so many rows need, and allocates once.
 * Rows of one sequence follow each other by position; the list of sequences is sorted for binary search,
 * each (sequence, beam) once. */
#include "formats/decisions/decision_file.h"

#include "formats/base/memory.h"
#include "formats/base/printable.h"
#include "formats/model/config.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAGIC         "moec-decisions"
#define BUFFER_BYTES  ((size_t)64 << 10)
#define NUMBERS_BYTES ((size_t)48) /* position, token, tabs and line end of a row; a line between rows */

static const char letters[] = {
    [MOEC_DECIDED_HIGH] = 'h', [MOEC_DECIDED_LOW] = 'l', [MOEC_DECIDED_SKIPPED] = '-'};

/* ---- writing ---- */

static size_t line_bytes(uint32_t n_layer, uint32_t top_k)
{
    return NUMBERS_BYTES + (size_t)n_layer * (top_k + 1);
}

uint64_t moec_decision_writer_bytes(uint32_t n_layer, uint32_t top_k)
{
    return BUFFER_BYTES + line_bytes(n_layer, top_k);
}

static enum moec_status flush(struct moec_decision_writer *writer, struct moec_error *err)
{
    const size_t n = writer->n;
    writer->n = 0;
    moec_sha256_update(&writer->digest, writer->buffer, n);
    return moec_output_append(&writer->output, writer->buffer, n, err);
}

/* Makes room for a line. */
static enum moec_status reserve(struct moec_decision_writer *writer, struct moec_error *err)
{
    const bool has_room = writer->capacity - writer->n >= line_bytes(writer->n_layer, writer->top_k);
    return has_room ? MOEC_OK : flush(writer, err);
}

static void put_header(struct moec_decision_writer *writer, const struct moec_decision_header *header)
{
    const int n = snprintf(writer->buffer, writer->capacity,
                           MAGIC " %d\nbundle %s\nprecision %s\ndecide %s\narithmetic %s\nkv %s\n"
                                 "copy %" PRIu32 "\nlow %" PRIu32 "\nrope %" PRIu32 "\nlayers %" PRIu32
                                 "\nexperts %" PRIu32 "\n",
                           MOEC_DECISION_FILE_VERSION, header->bundle, header->precision,
                           header->decode_only ? "decode" : "all", header->arithmetic, header->kv,
                           header->copy, header->low, header->rope_context, header->n_layer, header->top_k);
    writer->n = (size_t)n;
}

enum moec_status moec_decision_writer_open(struct moec_decision_writer *writer, const char *path,
                                           const struct moec_decision_header *header, struct moec_error *err)
{
    void *memory = NULL;
    *writer = (struct moec_decision_writer){
        .output = {.fd = -1},
        .n_layer = header->n_layer,
        .top_k = header->top_k,
        .capacity = (size_t)moec_decision_writer_bytes(header->n_layer, header->top_k)};
    MOEC_TRY(moec_alloc(&memory, writer->capacity, 1, "lines of decisions", err));
    writer->buffer = memory;
    moec_sha256_init(&writer->digest);
    put_header(writer, header);
    const enum moec_status status = moec_output_open(&writer->output, path, err);
    if (status != MOEC_OK)
        moec_decision_writer_discard(writer);
    return status;
}

static void put_row(struct moec_decision_writer *writer, uint32_t position, uint32_t token,
                    const uint8_t *decided)
{
    char *at = writer->buffer + writer->n;
    at += snprintf(at, NUMBERS_BYTES, "%" PRIu32 "\t%" PRIu32, position, token);
    for (uint32_t layer = 0; layer < writer->n_layer; layer++) {
        *at++ = '\t';
        for (uint32_t rank = 0; rank < writer->top_k; rank++)
            *at++ = letters[*decided++];
    }
    *at++ = '\n';
    writer->n = (size_t)(at - writer->buffer);
}

enum moec_status moec_decision_writer_put(struct moec_decision_writer *writer,
                                          const struct moec_decision_rows *rows, struct moec_error *err)
{
    MOEC_TRY(reserve(writer, err));
    const int n = snprintf(writer->buffer + writer->n, NUMBERS_BYTES,
                           "sequence %" PRIu32 " beam %" PRIu32 "\n", rows->sequence, rows->beam);
    writer->n += (size_t)n;
    for (uint32_t i = 0; i < rows->n; i++) {
        MOEC_TRY(reserve(writer, err));
        put_row(writer, rows->first + i, rows->tokens[i],
                rows->decided + (size_t)i * writer->n_layer * writer->top_k);
    }
    return MOEC_OK;
}

enum moec_status moec_decision_writer_close(struct moec_decision_writer *writer, struct moec_error *err)
{
    uint8_t digest[MOEC_SHA256_BYTES];
    char text[2 * MOEC_SHA256_BYTES + 1], line[sizeof text + 8];
    enum moec_status status = flush(writer, err);
    moec_sha256_finish(&writer->digest, digest);
    moec_sha256_hex(digest, text);
    const int n = snprintf(line, sizeof line, "sha256 %s\n", text);
    if (status == MOEC_OK)
        status = moec_output_append(&writer->output, line, (size_t)n, err);
    if (status == MOEC_OK)
        status = moec_output_commit(&writer->output, err);
    moec_decision_writer_discard(writer);
    return status;
}

void moec_decision_writer_discard(struct moec_decision_writer *writer)
{
    moec_output_abort(&writer->output);
    free(writer->buffer);
    *writer = (struct moec_decision_writer){.output = {.fd = -1}};
}

/* ---- reading ---- */

struct text {
    const char *path, *begin, *end;
    const char *at;   /* the line to be read next */
    const char *line; /* the one at work, of n bytes without its end */
    size_t n;
    uint64_t number; /* its */
};

/* Goes on to the next line. False at the end, and where a line has no end. */
static bool next_line(struct text *text)
{
    const char *end = text->at < text->end ? memchr(text->at, '\n', (size_t)(text->end - text->at)) : NULL;
    if (end == NULL)
        return false;
    text->line = text->at;
    text->n = (size_t)(end - text->at);
    text->at = end + 1;
    text->number++;
    return true;
}

static enum moec_status fail_line(const struct text *text, const char *expected, struct moec_error *err)
{
    char found[64];
    (void)moec_printable(text->line, text->n < 40 ? text->n : 40, false, found, sizeof found);
    return moec_fail(err, MOEC_ERR_FORMAT,
                     "the decision file '%s', line %" PRIu64 ": found '%s%s', expected %s", text->path,
                     text->number, found, text->n > 40 ? "..." : "", expected);
}

/* Reads a number of digits alone, which ends before `end`, and moves on. */
static bool read_number(const char **at, const char *end, uint32_t *value)
{
    uint64_t sum = 0;
    const char *digits = *at;
    for (; *at < end && **at >= '0' && **at <= '9' && sum <= UINT32_MAX; (*at)++)
        sum = 10 * sum + (uint64_t)(**at - '0');
    *value = (uint32_t)sum;
    return *at > digits && sum <= UINT32_MAX;
}

static bool skip_word(const char **at, const char *end, const char *word)
{
    const size_t n = strlen(word);
    if ((size_t)(end - *at) < n || memcmp(*at, word, n) != 0)
        return false;
    *at += n;
    return true;
}

/* The next line's word behind its name. */
static enum moec_status take_word(struct text *text, const char *name, char *word, size_t capacity,
                                  struct moec_error *err)
{
    char expected[48];
    (void)snprintf(expected, sizeof expected, "'%s' and a word", name);
    if (!next_line(text))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the decision file '%s' ends early, in line %" PRIu64 ": '%s' is missing",
                         text->path, text->number + 1, name);
    const char *at = text->line, *end = text->line + text->n;
    if (!skip_word(&at, end, name) || !skip_word(&at, end, " ") || at == end ||
        (size_t)(end - at) >= capacity)
        return fail_line(text, expected, err);
    for (const char *c = at; c < end; c++)
        if (*c <= ' ' || *c > '~')
            return fail_line(text, expected, err);
    memcpy(word, at, (size_t)(end - at));
    word[end - at] = '\0';
    return MOEC_OK;
}

static enum moec_status take_number(struct text *text, const char *name, uint32_t least, uint32_t most,
                                    uint32_t *value, struct moec_error *err)
{
    char word[16], expected[64];
    MOEC_TRY(take_word(text, name, word, sizeof word, err));
    const char *at = word, *end = word + strlen(word);
    (void)snprintf(expected, sizeof expected, "a number of %" PRIu32 " to %" PRIu32, least, most);
    if (!read_number(&at, end, value) || at != end || *value < least || *value > most)
        return fail_line(text, expected, err);
    return MOEC_OK;
}

static enum moec_status take_header(struct text *text, struct moec_decision_header *header,
                                    struct moec_error *err)
{
    char decide[8];
    const size_t n_magic = strlen(MAGIC " ");
    uint32_t version = 0;
    if ((size_t)(text->end - text->begin) < n_magic || memcmp(text->begin, MAGIC " ", n_magic) != 0)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "'%s' is not a decision file: it does not begin with '" MAGIC "'", text->path);
    MOEC_TRY(take_number(text, MAGIC, 0, UINT32_MAX, &version, err));
    if (version != MOEC_DECISION_FILE_VERSION)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "the decision file '%s' has version %" PRIu32 ", this moec reads version %d: "
                         "record the decisions again",
                         text->path, version, MOEC_DECISION_FILE_VERSION);
    MOEC_TRY(take_word(text, "bundle", header->bundle, sizeof header->bundle, err));
    MOEC_TRY(take_word(text, "precision", header->precision, sizeof header->precision, err));
    MOEC_TRY(take_word(text, "decide", decide, sizeof decide, err));
    header->decode_only = strcmp(decide, "decode") == 0;
    if (!header->decode_only && strcmp(decide, "all") != 0)
        return fail_line(text, "'decide all' or 'decide decode'", err);
    MOEC_TRY(take_word(text, "arithmetic", header->arithmetic, sizeof header->arithmetic, err));
    MOEC_TRY(take_word(text, "kv", header->kv, sizeof header->kv, err));
    MOEC_TRY(take_number(text, "copy", 0, UINT8_MAX, &header->copy, err));
    MOEC_TRY(take_number(text, "low", 0, UINT8_MAX, &header->low, err));
    MOEC_TRY(take_number(text, "rope", 0, UINT32_MAX, &header->rope_context, err));
    MOEC_TRY(take_number(text, "layers", 1, MOEC_MAX_LAYERS, &header->n_layer, err));
    return take_number(text, "experts", 1, MOEC_MAX_TOP_K, &header->top_k, err);
}

static bool is_row(const char *line)
{
    return *line >= '0' && *line <= '9';
}

/* Lines that begin as a row does, and as a sequence does. */
static void count_lines(const struct text *text, uint64_t *n_row, uint64_t *n_sequence)
{
    struct text all = *text;
    *n_row = *n_sequence = 0;
    while (next_line(&all)) {
        *n_row += is_row(all.line);
        *n_sequence += *all.line == 's';
    }
    *n_row +=
        all.at < all.end && is_row(all.at); /* one that is cut short, which is refused where it stands */
}

static enum moec_status alloc_rows(const struct text *text, struct moec_decision_file *file,
                                   struct moec_error *err)
{
    uint64_t n_row = 0, n_sequence = 0;
    const uint64_t row_bytes = (uint64_t)file->header.n_layer * file->header.top_k;
    count_lines(text, &n_row, &n_sequence);
    /* The last row may be cut short. */
    if (n_row > 1 && n_row - 1 > (uint64_t)(text->end - text->at) / row_bytes)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the decision file '%s' has %" PRIu64 " positions in %zu bytes, expected at "
                         "least %" PRIu64 " letters for each position",
                         text->path, n_row, (size_t)(text->end - text->at), row_bytes);
    MOEC_TRY(moec_alloc((void **)&file->rows, n_sequence + 1, sizeof *file->rows, "decisions", err));
    MOEC_TRY(moec_alloc((void **)&file->tokens, n_row + 1, sizeof *file->tokens, "decisions", err));
    return moec_alloc((void **)&file->decided, n_row + 1, row_bytes, "decisions", err);
}

static enum moec_status take_sequence(const struct text *text, struct moec_decision_file *file,
                                      uint64_t n_position, struct moec_error *err)
{
    const char *at = text->line, *end = text->line + text->n;
    struct moec_decision_rows *rows = &file->rows[file->n_rows];
    if (!skip_word(&at, end, "sequence ") || !read_number(&at, end, &rows->sequence) ||
        !skip_word(&at, end, " beam ") || !read_number(&at, end, &rows->beam) || at != end)
        return fail_line(text, "'sequence N beam N', a position or 'sha256'", err);
    rows->tokens = file->tokens + n_position;
    rows->decided = file->decided + n_position * file->header.n_layer * file->header.top_k;
    file->n_rows++;
    return MOEC_OK;
}

static enum moec_status fail_row(const struct text *text, const struct moec_decision_rows *rows,
                                 uint32_t position, uint32_t layer, const char *problem,
                                 struct moec_error *err)
{
    return moec_fail(err, MOEC_ERR_FORMAT,
                     "the decision file '%s', line %" PRIu64 ": sequence %" PRIu32 " beam %" PRIu32
                     " position %" PRIu32 " %s layer %" PRIu32,
                     text->path, text->number, rows->sequence, rows->beam, position, problem, layer);
}

/* The line's position, token and letters, which become the next of the file's. */
static enum moec_status take_row(const struct text *text, struct moec_decision_file *file,
                                 uint64_t n_position, struct moec_error *err)
{
    const struct moec_decision_header *header = &file->header;
    const char *at = text->line, *end = text->line + text->n;
    struct moec_decision_rows *rows = file->n_rows > 0 ? &file->rows[file->n_rows - 1] : NULL;
    uint8_t *decided = file->decided + n_position * header->n_layer * header->top_k;
    uint32_t position = 0;
    if (rows == NULL)
        return fail_line(text, "a 'sequence' line before the first position", err);
    if (!read_number(&at, end, &position) || !skip_word(&at, end, "\t") ||
        !read_number(&at, end, &file->tokens[n_position]))
        return fail_line(text, "a position and its token", err);
    if (position >= MOEC_MAX_POSITIONS || (rows->n > 0 && position != rows->first + rows->n))
        return fail_line(text, "the position that follows the previous one", err);
    for (uint32_t layer = 0; layer < header->n_layer; layer++) {
        if ((size_t)(end - at) < (size_t)header->top_k + 1)
            return fail_row(text, rows, position, layer, "ends early, in", err);
        if (*at++ != '\t')
            return fail_row(text, rows, position, layer, "has too many letters before", err);
        for (uint32_t rank = 0; rank < header->top_k; rank++) {
            const char *letter = memchr(letters, *at++, sizeof letters);
            if (letter == NULL)
                return fail_row(text, rows, position, layer, "has a letter other than h, l or - in", err);
            *decided++ = (uint8_t)(letter - letters);
        }
    }
    if (at != end)
        return fail_row(text, rows, position, header->n_layer, "has unexpected text after its last layer, at",
                        err);
    if (rows->n++ == 0)
        rows->first = position;
    return MOEC_OK;
}

/* The last line, behind which nothing stands. */
static enum moec_status check_digest(const struct text *text, struct moec_error *err)
{
    uint8_t digest[MOEC_SHA256_BYTES];
    char line[2 * MOEC_SHA256_BYTES + 8] = "sha256 ";
    moec_sha256(text->begin, (size_t)(text->line - text->begin), digest);
    moec_sha256_hex(digest, line + strlen(line));
    if (text->at != text->end)
        return fail_line(text, "nothing after the line of the checksum", err);
    if (text->n == strlen(line) && memcmp(text->line, line, text->n) == 0)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_CHECKSUM,
                     "the decision file '%s' was changed after it was written: its last line is not "
                     "'%.40s...'",
                     text->path, line);
}

static enum moec_status fail_end(const struct text *text, const struct moec_decision_file *file,
                                 struct moec_error *err)
{
    const struct moec_decision_rows *rows = file->n_rows > 0 ? &file->rows[file->n_rows - 1] : NULL;
    if (rows == NULL || rows->n == 0)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the decision file '%s' ends early, after line %" PRIu64 ": it was cut short",
                         text->path, text->number);
    return moec_fail(err, MOEC_ERR_FORMAT,
                     "the decision file '%s' ends early, after position %" PRIu32 " of sequence %" PRIu32
                     " beam %" PRIu32 ": it was cut short",
                     text->path, rows->first + rows->n - 1, rows->sequence, rows->beam);
}

static int compare_rows(const void *a, const void *b)
{
    const struct moec_decision_rows *x = a, *y = b;
    if (x->sequence != y->sequence)
        return x->sequence < y->sequence ? -1 : 1;
    return (x->beam > y->beam) - (x->beam < y->beam);
}

/* By sequence and beam, each of which stands once. */
static enum moec_status sort_rows(struct moec_decision_file *file, struct moec_error *err)
{
    if (file->n_rows > 0)
        qsort(file->rows, file->n_rows, sizeof *file->rows, compare_rows);
    for (size_t i = 1; i < file->n_rows; i++)
        if (compare_rows(&file->rows[i - 1], &file->rows[i]) == 0)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "the decision file '%s' has the lines of sequence %" PRIu32 " beam %" PRIu32
                             " twice, expected each beam once",
                             file->path, file->rows[i].sequence, file->rows[i].beam);
    return MOEC_OK;
}

static enum moec_status take_all(struct text *text, struct moec_decision_file *file, struct moec_error *err)
{
    uint64_t n_position = 0;
    MOEC_TRY(take_header(text, &file->header, err));
    MOEC_TRY(alloc_rows(text, file, err));
    while (next_line(text)) {
        if (is_row(text->line)) {
            MOEC_TRY(take_row(text, file, n_position++, err));
        } else if (text->n >= 6 && memcmp(text->line, "sha256", 6) == 0) {
            MOEC_TRY(check_digest(text, err));
            return sort_rows(file, err);
        } else {
            MOEC_TRY(take_sequence(text, file, n_position, err));
        }
    }
    return fail_end(text, file, err);
}

enum moec_status moec_decision_file_load(const char *path, struct moec_decision_file *file,
                                         struct moec_error *err)
{
    char *bytes = NULL;
    size_t n_bytes = 0;
    *file = (struct moec_decision_file){0};
    MOEC_TRY(moec_file_load(path, MOEC_DECISION_FILE_MAX_BYTES, &bytes, &n_bytes, err));
    struct text text = {.path = path, .begin = bytes, .end = bytes + n_bytes, .at = bytes};
    enum moec_status status = moec_strndup(&file->path, path, strlen(path), err);
    if (status == MOEC_OK)
        status = take_all(&text, file, err);
    if (status != MOEC_OK)
        moec_decision_file_release(file);
    free(bytes);
    return status;
}

void moec_decision_file_release(struct moec_decision_file *file)
{
    free(file->path);
    free(file->rows);
    free(file->tokens);
    free(file->decided);
    *file = (struct moec_decision_file){0};
}

const struct moec_decision_rows *moec_decision_file_find(const struct moec_decision_file *file,
                                                         uint32_t sequence, uint32_t beam)
{
    const struct moec_decision_rows wanted = {.sequence = sequence, .beam = beam};
    return file->n_rows > 0 ? bsearch(&wanted, file->rows, file->n_rows, sizeof wanted, compare_rows) : NULL;
}
