/* Variants that ranks make for each other: each encodes its part, and all have what one makes alone. */
#include "tests/unit/fixture_model.h"
#include "tests/unit/held_variant.h"
#include "tests/unit/thread_ranks.h"

#include "profiler/evaluate/shared_variants.h"
#include "profiler/evaluate/variants_internal.h"
#include "profiler/evaluate/variants_test_hook.h"

#define FAMILY "olmoe-b"
#define LAYER  1u

static const uint32_t codes[] = {4, 16, 2, 4}, as_assigned[] = {0}, others[] = {3};

static struct moec_checkpoint *open_checkpoint(void)
{
    struct moec_error err = {0};
    struct moec_checkpoint *checkpoint = NULL;
    assert_ok(moec_checkpoint_open("tests/fixtures/families/" FAMILY, &checkpoint, &err), err);
    return checkpoint;
}

static struct moec_variants *make(const struct moec_checkpoint *checkpoint, uint64_t limit_bytes)
{
    struct moec_error err = {0};
    struct moec_variants *variants = NULL;
    assert_ok(moec_variants_create(
                  checkpoint, &(struct moec_variants_options){MOEC_SCHEME_ASYMMETRIC, 32, limit_bytes, 1},
                  &variants, &err),
              err);
    return variants;
}

/* What a rank shares, so many times. */
struct share {
    struct moec_variants *variants;
    struct moec_variants_range range;
    uint32_t n_time;
};

static void share(struct member *member, struct moec_ranks *ranks)
{
    const struct share *share = member->context;
    member->status = MOEC_OK;
    for (uint32_t i = 0; i < share->n_time && member->status == MOEC_OK; i++)
        member->status = moec_variants_share(share->variants, ranks, &share->range, &member->err);
    if (member->status == MOEC_OK)
        member->status = moec_ranks_leave(ranks, NULL, &member->err);
}

/* Variants of each rank, of one checkpoint. */
struct bench {
    struct moec_checkpoint *checkpoint;
    struct share shares[MOST];
    uint32_t count, n_expert;
};

static struct bench begin(uint32_t count, const uint32_t *codes_of, uint32_t n_code)
{
    struct bench bench = {.checkpoint = open_checkpoint(), .count = count};
    bench.n_expert = moec_checkpoint_config(bench.checkpoint)->n_expert;
    for (uint32_t r = 0; r < count; r++)
        bench.shares[r] = (struct share){
            .variants = make(bench.checkpoint, 0),
            .range = {.layer = LAYER, .n = bench.n_expert, .codes = codes_of, .n_code = n_code},
            .n_time = 1};
    return bench;
}

static void run(struct bench *bench)
{
    struct member members[MOST] = {0};
    for (uint32_t r = 0; r < bench->count; r++)
        members[r].context = &bench->shares[r];
    run_ranks(bench->count, share, members, bench->count);
    for (uint32_t r = 0; r < bench->count; r++)
        assert_status(members[r].status, MOEC_OK, members[r].err);
}

static void end(struct bench *bench)
{
    for (uint32_t r = 0; r < bench->count; r++)
        moec_variants_free(bench->shares[r].variants);
    moec_checkpoint_close(bench->checkpoint);
}

static uint64_t encoded(const struct bench *bench, uint32_t rank)
{
    return moec_variants_encoded_count(bench->shares[rank].variants);
}

/* The records of a rank against those that a process alone makes; nothing is encoded for it. */
static void check_records(const struct bench *bench, uint32_t rank, uint32_t bits)
{
    struct moec_error err = {0};
    struct moec_variants *variants = bench->shares[rank].variants, *alone = make(bench->checkpoint, 0);
    const uint64_t before = encoded(bench, rank), n_bytes = moec_variants_record_bytes(variants, bits);
    for (uint32_t e = 0; e < bench->n_expert; e++) {
        struct moec_mlp mlp, expected;
        assert_ok(variant_hold(variants, LAYER, e, bits, &mlp, &err), err);
        assert_ok(variant_hold(alone, LAYER, e, bits, &expected, &err), err);
        assert_memory_equal(mlp.up.data, expected.up.data, n_bytes); /* the record begins there */
        variant_release(variants, LAYER, e, bits);
        variant_release(alone, LAYER, e, bits);
    }
    assert_int_equal(encoded(bench, rank), before);
    moec_variants_free(alone);
}

static void test_shared_variants__each_rank_makes_its_part(void **state)
{
    (void)state;
    for (uint32_t count = 1; count <= MOST; count++) {
        struct bench bench = begin(count, codes, sizeof codes / sizeof *codes);
        run(&bench);
        uint64_t sum = 0;
        for (uint32_t r = 0; r < count; r++) {
            const uint64_t n_record =
                2 * (uint64_t)bench.n_expert; /* those of 16 bits each reads for itself */
            assert_true(encoded(&bench, r) <= (n_record + count - 1) / count);
            sum += encoded(&bench, r);
            if (count > 1)
                check_records(&bench, r, 2);
            if (count > 1)
                check_records(&bench, r, 4);
        }
        assert_int_equal(sum, count > 1 ? 2 * bench.n_expert : 0); /* a process alone makes them when asked */
        end(&bench);
    }
}

static void test_shared_variants__as_they_are_assigned(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct bench bench = begin(2, as_assigned, 1);
    for (uint32_t r = 0; r < 2; r++)
        assert_ok(moec_variants_assign_all(bench.shares[r].variants,
                                           moec_variants_projection_code(3, MOEC_PROJECTION_UP), &err),
                  err);
    run(&bench);
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(encoded(&bench, r), bench.n_expert / 2); /* the rest is the checkpoint's */
        check_records(&bench, r, 3);
    }
    end(&bench);
}

/* A rank makes nothing that it has; the others make their part of it. */
static void test_shared_variants__what_some_have(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct bench bench = begin(2, codes, sizeof codes / sizeof *codes);
    assert_ok(moec_variants_prepare(bench.shares[0].variants, LAYER, 4, &err), err);
    bench.shares[0].n_time = bench.shares[1].n_time = 2;
    run(&bench);
    assert_int_equal(encoded(&bench, 0), bench.n_expert); /* before */
    assert_int_equal(encoded(&bench, 1), bench.n_expert); /* those of 2 bits, which are all its own */
    check_records(&bench, 1, 4);
    check_records(&bench, 0, 2);
    end(&bench);
}

/* One of them has no room for all: each makes what it is asked for. */
static void test_shared_variants__without_room(void **state)
{
    (void)state;
    struct bench bench = begin(3, codes, sizeof codes / sizeof *codes);
    const uint64_t one = moec_variants_record_bytes(bench.shares[1].variants, 16);
    moec_variants_free(bench.shares[1].variants);
    bench.shares[1].variants = make(bench.checkpoint, one);
    run(&bench);
    for (uint32_t r = 0; r < 3; r++)
        assert_int_equal(encoded(&bench, r), 0);
    end(&bench);
}

/* A record is its expert's number; there is none of expert 2. */
static enum moec_status encode_as_number(const struct moec_expert_encoder *self,
                                         const struct moec_expert_record *made, void *scratch,
                                         uint8_t *record, struct moec_error *err)
{
    (void)self;
    (void)scratch;
    if (made->expert == 2)
        return moec_fail(err, MOEC_ERR_IO, "no expert %u", made->expert);
    memset(record, (int)made->expert, made->layout->n_bytes);
    return MOEC_OK;
}

static void test_shared_variants__one_that_cannot_be_made(void **state)
{
    (void)state;
    static const struct moec_expert_encoder encoder = {.encode = encode_as_number};
    static const struct moec_expert_encoder copier = {.encode = encode_as_number, .copies = true};
    struct moec_error err = {0};
    struct moec_mlp mlp;
    struct bench bench = begin(2, codes, sizeof codes / sizeof *codes);
    for (uint32_t r = 0; r < 2; r++)
        moec_variants_set_encoder(bench.shares[r].variants, &encoder);
    run(&bench);
    for (uint32_t r = 0; r < 2; r++) {
        struct moec_variants *variants = bench.shares[r].variants;
        assert_int_equal(encoded(&bench, r), bench.n_expert - 1);
        assert_ok(variant_hold(variants, LAYER, 5, 4, &mlp, &err), err);
        assert_int_equal(mlp.down.data[0], 5);
        variant_release(variants, LAYER, 5, 4);
        assert_int_equal(encoded(&bench, r), bench.n_expert - 1);
        assert_int_equal(variant_hold(variants, LAYER, 2, 4, &mlp, &err), MOEC_ERR_IO);
        moec_variants_set_encoder(variants, &copier); /* which takes no time that sending would save */
    }
    run(&bench);
    assert_int_equal(encoded(&bench, 0), bench.n_expert - 1);
    end(&bench);
}

/* Where sending took longer than encoding, ranks leave it, and try again later, or with another codec. */
static void test_shared_variants__where_sending_is_slow(void **state)
{
    (void)state;
    struct bench bench = begin(2, codes, sizeof codes / sizeof *codes);
    struct variants_pace *pace = &bench.shares[1].variants->pace;
    *pace = (struct variants_pace){.exchange_ns = 1e9, .exchange_bytes = 1};
    pace->encode_ns[2] = pace->encode_ns[4] = 1;
    bench.shares[0].n_time = bench.shares[1].n_time = 15;
    run(&bench);
    assert_int_equal(encoded(&bench, 0) + encoded(&bench, 1), 0);
    bench.shares[0].n_time = bench.shares[1].n_time = 1;
    run(&bench);
    assert_int_equal(encoded(&bench, 0), bench.n_expert);
    assert_int_equal(encoded(&bench, 1), bench.n_expert);
    for (uint32_t r = 0; r < 2; r++) {
        bench.shares[r].range.codes = others;
        bench.shares[r].range.n_code = 1;
    }
    pace->exchange_ns = 1e18;
    run(&bench);
    assert_int_equal(encoded(&bench, 0) + encoded(&bench, 1), 3 * bench.n_expert);
    end(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shared_variants__each_rank_makes_its_part),
                                       cmocka_unit_test(test_shared_variants__as_they_are_assigned),
                                       cmocka_unit_test(test_shared_variants__what_some_have),
                                       cmocka_unit_test(test_shared_variants__without_room),
                                       cmocka_unit_test(test_shared_variants__one_that_cannot_be_made),
                                       cmocka_unit_test(test_shared_variants__where_sending_is_slow)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
