#include "tests/unit/temporary.h"

#include "formats/base/half.h"
#include "formats/model/dense_join.h"
#include "formats/model/plan.h"
#include "formats/model/record.h"

#include <math.h>

#define N_FF   83 /* more than one transposed block, and an incomplete one */
#define N_EMBD 50

static struct moec_config sample(void)
{
    struct moec_config c = {
        .n_layer = 3,
        .n_embd = N_EMBD,
        .n_vocab = 11,
        .n_expert = 5,
        .n_ff_expert = N_FF,
        .n_ff_shared = 7,
        .mlp.shared_gate = true,
        .n_kind = 2,
        .kinds = {{.n_head = 4, .n_kv_head = 2, .head_dim = 6, .qkv_bias = true, .is_moe = true},
                  {.n_head = 4, .n_kv_head = 2, .head_dim = 6, .qkv_bias = true, .n_ff_dense = 9}},
        .layer_kind = {0, 1, 0}};
    return c;
}

/* ---- expert records ---- */

static const struct moec_codec codecs[] = {
    {.dtype = MOEC_DTYPE_F32},
    {.dtype = MOEC_DTYPE_F16},
    {.dtype = MOEC_DTYPE_BF16},
    {.dtype = MOEC_DTYPE_INT2, .scheme = 0, .group = 0},
    {.dtype = MOEC_DTYPE_INT3, .scheme = 1, .group = 32},
    {.dtype = MOEC_DTYPE_INT4, .scheme = 0, .group = 64},
    {.dtype = MOEC_DTYPE_INT8, .scheme = 1, .group = 128},
};
#define N_CODECS (sizeof codecs / sizeof *codecs)

struct expert {
    float gate[N_FF * N_EMBD], up[N_FF * N_EMBD], down[N_EMBD * N_FF];
};

static struct expert *random_expert(uint64_t seed)
{
    struct expert *expert = malloc(sizeof *expert);
    assert_non_null(expert);
    for (size_t i = 0; i < N_FF * N_EMBD; i++) {
        expert->gate[i] = random_float(&seed);
        expert->up[i] = random_float(&seed);
        expert->down[i] = random_float(&seed);
    }
    return expert;
}

static void assert_row(const struct moec_matrix *matrix, uint32_t row, const float *expected)
{
    uint8_t bytes[4 * N_EMBD];
    struct moec_error err = {0};
    size_t n = moec_codec_row_bytes(matrix->codec, N_EMBD);
    assert_status(moec_codec_encode_row(matrix->codec, expected, N_EMBD, bytes, &err), MOEC_OK, err);
    assert_memory_equal(matrix->data + row * matrix->stride_bytes, bytes, n);
}

static void test_record__sections_hold_rows_and_pairs(void **state)
{
    (void)state;
    struct moec_config config = sample();
    struct expert *expert = random_expert(8);
    for (size_t c = 0; c < N_CODECS; c++) {
        struct moec_record_layout layout = moec_record_layout_make(&config, codecs[c]);
        struct moec_mlp mlp;
        struct moec_error err = {0};
        assert_int_equal(layout.row_bytes[MOEC_PROJECTION_UP], moec_codec_row_bytes(codecs[c], N_EMBD));
        assert_int_equal(layout.up_bytes, N_FF * layout.row_bytes[MOEC_PROJECTION_UP]);
        assert_int_equal(layout.pair_bytes, 2 * N_FF * layout.row_bytes[MOEC_PROJECTION_UP]);
        assert_int_equal(layout.n_bytes, 3 * N_FF * layout.row_bytes[MOEC_PROJECTION_UP]);
        uint8_t *record = malloc(layout.n_bytes);
        assert_non_null(record);
        assert_status(moec_record_encode(&layout, expert->gate, expert->up, expert->down, record, &err),
                      MOEC_OK, err);
        assert_true(moec_record_is_finite(&layout, record));
        moec_record_bind(&layout, record, &mlp);
        assert_ptr_equal(mlp.up.data, record);
        assert_ptr_equal(mlp.gate.data, record + layout.up_bytes);
        assert_ptr_equal(mlp.down.data, record + layout.up_bytes + layout.row_bytes[MOEC_PROJECTION_UP]);
        assert_int_equal(mlp.up.stride_bytes, layout.row_bytes[MOEC_PROJECTION_UP]);
        assert_int_equal(mlp.gate.stride_bytes, 2 * layout.row_bytes[MOEC_PROJECTION_UP]);
        assert_int_equal(mlp.down.stride_bytes, 2 * layout.row_bytes[MOEC_PROJECTION_UP]);
        for (uint32_t i = 0; i < N_FF; i++) {
            float column[N_EMBD];
            for (size_t e = 0; e < N_EMBD; e++)
                column[e] = expert->down[e * N_FF + i];
            assert_row(&mlp.up, i, expert->up + i * N_EMBD);
            assert_row(&mlp.gate, i, expert->gate + i * N_EMBD);
            assert_row(&mlp.down, i, column);
        }
        free(record);
    }
    free(expert);
}

static struct moec_record_range range_of(const struct moec_record_layout *layout,
                                         struct moec_record_part part)
{
    struct moec_record_range range = {0};
    MUST(moec_record_part_range(layout, &part, &range, &err));
    return range;
}

static void refuse_part(const struct moec_record_layout *layout, struct moec_record_part part,
                        const char *words)
{
    struct moec_record_range range;
    struct moec_error err = {0};
    assert_status(moec_record_part_range(layout, &part, &range, &err), MOEC_ERR_USAGE, err);
    assert_message(err, words);
}

#define PART(projection) (1u << MOEC_PROJECTION_##projection)

static void test_record__parts_stand_in_one_piece(void **state)
{
    (void)state;
    struct moec_config config = sample();
    const struct moec_record_layout gated = moec_record_layout_make(&config, codecs[5]);
    config.mlp.plain = true;
    const struct moec_record_layout plain = moec_record_layout_make(&config, codecs[5]);
    const uint64_t row = gated.row_bytes[MOEC_PROJECTION_UP];
    struct moec_record_range range = range_of(&gated, (struct moec_record_part){0});
    assert_true(range.offset == 0 && range.n_bytes == gated.n_bytes);
    range = range_of(&gated, (struct moec_record_part){.projections = PART(UP)});
    assert_true(range.offset == 0 && range.n_bytes == gated.up_bytes);
    range = range_of(&gated, (struct moec_record_part){PART(UP), 3, 10});
    assert_true(range.offset == 3 * row && range.n_bytes == 10 * row);
    range = range_of(&gated, (struct moec_record_part){PART(GATE), 3, 0});
    assert_true(range.offset == gated.up_bytes + 6 * row && range.n_bytes == (N_FF - 3) * 2 * row);
    range = range_of(&plain, (struct moec_record_part){PART(DOWN), N_FF - 1, 1});
    assert_true(range.offset == plain.up_bytes + (N_FF - 1) * row && range.n_bytes == row);
    refuse_part(&plain, (struct moec_record_part){.projections = PART(GATE)},
                "projections 0x1 of an expert were requested");
    refuse_part(&gated, (struct moec_record_part){.projections = 8},
                "projections 0x8 of an expert were requested");
    refuse_part(&gated, (struct moec_record_part){.first_neuron = N_FF}, "neurons");
    refuse_part(&gated, (struct moec_record_part){PART(UP), 1, N_FF}, "neurons");
    refuse_part(&gated, (struct moec_record_part){PART(UP), UINT32_MAX, UINT32_MAX}, "neurons");
    refuse_part(&gated, (struct moec_record_part){PART(UP) | PART(DOWN), 0, 4}, "is not stored next to");
}

/* Rows that a part binds are those of the record. */
static void test_record__parts_bind_their_own_rows(void **state)
{
    (void)state;
    struct moec_config config = sample();
    struct expert *expert = random_expert(10);
    const struct moec_record_layout layout = moec_record_layout_make(&config, codecs[4]);
    uint8_t *record = malloc(layout.n_bytes);
    struct moec_mlp mlp;
    assert_non_null(record);
    MUST(moec_record_encode(&layout, expert->gate, expert->up, expert->down, record, &err));
    struct moec_record_part part = {PART(UP), 5, 20};
    moec_record_part_bind(&layout, &part, record + range_of(&layout, part).offset, &mlp);
    assert_true(mlp.up.rows == 20 && mlp.gate.rows == 0 && mlp.down.rows == 0);
    for (uint32_t i = 0; i < 20; i++)
        assert_row(&mlp.up, i, expert->up + (5 + i) * N_EMBD);
    part = (struct moec_record_part){PART(GATE), 11, 0};
    moec_record_part_bind(&layout, &part, record + range_of(&layout, part).offset, &mlp);
    assert_true(mlp.up.rows == 0 && mlp.gate.rows == N_FF - 11 && mlp.down.rows == 0);
    for (uint32_t i = 0; i < mlp.gate.rows; i++)
        assert_row(&mlp.gate, i, expert->gate + (11 + i) * N_EMBD);
    part = (struct moec_record_part){.projections = PART(UP) | PART(DOWN)};
    moec_record_part_bind(&layout, &part, record, &mlp);
    assert_true(mlp.up.rows == N_FF && mlp.gate.rows == 0 && mlp.down.rows == N_FF);
    assert_ptr_equal(mlp.down.data, record + layout.up_bytes + layout.row_bytes[MOEC_PROJECTION_GATE]);
    free(record);
    free(expert);
}

static void test_record__bad_weights_are_named(void **state)
{
    (void)state;
    struct moec_config config = sample();
    struct moec_record_layout layout = moec_record_layout_make(&config, codecs[3]);
    struct expert *expert = random_expert(9);
    uint8_t *record = malloc(layout.n_bytes);
    struct moec_error err = {0};
    assert_non_null(record);
    expert->down[7 * N_FF + 80] = NAN;
    assert_status(moec_record_encode(&layout, expert->gate, expert->up, expert->down, record, &err),
                  MOEC_ERR_FORMAT, err);
    assert_message(err, "down projection, neuron 80: weight 7 of the row is NaN");
    expert->gate[3 * N_EMBD + 2] = INFINITY;
    err = (struct moec_error){0};
    assert_status(moec_record_encode(&layout, expert->gate, expert->up, expert->down, record, &err),
                  MOEC_ERR_FORMAT, err);
    assert_message(err, "gate projection, neuron 3: weight 2 of the row is infinite");
    free(record);
    free(expert);
}

static void test_record__damage_is_seen(void **state)
{
    (void)state;
    struct moec_config config = sample();
    struct expert *expert = random_expert(10);
    for (size_t c = 0; c < N_CODECS; c++) {
        struct moec_record_layout layout = moec_record_layout_make(&config, codecs[c]);
        struct moec_error err = {0};
        uint8_t *record = malloc(layout.n_bytes);
        assert_non_null(record);
        assert_status(moec_record_encode(&layout, expert->gate, expert->up, expert->down, record, &err),
                      MOEC_OK, err);
        /* The last row's last bytes: its last float, or its last scale with the zeros behind. */
        size_t zeros = codecs[c].scheme != 0 ? moec_codec_row_groups(codecs[c], N_EMBD) : 0;
        memset(record + layout.n_bytes - zeros - 2, 0xff, 2);
        assert_false(moec_record_is_finite(&layout, record));
        free(record);
    }
    free(expert);
}

static void test_record__transposing_any_dtype(void **state)
{
    (void)state;
    enum { ROWS = 37, COLUMNS = 53, FIRST = 5, COUNT = 41 };
    float source[ROWS * COLUMNS], out[COUNT * ROWS + 1];
    uint16_t halves[ROWS * COLUMNS];
    uint64_t seed = 12;
    for (size_t i = 0; i < ROWS * COLUMNS; i++) /* exact in every dtype */
        source[i] = (float)(int32_t)(random_u32(&seed) % 255) - 127;
    for (int dtype = MOEC_DTYPE_F32; dtype <= MOEC_DTYPE_BF16; dtype++) {
        for (size_t i = 0; i < ROWS * COLUMNS; i++)
            halves[i] = dtype == MOEC_DTYPE_F16 ? moec_f32_to_f16(source[i]) : moec_f32_to_bf16(source[i]);
        out[COUNT * ROWS] = 1234.5f;
        moec_transpose_to_f32(
            (struct moec_float_matrix){(enum moec_dtype)dtype,
                                       dtype == MOEC_DTYPE_F32 ? (void *)source : (void *)halves, ROWS,
                                       COLUMNS},
            FIRST, COUNT, out);
        assert_true(out[COUNT * ROWS] == 1234.5f);
        for (size_t i = 0; i < COUNT; i++)
            for (size_t j = 0; j < ROWS; j++)
                assert_true(out[i * ROWS + j] == source[j * COLUMNS + FIRST + i]);
    }
}

/* ---- dense table ---- */

static struct moec_codec int4_where_allowed(void *context, enum moec_role role, uint32_t layer)
{
    (void)layer;
    ++*(int *)context;
    if (moec_role_is_quantisable(role))
        return (struct moec_codec){.dtype = MOEC_DTYPE_INT4};
    return (struct moec_codec){.dtype = MOEC_DTYPE_F32};
}

static struct moec_codec int4_everywhere(void *context, enum moec_role role, uint32_t layer)
{
    (void)context;
    (void)role;
    (void)layer;
    return (struct moec_codec){.dtype = MOEC_DTYPE_INT4};
}

static void test_record__dense_table_lists_what_the_config_has(void **state)
{
    (void)state;
    struct moec_config config = sample();
    struct moec_dense dense;
    struct moec_matrix matrix;
    struct moec_error err = {0};
    int calls = 0;
    assert_status(moec_dense_create(&config, int4_where_allowed, &calls, &dense, &err), MOEC_OK, err);
    /* 9 of attention and norms in each of 3 layers, 5 more in 2 MoE layers, 3 in the dense one, 3 of no
     * layer. */
    assert_int_equal(dense.n_entries, 3 * 9 + 2 * 5 + 3 + 3);
    assert_int_equal(calls, dense.n_entries);
    assert_int_equal((uintptr_t)dense.blob % 64, 0);
    assert_status(moec_dense_check(&dense, &config, &err), MOEC_OK, err);
    uint64_t end = 0;
    for (uint32_t i = 0; i < dense.n_entries; i++) {
        const struct moec_dense_entry *entry = &dense.entries[i];
        assert_int_equal(entry->offset, (end + 63) / 64 * 64);
        end = entry->offset + entry->n_bytes;
        assert_true(moec_dense_find(&dense, (enum moec_role)entry->role, entry->layer, &matrix));
        assert_ptr_equal(matrix.data, dense.blob + entry->offset);
        assert_int_equal((uint64_t)matrix.rows * matrix.stride_bytes, entry->n_bytes);
    }
    assert_true(moec_dense_find(&dense, MOEC_ROLE_SHARED_DOWN, 2, &matrix));
    assert_int_equal(matrix.rows, 7);
    assert_int_equal(matrix.columns, N_EMBD);
    assert_true(moec_dense_find(&dense, MOEC_ROLE_HEAD, MOEC_LAYER_NONE, &matrix));
    assert_false(moec_dense_find(&dense, MOEC_ROLE_ROUTER, 1, &matrix));
    assert_false(moec_dense_find(&dense, MOEC_ROLE_DENSE_UP, 0, &matrix));
    assert_false(moec_dense_find(&dense, MOEC_ROLE_Q_NORM, 0, &matrix));
    assert_false(moec_dense_find(&dense, MOEC_ROLE_Q, 3, &matrix));
    moec_dense_release(&dense);
    moec_dense_release(&dense);
    moec_dense_release(NULL);
    config.head.is_tied = true;
    assert_status(moec_dense_create(&config, int4_where_allowed, &calls, &dense, &err), MOEC_OK, err);
    assert_false(moec_dense_find(&dense, MOEC_ROLE_HEAD, MOEC_LAYER_NONE, &matrix));
    moec_dense_release(&dense);
    assert_status(moec_dense_create(&config, int4_everywhere, NULL, &dense, &err), MOEC_ERR_FORMAT, err);
    assert_message(err, "'attention norm' of layer 0 is quantised");
}

static void refuse_table_of(const struct moec_dense *dense, struct moec_config config, const char *part)
{
    struct moec_error err = {0};
    assert_status(moec_dense_check(dense, &config, &err), MOEC_ERR_FORMAT, err);
    assert_message(err, part);
}

/* Parts become one matrix each again if they are all rows in one codec. */
static void check_joined(const struct moec_config *divided)
{
    const struct moec_config whole = sample();
    struct moec_dense parts, dense = {0};
    struct moec_error err = {0};
    int calls = 0;
    assert_status(moec_dense_create(divided, int4_where_allowed, &calls, &parts, &err), MOEC_OK, err);
    const uint32_t n_entries = parts.n_entries;
    struct moec_dense_entry *rest = &parts.entries[n_entries - 1];
    rest->codec.dtype = MOEC_DTYPE_INT8;
    assert_status(moec_dense_join(&whole, &parts, &dense, &err), MOEC_ERR_MISMATCH, err);
    assert_message(err, "the parts of 'head' have two codecs");
    rest->codec.dtype = MOEC_DTYPE_INT4;
    err = (struct moec_error){0};
    rest->rows--;
    assert_status(moec_dense_join(&whole, &parts, &dense, &err), MOEC_ERR_MISMATCH, err);
    assert_message(err, "the parts of 'head' do not have its ");
    rest->rows++;
    assert_int_equal(parts.n_entries, n_entries);
    assert_null(dense.entries);
    err = (struct moec_error){0};
    assert_status(moec_dense_join(&whole, &parts, &dense, &err), MOEC_OK, err);
    assert_null(parts.entries);
    assert_int_equal(dense.n_entries, n_entries - 2);
    assert_status(moec_dense_check(&dense, &whole, &err), MOEC_OK, err);
    moec_dense_release(&dense);
}

/* Rows of the embedding and of a head of its own, in two matrices each. */
static void test_record__dense_table_of_frequent_tokens(void **state)
{
    (void)state;
    struct moec_config config = sample();
    struct moec_dense dense;
    struct moec_matrix matrix;
    struct moec_error err = {0};
    int calls = 0;
    const uint32_t n_plain = moec_plan_dense_count(&config);
    config.n_frequent = 5;
    assert_int_equal(moec_plan_dense_count(&config), n_plain + 2);
    assert_status(moec_dense_create(&config, int4_where_allowed, &calls, &dense, &err), MOEC_OK, err);
    static const enum moec_role roles[] = {MOEC_ROLE_EMBEDDING, MOEC_ROLE_HEAD, MOEC_ROLE_EMBEDDING_REST,
                                           MOEC_ROLE_HEAD_REST};
    for (size_t i = 0; i < 4; i++) {
        assert_true(moec_dense_find(&dense, roles[i], MOEC_LAYER_NONE, &matrix));
        assert_int_equal(matrix.rows, i < 2 ? 5 : config.n_vocab - 5);
        assert_int_equal(matrix.columns, N_EMBD);
        assert_int_equal(moec_role_whole(roles[i]), roles[i % 2]);
        assert_true(moec_role_is_quantisable(roles[i]));
    }
    refuse_table_of(&dense, sample(), "'embedding' has shape [5, ");
    struct moec_config other = config;
    other.n_frequent = 6;
    refuse_table_of(&dense, other, "'embedding' has shape [5, ");
    dense.n_entries -= 2; /* the rest of both comes last */
    refuse_table_of(&dense, config, "'embedding of rare tokens' is missing");
    dense.n_entries++;
    refuse_table_of(&dense, config, "'head of rare tokens' is missing");
    dense.n_entries++;
    struct moec_dense_entry *rest = &dense.entries[dense.n_entries - 1];
    rest->role = MOEC_ROLE_EMBEDDING_REST;
    refuse_table_of(&dense, config, "expected 'head of rare tokens' in this place");
    rest->role = MOEC_ROLE_HEAD_REST;
    rest->rows++;
    refuse_table_of(&dense, config, "'head of rare tokens' has shape");
    rest->rows--;
    rest->n_bytes -= rest->n_bytes / rest->rows;
    refuse_table_of(&dense, config, "'head of rare tokens' has");
    moec_dense_release(&dense);
    check_joined(&config);
    config.head.is_tied = true;
    assert_status(moec_dense_create(&config, int4_where_allowed, &calls, &dense, &err), MOEC_OK, err);
    assert_true(moec_dense_find(&dense, MOEC_ROLE_EMBEDDING_REST, MOEC_LAYER_NONE, &matrix));
    assert_false(moec_dense_find(&dense, MOEC_ROLE_HEAD_REST, MOEC_LAYER_NONE, &matrix));
    moec_dense_release(&dense);
}

static void refuse_table(const struct moec_dense *dense, const char *part)
{
    refuse_table_of(dense, sample(), part);
}

#define DAMAGED(change, part)                                                                                \
    do {                                                                                                     \
        struct moec_dense_entry kept = dense.entries[5];                                                     \
        struct moec_dense_entry *e = &dense.entries[5];                                                      \
        change;                                                                                              \
        refuse_table(&dense, part);                                                                          \
        dense.entries[5] = kept;                                                                             \
    } while (0)

static void test_record__dense_table_is_checked(void **state)
{
    (void)state;
    struct moec_config config = sample();
    struct moec_dense dense;
    struct moec_error err = {0};
    int calls = 0;
    assert_status(moec_dense_create(&config, int4_where_allowed, &calls, &dense, &err), MOEC_OK, err);
    DAMAGED(e->role = MOEC_ROLE_ROUTER, "expected 'q bias' of layer 0");
    DAMAGED(e->role = 0xffffffffu, "unknown role");
    DAMAGED(e->layer = 1, "of layer 1, expected");
    DAMAGED(e->rows++, "has shape [2, 24], expected [1, 24]");
    DAMAGED(e->columns = 23, "has shape");
    DAMAGED(e->codec.dtype = MOEC_DTYPE_INT8, "is quantised");
    DAMAGED(e->codec.dtype = 99, "unknown codec dtype 99");
    DAMAGED(e->codec.dtype = MOEC_DTYPE_F16, "expected 48");
    DAMAGED(e->n_bytes += 64, "expected 96");
    DAMAGED(e->offset += 1, "expected a multiple of 64");
    DAMAGED(e->offset -= 64, "expected a multiple of 64 that is at least 2884");
    DAMAGED(e->offset = 0, "expected a multiple of 64 that is at least 2884");
    DAMAGED(e->offset = UINT64_MAX - 63, "does not fit in the dense weights");
    dense.n_entries--;
    refuse_table(&dense, "is missing");
    dense.n_entries += 1;
    dense.blob_bytes -= 192;
    refuse_table(&dense, "does not fit in the dense weights");
    dense.blob_bytes += 192;
    config.n_layer = 2;
    assert_status(moec_dense_check(&dense, &config, &err), MOEC_ERR_FORMAT, err);
    moec_dense_release(&dense);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_record__sections_hold_rows_and_pairs),
        cmocka_unit_test(test_record__parts_stand_in_one_piece),
        cmocka_unit_test(test_record__parts_bind_their_own_rows),
        cmocka_unit_test(test_record__bad_weights_are_named),
        cmocka_unit_test(test_record__damage_is_seen),
        cmocka_unit_test(test_record__transposing_any_dtype),
        cmocka_unit_test(test_record__dense_table_lists_what_the_config_has),
        cmocka_unit_test(test_record__dense_table_of_frequent_tokens),
        cmocka_unit_test(test_record__dense_table_is_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
