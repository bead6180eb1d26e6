/* Weights that are stored with factors in a tensor of their own: FP8 in blocks, MXFP4. What they decode to
 * stands beside them (tests/fixtures/make_scaled.py). */
#include "tests/unit/fixture_model.h"
#include "tests/unit/temporary.h"
#include "tests/unit/tensor_entry.h"

#include "formats/checkpoint/safetensors.h"
#include "formats/checkpoint/safetensors_source.h"
#include "formats/checkpoint/tensor_view.h"

#include <math.h>

#define SCALED "tests/fixtures/scaled"

static float *decoded(const struct moec_tensor_source *source, const char *name, uint64_t n)
{
    struct moec_tensor tensor;
    struct moec_error err = {0};
    assert_true(source->find(source, name, &tensor));
    assert_int_equal(tensor.n_bytes, n * sizeof(float));
    float *weights = malloc(n * sizeof *weights);
    assert_non_null(weights);
    assert_ok(source->read(source, tensor.file, tensor.offset, weights, n * sizeof *weights, &err), err);
    return weights;
}

/* A view of a matrix gives these weights, whole and in part, as they stand and as its transpose. */
static void check_view(const struct moec_tensor_source *source, const struct moec_tensor_view *view,
                       const float *expected, size_t row_step, size_t column_step)
{
    struct moec_tensor_reader reader = {.source = source, .view = *view, .name = "x"};
    const size_t rows = view->rows, columns = view->columns, some = rows < 5 ? rows : 5;
    struct moec_error err = {0};
    float *weights = malloc(rows * columns * sizeof *weights);
    assert_non_null(weights);
    assert_ok(moec_tensor_read_matrix(&reader, weights, &err), err);
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < columns; c++)
            assert_memory_equal(&weights[r * columns + c], &expected[r * row_step + c * column_step],
                                sizeof *weights);
    reader.scratch = malloc(moec_tensor_scratch_bytes(view));
    float *few = malloc(some * columns * sizeof *few);
    assert_true(reader.scratch != NULL && few != NULL);
    for (size_t first = 0; first + some <= rows; first += 3) {
        assert_ok(moec_tensor_read_rows(&reader, first, some, few, &err), err);
        assert_memory_equal(few, weights + first * columns, some * columns * sizeof *few);
    }
    free(few);
    free(reader.scratch);
    free(weights);
}

static void test_scaled__weights_are_those_of_the_references(void **state)
{
    (void)state;
    static const struct {
        const char *name, *decoded;
        struct moec_tensor_layout layout;
        uint32_t rows, columns, n_expert;
    } cases[] = {
        {"edges.weight", "edges.weight.decoded", {0}, 130, 140, 1},
        {"every.weight", "every.weight.decoded", {0}, 1, 256, 1},
        {"stacked", "stacked.decoded", {.is_stacked = true}, 129, 6, 2},
        {"tensor.weight", "tensor.weight.decoded", {0}, 6, 9, 1},
        {"one.weight", "one.weight.decoded", {0}, 6, 9, 1},
        {"rows.weight", "rows.weight.decoded", {0}, 150, 9, 1},
        {"matrices.weight", "matrices.weight.decoded", {.is_stacked = true}, 6, 9, 3},
        {"columns.weight", "columns.weight.decoded", {.is_stacked = true}, 6, 140, 3},
        {"all.weight", "all.weight.decoded", {.is_stacked = true}, 6, 9, 3},
        {"mx_blocks", "mx.decoded", {.is_stacked = true}, 6, 64, 3},
        {"mx_blocks",
         "mx.decoded",
         {.is_stacked = true, .n_part = 2, .part = 1, .is_interleaved = true},
         3,
         64,
         3},
        {"mx_blocks", "mx.decoded", {.is_stacked = true, .n_part = 2, .part = 1}, 3, 64, 3},
    };
    struct moec_tensor_source *source = NULL;
    struct moec_error err = {0};
    assert_ok(moec_safetensors_source_open(SCALED, &source, &err), err);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint32_t n_part = cases[i].layout.n_part > 0 ? cases[i].layout.n_part : 1;
        const size_t n = (size_t)cases[i].rows * n_part * cases[i].columns;
        float *expected = decoded(source, cases[i].decoded, n * cases[i].n_expert);
        for (uint32_t expert = 0; expert < cases[i].n_expert; expert++) {
            const bool takes_turns = cases[i].layout.is_interleaved;
            const size_t columns = cases[i].columns, row_step = columns * (takes_turns ? n_part : 1);
            const float *first =
                expected + expert * n + cases[i].layout.part * columns * (takes_turns ? 1 : cases[i].rows);
            struct moec_tensor tensor;
            struct moec_tensor_view view;
            assert_true(source->find(source, cases[i].name, &tensor));
            assert_ok(moec_tensor_view_make(&tensor, cases[i].layout,
                                            (struct moec_tensor_wanted){cases[i].rows, cases[i].columns,
                                                                        expert, cases[i].n_expert},
                                            cases[i].name, &view, &err),
                      err);
            assert_int_equal(moec_tensor_view_dtype(&view), MOEC_DTYPE_F32);
            check_view(source, &view, first, row_step, 1);
            const struct moec_tensor_view turned = moec_tensor_view_transpose(&view);
            check_view(source, &turned, first, 1, row_step);
        }
        free(expected);
    }
    source->free(source);
}

static void check_model(const char *name)
{
    struct fixture fixture = fixture_open(name);
    const uint32_t n_vocab = moec_checkpoint_config(fixture.checkpoint)->n_vocab;
    float *logits = fixture_run(&fixture, moec_kernels_best(), 1, fixture.n_tok, fixture.tokens,
                                fixture.n_tok, fixture.n_tok);
    for (uint32_t t = 0; t < fixture.n_tok; t++) {
        const float *ours = logits + (size_t)t * n_vocab, *theirs = fixture.logits + (size_t)t * n_vocab;
        float low = theirs[0], high = theirs[0], worst = 0;
        for (uint32_t i = 0; i < n_vocab; i++) {
            low = fminf(low, theirs[i]);
            high = fmaxf(high, theirs[i]);
            worst = fmaxf(worst, fabsf(ours[i] - theirs[i]));
        }
        assert_true(worst <= 1e-4f * (high - low));
    }
    free(logits);
    fixture_close(&fixture);
}

static void test_scaled__models_give_the_reference_s_logits(void **state)
{
    (void)state;
    check_model("olmoe-fp8");
    check_model("olmoe-fp8-rows");
}

/* Replaces the first `from` in a file by `to` of the same length. */
static void patch(const char *folder, const char *name, const char *from, const char *to)
{
    size_t n = 0;
    uint8_t *bytes = temporary_read(folder, name, &n), *at = memmem(bytes, n, from, strlen(from));
    assert_non_null(at);
    assert_int_equal(strlen(from), strlen(to));
    memcpy(at, to, strlen(to));
    temporary_write(folder, name, bytes, n);
    free(bytes);
}

static void refuse_in(const char *family, const char *name, const char *from, const char *to,
                      enum moec_status status, const char *part)
{
    char *folder = temporary_folder();
    struct moec_checkpoint *checkpoint = NULL;
    struct moec_error err = {0};
    temporary_copy(family, folder);
    patch(folder, name, from, to);
    assert_status(moec_checkpoint_open(folder, &checkpoint, &err), status, err);
    assert_message(err, part);
    temporary_remove(folder);
}

static void refuse(const char *name, const char *from, const char *to, enum moec_status status,
                   const char *part)
{
    refuse_in("tests/fixtures/families/olmoe-fp8", name, from, to, status, part);
}

/* What compressed-tensors also is. */
static void test_scaled__other_compressed_tensors_are_refused(void **state)
{
    (void)state;
    static const char folder[] = "tests/fixtures/families/olmoe-fp8-rows";
    static const char *const changes[][2] = {{"\"float-quantized\"", "\"packed-quantize\""},
                                             {"\"channel\"", "\"group00\""},
                                             {"\"num_bits\": 8", "\"num_bits\": 4"},
                                             {"\"type\": \"float\"", "\"type\": \"intxx\""},
                                             {"\"config_groups\"", "\"config_gruops\""}};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
        refuse_in(folder, "config.json", changes[i][0], changes[i][1], MOEC_ERR_UNSUPPORTED,
                  "'compressed-tensors' of format 'float-quantized' with 8 bits");
    refuse_in(folder, "model.safetensors", "0.self_attn.q_proj.weight_scale",
              "0.self_attn.q_proj.weight_scalx", MOEC_ERR_UNSUPPORTED, "F8_E4M3 without factors");
}

static void test_scaled__what_cannot_be_decoded_is_refused(void **state)
{
    (void)state;
    refuse("config.json", "\"fp8\"", "\"awq\"", MOEC_ERR_UNSUPPORTED, "moec reads only 'mxfp4', 'fp8'");
    refuse("config.json", "\"weight_block_size\": [\n      128,", "\"weight_block_size\": [\n       64,",
           MOEC_ERR_UNSUPPORTED, "'weight_block_size' of [128, 128]");
    refuse("model.safetensors", "0.self_attn.q_proj.weight_scale_inv", "0.self_attn.q_proj.weight_scale_xxx",
           MOEC_ERR_UNSUPPORTED, "F8_E4M3 without factors for the tensor, its rows or blocks of 128 x 128");
    /* A factor that is not a number shows when the weights are read. */
    char *folder = temporary_folder();
    struct moec_safetensors_entry entry;
    struct moec_checkpoint *checkpoint = NULL;
    struct moec_safetensors file;
    struct moec_error err = {0};
    size_t n = 0;
    temporary_copy("tests/fixtures/families/olmoe-fp8", folder);
    char *path = temporary_path(folder, "model.safetensors");
    assert_ok(moec_safetensors_open(&file, path, &err), err);
    entry = *tensor_entry(&file, "model.layers.0.mlp.experts.1.up_proj.weight_scale_inv");
    uint8_t *bytes = temporary_read(folder, "model.safetensors", &n);
    memset(bytes + entry.offset, 0xff, 4);
    temporary_write(folder, "model.safetensors", bytes, n);
    moec_safetensors_close(&file);
    assert_ok(moec_checkpoint_open(folder, &checkpoint, &err), err);
    float *weights = malloc(3 * sizeof *weights * 130 * 132);
    assert_non_null(weights);
    assert_status(moec_checkpoint_load_expert(
                      checkpoint, 0, 1,
                      (struct moec_expert_floats){weights, weights + 130 * 132, weights + 2 * 130 * 132},
                      &err),
                  MOEC_ERR_FORMAT, err);
    assert_message(err, "experts.1.up_proj.weight");
    assert_message(err, "has NaN at [0, 0]");
    free(weights);
    free(bytes);
    free(path);
    moec_checkpoint_close(checkpoint);
    temporary_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scaled__weights_are_those_of_the_references),
        cmocka_unit_test(test_scaled__models_give_the_reference_s_logits),
        cmocka_unit_test(test_scaled__other_compressed_tensors_are_refused),
        cmocka_unit_test(test_scaled__what_cannot_be_decoded_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
