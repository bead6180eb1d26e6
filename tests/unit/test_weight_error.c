/* The first look: errors of weights, beside what decoding a record gives, and at any number of threads. */
#include "tests/unit/status.h"

#include "formats/base/memory.h"
#include "profiler/sensitivity/weight_error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_BITS 3

static const uint32_t bits[N_BITS] = {2, 4, 8};

static void codecs_make(const struct moec_config *config, struct moec_codec *codecs)
{
    struct moec_codec table[MOEC_CODEC_TABLE];
    MUST(moec_codec_table(MOEC_QUANTIZER_LINEAR, MOEC_SCHEME_SYMMETRIC, 0,
                          (enum moec_dtype)config->expert_dtype, table, &err));
    for (uint32_t b = 0; b < N_BITS; b++)
        codecs[b] = table[bits[b]];
}

static double *measure(struct moec_checkpoint *checkpoint, int n_threads)
{
    const struct moec_config *config = moec_checkpoint_config(checkpoint);
    struct moec_codec codecs[N_BITS];
    codecs_make(config, codecs);
    double *errors =
        calloc((size_t)moec_config_moe_count(config) * config->n_expert * N_BITS, sizeof *errors);
    const struct moec_weight_error_request request = {
        .checkpoint = checkpoint, .codecs = codecs, .n_bits = N_BITS, .n_threads = n_threads};
    MUST(moec_weight_error_measure(&request, errors, &err));
    return errors;
}

/* Of rows (n_row, n_column), encoded one by one. */
static void add_rows(struct moec_codec codec, const float *rows, uint32_t n_row, uint32_t n_column,
                     double *error, double *energy)
{
    uint8_t *coded = calloc(1, moec_codec_row_bytes(codec, n_column) + 64);
    float *decoded = calloc(n_column, sizeof *decoded);
    for (uint32_t r = 0; r < n_row; r++) {
        const float *row = rows + (size_t)r * n_column;
        MUST(moec_codec_encode_row(codec, row, n_column, coded, &err));
        moec_codec_decode_row(codec, coded, n_column, decoded);
        for (uint32_t c = 0; c < n_column; c++) {
            *energy += (double)row[c] * row[c];
            *error += ((double)decoded[c] - row[c]) * ((double)decoded[c] - row[c]);
        }
    }
    free(coded);
    free(decoded);
}

/* down is stored transposed: a neuron's column is a row. */
static void test_weight_error__is_that_of_encoded_rows(void **state)
{
    (void)state;
    static const char *const models[] = {"datasets/sample/model", "tests/fixtures/families/switch"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        struct moec_checkpoint *checkpoint = NULL;
        MUST(moec_checkpoint_open(models[m], &checkpoint, &err));
        const struct moec_config *config = moec_checkpoint_config(checkpoint);
        const uint32_t n_ff = config->n_ff_expert, n_embd = config->n_embd;
        const size_t n = (size_t)n_ff * n_embd;
        const uint32_t last = moec_config_moe_count(config) - 1, expert = config->n_expert - 1;
        float *gate = calloc(n, sizeof *gate), *up = calloc(n, sizeof *up), *down = calloc(n, sizeof *down),
              *turned = calloc(n, sizeof *turned);
        struct moec_codec codecs[N_BITS];
        codecs_make(config, codecs);
        double *errors = measure(checkpoint, 2);
        MUST(moec_checkpoint_load_expert(checkpoint, moec_config_moe_layer(config, last), expert,
                                         (struct moec_expert_floats){gate, up, down}, &err));
        for (uint32_t i = 0; i < n_embd; i++)
            for (uint32_t j = 0; j < n_ff; j++)
                turned[(size_t)j * n_embd + i] = down[(size_t)i * n_ff + j];
        for (uint32_t b = 0; b < N_BITS; b++) {
            double error = 0, energy = 0;
            if (moec_config_mlp_matrices(config) == 3)
                add_rows(codecs[b], gate, n_ff, n_embd, &error, &energy);
            add_rows(codecs[b], up, n_ff, n_embd, &error, &energy);
            add_rows(codecs[b], turned, n_ff, n_embd, &error, &energy);
            const double got = errors[((size_t)last * config->n_expert + expert) * N_BITS + b];
            assert_true(got > 0 && fabs(got - error / energy) <= 1e-9 * got);
        }
        free(gate);
        free(up);
        free(down);
        free(turned);
        free(errors);
        moec_checkpoint_close(checkpoint);
    }
}

static void test_weight_error__same_bits_at_any_thread_count(void **state)
{
    (void)state;
    struct moec_checkpoint *checkpoint = NULL;
    MUST(moec_checkpoint_open("datasets/sample/model", &checkpoint, &err));
    const struct moec_config *config = moec_checkpoint_config(checkpoint);
    const size_t n = (size_t)moec_config_moe_count(config) * config->n_expert * N_BITS;
    double *one = measure(checkpoint, 1), *three = measure(checkpoint, 3);
    assert_memory_equal(one, three, n * sizeof *one);
    for (size_t i = 0; i < n; i += N_BITS)
        assert_true(one[i] > one[i + 1] && one[i + 1] > one[i + 2] && one[i + 2] > 0);
    free(one);
    free(three);
    moec_checkpoint_close(checkpoint);
}

static enum moec_status stop(void *context, const char *phase, double done, double total)
{
    (void)context;
    (void)phase;
    return 2 * done > total ? MOEC_ERR_CANCELLED : MOEC_OK;
}

static void test_weight_error__stops_when_told(void **state)
{
    (void)state;
    struct moec_checkpoint *checkpoint = NULL;
    struct moec_error stopped = {0};
    struct moec_codec codecs[N_BITS];
    const struct moec_progress progress = {.report = stop};
    MUST(moec_checkpoint_open("datasets/sample/model", &checkpoint, &err));
    const struct moec_config *config = moec_checkpoint_config(checkpoint);
    codecs_make(config, codecs);
    double *errors =
        calloc((size_t)moec_config_moe_count(config) * config->n_expert * N_BITS, sizeof *errors);
    const struct moec_weight_error_request request = {
        .checkpoint = checkpoint, .codecs = codecs, .n_bits = N_BITS, .n_threads = 2, .progress = &progress};
    assert_int_equal(moec_weight_error_measure(&request, errors, &stopped), MOEC_ERR_CANCELLED);
    free(errors);
    moec_checkpoint_close(checkpoint);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weight_error__is_that_of_encoded_rows),
        cmocka_unit_test(test_weight_error__same_bits_at_any_thread_count),
        cmocka_unit_test(test_weight_error__stops_when_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
