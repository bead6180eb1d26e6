/* Weights that are no numbers are found while a checkpoint's digest is made, wherever pieces end. */
#include "tests/unit/fixture_checkpoint.h"
#include "tests/unit/tensor_entry.h"

#include "formats/checkpoint/finite_check.h"
#include "formats/checkpoint/safetensors.h"

#include <math.h>

/* Where a tensor's bytes begin in a file of safetensors. */
static uint64_t offset_of(const char *path, const char *tensor)
{
    struct moec_safetensors file;
    struct moec_error err = {0};
    assert_status(moec_safetensors_open(&file, path, &err), MOEC_OK, err);
    const struct moec_safetensors_entry *entry = tensor_entry(&file, tensor);
    assert_non_null(entry);
    const uint64_t offset = entry->offset;
    moec_safetensors_close(&file);
    return offset;
}

/* Looks through the files in pieces of n_piece bytes. */
static enum moec_status check_in_pieces(const char *folder, size_t n_piece, struct moec_error *err)
{
    struct moec_checkpoint *ck = open_good(folder);
    struct moec_finite_check check;
    enum moec_status status = moec_finite_check_begin(ck, &check, err);
    for (uint32_t f = 0; f < ck->source->n_file; f++) {
        const struct moec_file *file = ck->source->file(ck->source, f);
        uint8_t *bytes = malloc(n_piece);
        assert_non_null(bytes);
        for (uint64_t offset = 0; offset < file->n_bytes && status == MOEC_OK; offset += n_piece) {
            const size_t n = file->n_bytes - offset < n_piece ? (size_t)(file->n_bytes - offset) : n_piece;
            assert_status(moec_file_read(file, offset, bytes, n, err), MOEC_OK, *err);
            status = moec_finite_check_bytes(&check, f, offset, bytes, n, err);
        }
        free(bytes);
    }
    moec_finite_check_release(&check);
    moec_checkpoint_close(ck);
    return status;
}

static enum moec_status digest(const char *folder, struct moec_error *err)
{
    struct moec_checkpoint *ck = open_good(folder);
    uint8_t sha[MOEC_SHA256_BYTES];
    const enum moec_status status = moec_checkpoint_digest(ck, NULL, NULL, sha, err);
    moec_checkpoint_close(ck);
    return status;
}

static void expect_found(const char *folder, const char *part)
{
    static const size_t pieces[] = {1, 3, 7, 64, 4096, 1 << 20};
    struct moec_error err = {0};
    assert_status(digest(folder, &err), MOEC_ERR_FORMAT, err);
    assert_message(err, part);
    assert_message(err, "expected finite numbers");
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        struct moec_error again = {0};
        assert_status(check_in_pieces(folder, pieces[i], &again), MOEC_ERR_FORMAT, again);
        assert_string_equal(again.message, err.message);
    }
}

static void test_finite_check__every_dtype(void **state)
{
    (void)state;
    static const struct {
        const char *fixture, *file, *tensor;
        size_t at; /* byte of the tensor */
        const char *bytes;
        size_t n;
        const char *part;
    } cases[] = {
        {"qwen2_moe", "model-00001-of-00002.safetensors", "model.layers.0.mlp.experts.1.down_proj.weight",
         2 * 13, "\x80\x7f", 2, "tensor 'model.layers.0.mlp.experts.1.down_proj.weight' in '"},
        {"qwen2_moe", "model-00001-of-00002.safetensors", "model.layers.0.mlp.experts.1.down_proj.weight",
         2 * 13, "\x80\x7f", 2, "model-00001-of-00002.safetensors' has infinity at [1, 2] (offset "},
        {"qwen2_moe", "model-00002-of-00002.safetensors", "lm_head.weight", 2 * 64, "\xc0\xff", 2,
         "tensor 'lm_head.weight' in '"},
        {"olmoe-b", "model.safetensors", "model.norm.weight", 2 * 3, "\x00\xfc", 2,
         "has -infinity at [0, 3] (offset "},
        {"olmoe", "model.safetensors", "model.layers.1.mlp.gate.weight", 4 * 33, "\x00\x00\xc0\x7f", 4,
         "has NaN at ["},
        {"olmoe-fp8", "model.safetensors", "model.layers.0.mlp.experts.1.up_proj.weight", 5, "\xff", 1,
         "has NaN at [0, 5] (offset "},
        {"olmoe-fp8", "model.safetensors", "model.layers.0.mlp.experts.1.gate_proj.weight_scale_inv", 4,
         "\x00\x00\x80\x7f", 4, "a factor of tensor 'model.layers.0.mlp.experts.1.gate_proj.weight' in '"},
        {"olmoe-fp8-rows", "model.safetensors", "model.layers.0.mlp.experts.0.down_proj.weight_scale", 4 * 30,
         "\x00\x00\x80\xff", 4, "has -infinity at [30, 0] (offset "},
        {"gpt_oss-mxfp4", "model.safetensors", "model.layers.0.mlp.experts.down_proj_scales", 33, "\xff", 1,
         "has NaN at [33, 0] (offset "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *folder = temporary_folder(), *path = temporary_path(folder, cases[i].file), fixture[128];
        struct moec_error err = {0};
        size_t n = 0;
        (void)snprintf(fixture, sizeof fixture, FAMILIES "%s", cases[i].fixture);
        temporary_copy(fixture, folder);
        assert_status(digest(folder, &err), MOEC_OK, err);
        assert_status(check_in_pieces(folder, 5, &err), MOEC_OK, err);
        uint8_t *file = temporary_read(folder, cases[i].file, &n);
        memcpy(file + offset_of(path, cases[i].tensor) + cases[i].at, cases[i].bytes, cases[i].n);
        temporary_write(folder, cases[i].file, file, n);
        expect_found(folder, cases[i].part);
        free(file);
        free(path);
        temporary_remove(folder);
    }
}

/* Of a stacked tensor every expert's part is looked at, and the first that is wrong is named; what the model
 * does not need may be anything. */
static void test_finite_check__the_first_of_several(void **state)
{
    (void)state;
    static const char stacked[] = "tests/fixtures/stacked/qwen2_moe", name[] = "model.safetensors";
    char *folder = temporary_folder(), *path = temporary_path(folder, name);
    size_t n = 0;
    temporary_copy(stacked, folder);
    uint8_t *file = temporary_read(folder, name, &n);
    uint8_t *tensor = file + offset_of(path, "model.layers.0.mlp.experts.gate_up_proj");
    for (size_t expert = 5; expert > 2; expert--) {
        memcpy(tensor + 2 * (expert * 22 * 32 + 40), "\x80\x7f", 2);
        char part[64];
        (void)snprintf(part, sizeof part, "has infinity at [%zu, 8] (offset ", expert * 22 + 1);
        temporary_write(folder, name, file, n);
        expect_found(folder, part);
    }
    free(file);
    free(path);
    temporary_remove(folder);
}

/* The digest is that of the bytes, as it was before anyone looked at them. */
static void test_finite_check__gguf(void **state)
{
    (void)state;
    char *folder = temporary_folder(), *path = temporary_path(folder, "x.gguf");
    struct moec_error err = {0};
    size_t n = 0;
    uint8_t *file = temporary_read("tests/fixtures/gguf", "olmoe.gguf", &n);
    temporary_write(folder, "x.gguf", file, n);
    struct moec_checkpoint *ck = open_good(path);
    const struct moec_checkpoint_tensor last =
        moec_checkpoint_expert_tensor(ck, ck->config.n_layer - 1, moec_config_moe_count(&ck->config) - 1,
                                      ck->config.n_expert - 1, MOEC_PROJECTION_DOWN);
    const struct moec_tensor_view view = *last.view;
    const size_t item = view.tensor.coding->block_bytes;
    memset(file + view.tensor.offset + (view.step.first + (size_t)view.rows * view.columns - 1) * item, 0xff,
           item);
    moec_checkpoint_close(ck);
    assert_status(digest(path, &err), MOEC_OK, err);
    temporary_write(folder, "x.gguf", file, n);
    expect_found(path, "tensor 'blk.2.ffn_down_exps.weight' in '");
    expect_found(path, "has NaN at [");
    free(file);
    free(path);
    temporary_remove(folder);
}

/* Random blocks of every type of ggml: what their scales say is what they decode to. */
static void test_finite_check__blocks_of_ggml(void **state)
{
    (void)state;
    uint64_t seed = 7;
    uint32_t n_type = 0;
    for (uint32_t number = 0; number < 64; number++) {
        const struct moec_ggml_type *type = moec_ggml_type_find(number);
        uint32_t n_bad = 0;
        if (type == NULL || type->decode == NULL)
            continue;
        n_type++;
        for (uint32_t round = 0; round < 1000; round++) {
            uint8_t blocks[2 * 256];
            float weights[2 * 256];
            bool are_finite = true;
            for (size_t i = 0; i < 2 * type->block_bytes; i++)
                blocks[i] = (uint8_t)random_u32(&seed);
            type->decode(blocks, 2 * type->block_weights, weights);
            for (size_t i = 0; i < 2 * type->block_weights; i++)
                are_finite = are_finite && isfinite(weights[i]);
            assert_int_equal(moec_ggml_are_finite(type, blocks, 2), are_finite);
            n_bad += !are_finite;
        }
        assert_true(n_bad > 5);
    }
    assert_int_equal(n_type, 22);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finite_check__every_dtype),
        cmocka_unit_test(test_finite_check__the_first_of_several),
        cmocka_unit_test(test_finite_check__gguf),
        cmocka_unit_test(test_finite_check__blocks_of_ggml),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
