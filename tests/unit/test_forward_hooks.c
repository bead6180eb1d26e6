/* What may be changed on the way through a MoE layer: the choice of experts, and small activations. */
#include "tests/unit/fixture_model.h"
#include "tests/unit/held_variant.h"

#include "formats/base/half.h"

#include <math.h>

#define N_TOK 9

struct layer_run {
    struct moec_mlp_trace trace; /* owned */
    float *hidden;               /* after the layer */
};

static float *floats(size_t n)
{
    float *values = NULL;
    assert_int_equal(posix_memalign((void **)&values, 64, n * sizeof *values), 0);
    memset(values, 0, n * sizeof *values);
    return values;
}

/* Any hidden states will do. */
static void fill_hidden(const struct moec_config *config, float *hidden)
{
    uint32_t state = 7;
    for (uint32_t t = 0; t < N_TOK; t++) {
        for (uint32_t i = 0; i < config->n_embd; i++) {
            state = state * 1664525u + 1013904223u;
            hidden[t * moec_forward_stride(config) + i] = (float)(state >> 8) / (float)(1u << 23) - 1.0f;
        }
    }
}

static struct layer_run run_layer(const struct moec_forward *forward, uint32_t layer,
                                  const struct moec_sequences *capacity)
{
    const struct moec_config *config = &forward->model->config;
    const size_t stride = moec_forward_stride(config), k = config->top_k;
    struct moec_error err = {0};
    struct layer_run run = {.trace = {.experts = calloc(N_TOK * k, sizeof(uint32_t)),
                                      .weights = calloc(N_TOK * k, sizeof(float)),
                                      .margins = calloc(N_TOK, sizeof(float)),
                                      .rank_outputs = floats(N_TOK * k * stride),
                                      .shared_output = floats(N_TOK * stride)},
                            .hidden = floats(N_TOK * stride)};
    fill_hidden(config, run.hidden);
    assert_ok(moec_forward_mlp(
                  forward, layer,
                  &(struct moec_mlp_batch){
                      .n_tok = N_TOK, .hidden = run.hidden, .sequences = capacity, .trace = &run.trace},
                  &err),
              err);
    return run;
}

/* The same pass, decided otherwise. */
static struct moec_forward with_choice(const struct moec_forward *forward, const struct moec_choice *choice)
{
    struct moec_forward other = *forward;
    other.choice = choice;
    return other;
}

static void run_free(struct layer_run *run)
{
    free(run->trace.experts);
    free(run->trace.weights);
    free(run->trace.margins);
    free(run->trace.rank_outputs);
    free(run->trace.shared_output);
    free(run->hidden);
}

/* run->hidden is the sum of these weights and outputs. */
static void check_sum(const struct moec_forward *forward, uint32_t layer, const struct layer_run *run,
                      const float *weights, const float *rank_outputs)
{
    const struct moec_config *config = &forward->model->config;
    const size_t stride = moec_forward_stride(config), k = config->top_k;
    float *expected = floats(N_TOK * stride);
    fill_hidden(config, expected);
    for (uint32_t t = 0; t < N_TOK; t++) {
        const float *outputs[MOEC_MAX_TOP_K];
        for (size_t rank = 0; rank < k; rank++)
            outputs[rank] = rank_outputs + (t * k + rank) * stride;
        moec_forward_combine(forward, layer, outputs, weights + t * k,
                             forward->model->layers[layer].has_shared ? run->trace.shared_output + t * stride
                                                                      : NULL,
                             expected + t * stride);
    }
    assert_same_bits(run->hidden, expected, N_TOK * stride, "what leaves the layer");
    free(expected);
}

struct edit {
    uint32_t rank, top_k, n_expert, layer;
};

static void drop(const void *context, const struct moec_scored_token *token, uint32_t *experts, bool *skips)
{
    const struct edit *edit = context;
    assert_int_equal(token->layer, edit->layer);
    moec_choice_top_k.choose(moec_choice_top_k.context, token, experts, skips);
    assert_false(skips[edit->rank]);
    skips[edit->rank] = true;
}

static void keep(const void *context, const struct moec_scored_token *token, uint32_t *experts, bool *skips)
{
    const struct edit *edit = context;
    float sum = 0, values[MOEC_MAX_TOP_K];
    assert_int_equal(token->n_expert, edit->n_expert);
    assert_int_equal(token->top_k, edit->top_k);
    assert_null(token->bias);
    assert_null(token->residents);
    for (uint32_t e = 0; e < edit->n_expert; e++) {
        sum += token->scores[e];
        assert_true(token->scores[e] >= 0);
    }
    assert_true(fabsf(sum - 1) < 1e-5f);
    moec_choose_best(token, token->top_k, experts, values);
    for (uint32_t rank = 0; rank < token->top_k; rank++) {
        assert_true(values[rank] == token->scores[experts[rank]]);
        assert_false(skips[rank]);
    }
}

static void drop_all(const void *context, const struct moec_scored_token *token, uint32_t *experts,
                     bool *skips)
{
    (void)context;
    moec_choice_top_k.choose(moec_choice_top_k.context, token, experts, skips);
    for (uint32_t rank = 0; rank < token->top_k; rank++)
        skips[rank] = true;
}

static void check_dropped(const struct moec_forward *forward, uint32_t layer, uint32_t rank,
                          const struct layer_run *plain, const struct layer_run *run)
{
    const struct moec_config *config = &forward->model->config;
    const size_t k = config->top_k, stride = moec_forward_stride(config);
    assert_memory_equal(run->trace.experts, plain->trace.experts, N_TOK * k * sizeof(uint32_t));
    assert_same_bits(run->trace.margins, plain->trace.margins, N_TOK, "margins");
    assert_same_bits(run->trace.rank_outputs, plain->trace.rank_outputs, N_TOK * k * stride, "outputs");
    for (uint32_t t = 0; t < N_TOK; t++) {
        const float *before = plain->trace.weights + t * k, *after = run->trace.weights + t * k;
        float left = 0;
        for (size_t r = 0; r < k; r++)
            left += r == rank ? 0 : before[r];
        for (size_t r = 0; r < k; r++) {
            if (r == rank)
                assert_true(after[r] == 0);
            else if (!config->router.norm_topk_prob)
                assert_true(after[r] == before[r]);
            else
                assert_true(fabsf(after[r] - before[r] / left) < 1e-5f);
        }
    }
    check_sum(forward, layer, run, run->trace.weights, plain->trace.rank_outputs);
}

static void test_forward_hooks__a_dropped_rank_is_a_weight_of_zero(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FIXTURE_FAMILIES; f++) {
        struct fixture fixture = fixture_open(fixture_families[f]);
        const struct moec_config *config = &fixture.model->config;
        struct moec_error err = {0};
        struct moec_forward forward = {0};
        assert_ok(moec_forward_init(&forward, fixture.model, moec_kernels_best(), 2,
                                    moec_variants_experts(fixture.variants), N_TOK, &err),
                  err);
        const uint32_t layer = moec_config_moe_layer(config, moec_config_moe_count(config) - 1);
        struct edit edit = {.top_k = config->top_k, .n_expert = config->n_expert, .layer = layer};
        struct layer_run plain = run_layer(&forward, layer, NULL);
        const struct moec_choice keeping = {keep, &edit}, dropping = {drop, &edit}, none = {drop_all, NULL};
        const struct moec_forward keeper = with_choice(&forward, &keeping),
                                  dropper = with_choice(&forward, &dropping),
                                  refuser = with_choice(&forward, &none);
        struct layer_run kept = run_layer(&keeper, layer, NULL);
        const size_t n_hidden = N_TOK * moec_forward_stride(config);
        assert_same_bits(kept.hidden, plain.hidden, n_hidden, "the router's own choice");
        run_free(&kept);
        for (edit.rank = 0; edit.rank < config->top_k; edit.rank++) {
            struct layer_run dropped = run_layer(&dropper, layer, NULL);
            check_dropped(&forward, layer, edit.rank, &plain, &dropped);
            run_free(&dropped);
        }
        struct layer_run bare = run_layer(&refuser, layer, NULL);
        float zeros[N_TOK * MOEC_MAX_TOP_K] = {0};
        check_sum(&forward, layer, &bare, zeros, plain.trace.rank_outputs);
        run_free(&bare);
        run_free(&plain);
        moec_forward_release(&forward);
        fixture_close(&fixture);
    }
}

/* Where no expert is left to compute, the shared one is all that the layer adds. */
static void test_forward_hooks__a_layer_of_full_experts_adds_its_shared_expert(void **state)
{
    (void)state;
    struct fixture fixture = fixture_open("qwen2_moe");
    struct moec_config *config = &fixture.model->config;
    struct moec_error err = {0};
    struct moec_forward forward = {0};
    config->top_k = 1;
    config->router.expert_capacity = 1;
    assert_ok(moec_forward_init(&forward, fixture.model, moec_kernels_best(), 2,
                                moec_variants_experts(fixture.variants), N_TOK, &err),
              err);
    const uint32_t layer = moec_config_moe_layer(config, 0);
    const size_t n_hidden = N_TOK * moec_forward_stride(config);
    const struct moec_choice none = {drop_all, NULL};
    const struct moec_forward refuser = with_choice(&forward, &none);
    struct layer_run dropped = run_layer(&refuser, layer, NULL);
    uint32_t *counts = calloc(config->n_expert, sizeof *counts);
    for (uint32_t e = 0; e < config->n_expert; e++)
        counts[e] = config->router.expert_capacity;
    const struct moec_sequence_rows span = {.n_rows = N_TOK, .counts = counts};
    const struct moec_sequences capacity = {&span, 1};
    for (uint32_t block = 2; block <= N_TOK; block += N_TOK - 2) {
        moec_forward_scratch(&forward)->test_hook.moe_block = block;
        memset(moec_forward_scratch(&forward)->moe.rows.shared, 0x7f, n_hidden * sizeof(float));
        struct layer_run full = run_layer(&forward, layer, &capacity);
        assert_same_bits(full.hidden, dropped.hidden, n_hidden, "what leaves the layer");
        assert_same_bits(full.trace.shared_output, dropped.trace.shared_output, n_hidden,
                         "the shared expert's output");
        float *hidden = floats(n_hidden); /* the same without a trace */
        fill_hidden(config, hidden);
        memset(moec_forward_scratch(&forward)->moe.rows.shared, 0x7f, n_hidden * sizeof(float));
        assert_ok(moec_forward_mlp(
                      &forward, layer,
                      &(struct moec_mlp_batch){.n_tok = N_TOK, .hidden = hidden, .sequences = &capacity},
                      &err),
                  err);
        assert_same_bits(hidden, dropped.hidden, n_hidden, "what leaves the layer untraced");
        free(hidden);
        run_free(&full);
    }
    run_free(&dropped);
    free(counts);
    moec_forward_release(&forward);
    fixture_close(&fixture);
}

/* silu(gate . x), up . x or their product, of which those under the threshold are 0; of the first, times the
 * neuron's scale where it has one. */
static void filtered_by_hand(const struct moec_mlp *mlp, const struct moec_mlp_filter *filter, const float *x,
                             size_t stride, float *out, uint32_t *n_zeroed)
{
    const struct moec_kernels *kernels = &moec_kernels_scalar;
    float *row = floats(stride), *chunk = floats(stride);
    memset(out, 0, stride * sizeof *out);
    for (uint32_t first = 0; first < mlp->up.rows; first += MOEC_SUM_CHUNK) {
        const uint32_t left = mlp->up.rows - first, n = left < MOEC_SUM_CHUNK ? left : MOEC_SUM_CHUNK;
        float h[MOEC_SUM_CHUNK];
        for (uint32_t i = 0; i < n; i++) {
            float gate = 0, up = 0;
            kernels->dot_encoded(&mlp->gate, first + i, 1, x, &gate);
            kernels->dot_encoded(&mlp->up, first + i, 1, x, &up);
            gate = moec_silu_f32(gate);
            float *const of[] = {&gate, &up, &h[i]};
            h[i] = gate * up;
            const float scale = filter->scales != NULL ? moec_bf16_to_f32(filter->scales[first + i]) : 1;
            if (fabsf(*of[filter->at]) * scale < filter->threshold) {
                h[i] = 0;
                ++*n_zeroed;
            }
        }
        kernels->sum_chunk_encoded(&mlp->down, first, n, h, chunk);
        for (uint32_t c = 0; c < mlp->down.columns; c++)
            out[c] = first == 0 ? chunk[c] : out[c] + chunk[c];
    }
    free(chunk);
    free(row);
}

static void test_forward_hooks__small_activations_count_as_zero(void **state)
{
    (void)state;
    struct fixture fixture = fixture_open("olmoe");
    const struct moec_config *config = &fixture.model->config;
    const size_t stride = moec_forward_stride(config);
    struct moec_error err = {0};
    struct moec_forward forward = {0};
    struct moec_mlp mlp;
    float *x = floats(N_TOK * stride), *plain = floats(N_TOK * stride), *out = floats(N_TOK * stride),
          *expected = floats(stride);
    assert_ok(moec_forward_init(&forward, fixture.model, moec_kernels_best(), 2,
                                moec_variants_experts(fixture.variants), N_TOK, &err),
              err);
    fill_hidden(config, x);
    assert_ok(variant_hold(fixture.variants, moec_config_moe_layer(config, 0), 1, 4, &mlp, &err), err);
    assert_false(mlp.filter.is_on);
    moec_forward_expert(&forward, &mlp, N_TOK, x, plain);
    uint16_t *scales = calloc(config->n_ff_expert, sizeof *scales);
    for (uint32_t i = 0; i < config->n_ff_expert; i++)
        scales[i] = moec_f32_to_bf16((float)(i % 7)); /* those of scale 0 are left out first */
    for (int kind = 0; kind <= MOEC_PROJECTION_COUNT; kind++) {
        const bool has_scales = kind == MOEC_PROJECTION_COUNT;
        mlp.filter =
            (struct moec_mlp_filter){.is_on = true,
                                     .at = has_scales ? MOEC_PROJECTION_GATE : (enum moec_projection)kind,
                                     .scales = has_scales ? scales : NULL};
        moec_forward_expert(&forward, &mlp, N_TOK, x, out);
        assert_same_bits(out, plain, N_TOK * stride, "a threshold of 0");
        mlp.filter.threshold = 1e-6f; /* grows until it zeroes a quarter of a row */
        for (uint32_t n_zeroed = 0; n_zeroed < config->n_ff_expert / 4; mlp.filter.threshold *= 1.25f) {
            n_zeroed = 0;
            filtered_by_hand(&mlp, &mlp.filter, x, stride, expected, &n_zeroed);
        }
        for (uint32_t n = 1; n <= N_TOK; n += N_TOK - 1) { /* encoded weights and decoded tiles */
            uint32_t n_zeroed = 0;
            moec_forward_expert(&forward, &mlp, n, x, out);
            for (uint32_t t = 0; t < n; t++) {
                filtered_by_hand(&mlp, &mlp.filter, x + t * stride, stride, expected, &n_zeroed);
                for (size_t c = 0; c < stride; c++)
                    assert_true(out[t * stride + c] == expected[c]);
            }
            assert_true(n_zeroed > 0 && n_zeroed < n * config->n_ff_expert);
        }
    }
    variant_release(fixture.variants, moec_config_moe_layer(config, 0), 1, 4);
    free(scales);
    free(x);
    free(plain);
    free(out);
    free(expected);
    moec_forward_release(&forward);
    fixture_close(&fixture);
}

/* Products with dense weights as a hook sees them: which tensors, and the inputs of those watched. */
struct seen {
    uint32_t roles; /* bits */
    uint32_t n_take;
    uint32_t watched; /* role */
    float *inputs;    /* (n, stride) of the watched role */
    size_t stride;
    float *room;
};

static void take_inputs(void *context, const struct moec_dense_entry *const *entries, uint32_t n_entries,
                        const float *x, size_t stride, uint32_t n_tok)
{
    struct seen *seen = context;
    seen->n_take++;
    for (uint32_t i = 0; i < n_entries; i++) {
        assert_int_equal(seen->roles & 1u << entries[i]->role, 0);
        seen->roles |= 1u << entries[i]->role;
        for (uint32_t t = 0; t < n_tok; t++)
            for (size_t c = entries[i]->columns; c < stride && !moec_role_is_transposed(entries[i]->role);
                 c++)
                assert_true(x[t * stride + c] == 0);
        if (entries[i]->role == seen->watched) {
            memcpy(seen->inputs, x, n_tok * stride * sizeof *x);
            seen->stride = stride;
        }
    }
}

static float *make_room(void *context, uint32_t n_tok, size_t stride)
{
    struct seen *seen = context;
    free(seen->room);
    seen->room = floats(n_tok * stride);
    return seen->room;
}

static void test_forward_hooks__inputs_of_dense_products_are_seen(void **state)
{
    (void)state;
    struct fixture fixture = fixture_open("qwen2_moe");
    const struct moec_config *config = &fixture.model->config;
    const struct moec_kernels *kernels = &moec_kernels_scalar;
    const size_t stride = moec_forward_stride(config);
    const size_t n_kv = moec_layer_kv_dim(moec_config_layer(config, 0));
    const uint32_t layer = moec_config_moe_layer(config, 0);
    struct moec_error err = {0};
    struct moec_forward forward = {0};
    float *hidden[2] = {floats(N_TOK * stride), floats(N_TOK * stride)}, *k = floats(N_TOK * n_kv),
          *v = floats(N_TOK * n_kv), *logits = floats(N_TOK * config->n_vocab), *chunk = floats(stride);
    struct seen seen = {.watched = MOEC_ROLE_SHARED_DOWN, .inputs = floats(N_TOK * 1024)};
    const struct moec_inputs_hook hook = {.take = take_inputs, .room = make_room, .context = &seen};
    const struct moec_span span = {.n_rows = N_TOK, .keys = {.k_own = k, .v_own = v}};
    assert_ok(moec_forward_init(&forward, fixture.model, moec_kernels_best(), 2,
                                moec_variants_experts(fixture.variants), N_TOK, &err),
              err);
    struct moec_forward watcher = forward;
    watcher.inputs = &hook;
    for (int watched = 0; watched < 2; watched++) {
        const struct moec_forward *pass = watched ? &watcher : &forward;
        fill_hidden(config, hidden[watched]);
        assert_ok(
            moec_forward_attention(pass, layer, (struct moec_batch){&span, 1, N_TOK}, hidden[watched], &err),
            err);
        assert_ok(moec_forward_mlp(pass, layer,
                                   &(struct moec_mlp_batch){.n_tok = N_TOK, .hidden = hidden[watched]}, &err),
                  err);
        assert_ok(moec_forward_head(pass, N_TOK, hidden[watched], logits, config->n_vocab, &err), err);
    }
    assert_same_bits(hidden[1], hidden[0], N_TOK * stride, "hidden states under a hook");
    assert_int_equal(seen.roles, 1u << MOEC_ROLE_Q | 1u << MOEC_ROLE_K | 1u << MOEC_ROLE_V |
                                     1u << MOEC_ROLE_O | 1u << MOEC_ROLE_SHARED_UP |
                                     1u << MOEC_ROLE_SHARED_GATE | 1u << MOEC_ROLE_SHARED_DOWN |
                                     1u << MOEC_ROLE_HEAD);
    assert_int_equal(seen.n_take, 5);

    /* What the down projection is given makes its output. */
    const struct moec_mlp *mlp = &fixture.model->layers[layer].shared;
    for (uint32_t n = 1; n <= N_TOK; n += N_TOK - 1) { /* encoded weights and decoded tiles */
        seen.roles = 0;
        fill_hidden(config, hidden[0]);
        moec_forward_expert(&watcher, mlp, n, hidden[0], hidden[1]);
        for (uint32_t t = 0; t < n; t++) {
            float *out = floats(stride);
            for (uint32_t first = 0; first < mlp->up.rows; first += MOEC_SUM_CHUNK) {
                const uint32_t left = mlp->up.rows - first;
                kernels->sum_chunk_encoded(&mlp->down, first, left < MOEC_SUM_CHUNK ? left : MOEC_SUM_CHUNK,
                                           seen.inputs + t * seen.stride + first, chunk);
                for (uint32_t c = 0; c < config->n_embd; c++)
                    out[c] = first == 0 ? chunk[c] : out[c] + chunk[c];
            }
            assert_same_bits(hidden[1] + t * stride, out, config->n_embd, "outputs of the down projection");
            free(out);
        }
    }
    free(hidden[0]);
    free(hidden[1]);
    free(k);
    free(v);
    free(logits);
    free(chunk);
    free(seen.inputs);
    free(seen.room);
    moec_forward_release(&forward);
    fixture_close(&fixture);
}

/* Routed experts as a hook sees them. */
struct seen_experts {
    const struct moec_forward *forward;
    uint32_t n_pair, n_expert, n_layer;
    float *sums; /* (N_TOK, stride): each expert's outputs, weighted, from its activations */
};

static void take_expert(void *context, const struct moec_expert_inputs *in)
{
    struct seen_experts *seen = context;
    const size_t stride = moec_forward_stride(&seen->forward->model->config);
    if (in->expert == MOEC_EXPERT_ALL) {
        assert_int_equal(seen->n_pair, 0);
        assert_int_equal(in->rows.n_pair, N_TOK * in->rows.top_k);
        seen->n_layer++;
        return;
    }
    const uint32_t n_ff = in->mlp->down.rows, n_embd = in->mlp->down.columns;
    const size_t activation_stride = moec_lanes_padded(n_ff);
    float *x = floats(in->rows.n_pair * stride), *h = floats(in->rows.n_pair * activation_stride),
          *down = floats(stride);
    for (uint32_t i = 0; i < in->rows.n_pair; i++)
        memcpy(x + i * stride, in->rows.normed + in->rows.pairs[i] / in->rows.top_k * stride,
               stride * sizeof *x);
    moec_forward_activations(in->forward, in->mlp, in->rows.n_pair, x, h, activation_stride);
    for (uint32_t neuron = 0; neuron < n_ff; neuron++) {
        in->forward->kernels->decode_rows(&in->mlp->down, neuron, 1, down, stride);
        for (uint32_t i = 0; i < in->rows.n_pair; i++)
            for (uint32_t c = 0; c < n_embd; c++)
                seen->sums[in->rows.pairs[i] / in->rows.top_k * stride + c] +=
                    in->rows.weights[in->rows.pairs[i]] * h[i * activation_stride + neuron] * down[c];
    }
    seen->n_pair += in->rows.n_pair;
    seen->n_expert++;
    free(x);
    free(h);
    free(down);
}

static void test_forward_hooks__inputs_of_experts_are_seen(void **state)
{
    (void)state;
    static const char *const families[] = {"olmoe", "switch"}; /* no shared expert; one without a gate */
    for (size_t f = 0; f < 2; f++) {
        struct fixture fixture = fixture_open(families[f]);
        const struct moec_config *config = &fixture.model->config;
        const size_t stride = moec_forward_stride(config);
        const uint32_t layer = moec_config_moe_layer(config, 0);
        struct moec_error err = {0};
        struct moec_forward forward = {0};
        float *before = floats(N_TOK * stride), *hidden[2] = {floats(N_TOK * stride), floats(N_TOK * stride)};
        struct seen_experts seen = {.forward = &forward, .sums = floats(N_TOK * stride)};
        const struct moec_inputs_hook hook = {.take_expert = take_expert, .context = &seen};
        assert_ok(moec_forward_init(&forward, fixture.model, moec_kernels_best(), 2,
                                    moec_variants_experts(fixture.variants), N_TOK, &err),
                  err);
        struct moec_forward watcher = forward;
        watcher.inputs = &hook;
        fill_hidden(config, before);
        for (int watched = 0; watched < 2; watched++) {
            memcpy(hidden[watched], before, N_TOK * stride * sizeof *before);
            assert_ok(moec_forward_mlp(watched ? &watcher : &forward, layer,
                                       &(struct moec_mlp_batch){.n_tok = N_TOK, .hidden = hidden[watched]},
                                       &err),
                      err);
        }
        assert_same_bits(hidden[1], hidden[0], N_TOK * stride, "hidden states under a hook");
        assert_int_equal(seen.n_layer, 1);
        assert_int_equal(seen.n_pair, N_TOK * config->top_k);
        for (uint32_t t = 0; t < N_TOK; t++)
            for (uint32_t c = 0; c < config->n_embd; c++) {
                const size_t at = t * stride + c;
                assert_float_equal(hidden[0][at] - before[at], seen.sums[at], 1e-4);
            }
        free(before);
        free(hidden[0]);
        free(hidden[1]);
        free(seen.sums);
        moec_forward_release(&forward);
        fixture_close(&fixture);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward_hooks__a_dropped_rank_is_a_weight_of_zero),
        cmocka_unit_test(test_forward_hooks__a_layer_of_full_experts_adds_its_shared_expert),
        cmocka_unit_test(test_forward_hooks__small_activations_count_as_zero),
        cmocka_unit_test(test_forward_hooks__inputs_of_dense_products_are_seen),
        cmocka_unit_test(test_forward_hooks__inputs_of_experts_are_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
