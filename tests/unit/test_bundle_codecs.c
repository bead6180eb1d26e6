/* The table of codecs of a bundle: several codecs of one bitwidth, which form the record index takes, and how
 * many codecs a reader accepts. */
#include "tests/unit/temporary.h"

#include "formats/base/bytes.h"
#include "formats/bundle/bundle_format.h"
#include "tests/unit/sample_bundle.h"

#define N_EXPERT 20u

static int set_up(void **state)
{
    struct sample_fixture *f = sample_set_up(N_EXPERT, 40, 3, 5);
    f->sample.n_extra = 0;
    f->sample.mixed = sample_experts(&f->sample);
    for (size_t i = 0; i < SAMPLE_MOE * N_EXPERT; i++)
        f->sample.mixed[i] = moec_variant_uniform(4);
    *state = f;
    return 0;
}

static uint8_t *entry_of(uint8_t *bytes, uint32_t kind, uint32_t level)
{
    uint8_t *entry = bytes + MOEC_BUNDLE_HEADER_BYTES;
    while (moec_get_u32(entry) != kind || moec_get_u32(entry + 4) != level)
        entry += MOEC_BUNDLE_SECTION_BYTES;
    return entry;
}

/* Bytes of one entry of the index of level 0. */
static uint64_t index_entry_bytes(const struct moec_bundle *bundle)
{
    for (uint32_t i = 0; i < moec_bundle_section_count(bundle); i++) {
        const struct moec_bundle_section section = moec_bundle_section_get(bundle, i);
        if (strcmp(section.name, "index of copy 0") == 0)
            return (section.content_bytes - MOEC_INDEX_HEADER_BYTES) / ((uint64_t)SAMPLE_MOE * N_EXPERT);
    }
    fail_msg("no index of copy 0");
    return 0;
}

/* Writes, verifies and opens; every record is there with the codecs that it was given. */
static struct moec_bundle *write_and_open(const struct sample_fixture *f)
{
    const struct sample *s = &f->sample;
    struct moec_error err = {0};
    struct moec_bundle *bundle = NULL;
    const uint64_t predicted = sample_write(&f->sample, f->path);
    assert_status(moec_bundle_verify(f->path, NULL, NULL, &err), MOEC_OK, err);
    assert_status(moec_bundle_open(f->path, &bundle, &err), MOEC_OK, err);
    assert_int_equal(bundle->file.n_bytes, predicted);
    for (uint32_t i = 0; i < SAMPLE_MOE * N_EXPERT; i++) {
        const uint32_t ordinal = i / N_EXPERT, expert = i % N_EXPERT;
        const struct moec_record_layout wanted = moec_record_layout_of(&s->config, s->mixed[i], s->codecs);
        const struct moec_record_layout *got = moec_bundle_layout(bundle, 0, ordinal, expert);
        for (int p = 0; p < MOEC_PROJECTION_COUNT; p++)
            assert_true(moec_codec_equal(got->codecs[p], wanted.codecs[p]));
        uint8_t *expected = malloc(wanted.n_bytes), *read = malloc(wanted.n_bytes);
        sample_record(s, &wanted, 0, ordinal, expert, expected);
        assert_status(
            moec_bundle_read_record(bundle, (struct moec_record_id){0, ordinal, expert}, read, &err), MOEC_OK,
            err);
        assert_memory_equal(read, expected, wanted.n_bytes);
        free(expected);
        free(read);
    }
    return bundle;
}

/* Another codec of a bitwidth in use makes the entries of the index longer; one that has the bitwidth for
 * itself does not, and is then what the reader's table has at that bitwidth. */
static void test_bundle_codecs__form_of_the_index(void **state)
{
    struct sample_fixture *f = *state;
    struct sample *s = &f->sample;
    s->codecs[33] = (struct moec_codec){.dtype = MOEC_DTYPE_INT2, .group = 32};
    s->codecs[40] =
        (struct moec_codec){.dtype = MOEC_DTYPE_INT2, .group = 32, .quantizer = MOEC_QUANTIZER_HQQ};
    s->mixed[1] = moec_variant_uniform(33);
    struct moec_bundle *bundle = write_and_open(f);
    assert_int_equal(index_entry_bytes(bundle), MOEC_INDEX_ENTRY_BYTES);
    assert_true(moec_codec_equal(bundle->codecs[2], s->codecs[33]));
    assert_int_equal(bundle->records[1].variant.codecs[0], 2);
    assert_int_equal(bundle->records[1].bits, 2);
    assert_int_equal(bundle->n_layout, 2);
    moec_bundle_close(bundle);
    s->mixed[7] = moec_variant_uniform(40); /* the same bytes, by another quantizer */
    bundle = write_and_open(f);
    assert_int_equal(index_entry_bytes(bundle), MOEC_INDEX_ENTRY_BYTES);
    assert_int_equal(bundle->n_layout, 2);
    moec_bundle_close(bundle);
    s->mixed[3] = moec_variant_uniform(2);
    bundle = write_and_open(f);
    assert_int_equal(index_entry_bytes(bundle), MOEC_INDEX_MIXED_BYTES);
    assert_true(moec_codec_equal(bundle->codecs[2], s->codecs[33]));
    assert_int_equal(bundle->records[3].variant.codecs[0], MOEC_CODEC_FIRST_OTHER);
    assert_int_equal(bundle->n_layout, 3);
    moec_bundle_close(bundle);
    s->mixed[3] = (struct moec_variant){{33, 2, 4}};
    s->n_extra = 1; /* a level of 2 bits beside it keeps its one codec and the short entries */
    bundle = write_and_open(f);
    assert_int_equal(index_entry_bytes(bundle), MOEC_INDEX_MIXED_BYTES);
    assert_int_equal(bundle->copy_bits[1], 2);
    assert_true(moec_codec_equal(moec_bundle_layout(bundle, 1, 1, 1)->codecs[0], s->codecs[2]));
    moec_bundle_close(bundle);
}

/* Every place of the table is used, and one codec more is refused. */
static void test_bundle_codecs__as_many_as_the_table_holds(void **state)
{
    static const uint8_t dtypes[] = {MOEC_DTYPE_INT2, MOEC_DTYPE_INT3, MOEC_DTYPE_INT4, MOEC_DTYPE_INT8};
    static const uint16_t groups[] = {0, 32, 64, 128};
    struct sample_fixture *f = *state;
    struct sample *s = &f->sample;
    struct moec_error err = {0};
    struct moec_bundle *bundle = NULL;
    uint32_t number = MOEC_CODEC_FIRST_OTHER, at = 0;
    size_t n = 0;
    struct moec_codec left = {0};
    for (uint32_t i = 0; i < 64; i++) {
        const struct moec_codec codec = {
            .dtype = dtypes[i / 16], .scheme = (uint8_t)(i / 4 % 4), .group = groups[i % 4]};
        if (moec_codec_equal(codec, s->codecs[moec_codec_bits(codec)]))
            continue;
        if (number < MOEC_CODEC_TABLE)
            s->codecs[number++] = codec;
        else
            left = codec;
    }
    for (number = 2; number < MOEC_CODEC_TABLE; number++)
        if (s->codecs[number].dtype != MOEC_DTYPE_F32)
            s->mixed[at++] = moec_variant_uniform(number);
    bundle = write_and_open(f);
    for (uint32_t i = 0; i < at; i++)
        assert_int_equal(bundle->records[i].variant.codecs[0], s->mixed[i].codecs[0]);
    assert_int_equal(bundle->n_layout, at);
    moec_bundle_close(bundle);
    uint8_t *bytes = temporary_read(f->folder, "sample.moec", &n);
    uint8_t *section = entry_of(bytes, MOEC_SECTION_RECORD_INDEX, 0);
    uint8_t *index = bytes + moec_get_u64(section + 16);
    uint8_t *codec = index + MOEC_INDEX_HEADER_BYTES + (size_t)at * MOEC_INDEX_MIXED_BYTES + 20;
    codec[0] = left.dtype;
    codec[1] = left.scheme;
    moec_put_u16(codec + 2, left.group);
    moec_sha256(index, moec_get_u64(section + 24), section + 40);
    const uint32_t n_sections = moec_get_u32(bytes + MOEC_HEADER_N_SECTIONS);
    moec_sha256(bytes + MOEC_BUNDLE_HEADER_BYTES, (size_t)n_sections * MOEC_BUNDLE_SECTION_BYTES,
                bytes + MOEC_HEADER_CONTENTS);
    moec_put_u32(bytes + MOEC_HEADER_CRC, moec_crc32c(0, bytes, MOEC_HEADER_CRC));
    temporary_write(f->folder, "sample.moec", bytes, n);
    free(bytes);
    assert_status(moec_bundle_open(f->path, &bundle, &err), MOEC_ERR_FORMAT, err);
    assert_message(err, "has one codec too many");
}

/* A table that no plan can have. */
static void test_bundle_codecs__wrong_tables_are_refused(void **state)
{
    struct sample_fixture *f = *state;
    struct sample *s = &f->sample;
    struct moec_error err = {0};
    struct moec_bundle_plan *plan = NULL;
    s->codecs[5] = s->codecs[4];
    assert_status(moec_bundle_plan_create(&s->parts, &plan, &err), MOEC_ERR_USAGE, err);
    assert_message(err, "codec 5 of the records has 4 bits");
    s->codecs[5] = (struct moec_codec){0};
    s->codecs[63] = (struct moec_codec){.dtype = MOEC_DTYPE_INT4, .group = 7};
    err = (struct moec_error){0};
    assert_status(moec_bundle_plan_create(&s->parts, &plan, &err), MOEC_ERR_FORMAT, err);
    assert_message(err, "codec 63 of the records has groups of 7");
    s->codecs[63] = (struct moec_codec){0};
    err = (struct moec_error){0};
    assert_status(moec_bundle_plan_create(&s->parts, &plan, &err), MOEC_OK, err);
    assert_int_equal(moec_bundle_plan_record_bytes(plan, moec_variant_uniform(50)), 0);
    s->codecs[50] = (struct moec_codec){.dtype = MOEC_DTYPE_INT2, .group = 32};
    assert_status(moec_bundle_plan_set_codecs(plan, s->codecs, &err), MOEC_OK, err);
    const uint64_t n_bytes = moec_bundle_plan_record_bytes(plan, moec_variant_uniform(50));
    assert_true(n_bytes > 0);
    s->codecs[50].group = 7;
    assert_status(moec_bundle_plan_set_codecs(plan, s->codecs, &err), MOEC_ERR_FORMAT, err);
    assert_int_equal(moec_bundle_plan_record_bytes(plan, moec_variant_uniform(50)), n_bytes);
    moec_bundle_plan_free(plan);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, sample_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_bundle_codecs__form_of_the_index),
        CASE(test_bundle_codecs__as_many_as_the_table_holds),
        CASE(test_bundle_codecs__wrong_tables_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
