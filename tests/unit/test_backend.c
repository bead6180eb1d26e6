/* A forward pass over a backend: routing, sources of experts and sessions work as without one, and what they
 * are told makes the same bits, however the work is cut. The backend here computes with the pass's own steps,
 * in rows that nobody else may look at. */
#include "tests/unit/fixture_model.h"

#include "runtime/forward/context/backend.h"
#include "runtime/forward/context/steps.h"
#include "runtime/forward/moe/mlp.h"

#define LONG_TOKENS 100u

struct mirror {
    struct moec_backend backend; /* first */
    struct moec_forward forward; /* that computes */
    float *normed, *ranks, *shared, *scores;
    uint32_t n_allocated, n_copied, n_scored;
    uint32_t fail_at; /* this call of `experts` fails; 0 = none */
    uint32_t n_experts;
};

static struct mirror *of(struct moec_backend *self)
{
    return (struct mirror *)self;
}

/* Rows stand `DISTANCE` bytes before what the pass is given, where it could not read or write. */
#define DISTANCE ((size_t)1 << 40)

static float *inside(const float *rows)
{
    return (float *)((uintptr_t)rows - DISTANCE);
}

static enum moec_status mirror_alloc(struct moec_backend *self, uint64_t n_bytes, const char *what,
                                     void **out, struct moec_error *err)
{
    (void)what;
    (void)err;
    void *memory = calloc(1, n_bytes);
    assert_non_null(memory);
    of(self)->n_allocated++;
    *out = (void *)((uintptr_t)memory + DISTANCE);
    return MOEC_OK;
}

static void mirror_free(struct moec_backend *self, void *memory)
{
    if (memory == NULL)
        return;
    of(self)->n_allocated--;
    free(inside(memory));
}

static void mirror_copy(struct moec_backend *self, void *to, const void *from, uint64_t n_bytes)
{
    of(self)->n_copied++;
    memcpy(inside(to), inside(from), n_bytes);
}

static enum moec_status mirror_embed(struct moec_backend *self, const uint32_t *tokens, uint32_t n_tok,
                                     float *hidden, struct moec_error *err)
{
    return moec_forward_embed(&of(self)->forward, tokens, n_tok, inside(hidden), err);
}

static enum moec_status mirror_attention(struct moec_backend *self, uint32_t layer, struct moec_batch batch,
                                         float *hidden, struct moec_error *err)
{
    struct moec_span own[8];
    assert_true(batch.n_spans <= 8);
    for (uint32_t i = 0; i < batch.n_spans; i++) {
        own[i] = batch.spans[i];
        own[i].keys.k_prefix = inside(own[i].keys.k_prefix);
        own[i].keys.v_prefix = inside(own[i].keys.v_prefix);
        own[i].keys.k_own = inside(own[i].keys.k_own);
        own[i].keys.v_own = inside(own[i].keys.v_own);
    }
    batch.spans = own;
    return moec_forward_attention(&of(self)->forward, layer, batch, inside(hidden), err);
}

static enum moec_status mirror_dense(struct moec_backend *self, uint32_t layer, uint32_t n_tok, float *hidden,
                                     struct moec_error *err)
{
    return moec_forward_mlp(&of(self)->forward, layer,
                            &(struct moec_mlp_batch){.n_tok = n_tok, .hidden = inside(hidden)}, err);
}

static enum moec_status mirror_norm(struct moec_backend *self, uint32_t layer, uint32_t n_tok,
                                    const float *hidden, struct moec_error *err)
{
    (void)err;
    const struct moec_forward *forward = &of(self)->forward;
    moec_forward_norm_batch(forward, forward->model->layers[layer].mlp_norm, n_tok, inside(hidden),
                            of(self)->normed);
    return MOEC_OK;
}

static enum moec_status mirror_score(struct moec_backend *self, uint32_t layer, uint32_t n_tok,
                                     struct moec_backend_scores *out, struct moec_error *err)
{
    (void)err;
    struct mirror *mirror = of(self);
    const struct moec_forward *forward = &mirror->forward;
    const struct moec_layer *weights = &forward->model->layers[layer];
    const uint32_t n_embd = forward->model->config.n_embd, n_expert = weights->router.rows;
    const size_t stride = moec_forward_stride(&forward->model->config);
    float *shared = mirror->scores + (size_t)n_tok * n_expert;
    for (uint32_t t = 0; t < n_tok; t++) {
        const float *x = mirror->normed + t * stride;
        forward->kernels->dot_encoded(&weights->router, 0, n_expert, x,
                                      mirror->scores + (size_t)t * n_expert);
        if (weights->shared_expert_gate != NULL)
            forward->kernels->dot(x, stride, 1, weights->shared_expert_gate, stride, 1, n_embd, shared + t,
                                  1);
    }
    mirror->n_scored++;
    *out = (struct moec_backend_scores){.logits = mirror->scores,
                                        .logits_stride = n_expert,
                                        .shared = weights->shared_expert_gate != NULL ? shared : NULL};
    return MOEC_OK;
}

static enum moec_status mirror_experts(struct moec_backend *self, const struct moec_mlp_job *jobs,
                                       uint32_t n_jobs, struct moec_error *err)
{
    struct mirror *mirror = of(self);
    if (++mirror->n_experts == mirror->fail_at)
        return moec_fail(err, MOEC_ERR_IO, "the mirror is broken");
    for (uint32_t j = 0; j < n_jobs; j++) {
        struct moec_mlp_job job = jobs[j];
        job.input = mirror->normed;
        job.out = mirror->ranks;
        moec_mlp_run(&mirror->forward, &job, 1);
    }
    return MOEC_OK;
}

static enum moec_status mirror_shared(struct moec_backend *self, uint32_t layer, uint32_t n_tok,
                                      struct moec_error *err)
{
    (void)err;
    struct mirror *mirror = of(self);
    moec_forward_expert(&mirror->forward, &mirror->forward.model->layers[layer].shared, n_tok, mirror->normed,
                        mirror->shared);
    return MOEC_OK;
}

static enum moec_status mirror_combine(struct moec_backend *self, uint32_t layer,
                                       const struct moec_backend_sum *sum, float *hidden,
                                       struct moec_error *err)
{
    (void)err;
    struct mirror *mirror = of(self);
    const struct moec_forward *forward = &mirror->forward;
    const size_t stride = moec_forward_stride(&forward->model->config);
    const bool has_shared = forward->model->layers[layer].has_shared;
    for (uint32_t t = 0; t < sum->n_tok; t++) {
        const float *outputs[MOEC_MAX_TOP_K];
        for (uint32_t rank = 0; rank < sum->top_k; rank++) {
            float *output = mirror->ranks + ((size_t)t * sum->top_k + rank) * stride;
            if (sum->passes_by != NULL && sum->passes_by[t * sum->top_k + rank])
                memset(output, 0, stride * sizeof *output);
            outputs[rank] = output;
        }
        float *shared = mirror->shared + t * stride;
        if (has_shared)
            moec_scale_lanes(shared, stride, sum->shared_factor[t]);
        moec_forward_combine(forward, layer, outputs, sum->weights + (size_t)t * sum->top_k,
                             has_shared ? shared : NULL, inside(hidden) + t * stride);
    }
    return MOEC_OK;
}

static enum moec_status mirror_head(struct moec_backend *self, uint32_t n_tok, const float *hidden,
                                    float *logits, size_t logits_stride, struct moec_error *err)
{
    return moec_forward_head(&of(self)->forward, n_tok, inside(hidden), logits, logits_stride, err);
}

static void open_mirror(struct mirror *mirror, const struct fixture *fixture, uint32_t max_tokens)
{
    static const struct moec_backend_ops ops = {.alloc = mirror_alloc,
                                                .free = mirror_free,
                                                .copy = mirror_copy,
                                                .embed = mirror_embed,
                                                .attention = mirror_attention,
                                                .dense = mirror_dense,
                                                .norm = mirror_norm,
                                                .score = mirror_score,
                                                .experts = mirror_experts,
                                                .shared = mirror_shared,
                                                .combine = mirror_combine,
                                                .head = mirror_head};
    const struct moec_config *config = &fixture->model->config;
    const size_t stride = moec_forward_stride(config);
    *mirror = (struct mirror){.backend = {.ops = &ops}};
    MUST(moec_forward_init(&mirror->forward, fixture->model, moec_kernels_best(), 1,
                           moec_variants_experts(fixture->variants), max_tokens, &err));
    float **all[] = {&mirror->normed, &mirror->shared, &mirror->ranks, &mirror->scores};
    const size_t sizes[] = {max_tokens * stride, max_tokens * stride, max_tokens * config->top_k * stride,
                            (size_t)max_tokens * (config->n_expert + 1)};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(posix_memalign((void **)all[i], 64, sizes[i] * sizeof(float)), 0);
        memset(*all[i], 0, sizes[i] * sizeof(float));
    }
}

static void close_mirror(struct mirror *mirror)
{
    assert_int_equal(mirror->n_allocated, 0);
    moec_forward_release(&mirror->forward);
    free(mirror->normed);
    free(mirror->shared);
    free(mirror->ranks);
    free(mirror->scores);
}

/* A pass over the mirror. */
static void open_pass(struct mirror *mirror, const struct fixture *fixture, uint32_t max_tokens,
                      struct moec_forward *forward)
{
    open_mirror(mirror, fixture, max_tokens);
    MUST(moec_forward_init(forward, fixture->model, moec_kernels_best(), 2,
                           moec_variants_experts(fixture->variants), max_tokens, &err));
    forward->backend = &mirror->backend;
}

static void assert_cut(const struct fixture *fixture, uint32_t max_tokens, uint32_t chunk,
                       const uint32_t *tokens, const float *expected)
{
    const size_t n_vocab = fixture->model->config.n_vocab;
    struct mirror mirror;
    struct moec_forward forward = {0};
    struct moec_session *session = NULL;
    uint32_t at[LONG_TOKENS];
    float *logits = calloc(LONG_TOKENS * n_vocab, sizeof *logits);
    assert_non_null(logits);
    for (uint32_t i = 0; i < LONG_TOKENS; i++)
        at[i] = i;
    open_pass(&mirror, fixture, max_tokens, &forward);
    MUST(moec_session_create(&forward, LONG_TOKENS, &session, &err));
    for (uint32_t done = 0; done < LONG_TOKENS; done += chunk) {
        const uint32_t n = LONG_TOKENS - done < chunk ? LONG_TOKENS - done : chunk;
        MUST(moec_session_step(session, tokens + done, n, at, n, logits + done * n_vocab, &err));
    }
    assert_same_bits(logits, expected, LONG_TOKENS * n_vocab, fixture->name);
    assert_true(mirror.n_scored > 0);
    moec_session_free(session);
    moec_forward_release(&forward);
    close_mirror(&mirror);
    free(logits);
}

static void a_backend_makes_the_same_bits(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FIXTURE_FAMILIES; f++) {
        struct fixture fixture = fixture_open(fixture_families[f]);
        uint32_t *tokens = fixture_long_tokens(&fixture, LONG_TOKENS);
        float *expected =
            fixture_run(&fixture, moec_kernels_best(), 1, LONG_TOKENS, tokens, LONG_TOKENS, LONG_TOKENS);
        assert_cut(&fixture, LONG_TOKENS, LONG_TOKENS, tokens, expected);
        assert_cut(&fixture, 7, LONG_TOKENS, tokens, expected);
        assert_cut(&fixture, 1, 1, tokens, expected);
        free(expected);
        free(tokens);
        fixture_close(&fixture);
    }
}

/* Beams: a copy goes on from where another sequence stands, and both are stepped in one batch. */
static void sequences_are_copied_and_stepped_together(void **state)
{
    (void)state;
    struct fixture fixture = fixture_open("qwen2_moe");
    const size_t n_vocab = fixture.model->config.n_vocab;
    uint32_t *tokens = fixture_long_tokens(&fixture, LONG_TOKENS);
    float *expected = fixture_run(&fixture, moec_kernels_best(), 1, LONG_TOKENS, tokens, 41, 41);
    float *logits = calloc(2 * n_vocab, sizeof *logits);
    struct mirror mirror;
    struct moec_forward forward = {0};
    struct moec_session *sessions[2] = {NULL, NULL};
    open_pass(&mirror, &fixture, 16, &forward);
    MUST(moec_session_create(&forward, LONG_TOKENS, &sessions[0], &err));
    MUST(moec_session_beside(sessions[0], &sessions[1], &err));
    MUST(moec_session_step(sessions[0], tokens, 40, NULL, 0, NULL, &err));
    moec_session_copy(sessions[1], sessions[0]);
    assert_true(mirror.n_copied > 0);
    const uint32_t next[] = {tokens[40], tokens[40]};
    MUST(moec_session_step_each(sessions, next, 2, logits, &err));
    assert_same_bits(logits, expected + 40 * n_vocab, n_vocab, "the first");
    assert_same_bits(logits + n_vocab, expected + 40 * n_vocab, n_vocab, "its copy");
    moec_session_free(sessions[1]);
    moec_session_free(sessions[0]);
    moec_forward_release(&forward);
    close_mirror(&mirror);
    free(logits);
    free(expected);
    free(tokens);
    fixture_close(&fixture);
}

static void a_backend_that_fails_leaves_the_session_where_it_was(void **state)
{
    (void)state;
    struct fixture fixture = fixture_open("olmoe");
    const size_t n_vocab = fixture.model->config.n_vocab;
    uint32_t *tokens = fixture_long_tokens(&fixture, LONG_TOKENS);
    const uint32_t last = 19;
    float *expected = fixture_run(&fixture, moec_kernels_best(), 1, LONG_TOKENS, tokens, 20, 20);
    float *logits = calloc(n_vocab, sizeof *logits);
    for (uint32_t fail_at = 1; fail_at < 6; fail_at += 2) {
        struct mirror mirror;
        struct moec_forward forward = {0};
        struct moec_session *session = NULL;
        struct moec_error wrong = {0};
        open_pass(&mirror, &fixture, 10, &forward);
        mirror.fail_at = fail_at;
        MUST(moec_session_create(&forward, 20, &session, &err));
        assert_status(moec_session_step(session, tokens, 20, &last, 1, logits, &wrong), MOEC_ERR_IO, wrong);
        assert_message(wrong, "broken");
        assert_int_equal(moec_session_length(session), 0);
        MUST(moec_session_step(session, tokens, 20, &last, 1, logits, &err));
        assert_same_bits(logits, expected + last * n_vocab, n_vocab, "after a failure");
        moec_session_free(session);
        moec_forward_release(&forward);
        close_mirror(&mirror);
    }
    free(logits);
    free(expected);
    free(tokens);
    fixture_close(&fixture);
}

static void what_a_backend_does_not_show_is_refused(void **state)
{
    (void)state;
    struct fixture fixture = fixture_open("olmoe");
    struct mirror mirror;
    struct moec_forward forward = {0};
    struct moec_error wrong = {0};
    const struct moec_inputs_hook hook = {0};
    const uint32_t token = 1;
    float *hidden = NULL;
    open_pass(&mirror, &fixture, 1, &forward);
    MUST(mirror.backend.ops->alloc(&mirror.backend,
                                   moec_forward_stride(&fixture.model->config) * sizeof(float), "a row",
                                   (void **)&hidden, &err));
    MUST(moec_forward_embed(&forward, &token, 1, hidden, &err));
    forward.inputs = &hook;
    assert_status(moec_forward_mlp(&forward, moec_config_moe_layer(&fixture.model->config, 0),
                                   &(struct moec_mlp_batch){.n_tok = 1, .hidden = hidden}, &wrong),
                  MOEC_ERR_UNSUPPORTED, wrong);
    assert_message(wrong, "only on the CPU");
    mirror.backend.ops->free(&mirror.backend, hidden);
    moec_forward_release(&forward);
    close_mirror(&mirror);
    fixture_close(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_backend_makes_the_same_bits),
        cmocka_unit_test(sequences_are_copied_and_stepped_together),
        cmocka_unit_test(a_backend_that_fails_leaves_the_session_where_it_was),
        cmocka_unit_test(what_a_backend_does_not_show_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
