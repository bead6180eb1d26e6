/* Variants of experts: the bytes that a bundle would hold, within the limit, whatever is assigned. */
#include "tests/unit/fixture_model.h"
#include "tests/unit/held_variant.h"

#include "formats/base/memory.h"
#include "formats/base/work_tally.h"
#include "profiler/evaluate/variants_test_hook.h"

static struct moec_checkpoint *open_checkpoint(const char *name)
{
    char path[256];
    struct moec_error err = {0};
    struct moec_checkpoint *checkpoint = NULL;
    snprintf(path, sizeof path, "tests/fixtures/families/%s", name);
    assert_ok(moec_checkpoint_open(path, &checkpoint, &err), err);
    return checkpoint;
}

static struct moec_variants *make(const struct moec_checkpoint *checkpoint, uint64_t limit_bytes)
{
    struct moec_error err = {0};
    struct moec_variants *variants = NULL;
    assert_ok(moec_variants_create(
                  checkpoint, &(struct moec_variants_options){MOEC_SCHEME_ASYMMETRIC, 32, limit_bytes, 2},
                  &variants, &err),
              err);
    return variants;
}

static void check_record(const struct moec_checkpoint *checkpoint, struct moec_variants *variants,
                         uint32_t layer, uint32_t expert, uint32_t bits)
{
    struct moec_error err = {0};
    const struct moec_config *config = moec_checkpoint_config(checkpoint);
    struct moec_codec codec = {.dtype = MOEC_DTYPE_F32};
    if (bits != 32)
        assert_ok(moec_codec_for_bits(bits, MOEC_SCHEME_ASYMMETRIC, 32, (enum moec_dtype)config->expert_dtype,
                                      &codec, &err),
                  err);
    struct moec_record_layout layout = moec_record_layout_make(config, codec);
    assert_int_equal(layout.n_bytes, moec_variants_record_bytes(variants, bits));
    uint8_t *expected = calloc(1, layout.n_bytes);
    void *scratch = NULL;
    assert_ok(
        moec_alloc_aligned(&scratch, moec_checkpoint_expert_scratch_bytes(checkpoint), 1, "scratch", &err),
        err);
    assert_ok(moec_checkpoint_encode_expert(checkpoint, layer, expert, &layout, scratch, expected, &err),
              err);
    struct moec_mlp mlp;
    assert_ok(variant_hold(variants, layer, expert, bits, &mlp, &err), err);
    assert_true(moec_codec_equal(mlp.up.codec, codec));
    assert_memory_equal(mlp.up.data, expected, layout.n_bytes);
    variant_release(variants, layer, expert, bits);
    free(scratch);
    free(expected);
}

/* Another codec at one bitwidth: records of the old one are made anew, the others stay. */
static void test_variants__change_their_codec(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_checkpoint *checkpoint = open_checkpoint("qwen2_moe");
    struct moec_variants *variants = make(checkpoint, 0);
    assert_ok(moec_variants_prepare(variants, 0, 2, &err), err);
    assert_ok(moec_variants_prepare(variants, 0, 4, &err), err);
    const uint64_t n_encoded = moec_variants_encoded_count(variants),
                   at_four = n_encoded / 2 * moec_variants_record_bytes(variants, 4);
    struct moec_codec codec;
    assert_ok(moec_codec_for_bits(2, MOEC_SCHEME_ASYMMETRIC, 32, MOEC_DTYPE_BF16, &codec, &err), err);
    assert_ok(moec_variants_set_codec(variants, moec_codec_bits(codec), codec, &err), err);
    assert_true(moec_variants_cached_bytes(variants) > at_four); /* the same codec: nothing is lost */
    codec.quantizer = MOEC_QUANTIZER_HQQ;
    assert_ok(moec_variants_set_codec(variants, moec_codec_bits(codec), codec, &err), err);
    assert_int_equal(moec_variants_cached_bytes(variants), at_four);
    struct moec_mlp mlp;
    assert_ok(variant_hold(variants, 0, 1, 2, &mlp, &err), err);
    assert_int_equal(mlp.up.codec.quantizer, MOEC_QUANTIZER_HQQ);
    variant_release(variants, 0, 1, 2);
    assert_int_equal(moec_variants_encoded_count(variants), n_encoded + 1);
    codec.group = 0;
    assert_ok(moec_variants_set_codec(variants, moec_codec_bits(codec), codec, &err), err);
    assert_int_equal(moec_variants_record_bytes(variants, 2),
                     moec_record_layout_make(moec_checkpoint_config(checkpoint), codec).n_bytes);
    assert_int_equal(moec_variants_cached_bytes(variants), at_four);
    codec.group = 5;
    assert_int_equal(moec_variants_set_codec(variants, moec_codec_bits(codec), codec, &err), MOEC_ERR_FORMAT);
    codec = (struct moec_codec){.dtype = MOEC_DTYPE_BF16};
    assert_int_equal(moec_variants_set_codec(variants, moec_codec_bits(codec), codec, &err), MOEC_ERR_USAGE);
    moec_variants_free(variants);
    moec_checkpoint_close(checkpoint);
}

static void test_variants__are_the_records_of_a_bundle(void **state)
{
    (void)state;
    static const uint32_t bits[] = {2, 3, 4, 8, 16, 32};
    struct moec_checkpoint *checkpoint = open_checkpoint("qwen2_moe");
    struct moec_variants *variants = make(checkpoint, 0);
    for (size_t b = 0; b < sizeof bits / sizeof *bits; b++) {
        check_record(checkpoint, variants, 0, 0, bits[b]);
        check_record(checkpoint, variants, 3, 5, bits[b]);
    }
    assert_int_equal(moec_variants_encoded_count(variants), 12);
    assert_int_equal(moec_variants_record_bytes(variants, 7), 0);
    moec_variants_free(variants);
    moec_checkpoint_close(checkpoint);
}

static void test_variants__stay_within_the_limit_and_are_made_again(void **state)
{
    (void)state;
    struct moec_checkpoint *checkpoint = open_checkpoint("olmoe-b");
    struct moec_variants *variants = make(checkpoint, 0);
    uint64_t one = moec_variants_record_bytes(variants, 16);
    moec_variants_free(variants);
    variants = make(checkpoint, 2 * one + 1);
    for (uint32_t expert = 0; expert < 8; expert++) {
        check_record(checkpoint, variants, 1, expert, 16);
        assert_true(moec_variants_cached_bytes(variants) <= 2 * one + 1);
    }
    check_record(checkpoint, variants, 1, 7, 16);
    assert_int_equal(moec_variants_encoded_count(variants), 8);
    check_record(checkpoint, variants, 1, 6, 16);
    assert_int_equal(moec_variants_encoded_count(variants), 8);
    check_record(checkpoint, variants, 1, 0, 16); /* evicts 7, the least recently used */
    check_record(checkpoint, variants, 1, 6, 16);
    assert_int_equal(moec_variants_encoded_count(variants), 9);
    check_record(checkpoint, variants, 1, 7, 16);
    assert_int_equal(moec_variants_encoded_count(variants), 10);
    moec_variants_free(variants);
    moec_checkpoint_close(checkpoint);
}

static void test_variants__borrowed_ones_are_never_evicted(void **state)
{
    (void)state;
    struct moec_checkpoint *checkpoint = open_checkpoint("mixtral");
    struct moec_variants *variants = make(checkpoint, 0);
    uint64_t one = moec_variants_record_bytes(variants, 16);
    moec_variants_free(variants);
    variants = make(checkpoint, 2 * one);
    struct moec_error err = {0};
    struct moec_mlp a, again, b, c;
    assert_ok(variant_hold(variants, 0, 0, 16, &a, &err), err);
    assert_ok(variant_hold(variants, 0, 0, 16, &again, &err), err);
    assert_ok(variant_hold(variants, 0, 1, 16, &b, &err), err);
    assert_ptr_equal(a.up.data, again.up.data);
    assert_int_equal(variant_hold(variants, 0, 2, 16, &c, &err), MOEC_ERR_BUDGET);
    assert_non_null(strstr(err.message, "expert 2 of layer 0"));
    variant_release(variants, 0, 0, 16);
    err = (struct moec_error){0};
    assert_int_equal(variant_hold(variants, 0, 2, 16, &c, &err), MOEC_ERR_BUDGET);
    variant_release(variants, 0, 0, 16);
    err = (struct moec_error){0};
    assert_ok(variant_hold(variants, 0, 2, 16, &c, &err), err);
    variant_release(variants, 0, 2, 16);
    variant_release(variants, 0, 1, 16);
    moec_variants_free(variants);
    moec_checkpoint_close(checkpoint);
}

static void test_variants__refuse_a_limit_under_one_expert(void **state)
{
    (void)state;
    struct moec_checkpoint *checkpoint = open_checkpoint("mixtral");
    struct moec_variants *variants = NULL;
    struct moec_error err = {0};
    assert_int_equal(moec_variants_create(checkpoint,
                                          &(struct moec_variants_options){MOEC_SCHEME_SYMMETRIC, 0, 100, 1},
                                          &variants, &err),
                     MOEC_ERR_BUDGET);
    err = (struct moec_error){0};
    assert_int_not_equal(
        moec_variants_create(checkpoint, &(struct moec_variants_options){MOEC_SCHEME_SYMMETRIC, 17, 0, 1},
                             &variants, &err),
        MOEC_OK);
    moec_checkpoint_close(checkpoint);
}

/* Bits of the gate projection that the forward pass gets. */
static uint32_t assigned_bits(struct moec_variants *variants, uint32_t layer, uint32_t expert)
{
    struct moec_error err = {0};
    struct moec_mlp mlp;
    struct moec_experts *experts = moec_variants_experts(variants);
    const struct moec_expert_request request = moec_expert_request_of(layer, expert);
    assert_ok(experts->ops->acquire(experts, request, &mlp, &err), err);
    const uint32_t bits = moec_codec_bits(mlp.gate.codec);
    experts->ops->release(experts, request);
    return bits;
}

static void test_variants__check_assignments(void **state)
{
    (void)state;
    struct moec_checkpoint *checkpoint = open_checkpoint("qwen2_moe"); /* layer 1 is dense, 6 experts */
    struct moec_variants *variants = make(checkpoint, 0);
    struct moec_error err = {0};
    uint8_t assignment[3 * 6];
    memset(assignment, 4, sizeof assignment);
    assert_int_equal(moec_variants_source_bits(variants), 16);
    assert_int_equal(assigned_bits(variants, 3, 5), 16);
    assert_ok(moec_variants_assign(variants, assignment, &err), err);
    assert_ok(moec_variants_assign_one(variants, 3, 5, 2, &err), err);
    assert_int_equal(assigned_bits(variants, 3, 5), 2);
    assignment[7] = 7;
    assert_int_equal(moec_variants_assign(variants, assignment, &err), MOEC_ERR_USAGE);
    assert_non_null(strstr(err.message, "expert 1 of layer 2"));
    assert_int_equal(assigned_bits(variants, 2, 1), 4);
    err = (struct moec_error){0};
    assert_int_equal(moec_variants_assign_one(variants, 1, 0, 4, &err), MOEC_ERR_USAGE);
    err = (struct moec_error){0};
    assert_int_equal(moec_variants_assign_one(variants, 0, 6, 4, &err), MOEC_ERR_USAGE);
    err = (struct moec_error){0};
    assert_int_equal(moec_variants_assign_all(variants, 7, &err), MOEC_ERR_USAGE);
    err = (struct moec_error){0};
    struct moec_experts *experts = moec_variants_experts(variants);
    struct moec_mlp mlp;
    assert_ok(experts->ops->acquire(experts, moec_expert_request_of(3, 5), &mlp, &err), err);
    assert_int_equal(moec_codec_bits(mlp.gate.codec), 2);
    experts->ops->release(experts, moec_expert_request_of(3, 5));

    /* A plan may give each projection its own; what it gave before is encoded anew. */
    struct moec_plan plan;
    assert_ok(moec_plan_create(&plan, moec_checkpoint_config(checkpoint), &err), err);
    for (uint8_t down = 3; down <= 4; down++) {
        plan.experts[17] = (struct moec_variant){{2, 8, down}};
        assert_ok(moec_variants_assign_plan(variants, &plan, &err), err);
        assert_int_equal(assigned_bits(variants, 3, 4), 16);
        assert_ok(experts->ops->acquire(experts, moec_expert_request_of(3, 5), &mlp, &err), err);
        const struct moec_matrix *matrices[] = {&mlp.gate, &mlp.up, &mlp.down};
        for (int p = 0; p < MOEC_PROJECTION_COUNT; p++) {
            struct moec_mlp whole;
            assert_int_equal(moec_codec_bits(matrices[p]->codec), plan.experts[17].codecs[p]);
            assert_ok(variant_hold(variants, 3, 5, plan.experts[17].codecs[p], &whole, &err), err);
            const struct moec_matrix *same[] = {&whole.gate, &whole.up, &whole.down};
            for (uint32_t row = 0; row < whole.up.rows; row++)
                assert_memory_equal(matrices[p]->data + row * matrices[p]->stride_bytes,
                                    same[p]->data + row * same[p]->stride_bytes,
                                    moec_codec_row_bytes(same[p]->codec, same[p]->columns));
            variant_release(variants, 3, 5, plan.experts[17].codecs[p]);
        }
        assert_ok(moec_variants_assign_plan(variants, &plan, &err), err); /* what is released is its */
        experts->ops->release(experts, moec_expert_request_of(3, 5));
    }
    plan.experts[17].codecs[1] = 7;
    assert_int_equal(moec_variants_assign_plan(variants, &plan, &err), MOEC_ERR_USAGE);
    assert_non_null(strstr(err.message, "numbers 2, 7 and 4 to expert 5 of layer 3"));
    moec_plan_release(&plan);
    assert_int_equal(experts->ops->acquire(experts, moec_expert_request_of(1, 0), &mlp, &err),
                     MOEC_ERR_USAGE);
    moec_variants_free(variants);
    moec_checkpoint_close(checkpoint);
}

static void test_variants__prepare_what_fits(void **state)
{
    (void)state;
    struct moec_checkpoint *checkpoint = open_checkpoint("olmoe-b");
    struct moec_variants *variants = make(checkpoint, 0);
    struct moec_error err = {0};
    assert_ok(moec_variants_prepare(variants, 2, 3, &err), err);
    assert_int_equal(moec_variants_encoded_count(variants), 8);
    assert_int_equal(moec_variants_cached_bytes(variants), 8 * moec_variants_record_bytes(variants, 3));
    for (uint32_t expert = 0; expert < 8; expert++)
        check_record(checkpoint, variants, 2, expert, 3);
    assert_int_equal(moec_variants_encoded_count(variants), 8);
    uint64_t limit = 3 * moec_variants_record_bytes(variants, 16);
    moec_variants_free(variants);

    variants = make(checkpoint, limit);
    assert_ok(moec_variants_prepare(variants, 2, 0, &err), err);
    assert_int_equal(moec_variants_encoded_count(variants), 3);
    assert_int_equal(moec_variants_cached_bytes(variants), limit);
    check_record(checkpoint, variants, 2, 7, 16);
    moec_variants_free(variants);
    moec_checkpoint_close(checkpoint);
}

/* A record of the exact weights in memory is what others are made of: the same bytes, and nothing is read. */
static void test_variants__come_from_exact_records(void **state)
{
    (void)state;
    static const char *const families[] = {"olmoe-b", "qwen2_moe", "gpt_oss-mxfp4", "olmoe-fp8", "switch"};
    struct moec_error err = {0};
    moec_work_watch();
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        struct moec_checkpoint *checkpoint = open_checkpoint(families[f]);
        struct moec_variants *variants = make(checkpoint, 0);
        const struct moec_config *config = moec_checkpoint_config(checkpoint);
        const uint32_t layer = moec_config_moe_layer(config, 0);
        const bool is_float = config->expert_dtype <= MOEC_DTYPE_BF16;
        assert_ok(moec_variants_prepare(variants, layer, moec_variants_source_bits(variants), &err), err);
        const uint64_t read = moec_work_now().n[MOEC_WORK_READING];
        for (uint32_t bits = 2; bits <= 8; bits += bits < 4 ? 1 : 4) {
            assert_ok(moec_variants_prepare(variants, layer, bits, &err), err);
            if (!is_float)
                continue; /* MXFP4 is read again */
            assert_int_equal(moec_work_now().n[MOEC_WORK_READING], read);
        }
        for (uint32_t bits = 2; bits <= 8; bits += bits < 4 ? 1 : 4)
            check_record(checkpoint, variants, layer, 1, bits);
        moec_variants_free(variants);
        moec_checkpoint_close(checkpoint);
    }
}

static void assert_is_there(struct moec_variants *variants, uint32_t expert, uint32_t bits, bool is_there)
{
    struct moec_error err = {0};
    struct moec_mlp mlp;
    const uint64_t before = moec_variants_encoded_count(variants);
    assert_ok(variant_hold(variants, 0, expert, bits, &mlp, &err), err);
    variant_release(variants, 0, expert, bits);
    assert_int_equal(moec_variants_encoded_count(variants) - before, is_there ? 0 : 1);
}

/* Whoever knows better than the order of use says what makes room. */
static void test_variants__make_room_by_rank(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_checkpoint *checkpoint = open_checkpoint("olmoe-b");
    struct moec_variants *variants = make(checkpoint, 0);
    const uint64_t one = moec_variants_record_bytes(variants, 16);
    moec_variants_free(variants);
    variants = make(checkpoint, 4 * one);
    assert_ok(moec_variants_prepare_some(variants, 0, 6, 9, 16, &err), err);
    assert_int_equal(moec_variants_encoded_count(variants), 2); /* 6 and 7 are the last */
    assert_ok(moec_variants_prepare_some(variants, 0, 0, 4, 16, &err), err);
    moec_variants_rank(variants, 0, 0, 4, 16, MOEC_VARIANTS_SOON);
    assert_is_there(variants, 5, 16, false); /* in the place of 3 */
    moec_variants_rank(variants, 0, 5, 1, moec_variants_projection_code(3, MOEC_PROJECTION_UP),
                       MOEC_VARIANTS_DONE);  /* whose rest is at 16 */
    assert_is_there(variants, 4, 16, false); /* in the place of 5 */
    for (uint32_t expert = 0; expert < 3; expert++)
        assert_is_there(variants, expert, 16, true);
    assert_is_there(variants, 4, 16, true);
    assert_is_there(variants, 5, 16, false);
    check_record(checkpoint, variants, 0, 5, 16); /* whose memory others had before */
    moec_variants_free(variants);
    moec_checkpoint_close(checkpoint);
}

static void check_same_matrix(const struct moec_matrix *a, const struct moec_matrix *b)
{
    assert_true(moec_codec_equal(a->codec, b->codec));
    assert_int_equal(a->stride_bytes, b->stride_bytes);
    assert_ptr_equal(a->data, b->data);
}

/* Each code takes its projection from one record and the others from another. */
static void test_variants__one_projection_at_other_bits(void **state)
{
    (void)state;
    struct moec_checkpoint *checkpoint = open_checkpoint("mixtral");
    struct moec_variants *variants = make(checkpoint, 0);
    struct moec_error err = {0};
    struct moec_mlp named, rest, mlp;
    assert_ok(variant_hold(variants, 0, 1, 2, &named, &err), err);
    assert_ok(variant_hold(variants, 0, 1, 4, &rest, &err), err);
    assert_ok(moec_variants_set_rest(variants, 4, &err), err);
    for (int p = 0; p < MOEC_PROJECTION_COUNT; p++) {
        const uint8_t code = moec_variants_projection_code(2, (enum moec_projection)p);
        assert_ok(variant_hold(variants, 0, 1, code, &mlp, &err), err);
        check_same_matrix(&mlp.gate, p == MOEC_PROJECTION_GATE ? &named.gate : &rest.gate);
        check_same_matrix(&mlp.up, p == MOEC_PROJECTION_UP ? &named.up : &rest.up);
        check_same_matrix(&mlp.down, p == MOEC_PROJECTION_DOWN ? &named.down : &rest.down);
        variant_release(variants, 0, 1, code);
        assert_int_equal(moec_variants_record_bytes(variants, code), moec_variants_record_bytes(variants, 2));
    }
    variant_release(variants, 0, 1, 4);
    variant_release(variants, 0, 1, 2);
    assert_int_equal(moec_variants_encoded_count(variants), 2);
    const uint8_t none = moec_variants_projection_code(7, MOEC_PROJECTION_UP);
    assert_int_equal(moec_variants_assign_one(variants, 0, 1, none, &err), MOEC_ERR_USAGE);
    err = (struct moec_error){0};
    assert_int_equal(moec_variants_set_rest(variants, 7, &err), MOEC_ERR_USAGE);
    moec_variants_free(variants);
    moec_checkpoint_close(checkpoint);
}

/* A second codec of two bits stands beside the first, alone and in mixtures. */
static void test_variants__further_codecs(void **state)
{
    (void)state;
    struct moec_checkpoint *checkpoint = open_checkpoint("qwen2_moe");
    struct moec_variants *variants = make(checkpoint, 0);
    struct moec_experts *experts = moec_variants_experts(variants);
    struct moec_error err = {0};
    struct moec_plan plan;
    struct moec_mlp first, other, mlp;
    const struct moec_codec codec = {.dtype = MOEC_DTYPE_INT2, .quantizer = MOEC_QUANTIZER_HQQ};
    assert_int_equal(variant_hold(variants, 0, 1, 40, &other, &err), MOEC_ERR_USAGE);
    err = (struct moec_error){0};
    assert_int_equal(moec_variants_set_codec(variants, 3, codec, &err), MOEC_ERR_USAGE);
    assert_non_null(strstr(err.message, "a codec of 2 bits cannot have the number 3"));
    err = (struct moec_error){0};
    assert_int_equal(moec_variants_set_codec(variants, MOEC_CODEC_TABLE, codec, &err), MOEC_ERR_USAGE);
    err = (struct moec_error){0};
    assert_ok(moec_variants_set_codec(variants, 40, codec, &err), err);
    assert_ok(variant_hold(variants, 0, 1, 2, &first, &err), err);
    assert_ok(variant_hold(variants, 0, 1, 40, &other, &err), err);
    assert_int_equal(first.up.codec.group, 32);
    assert_true(moec_codec_equal(other.up.codec, codec));
    assert_true(moec_variants_record_bytes(variants, 40) < moec_variants_record_bytes(variants, 2));
    const uint8_t code = moec_variants_projection_code(40, MOEC_PROJECTION_DOWN);
    assert_ok(moec_variants_set_rest(variants, 2, &err), err);
    assert_ok(variant_hold(variants, 0, 1, code, &mlp, &err), err);
    check_same_matrix(&mlp.down, &other.down);
    check_same_matrix(&mlp.up, &first.up);
    variant_release(variants, 0, 1, code);
    assert_ok(moec_plan_create(&plan, moec_checkpoint_config(checkpoint), &err), err);
    plan.experts[1] = (struct moec_variant){{40, 2, 40}};
    assert_ok(moec_variants_assign_plan(variants, &plan, &err), err);
    assert_ok(experts->ops->acquire(experts, moec_expert_request_of(0, 1), &mlp, &err), err);
    assert_true(moec_codec_equal(mlp.up.codec, first.up.codec));
    assert_memory_equal(mlp.up.data, first.up.data, moec_codec_row_bytes(first.up.codec, first.up.columns));
    assert_true(moec_codec_equal(mlp.gate.codec, codec) && moec_codec_equal(mlp.down.codec, codec));
    assert_memory_equal(mlp.down.data, other.down.data, moec_codec_row_bytes(codec, other.down.columns));
    experts->ops->release(experts, moec_expert_request_of(0, 1));
    moec_plan_release(&plan);
    moec_variants_free(variants);
    moec_checkpoint_close(checkpoint);
}

/* Fills records with the number of the expert. */
static enum moec_status encode_as_number(const struct moec_expert_encoder *self,
                                         const struct moec_expert_record *made, void *scratch,
                                         uint8_t *record, struct moec_error *err)
{
    (void)self;
    (void)scratch;
    memset(record, (int)(10 + made->expert), made->layout->n_bytes);
    if (made->expert == 2)
        return moec_fail(err, MOEC_ERR_IO, "no expert 2");
    return MOEC_OK;
}

/* Another encoder makes every record of integers anew, and its errors come through. */
static void test_variants__another_encoder(void **state)
{
    (void)state;
    static const struct moec_expert_encoder encoder = {.encode = encode_as_number};
    struct moec_checkpoint *checkpoint = open_checkpoint("qwen2_moe");
    struct moec_variants *variants = make(checkpoint, 0);
    struct moec_error err = {0};
    struct moec_mlp mlp;
    assert_ok(moec_variants_prepare(variants, 0, 4, &err), err);
    const uint64_t with_four = moec_variants_cached_bytes(variants);
    assert_ok(moec_variants_prepare(variants, 0, 16, &err), err);
    const uint64_t with_both = moec_variants_cached_bytes(variants);
    moec_variants_set_encoder(variants, &encoder);
    assert_int_equal(moec_variants_cached_bytes(variants), with_both - with_four);
    assert_ok(variant_hold(variants, 0, 1, 4, &mlp, &err), err);
    assert_int_equal(mlp.up.data[0], 11);
    variant_release(variants, 0, 1, 4);
    assert_ok(moec_variants_prepare(variants, 0, 4, &err), err);
    assert_ok(variant_hold(variants, 0, 3, 4, &mlp, &err), err);
    assert_int_equal(mlp.down.data[0], 13);
    variant_release(variants, 0, 3, 4);
    assert_int_equal(variant_hold(variants, 0, 2, 4, &mlp, &err), MOEC_ERR_IO);
    assert_non_null(strstr(err.message, "no expert 2"));
    moec_variants_set_encoder(variants, NULL);
    check_record(checkpoint, variants, 0, 2, 4);
    moec_variants_free(variants);
    moec_checkpoint_close(checkpoint);
}

/* A model whose projections all have the rest's bits is the uniform one; room for the records of one expert
 * is enough, and changes no bit. */
static void test_variants__projections_run_in_a_model(void **state)
{
    (void)state;
    struct fixture fixture = fixture_open("olmoe");
    struct moec_error err = {0};
    const size_t n_logits = fixture.n_tok * fixture.model->config.n_vocab;
    assert_ok(moec_variants_assign_all(fixture.variants, 3, &err), err);
    float *uniform = fixture_run(&fixture, moec_kernels_best(), 1, fixture.n_tok, fixture.tokens,
                                 fixture.n_tok, fixture.n_tok);
    const uint8_t code = moec_variants_projection_code(3, MOEC_PROJECTION_DOWN);
    assert_ok(moec_variants_assign_all(fixture.variants, code, &err), err);
    assert_ok(moec_variants_set_rest(fixture.variants, 3, &err), err);
    float *same = fixture_run(&fixture, moec_kernels_best(), 1, fixture.n_tok, fixture.tokens, fixture.n_tok,
                              fixture.n_tok);
    assert_same_bits(same, uniform, n_logits, "all projections at the same bits");
    const uint32_t source_bits = moec_variants_source_bits(fixture.variants);
    assert_ok(moec_variants_set_rest(fixture.variants, source_bits, &err), err);
    float *mixed = fixture_run(&fixture, moec_kernels_best(), 1, fixture.n_tok, fixture.tokens, fixture.n_tok,
                               fixture.n_tok);
    assert_memory_not_equal(mixed, uniform, n_logits * sizeof(float));

    struct moec_variants *unlimited = fixture.variants;
    assert_ok(moec_variants_create(
                  fixture.checkpoint,
                  &(struct moec_variants_options){MOEC_SCHEME_SYMMETRIC, 0,
                                                  moec_variants_record_bytes(unlimited, source_bits) +
                                                      moec_variants_record_bytes(unlimited, 3),
                                                  2},
                  &fixture.variants, &err),
              err);
    assert_ok(moec_variants_assign_all(fixture.variants, code, &err), err);
    assert_ok(moec_variants_prepare(fixture.variants, 0, 0, &err), err);
    float *again =
        fixture_run(&fixture, moec_kernels_best(), 1, 7, fixture.tokens, fixture.n_tok, fixture.n_tok);
    assert_same_bits(again, mixed, n_logits, "mixed projections under a limit");
    moec_variants_free(unlimited);
    free(again);
    free(mixed);
    free(same);
    free(uniform);
    fixture_close(&fixture);
}

/* Under the tightest limit the forward pass holds one expert at a time, and gives the same bits. */
static void test_variants__run_a_model_larger_than_the_limit(void **state)
{
    (void)state;
    struct fixture fixture = fixture_open("qwen2_moe-tied");
    float *expected = fixture_run(&fixture, moec_kernels_best(), 1, fixture.n_tok, fixture.tokens,
                                  fixture.n_tok, fixture.n_tok);
    uint64_t one = moec_variants_record_bytes(fixture.variants, 16);
    struct moec_variants *unlimited = fixture.variants;
    fixture.variants = make(fixture.checkpoint, one);
    float *logits =
        fixture_run(&fixture, moec_kernels_best(), 1, 5, fixture.tokens, fixture.n_tok, fixture.n_tok);
    assert_same_bits(logits, expected, fixture.n_tok * fixture.model->config.n_vocab, "logits under a limit");
    assert_int_equal(moec_variants_cached_bytes(fixture.variants), one);
    moec_variants_free(unlimited);
    free(logits);
    free(expected);
    fixture_close(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_variants__are_the_records_of_a_bundle),
        cmocka_unit_test(test_variants__change_their_codec),
        cmocka_unit_test(test_variants__stay_within_the_limit_and_are_made_again),
        cmocka_unit_test(test_variants__borrowed_ones_are_never_evicted),
        cmocka_unit_test(test_variants__refuse_a_limit_under_one_expert),
        cmocka_unit_test(test_variants__check_assignments),
        cmocka_unit_test(test_variants__prepare_what_fits),
        cmocka_unit_test(test_variants__come_from_exact_records),
        cmocka_unit_test(test_variants__make_room_by_rank),
        cmocka_unit_test(test_variants__one_projection_at_other_bits),
        cmocka_unit_test(test_variants__further_codecs),
        cmocka_unit_test(test_variants__another_encoder),
        cmocka_unit_test(test_variants__projections_run_in_a_model),
        cmocka_unit_test(test_variants__run_a_model_larger_than_the_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
