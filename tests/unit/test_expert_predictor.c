/* Learned predictors: the section of a bundle, what is made of an input, and fits. */
#include "tests/unit/temporary.h"

#include "tests/unit/kernel_sets.h"
#include "tests/unit/sample_bundle.h"

#include "compiler/predictor/predictor_fit.h"
#include "formats/bundle/bundle_format.h"
#include "formats/bundle/bundle_predictor.h"
#include "profiler/common/random.h"
#include "runtime/engine/mode.h"
#include "runtime/forward/context/learned_predictor.h"

#include <math.h>

static float drawn(struct moec_random *random)
{
    return (float)((double)(moec_random_next(random) >> 40) * 0x1p-23 - 1);
}

static void fill_rows(struct moec_expert_predictor *predictor, const struct moec_matrix *matrix,
                      struct moec_random *random)
{
    struct moec_error err = {0};
    float row[256];
    for (uint32_t r = 0; r < matrix->rows; r++) {
        for (uint32_t c = 0; c < matrix->columns; c++)
            row[c] = drawn(random);
        assert_ok(moec_codec_encode_row(matrix->codec, row, matrix->columns,
                                        moec_predictor_row(predictor, matrix, r), &err),
                  err);
    }
}

/* Of a model with two MoE layers: the first has 5 hidden units, the second is its stack's last. */
static struct moec_expert_predictor predictor_make(const struct moec_config *config)
{
    struct moec_expert_predictor predictor;
    struct moec_error err = {0};
    struct moec_random random = {7};
    bool is_known[MOEC_MAX_LAYERS] = {false};
    uint32_t n_hidden[MOEC_MAX_LAYERS] = {0};
    for (uint32_t s = 0; s + 1 < moec_config_moe_count(config); s++) {
        is_known[s] = true;
        n_hidden[s] = s == 0 ? 5 : 0;
    }
    assert_ok(moec_expert_predictor_create(config, is_known, n_hidden, &predictor, &err), err);
    for (uint32_t s = 0; s < predictor.n_layer; s++) {
        const struct moec_predictor_layer *layer = &predictor.layers[s];
        fill_rows(&predictor, &layer->direct, &random);
        fill_rows(&predictor, &layer->hidden, &random);
        fill_rows(&predictor, &layer->out, &random);
        for (uint32_t e = 0; is_known[s] && e < predictor.n_expert; e++)
            layer->bias[e] = drawn(&random);
        for (uint32_t u = 0; u < layer->n_hidden; u++)
            layer->hidden_bias[u] = drawn(&random);
    }
    predictor.n_token = 1234;
    predictor.data_digest[5] = 6;
    predictor.recall = 0.75;
    predictor.gate_recall = 0.5;
    return predictor;
}

/* ---- the section ---- */

static void test_expert_predictor__the_section_holds_one(void **state)
{
    (void)state;
    struct sample sample;
    struct moec_error err = {0};
    sample_make(&sample, 3, 8, 4, 1);
    struct moec_expert_predictor predictor = predictor_make(&sample.config), read;
    uint8_t *bytes = NULL, *again = NULL;
    size_t n = 0, n_again = 0;
    assert_ok(moec_expert_predictor_encode(&predictor, &bytes, &n, &err), err);
    uint64_t expected = 80 + 4 * (uint64_t)predictor.n_layer;
    for (uint32_t s = 0; s < predictor.n_layer; s++)
        if (predictor.layers[s].is_known)
            expected += moec_predictor_layer_bytes(&sample.config, predictor.layers[s].n_hidden);
    assert_int_equal(n, expected);
    assert_ok(moec_expert_predictor_decode(bytes, n, &sample.config, &read, &err), err);
    assert_true(read.n_token == 1234 && read.recall == 0.75 && read.gate_recall == 0.5);
    assert_ok(moec_expert_predictor_encode(&read, &again, &n_again, &err), err);
    assert_int_equal(n, n_again);
    assert_memory_equal(bytes, again, n);
    moec_expert_predictor_release(&read);
    for (size_t short_by = 1; short_by <= n; short_by++)
        assert_status(moec_expert_predictor_decode(bytes, n - short_by, &sample.config, &read, &err),
                      MOEC_ERR_FORMAT, err);
    const size_t lists_at = 80, bias_at = lists_at + 4 * predictor.n_layer;
    const struct {
        size_t at;
        uint8_t value;
        enum moec_status status;
    } wrong[] = {
        {0, 2, MOEC_ERR_UNSUPPORTED},
        {4, 9, MOEC_ERR_FORMAT},
        {8, 9, MOEC_ERR_FORMAT},
        {12, 9, MOEC_ERR_FORMAT},
        {63, 0x40, MOEC_ERR_FORMAT},
        {71, 0xff, MOEC_ERR_FORMAT},
        {72, 1, MOEC_ERR_FORMAT},
        {lists_at, 4, MOEC_ERR_FORMAT},
        {lists_at + 1, 0x80, MOEC_ERR_FORMAT},
        {bias_at - 1, 0, MOEC_ERR_FORMAT},
        {bias_at + 3, 0xff, MOEC_ERR_FORMAT},
        {n - 1, 0x7f, MOEC_ERR_FORMAT},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const uint8_t kept = bytes[wrong[i].at];
        bytes[wrong[i].at] = wrong[i].value;
        if (wrong[i].at == bias_at + 3) /* not a number, whatever its other bits are */
            bytes[bias_at + 2] |= 0x80;
        if (wrong[i].at == n - 1) /* the scale of the last row: infinite or none */
            bytes[n - 2] = 0;
        assert_status(moec_expert_predictor_decode(bytes, n, &sample.config, &read, &err), wrong[i].status,
                      err);
        assert_null(read.layers);
        bytes[wrong[i].at] = kept;
    }
    free(bytes);
    free(again);
    moec_expert_predictor_release(&predictor);
    sample_release(&sample);
}

static void test_expert_predictor__a_bundle_takes_one(void **state)
{
    (void)state;
    struct sample sample;
    struct moec_error err = {0};
    char *folder = temporary_folder(), *path = temporary_path(folder, "a.moec"),
         *out = temporary_path(folder, "b.moec");
    struct moec_bundle *before = NULL, *after = NULL;
    size_t n = 0;
    sample_make(&sample, 3, 8, 4, 1);
    (void)sample_write(&sample, path);
    struct moec_expert_predictor predictor = predictor_make(&sample.config), read;
    assert_ok(moec_bundle_put_predictor(path, &predictor, out, &n, &err), err);
    predictor.n_token = 99; /* a second time, in place */
    assert_ok(moec_bundle_put_predictor(out, &predictor, out, &n, &err), err);
    assert_ok(moec_bundle_verify(out, NULL, NULL, &err), err);
    assert_ok(moec_bundle_open(path, &before, &err), err);
    assert_ok(moec_bundle_open(out, &after, &err), err);
    assert_int_equal(moec_bundle_section_count(after), moec_bundle_section_count(before) + 1);
    assert_true(after->has_predictor && !before->has_predictor);
    assert_non_null(strstr(after->provenance.options, "; predict"));
    assert_ok(moec_bundle_load_predictor(after, &read, &err), err);
    assert_int_equal(read.n_token, 99);
    moec_expert_predictor_release(&read);
    assert_ok(moec_bundle_load_predictor(before, &read, &err), err);
    assert_int_equal(read.n_layer, 0);
    const struct moec_mode_request request = {.predict = "learned"}, plain = {0},
                                   on_device = {.has_device = true}, named = {.predict = "gate"},
                                   paths = {.mode = "moe-offloading"}, deciding = {.decides = true},
                                   walk = {.preload_ahead = 2};
    struct moec_mode_choice choice;
    assert_ok(moec_mode_choose(after, &plain, &choice, &err), err);
    assert_ptr_equal(choice.predict, &moec_predict_learned); /* it was written because it is better */
    assert_ok(moec_mode_choose(before, &plain, &choice, &err), err);
    assert_ptr_equal(choice.predict, &moec_predict_gate);
    assert_ok(moec_mode_choose(after, &on_device, &choice, &err), err);
    assert_ptr_equal(choice.predict, &moec_predict_none);
    assert_ok(moec_mode_choose(after, &named, &choice, &err), err);
    assert_ptr_equal(choice.predict, &moec_predict_gate);
    assert_ok(moec_mode_choose(after, &deciding, &choice, &err), err);
    assert_ptr_equal(choice.predict, &moec_predict_gate); /* which knows the logical cache */
    assert_ok(moec_mode_choose(after, &walk, &choice, &err), err);
    assert_ptr_equal(choice.predict, &moec_predict_gate);
    assert_ok(moec_mode_choose(after, &paths, &choice, &err), err);
    assert_ptr_equal(choice.predict, &moec_predict_gate); /* a mode of a paper is the paper's */
    assert_ok(moec_mode_choose(after, &request, &choice, &err), err);
    assert_ptr_equal(choice.predict, &moec_predict_learned);
    assert_status(moec_mode_choose(before, &request, &choice, &err), MOEC_ERR_USAGE, err);
    assert_message(err, "moec predict");
    moec_bundle_close(before);
    moec_bundle_close(after);
    moec_expert_predictor_release(&predictor);
    sample_release(&sample);
    temporary_remove(folder);
    free(path);
    free(out);
}

/* ---- guesses ---- */

/* The logits as the header says, in F64. */
static void logits_directly(const struct moec_predictor_layer *layer, const float *input, double *out)
{
    double hidden[8];
    float row[256];
    for (uint32_t u = 0; u < layer->n_hidden; u++) {
        moec_matrix_decode_span(&layer->hidden, u, 0, layer->hidden.columns, row);
        hidden[u] = (double)layer->hidden_bias[u];
        for (uint32_t i = 0; i < layer->hidden.columns; i++)
            hidden[u] += (double)row[i] * (double)input[i];
        hidden[u] = fmax(hidden[u], 0);
    }
    for (uint32_t e = 0; e < layer->direct.rows; e++) {
        moec_matrix_decode_span(&layer->direct, e, 0, layer->direct.columns, row);
        out[e] = (double)layer->bias[e];
        for (uint32_t i = 0; i < layer->direct.columns; i++)
            out[e] += (double)row[i] * (double)input[i];
        if (layer->n_hidden > 0)
            moec_matrix_decode_span(&layer->out, e, 0, layer->n_hidden, row);
        for (uint32_t u = 0; u < layer->n_hidden; u++)
            out[e] += (double)row[u] * hidden[u];
    }
}

static void test_expert_predictor__guesses_are_its_probabilities(void **state)
{
    (void)state;
    struct sample sample;
    struct moec_error err = {0};
    struct moec_random random = {3};
    sample_make(&sample, 3, 8, 4, 1);
    const struct moec_config *config = &sample.config;
    struct moec_expert_predictor predictor = predictor_make(config);
    struct moec_learned_predictor *learned_predictor = NULL;
    float input[256] = {0}, first[64];
    const uint32_t k = config->top_k, n_expert = config->n_expert;
    uint32_t chosen[8];
    for (uint32_t i = 0; i < config->n_embd; i++)
        input[i] = drawn(&random);
    for (uint32_t i = 0; i < k; i++)
        chosen[i] = i == 0 ? n_expert : i; /* the first is no expert */
    assert_ok(moec_learned_predictor_create(&predictor, &learned_predictor, &err), err);
    for (uint32_t s = 0; s + 1 < predictor.n_layer; s++) {
        double logits[64];
        float marked[256];
        memcpy(marked, input, sizeof marked);
        for (uint32_t i = 1; i < k; i++)
            marked[config->n_embd + chosen[i]] = 1;
        logits_directly(&predictor.layers[s], marked, logits);
        moec_learned_predictor_token(learned_predictor, &moec_kernels_scalar, s, input, chosen, k);
        memcpy(first, learned_predictor->scores, n_expert * sizeof *first);
        for (size_t set = 0; kernel_set(set) != NULL; set++) {
            moec_learned_predictor_token(learned_predictor, kernel_set(set), s, input, chosen, k);
            assert_memory_equal(first, learned_predictor->scores, n_expert * sizeof *first);
        }
        for (uint32_t e = 0; e < n_expert; e++)
            assert_true(fabs((double)first[e] - 1 / (1 + exp(-logits[e]))) < 1e-4);
        assert_true(moec_learned_predictor_batch(learned_predictor, &moec_kernels_scalar, s,
                                                 &(struct moec_predictor_batch){1, input, 256, chosen, k},
                                                 n_expert));
        for (uint32_t e = 0; e < n_expert; e++) {
            assert_true(learned_predictor->list[e].score == first[learned_predictor->list[e].expert]);
            assert_true(e == 0 || learned_predictor->list[e].score <= learned_predictor->list[e - 1].score);
        }
    }
    assert_false(moec_learned_predictor_batch(learned_predictor, &moec_kernels_scalar, predictor.n_layer - 1,
                                              &(struct moec_predictor_batch){1, input, 256, chosen, k},
                                              n_expert));
    free(learned_predictor);
    moec_expert_predictor_release(&predictor);
    sample_release(&sample);
}

/* ---- fits ---- */

#define F       6
#define E       4
#define T       9000
#define N_TRAIN 8000
#define STRIDE  16

/* Expert 0 or 1 where two inputs have one sign or not, which no sum of inputs tells; 2 or 3 by a third input.
 */
static struct moec_predictor_examples examples_make(float *inputs, uint32_t *wanted, float *router)
{
    struct moec_random random = {11};
    for (uint32_t t = 0; t < T; t++) {
        float *row = inputs + (size_t)t * STRIDE;
        for (uint32_t i = 0; i < F; i++)
            row[i] = drawn(&random) + (i == 4 ? 3 : 0);
        wanted[2 * t] = row[0] * row[1] > 0;
        wanted[2 * t + 1] = row[2] > 0 ? 2 : 3;
    }
    return (struct moec_predictor_examples){.n_token = T,
                                            .shape = {.n_input = F, .n_expert = E, .top_k = 2},
                                            .n_train = N_TRAIN,
                                            .stride = STRIDE,
                                            .inputs = inputs,
                                            .wanted = wanted,
                                            .router = router};
}

static void test_expert_predictor__hidden_units_learn_what_sums_do_not(void **state)
{
    (void)state;
    struct moec_error err = {0};
    float *inputs = calloc((size_t)T * STRIDE, sizeof *inputs), *router = calloc(E * STRIDE, sizeof *router);
    uint32_t *wanted = calloc(2 * T, sizeof *wanted);
    assert_true(inputs != NULL && router != NULL && wanted != NULL);
    const struct moec_predictor_examples examples = examples_make(inputs, wanted, router);
    struct moec_predictor_fit plain, deep, again;
    assert_ok(moec_predictor_fit_make(&examples, moec_kernels_best(), 0, 0, &plain, &err), err);
    assert_ok(moec_predictor_fit_make(&examples, moec_kernels_best(), 16, 0, &deep, &err), err);
    assert_true(plain.recall > 0.7 && plain.recall < 0.85); /* one of the two, and the other by luck */
    assert_true(deep.recall > 0.9);
    for (size_t set = 0; kernel_set(set) != NULL; set++) {
        assert_ok(moec_predictor_fit_make(&examples, kernel_set(set), 16, 0, &again, &err), err);
        assert_memory_equal(deep.weights, again.weights, E * STRIDE * sizeof(float));
        assert_memory_equal(deep.hidden, again.hidden, 16 * STRIDE * sizeof(float));
        assert_memory_equal(deep.bias, again.bias, E * sizeof(float));
        moec_predictor_fit_release(&again);
    }
    moec_predictor_fit_release(&plain);
    moec_predictor_fit_release(&deep);
    free(inputs);
    free(router);
    free(wanted);
}

/* The first guesses are those of the next layer's router, whatever the mean of its inputs: where the router
 * is right there is nothing to learn. */
static void test_expert_predictor__begins_as_the_router(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_random random = {5};
    float *inputs = calloc((size_t)T * STRIDE, sizeof *inputs), *router = calloc(E * STRIDE, sizeof *router);
    uint32_t *wanted = calloc(2 * T, sizeof *wanted);
    assert_true(inputs != NULL && router != NULL && wanted != NULL);
    const struct moec_predictor_examples examples = examples_make(inputs, wanted, router);
    for (size_t e = 0; e < E; e++)
        for (size_t i = 0; i < F; i++)
            router[e * STRIDE + i] = drawn(&random);
    for (size_t t = 0; t < T; t++) {
        double scores[E] = {0};
        for (size_t e = 0; e < E; e++)
            for (size_t i = 0; i < F; i++)
                scores[e] += (double)router[e * STRIDE + i] * (double)inputs[t * STRIDE + i];
        for (uint32_t rank = 0; rank < 2; rank++) {
            uint32_t best = 0;
            for (uint32_t e = 1; e < E; e++)
                best = scores[e] > scores[best] ? e : best;
            wanted[2 * t + rank] = best;
            scores[best] = -INFINITY;
        }
    }
    struct moec_predictor_fit fit;
    assert_ok(moec_predictor_fit_make(&examples, moec_kernels_best(), 0, 0, &fit, &err), err);
    assert_int_equal(fit.n_turn, 0);
    assert_true(fit.recall > 0.9999);
    moec_predictor_fit_release(&fit);
    free(inputs);
    free(router);
    free(wanted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expert_predictor__the_section_holds_one),
        cmocka_unit_test(test_expert_predictor__a_bundle_takes_one),
        cmocka_unit_test(test_expert_predictor__guesses_are_its_probabilities),
        cmocka_unit_test(test_expert_predictor__hidden_units_learn_what_sums_do_not),
        cmocka_unit_test(test_expert_predictor__begins_as_the_router),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
