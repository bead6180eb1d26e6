/* Files of decisions: what is written is read back, and nothing else is taken for it. */
#include "tests/unit/temporary.h"

#include "formats/decisions/decision_file.h"

#include <stdio.h>

#define N_LAYER 3u
#define TOP_K   4u
#define N_ROW   5u

static const uint8_t kinds[] = {MOEC_DECIDED_HIGH, MOEC_DECIDED_LOW, MOEC_DECIDED_SKIPPED};

struct store {
    char *folder, *path;
    uint32_t tokens[N_ROW];
    uint8_t decided[N_ROW * N_LAYER * TOP_K];
    char text[4096];
    size_t n;
};

static struct moec_decision_header header_of(void)
{
    struct moec_decision_header header = {.precision = "shared:0.6:0.9",
                                          .arithmetic = "canonical",
                                          .kv = "f32",
                                          .decode_only = true,
                                          .copy = 1,
                                          .low = 2,
                                          .rope_context = 4096,
                                          .n_layer = N_LAYER,
                                          .top_k = TOP_K};
    memset(header.bundle, 'a', sizeof header.bundle - 1);
    return header;
}

/* A beam that ends before its first sequence, and a second sequence. */
static void write_sample(struct store *s)
{
    struct moec_error err = {0};
    struct moec_decision_writer writer;
    const struct moec_decision_header header = header_of();
    const struct moec_decision_rows rows[] = {
        {.sequence = 0, .beam = 1, .first = 7, .n = 2, .tokens = s->tokens, .decided = s->decided},
        {.sequence = 0, .beam = 0, .first = 0, .n = N_ROW, .tokens = s->tokens, .decided = s->decided},
        {.sequence = 1,
         .beam = 0,
         .first = 3,
         .n = 1,
         .tokens = s->tokens + 4,
         .decided = s->decided + (size_t)4 * N_LAYER * TOP_K}};
    assert_ok(moec_decision_writer_open(&writer, s->path, &header, &err), err);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_ok(moec_decision_writer_put(&writer, &rows[i], &err), err);
    assert_ok(moec_decision_writer_close(&writer, &err), err);
}

static int set_up(void **state)
{
    struct store *s = calloc(1, sizeof *s);
    uint64_t seed = 5;
    assert_non_null(s);
    s->folder = temporary_folder();
    s->path = temporary_path(s->folder, "decisions.txt");
    for (uint32_t i = 0; i < N_ROW; i++)
        s->tokens[i] = i == 0 ? 0 : i == 1 ? UINT32_MAX : random_u32(&seed);
    for (size_t i = 0; i < sizeof s->decided; i++)
        s->decided[i] = kinds[random_u32(&seed) % 3];
    write_sample(s);
    FILE *file = fopen(s->path, "rb");
    assert_non_null(file);
    s->n = fread(s->text, 1, sizeof s->text - 1, file);
    assert_int_equal(fclose(file), 0);
    *state = s;
    return 0;
}

static int tear_down(void **state)
{
    struct store *s = *state;
    temporary_remove(s->folder);
    free(s->path);
    free(s);
    return 0;
}

static void test_decision_file__reads_what_was_written(void **state)
{
    struct store *s = *state;
    struct moec_error err = {0};
    struct moec_decision_file file;
    const struct moec_decision_header header = header_of();
    assert_ok(moec_decision_file_load(s->path, &file, &err), err);
    assert_string_equal(file.header.bundle, header.bundle);
    assert_string_equal(file.header.precision, header.precision);
    assert_string_equal(file.header.arithmetic, header.arithmetic);
    assert_string_equal(file.header.kv, header.kv);
    assert_true(file.header.decode_only && file.header.copy == 1 && file.header.low == 2);
    assert_true(file.header.rope_context == 4096 && file.header.n_layer == N_LAYER &&
                file.header.top_k == TOP_K);
    assert_int_equal(file.n_rows, 3);
    const struct moec_decision_rows *rows = moec_decision_file_find(&file, 0, 0);
    assert_true(rows != NULL && rows->first == 0 && rows->n == N_ROW);
    assert_memory_equal(rows->tokens, s->tokens, sizeof s->tokens);
    assert_memory_equal(rows->decided, s->decided, sizeof s->decided);
    rows = moec_decision_file_find(&file, 0, 1);
    assert_true(rows != NULL && rows->first == 7 && rows->n == 2 && rows->tokens[1] == UINT32_MAX);
    rows = moec_decision_file_find(&file, 1, 0);
    assert_true(rows != NULL && rows->first == 3 && rows->n == 1 && rows->tokens[0] == s->tokens[4]);
    assert_null(moec_decision_file_find(&file, 1, 1));
    assert_null(moec_decision_file_find(&file, 2, 0));
    moec_decision_file_release(&file);
}

/* Loads these bytes; the status, with the message in *err. */
static enum moec_status load(const struct store *s, const char *bytes, size_t n, struct moec_error *err)
{
    struct moec_decision_file file;
    *err = (struct moec_error){0};
    temporary_write(s->folder, "other.txt", bytes, n);
    char *path = temporary_path(s->folder, "other.txt");
    const enum moec_status status = moec_decision_file_load(path, &file, err);
    if (status == MOEC_OK)
        moec_decision_file_release(&file);
    else
        assert_true(file.rows == NULL && file.tokens == NULL && file.decided == NULL && file.path == NULL);
    free(path);
    return status;
}

static void test_decision_file__no_part_is_taken_for_the_whole(void **state)
{
    const struct store *s = *state;
    struct moec_error err;
    for (size_t n = 0; n < s->n; n++)
        assert_status(load(s, s->text, n, &err), MOEC_ERR_FORMAT, err);
    const char *row = strstr(s->text, "\n3\t");
    assert_non_null(row);
    assert_status(load(s, s->text, (size_t)(row + 1 - s->text), &err), MOEC_ERR_FORMAT, err);
    assert_message(err, "ends early, after position 2 of sequence 0 beam 0");
    assert_status(load(s, s->text, 200, &err), MOEC_ERR_FORMAT, err);
    assert_message(err, "ends early");
}

static void test_decision_file__no_bit_can_be_changed(void **state)
{
    struct store *s = *state;
    struct moec_error err;
    for (size_t i = 0; i < s->n; i++)
        for (int bit = 0; bit < 8; bit++) {
            s->text[i] ^= (char)(1 << bit);
            assert_int_not_equal(load(s, s->text, s->n, &err), MOEC_OK);
            s->text[i] ^= (char)(1 << bit);
        }
    char *letter = strstr(s->text, "\n3\t");
    letter = letter != NULL ? strchr(letter + 3, '\t') + 1 : NULL;
    assert_non_null(letter);
    *letter = *letter == 'h' ? 'l' : 'h';
    assert_status(load(s, s->text, s->n, &err), MOEC_ERR_CHECKSUM, err);
    assert_message(err, "was changed after it was written");
}

/* The sample with one text in place of another, and a right checksum. */
static enum moec_status load_with(const struct store *s, const char *old, const char *new,
                                  struct moec_error *err)
{
    char text[sizeof s->text + 256];
    uint8_t digest[MOEC_SHA256_BYTES];
    char hex[2 * MOEC_SHA256_BYTES + 1];
    const char *at = strstr(s->text, old), *end = strstr(s->text, "sha256");
    assert_true(at != NULL && end != NULL && at + strlen(old) <= end);
    int n = snprintf(text, sizeof text, "%.*s%s%.*s", (int)(at - s->text), s->text, new,
                     (int)(end - at - (ptrdiff_t)strlen(old)), at + strlen(old));
    moec_sha256(text, (size_t)n, digest);
    moec_sha256_hex(digest, hex);
    n += snprintf(text + n, sizeof text - (size_t)n, "sha256 %s\n", hex);
    return load(s, text, (size_t)n, err);
}

static void test_decision_file__refuses_other_texts(void **state)
{
    const struct store *s = *state;
    struct moec_error err;
    static const struct {
        const char *old, *new, *message;
    } wrong[] = {
        {"moec-decisions 1", "moec-decision 1", "is not a decision file"},
        {"decide decode", "decide none",
         "line 4: found 'decide none', expected 'decide all' or 'decide decode'"},
        {"kv f32", "kv ", "line 6: found 'kv ', expected 'kv' and a word"},
        {"kv f32", "kv f 32", "line 6: found 'kv f 32'"},
        {"copy 1", "copy 256", "line 7: found 'copy 256', expected a number of 0 to 255"},
        {"layers 3", "layers 0", "expected a number of 1 to 1024"},
        {"layers 3", "layers 4294967297", "expected a number of 1 to 1024"},
        {"layers 3", "layers 2", "has unexpected text after its last layer, at layer 2"},
        {"layers 3", "layers 4", "ends early, in layer 3"},
        {"layers 3", "layers 1024", "positions in"},
        {"experts 4", "experts 65", "expected a number of 1 to 64"},
        {"experts 4", "experts 3", "has too many letters before layer 1"},
        {"sequence 0 beam 1\n", "", "expected a 'sequence' line before the first position"},
        {"sequence 1 beam 0", "sequence 0 beam 0", "has the lines of sequence 0 beam 0 twice"},
        {"sequence 1 beam 0", "sequence 1  beam 0", "expected 'sequence N beam N'"},
        {"sequence 1 beam 0", "sequence 1 beam 4294967296", "expected 'sequence N beam N'"},
        {"\n2\t", "\n3\t", "expected the position that follows the previous one"},
        {"\n7\t", "\n16777216\t", "expected the position that follows the previous one"},
        {"\n7\t0\t", "\n7\t4294967296\t", "expected a position and its token"},
        {"\n7\t0\t", "\n7\t\t", "expected a position and its token"},
        {"\n7\t0\t", "\n7\t0\tx",
         "sequence 0 beam 1 position 7 has a letter other than h, l or - in layer 0"},
    };
    assert_ok(load_with(s, "kv f32", "kv f16", &err), err);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_status(load_with(s, wrong[i].old, wrong[i].new, &err), MOEC_ERR_FORMAT, err);
        assert_message(err, wrong[i].message);
    }
    assert_status(load_with(s, "moec-decisions 1", "moec-decisions 2", &err), MOEC_ERR_UNSUPPORTED, err);
    char more[sizeof s->text + 1];
    memcpy(more, s->text, s->n);
    more[s->n] = '\n';
    assert_status(load(s, more, s->n + 1, &err), MOEC_ERR_FORMAT, err);
    assert_message(err, "nothing after the line of the checksum");
}

static void test_decision_file__appears_only_when_it_is_whole(void **state)
{
    struct store *s = *state;
    struct moec_error err = {0};
    struct moec_decision_writer writer;
    struct moec_decision_file file;
    struct moec_decision_header header = header_of();
    header.kv[1] = '1';
    assert_ok(moec_decision_writer_open(&writer, s->path, &header, &err), err);
    moec_decision_writer_discard(&writer);
    assert_ok(moec_decision_file_load(s->path, &file, &err), err);
    assert_string_equal(file.header.kv, "f32");
    moec_decision_file_release(&file);
    assert_status(moec_decision_writer_open(&writer, "/nowhere/at/all", &header, &err), MOEC_ERR_IO, err);
}

/* Longer than what is collected before it is written. */
static void test_decision_file__long_rows_are_whole(void **state)
{
    struct store *s = *state;
    enum { N_LONG = 40 };
    struct moec_error err = {0};
    struct moec_decision_writer writer;
    struct moec_decision_file file;
    struct moec_decision_header header = header_of();
    header.n_layer = 1024;
    header.top_k = 64;
    const size_t row_bytes = (size_t)header.n_layer * header.top_k;
    uint8_t *decided = calloc(N_LONG, row_bytes);
    uint32_t tokens[N_LONG];
    assert_non_null(decided);
    for (size_t i = 0; i < N_LONG * row_bytes; i++)
        decided[i] = kinds[i % 31 % 3];
    for (uint32_t i = 0; i < N_LONG; i++)
        tokens[i] = UINT32_MAX - i;
    const struct moec_decision_rows rows = {
        .sequence = UINT32_MAX, .beam = 9, .first = 100, .n = N_LONG, .tokens = tokens, .decided = decided};
    assert_ok(moec_decision_writer_open(&writer, s->path, &header, &err), err);
    assert_ok(moec_decision_writer_put(&writer, &rows, &err), err);
    assert_ok(moec_decision_writer_close(&writer, &err), err);
    assert_ok(moec_decision_file_load(s->path, &file, &err), err);
    const struct moec_decision_rows *read = moec_decision_file_find(&file, UINT32_MAX, 9);
    assert_true(read != NULL && read->first == 100 && read->n == N_LONG);
    assert_memory_equal(read->tokens, tokens, sizeof tokens);
    assert_memory_equal(read->decided, decided, N_LONG * row_bytes);
    moec_decision_file_release(&file);
    free(decided);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_decision_file__reads_what_was_written, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_decision_file__no_part_is_taken_for_the_whole, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_decision_file__no_bit_can_be_changed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_decision_file__refuses_other_texts, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_decision_file__appears_only_when_it_is_whole, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_decision_file__long_rows_are_whole, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
