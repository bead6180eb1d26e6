/* Stripping: what is dropped is gone, what is kept keeps its bytes. */
#include "tests/unit/temporary.h"

#include "tests/unit/sample_bundle.h"

#include "formats/base/mapped_memory.h"
#include "formats/bundle/bundle_format.h"
#include "formats/bundle/bundle_strip.h"
#include "formats/bundle/dense_loading.h"

#include <unistd.h>

struct fixture {
    struct sample sample;
    char *folder, *path, *out;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    sample_make(&f->sample, 3, 8, 4, 12);
    f->folder = temporary_folder();
    f->path = temporary_path(f->folder, "sample.moec");
    f->out = temporary_path(f->folder, "out.moec");
    (void)sample_write(&f->sample, f->path);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    sample_release(&f->sample);
    temporary_remove(f->folder);
    free(f->path);
    free(f->out);
    free(f);
    return 0;
}

/* Every section that is left has the bytes that it had. */
static void check_kept(const struct moec_bundle *before, const struct moec_bundle *after)
{
    const struct moec_contents *old = before->sections, *new = after->sections;
    for (uint32_t i = 0; i < new->n_sections; i++) {
        const struct moec_section *section = &new->sections[i];
        const struct moec_section *was = moec_contents_find(old, section->kind, section->level);
        assert_non_null(was);
        if (section->kind == MOEC_SECTION_PROVENANCE)
            continue;
        assert_int_equal(section->stored_bytes, was->stored_bytes);
        assert_int_equal(section->flags, was->flags);
        assert_memory_equal(section->digest, was->digest, sizeof was->digest);
    }
}

static void check_records(const struct sample *s, const struct moec_bundle *bundle, uint32_t copy,
                          uint32_t made_as)
{
    struct moec_error err = {0};
    for (uint32_t e = 0; e < bundle->config.n_expert; e++) {
        const struct moec_record_entry *entry = moec_bundle_record(bundle, copy, 1, e);
        struct moec_record_layout layout =
            moec_record_layout_make(&bundle->config, bundle->codecs[entry->bits]);
        uint8_t *record = malloc(layout.n_bytes), *expected = malloc(layout.n_bytes);
        sample_record(s, &layout, made_as, 1, e, expected);
        assert_status(moec_bundle_read_record(bundle, (struct moec_record_id){copy, 1, e}, record, &err),
                      MOEC_OK, err);
        assert_memory_equal(record, expected, layout.n_bytes);
        free(record);
        free(expected);
    }
}

static void test_bundle_strip__drops_one_of_two(void **state)
{
    struct fixture *f = *state;
    struct moec_error err = {0};
    struct moec_bundle *before = NULL, *after = NULL;
    struct moec_bundle_stripped stripped;
    const uint32_t bits[] = {2};
    assert_status(moec_bundle_strip(f->path, bits, 1, f->out, &stripped, &err), MOEC_OK, err);
    assert_status(moec_bundle_verify(f->out, NULL, NULL, &err), MOEC_OK, err);
    assert_status(moec_bundle_open(f->path, &before, &err), MOEC_OK, err);
    assert_status(moec_bundle_open(f->out, &after, &err), MOEC_OK, err);
    check_kept(before, after);
    check_records(&f->sample, after, 0, 0);
    check_records(&f->sample, after, 1, 2);
    assert_int_equal(after->n_copy, 2);
    assert_int_equal(stripped.n_copy, 2);
    assert_int_equal(after->copy_bits[1], 8);
    assert_int_equal(stripped.before_bytes, before->file.n_bytes);
    assert_int_equal(stripped.after_bytes, after->file.n_bytes);
    const struct moec_section *gone = moec_contents_find(before->sections, MOEC_SECTION_RECORDS, 1);
    assert_true(stripped.after_bytes + gone->stored_bytes <= stripped.before_bytes);
    assert_string_equal(after->provenance.options, "--bits 4; stripped --copies 2");
    assert_memory_equal(&after->certificate, &before->certificate, sizeof after->certificate);
    moec_bundle_close(before);
    moec_bundle_close(after);
}

/* One after the other, the second in place, is both at once but for the note. */
static void test_bundle_strip__drops_all_in_place(void **state)
{
    struct fixture *f = *state;
    struct moec_error err = {0};
    struct moec_bundle *bundle = NULL;
    struct moec_bundle_stripped both, last;
    const uint32_t bits[] = {2, 8};
    assert_status(moec_bundle_strip(f->path, bits, 2, f->out, &both, &err), MOEC_OK, err);
    assert_status(moec_bundle_strip(f->path, bits, 1, f->path, &last, &err), MOEC_OK, err);
    assert_status(moec_bundle_strip(f->path, bits + 1, 1, f->path, &last, &err), MOEC_OK, err);
    assert_int_equal(both.after_bytes, last.after_bytes);
    assert_int_equal(last.n_copy, 1);
    assert_status(moec_bundle_verify(f->path, NULL, NULL, &err), MOEC_OK, err);
    assert_status(moec_bundle_open(f->path, &bundle, &err), MOEC_OK, err);
    check_records(&f->sample, bundle, 0, 0);
    assert_string_equal(bundle->provenance.options, "--bits 4; stripped --copies 2; stripped --copies 8");
    moec_bundle_close(bundle);
    assert_status(moec_bundle_strip(f->path, bits, 1, f->path, &last, &err), MOEC_ERR_USAGE, err);
    assert_message(err, "only the compiled assignment");
}

static void test_bundle_strip__refuses(void **state)
{
    struct fixture *f = *state;
    struct moec_error err = {0};
    struct moec_bundle_stripped stripped;
    const uint32_t bits[] = {8, 4};
    assert_status(moec_bundle_strip(f->path, bits, 2, f->out, &stripped, &err), MOEC_ERR_USAGE, err);
    assert_message(err, "no copy of its experts at 4 bits, only copies at 2, 8 bits");
    err = (struct moec_error){0};
    assert_status(moec_bundle_strip(f->path, bits, 0, f->out, &stripped, &err), MOEC_ERR_USAGE, err);
    const uint32_t twice[] = {2, 2};
    err = (struct moec_error){0};
    assert_status(moec_bundle_strip(f->path, twice, 2, f->out, &stripped, &err), MOEC_ERR_USAGE, err);
    assert_message(err, "name 2 bits twice");
    memset(f->sample.provenance.options, 'x', sizeof f->sample.provenance.options - 1);
    (void)sample_write(&f->sample, f->path);
    err = (struct moec_error){0};
    assert_status(moec_bundle_strip(f->path, bits, 1, f->out, &stripped, &err), MOEC_ERR_LIMIT, err);
    assert_int_equal(temporary_count(f->folder), 1);
}

static void test_bundle_strip__damage_is_not_copied(void **state)
{
    struct fixture *f = *state;
    struct moec_error err = {0};
    struct moec_bundle *bundle = NULL;
    struct moec_bundle_stripped stripped;
    const uint32_t bits[] = {2};
    size_t n = 0;
    assert_status(moec_bundle_open(f->path, &bundle, &err), MOEC_OK, err);
    uint64_t at = moec_bundle_record(bundle, 0, 1, 1)->offset;
    moec_bundle_close(bundle);
    uint8_t *bytes = temporary_read(f->folder, "sample.moec", &n);
    bytes[at + 3] ^= 1;
    temporary_write(f->folder, "sample.moec", bytes, n);
    assert_status(moec_bundle_strip(f->path, bits, 1, f->out, &stripped, &err), MOEC_ERR_CHECKSUM, err);
    assert_message(err, "records of copy 0");
    assert_int_equal(temporary_count(f->folder), 1);
    free(bytes);
}

/* Dense weights that the blob holds are the ones of the other bundle. */
static void check_dense(const struct moec_bundle *bundle, bool only_cached, bool is_mapped,
                        const struct moec_dense *expected)
{
    struct moec_error err = {0};
    struct moec_dense dense = {0};
    const struct moec_dense_loading how = {.maps = true, .only_cached = only_cached};
    assert_status(moec_bundle_open_dense(bundle, &how, &dense, &err), MOEC_OK, err);
    assert_int_equal(dense.mapped_bytes, is_mapped ? expected->blob_bytes : 0);
    assert_int_equal(dense.blob_bytes, expected->blob_bytes);
    assert_memory_equal(dense.blob, expected->blob, expected->blob_bytes);
    moec_dense_release(&dense);
}

/* Whether files of this machine can be mapped over memory. */
static bool can_map(const char *path)
{
    struct moec_error err = {0};
    struct moec_file file;
    void *page = NULL;
    assert_status(moec_file_open(&file, path, &err), MOEC_OK, err);
    assert_status(moec_map_memory(&page, MOEC_PAGE_BYTES, "a page", &err), MOEC_OK, err);
    const bool can = moec_map_file(page, file.fd, 0, MOEC_PAGE_BYTES) == 0;
    moec_unmap_memory(page, MOEC_PAGE_BYTES);
    moec_file_close(&file);
    return can;
}

static void test_bundle_strip__unpacked_weights_are_mapped(void **state)
{
    struct fixture *f = *state;
    struct moec_error err = {0};
    struct moec_bundle *before = NULL, *after = NULL;
    struct moec_bundle_stripped stripped;
    struct moec_dense expected = {0}, dense = {0};
    static const struct moec_dense_loading mapped = {.maps = true};
    const bool maps = can_map(f->path);
    const uint32_t bits[] = {2};
    assert_status(moec_bundle_unpack(f->path, NULL, 0, f->out, &stripped, &err), MOEC_OK, err);
    assert_status(moec_bundle_unpack(f->out, bits, 1, f->out, &stripped, &err), MOEC_OK, err);
    assert_status(moec_bundle_verify(f->out, NULL, NULL, &err), MOEC_OK, err);
    assert_status(moec_bundle_open(f->path, &before, &err), MOEC_OK, err);
    assert_status(moec_bundle_open(f->out, &after, &err), MOEC_OK, err);
    const struct moec_section section = *moec_contents_find(after->sections, MOEC_SECTION_DENSE, 0);
    assert_int_equal(section.flags, 0);
    assert_int_equal(section.offset % 4096, 0);
    assert_string_equal(after->provenance.options, "--bits 4; unpacked; stripped --copies 2; unpacked");
    check_records(&f->sample, after, 0, 0);
    assert_status(moec_bundle_load_dense(before, &expected, &err), MOEC_OK, err);
    check_dense(before, false, false, &expected);
    check_dense(after, false, maps, &expected);
    check_dense(after, true, maps, &expected); /* it has just been written */
    moec_bundle_close(after);

    size_t n = 0;
    uint8_t *bytes = temporary_read(f->folder, "out.moec", &n);
    bytes[section.offset + 5] ^= 4;
    temporary_write(f->folder, "out.moec", bytes, n);
    assert_status(moec_bundle_open(f->out, &after, &err), MOEC_OK, err);
    assert_status(moec_bundle_open_dense(after, &mapped, &dense, &err), MOEC_ERR_CHECKSUM, err);
    assert_message(err, "'dense weights'");
    assert_int_equal(truncate(f->out, (off_t)section.offset), 0);
    err = (struct moec_error){0}; /* mapping is refused, and then reading is */
    assert_status(moec_bundle_open_dense(after, &mapped, &dense, &err), MOEC_ERR_IO, err);
    free(bytes);
    moec_dense_release(&expected);
    moec_bundle_close(before);
    moec_bundle_close(after);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_bundle_strip__drops_one_of_two),     CASE(test_bundle_strip__unpacked_weights_are_mapped),
        CASE(test_bundle_strip__drops_all_in_place),   CASE(test_bundle_strip__refuses),
        CASE(test_bundle_strip__damage_is_not_copied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
