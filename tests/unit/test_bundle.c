/* Bundles: what is written comes back, sizes are as predicted, every damaged byte is found, nothing crashes.
 */
#include "tests/unit/temporary.h"

#include "tests/unit/sample_bundle.h"

#include "formats/base/bytes.h"
#include "formats/base/memory.h"
#include "formats/bundle/bundle_format.h"
#include "formats/tables/score_shares.h"
#include "runtime/kernels/arithmetic.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>

struct fixture {
    struct sample sample;
    char *folder;
    char *path;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    sample_make(&f->sample, 3, 8, 4, 11);
    f->folder = temporary_folder();
    f->path = temporary_path(f->folder, "sample.moec");
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    sample_release(&f->sample);
    temporary_remove(f->folder);
    free(f->path);
    free(f);
    return 0;
}

/* Opens, loads dense weights and reads every record; the first failure is the answer. */
static enum moec_status read_everything(const char *path, struct moec_error *err)
{
    struct moec_bundle *bundle = NULL;
    struct moec_dense dense = {0};
    MOEC_TRY(moec_bundle_open(path, &bundle, err));
    enum moec_status status = moec_bundle_load_dense(bundle, &dense, err);
    uint32_t n_layer = moec_config_moe_count(&bundle->config);
    for (uint32_t copy = 0; copy < bundle->n_copy && status == MOEC_OK; copy++)
        for (uint32_t i = 0; i < n_layer * bundle->config.n_expert && status == MOEC_OK; i++) {
            uint32_t ordinal = i / bundle->config.n_expert, expert = i % bundle->config.n_expert;
            uint8_t *record = malloc(moec_bundle_record(bundle, copy, ordinal, expert)->n_bytes);
            status =
                moec_bundle_read_record(bundle, (struct moec_record_id){copy, ordinal, expert}, record, err);
            free(record);
        }
    moec_dense_release(&dense);
    moec_bundle_close(bundle);
    return status;
}

static void poke(const char *path, uint64_t offset, uint8_t value)
{
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, &value, 1, (off_t)offset), 1);
    assert_int_equal(close(fd), 0);
}

/* Makes a changed header and contents table pass their checksums. */
static void reseal(uint8_t *bytes)
{
    uint32_t n = moec_get_u32(bytes + MOEC_HEADER_N_SECTIONS);
    moec_sha256(bytes + MOEC_BUNDLE_HEADER_BYTES, (size_t)n * MOEC_BUNDLE_SECTION_BYTES,
                bytes + MOEC_HEADER_CONTENTS);
    moec_put_u32(bytes + MOEC_HEADER_CRC, moec_crc32c(0, bytes, MOEC_HEADER_CRC));
}

static uint8_t *contents_entry(uint8_t *bytes, uint32_t kind, uint32_t level)
{
    for (uint32_t i = 0; i < moec_get_u32(bytes + MOEC_HEADER_N_SECTIONS); i++) {
        uint8_t *entry = bytes + MOEC_BUNDLE_HEADER_BYTES + (size_t)i * MOEC_BUNDLE_SECTION_BYTES;
        if (moec_get_u32(entry) == kind && moec_get_u32(entry + 4) == level)
            return entry;
    }
    fail_msg("no section of kind %u", kind);
    return NULL;
}

/* Makes a changed section pass too. */
static void reseal_section(uint8_t *bytes, uint32_t kind, uint32_t level)
{
    uint8_t *entry = contents_entry(bytes, kind, level);
    moec_sha256(bytes + moec_get_u64(entry + 16), moec_get_u64(entry + 24), entry + 40);
    reseal(bytes);
}

/* ---- certificates ---- */

static void test_certificate__names_its_arithmetic(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        enum moec_arithmetic means;
    } names[] = {{"int8-3", MOEC_ARITHMETIC_INT8},    {"int8-2", MOEC_ARITHMETIC_CANONICAL},
                 {"bf16", MOEC_ARITHMETIC_BF16},      {"canonical-f32", MOEC_ARITHMETIC_CANONICAL},
                 {"int8", MOEC_ARITHMETIC_CANONICAL}, {"bf16-other", MOEC_ARITHMETIC_CANONICAL},
                 {"", MOEC_ARITHMETIC_CANONICAL}};
    uint8_t bytes[MOEC_CERTIFICATE_BYTES];
    struct moec_error err = {0};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct moec_certificate written = {.present = true, .is_chance = i % 2 == 1}, read = {0};
        (void)snprintf(written.arithmetic, sizeof written.arithmetic, "%s", names[i].name);
        assert_status(moec_certificate_encode(&written, bytes, &err), MOEC_OK, err);
        assert_status(moec_certificate_decode(bytes, sizeof bytes, &read, &err), MOEC_OK, err);
        assert_string_equal(read.arithmetic, names[i].name);
        assert_int_equal(read.is_chance, i % 2 == 1);
        assert_int_equal(moec_arithmetic_certified(&read), names[i].means);
        read.present = false;
        assert_int_equal(moec_arithmetic_certified(&read), MOEC_ARITHMETIC_CANONICAL);
    }
}

/* ---- writing and reading ---- */

static void check_parts(const struct sample *s, const struct moec_bundle *bundle)
{
    const struct moec_certificate *certificate = &bundle->certificate;
    size_t n = (size_t)SAMPLE_MOE * s->config.n_expert;
    assert_memory_equal(&bundle->config, &s->config, sizeof s->config);
    assert_memory_equal(&bundle->generation, &s->generation, sizeof s->generation);
    assert_int_equal(bundle->alignment, 64);
    assert_int_equal(bundle->tokenizer->n_tokens, 3);
    assert_int_equal(bundle->paths.n_key, s->paths.n_key);
    assert_memory_equal(bundle->paths.keys, s->paths.keys, s->paths.n_key * sizeof *s->paths.keys);
    assert_memory_equal(bundle->paths.values, s->paths.values,
                        s->paths.n_key * s->paths.n_value * sizeof *s->paths.values);
    assert_memory_equal(bundle->paths.frequency, s->paths.frequency, n * sizeof *s->paths.frequency);
    assert_memory_equal(bundle->routing.activations, s->routing.activations,
                        n * sizeof *s->routing.activations);
    assert_memory_equal(bundle->routing.mean_gate_weight, s->routing.mean_gate_weight, n * sizeof(double));
    assert_memory_equal(&bundle->provenance, &s->provenance, sizeof s->provenance);
    assert_true(certificate->present && !certificate->missed);
    assert_string_equal(certificate->metric, "perplexity");
    assert_true(certificate->loss == s->certificate.loss && certificate->mean_kl == s->certificate.mean_kl);
    assert_int_equal(certificate->n_token, 4000);
    assert_string_equal(certificate->data_name, "sample.txt");
    assert_string_equal(certificate->arithmetic, "canonical");
    assert_int_equal(certificate->n_sequence, 3);
    assert_memory_equal(certificate->part_digest, s->certificate.part_digest, MOEC_SHA256_BYTES);
    for (size_t i = 0; i < 3; i++) {
        const struct moec_sequence_step *step = &certificate->sequence[i],
                                        *written = &s->certificate.sequence[i];
        const double got[] = {step->search_loss, step->search_high, step->loss,   step->low,
                              step->high,        step->kl,          step->p_value};
        const double expected[] = {written->search_loss, written->search_high, written->loss,   written->low,
                                   written->high,        written->kl,          written->p_value};
        for (size_t j = 0; j < sizeof got / sizeof *got; j++)
            assert_true(got[j] == expected[j] || (isnan(got[j]) && isnan(expected[j])));
        assert_true(step->n_bytes == written->n_bytes && step->result == written->result);
        assert_true(step->is_chosen == written->is_chosen);
    }
}

static void check_dense(const struct sample *s, const struct moec_bundle *bundle)
{
    struct moec_error err = {0};
    struct moec_dense dense = {0};
    assert_int_equal(moec_bundle_dense_bytes(bundle), s->dense.blob_bytes);
    assert_status(moec_bundle_load_dense(bundle, &dense, &err), MOEC_OK, err);
    assert_int_equal(dense.n_entries, s->dense.n_entries);
    assert_memory_equal(dense.entries, s->dense.entries, dense.n_entries * sizeof *dense.entries);
    assert_memory_equal(dense.blob, s->dense.blob, dense.blob_bytes);
    moec_dense_release(&dense);
}

static void check_records(const struct sample *s, const struct moec_bundle *bundle)
{
    struct moec_error err = {0};
    assert_int_equal(bundle->n_copy, 1 + s->n_extra);
    for (uint32_t copy = 0; copy < bundle->n_copy; copy++)
        for (uint32_t i = 0; i < SAMPLE_MOE * s->config.n_expert; i++) {
            uint32_t ordinal = i / s->config.n_expert, expert = i % s->config.n_expert;
            const struct moec_record_entry *entry = moec_bundle_record(bundle, copy, ordinal, expert);
            const struct moec_variant variant =
                copy == 0 ? sample_variant(s, i) : moec_variant_uniform(s->copy_bits[copy - 1]);
            struct moec_record_layout layout = moec_record_layout_of(&s->config, variant, s->codecs);
            uint32_t widest = 0;
            const struct moec_record_layout *bound = moec_bundle_layout(bundle, copy, ordinal, expert);
            for (int p = 0; p < MOEC_PROJECTION_COUNT; p++) {
                const uint32_t bits = moec_codec_bits(s->codecs[variant.codecs[p]]);
                widest = bits > widest ? bits : widest;
                assert_true(
                    moec_codec_equal(bundle->codecs[entry->variant.codecs[p]], s->codecs[variant.codecs[p]]));
            }
            assert_int_equal(entry->bits, widest);
            for (int p = 0; p < MOEC_PROJECTION_COUNT; p++)
                assert_true(moec_codec_equal(bound->codecs[p], layout.codecs[p]));
            assert_int_equal(bound->n_bytes, layout.n_bytes);
            assert_int_equal(entry->n_bytes, layout.n_bytes);
            assert_int_equal(entry->offset % bundle->alignment, 0);
            uint8_t *expected = malloc(entry->n_bytes), *got = malloc(entry->n_bytes);
            sample_record(s, &layout, copy, ordinal, expert, expected);
            assert_status(
                moec_bundle_read_record(bundle, (struct moec_record_id){copy, ordinal, expert}, got, &err),
                MOEC_OK, err);
            assert_memory_equal(got, expected, entry->n_bytes);
            free(expected);
            free(got);
        }
}

static void test_bundle__round_trip(void **state)
{
    struct fixture *f = *state;
    struct moec_error err = {0};
    struct moec_bundle *bundle = NULL;
    struct moec_chat_source chat = {0};
    static const float ranges[SAMPLE_MOE] = {1.5f};
    float spread[MOEC_SCORE_COUNT];
    for (size_t i = 0; i < MOEC_SCORE_COUNT; i++)
        spread[i] = i < 60 ? 0 : i < MOEC_SCORE_STEPS ? 0.5f : 1;
    assert_status(moec_chat_source_add(&chat, "template", "{{ x }}", 7, &err), MOEC_OK, err);
    f->sample.parts.chat = &chat; /* so that every section that there can be is in one bundle */
    f->sample.parts.router_ranges = ranges;
    f->sample.parts.expert_scores = spread;
    uint64_t predicted = sample_write(&f->sample, f->path);
    assert_int_equal(temporary_count(f->folder), 1);
    assert_status(moec_bundle_open(f->path, &bundle, &err), MOEC_OK, err);
    assert_int_equal(bundle->file.n_bytes, predicted);
    check_parts(&f->sample, bundle);
    check_dense(&f->sample, bundle);
    check_records(&f->sample, bundle);
    assert_memory_equal(bundle->paths.ranges, ranges, sizeof ranges);
    assert_memory_equal(bundle->paths.scores, spread, sizeof spread);
    assert_false(moec_generation_is_default(&bundle->generation));
    f->sample.parts.chat = NULL;
    f->sample.parts.router_ranges = NULL;
    f->sample.parts.expert_scores = NULL;
    moec_chat_source_release(&chat);
    assert_int_equal(bundle->copy_bits[0], 0);
    assert_int_equal(bundle->copy_bits[1], 2);
    assert_int_equal(bundle->copy_bits[2], 8);
    moec_bundle_close(bundle);
    assert_status(moec_bundle_verify(f->path, NULL, NULL, &err), MOEC_OK, err);
}

/* Padding to 4096 is 1 % of a record of 204,800 bytes: 2 bits of 819,200 weights, without their scales. Below that,
 * padding of a record at 2 bits is at most .5 % of it. */
static void test_bundle__small_experts_stand_closer(void **state)
{
    (void)state;
    struct moec_config config = {.n_embd = 1024, .n_ff_expert = 256};
    assert_int_equal(moec_bundle_choose_alignment(&config), 512); /* 198,144 bytes, padded by none */
    config.n_ff_expert = 264; /* 3 x 264 rows of 256 + 2 bytes are 204,336, padded by 464 */
    assert_int_equal(moec_bundle_choose_alignment(&config), 512);
    config.n_ff_expert = 265;
    assert_int_equal(moec_bundle_choose_alignment(&config), MOEC_BUNDLE_ALIGNMENT);
    config.mlp.plain = true; /* two matrices */
    assert_int_equal(moec_bundle_choose_alignment(&config), 512);
    static const struct {
        uint32_t n_embd, n_ff, alignment;
    } cases[] = {
        {256, 128, 256}, /* 25,344 bytes: 512 would pad 256, which is 1 % */
        {128, 96, 64},   /* 9,792 bytes: 128 would pad 64, .65 % */
        {256, 126, 128}, /* 24,948 bytes: 256 would pad 140, .56 % */
        {16, 4, 64},     /* 72 bytes: padded by 56 whatever the alignment */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct moec_config small = {.n_embd = cases[i].n_embd, .n_ff_expert = cases[i].n_ff};
        assert_int_equal(moec_bundle_choose_alignment(&small), cases[i].alignment);
        assert_int_equal(moec_bundle_slot_bytes(&small, 9793), 10240); /* blocks of a device have 512 bytes */
    }
    config = (struct moec_config){.n_embd = 1024, .n_ff_expert = 265};
    assert_int_equal(moec_bundle_slot_bytes(&config, 4097), 8192);
}

/* Random models with and without optional parts, at several alignments: the size is always as predicted. */
static void test_bundle__random_models(void **state)
{
    struct fixture *f = *state;
    uint64_t random = 99;
    for (int round = 0; round < 30; round++) {
        struct sample s;
        struct moec_error err = {0};
        struct moec_bundle *bundle = NULL;
        sample_make(&s, 2 + random_u32(&random) % 6, 2 + random_u32(&random) % 70,
                    1 + random_u32(&random) % 40, random_u32(&random));
        s.parts.alignment = 64u << random_u32(&random) % 8;
        s.n_extra = random_u32(&random) % 3;
        if (random_u32(&random) % 2 == 0)
            s.parts.tokenizer = NULL;
        if (random_u32(&random) % 2 == 0)
            s.parts.generation = NULL;
        if (random_u32(&random) % 2 == 0)
            s.parts.paths = NULL;
        if (random_u32(&random) % 2 == 0)
            s.parts.routing = NULL;
        s.parts.has_sequence = random_u32(&random) % 2 == 0; /* as in older bundles */
        if (random_u32(&random) % 2 == 0)
            s.certificate.present = false;
        uint64_t predicted = sample_write(&s, f->path);
        assert_status(moec_bundle_verify(f->path, NULL, NULL, &err), MOEC_OK, err);
        assert_status(moec_bundle_open(f->path, &bundle, &err), MOEC_OK, err);
        assert_int_equal(bundle->file.n_bytes, predicted);
        assert_int_equal(bundle->alignment, s.parts.alignment);
        assert_true((bundle->tokenizer != NULL) == (s.parts.tokenizer != NULL));
        assert_true(moec_generation_is_default(&bundle->generation) == (s.parts.generation == NULL));
        assert_true((bundle->paths.n_layer > 0) == (s.parts.paths != NULL));
        assert_true((bundle->routing.activations != NULL) == (s.parts.routing != NULL));
        assert_true(bundle->certificate.present == s.certificate.present);
        assert_int_equal(bundle->certificate.n_sequence,
                         s.parts.has_sequence && s.certificate.present ? s.certificate.n_sequence : 0);
        check_dense(&s, bundle);
        check_records(&s, bundle);
        moec_bundle_close(bundle);
        sample_release(&s);
    }
}

/* Dense weights of several pieces, and pieces that compression does not shrink. */
static void test_bundle__many_pieces(void **state)
{
    struct fixture *f = *state;
    struct sample s;
    struct moec_error err = {0};
    struct moec_bundle *bundle = NULL;
    sample_make(&s, 2, 1024, 160, 5);
    assert_true(s.dense.blob_bytes > 2 * MOEC_PIECE_BYTES);
    uint64_t predicted = sample_write(&s, f->path);
    assert_status(moec_bundle_open(f->path, &bundle, &err), MOEC_OK, err);
    assert_int_equal(bundle->file.n_bytes, predicted);
    check_dense(&s, bundle);
    moec_bundle_close(bundle);
    assert_status(moec_bundle_verify(f->path, NULL, NULL, &err), MOEC_OK, err);
    sample_release(&s);
}

static void test_bundle__same_bytes_twice(void **state)
{
    struct fixture *f = *state;
    struct sample again;
    size_t n_first = 0, n_second = 0;
    char *second_path = temporary_path(f->folder, "second.moec");
    sample_make(&again, 3, 8, 4, 11);
    (void)sample_write(&f->sample, f->path);
    (void)sample_write(&again, second_path);
    uint8_t *first = temporary_read(f->folder, "sample.moec", &n_first);
    uint8_t *second = temporary_read(f->folder, "second.moec", &n_second);
    assert_int_equal(n_first, n_second);
    assert_memory_equal(first, second, n_first);
    free(first);
    free(second);
    free(second_path);
    sample_release(&again);
}

static void test_bundle__sections(void **state)
{
    struct fixture *f = *state;
    struct moec_error err = {0};
    struct moec_bundle *bundle = NULL;
    bool seen = false;
    (void)sample_write(&f->sample, f->path);
    assert_status(moec_bundle_open(f->path, &bundle, &err), MOEC_OK, err);
    assert_int_equal(moec_bundle_section_count(bundle), 16);
    for (uint32_t i = 0; i < moec_bundle_section_count(bundle); i++) {
        struct moec_bundle_section section = moec_bundle_section_get(bundle, i);
        seen = seen || strcmp(section.name, "records of copy 2") == 0;
        assert_true(section.is_compressed || section.stored_bytes == section.content_bytes);
    }
    assert_true(seen);
    moec_bundle_close(bundle);
}

/* ---- the writer refuses ---- */

static void test_bundle__writer_refuses(void **state)
{
    struct fixture *f = *state;
    struct sample *s = &f->sample;
    struct moec_error err = {0};
    struct moec_bundle_plan *plan = NULL;
    struct moec_bundle_writer *writer = NULL;
    struct moec_bundle_next next;
    uint64_t n_bytes = 0;
    s->parts.alignment = 100;
    assert_status(moec_bundle_plan_create(&s->parts, &plan, &err), MOEC_ERR_USAGE, err);
    assert_message(err, "alignment 100");
    s->parts.alignment = 64;
    s->codecs[3] = (struct moec_codec){0};
    err = (struct moec_error){0};
    assert_status(moec_bundle_plan_create(&s->parts, &plan, &err), MOEC_OK, err);
    memset(s->assignment, 4, SAMPLE_MOE * s->config.n_expert);
    struct moec_variant *experts = sample_experts(s);
    experts[4].codecs[MOEC_PROJECTION_UP] = 3;
    assert_int_equal(moec_bundle_plan_record_bytes(plan, moec_variant_uniform(3)), 0);
    assert_int_equal(moec_bundle_plan_record_bytes(plan, moec_variant_uniform(99)), 0);
    assert_int_equal(moec_bundle_plan_record_bytes(plan, experts[4]), 0);
    assert_status(
        moec_bundle_plan_bytes(plan, &(struct moec_bundle_assignment){.experts = experts}, &n_bytes, &err),
        MOEC_ERR_USAGE, err);
    assert_message(err,
                   "layer 2 expert 1 uses codecs 4, 3 and 4 (gate, up, down), but not all of them exist");
    experts[4] = moec_variant_uniform(2);
    err = (struct moec_error){0};
    assert_status(moec_bundle_writer_open(plan, f->path, &(struct moec_bundle_assignment){.experts = experts},
                                          &writer, &err),
                  MOEC_OK, err);
    free(experts);
    assert_true(moec_bundle_writer_next(writer, &next));
    uint8_t *record = calloc(1, next.layout.n_bytes);
    assert_status(moec_bundle_writer_append(writer, record, next.layout.n_bytes - 1, &err), MOEC_ERR_USAGE,
                  err);
    err = (struct moec_error){0};
    memset(record, 0xff, next.layout.n_bytes); /* scales of 0xffff are not numbers */
    assert_status(moec_bundle_writer_append(writer, record, next.layout.n_bytes, &err), MOEC_ERR_FORMAT, err);
    err = (struct moec_error){0};
    assert_status(moec_bundle_writer_commit(writer, &s->provenance, NULL, &err), MOEC_ERR_USAGE, err);
    assert_message(err, "the record of layer 0 expert 0");
    assert_int_equal(temporary_count(f->folder), 0);
    free(record);
    moec_bundle_plan_free(plan);
}

/* Projections of an expert at bits of their own: every mixture, beside experts that are stored as ever. */
static void test_bundle__projections_differ(void **state)
{
    static const uint8_t widths[] = {2, 3, 4, 8, 16};
    struct fixture *f = *state;
    struct sample *s = &f->sample;
    struct moec_error err = {0};
    struct moec_bundle *bundle = NULL;
    const size_t n = (size_t)SAMPLE_MOE * s->config.n_expert, n_variant = 125;
    s->mixed = sample_experts(s);
    for (size_t round = 0; round < n_variant; round += n - 1) {
        for (size_t i = 1; i < n; i++) {
            const size_t at = (round + i) % n_variant;
            s->mixed[i] = (struct moec_variant){{widths[at / 25], widths[at / 5 % 5], widths[at % 5]}};
        }
        const uint64_t predicted = sample_write(s, f->path);
        err = (struct moec_error){0};
        assert_status(moec_bundle_verify(f->path, NULL, NULL, &err), MOEC_OK, err);
        assert_status(moec_bundle_open(f->path, &bundle, &err), MOEC_OK, err);
        assert_int_equal(bundle->file.n_bytes, predicted);
        check_records(s, bundle);
        check_dense(s, bundle);
        moec_bundle_close(bundle);
    }
}

/* A disk that fills up at any point leaves no file. */
static void test_bundle__disk_full(void **state)
{
    struct fixture *f = *state;
    struct sample *s = &f->sample;
    struct moec_error err = {0};
    struct moec_bundle_plan *plan = NULL;
    struct rlimit old, small;
    uint64_t total = 0;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_status(moec_bundle_plan_create(&s->parts, &plan, &err), MOEC_OK, err);
    struct moec_variant *experts = sample_experts(s);
    assert_status(moec_bundle_plan_bytes(plan,
                                         &(struct moec_bundle_assignment){.experts = experts,
                                                                          .copy_bits = s->copy_bits,
                                                                          .n_extra = s->n_extra},
                                         &total, &err),
                  MOEC_OK, err);
    for (uint64_t room = 0; room < total; room += 509) {
        struct moec_bundle_writer *writer = NULL;
        struct moec_bundle_next next;
        small = (struct rlimit){.rlim_cur = room, .rlim_max = old.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        err = (struct moec_error){0};
        enum moec_status status =
            moec_bundle_writer_open(plan, f->path,
                                    &(struct moec_bundle_assignment){
                                        .experts = experts, .copy_bits = s->copy_bits, .n_extra = s->n_extra},
                                    &writer, &err);
        while (status == MOEC_OK && moec_bundle_writer_next(writer, &next)) {
            uint8_t *record = malloc(next.layout.n_bytes);
            sample_record(s, &next.layout, next.copy, next.ordinal, next.expert, record);
            status = moec_bundle_writer_append(writer, record, next.layout.n_bytes, &err);
            free(record);
        }
        moec_bundle_writer_abort(writer);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_status(status, MOEC_ERR_IO, err);
        assert_message(err, "sample.moec");
        assert_int_equal(temporary_count(f->folder), 0);
    }
    (void)signal(SIGXFSZ, SIG_DFL);
    free(experts);
    moec_bundle_plan_free(plan);
}

/* ---- damage ---- */

struct damage {
    int count;
    char place[128];
    uint64_t offset;
    uint64_t n_bytes;
};

static void note_damage(void *context, const char *place, uint64_t offset, uint64_t n_bytes)
{
    struct damage *damage = context;
    if (damage->count++ == 0) {
        (void)snprintf(damage->place, sizeof damage->place, "%s", place);
        damage->offset = offset;
        damage->n_bytes = n_bytes;
    }
}

/* True when nothing but padding stands at this offset. */
static bool is_padding(const struct moec_bundle *bundle, uint64_t offset)
{
    uint32_t n = moec_bundle_section_count(bundle);
    if (offset < MOEC_BUNDLE_HEADER_BYTES + (uint64_t)n * MOEC_BUNDLE_SECTION_BYTES)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        struct moec_bundle_section section = moec_bundle_section_get(bundle, i);
        if (offset < section.offset || offset - section.offset >= section.stored_bytes)
            continue;
        if (strncmp(section.name, "records", 7) != 0)
            return false;
        size_t n_records = (size_t)bundle->n_copy * SAMPLE_MOE * bundle->config.n_expert;
        for (size_t r = 0; r < n_records; r++)
            if (offset >= bundle->records[r].offset &&
                offset - bundle->records[r].offset < bundle->records[r].n_bytes)
                return false;
    }
    return true;
}

static void test_bundle__every_flipped_byte_is_found(void **state)
{
    struct fixture *f = *state;
    struct moec_error err = {0};
    struct moec_bundle *bundle = NULL;
    size_t n = 0;
    uint32_t n_padding = 0;
    (void)sample_write(&f->sample, f->path);
    assert_status(moec_bundle_open(f->path, &bundle, &err), MOEC_OK, err);
    uint8_t *bytes = temporary_read(f->folder, "sample.moec", &n);
    for (size_t i = 0; i < n; i++) {
        struct damage damage = {0};
        uint32_t flips = i % 2 == 0 ? 1u << (i / 2 % 8) : 0xffu;
        poke(f->path, i, (uint8_t)(bytes[i] ^ flips));
        err = (struct moec_error){0};
        if (moec_bundle_verify(f->path, note_damage, &damage, &err) != MOEC_ERR_CHECKSUM)
            fail_msg("verify did not find byte %zu: '%s'", i, err.message);
        assert_true(damage.count >= 1);
        if (i < damage.offset || i - damage.offset >= damage.n_bytes)
            fail_msg("byte %zu was reported as %s, %zu bytes at %zu", i, damage.place, (size_t)damage.n_bytes,
                     (size_t)damage.offset);
        err = (struct moec_error){0};
        bool refused = read_everything(f->path, &err) != MOEC_OK;
        if (refused == is_padding(bundle, i))
            fail_msg("byte %zu (%s): reading says '%s'", i, damage.place, err.message);
        n_padding += !refused;
        poke(f->path, i, bytes[i]);
    }
    assert_true(n_padding > 0);
    free(bytes);
    moec_bundle_close(bundle);
}

static void test_bundle__damaged_record_is_named(void **state)
{
    struct fixture *f = *state;
    struct moec_error err = {0};
    struct moec_bundle *bundle = NULL;
    struct damage damage = {0};
    uint8_t buffer[4096];
    (void)sample_write(&f->sample, f->path);
    assert_status(moec_bundle_open(f->path, &bundle, &err), MOEC_OK, err);
    const struct moec_record_entry *entry = moec_bundle_record(bundle, 1, 1, 2);
    assert_status(moec_file_read(&bundle->file, entry->offset, buffer, entry->n_bytes, &err), MOEC_OK, err);
    poke(f->path, entry->offset + 3, buffer[3] ^ 64u);
    assert_status(moec_bundle_read_record(bundle, (struct moec_record_id){1, 1, 2}, buffer, &err),
                  MOEC_ERR_CHECKSUM, err);
    assert_message(err, "record of layer 2 expert 2 (copy 1)");
    err = (struct moec_error){0};
    assert_status(moec_bundle_verify(f->path, note_damage, &damage, &err), MOEC_ERR_CHECKSUM, err);
    assert_int_equal(damage.count, 1);
    assert_string_equal(damage.place, "record of layer 2 expert 2 (copy 1)");
    moec_bundle_close(bundle);
}

static void test_bundle__truncated_at_every_length(void **state)
{
    struct fixture *f = *state;
    struct moec_error err = {0};
    size_t n = 0;
    (void)sample_write(&f->sample, f->path);
    uint8_t *bytes = temporary_read(f->folder, "sample.moec", &n);
    for (size_t length = n; length-- > 0;) {
        assert_int_equal(truncate(f->path, (off_t)length), 0);
        err = (struct moec_error){0};
        assert_true(read_everything(f->path, &err) != MOEC_OK);
        err = (struct moec_error){0};
        assert_status(moec_bundle_verify(f->path, NULL, NULL, &err), MOEC_ERR_CHECKSUM, err);
    }
    temporary_write(f->folder, "sample.moec", bytes, n + 1); /* one byte too many */
    err = (struct moec_error){0};
    assert_status(read_everything(f->path, &err), MOEC_ERR_CHECKSUM, err);
    assert_message(err, "bytes after its end");
    free(bytes);
}

/* ---- hostile files: checksums are right, contents are not ---- */

/* Writes the bytes, expects opening or reading to fail with a message, and verify to fail too. */
static void expect_refused(struct fixture *f, const uint8_t *bytes, size_t n, const char *message)
{
    struct moec_error err = {0};
    temporary_write(f->folder, "sample.moec", bytes, n);
    if (read_everything(f->path, &err) == MOEC_OK)
        fail_msg("a bundle was read that should say '%s'", message);
    assert_message(err, message);
    err = (struct moec_error){0};
    if (moec_bundle_verify(f->path, NULL, NULL, &err) == MOEC_OK)
        fail_msg("verify passed a bundle that should say '%s'", message);
}

static void test_bundle__unknown_version_is_refused(void **state)
{
    struct fixture *f = *state;
    struct moec_error err = {0};
    struct moec_bundle *bundle = NULL;
    size_t n = 0;
    (void)sample_write(&f->sample, f->path);
    uint8_t *bytes = temporary_read(f->folder, "sample.moec", &n);
    moec_put_u32(bytes + MOEC_HEADER_VERSION, 2);
    reseal(bytes);
    temporary_write(f->folder, "sample.moec", bytes, n);
    assert_status(moec_bundle_open(f->path, &bundle, &err), MOEC_ERR_UNSUPPORTED, err);
    assert_message(err, "has version 2, this moec reads version 1");
    err = (struct moec_error){0};
    assert_status(moec_bundle_verify(f->path, NULL, NULL, &err), MOEC_ERR_UNSUPPORTED, err);
    free(bytes);
}

static void test_bundle__absurd_headers_are_refused(void **state)
{
    static const struct {
        uint32_t offset;
        uint32_t value;
        const char *message;
    } cases[] = {{MOEC_HEADER_ALIGNMENT, 0, "alignment 0"},
                 {MOEC_HEADER_ALIGNMENT, 96, "alignment 96"},
                 {MOEC_HEADER_ALIGNMENT, 1u << 21, "alignment 2097152"},
                 {MOEC_HEADER_N_SECTIONS, 0, "0 sections"},
                 {MOEC_HEADER_N_SECTIONS, 1000000, "1000000 sections"},
                 {MOEC_HEADER_N_SECTIONS + 4, 1, "reserved"},
                 {MOEC_HEADER_RESERVED, 1, "reserved"},
                 {MOEC_HEADER_FILE_BYTES + 4, 7, "is truncated"}};
    struct fixture *f = *state;
    size_t n = 0;
    (void)sample_write(&f->sample, f->path);
    uint8_t *original = temporary_read(f->folder, "sample.moec", &n);
    uint8_t *bytes = malloc(n);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memcpy(bytes, original, n);
        moec_put_u32(bytes + cases[i].offset, cases[i].value);
        if (cases[i].offset == MOEC_HEADER_N_SECTIONS && cases[i].value > MOEC_BUNDLE_MAX_SECTIONS)
            moec_put_u32(bytes + MOEC_HEADER_CRC, moec_crc32c(0, bytes, MOEC_HEADER_CRC));
        else
            reseal(bytes);
        expect_refused(f, bytes, n, cases[i].message);
    }
    free(bytes);
    free(original);
}

static void test_bundle__absurd_sections_are_refused(void **state)
{
    static const struct {
        uint32_t kind, level, offset; /* entry and field */
        uint64_t value;
        const char *message;
    } cases[] = {
        {MOEC_SECTION_DENSE, 0, 16, 64, "is at offset 64"}, /* over the header */
        {MOEC_SECTION_DENSE, 0, 16, UINT64_MAX - 63, "is at offset"},
        {MOEC_SECTION_RECORDS, 1, 24, UINT64_MAX, "is at offset"},
        {MOEC_SECTION_RECORDS, 2, 24, 0, "0 stored bytes"},
        {MOEC_SECTION_DENSE, 0, 32, 1ull << 60, "stored bytes for 1152921504606846976"},
        {MOEC_SECTION_TOKENIZER, 0, 32, 1ull << 19, "section 'tokenizer' holds 184 bytes when decompressed"},
        {MOEC_SECTION_CONFIG, 0, 72, 1, "reserved"}};
    struct fixture *f = *state;
    size_t n = 0;
    (void)sample_write(&f->sample, f->path);
    uint8_t *original = temporary_read(f->folder, "sample.moec", &n);
    uint8_t *bytes = malloc(n);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memcpy(bytes, original, n);
        moec_put_u64(contents_entry(bytes, cases[i].kind, cases[i].level) + cases[i].offset, cases[i].value);
        reseal(bytes);
        expect_refused(f, bytes, n, cases[i].message);
    }
    memcpy(bytes, original, n); /* overlapping sections */
    moec_put_u64(contents_entry(bytes, MOEC_SECTION_RECORDS, 1) + 16,
                 moec_get_u64(contents_entry(bytes, MOEC_SECTION_RECORDS, 0) + 16));
    reseal(bytes);
    expect_refused(f, bytes, n, "'records of copy 1'");
    memcpy(bytes, original, n); /* a kind that this version does not know */
    moec_put_u32(contents_entry(bytes, MOEC_SECTION_PATHS, 0), 77);
    reseal(bytes);
    expect_refused(f, bytes, n, "unknown kind 77");
    memcpy(bytes, original, n); /* the same section twice */
    moec_put_u32(contents_entry(bytes, MOEC_SECTION_ROUTING, 0), MOEC_SECTION_PATHS);
    reseal(bytes);
    expect_refused(f, bytes, n, "two sections named 'paths'");
    memcpy(bytes, original, n); /* a precision copy without its index */
    moec_put_u32(contents_entry(bytes, MOEC_SECTION_RECORD_INDEX, 1), MOEC_SECTION_ANCILLARY);
    reseal(bytes);
    expect_refused(f, bytes, n, "2 record indices and 3 sections of records");
    free(bytes);
    free(original);
}

static void test_bundle__absurd_indices_are_refused(void **state)
{
    static const struct {
        uint32_t offset; /* in the index of copy 1 */
        uint32_t value;
        const char *message;
    } cases[] = {{0, 3, "3 layers"},
                 {4, 1u << 30, "experts, expected 2 layers of 3 experts"},
                 {8, 4, "has 2 bits, expected 4"},
                 {8, 0, "states 0 bits"},
                 {8, 1000, "1000 bits"},
                 {12, 1, "record index has"}, /* entries of a codec for each projection are longer */
                 {12, 2, "has entries of unknown form 2, expected 0"},
                 {16, 32, "is at offset 32"},
                 {16 + 24, 0, "is at offset 0"},
                 {16 + 4, 1, "is at offset 4294967296"},
                 {16 + 8, 0, "has 0 bytes"},
                 {16 + 8, UINT32_MAX, "has 4294967295 bytes"},
                 {16 + 16, 99, "unknown codec dtype 99"},
                 {16 + 16, 0, "has 32 bits"},
                 {16 + 20, 1, "reserved"}};
    struct fixture *f = *state;
    size_t n = 0;
    (void)sample_write(&f->sample, f->path);
    uint8_t *original = temporary_read(f->folder, "sample.moec", &n);
    uint8_t *bytes = malloc(n);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memcpy(bytes, original, n);
        uint64_t at = moec_get_u64(contents_entry(bytes, MOEC_SECTION_RECORD_INDEX, 1) + 16);
        moec_put_u32(bytes + at + cases[i].offset, cases[i].value);
        reseal_section(bytes, MOEC_SECTION_RECORD_INDEX, 1);
        expect_refused(f, bytes, n, cases[i].message);
    }
    free(bytes);
    free(original);
}

static void test_bundle__wrong_statements_are_refused(void **state)
{
    static const struct {
        uint32_t kind, offset;
        uint8_t value;
        const char *message;
    } cases[] = {
        {MOEC_SECTION_CERTIFICATE, 0, 2, "flags 2"},
        {MOEC_SECTION_CERTIFICATE, 0, 0, "absent certificate"},
        {MOEC_SECTION_CERTIFICATE, 2, 2, "flags 1, 0 and 2"},
        {MOEC_SECTION_CERTIFICATE, 3, 1, "reserved"},
        {MOEC_SECTION_CERTIFICATE, 8, 0x1b, "control character 0x1b"},
        {MOEC_SECTION_CERTIFICATE, 39, 'x', "bytes after its end"},
        {MOEC_SECTION_SEQUENCE, 0, 9, "the certificate's sequence of plans has 9 plans, expected at most 8"},
        {MOEC_SECTION_SEQUENCE, 0, 2, "reserved"},
        {MOEC_SECTION_SEQUENCE, 7, 1, "reserved"},
        {MOEC_SECTION_SEQUENCE, 40 + 64, 3, "plan 0 in the certificate's sequence of plans has result 3"},
        {MOEC_SECTION_SEQUENCE, 40 + 65, 2, "plan 0 in the certificate's sequence of plans has flag 2"},
        {MOEC_SECTION_SEQUENCE, 40 + 71, 1, "reserved"},
        /* Plans that passed, passed and were not tested; the bundle has the second. */
        {MOEC_SECTION_SEQUENCE, 40 + 64, 2,
         "plan 1 in the certificate's sequence of plans was tested although plan 0 did not pass: such a test "
         "proves nothing"},
        {MOEC_SECTION_SEQUENCE, 40 + 64, 0,
         "plan 1 in the certificate's sequence of plans was tested although plan 0 did not"},
        {MOEC_SECTION_SEQUENCE, 40 + 72 + 64, 2,
         "plan 1 in the certificate's sequence of plans is marked as the bundle's plan, but did not pass"},
        {MOEC_SECTION_SEQUENCE, 40 + 144 + 65, 1,
         "plan 2 in the certificate's sequence of plans is marked as the bundle's plan, but did not pass"},
        {MOEC_SECTION_PROVENANCE, 33, 7, "control character 0x07"}};
    struct fixture *f = *state;
    size_t n = 0;
    (void)sample_write(&f->sample, f->path);
    uint8_t *original = temporary_read(f->folder, "sample.moec", &n);
    uint8_t *bytes = malloc(n);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memcpy(bytes, original, n);
        bytes[moec_get_u64(contents_entry(bytes, cases[i].kind, 0) + 16) + cases[i].offset] = cases[i].value;
        reseal_section(bytes, cases[i].kind, 0);
        expect_refused(f, bytes, n, cases[i].message);
    }
    memcpy(bytes, original, n);
    moec_put_f64(bytes + moec_get_u64(contents_entry(bytes, MOEC_SECTION_CERTIFICATE, 0) + 16) + 56,
                 (double)INFINITY);
    reseal_section(bytes, MOEC_SECTION_CERTIFICATE, 0);
    expect_refused(f, bytes, n, "number 2 of the certificate is NaN or infinite");
    memcpy(bytes, original, n);
    moec_put_f64(bytes + moec_get_u64(contents_entry(bytes, MOEC_SECTION_SEQUENCE, 0) + 16) + 40 + 72 + 24,
                 (double)-INFINITY);
    reseal_section(bytes, MOEC_SECTION_SEQUENCE, 0);
    expect_refused(f, bytes, n, "plan 1 in the certificate's sequence of plans has an infinite number");
    free(bytes);
    free(original);
}

/* A scale that is no number, under a right CRC32C. */
static void test_bundle__records_that_are_not_finite_are_refused(void **state)
{
    struct fixture *f = *state;
    struct moec_error err = {0};
    struct moec_bundle *bundle = NULL;
    size_t n = 0;
    (void)sample_write(&f->sample, f->path);
    uint8_t *bytes = temporary_read(f->folder, "sample.moec", &n);
    assert_status(moec_bundle_open(f->path, &bundle, &err), MOEC_OK, err);
    struct moec_record_entry entry = *moec_bundle_record(bundle, 1, 0, 1);
    struct moec_record_layout layout = moec_record_layout_make(&bundle->config, bundle->codecs[2]);
    uint64_t index = moec_get_u64(contents_entry(bytes, MOEC_SECTION_RECORD_INDEX, 1) + 16);
    moec_bundle_close(bundle);
    moec_put_u16(bytes + entry.offset + layout.row_bytes[MOEC_PROJECTION_UP] - 2,
                 0x7c00); /* infinity in F16 */
    moec_put_u32(bytes + index + 16 + 24 + 12, moec_crc32c(0, bytes + entry.offset, entry.n_bytes));
    reseal_section(bytes, MOEC_SECTION_RECORD_INDEX, 1);
    reseal_section(bytes, MOEC_SECTION_RECORDS, 1);
    expect_refused(f, bytes, n, "has a scale that is not finite");
    free(bytes);
}

/* D3: a level goes by dropping its two entries; no other section changes. */
static void test_bundle__a_stripped_level_leaves_the_others(void **state)
{
    struct fixture *f = *state;
    struct moec_error err = {0};
    struct moec_bundle *bundle = NULL;
    size_t n = 0;
    (void)sample_write(&f->sample, f->path);
    uint8_t *bytes = temporary_read(f->folder, "sample.moec", &n);
    uint32_t count = moec_get_u32(bytes + MOEC_HEADER_N_SECTIONS);
    for (uint32_t kind = MOEC_SECTION_RECORD_INDEX; kind <= MOEC_SECTION_RECORDS; kind++) {
        uint8_t *entry = contents_entry(bytes, kind, 1);
        memset(bytes + moec_get_u64(entry + 16), 0, moec_get_u64(entry + 24)); /* as a punched hole reads */
        uint8_t *end = bytes + MOEC_BUNDLE_HEADER_BYTES + (size_t)count * MOEC_BUNDLE_SECTION_BYTES;
        memmove(entry, entry + MOEC_BUNDLE_SECTION_BYTES, (size_t)(end - entry) - MOEC_BUNDLE_SECTION_BYTES);
        memset(end - MOEC_BUNDLE_SECTION_BYTES, 0, MOEC_BUNDLE_SECTION_BYTES);
        moec_put_u32(bytes + MOEC_HEADER_N_SECTIONS, --count);
    }
    reseal(bytes);
    temporary_write(f->folder, "sample.moec", bytes, n);
    assert_status(moec_bundle_verify(f->path, NULL, NULL, &err), MOEC_OK, err);
    assert_status(moec_bundle_open(f->path, &bundle, &err), MOEC_OK, err);
    assert_int_equal(bundle->n_copy, 2);
    assert_int_equal(bundle->copy_bits[1], 8);
    uint8_t record[4096], expected[4096];
    struct moec_record_layout layout = moec_record_layout_make(&bundle->config, bundle->codecs[8]);
    sample_record(&f->sample, &layout, 2, 1, 1, expected);
    assert_status(moec_bundle_read_record(bundle, (struct moec_record_id){1, 1, 1}, record, &err), MOEC_OK,
                  err);
    assert_memory_equal(record, expected, layout.n_bytes);
    moec_bundle_close(bundle);
    free(bytes);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_bundle__round_trip),
        cmocka_unit_test(test_certificate__names_its_arithmetic),
        cmocka_unit_test(test_bundle__small_experts_stand_closer),
        CASE(test_bundle__random_models),
        CASE(test_bundle__many_pieces),
        CASE(test_bundle__same_bytes_twice),
        CASE(test_bundle__sections),
        CASE(test_bundle__writer_refuses),
        CASE(test_bundle__projections_differ),
        CASE(test_bundle__disk_full),
        CASE(test_bundle__every_flipped_byte_is_found),
        CASE(test_bundle__damaged_record_is_named),
        CASE(test_bundle__truncated_at_every_length),
        CASE(test_bundle__unknown_version_is_refused),
        CASE(test_bundle__absurd_headers_are_refused),
        CASE(test_bundle__absurd_sections_are_refused),
        CASE(test_bundle__absurd_indices_are_refused),
        CASE(test_bundle__wrong_statements_are_refused),
        CASE(test_bundle__records_that_are_not_finite_are_refused),
        CASE(test_bundle__a_stripped_level_leaves_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
