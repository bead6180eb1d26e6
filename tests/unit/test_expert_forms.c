/* A request says what it wants: the expert cache serves several copies and parts of records beside each
 * other, reads of each only its own bytes, and checks them by their own sums. */
#include "tests/unit/temporary.h"

#include "tests/unit/cache_totals.h"
#include "tests/unit/sample_bundle.h"

#include "runtime/experts/expert_cache.h"
#include "runtime/experts/low_copy.h"

#include <fcntl.h>

#define N_EXPERT 12
#define N_FF     40
#define N_FORM   5

#define UP   (1u << MOEC_PROJECTION_UP)
#define PAIR (1u << MOEC_PROJECTION_GATE | 1u << MOEC_PROJECTION_DOWN)

static const uint32_t layers[SAMPLE_MOE] = {0, 2}; /* model layers with experts */

/* Form 0, and those beside it. */
static const struct moec_expert_form forms[N_FORM] = {
    {.copy = 0},
    {.copy = 0, .part = {.projections = UP}},
    {.copy = 1, .part = {.projections = 1u << MOEC_PROJECTION_DOWN, .first_neuron = 7, .n_neuron = 20}},
    {.copy = 2},
    {.copy = 2, .part = {.projections = PAIR}},
};

struct fixture {
    struct sample_fixture of;
    uint32_t sums[N_FORM][SAMPLE_MOE * N_EXPERT];
    struct moec_cache_form beside[N_FORM - 1];
};

static struct moec_record_layout layout_of(const struct fixture *f, uint32_t copy, uint32_t key)
{
    const uint32_t bits = moec_bundle_record(f->of.bundle, copy, key / N_EXPERT, key % N_EXPERT)->bits;
    return moec_record_layout_make(&f->of.sample.config, f->of.sample.codecs[bits]);
}

/* The whole record that a form is a part of; the caller's. */
static uint8_t *record_of(const struct fixture *f, uint32_t copy, uint32_t key)
{
    const struct moec_record_layout layout = layout_of(f, copy, key);
    uint8_t *record = malloc(layout.n_bytes);
    assert_non_null(record);
    sample_record(&f->of.sample, &layout, copy, key / N_EXPERT, key % N_EXPERT, record);
    return record;
}

static struct moec_record_range range_of(const struct fixture *f, uint32_t form, uint32_t key)
{
    const struct moec_record_layout layout = layout_of(f, forms[form].copy, key);
    struct moec_record_range range = {0};
    MUST(moec_record_part_range(&layout, &forms[form].part, &range, &err));
    return range;
}

static struct fixture *make_fixture(uint32_t alignment)
{
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    sample_make(&f->of.sample, N_EXPERT, 36, N_FF, 41);
    f->of.sample.parts.alignment = alignment;
    sample_open(&f->of);
    for (uint32_t form = 0; form < N_FORM; form++) {
        for (uint32_t key = 0; key < SAMPLE_MOE * N_EXPERT; key++) {
            const struct moec_record_range range = range_of(f, form, key);
            uint8_t *record = record_of(f, forms[form].copy, key);
            f->sums[form][key] = moec_crc32c(0, record + range.offset, range.n_bytes);
            free(record);
        }
        if (form > 0)
            f->beside[form - 1] = (struct moec_cache_form){forms[form], f->sums[form]};
    }
    return f;
}

static int set_up(void **state)
{
    *state = make_fixture(64);
    return 0;
}

static int set_up_aligned(void **state)
{
    *state = make_fixture(4096);
    return 0;
}

/* Records at multiples of 512, read by the unit of this device. */
static int set_up_small(void **state)
{
    *state = make_fixture(MOEC_BUNDLE_SMALL_ALIGNMENT);
    return 0;
}

/* The same, as on a device that reads 4096 bytes at least: records begin and end inside its blocks. */
static int set_up_inside(void **state)
{
    struct fixture *f = make_fixture(MOEC_BUNDLE_SMALL_ALIGNMENT);
    f->of.bundle->direct_unit = 4096;
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    sample_close(&f->of);
    free(f);
    return 0;
}

static struct moec_expert_cache *make_cache(const struct fixture *f, uint64_t buffer_bytes)
{
    struct moec_expert_cache *cache = NULL;
    const struct moec_expert_cache_options options = {
        .buffer.n_bytes = buffer_bytes, .records = {.beside = f->beside, .n_beside = N_FORM - 1}};
    MUST(moec_expert_cache_create(f->of.bundle, &options, &cache, &err));
    assert_int_equal(moec_expert_cache_experts(cache)->n_form, N_FORM);
    return cache;
}

static struct moec_expert_request request_of(uint32_t form, uint32_t key)
{
    return (struct moec_expert_request){
        .layer = layers[key / N_EXPERT], .expert = key % N_EXPERT, .form = form};
}

static void assert_rows(const struct moec_matrix *got, const struct moec_matrix *whole,
                        const struct moec_expert_form *form, enum moec_projection projection)
{
    const struct moec_record_part *part = &form->part;
    const bool is_part = part->projections == 0 || (part->projections >> projection & 1u) != 0;
    const uint32_t n = part->n_neuron != 0 ? part->n_neuron : N_FF;
    assert_int_equal(got->rows, is_part ? n : 0);
    for (uint32_t i = 0; i < got->rows; i++)
        assert_memory_equal(got->data + i * got->stride_bytes,
                            whole->data + (part->first_neuron + i) * whole->stride_bytes,
                            moec_codec_row_bytes(whole->codec, whole->columns));
}

/* In the cache's own number of a form. */
static void use_as(const struct fixture *f, struct moec_expert_cache *cache, uint32_t form, uint32_t number,
                   uint32_t key)
{
    struct moec_experts *source = moec_expert_cache_experts(cache);
    const struct moec_record_layout layout = layout_of(f, forms[form].copy, key);
    uint8_t *record = record_of(f, forms[form].copy, key);
    struct moec_mlp mlp, whole;
    moec_record_bind(&layout, record, &whole);
    MUST(source->ops->acquire(source, request_of(number, key), &mlp, &err));
    assert_rows(&mlp.up, &whole.up, &forms[form], MOEC_PROJECTION_UP);
    assert_rows(&mlp.gate, &whole.gate, &forms[form], MOEC_PROJECTION_GATE);
    assert_rows(&mlp.down, &whole.down, &forms[form], MOEC_PROJECTION_DOWN);
    source->ops->release(source, request_of(number, key));
    free(record);
}

static void use(const struct fixture *f, struct moec_expert_cache *cache, uint32_t form, uint32_t key)
{
    use_as(f, cache, form, form, key);
}

/* What a request may read beyond its part: from the block before. */
static uint64_t unit_of(const struct fixture *f)
{
    return f->of.bundle->direct_unit;
}

static void test_expert_forms__a_part_reads_its_bytes_alone(void **state)
{
    const struct fixture *f = *state;
    struct moec_expert_cache *cache = make_cache(f, (uint64_t)8 << 20);
    for (uint32_t form = 0; form < N_FORM; form++) {
        uint64_t n_bytes = 0, before = 0;
        for (uint32_t key = 0; key < SAMPLE_MOE * N_EXPERT; key++) {
            const struct moec_record_range range = range_of(f, form, key);
            const uint64_t first =
                moec_bundle_record(f->of.bundle, forms[form].copy, key / N_EXPERT, key % N_EXPERT)->offset +
                range.offset;
            n_bytes += range.n_bytes;
            before += first % unit_of(f);
            use(f, cache, form, key);
            use(f, cache, form, key); /* which is a hit */
        }
        const struct moec_cache_counters counters = cache_form_totals(cache, form);
        assert_int_equal(counters.misses, SAMPLE_MOE * N_EXPERT);
        assert_int_equal(counters.hits, SAMPLE_MOE * N_EXPERT);
        assert_int_equal(counters.read_bytes, n_bytes + before);
    }
    const struct moec_cache_counters all = cache_totals(cache);
    assert_int_equal(all.misses, N_FORM * SAMPLE_MOE * N_EXPERT);
    assert_int_equal(all.evictions, 0);
    moec_expert_cache_free(cache);
}

/* All forms share the buffer, and give up room to each other. */
static void test_expert_forms__every_budget_gives_the_same_bytes(void **state)
{
    const struct fixture *f = *state;
    const uint64_t largest = moec_record_sizes_of(f->of.bundle, 0).largest_bytes;
    uint64_t random = 9;
    for (uint64_t bytes = largest; bytes < 12 * largest; bytes += largest * 3 / 2) {
        struct moec_expert_cache *cache = make_cache(f, bytes);
        for (uint32_t i = 0; i < 300; i++)
            use(f, cache, random_u32(&random) % N_FORM, random_u32(&random) % (SAMPLE_MOE * N_EXPERT));
        const struct moec_cache_counters counters = cache_totals(cache);
        assert_int_equal(counters.hits + counters.misses, 300);
        assert_true(counters.evictions > 0);
        moec_expert_cache_free(cache);
    }
}

/* ---- pools ---- */

enum { LOW = 3 }; /* of the fixture's forms, form 1 of a cache with pools */

static struct moec_expert_cache *make_pools(const struct fixture *f, uint64_t high_bytes, uint64_t low_bytes)
{
    struct moec_expert_cache *cache = NULL;
    const struct moec_expert_cache_options options = {
        .buffer = {.n_bytes = high_bytes + low_bytes, .low_pool_bytes = low_bytes},
        .records = {.beside = &f->beside[LOW - 1], .n_beside = 1}};
    MUST(moec_expert_cache_create(f->of.bundle, &options, &cache, &err));
    return cache;
}

/* Whatever low copies are asked for, what there is of high ones stays, and the other way about. */
static void test_expert_forms__pools_do_not_evict_each_other(void **state)
{
    const struct fixture *f = *state;
    const uint64_t high = moec_record_sizes_of(f->of.bundle, 0).largest_bytes,
                   low = moec_record_sizes_of(f->of.bundle, 2).largest_bytes;
    struct moec_expert_cache *cache = make_pools(f, 4 * high, 3 * low);
    struct moec_experts *source = moec_expert_cache_experts(cache);
    uint64_t random = 5;
    for (uint32_t round = 0; round < 20; round++) {
        const uint32_t kept[] = {random_u32(&random) % N_EXPERT, N_EXPERT + random_u32(&random) % N_EXPERT};
        const bool is_low = round % 2 == 1;
        const uint32_t form = is_low ? LOW : 0, other = is_low ? 0 : LOW;
        for (int i = 0; i < 2; i++)
            use_as(f, cache, form, is_low, kept[i]);
        const uint64_t n_before = cache_form_totals(cache, is_low).evictions;
        for (uint32_t key = 0; key < SAMPLE_MOE * N_EXPERT; key++)
            use_as(f, cache, other, !is_low, key);
        assert_int_equal(cache_form_totals(cache, is_low).evictions, n_before);
        assert_true(cache_form_totals(cache, !is_low).evictions > 0);
        for (int i = 0; i < 2; i++)
            assert_true(source->ops->ready(source, request_of(is_low, kept[i])));
    }
    moec_expert_cache_free(cache);
}

/* Held records of one pool leave the other its room, at the smallest sizes too. */
static void test_expert_forms__pools_have_room_of_their_own(void **state)
{
    const struct fixture *f = *state;
    const uint64_t high = moec_record_sizes_of(f->of.bundle, 0).largest_bytes,
                   low = moec_record_sizes_of(f->of.bundle, 2).largest_bytes;
    for (uint64_t n = 1; n < 8; n += 3) {
        struct moec_expert_cache *cache = make_pools(f, n * high, n * low);
        struct moec_experts *source = moec_expert_cache_experts(cache);
        struct moec_mlp mlp;
        const uint32_t n_held = source->max_held;
        assert_true(n_held >= 1 && n_held <= n);
        for (uint32_t key = 0; key < n_held; key++)
            MUST(source->ops->acquire(source, request_of(0, key), &mlp, &err));
        for (uint32_t key = 0; key < SAMPLE_MOE * N_EXPERT; key++)
            use_as(f, cache, LOW, 1, key);
        for (uint32_t key = 0; key < n_held; key++)
            source->ops->release(source, request_of(0, key));
        moec_expert_cache_free(cache);
    }
}

/* As many as asked for, else half as many as of high copies; what one pool cannot fill the other has. */
static void test_expert_forms__memory_is_divided_among_pools(void **state)
{
    const struct fixture *f = *state;
    const struct moec_record_sizes high = moec_record_sizes_of(f->of.bundle, 0),
                                   low = moec_record_sizes_of(f->of.bundle, 2);
    const uint64_t least = high.largest_bytes + low.largest_bytes, all = high.all_bytes + low.all_bytes;
    for (uint64_t bytes = least; bytes <= all; bytes += 1000) {
        const uint64_t n_bytes = moec_low_pool_bytes(f->of.bundle, 0, 2, 0, bytes);
        const double n_low = (double)n_bytes / (double)low.all_bytes,
                     n_high = (double)(bytes - n_bytes) / (double)high.all_bytes;
        assert_true(n_bytes >= low.largest_bytes && bytes - n_bytes >= high.largest_bytes);
        if (n_bytes > low.largest_bytes && bytes - n_bytes > high.largest_bytes && n_high < 1)
            assert_true(n_low > 0.499 * n_high && n_low < 0.501 * n_high);
    }
    assert_int_equal(moec_low_pool_bytes(f->of.bundle, 0, 2, 0, all), low.all_bytes);
    assert_int_equal(moec_low_pool_bytes(f->of.bundle, 0, 2, 0, all + 5000), low.all_bytes);
    assert_int_equal(moec_low_pool_bytes(f->of.bundle, 0, 2, N_EXPERT, UINT64_MAX), low.all_bytes);
    const uint64_t third = moec_low_pool_bytes(f->of.bundle, 0, 2, N_EXPERT / 3, all);
    assert_true(third >= low.all_bytes / 3 && third < low.all_bytes / 3 + N_EXPERT);
}

static void refuse_pools(const struct fixture *f, const struct moec_expert_cache_options *options,
                         enum moec_status status, const char *words)
{
    struct moec_expert_cache *cache = NULL;
    struct moec_error err = {0};
    assert_status(moec_expert_cache_create(f->of.bundle, options, &cache, &err), status, err);
    assert_message(err, words);
}

static void test_expert_forms__pools_have_room_for_a_record(void **state)
{
    const struct fixture *f = *state;
    const uint64_t high = moec_record_sizes_of(f->of.bundle, 0).largest_bytes,
                   low = moec_record_sizes_of(f->of.bundle, 2).largest_bytes;
    struct moec_expert_cache_options options = {.buffer = {.n_bytes = high + low, .low_pool_bytes = low - 1},
                                                .records = {.beside = &f->beside[LOW - 1], .n_beside = 1}};
    refuse_pools(f, &options, MOEC_ERR_BUDGET, "for low-precision copies has no room for the largest");
    options.buffer.low_pool_bytes = low + 1;
    refuse_pools(f, &options, MOEC_ERR_BUDGET, "for high-precision copies has no room for the largest");
    options.buffer.low_pool_bytes = high + low + 1;
    refuse_pools(f, &options, MOEC_ERR_USAGE, "one form (precision) of experts besides form 0");
    options.buffer.low_pool_bytes = low;
    options.buffer.least_bytes = high;
    refuse_pools(f, &options, MOEC_ERR_USAGE, "a buffer of fixed size");
    options.buffer.least_bytes = 0;
    options.records.n_beside = 0;
    refuse_pools(f, &options, MOEC_ERR_USAGE, "one form (precision) of experts besides form 0");
}

/* An answer names the form in which its experts will be asked for. */
static void test_expert_forms__answers_are_for_a_form(void **state)
{
    const struct fixture *f = *state;
    static const uint32_t active[] = {2, 5, 9};
    struct moec_expert_cache *cache = make_cache(f, (uint64_t)8 << 20);
    struct moec_experts *source = moec_expert_cache_experts(cache);
    struct moec_router_answer answer = {
        .layer = 2, .form = 1, .n_tok = 1, .active = {.list = active, .n = 3}};
    use(f, cache, 0, N_EXPERT + 5); /* the same expert, another form */
    source->ops->expect(source, &answer);
    for (uint32_t i = 0; i < 2; i++)
        use(f, cache, 1, N_EXPERT + active[i]);
    source->ops->cancel(source, request_of(1, N_EXPERT + 9));
    assert_false(source->ops->ready(source, request_of(0, N_EXPERT + 2)));
    assert_true(source->ops->ready(source, request_of(0, N_EXPERT + 5)));
    assert_true(source->ops->ready(source, request_of(1, N_EXPERT + 2)));
    assert_int_equal(cache_form_totals(cache, 1).misses, 3);
    assert_int_equal(cache_form_totals(cache, 0).misses, 1);
    moec_expert_cache_free(cache);
}

static void flip(const char *path, uint64_t offset)
{
    uint8_t byte = 0;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
    assert_int_equal(close(fd), 0);
}

/* Damage is found in the part where it is, and in the whole. */
static void test_expert_forms__parts_are_checked(void **state)
{
    const struct fixture *f = *state;
    struct moec_expert_cache *cache = make_cache(f, (uint64_t)8 << 20);
    struct moec_experts *source = moec_expert_cache_experts(cache);
    struct moec_mlp mlp;
    const uint32_t key = N_EXPERT + 3;
    const struct moec_record_range pairs = range_of(f, 4, key);
    flip(f->of.path, moec_bundle_record(f->of.bundle, 2, 1, 3)->offset + pairs.offset + 5);
    struct moec_error err = {0};
    assert_status(source->ops->acquire(source, request_of(4, key), &mlp, &err), MOEC_ERR_CHECKSUM, err);
    assert_message(err, "part of the record of layer 2 expert 3 (copy 2)");
    err = (struct moec_error){0};
    assert_status(source->ops->acquire(source, request_of(3, key), &mlp, &err), MOEC_ERR_CHECKSUM, err);
    use(f, cache, 0, key); /* another copy */
    flip(f->of.path, moec_bundle_record(f->of.bundle, 0, 1, 3)->offset + range_of(f, 1, key).n_bytes + 5);
    use(f, cache, 1, key); /* the damage is behind the up projection */
    moec_expert_cache_free(cache);
}

static void refuse(const struct fixture *f, struct moec_cache_form form, uint32_t n_form,
                   enum moec_status status, const char *words)
{
    struct moec_expert_cache *cache = NULL;
    struct moec_error err = {0};
    const struct moec_expert_cache_options options = {.buffer.n_bytes = 1 << 20,
                                                      .records = {.beside = &form, .n_beside = n_form}};
    assert_status(moec_expert_cache_create(f->of.bundle, &options, &cache, &err), status, err);
    assert_message(err, words);
}

static void test_expert_forms__refuses(void **state)
{
    const struct fixture *f = *state;
    const struct moec_expert_form up = forms[1];
    refuse(f, (struct moec_cache_form){.form = up}, 1, MOEC_ERR_UNSUPPORTED, "not of their parts");
    refuse(f, (struct moec_cache_form){.form = {.copy = 3}}, 1, MOEC_ERR_USAGE, "no precision copy 3");
    refuse(f, (struct moec_cache_form){.form = {.pool = (enum moec_expert_pool)1}}, 1, MOEC_ERR_UNSUPPORTED,
           "there is no pool 1 of experts");
    refuse(f, (struct moec_cache_form){.form = {.part = {.first_neuron = 1}}}, 1, MOEC_ERR_USAGE,
           "is not stored next to");
    refuse(f, (struct moec_cache_form){.form = up}, MOEC_CACHE_FORMS, MOEC_ERR_USAGE, "the limit is 7");
    struct moec_expert_cache *cache = make_cache(f, 1 << 20);
    struct moec_experts *source = moec_expert_cache_experts(cache);
    struct moec_error err = {0};
    struct moec_mlp mlp;
    assert_status(source->ops->acquire(source, request_of(N_FORM, 0), &mlp, &err), MOEC_ERR_USAGE, err);
    assert_message(err, "form (precision) 5, expected a form below 5");
    assert_false(source->ops->ready(source, request_of(N_FORM, 0)));
    const uint32_t expert = 0;
    const struct moec_router_answer answer = {
        .layer = 0, .form = N_FORM, .n_tok = 1, .active = {.list = &expert, .n = 1}};
    source->ops->expect(source, &answer);
    assert_int_equal(cache_totals(cache).misses, 0);
    moec_expert_cache_free(cache);
}

/* The smallest copy that is smaller than what runs, or of these the one that is asked for. */
static void test_low_copy__is_the_smallest_that_is_smaller(void **state)
{
    const struct fixture *f = *state;
    struct moec_error err = {0};
    uint32_t low = 99;
    /* Copy 0 is mixed, copy 1 has 2 bits, copy 2 has 8. */
    assert_true(moec_record_sizes_of(f->of.bundle, 1).all_bytes <
                moec_record_sizes_of(f->of.bundle, 0).all_bytes);
    assert_status(moec_low_copy_find(f->of.bundle, 0, 0, &low, &err), MOEC_OK, err);
    assert_int_equal(low, 1);
    assert_status(moec_low_copy_find(f->of.bundle, 2, 0, &low, &err), MOEC_OK, err);
    assert_int_equal(low, 1);
    assert_status(moec_low_copy_find(f->of.bundle, 0, 2, &low, &err), MOEC_OK, err);
    assert_int_equal(low, 1);
    assert_status(moec_low_copy_find(f->of.bundle, 1, 0, &low, &err), MOEC_ERR_USAGE, err);
    assert_message(err, "has no precision copy that is smaller than copy 1");
    err = (struct moec_error){0};
    assert_status(moec_low_copy_find(f->of.bundle, 1, 8, &low, &err), MOEC_ERR_USAGE, err);
    assert_message(err, "has no precision copy at 8 bits that is smaller");
}

#define EACH(name)                                                                                           \
    cmocka_unit_test_setup_teardown(name, set_up, tear_down),                                                \
        cmocka_unit_test_setup_teardown(name, set_up_aligned, tear_down),                                    \
        cmocka_unit_test_setup_teardown(name, set_up_small, tear_down),                                      \
        cmocka_unit_test_setup_teardown(name, set_up_inside, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        EACH(test_expert_forms__a_part_reads_its_bytes_alone),
        EACH(test_expert_forms__every_budget_gives_the_same_bytes),
        EACH(test_expert_forms__pools_do_not_evict_each_other),
        EACH(test_expert_forms__pools_have_room_of_their_own),
        EACH(test_expert_forms__memory_is_divided_among_pools),
        EACH(test_expert_forms__pools_have_room_for_a_record),
        EACH(test_expert_forms__answers_are_for_a_form),
        EACH(test_expert_forms__parts_are_checked),
        EACH(test_expert_forms__refuses),
        cmocka_unit_test_setup_teardown(test_low_copy__is_the_smallest_that_is_smaller, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
