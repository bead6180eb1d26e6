/* Bundles that have a model's shapes alone: they are whole, are measured as other bundles are, and describe the
 * whole model. */
#include "tests/unit/temporary.h"

#include "formats/checkpoint/checkpoint.h"
#include "formats/codec/search_codecs.h"
#include "profiler/device/device_measure.h"
#include "profiler/device/device_shape.h"

static const uint8_t digest[MOEC_SHA256_BYTES] = {1, 2, 3};

/* The config of a checkpoint: too large for the stack. */
static struct moec_config *read_config(const char *path)
{
    struct moec_checkpoint *checkpoint = NULL;
    struct moec_config *config = malloc(sizeof *config);
    struct moec_error err = {0};
    assert_non_null(config);
    assert_status(moec_checkpoint_open_config(path, &checkpoint, &err), MOEC_OK, err);
    *config = *moec_checkpoint_config(checkpoint);
    moec_checkpoint_close(checkpoint);
    return config;
}

static struct moec_device_shape *make(const struct moec_config *config)
{
    struct moec_device_shape *shape = calloc(1, sizeof *shape);
    assert_non_null(shape);
    moec_device_shape_make(config, shape);
    return shape;
}

/* Times are not compared, only that each was measured. */
static void measure(const char *path, struct moec_device *device)
{
    const struct moec_emulation storage = {.bytes_per_second = 50000000, .latency_ns = 7};
    struct moec_device_options options = {
        .n_threads = 1, .compute_ns = 1000000, .experts_bytes = 1u << 30, .emulation = &storage};
    struct moec_bundle *bundle = NULL;
    struct moec_error err = {0};
    assert_status(moec_kernels_find("scalar", &options.kernels, &err), MOEC_OK, err);
    assert_status(moec_bundle_verify(path, NULL, NULL, &err), MOEC_OK, err);
    assert_status(moec_bundle_open(path, &bundle, &err), MOEC_OK, err);
    assert_true(moec_device_shape_is_of(bundle));
    assert_status(moec_device_measure(bundle, &options, device, &err), MOEC_OK, err);
    moec_bundle_close(bundle);
}

static void test_device_shape__stands_for_a_model(void **state)
{
    (void)state;
    static const char *const families[] = {"datasets/sample/model",
                                           "tests/fixtures/families/mixtral",
                                           "tests/fixtures/families/gpt_oss",
                                           "tests/fixtures/families/gpt_oss-mxfp4",
                                           "tests/fixtures/families/deepseek_v3",
                                           "tests/fixtures/families/hash_moe",
                                           "tests/fixtures/families/longcat_flash",
                                           "tests/fixtures/families/switch",
                                           "tests/fixtures/families/kimi_linear"};
    char *folder = temporary_folder(), *path = temporary_path(folder, "shape.moec");
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        struct moec_config *config = read_config(families[f]);
        struct moec_device_shape *shape = make(config);
        struct moec_device device;
        struct moec_error err = {0};
        assert_int_equal(shape->config.n_layer, config->n_layer); /* they are small */
        assert_status(moec_device_shape_write(shape, digest, "a model", path, &err), MOEC_OK, err);
        measure(path, &device);
        assert_int_equal(device.n_layer, config->n_layer);
        assert_true(device.n_products >= 2 * (4 + 1));
        for (uint32_t l = 0; l < device.n_layer; l++) {
            assert_int_equal(device.layers[l].is_moe, moec_config_is_moe(config, l));
            assert_int_equal(device.layers[l].experts_ns > 0, device.layers[l].is_moe);
        }
        moec_device_release(&device);
        free(shape);
        free(config);
    }
    free(path);
    temporary_remove(folder);
}

/* What an expert takes follows from the codecs of its projections. */
static void check_experts(const struct moec_config *config, const struct moec_device *device)
{
    struct moec_codec codecs[MOEC_CODEC_TABLE] = {{0}};
    struct moec_error err = {0};
    uint32_t n = 0;
    assert_status(moec_search_codecs_of_experts(MOEC_DTYPE_BF16, &codecs[MOEC_CODEC_FIRST_OTHER], &n, &err),
                  MOEC_OK, err);
    assert_int_equal(n, 4);
    const uint8_t a = MOEC_CODEC_FIRST_OTHER, b = MOEC_CODEC_FIRST_OTHER + 3;
    const struct moec_variant variants[] = {{{a, a, a}}, {{b, b, b}}, {{a, b, a}}, {{b, a, b}}};
    double ns[4];
    for (size_t v = 0; v < 4; v++) {
        const struct moec_record_layout layout = moec_record_layout_of(config, variants[v], codecs);
        ns[v] = moec_device_expert_ns(device, &layout);
        assert_true(ns[v] > 0);
    }
    assert_true(ns[0] + ns[1] == ns[2] + ns[3]);
    const struct moec_record_layout other =
        moec_record_layout_make(config, (struct moec_codec){.dtype = MOEC_DTYPE_INT4, .group = 32});
    assert_true(moec_device_expert_ns(device, &other) == 0); /* was not measured */
}

static void test_device_shape__layers_stand_for_their_kind(void **state)
{
    (void)state;
    char *folder = temporary_folder(), *path = temporary_path(folder, "shape.moec");
    struct moec_config *config = read_config("datasets/sample/model");
    struct moec_device_shape *shape = make(config);
    struct moec_device device;
    struct moec_error err = {0};
    assert_string_equal(shape->order, "0x6");
    (void)strcpy(shape->order, "0x40");
    assert_status(moec_device_shape_write(shape, digest, "a model", path, &err), MOEC_OK, err);
    measure(path, &device);
    assert_int_equal(device.n_layer, 40);
    for (uint32_t l = 1; l < 40; l++)
        assert_memory_equal(&device.layers[l], &device.layers[0], sizeof *device.layers);
    assert_true(device.token_ns > 34 * (device.layers[0].mlp_ns + device.layers[0].attention_ns));
    assert_int_equal(device.products_ns, 0);
    check_experts(config, &device);
    moec_device_release(&device);
    free(shape);
    free(config);
    free(path);
    temporary_remove(folder);
}

static void test_device_shape__keeps_few_layers_of_a_large_model(void **state)
{
    (void)state;
    struct moec_config *config = read_config("tests/fixtures/families/deepseek_v3");
    const struct moec_layer_kind dense = *moec_config_layer(config, 0);
    const struct moec_layer_kind moe = *moec_config_layer(config, config->n_layer - 1);
    assert_true(!dense.is_moe && moe.is_moe);
    config->n_layer = config->n_kind = 0;
    memset(config->layer_kind, 0, sizeof config->layer_kind);
    for (uint32_t l = 0; l < 61; l++)
        assert_true(moec_config_add_layer(config, l < 3 ? &dense : &moe));
    struct moec_device_shape *shape = make(config);
    assert_string_equal(shape->order, "0x3 1x58");
    assert_int_equal(shape->config.n_layer, 61); /* all of them are less than caches hold */
    free(shape);
    config->n_ff_expert = 1u << 19;
    shape = make(config);
    assert_string_equal(shape->order, "0x3 1x58");
    assert_int_equal(shape->config.n_layer, 2);
    assert_int_equal(moec_config_moe_count(&shape->config), 1);
    free(shape);
    free(config);
}

static void test_device_shape__refuses_an_order_that_is_none(void **state)
{
    (void)state;
    static const char *const orders[] = {"0x5", "1x6", "0x", "x6", "0x6,", "0x99999999", "0x0 0x6", "six"};
    char *folder = temporary_folder(), *path = temporary_path(folder, "shape.moec");
    struct moec_config *config = read_config("datasets/sample/model");
    struct moec_device_shape *shape = make(config);
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        struct moec_bundle *bundle = NULL;
        struct moec_device device = {.n_layer = 6};
        struct moec_error err = {0};
        (void)strcpy(shape->order, orders[i]);
        assert_status(moec_device_shape_write(shape, digest, "a model", path, &err), MOEC_OK, err);
        assert_status(moec_bundle_open(path, &bundle, &err), MOEC_OK, err);
        assert_int_equal(moec_device_shape_expand(bundle, &device, &err), MOEC_ERR_FORMAT);
        assert_non_null(strstr(err.message, orders[i]));
        moec_bundle_close(bundle);
    }
    free(shape);
    free(config);
    free(path);
    temporary_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_shape__stands_for_a_model),
        cmocka_unit_test(test_device_shape__layers_stand_for_their_kind),
        cmocka_unit_test(test_device_shape__keeps_few_layers_of_a_large_model),
        cmocka_unit_test(test_device_shape__refuses_an_order_that_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
