#include "tests/unit/temporary.h"

#include "formats/profile/journal.h"
#include "formats/profile/study_bytes.h"
#include "profiler/profile/profile_job.h"

#include <math.h>

#define JOB "moec: 1\nseed: 3\nbits: 2,4\n"

static const struct moec_journal_piece pieces[] = {{"abc", 3}, {NULL, 0}, {"defgh", 5}};

static void append(struct moec_journal *journal, uint16_t kind, const char *key)
{
    struct moec_error err = {0};
    assert_status(moec_journal_append(journal, kind, key, pieces, 3, &err), MOEC_OK, err);
}

static char *make(const char *folder)
{
    struct moec_journal journal;
    struct moec_error err = {0};
    char *path = temporary_path(folder, "x.journal");
    assert_status(moec_journal_create(&journal, path, JOB, &err), MOEC_OK, err);
    append(&journal, 1, "first");
    append(&journal, 2, "");
    append(&journal, 1, "third");
    moec_journal_close(&journal);
    return path;
}

static void test_journal__gives_back_what_was_appended(void **state)
{
    (void)state;
    char *folder = temporary_folder(), *path = make(folder), bytes[9] = "";
    struct moec_journal journal;
    struct moec_error err = {0};
    assert_status(moec_journal_open(&journal, path, JOB, &err), MOEC_OK, err);
    assert_int_equal(journal.n_record, 3);
    assert_int_equal(journal.n_dropped, 0);
    assert_string_equal(moec_journal_key(&journal, 0), "first");
    assert_int_equal(journal.records[1].kind, 2);
    assert_int_equal(moec_journal_find(&journal, 0, 1, "third"), 2);
    assert_int_equal(moec_journal_find(&journal, 2, 1, "first"), 0);
    assert_int_equal(moec_journal_find(&journal, 7, 1, "first"), 0);
    assert_int_equal(moec_journal_find(&journal, 0, 2, "first"), 3);
    assert_status(moec_journal_read(&journal, 2, 0, bytes, 8, &err), MOEC_OK, err);
    assert_string_equal(bytes, "abcdefgh");
    assert_status(moec_journal_read(&journal, 2, 4, bytes, 5, &err), MOEC_ERR_FORMAT, err);
    assert_message(err, "'third'");
    append(&journal, 1, "fourth");
    moec_journal_close(&journal);
    err = (struct moec_error){0};
    assert_status(moec_journal_open(&journal, path, NULL, &err), MOEC_OK, err);
    assert_int_equal(journal.n_record, 4);
    assert_status(moec_journal_append(&journal, 1, "x", pieces, 1, &err), MOEC_ERR_USAGE, err);
    moec_journal_close(&journal);
    free(path);
    temporary_remove(folder);
}

/* Cut anywhere, a journal gives the records before the cut, takes further ones, and is whole again. */
static void test_journal__cut_anywhere(void **state)
{
    (void)state;
    char *folder = temporary_folder(), *path = make(folder);
    size_t n = 0;
    uint8_t *bytes = temporary_read(folder, "x.journal", &n);
    const size_t header = MOEC_JOURNAL_HEADER_BYTES + strlen(JOB);
    const size_t ends[] = {header, header + 16 + 5 + 8, header + 16 + 5 + 8 + 16 + 8, n};
    assert_int_equal(n, ends[2] + 16 + 5 + 8);
    for (size_t cut = 0; cut <= n; cut++) {
        struct moec_journal journal;
        struct moec_error err = {0};
        size_t n_whole = 0;
        while (n_whole < 3 && ends[n_whole + 1] <= cut)
            n_whole++;
        temporary_write(folder, "x.journal", bytes, cut);
        assert_status(moec_journal_open(&journal, path, NULL, &err), MOEC_OK, err);
        assert_int_equal(journal.n_record, n_whole);
        moec_journal_close(&journal);
        assert_status(moec_journal_open(&journal, path, JOB, &err), MOEC_OK, err);
        assert_int_equal(journal.n_record, n_whole);
        assert_int_equal(journal.n_dropped, cut < header ? cut : cut - ends[n_whole]);
        append(&journal, 1, "more");
        moec_journal_close(&journal);
        assert_status(moec_journal_open(&journal, path, JOB, &err), MOEC_OK, err);
        assert_int_equal(journal.n_record, n_whole + 1);
        assert_int_equal(journal.n_dropped, 0);
        moec_journal_close(&journal);
    }
    free(bytes);
    free(path);
    temporary_remove(folder);
}

/* Every flipped byte is found: in the header the journal is refused, in a record that record and those after
 * it are not there. */
static void test_journal__every_flipped_byte_is_found(void **state)
{
    (void)state;
    char *folder = temporary_folder(), *path = make(folder);
    size_t n = 0;
    uint8_t *bytes = temporary_read(folder, "x.journal", &n);
    const size_t header = MOEC_JOURNAL_HEADER_BYTES + strlen(JOB);
    for (size_t at = 0; at < n; at++) {
        struct moec_journal journal;
        struct moec_error err = {0};
        bytes[at] ^= 0x21;
        temporary_write(folder, "x.journal", bytes, n);
        bytes[at] ^= 0x21;
        const enum moec_status status = moec_journal_open(&journal, path, JOB, &err);
        if (at >= header) {
            assert_status(status, MOEC_OK, err);
            assert_true(journal.n_record < 3 && journal.n_dropped > 0);
            assert_int_equal(journal.n_record, (at - header >= 29) + (at - header >= 53));
            moec_journal_close(&journal);
        } else {
            assert_true(status == MOEC_ERR_FORMAT || status == MOEC_ERR_UNSUPPORTED ||
                        status == MOEC_ERR_CHECKSUM);
            assert_message(err, path);
        }
    }
    free(bytes);
    free(path);
    temporary_remove(folder);
}

static void test_journal__another_job_is_refused(void **state)
{
    (void)state;
    char *folder = temporary_folder(), *path = make(folder);
    struct moec_journal journal;
    struct moec_error err = {0};
    assert_status(moec_journal_open(&journal, path, "moec: 1\nseed: 4\nbits: 2,4\ngroup: 32\n", &err),
                  MOEC_ERR_MISMATCH, err);
    assert_message(err, "seed is '3' (this run: '4')");
    assert_message(err, "group is 'none' (this run: '32')");
    assert_null(strstr(err.message, "bits"));
    err = (struct moec_error){0};
    assert_status(moec_journal_open(&journal, path, "moec: 1\nbits: 2,4\n", &err), MOEC_ERR_MISMATCH, err);
    assert_message(err, "seed is '3' (this run: 'none')");
    err = (struct moec_error){0};
    assert_status(moec_journal_create(&journal, path, JOB, &err), MOEC_ERR_IO, err);
    assert_message(err, "File exists");
    assert_status(moec_journal_open(&journal, path, JOB, &err), MOEC_OK, err);
    assert_int_equal(journal.n_record, 3);
    moec_journal_close(&journal);
    free(path);
    temporary_remove(folder);
}

static void test_journal__one_writer(void **state)
{
    (void)state;
    char *folder = temporary_folder(), *path = make(folder);
    struct moec_journal first, second;
    struct moec_error err = {0};
    assert_status(moec_journal_open(&first, path, JOB, &err), MOEC_OK, err);
    assert_status(moec_journal_open(&second, path, JOB, &err), MOEC_ERR_IO, err);
    assert_message(err, "another process");
    err = (struct moec_error){0};
    assert_status(moec_journal_open(&second, path, NULL, &err), MOEC_OK, err);
    moec_journal_close(&second);
    moec_journal_close(&first);
    free(path);
    temporary_remove(folder);
}

static void test_journal__what_is_no_journal(void **state)
{
    (void)state;
    char *folder = temporary_folder(), *path = temporary_path(folder, "x.journal");
    struct moec_journal journal;
    struct moec_error err = {0};
    assert_status(moec_journal_open(&journal, path, JOB, &err), MOEC_ERR_NOT_FOUND, err);
    err = (struct moec_error){0};
    temporary_write(folder, "x.journal", "a letter to the editor", 22);
    assert_status(moec_journal_open(&journal, path, JOB, &err), MOEC_ERR_FORMAT, err);
    assert_message(err, "is not a journal");
    err = (struct moec_error){0};
    assert_status(moec_journal_create(&journal, path, "moec: 1\x1b[2J\n", &err), MOEC_ERR_USAGE, err);
    free(path);
    temporary_remove(folder);
}

/* ---- units ---- */

static char noted[2048];

static void note(void *context, const char *line)
{
    (void)context;
    (void)snprintf(noted + strlen(noted), sizeof noted - strlen(noted), "%s\n", line);
}

static enum moec_status report(void *context, const char *phase, double done, double total)
{
    (void)context;
    (void)phase;
    return done < total ? MOEC_OK : MOEC_ERR_CANCELLED;
}

static void test_unit__found_again_with_its_cost(void **state)
{
    (void)state;
    char *folder = temporary_folder(), *path = temporary_path(folder, "x.journal");
    const struct moec_progress progress = {.report = report, .note = note};
    struct moec_units *units = NULL;
    struct moec_units_summary summary;
    struct moec_job_text job = {.n_bytes = 0};
    struct moec_error err = {0};
    double nll[3] = {1, 2, 3}, got[3] = {0};
    uint32_t numbers[2] = {7, 8};
    uint64_t cost = 100;
    size_t cursor = 0, record = 0;
    bool found = true;
    moec_job_line(&job, "data-name", "a\nb%d", 3);
    assert_string_equal(job.text, "data-name: a?b3\n");
    noted[0] = '\0';
    assert_status(moec_units_open(path, MOEC_UNITS_RESUME, &job, &progress, &units, &err), MOEC_OK, err);
    assert_non_null(strstr(noted, "starting over"));
    const struct moec_unit_part parts[] = {{nll, sizeof nll}, {numbers, sizeof numbers}};
    assert_status(moec_unit_find(units, &(struct moec_unit){"uniform/2", parts, 2}, &cost, &found, &err),
                  MOEC_OK, err);
    assert_false(found);
    const struct moec_progress *inner = moec_units_progress(units, &progress);
    assert_status(moec_progress_report(inner, "evaluation", 1.5, 4, &err), MOEC_OK, err);
    assert_status(moec_unit_keep(units, &(struct moec_unit){"uniform/2", parts, 2}, 11, &err), MOEC_OK, err);
    assert_status(moec_progress_report(inner, "evaluation", 4, 4, &err), MOEC_ERR_CANCELLED, err);
    moec_units_close(units);

    err = (struct moec_error){0};
    assert_status(moec_units_look(path, &summary, &err), MOEC_OK, err);
    assert_int_equal(summary.n_unit, 1);
    assert_string_equal(summary.phase, "evaluation");
    assert_true(summary.done_passes == 1.5 && summary.total_passes == 4);
    assert_status(moec_units_open(path, MOEC_UNITS_RESUME, &job, &progress, &units, &err), MOEC_OK, err);
    assert_non_null(strstr(noted, "1 units of work are done (evaluation, 1.5 of 4.0 passes)"));
    const struct moec_unit_part back[] = {{got, sizeof got}, {numbers, sizeof numbers}};
    numbers[1] = 0;
    assert_status(moec_unit_find(units, &(struct moec_unit){"uniform/2", back, 2}, &cost, &found, &err),
                  MOEC_OK, err);
    assert_true(found);
    assert_int_equal(cost, 111);
    assert_true(got[2] == 3 && numbers[1] == 8);
    assert_true(moec_unit_next(units, "uniform/2", &cursor, &record));
    assert_false(moec_unit_next(units, "uniform/2", &cursor, &record));
    const struct moec_unit_part wrong = {got, 8};
    assert_status(moec_unit_find(units, &(struct moec_unit){"uniform/2", &wrong, 1}, &cost, &found, &err),
                  MOEC_ERR_FORMAT, err);
    assert_message(err, "24 bytes, expected 8");
    moec_units_close(units);
    free(path);
    temporary_remove(folder);
}

/* A record that is no unit: the journal is refused and open to others again. */
static void test_unit__what_is_no_unit(void **state)
{
    (void)state;
    char *folder = temporary_folder(), *path = temporary_path(folder, "x.journal");
    struct moec_units *units = NULL;
    struct moec_journal journal;
    struct moec_job_text job = {.n_bytes = 0};
    struct moec_error err = {0};
    assert_status(moec_journal_create(&journal, path, job.text, &err), MOEC_OK, err);
    append(&journal, 1, "short");
    moec_journal_close(&journal);
    for (int i = 0; i < 2; i++) {
        err = (struct moec_error){0};
        assert_status(moec_units_open(path, MOEC_UNITS_RESUME, &job, NULL, &units, &err), MOEC_ERR_FORMAT,
                      err);
        assert_message(err, "'short'");
    }
    free(path);
    temporary_remove(folder);
}

static void test_unit__without_a_journal(void **state)
{
    (void)state;
    struct moec_error err = {0};
    uint64_t cost = 5;
    size_t cursor = 0, record = 0;
    bool found = true;
    assert_status(moec_unit_find(NULL, &(struct moec_unit){"x", NULL, 0}, &cost, &found, &err), MOEC_OK, err);
    assert_false(found);
    assert_status(moec_unit_keep(NULL, &(struct moec_unit){"x", NULL, 0}, 3, &err), MOEC_OK, err);
    assert_false(moec_unit_next(NULL, "x", &cursor, &record));
    const struct moec_progress progress = {.report = report};
    assert_ptr_equal(moec_units_progress(NULL, &progress), &progress);
    moec_units_close(NULL);
    assert_int_equal(cost, 5);
}

static uint32_t n_phase;

/* Adds two studies at a price of 30. */
static enum moec_status add_two(struct moec_profile_job *job, struct moec_error *err)
{
    double values[6] = {1, 2, 3, 4, 5, NAN}, bits[3] = {2, 4, 8};
    char labels[2][MOEC_STUDY_LABEL] = {"gate", "up"};
    struct moec_study study = {.name = "phase/table",
                               .units = "nats",
                               .description = "a table",
                               .source = "a paper",
                               .n_axis = 2,
                               .values = values};
    study.axes[0] = (struct moec_study_axis){.name = "projection", .n = 2, .labels = labels};
    study.axes[1] = (struct moec_study_axis){.name = "bits", .n = 3, .units = "bit", .values = bits};
    n_phase++;
    job->multiply_adds += 30;
    MOEC_TRY(moec_studies_add(&job->profile->studies, &study, NULL, err));
    struct moec_study single = {.name = "phase/one", .values = bits};
    return moec_studies_add(&job->profile->studies, &single, NULL, err);
}

/* What AUTO does about journals that are there: continues its own, replaces another's, leaves other files. */
static void test_unit__auto(void **state)
{
    (void)state;
    char *folder = temporary_folder(), *path = temporary_path(folder, "x.journal");
    const struct moec_progress progress = {.report = report, .note = note};
    struct moec_units *units = NULL;
    struct moec_job_text job = {.n_bytes = 0}, other = {.n_bytes = 0};
    struct moec_error err = {0};
    double value = 3;
    const struct moec_unit_part part = {&value, sizeof value};
    uint64_t cost = 0;
    bool found = false;
    moec_job_line(&job, "model", "one");
    moec_job_line(&other, "model", "two");
    noted[0] = '\0';
    assert_status(moec_units_open(path, MOEC_UNITS_AUTO, &job, &progress, &units, &err), MOEC_OK, err);
    assert_string_equal(noted, "");
    assert_status(moec_unit_keep(units, &(struct moec_unit){"a", &part, 1}, 0, &err), MOEC_OK, err);
    moec_units_close(units);

    assert_status(moec_units_open(path, MOEC_UNITS_AUTO, &job, &progress, &units, &err), MOEC_OK, err);
    assert_non_null(strstr(noted, "1 units of work are done"));
    assert_null(strstr(noted, "passes"));
    value = 0;
    assert_status(moec_unit_find(units, &(struct moec_unit){"a", &part, 1}, &cost, &found, &err), MOEC_OK,
                  err);
    assert_true(found && value == 3);
    assert_status(moec_unit_find(units, &(struct moec_unit){"b", &part, 1}, &cost, &found, &err), MOEC_OK,
                  err);
    assert_false(found);
    assert_int_equal(moec_units_found_count(units), 1);
    moec_units_close(units);

    assert_status(moec_units_open(path, MOEC_UNITS_AUTO, &other, &progress, &units, &err), MOEC_OK, err);
    assert_non_null(strstr(noted, "another job: its model is 'one' (this run: 'two'); starting over"));
    assert_status(moec_unit_find(units, &(struct moec_unit){"a", &part, 1}, &cost, &found, &err), MOEC_OK,
                  err);
    assert_false(found);
    assert_status(moec_unit_keep(units, &(struct moec_unit){"a", &part, 1}, 0, &err), MOEC_OK, err);
    moec_units_discard(units);
    assert_false(moec_path_exists(path));

    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs("a letter", file) >= 0);
    assert_int_equal(fclose(file), 0);
    units = (struct moec_units *)folder; /* anything but NULL */
    assert_status(moec_units_open(path, MOEC_UNITS_AUTO, &job, &progress, &units, &err), MOEC_OK, err);
    assert_null(units);
    assert_non_null(strstr(noted, "finished work is not saved in a journal"));
    assert_true(moec_path_exists(path));
    free(path);
    temporary_remove(folder);
}

static void test_unit__a_phase_of_studies(void **state)
{
    (void)state;
    char *folder = temporary_folder(), *path = temporary_path(folder, "x.journal");
    struct moec_job_text text = {.n_bytes = 0};
    struct moec_error err = {0};
    const struct moec_profile_options options = {0};
    n_phase = 0;
    for (int run = 0; run < 2; run++) {
        struct moec_profile profile = {0};
        struct moec_profile_job job = {.profile = &profile, .options = &options, .multiply_adds = 5};
        struct moec_study earlier = {.name = "other/study"};
        assert_status(moec_studies_add(&profile.studies, &earlier, NULL, &err), MOEC_OK, err);
        assert_status(moec_units_open(path, run > 0 ? MOEC_UNITS_RESUME : MOEC_UNITS_NEW, &text, NULL,
                                      &job.units, &err),
                      MOEC_OK, err);
        assert_status(moec_job_studies(&job, "studies/phase", add_two, &err), MOEC_OK, err);
        assert_int_equal(n_phase, 1);
        assert_int_equal(job.multiply_adds, 35);
        assert_int_equal(profile.studies.n, 3);
        const struct moec_study *table = moec_studies_find(&profile.studies, "phase/table");
        assert_non_null(table);
        assert_string_equal(table->description, "a table");
        assert_string_equal(table->source, "a paper");
        assert_string_equal(table->axes[0].labels[1], "up");
        assert_true(table->axes[0].values == NULL && table->axes[1].values[2] == 8);
        assert_true(table->values[4] == 5 && isnan(table->values[5]));
        assert_true(moec_studies_find(&profile.studies, "phase/one")->values[0] == 2);
        moec_units_close(job.units);
        moec_studies_release(&profile.studies);
    }
    free(path);
    temporary_remove(folder);
}

/* Bytes of a study that end anywhere or say what is not so are refused. */
static void test_unit__studies_that_are_not_whole(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_studies got = {0};
    double values[2] = {1, 2};
    uint64_t used = 0;
    struct moec_study study = {.name = "a/b", .n_axis = 1, .values = values};
    study.axes[0] = (struct moec_study_axis){.name = "x", .n = 2, .values = values};
    const uint64_t n = moec_study_bytes(&study);
    assert_int_equal(n, 464 + 72 + 16 + 16);
    uint8_t *bytes = malloc(n);
    assert_non_null(bytes);
    moec_study_encode(&study, bytes);
    for (uint64_t cut = 0; cut < n; cut++) {
        struct moec_error short_err = {0};
        assert_int_equal(moec_study_decode(bytes, cut, &got, &used, &short_err), MOEC_ERR_FORMAT);
    }
    bytes[464 + 56 + 7] = 0x20; /* a length that overflows */
    assert_int_equal(moec_study_decode(bytes, n, &got, &used, &err), MOEC_ERR_FORMAT);
    assert_int_equal(got.n, 0);
    bytes[464 + 56 + 7] = 0;
    err = (struct moec_error){0};
    assert_status(moec_study_decode(bytes, n, &got, &used, &err), MOEC_OK, err);
    assert_int_equal(used, n);
    free(bytes);
    moec_studies_release(&got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_journal__gives_back_what_was_appended),
        cmocka_unit_test(test_journal__cut_anywhere),
        cmocka_unit_test(test_journal__every_flipped_byte_is_found),
        cmocka_unit_test(test_journal__another_job_is_refused),
        cmocka_unit_test(test_journal__one_writer),
        cmocka_unit_test(test_journal__what_is_no_journal),
        cmocka_unit_test(test_unit__found_again_with_its_cost),
        cmocka_unit_test(test_unit__what_is_no_unit),
        cmocka_unit_test(test_unit__without_a_journal),
        cmocka_unit_test(test_unit__auto),
        cmocka_unit_test(test_unit__a_phase_of_studies),
        cmocka_unit_test(test_unit__studies_that_are_not_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
