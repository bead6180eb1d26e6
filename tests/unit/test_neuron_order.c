/* The order of an expert's neurons: rows of bits in few runs, records whose neurons moved and nothing else,
 * and the same order whatever the batches and threads. */
#include "tests/unit/fixture_model.h"
#include "tests/unit/held_variant.h"

#include "compiler/fit/coactivation.h"
#include "compiler/fit/seriation.h"
#include "formats/base/memory.h"

#define N_ROW   96u
#define N_WORDS 4u

/* Ends of runs of set bits over all columns, in an order. */
static uint32_t count_changes(const uint64_t *rows, const uint16_t *order)
{
    uint32_t n = 0;
    for (uint32_t i = 1; i < N_ROW; i++)
        for (uint32_t w = 0; w < N_WORDS; w++)
            n += (uint32_t)__builtin_popcountll(rows[order[i] * N_WORDS + w] ^
                                                rows[order[i - 1] * N_WORDS + w]);
    return n;
}

static void test_seriation__finds_a_hidden_order(void **state)
{
    (void)state;
    uint64_t rows[N_ROW * N_WORDS] = {0};
    uint16_t hidden[N_ROW], order[N_ROW], again[N_ROW];
    bool seen[N_ROW] = {0};
    uint32_t scratch[5 * N_ROW];
    assert_int_equal(moec_seriation_scratch_count(N_ROW), 5 * N_ROW);
    /* Row hidden[i] has bits 2 i to 2 i + 40. */
    for (uint32_t i = 0; i < N_ROW; i++) {
        hidden[i] = (uint16_t)(i * 35 % N_ROW);
        for (uint32_t bit = 2 * i; bit <= 2 * i + 40; bit++)
            rows[hidden[i] * N_WORDS + bit / 64] |= (uint64_t)1 << (bit % 64);
    }
    moec_seriation_make(rows, N_ROW, N_WORDS, scratch, order);
    assert_int_equal(count_changes(rows, order), count_changes(rows, hidden));
    for (uint32_t i = 0; i < N_ROW; i++) {
        assert_false(seen[order[i]]);
        seen[order[i]] = true;
    }
    moec_seriation_make(rows, N_ROW, N_WORDS, scratch, again);
    assert_memory_equal(order, again, sizeof order);
    moec_seriation_make(rows, 1, N_WORDS, scratch, again);
    assert_int_equal(again[0], 0);
}

static void test_neuron_order__is_a_permutation(void **state)
{
    (void)state;
    struct fixture fixture = fixture_open("olmoe");
    struct moec_neuron_order order = {0};
    MUST(moec_neuron_order_create(&fixture.model->config, &order, &err));
    MUST(moec_neuron_order_validate(&order, &err));
    uint16_t *last = moec_neuron_order_of(&order, order.n_layer - 1, order.n_expert - 1);
    struct moec_error err = {0};
    last[1] = last[0];
    assert_int_equal(moec_neuron_order_validate(&order, &err), MOEC_ERR_FORMAT);
    last[1] = (uint16_t)order.n_neuron;
    assert_int_equal(moec_neuron_order_validate(&order, &err), MOEC_ERR_FORMAT);
    moec_neuron_order_release(&order);
    fixture_close(&fixture);
}

/* Row by row: neuron i of the ordered record has the bytes of neuron order[i], whatever the codec. */
static void test_neuron_order__moves_whole_neurons(void **state)
{
    (void)state;
    struct fixture fixture = fixture_open("qwen2_moe");
    const struct moec_config *config = &fixture.model->config;
    struct moec_neuron_order order = {0};
    MUST(moec_neuron_order_create(config, &order, &err));
    const uint32_t n = order.n_neuron;
    uint16_t *neurons = moec_neuron_order_of(&order, 0, 1);
    for (uint32_t i = 0; i < n; i++)
        neurons[i] = (uint16_t)(n - 1 - i);
    const struct moec_checkpoint_encoder plain = moec_checkpoint_encoder_make(fixture.checkpoint);
    const struct moec_ordered_encoder ordered = moec_ordered_encoder_make(fixture.checkpoint, &order);
    assert_true(ordered.encoder.reorders && !plain.encoder.reorders);
    for (uint32_t bits = 2; bits <= 16; bits *= 2) {
        struct moec_codec codec;
        MUST(moec_codec_for_bits(bits, MOEC_SCHEME_SYMMETRIC, 0, MOEC_DTYPE_BF16, &codec, &err));
        const struct moec_record_layout layout = moec_record_layout_make(config, codec);
        const size_t up = layout.row_bytes[MOEC_PROJECTION_UP], pair = layout.pair_stride_bytes;
        uint8_t *before = calloc(layout.n_bytes, 1), *after = calloc(layout.n_bytes, 1);
        void *scratch = NULL;
        const uint32_t layer = moec_config_moe_layer(config, 0);
        MUST(moec_alloc_aligned(&scratch, moec_checkpoint_expert_scratch_bytes(fixture.checkpoint), 1,
                                "scratch", &err));
        MUST(plain.encoder.encode(&plain.encoder, &(struct moec_expert_record){layer, 1, &layout}, scratch,
                                  before, &err));
        MUST(ordered.encoder.encode(&ordered.encoder, &(struct moec_expert_record){layer, 1, &layout},
                                    scratch, after, &err));
        for (uint32_t i = 0; i < n; i++) {
            assert_memory_equal(after + i * up, before + (n - 1 - i) * up, up);
            assert_memory_equal(after + layout.up_bytes + i * pair,
                                before + layout.up_bytes + (n - 1 - i) * pair, pair);
        }
        /* Another expert stays. */
        MUST(plain.encoder.encode(&plain.encoder, &(struct moec_expert_record){layer, 0, &layout}, scratch,
                                  before, &err));
        MUST(ordered.encoder.encode(&ordered.encoder, &(struct moec_expert_record){layer, 0, &layout},
                                    scratch, after, &err));
        assert_memory_equal(after, before, layout.n_bytes);
        free(scratch);
        free(before);
        free(after);
    }
    moec_neuron_order_release(&order);
    fixture_close(&fixture);
}

/* What changes the encoder changes floats too. */
static void test_neuron_order__variants_follow(void **state)
{
    (void)state;
    struct fixture fixture = fixture_open("olmoe");
    const struct moec_config *config = &fixture.model->config;
    const uint32_t layer = moec_config_moe_layer(config, 0),
                   bits = moec_variants_source_bits(fixture.variants);
    struct moec_neuron_order order = {0};
    struct moec_mlp mlp = {0};
    MUST(moec_neuron_order_create(config, &order, &err));
    uint16_t *neurons = moec_neuron_order_of(&order, 0, 0);
    neurons[0] = 1;
    neurons[1] = 0;
    const struct moec_ordered_encoder ordered = moec_ordered_encoder_make(fixture.checkpoint, &order);
    uint8_t first[4096];
    for (int turn = 0; turn < 3; turn++) {
        MUST(variant_hold(fixture.variants, layer, 0, bits, &mlp, &err));
        const size_t n_bytes = moec_codec_row_bytes(mlp.up.codec, mlp.up.columns);
        assert_true(n_bytes <= sizeof first);
        if (turn == 0)
            memcpy(first, mlp.up.data, n_bytes);
        else
            assert_memory_equal(mlp.up.data + (turn == 1 ? mlp.up.stride_bytes : 0), first, n_bytes);
        variant_release(fixture.variants, layer, 0, bits);
        moec_variants_set_encoder(fixture.variants, turn == 0 ? &ordered.encoder : NULL);
    }
    moec_neuron_order_release(&order);
    fixture_close(&fixture);
}

static void order_with(const char *name, int n_threads, uint32_t batch_tokens,
                       struct moec_neuron_order *order, struct moec_coactivation_runs *runs)
{
    enum { N_WINDOW = 6, SEQ_LEN = 24 };
    struct fixture fixture = fixture_open(name);
    struct moec_work_memory work = {.batch_tokens = batch_tokens};
    struct moec_windows windows = {.n_window = N_WINDOW, .seq_len_tokens = SEQ_LEN, .work = &work};
    const struct moec_scorer_options options = {
        .by = {.kernels = moec_kernels_best(), .n_threads = n_threads}};
    struct moec_scorer *scorer = NULL;
    double nll[N_WINDOW];
    const struct moec_measure measure = {.nll = nll};
    windows.tokens = malloc(N_WINDOW * SEQ_LEN * sizeof(uint32_t));
    windows.length = malloc(N_WINDOW * sizeof(uint32_t));
    windows.scored = malloc(N_WINDOW * sizeof(uint32_t));
    windows.index = calloc(N_WINDOW, sizeof(uint64_t));
    for (uint32_t i = 0; i < N_WINDOW * SEQ_LEN; i++)
        windows.tokens[i] = (i * 2654435761u >> 7) % fixture.model->config.n_vocab;
    for (uint32_t w = 0; w < N_WINDOW; w++) {
        windows.length[w] = SEQ_LEN;
        windows.scored[w] = SEQ_LEN - 1;
    }
    MUST(moec_scorer_create(fixture.model, moec_variants_experts(fixture.variants), &windows, &options,
                            &scorer, &err));
    const struct moec_coactivation_request request = {.config = &fixture.model->config,
                                                      .scorer = scorer,
                                                      .measure = &measure,
                                                      .kernels = options.by.kernels,
                                                      .n_threads = n_threads};
    assert_true(moec_coactivation_bytes(request.config, n_threads) > 0);
    MUST(moec_neuron_order_create(request.config, order, &err));
    MUST(moec_coactivation_order(&request, order, runs, &err));
    moec_scorer_free(scorer);
    moec_windows_release(&windows);
    fixture_close(&fixture);
}

static void test_coactivation__does_not_depend_on_threads_and_batches(void **state)
{
    (void)state;
    struct moec_neuron_order one = {0}, other = {0};
    struct moec_coactivation_runs first, second;
    order_with("olmoe", 1, 0, &one, &first);
    order_with("olmoe", 3, 32, &other, &second);
    MUST(moec_neuron_order_validate(&one, &err));
    const size_t n = (size_t)one.n_layer * one.n_expert * one.n_neuron;
    assert_memory_equal(one.neurons, other.neurons, n * sizeof *one.neurons);
    assert_true(first.after < first.before && first.after >= 1);
    assert_true(first.before == second.before && first.after == second.after);
    bool moved = false;
    for (size_t i = 0; i < n; i++)
        moved = moved || one.neurons[i] != i % one.n_neuron;
    assert_true(moved);
    moec_neuron_order_release(&one);
    moec_neuron_order_release(&other);
}

static void test_neuron_order__is_refused_where_neurons_stay(void **state)
{
    (void)state;
    static const char *const names[] = {"switch", "gpt_oss"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct fixture fixture = fixture_open(names[i]);
        struct moec_error err = {0};
        assert_int_equal(moec_neuron_order_check(&fixture.model->config, &err), MOEC_ERR_UNSUPPORTED);
        fixture_close(&fixture);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seriation__finds_a_hidden_order),
        cmocka_unit_test(test_neuron_order__is_a_permutation),
        cmocka_unit_test(test_neuron_order__moves_whole_neurons),
        cmocka_unit_test(test_neuron_order__variants_follow),
        cmocka_unit_test(test_coactivation__does_not_depend_on_threads_and_batches),
        cmocka_unit_test(test_neuron_order__is_refused_where_neurons_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
