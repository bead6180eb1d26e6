/* Dense weights whose pieces are cut by runs: sizes add up over matrices, and a reader takes short pieces
 * only where the section says that there are some. */
#include "tests/unit/temporary.h"

#include "formats/base/bytes.h"
#include "formats/bundle/bundle_dense.h"
#include "formats/bundle/bundle_strip.h"
#include "formats/bundle/dense_loading.h"
#include "formats/bundle/section_pieces.h"
#include "tests/unit/sample_bundle.h"

static int set_up(void **state)
{
    struct sample_fixture *f = sample_set_up(3, 40, 5, 9);
    f->sample.n_extra = 0;
    f->sample.parts.cuts_dense = true;
    *state = f;
    return 0;
}

static uint64_t sum_of_runs(const struct moec_dense *dense, uint32_t *n_run)
{
    struct moec_error err = {0};
    uint64_t sum = 0, stored = 0;
    *n_run = 0;
    for (uint32_t first = 0; first < dense->n_entries; first += moec_bundle_dense_run(dense, first)) {
        assert_status(moec_bundle_dense_run_bytes(dense, first, &stored, &err), MOEC_OK, err);
        sum += stored;
        (*n_run)++;
    }
    return sum;
}

static struct moec_bundle_section dense_section(const struct moec_bundle *bundle)
{
    for (uint32_t i = 0; i < moec_bundle_section_count(bundle); i++)
        if (strcmp(moec_bundle_section_get(bundle, i).name, "dense weights") == 0)
            return moec_bundle_section_get(bundle, i);
    fail_msg("no dense weights");
    return (struct moec_bundle_section){0};
}

static void check_written(const struct sample_fixture *f, const struct moec_dense *wanted,
                          uint64_t stored_bytes)
{
    struct moec_error err = {0};
    struct moec_bundle *bundle = NULL;
    struct moec_dense read = {0};
    assert_status(moec_bundle_verify(f->path, NULL, NULL, &err), MOEC_OK, err);
    assert_status(moec_bundle_open(f->path, &bundle, &err), MOEC_OK, err);
    assert_int_equal(dense_section(bundle).stored_bytes, stored_bytes);
    assert_true(dense_section(bundle).is_compressed);
    assert_status(moec_bundle_load_dense(bundle, &read, &err), MOEC_OK, err);
    assert_int_equal(read.blob_bytes, wanted->blob_bytes);
    for (uint32_t i = 0; i < read.n_entries; i++) {
        const struct moec_dense_entry *entry = &read.entries[i];
        assert_true(moec_codec_equal(entry->codec, wanted->entries[i].codec));
        assert_memory_equal(read.blob + entry->offset, wanted->blob + entry->offset, entry->n_bytes);
    }
    moec_dense_release(&read);
    moec_bundle_close(bundle);
}

static struct moec_codec other_codec(void *context, enum moec_role role, uint32_t layer)
{
    (void)context;
    struct moec_codec codec = {.dtype = MOEC_DTYPE_BF16};
    if (moec_role_is_quantisable(role) && role != MOEC_ROLE_EMBEDDING)
        codec = (struct moec_codec){.dtype = layer == 0 ? MOEC_DTYPE_INT4 : MOEC_DTYPE_INT2, .group = 32};
    return codec;
}

static void test_bundle_dense__sizes_are_sums_over_runs(void **state)
{
    struct sample_fixture *f = *state;
    struct sample *s = &f->sample;
    struct moec_error err = {0};
    uint32_t n_run = 0;
    const uint64_t stored = sum_of_runs(&s->dense, &n_run);
    s->parts.dense_stored_bytes = stored;
    const uint64_t predicted = sample_write(s, f->path);
    assert_true(n_run > 10);
    check_written(f, &s->dense, stored);
    struct moec_bundle_plan *plan = NULL;
    struct moec_variant *experts = sample_experts(s);
    struct moec_dense other;
    uint64_t n_bytes = 0, state_of_rows = 77;
    assert_status(moec_dense_create(&s->config, other_codec, NULL, &other, &err), MOEC_OK, err);
    for (uint32_t i = 0; i < other.n_entries; i++)
        sample_rows(other.entries[i].codec, other.entries[i].rows, other.entries[i].columns, &state_of_rows,
                    other.blob + other.entries[i].offset);
    assert_status(moec_bundle_plan_create(&s->parts, &plan, &err), MOEC_OK, err);
    assert_status(
        moec_bundle_plan_bytes(plan, &(struct moec_bundle_assignment){.experts = experts}, &n_bytes, &err),
        MOEC_OK, err);
    assert_int_equal(n_bytes, predicted);
    const uint64_t other_stored = sum_of_runs(&other, &n_run);
    assert_status(moec_bundle_plan_set_dense(plan, &other, other_stored, &err), MOEC_OK, err);
    assert_status(
        moec_bundle_plan_bytes(plan, &(struct moec_bundle_assignment){.experts = experts}, &n_bytes, &err),
        MOEC_OK, err);
    assert_true(n_bytes < predicted);
    struct moec_dense wrong = other;
    wrong.n_entries--;
    assert_status(moec_bundle_plan_set_dense(plan, &wrong, other_stored, &err), MOEC_ERR_FORMAT, err);
    const uint64_t before = n_bytes;
    err = (struct moec_error){0};
    assert_status(
        moec_bundle_plan_bytes(plan, &(struct moec_bundle_assignment){.experts = experts}, &n_bytes, &err),
        MOEC_OK, err);
    assert_int_equal(n_bytes, before);
    assert_status(moec_bundle_plan_set_dense(plan, &s->dense, stored, &err), MOEC_OK, err);
    assert_status(
        moec_bundle_plan_bytes(plan, &(struct moec_bundle_assignment){.experts = experts}, &n_bytes, &err),
        MOEC_OK, err);
    assert_int_equal(n_bytes, predicted);
    moec_bundle_plan_free(plan);
    s->parts.dense = &other;
    s->parts.dense_stored_bytes = other_stored;
    assert_int_equal(sample_write(s, f->path), before);
    check_written(f, &other, other_stored);
    s->parts.cuts_dense = false;
    assert_status(moec_bundle_plan_create(&s->parts, &plan, &err), MOEC_OK, err);
    assert_status(moec_bundle_plan_set_dense(plan, &s->dense, stored, &err), MOEC_ERR_USAGE, err);
    moec_bundle_plan_free(plan);
    moec_dense_release(&other);
    free(experts);
}

static uint8_t *entry_of(uint8_t *bytes, uint32_t kind)
{
    uint8_t *entry = bytes + MOEC_BUNDLE_HEADER_BYTES;
    while (moec_get_u32(entry) != kind)
        entry += MOEC_BUNDLE_SECTION_BYTES;
    return entry;
}

/* Makes a changed section, contents table and header pass their checks. */
static void reseal(uint8_t *bytes, uint32_t kind)
{
    uint8_t *entry = entry_of(bytes, kind);
    const uint32_t n_sections = moec_get_u32(bytes + MOEC_HEADER_N_SECTIONS);
    moec_sha256(bytes + moec_get_u64(entry + 16), moec_get_u64(entry + 24), entry + 40);
    moec_sha256(bytes + MOEC_BUNDLE_HEADER_BYTES, (size_t)n_sections * MOEC_BUNDLE_SECTION_BYTES,
                bytes + MOEC_HEADER_CONTENTS);
    moec_put_u32(bytes + MOEC_HEADER_CRC, moec_crc32c(0, bytes, MOEC_HEADER_CRC));
}

static void expect_refused(const struct sample_fixture *f, const uint8_t *bytes, size_t n,
                           const char *message)
{
    struct moec_error err = {0};
    struct moec_bundle *bundle = NULL;
    struct moec_dense dense = {0};
    temporary_write(f->folder, "sample.moec", bytes, n);
    enum moec_status status = moec_bundle_open(f->path, &bundle, &err);
    if (status == MOEC_OK)
        status = moec_bundle_load_dense(bundle, &dense, &err);
    assert_true(status != MOEC_OK);
    assert_message(err, message);
    moec_bundle_close(bundle);
}

static void test_bundle_dense__wrong_pieces_are_refused(void **state)
{
    struct sample_fixture *f = *state;
    uint32_t n_run = 0;
    size_t n = 0;
    f->sample.parts.dense_stored_bytes = sum_of_runs(&f->sample.dense, &n_run);
    (void)sample_write(&f->sample, f->path);
    uint8_t *original = temporary_read(f->folder, "sample.moec", &n), *bytes = malloc(n);
    memcpy(bytes, original, n); /* without the flag a piece may not be short */
    moec_put_u32(entry_of(bytes, MOEC_SECTION_DENSE) + 8, MOEC_SECTION_FLAG_COMPRESSED);
    reseal(bytes, MOEC_SECTION_DENSE);
    expect_refused(f, bytes, n, "section 'dense weights'");
    memcpy(bytes, original, n); /* short pieces elsewhere, and of what is not compressed */
    moec_put_u32(entry_of(bytes, MOEC_SECTION_TOKENIZER) + 8,
                 MOEC_SECTION_FLAG_COMPRESSED | MOEC_SECTION_FLAG_CUT);
    reseal(bytes, MOEC_SECTION_TOKENIZER);
    expect_refused(f, bytes, n, "section 'tokenizer'");
    memcpy(bytes, original, n);
    moec_put_u32(entry_of(bytes, MOEC_SECTION_DENSE) + 8, MOEC_SECTION_FLAG_CUT);
    reseal(bytes, MOEC_SECTION_DENSE);
    expect_refused(f, bytes, n, "has flags 2");
    const uint32_t lengths[] = {0, MOEC_PIECE_RAW, MOEC_PIECE_RAW | 0x7fffffffu, 0x7fffffffu};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) { /* pieces of no bytes and of very many */
        memcpy(bytes, original, n);
        moec_put_u32(bytes + moec_get_u64(entry_of(bytes, MOEC_SECTION_DENSE) + 16), lengths[i]);
        reseal(bytes, MOEC_SECTION_DENSE);
        expect_refused(f, bytes, n, "stored bytes for");
    }
    free(bytes);
    free(original);
}

/* The content of the bundle's dense weights, mapped where that is possible. */
static void check_mapped(const struct sample_fixture *f, const uint8_t *wanted, size_t n)
{
    static const struct moec_dense_loading mapped = {.maps = true};
    struct moec_error err = {0};
    struct moec_bundle *bundle = NULL;
    struct moec_dense dense = {0};
    assert_status(moec_bundle_open(f->path, &bundle, &err), MOEC_OK, err);
    assert_status(moec_bundle_open_dense(bundle, &mapped, &dense, &err), MOEC_OK, err);
    assert_int_equal(dense.blob_bytes, n);
    assert_memory_equal(dense.blob, wanted, n);
    moec_dense_release(&dense);
    moec_bundle_close(bundle);
}

static void test_bundle_dense__checksums_beside_plain_weights(void **state)
{
    struct sample_fixture *f = *state;
    struct moec_error err = {0};
    struct moec_bundle_stripped stripped;
    uint32_t n_run = 0;
    size_t n = 0;
    f->sample.parts.dense_stored_bytes = sum_of_runs(&f->sample.dense, &n_run);
    (void)sample_write(&f->sample, f->path);
    assert_status(moec_bundle_unpack(f->path, NULL, 0, f->path, &stripped, &err), MOEC_OK, err);
    assert_status(moec_bundle_verify(f->path, NULL, NULL, &err), MOEC_OK, err);
    uint8_t *original = temporary_read(f->folder, "sample.moec", &n), *bytes = malloc(n);
    const uint8_t *dense = original + moec_get_u64(entry_of(original, MOEC_SECTION_DENSE) + 16);
    const size_t n_dense = moec_get_u64(entry_of(original, MOEC_SECTION_DENSE) + 24);
    const size_t sums = moec_get_u64(entry_of(original, MOEC_SECTION_DENSE_SUMS) + 16);
    assert_int_equal(moec_get_u64(entry_of(original, MOEC_SECTION_DENSE_SUMS) + 24),
                     moec_section_sums_bytes(n_dense));
    check_mapped(f, dense, n_dense);
    const struct {
        size_t at;
        const char *message;
    } wrong[] = {
        {sums, "have version"}, {sums + 5, "one checksum for every 262144"}, {sums + 9, "has CRC32C"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        memcpy(bytes, original, n);
        bytes[wrong[i].at] ^= 2;
        expect_refused(f, bytes, n, "section 'dense sums'"); /* its SHA-256 */
        reseal(bytes, MOEC_SECTION_DENSE_SUMS);
        expect_refused(f, bytes, n, wrong[i].message);
        err = (struct moec_error){0};
        assert_true(moec_bundle_verify(f->path, NULL, NULL, &err) != MOEC_OK);
    }
    memcpy(bytes, original, n); /* too few of them */
    uint8_t *entry = entry_of(bytes, MOEC_SECTION_DENSE_SUMS);
    moec_put_u64(entry + 24, 8);
    moec_put_u64(entry + 32, 8);
    memset(bytes + sums + 8, 0, moec_section_sums_bytes(n_dense) - 8);
    reseal(bytes, MOEC_SECTION_DENSE_SUMS);
    expect_refused(f, bytes, n, "have 8 bytes");
    memcpy(bytes, original, n); /* a writer that did not know them */
    moec_put_u32(entry_of(bytes, MOEC_SECTION_DENSE_SUMS), MOEC_SECTION_ANCILLARY + 99);
    reseal(bytes, MOEC_SECTION_DENSE);
    temporary_write(f->folder, "sample.moec", bytes, n);
    check_mapped(f, dense, n_dense);
    bytes[dense - original + 3] ^= 1;
    expect_refused(f, bytes, n, "SHA-256 does not match");
    free(bytes);
    free(original);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, sample_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_bundle_dense__sizes_are_sums_over_runs),
        CASE(test_bundle_dense__wrong_pieces_are_refused),
        CASE(test_bundle_dense__checksums_beside_plain_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
