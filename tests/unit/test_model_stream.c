/* Streamed dense weights are the resident ones: the same bytes from the source, the same logits from the
 * forward pass, whatever little of them is kept. */
#include "tests/unit/dense_load.h"
#include "tests/unit/fixture_model.h"

#include "runtime/forward/weights/model_test_hook.h"

#include <inttypes.h>

static const uint32_t widths[] = {16, 8, 4};

struct bytes {
    uint8_t *at;
    uint64_t n, room;
};

static enum moec_status collect(void *context, const uint8_t *bytes, size_t n, struct moec_error *err)
{
    struct bytes *all = context;
    (void)err;
    assert_true(n <= all->room - all->n);
    if (n > 0)
        memcpy(all->at + all->n, bytes, n);
    all->n += n;
    return MOEC_OK;
}

/* Layers of other kinds than those fixtures have: latents, running states, layers of one part. */
static const char *const other_kinds[] = {"deepseek_v3", "qwen3_next", "nemotron_h", "kimi_linear"};
#define N_STREAMED (N_FIXTURE_FAMILIES + N_FIXTURE_PAIRS + sizeof other_kinds / sizeof *other_kinds)

static const char *streamed_name(size_t i)
{
    if (i < N_FIXTURE_FAMILIES)
        return fixture_families[i];
    i -= N_FIXTURE_FAMILIES;
    return i < N_FIXTURE_PAIRS ? fixture_pairs[i] : other_kinds[i - N_FIXTURE_PAIRS];
}

static void test_model_stream__emits_the_bytes_of_the_blob(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_STREAMED; f++) {
        struct fixture fixture = fixture_open(streamed_name(f));
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
            struct moec_error err = {0};
            struct moec_dense blob = {0}, stream = {0};
            assert_ok(dense_load(fixture.checkpoint, widths[i], 0, &blob, &err), err);
            assert_ok(moec_checkpoint_stream_dense(fixture.checkpoint, widths[i], 0, &stream, &err), err);
            assert_null(stream.blob);
            assert_null(blob.source);
            assert_int_equal(stream.blob_bytes, blob.blob_bytes);
            struct bytes all = {.at = malloc(blob.blob_bytes), .room = blob.blob_bytes};
            assert_non_null(all.at);
            assert_ok(moec_dense_emit(&stream, collect, &all, &err), err);
            assert_int_equal(all.n, blob.blob_bytes);
            assert_memory_equal(all.at, blob.blob, all.n);
            all.n = 0;
            assert_ok(moec_dense_emit(&blob, collect, &all, &err), err);
            assert_int_equal(all.n, blob.blob_bytes);
            assert_memory_equal(all.at, blob.blob, all.n);
            free(all.at);
            moec_dense_release(&blob);
            moec_dense_release(&stream);
        }
        fixture_close(&fixture);
    }
}

/* Rows of a tensor alone are the rows of the whole, transposed tensors included. */
static void test_model_stream__makes_any_rows_alone(void **state)
{
    (void)state;
    struct fixture fixture = fixture_open("qwen2_moe");
    struct moec_error err = {0};
    struct moec_dense blob = {0}, stream = {0};
    assert_ok(dense_load(fixture.checkpoint, 8, 32, &blob, &err), err);
    assert_ok(moec_checkpoint_stream_dense(fixture.checkpoint, 8, 32, &stream, &err), err);
    for (uint32_t i = 0; i < stream.n_entries; i++) {
        const struct moec_dense_entry *entry = &stream.entries[i];
        const size_t row_bytes = moec_codec_row_bytes(entry->codec, entry->columns);
        uint8_t *rows = malloc(entry->rows * row_bytes);
        assert_non_null(rows);
        for (uint32_t first = 0; first < entry->rows; first += 1 + first / 2) {
            const uint32_t n = entry->rows - first < 3 ? entry->rows - first : 3;
            assert_ok(stream.source->load(stream.source, entry, first, n, rows, &err), err);
            assert_memory_equal(rows, blob.blob + entry->offset + first * row_bytes, n * row_bytes);
        }
        free(rows);
    }
    moec_dense_release(&blob);
    moec_dense_release(&stream);
    fixture_close(&fixture);
}

static struct moec_model *open_model(const struct moec_checkpoint *checkpoint, uint32_t bits, bool streamed,
                                     uint64_t keep_bytes)
{
    struct moec_error err = {0};
    struct moec_dense dense = {0};
    struct moec_model *model = NULL;
    if (streamed)
        assert_ok(moec_checkpoint_stream_dense(checkpoint, bits, 0, &dense, &err), err);
    else
        assert_ok(dense_load(checkpoint, bits, 0, &dense, &err), err);
    assert_ok(
        moec_model_create_streamed(moec_checkpoint_config(checkpoint), &dense, keep_bytes, &model, &err),
        err);
    assert_int_equal(model->stream != NULL, streamed);
    return model;
}

static void check_logits(struct fixture *fixture, uint32_t bits, uint64_t keep_bytes)
{
    const struct moec_kernels *kernels = moec_kernels_best();
    const size_t n = (size_t)fixture->n_tok * fixture->model->config.n_vocab;
    struct moec_model *own = fixture->model;
    char what[160];
    fixture->model = open_model(fixture->checkpoint, bits, false, 0);
    float *expected = fixture_run(fixture, kernels, 2, 8, fixture->tokens, fixture->n_tok, 8);
    moec_model_free(fixture->model);
    fixture->model = open_model(fixture->checkpoint, bits, true, keep_bytes);
    for (uint32_t chunk = 1; chunk <= 8; chunk += 7) {
        float *logits = fixture_run(fixture, kernels, 2, 8, fixture->tokens, fixture->n_tok, chunk);
        snprintf(what, sizeof what, "%s, %u bits, keeping %" PRIu64 " bytes, chunks of %u", fixture->name,
                 bits, keep_bytes, chunk);
        assert_same_bits(logits, expected, n, what);
        free(logits);
    }
    moec_model_free(fixture->model);
    free(expected);
    fixture->model = own;
}

static void test_model_stream__gives_the_logits_of_the_resident_model(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_STREAMED; f++) {
        struct fixture fixture = fixture_open(streamed_name(f));
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
            check_logits(&fixture, widths[i], 0);
            check_logits(&fixture, widths[i], (uint64_t)1 << 30);
        }
        fixture_close(&fixture);
    }
}

/* The sample's vocabulary is longer than the smallest block of the head. */
static void test_model_stream__takes_the_head_in_blocks(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_checkpoint *checkpoint = NULL;
    assert_ok(moec_checkpoint_open("datasets/sample/model", &checkpoint, &err), err);
    struct moec_model *resident = open_model(checkpoint, 16, false, 0);
    struct moec_model *streamed = open_model(checkpoint, 16, true, 0);
    const uint32_t n_vocab = resident->config.n_vocab;
    uint32_t n_blocks = 0;
    for (uint32_t row = 0; row < n_vocab; n_blocks++) {
        struct moec_matrix some = {0}, all = {0};
        assert_ok(moec_model_acquire_head(streamed, row, &some, &err), err);
        assert_ok(moec_model_acquire_head(resident, row, &all, &err), err);
        assert_int_equal(all.rows, n_vocab - row);
        assert_true(some.rows > 0 && some.rows <= all.rows);
        assert_memory_equal(some.data, all.data, some.rows * some.stride_bytes);
        moec_model_release_head(streamed, row);
        moec_model_release_head(resident, row);
        row += some.rows;
    }
    assert_true(n_blocks > 1);
    moec_model_free(streamed);
    moec_model_free(resident);
    moec_checkpoint_close(checkpoint);
}

/* What is kept stays within its room; what is held stays whatever the room. */
static void test_model_stream__keeps_what_it_may(void **state)
{
    (void)state;
    struct fixture fixture = fixture_open("qwen2_moe");
    struct moec_error err = {0};
    struct moec_model *least = open_model(fixture.checkpoint, 16, true, 0);
    struct moec_model *all = open_model(fixture.checkpoint, 16, true, (uint64_t)1 << 30);
    assert_true(moec_model_bytes(least) < moec_model_bytes(all));
    const struct moec_layer *held[MOEC_MAX_LAYERS];
    const uint32_t n_layer = least->config.n_layer;
    for (uint32_t layer = 0; layer < n_layer; layer++)
        assert_ok(moec_model_acquire_layer(least, layer, &held[layer], &err), err);
    for (uint32_t layer = 0; layer < n_layer; layer++) {
        const struct moec_matrix *expected = &fixture.model->layers[layer].q;
        assert_memory_equal(held[layer]->q.data, expected->data, expected->rows * expected->stride_bytes);
        assert_ptr_equal(held[layer]->attention_norm, least->layers[layer].attention_norm);
        moec_model_release_layer(least, layer);
    }
    moec_model_free(all);
    moec_model_free(least);
    fixture_close(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_stream__emits_the_bytes_of_the_blob),
        cmocka_unit_test(test_model_stream__makes_any_rows_alone),
        cmocka_unit_test(test_model_stream__gives_the_logits_of_the_resident_model),
        cmocka_unit_test(test_model_stream__takes_the_head_in_blocks),
        cmocka_unit_test(test_model_stream__keeps_what_it_may),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
