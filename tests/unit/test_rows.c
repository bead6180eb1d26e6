#include "formats/base/compress.h"
#include "formats/base/file.h"
#include "profiler/tasks/rows.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct moec_task task_of(const char *prompt, const char *reference)
{
    struct moec_task task = {.name = "test"};
    (void)snprintf(task.prompt, sizeof task.prompt, "%s", prompt);
    (void)snprintf(task.reference, sizeof task.reference, "%s", reference);
    return task;
}

static void check_row(const struct moec_rows *rows, size_t i, const char *prompt, const char *reference,
                      uint64_t line)
{
    assert_true(i < rows->n_row);
    const struct moec_row *row = &rows->rows[i];
    assert_int_equal(row->prompt_bytes, strlen(prompt));
    assert_memory_equal(rows->text + row->prompt_offset, prompt, strlen(prompt));
    assert_int_equal(row->reference_bytes, strlen(reference));
    assert_memory_equal(rows->text + row->reference_offset, reference, strlen(reference));
    assert_int_equal(row->line, line);
}

static void parse_good(const struct moec_task *task, enum moec_task_format format, const char *text,
                       struct moec_rows *rows)
{
    struct moec_error err = {0};
    enum moec_status status =
        moec_rows_parse(task, &(struct moec_task_data){format, 0, text, strlen(text), "data"}, rows, &err);
    if (status != MOEC_OK)
        fail_msg("%s", err.message);
}

static void write_file(const char *path, const void *bytes, size_t n)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

/* The data must be refused with a message that holds each of two parts. */
static void parse_bad(const struct moec_task *task, enum moec_task_format format, const char *text,
                      enum moec_status expected, const char *part, const char *part_too)
{
    struct moec_error err = {0};
    struct moec_rows rows;
    assert_int_equal(
        moec_rows_parse(task, &(struct moec_task_data){format, 0, text, strlen(text), "data"}, &rows, &err),
        expected);
    if (strstr(err.message, part) == NULL || strstr(err.message, part_too) == NULL)
        fail_msg("'%s' lacks '%s' or '%s'", err.message, part, part_too);
    assert_null(rows.rows);
    assert_null(rows.text);
}

static void test_rows__text_splits(void **state)
{
    (void)state;
    struct moec_rows rows;
    struct moec_task task = moec_task_text();
    parse_good(&task, MOEC_TASK_FORMAT_TEXT, "\xef\xbb\xbfone\ntwo\n", &rows);
    assert_int_equal(rows.n_row, 1);
    check_row(&rows, 0, "one\ntwo\n", "", 1);
    moec_rows_release(&rows);

    task.split = MOEC_TASK_SPLIT_LINE;
    parse_good(&task, MOEC_TASK_FORMAT_TEXT, "one\r\n\n  \ntwo", &rows);
    assert_int_equal(rows.n_row, 2);
    check_row(&rows, 0, "one", "", 1);
    check_row(&rows, 1, "two", "", 4);
    moec_rows_release(&rows);

    task.split = MOEC_TASK_SPLIT_PARAGRAPH;
    parse_good(&task, MOEC_TASK_FORMAT_TEXT, "\n\none\ntwo\n\n\nthree\n \t\nfour\n", &rows);
    assert_int_equal(rows.n_row, 3);
    check_row(&rows, 0, "one\ntwo", "", 3);
    check_row(&rows, 1, "three", "", 7);
    check_row(&rows, 2, "four", "", 9);
    moec_rows_release(&rows);
}

static void test_rows__templates(void **state)
{
    (void)state;
    struct moec_rows rows;
    struct moec_task task = task_of("Q: {question}\n{{{n}}} {yes} A:", " {answer}");
    parse_good(&task, MOEC_TASK_FORMAT_JSONL,
               "{\"question\": \"why \\u00e9?\", \"answer\": \"so\", \"n\": -12, \"yes\": true}\n\n"
               "{\"answer\": \"x\", \"question\": \"\", \"n\": 0.5, \"yes\": false}",
               &rows);
    assert_int_equal(rows.n_row, 2);
    check_row(&rows, 0, "Q: why \xc3\xa9?\n{-12} true A:", " so", 1);
    check_row(&rows, 1, "Q: \n{0.5} false A:", " x", 3);
    moec_rows_release(&rows);

    static const char *const wrong[] = {"{", "a}", "{}", "{a", "{a{b}", "{{}"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        task = task_of(wrong[i], "");
        parse_bad(&task, MOEC_TASK_FORMAT_TEXT, "x", MOEC_ERR_FORMAT, "prompt of task 'test'", "byte");
        task = task_of("{text}", wrong[i]);
        parse_bad(&task, MOEC_TASK_FORMAT_TEXT, "x", MOEC_ERR_FORMAT, "reference of task 'test'", "byte");
    }
    task = task_of("", "");
    parse_bad(&task, MOEC_TASK_FORMAT_TEXT, "x", MOEC_ERR_FORMAT, "prompt", "empty");
}

static void test_rows__jsonl_errors(void **state)
{
    (void)state;
    struct moec_task task = moec_task_text();
    parse_bad(&task, MOEC_TASK_FORMAT_JSONL, "{\"text\": \"a\"}\n{\"text\": \n", MOEC_ERR_FORMAT,
              "line 2 of 'data'", "line 1");
    parse_bad(&task, MOEC_TASK_FORMAT_JSONL, "{\"text\": \"a\"}\n\n{\"body\": \"b\"}", MOEC_ERR_FORMAT,
              "line 3 of 'data' has no field 'text'", "'body'");
    parse_bad(&task, MOEC_TASK_FORMAT_JSONL, "{\"text\": [\"a\"]}", MOEC_ERR_FORMAT, "line 1", "array");
    parse_bad(&task, MOEC_TASK_FORMAT_JSONL, "{\"text\": null}", MOEC_ERR_FORMAT, "line 1", "null");
    parse_bad(&task, MOEC_TASK_FORMAT_JSONL, "[1]", MOEC_ERR_FORMAT, "line 1", "expected an object");
    parse_bad(&task, MOEC_TASK_FORMAT_JSONL, "\n \n", MOEC_ERR_FORMAT, "'data'", "no rows");
    parse_bad(&task, MOEC_TASK_FORMAT_TEXT, "", MOEC_ERR_FORMAT, "'data'", "no rows");
    parse_bad(&task, MOEC_TASK_FORMAT_TEXT, "\xff\xfeh", MOEC_ERR_UNSUPPORTED, "UTF-16", "UTF-8");
    parse_bad(&task, MOEC_TASK_FORMAT_JSONL, "{\"text\": \"caf\xe9\"}", MOEC_ERR_UNSUPPORTED, "Latin-1",
              "iconv");
}

static void test_rows__white_space_alone_is_refused(void **state)
{
    (void)state;
    struct moec_task task = moec_task_text();
    parse_bad(&task, MOEC_TASK_FORMAT_TEXT, " \n\t\r\n \xc2\xa0\n", MOEC_ERR_FORMAT, "'data'", "white space");
    parse_bad(&task, MOEC_TASK_FORMAT_JSONL, "{\"text\": \"  \"}\n{\"text\": \"\\n\"}", MOEC_ERR_FORMAT,
              "'data'", "white space");
    parse_bad(&task, MOEC_TASK_FORMAT_CSV, "id,text\n1,\" \"\n2,\n", MOEC_ERR_FORMAT, "'data'",
              "white space");
    struct moec_rows rows;
    parse_good(&task, MOEC_TASK_FORMAT_JSONL, "{\"text\": \"  \"}\n{\"text\": \"x\"}", &rows);
    assert_int_equal(rows.n_row, 2);
    moec_rows_release(&rows);
}

/* The rows of these texts are the same, and only the first is noted. */
static void same_rows(struct moec_task *task, const char *windows, const char *unix_text, const char *note)
{
    struct moec_rows a, b;
    char line[512];
    parse_good(task, MOEC_TASK_FORMAT_TEXT, windows, &a);
    parse_good(task, MOEC_TASK_FORMAT_TEXT, unix_text, &b);
    assert_int_equal(a.n_row, b.n_row);
    assert_int_equal(a.text_bytes, b.text_bytes);
    assert_memory_equal(a.text, b.text, a.text_bytes);
    for (size_t i = 0; i < a.n_row; i++)
        assert_int_equal(a.rows[i].line, b.rows[i].line);
    assert_true(moec_rows_note(&a, line, sizeof line));
    if (strstr(line, note) == NULL)
        fail_msg("'%s' lacks '%s'", line, note);
    assert_false(moec_rows_note(&b, line, sizeof line));
    moec_rows_release(&a);
    moec_rows_release(&b);
}

static void test_rows__line_ends_of_windows(void **state)
{
    (void)state;
    struct moec_task task = moec_task_text();
    static const char windows[] = "\xef\xbb\xbfone\r\ntwo\r\n\r\nthree\r\n", lf[] = "one\ntwo\n\nthree\n";
    for (int split = MOEC_TASK_SPLIT_FILE; split <= MOEC_TASK_SPLIT_PARAGRAPH; split++) {
        task.split = (enum moec_task_split)split;
        same_rows(&task, windows, lf, "4 line ends of Windows (CR LF) are read as LF");
        same_rows(&task, "one\rtwo\r\rthree\r", lf, "4 line ends of old Macs (CR) are read as LF");
    }
    /* The same of a file, whose bytes become the text of its row in place. */
    char folder[] = "/tmp/moec-rows-XXXXXX", path[128], line[512];
    struct moec_error err = {0};
    struct moec_rows rows;
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/data.txt", folder);
    write_file(path, windows, sizeof windows - 1);
    task.split = MOEC_TASK_SPLIT_FILE;
    if (moec_rows_read(&task, path, 0, &rows, &err) != MOEC_OK)
        fail_msg("%s", err.message);
    check_row(&rows, 0, lf, "", 1);
    assert_int_equal(rows.file_bytes, sizeof windows - 1);
    assert_true(moec_rows_note(&rows, line, sizeof line));
    assert_string_equal(line, "'data.txt': 4 line ends of Windows (CR LF) are read as LF");
    moec_rows_release(&rows);
    write_file(path, "\xc3\xa9 cut off \xc3", 12);
    if (moec_rows_read(&task, path, 0, &rows, &err) != MOEC_OK)
        fail_msg("%s", err.message);
    assert_true(moec_rows_note(&rows, line, sizeof line));
    assert_string_equal(line,
                        "'data.txt': 1 places are not UTF-8, the first at byte 11; each is read as U+FFFD");
    moec_rows_release(&rows);
    (void)unlink(path);
    (void)rmdir(folder);
}

static void test_rows__json_array(void **state)
{
    (void)state;
    struct moec_rows rows;
    struct moec_task task = moec_task_text();
    parse_good(&task, MOEC_TASK_FORMAT_JSON, "[{\"text\": \"a\"},\n \"b\", {\"x\": 1, \"text\": \"c\"}]",
               &rows);
    assert_int_equal(rows.n_row, 3);
    check_row(&rows, 0, "a", "", 1);
    check_row(&rows, 1, "b", "", 2);
    check_row(&rows, 2, "c", "", 3);
    moec_rows_release(&rows);
    parse_bad(&task, MOEC_TASK_FORMAT_JSON, "{\"text\": \"a\"}", MOEC_ERR_FORMAT, "an object",
              "expected an array");
    parse_bad(&task, MOEC_TASK_FORMAT_JSON, "[{\"text\": \"a\"}, 7]", MOEC_ERR_FORMAT, "row 2 of 'data'",
              "expected");
    parse_bad(&task, MOEC_TASK_FORMAT_JSON, "[{\"text\": \"a\"}", MOEC_ERR_FORMAT, "data", "line");
}

static void test_rows__csv(void **state)
{
    (void)state;
    struct moec_rows rows;
    struct moec_task task = task_of("{dialogue}", "{summary}");
    parse_good(&task, MOEC_TASK_FORMAT_CSV,
               "id,dialogue,summary\r\n"
               "1,\"He said \"\"no\"\", then\r\nleft\",short\r\n"
               "\r\n"
               "2,plain \"inner\" quote,\"\"\n"
               "3,,last",
               &rows);
    assert_int_equal(rows.n_row, 3);
    check_row(&rows, 0, "He said \"no\", then\r\nleft", "short", 2);
    check_row(&rows, 1, "plain \"inner\" quote", "", 5);
    check_row(&rows, 2, "", "last", 6);
    moec_rows_release(&rows);

    struct moec_error err = {0};
    const char *semicolons = "dialogue;summary\ra,b;c\r";
    assert_int_equal(moec_rows_parse(&task,
                                     &(struct moec_task_data){MOEC_TASK_FORMAT_CSV, ';', semicolons,
                                                              strlen(semicolons), "data"},
                                     &rows, &err),
                     MOEC_OK);
    check_row(&rows, 0, "a,b", "c", 2);
    moec_rows_release(&rows);
}

static void test_rows__csv_errors(void **state)
{
    (void)state;
    struct moec_task task = moec_task_text();
    parse_bad(&task, MOEC_TASK_FORMAT_CSV, "id,text\n1,\"open\n2,b\n", MOEC_ERR_FORMAT, "quoted field",
              "line 2");
    parse_bad(&task, MOEC_TASK_FORMAT_CSV, "id,text\n1,\"a\"b\n", MOEC_ERR_FORMAT, "closing quote", "line 2");
    parse_bad(&task, MOEC_TASK_FORMAT_CSV, "id,text\n1,a\n\n2\n", MOEC_ERR_FORMAT,
              "line 4 of 'data' has 1 fields", "expected 2");
    parse_bad(&task, MOEC_TASK_FORMAT_CSV, "id,body\n1,a\n", MOEC_ERR_FORMAT, "no field 'text'",
              "'id', 'body'");
    parse_bad(&task, MOEC_TASK_FORMAT_CSV, "", MOEC_ERR_FORMAT, "'data'", "header");
    parse_bad(&task, MOEC_TASK_FORMAT_CSV, "text\n", MOEC_ERR_FORMAT, "'data'", "no rows");
    static char wide[MOEC_ROWS_MAX_FIELDS + 16];
    memset(wide, ',', MOEC_ROWS_MAX_FIELDS + 4);
    parse_bad(&task, MOEC_TASK_FORMAT_CSV, wide, MOEC_ERR_LIMIT, "more than 1024 fields", "line 1");
}

static void test_rows__files(void **state)
{
    (void)state;
    char folder[] = "/tmp/moec-rows-XXXXXX", path[128];
    struct moec_error err = {0};
    struct moec_rows rows;
    struct moec_task task = moec_task_text();
    assert_non_null(mkdtemp(folder));
    static const char text[] = "text\tid\nhello, world\t1\n";
    uint8_t *packed = NULL;
    size_t n_packed = 0;
    assert_int_equal(moec_compress(text, sizeof text - 1, &packed, &n_packed, &err), MOEC_OK);

    (void)snprintf(path, sizeof path, "%s/data.tsv.zst", folder);
    write_file(path, packed, n_packed);
    if (moec_rows_read(&task, path, 0, &rows, &err) != MOEC_OK)
        fail_msg("%s", err.message);
    check_row(&rows, 0, "hello, world", "", 2);
    assert_string_equal(rows.name, "data.tsv.zst");
    uint8_t digest[MOEC_SHA256_BYTES];
    moec_sha256(packed, n_packed, digest);
    assert_memory_equal(rows.digest, digest, sizeof digest);
    assert_int_equal(rows.file_bytes, n_packed);
    moec_rows_release(&rows);

    write_file(path, packed, n_packed - 3);
    assert_int_equal(moec_rows_read(&task, path, 0, &rows, &err), MOEC_ERR_FORMAT);
    assert_non_null(strstr(err.message, path));
    (void)unlink(path);
    free(packed);

    err = (struct moec_error){0};
    (void)snprintf(path, sizeof path, "%s/data.jsonl", folder);
    write_file(path, "\x1f\x8b\x08\x00", 4);
    assert_int_equal(moec_rows_read(&task, path, 0, &rows, &err), MOEC_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "gzip"));
    (void)unlink(path);
    err = (struct moec_error){0};
    assert_int_equal(moec_rows_read(&task, path, 0, &rows, &err), MOEC_ERR_NOT_FOUND);
    assert_int_equal(rows.n_row, 0);
    (void)rmdir(folder);
}

/* Reads what the file holds within this much memory, and expects a refusal that says `part`. */
static void refuse_file(const struct moec_task *task, const char *path, uint64_t memory_bytes,
                        enum moec_status expected, const char *part)
{
    struct moec_error err = {0};
    struct moec_rows rows;
    assert_int_equal(moec_rows_read(task, path, memory_bytes, &rows, &err), expected);
    if (strstr(err.message, part) == NULL)
        fail_msg("'%s' lacks '%s'", err.message, part);
    assert_null(rows.text);
    assert_null(rows.rows);
}

static void test_rows__memory_is_bounded(void **state)
{
    (void)state;
    const size_t n = (size_t)4 << 20;
    char folder[] = "/tmp/moec-rows-XXXXXX", path[128];
    struct moec_error err = {0};
    struct moec_rows rows;
    struct moec_task task = moec_task_text();
    uint8_t *packed = NULL;
    size_t n_packed = 0;
    assert_non_null(mkdtemp(folder));
    char *text = malloc(n);
    assert_non_null(text);
    for (size_t i = 0; i < n; i++)
        text[i] = i % 2 == 0 ? 'a' : '\n';

    (void)snprintf(path, sizeof path, "%s/data.txt", folder);
    write_file(path, text, n);
    refuse_file(&task, path, n - 1, MOEC_ERR_BUDGET, "has 4194304 bytes");
    refuse_file(&task, path, n - 1, MOEC_ERR_BUDGET, "--work-memory");
    /* One row is the text as it was read; the same with a template stands twice until the data is freed. */
    if (moec_rows_read(&task, path, n + 4096, &rows, &err) != MOEC_OK)
        fail_msg("%s", err.message);
    assert_int_equal(rows.rows[0].prompt_bytes, n);
    assert_memory_equal(rows.text + rows.rows[0].prompt_offset, text, n);
    assert_true(moec_rows_memory_bytes(&rows) < n + 4096);
    moec_rows_drop_texts(&rows);
    assert_string_equal(rows.name, "data.txt");
    assert_int_equal(rows.file_bytes, n);
    moec_rows_release(&rows);
    (void)snprintf(task.prompt, sizeof task.prompt, "say {text}");
    refuse_file(&task, path, n + 4096, MOEC_ERR_BUDGET, "takes 8.0 MiB or more");
    /* Two million rows of a letter are far more than their text. */
    task = moec_task_text();
    task.split = MOEC_TASK_SPLIT_LINE;
    refuse_file(&task, path, 8 * n, MOEC_ERR_BUDGET, "takes 32.0 MiB or more");
    if (moec_rows_read(&task, path, 64 * n, &rows, &err) != MOEC_OK)
        fail_msg("%s", err.message);
    assert_int_equal(rows.n_row, n / 2);
    moec_rows_release(&rows);
    (void)unlink(path);

    assert_int_equal(moec_compress(text, n, &packed, &n_packed, &err), MOEC_OK);
    (void)snprintf(path, sizeof path, "%s/data.txt.zst", folder);
    write_file(path, packed, n_packed);
    refuse_file(&task, path, n, MOEC_ERR_BUDGET, "holds 4194304 bytes when decompressed");
    (void)unlink(path);

    (void)snprintf(path, sizeof path, "%s/data.jsonl", folder);
    memset(text, 'a', n);
    memcpy(text, "{\"text\": \"", 10);
    memcpy(text + n - 2, "\"}", 2);
    write_file(path, text, n);
    refuse_file(&task, path, 2 * n - 4096, MOEC_ERR_BUDGET, "takes 8.0 MiB or more");
    if (moec_rows_read(&task, path, 2 * n + 4096, &rows, &err) != MOEC_OK)
        fail_msg("%s", err.message);
    moec_rows_release(&rows);
    (void)unlink(path);
    free(packed);
    free(text);
    (void)rmdir(folder);
}

static void test_rows__a_zst_is_one(void **state)
{
    (void)state;
    char folder[] = "/tmp/moec-rows-XXXXXX", path[128];
    struct moec_task task = moec_task_text();
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/data.txt.zst", folder);
    write_file(path, "plain text", 10);
    refuse_file(&task, path, 0, MOEC_ERR_FORMAT, "is not zstd data, although its name ends in .zst");
    write_file(path, "", 0);
    refuse_file(&task, path, 0, MOEC_ERR_FORMAT, "is not zstd data, although its name ends in .zst");
    (void)unlink(path);
    (void)rmdir(folder);
}

static void check_choice(const struct moec_rows *rows, size_t row, uint32_t i, const char *text)
{
    assert_true(i < rows->rows[row].n_choice);
    const struct moec_row_choice *choice = &rows->choices[rows->rows[row].first_choice + i];
    assert_int_equal(choice->n_bytes, strlen(text));
    assert_memory_equal(rows->text + choice->offset, text, strlen(text));
}

static struct moec_task choice_task(const char *prompt, const char *field, const char *label)
{
    struct moec_task task = task_of(prompt, "");
    task.metric = MOEC_TASK_METRIC_ACCURACY;
    (void)snprintf(task.choices_field, sizeof task.choices_field, "%s", field);
    (void)snprintf(task.choice, sizeof task.choice, " {choice}");
    (void)snprintf(task.label, sizeof task.label, "%s", label);
    return task;
}

static void test_rows__choices_of_an_array(void **state)
{
    (void)state;
    struct moec_rows rows;
    struct moec_task task = choice_task("{q}\n{choices}Answer:", "choices", "{a}");
    (void)snprintf(task.list, sizeof task.list, "{letter}. {choice}\n");
    (void)snprintf(task.choice, sizeof task.choice, " {letter}");
    parse_good(&task, MOEC_TASK_FORMAT_JSONL,
               "{\"q\": \"one?\", \"choices\": [\"x\", \"\", \"z{y}\"], \"a\": 2}\n"
               "{\"q\": \"two?\", \"choices\": [\"x\", 7], \"a\": \" B \"}",
               &rows);
    check_row(&rows, 0, "one?\nA. x\nB. \nC. z{y}\nAnswer:", "", 1);
    check_row(&rows, 1, "two?\nA. x\nB. 7\nAnswer:", "", 2);
    assert_int_equal(rows.rows[0].n_choice, 3);
    assert_int_equal(rows.rows[0].label, 2);
    assert_int_equal(rows.rows[1].label, 1);
    check_choice(&rows, 0, 2, " C");
    check_choice(&rows, 1, 1, " B");
    moec_rows_release(&rows);

    task = choice_task("{q}", "c", "{a}");
    parse_bad(&task, MOEC_TASK_FORMAT_JSONL, "{\"q\": \"\", \"c\": [\"x\"], \"a\": 0}", MOEC_ERR_FORMAT,
              "line 1", "1 choices");
    parse_bad(&task, MOEC_TASK_FORMAT_JSONL, "{\"q\": \"\", \"c\": \"x\", \"a\": 0}", MOEC_ERR_FORMAT, "'c'",
              "expected an array");
    parse_bad(&task, MOEC_TASK_FORMAT_JSONL, "{\"q\": \"\", \"d\": [], \"a\": 0}", MOEC_ERR_FORMAT,
              "no field 'c'", "'d'");
    parse_bad(&task, MOEC_TASK_FORMAT_JSONL, "{\"q\": \"\", \"c\": [\"x\", [1]], \"a\": 0}", MOEC_ERR_FORMAT,
              "'c'", "an array");
    static const char *const labels[] = {"2", "\"C\"", "-1", "\"\"", "\"AB\"", "26", "true"};
    for (size_t i = 0; i < sizeof labels / sizeof *labels; i++) {
        char text[128];
        (void)snprintf(text, sizeof text, "{\"q\": \"\", \"c\": [\"x\", \"y\"], \"a\": %s}", labels[i]);
        parse_bad(&task, MOEC_TASK_FORMAT_JSONL, text, MOEC_ERR_FORMAT, "the label", "expected 0..1 or A..B");
    }
    task.first_label = 1;
    parse_good(&task, MOEC_TASK_FORMAT_JSONL, "{\"q\": \"\", \"c\": [\"x\", \"y\"], \"a\": 2}", &rows);
    assert_int_equal(rows.rows[0].label, 1);
    moec_rows_release(&rows);
    parse_bad(&task, MOEC_TASK_FORMAT_JSONL, "{\"q\": \"\", \"c\": [\"x\", \"y\"], \"a\": 0}",
              MOEC_ERR_FORMAT, "the label", "expected 1..2");
    parse_bad(&task, MOEC_TASK_FORMAT_CSV, "q,c,a\nx,y,0\n", MOEC_ERR_FORMAT, "'c'", "list of templates");
}

static void test_rows__choices_of_templates(void **state)
{
    (void)state;
    struct moec_rows rows;
    struct moec_task task = choice_task("{goal}:", "", "{right}");
    task.n_choice = 2;
    (void)snprintf(task.choices[0], sizeof task.choices[0], "{sol1}");
    (void)snprintf(task.choices[1], sizeof task.choices[1], "not {sol2}");
    parse_good(&task, MOEC_TASK_FORMAT_CSV, "goal,sol1,sol2,right\n\"a, \"\"b\"\"\",\"x\ny\",z,A\n", &rows);
    check_row(&rows, 0, "a, \"b\":", "", 2);
    check_choice(&rows, 0, 0, " x\ny");
    check_choice(&rows, 0, 1, " not z");
    moec_rows_release(&rows);
    task.n_choice = 1;
    parse_bad(&task, MOEC_TASK_FORMAT_TEXT, "x", MOEC_ERR_FORMAT, "task 'test'", "1 choices");
    task.n_choice = 0;
    parse_bad(&task, MOEC_TASK_FORMAT_TEXT, "x", MOEC_ERR_FORMAT, "task 'test'", "has no 'choices'");
}

static void test_rows__labels_stay_beside_the_data(void **state)
{
    (void)state;
    static const char *const elsewhere[] = {"/../../labels", "/labels", "../labels", "-a/b", ".."};
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++) {
        struct moec_task task = task_of("{text}", "");
        (void)snprintf(task.labels, sizeof task.labels, "%s", elsewhere[i]);
        parse_bad(&task, MOEC_TASK_FORMAT_TEXT, "x", MOEC_ERR_FORMAT, "field 'labels' of task 'test'",
                  elsewhere[i]);
    }
}

static void test_rows__labels_beside_the_data(void **state)
{
    (void)state;
    char folder[] = "/tmp/moec-rows-XXXXXX", path[256], labels[256];
    assert_non_null(mkdtemp(folder));
    struct moec_task task = choice_task("{q}", "c", "{label}");
    (void)snprintf(task.labels, sizeof task.labels, "-labels.lst");
    (void)snprintf(path, sizeof path, "%s/data.v1.jsonl", folder);
    (void)snprintf(labels, sizeof labels, "%s/data.v1-labels.lst", folder);
    const char *data = "{\"q\": \"1\", \"c\": [\"x\", \"y\"]}\n{\"q\": \"2\", \"c\": [\"x\", \"y\"]}\n";
    write_file(path, data, strlen(data));
    struct moec_rows rows;
    struct moec_error err = {0};
    assert_int_equal(moec_rows_read(&task, path, 0, &rows, &err), MOEC_ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, "data.v1-labels.lst"));
    static const struct {
        const char *text, *part;
        enum moec_status status;
    } cases[] = {
        {"1\n0\n", NULL, MOEC_OK},
        {"1\r\n\n0", NULL, MOEC_OK},
        {"1\n", "has only 1 labels", MOEC_ERR_FORMAT},
        {"1\n0\n1\n", "more labels than", MOEC_ERR_MISMATCH},
        {"1\n5\n", "the label in line 2", MOEC_ERR_FORMAT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        err = (struct moec_error){0};
        write_file(labels, cases[i].text, strlen(cases[i].text));
        enum moec_status status = moec_rows_read(&task, path, 0, &rows, &err);
        assert_int_equal(status, cases[i].status);
        if (status != MOEC_OK) {
            assert_non_null(strstr(err.message, cases[i].part));
            continue;
        }
        assert_int_equal(rows.n_row, 2);
        assert_int_equal(rows.rows[0].label, 1);
        assert_int_equal(rows.rows[1].label, 0);
        moec_rows_release(&rows);
        assert_int_equal(unlink(labels), 0);
    }
    (void)unlink(labels);
    (void)unlink(path);
    (void)rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows__text_splits),
        cmocka_unit_test(test_rows__templates),
        cmocka_unit_test(test_rows__jsonl_errors),
        cmocka_unit_test(test_rows__white_space_alone_is_refused),
        cmocka_unit_test(test_rows__line_ends_of_windows),
        cmocka_unit_test(test_rows__json_array),
        cmocka_unit_test(test_rows__csv),
        cmocka_unit_test(test_rows__csv_errors),
        cmocka_unit_test(test_rows__files),
        cmocka_unit_test(test_rows__choices_of_an_array),
        cmocka_unit_test(test_rows__choices_of_templates),
        cmocka_unit_test(test_rows__labels_beside_the_data),
        cmocka_unit_test(test_rows__labels_stay_beside_the_data),
        cmocka_unit_test(test_rows__memory_is_bounded),
        cmocka_unit_test(test_rows__a_zst_is_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
