#include "tests/unit/dense_load.h"
#include "tests/unit/fixture_checkpoint.h"
#include "tests/unit/tensor_entry.h"

#include "formats/base/bytes.h"
#include "formats/base/half.h"
#include "formats/checkpoint/safetensors.h"

static const char *const fixtures[] = {FAMILIES "qwen2_moe", FAMILIES "qwen2_moe-tied",
                                       FAMILIES "olmoe",     FAMILIES "olmoe-b",
                                       FAMILIES "mixtral",   FAMILIES "mixtral-window"};
#define N_FIXTURES (sizeof fixtures / sizeof *fixtures)

/* ---- good checkpoints ---- */

/* `is_moe`: a '1' for every layer with experts, a '0' for every other. */
static void assert_layers(const struct moec_config *c, const char *is_moe)
{
    assert_int_equal(c->n_layer, strlen(is_moe));
    for (uint32_t layer = 0; layer < c->n_layer; layer++)
        assert_int_equal(moec_config_is_moe(c, layer), is_moe[layer] == '1');
}

static void test_checkpoint__configs(void **state)
{
    (void)state;
    struct moec_checkpoint *ck = open_good(FAMILIES "qwen2_moe");
    const struct moec_config *c = moec_checkpoint_config(ck);
    assert_string_equal(c->family, "qwen2_moe");
    assert_string_equal(moec_checkpoint_folder(ck), FAMILIES "qwen2_moe");
    assert_null(moec_checkpoint_tokenizer(ck));
    assert_int_equal(c->n_layer, 4);
    assert_int_equal(c->n_embd, 32);
    assert_int_equal(c->kinds[0].n_head, 4);
    assert_int_equal(c->kinds[0].n_kv_head, 2);
    assert_int_equal(c->kinds[0].head_dim, 8);
    assert_int_equal(c->n_vocab, 131);
    assert_int_equal(c->n_position, 256);
    assert_int_equal(c->kinds[0].window, 0);
    assert_true(c->kinds[0].rope_theta == 10000.0 && c->rms_eps == 1e-6 && c->kinds[0].clip_qkv == 0);
    assert_true(c->kinds[0].qkv_bias && !c->kinds[0].qk_norm && !c->head.is_tied && c->mlp.shared_gate &&
                !c->router.norm_topk_prob);
    assert_int_equal(c->n_expert, 6);
    assert_int_equal(c->top_k, 3);
    assert_int_equal(c->n_ff_expert, 11);
    assert_int_equal(c->n_ff_shared, 20);
    assert_int_equal(c->kinds[1].n_ff_dense, 28);
    assert_layers(c, "1011");
    assert_int_equal(c->expert_dtype, MOEC_DTYPE_BF16);
    assert_int_equal(c->ids.n_eos, 2); /* generation_config.json's list, not config.json's 130 */
    assert_int_equal(c->ids.eos[0], 130);
    assert_int_equal(c->ids.eos[1], 128);
    assert_int_equal(moec_checkpoint_expert_bytes(ck), 3 * 6 * 3 * 11 * 32 * 2);
    assert_true(moec_checkpoint_weight_bytes(ck) > moec_checkpoint_expert_bytes(ck));
    moec_checkpoint_close(ck);

    ck = open_good(FAMILIES "qwen2_moe-tied");
    c = moec_checkpoint_config(ck);
    assert_true(c->head.is_tied && c->router.norm_topk_prob && c->kinds[0].rope_theta == 1e6);
    assert_layers(c, "0101");
    assert_int_equal(c->expert_dtype, MOEC_DTYPE_F16);
    moec_checkpoint_close(ck);

    ck = open_good(FAMILIES "olmoe");
    c = moec_checkpoint_config(ck);
    assert_true(c->kinds[0].qk_norm && !c->kinds[0].qkv_bias && c->router.norm_topk_prob &&
                c->kinds[0].clip_qkv == 1.5f && c->rms_eps == 1e-5);
    assert_int_equal(c->n_ff_shared, 0);
    assert_int_equal(c->n_kind, 1);
    assert_int_equal(c->expert_dtype, MOEC_DTYPE_F32);
    moec_checkpoint_close(ck);

    ck = open_good(FAMILIES "olmoe-b"); /* no generation_config.json */
    c = moec_checkpoint_config(ck);
    assert_int_equal(c->ids.n_eos, 1);
    assert_int_equal(c->ids.eos[0], 112);
    assert_false(c->router.norm_topk_prob);
    moec_checkpoint_close(ck);

    ck = open_good(FAMILIES "mixtral-window");
    c = moec_checkpoint_config(ck);
    assert_int_equal(c->kinds[0].window, 11);
    assert_int_equal(c->kinds[0].head_dim, 12);
    assert_int_equal(c->n_expert, 4);
    assert_true(c->router.norm_topk_prob);
    moec_checkpoint_close(ck);
    moec_checkpoint_close(NULL);
}

/* Reads a tensor through its table alone, and compares with F32 weights. */
static void assert_weights(const char *folder, const char *shard, const char *name, const float *weights,
                           size_t n)
{
    char *path = temporary_path(folder, shard);
    struct moec_safetensors file;
    struct moec_error err = {0};
    assert_status(moec_safetensors_open(&file, path, &err), MOEC_OK, err);
    const struct moec_safetensors_entry *entry = tensor_entry(&file, name);
    assert_non_null(entry);
    uint8_t *raw = malloc(entry->n_bytes);
    assert_non_null(raw);
    assert_status(moec_file_read(&file.file, entry->offset, raw, entry->n_bytes, &err), MOEC_OK, err);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = 0;
        uint16_t half = 0;
        float value;
        if (entry->dtype == MOEC_DTYPE_F32) {
            memcpy(&bits, raw + 4 * i, 4);
            value = moec_f32_from_bits(bits);
        } else {
            memcpy(&half, raw + 2 * i, 2);
            value = entry->dtype == MOEC_DTYPE_F16 ? moec_f16_to_f32(half) : moec_bf16_to_f32(half);
        }
        assert_int_equal(moec_f32_bits(weights[i]), moec_f32_bits(value));
    }
    free(raw);
    free(path);
    moec_safetensors_close(&file);
}

static void test_checkpoint__experts_are_the_tensors_of_their_names(void **state)
{
    (void)state;
    static const struct {
        const char *folder, *shard, *prefix;
        const char *gate, *up, *down;
        uint32_t layer, expert;
    } cases[] = {
        {FAMILIES "olmoe", "model.safetensors", "model.layers.2.mlp.experts.3.", "gate_proj", "up_proj",
         "down_proj", 2, 3},
        {FAMILIES "qwen2_moe-tied", "model.safetensors", "model.layers.3.mlp.experts.7.", "gate_proj",
         "up_proj", "down_proj", 3, 7},
        {FAMILIES "mixtral", "model.safetensors", "model.layers.0.block_sparse_moe.experts.5.", "w1", "w3",
         "w2", 0, 5},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moec_checkpoint *ck = open_good(cases[i].folder);
        struct expert_weights w = expert_weights(moec_checkpoint_config(ck));
        struct moec_error err = {0};
        assert_status(moec_checkpoint_load_expert(ck, cases[i].layer, cases[i].expert,
                                                  (struct moec_expert_floats){w.gate, w.up, w.down}, &err),
                      MOEC_OK, err);
        const char *const names[3] = {cases[i].gate, cases[i].up, cases[i].down};
        for (size_t p = 0; p < 3; p++) {
            char name[128];
            (void)snprintf(name, sizeof name, "%s%s.weight", cases[i].prefix, names[p]);
            assert_weights(cases[i].folder, cases[i].shard, name, w.gate + p * w.n, w.n);
        }
        free(w.gate);
        moec_checkpoint_close(ck);
    }
}

/* Two folders give the same model: config, dense weights and experts, bit for bit. */
static void assert_same_model(const char *first, const char *second)
{
    struct moec_checkpoint *a = open_good(first), *b = open_good(second);
    const struct moec_config *c = moec_checkpoint_config(a);
    struct moec_dense dense[2];
    uint8_t *bytes[2];
    size_t n_bytes[2];
    struct moec_error err = {0};
    assert_ok(moec_config_encode(c, &bytes[0], &n_bytes[0], &err), err);
    assert_ok(moec_config_encode(moec_checkpoint_config(b), &bytes[1], &n_bytes[1], &err), err);
    assert_int_equal(n_bytes[0], n_bytes[1]);
    assert_memory_equal(bytes[0], bytes[1], n_bytes[0]);
    assert_ok(dense_load(a, 16, 0, &dense[0], &err), err);
    assert_ok(dense_load(b, 16, 0, &dense[1], &err), err);
    assert_int_equal(dense[0].n_entries, dense[1].n_entries);
    for (uint32_t i = 0; i < dense[0].n_entries; i++) {
        const struct moec_dense_entry *x = &dense[0].entries[i], *y = &dense[1].entries[i];
        assert_true(x->codec.dtype == y->codec.dtype && x->n_bytes == y->n_bytes);
        assert_memory_equal(dense[0].blob + x->offset, dense[1].blob + y->offset, x->n_bytes);
    }
    struct expert_weights w = expert_weights(c), v = expert_weights(c);
    for (uint32_t layer = 0; layer < c->n_layer; layer++)
        for (uint32_t expert = 0; moec_config_is_moe(c, layer) && expert < c->n_expert; expert++) {
            assert_ok(moec_checkpoint_load_expert(a, layer, expert,
                                                  (struct moec_expert_floats){w.gate, w.up, w.down}, &err),
                      err);
            assert_ok(moec_checkpoint_load_expert(b, layer, expert,
                                                  (struct moec_expert_floats){v.gate, v.up, v.down}, &err),
                      err);
            assert_memory_equal(w.gate, v.gate, 3 * w.n * sizeof *w.gate);
        }
    assert_int_equal(moec_checkpoint_weight_bytes(a), moec_checkpoint_weight_bytes(b));
    assert_int_equal(moec_checkpoint_expert_bytes(a), moec_checkpoint_expert_bytes(b));
    for (size_t i = 0; i < 2; i++) {
        moec_dense_release(&dense[i]);
        free(bytes[i]);
    }
    free(w.gate);
    free(v.gate);
    moec_checkpoint_close(a);
    moec_checkpoint_close(b);
}

/* What transformers 5 writes when it does not keep the original format. */
static void test_checkpoint__stacked_experts_are_the_same_model(void **state)
{
    (void)state;
    assert_same_model(FAMILIES "qwen2_moe", "tests/fixtures/stacked/qwen2_moe");
    assert_same_model(FAMILIES "olmoe", "tests/fixtures/stacked/olmoe");
    assert_same_model(FAMILIES "mixtral", "tests/fixtures/stacked/mixtral");
    /* In a model of text and pictures, too. */
    assert_same_model(FAMILIES "qwen3_5_moe", "tests/fixtures/stacked/qwen3_5_moe");
    assert_same_model(FAMILIES "gemma4", "tests/fixtures/stacked/gemma4");
    assert_same_model(FAMILIES "mistral4", "tests/fixtures/stacked/mistral4");
}

/* Every expert of every fixture: a record made from the file is the record made from its F32 weights. */
static void test_checkpoint__records_are_those_of_the_weights(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FIXTURES; f++) {
        struct moec_checkpoint *ck = open_good(fixtures[f]);
        const struct moec_config *c = moec_checkpoint_config(ck);
        struct expert_weights w = expert_weights(c);
        struct moec_error err = {0};
        void *scratch = malloc(moec_checkpoint_expert_scratch_bytes(ck));
        assert_non_null(scratch);
        const uint32_t bits[] = {2, 3, 4, 8, 16};
        for (uint32_t layer = 0; layer < c->n_layer; layer++)
            for (uint32_t expert = 0; moec_config_is_moe(c, layer) && expert < c->n_expert; expert++) {
                struct moec_codec codec;
                size_t b = (layer + expert) % 5;
                assert_status(moec_codec_for_bits(bits[b], (enum moec_scheme)(expert % 2),
                                                  expert % 3 == 0 ? 32 : 0, (enum moec_dtype)c->expert_dtype,
                                                  &codec, &err),
                              MOEC_OK, err);
                struct moec_record_layout layout = moec_record_layout_make(c, codec);
                uint8_t *direct = malloc(layout.n_bytes), *expected = malloc(layout.n_bytes);
                assert_non_null(direct);
                assert_non_null(expected);
                assert_status(
                    moec_checkpoint_encode_expert(ck, layer, expert, &layout, scratch, direct, &err), MOEC_OK,
                    err);
                assert_status(moec_checkpoint_load_expert(
                                  ck, layer, expert, (struct moec_expert_floats){w.gate, w.up, w.down}, &err),
                              MOEC_OK, err);
                assert_status(moec_record_encode(&layout, w.gate, w.up, w.down, expected, &err), MOEC_OK,
                              err);
                assert_memory_equal(direct, expected, layout.n_bytes);
                free(direct);
                free(expected);
            }
        free(scratch);
        free(w.gate);
        moec_checkpoint_close(ck);
    }
}

static void test_checkpoint__sixteen_bits_keep_the_source(void **state)
{
    (void)state;
    struct moec_checkpoint *ck = open_good(FAMILIES "mixtral");
    const struct moec_config *c = moec_checkpoint_config(ck);
    struct expert_weights w = expert_weights(c);
    struct moec_record_layout layout =
        moec_record_layout_make(c, (struct moec_codec){.dtype = MOEC_DTYPE_BF16});
    uint8_t *record = malloc(layout.n_bytes);
    void *scratch = malloc(moec_checkpoint_expert_scratch_bytes(ck));
    struct moec_mlp mlp;
    struct moec_error err = {0};
    assert_non_null(record);
    assert_non_null(scratch);
    assert_status(moec_checkpoint_encode_expert(ck, 1, 2, &layout, scratch, record, &err), MOEC_OK, err);
    assert_status(
        moec_checkpoint_load_expert(ck, 1, 2, (struct moec_expert_floats){w.gate, w.up, w.down}, &err),
        MOEC_OK, err);
    moec_record_bind(&layout, record, &mlp);
    for (uint32_t i = 0; i < c->n_ff_expert; i++)
        for (uint32_t e = 0; e < c->n_embd; e++) {
            const struct moec_matrix *const matrices[3] = {&mlp.gate, &mlp.up, &mlp.down};
            const float expected[3] = {w.gate[i * c->n_embd + e], w.up[i * c->n_embd + e],
                                       w.down[e * c->n_ff_expert + i]};
            for (size_t m = 0; m < 3; m++) {
                const uint8_t *at = matrices[m]->data + i * matrices[m]->stride_bytes + 2 * (size_t)e;
                assert_int_equal((uint32_t)(at[0] | at[1] << 8) << 16, moec_f32_bits(expected[m]));
            }
        }
    struct moec_record_layout wrong = layout;
    wrong.n_ff++;
    assert_status(moec_checkpoint_encode_expert(ck, 1, 2, &wrong, scratch, record, &err), MOEC_ERR_MISMATCH,
                  err);
    err = (struct moec_error){0};
    assert_status(moec_checkpoint_encode_expert(ck, 9, 0, &layout, scratch, record, &err), MOEC_ERR_USAGE,
                  err);
    err = (struct moec_error){0};
    assert_status(
        moec_checkpoint_load_expert(ck, 0, 6, (struct moec_expert_floats){w.gate, w.up, w.down}, &err),
        MOEC_ERR_USAGE, err);
    assert_message(err, "no expert 6 in layer 0");
    free(scratch);
    free(record);
    free(w.gate);
    moec_checkpoint_close(ck);
}

static void test_checkpoint__dense_weights(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FIXTURES; f++) {
        struct moec_checkpoint *ck = open_good(fixtures[f]);
        const struct moec_config *c = moec_checkpoint_config(ck);
        struct moec_dense exact, quantised;
        struct moec_error err = {0};
        assert_status(dense_load(ck, 16, 0, &exact, &err), MOEC_OK, err);
        assert_status(moec_dense_check(&exact, c, &err), MOEC_OK, err);
        for (uint32_t i = 0; i < exact.n_entries; i++)
            assert_int_equal(exact.entries[i].codec.dtype, c->expert_dtype);
        for (uint32_t bits = 4; bits <= 8; bits += 4) {
            assert_status(dense_load(ck, bits, bits == 4 ? 32 : 0, &quantised, &err), MOEC_OK, err);
            assert_status(moec_dense_check(&quantised, c, &err), MOEC_OK, err);
            assert_int_equal(quantised.n_entries, exact.n_entries);
            for (uint32_t i = 0; i < exact.n_entries; i++) {
                const struct moec_dense_entry *from = &exact.entries[i], *to = &quantised.entries[i];
                bool may = moec_role_is_quantisable((enum moec_role)from->role);
                assert_int_equal(moec_codec_bits(to->codec), may ? bits : moec_codec_bits(from->codec));
                size_t source_row = moec_codec_row_bytes(from->codec, from->columns);
                size_t row_bytes = moec_codec_row_bytes(to->codec, to->columns);
                for (uint32_t r = 0; r < from->rows; r++) {
                    float weights[64];
                    uint8_t row[512];
                    assert_true(from->columns <= 64);
                    moec_codec_decode_row(from->codec, exact.blob + from->offset + r * source_row,
                                          from->columns, weights);
                    assert_status(moec_codec_encode_row(to->codec, weights, to->columns, row, &err), MOEC_OK,
                                  err);
                    assert_memory_equal(row, quantised.blob + to->offset + r * row_bytes, row_bytes);
                }
            }
            moec_dense_release(&quantised);
        }
        assert_status(dense_load(ck, 5, 0, &quantised, &err), MOEC_ERR_USAGE, err);
        moec_dense_release(&exact);
        moec_checkpoint_close(ck);
    }
}

static void test_checkpoint__dense_tensors_stand_in_their_places(void **state)
{
    (void)state;
    static const char folder[] = FAMILIES "qwen2_moe-tied", shard[] = "model.safetensors";
    struct moec_checkpoint *ck = open_good(folder);
    struct moec_dense dense;
    struct moec_matrix m;
    struct moec_error err = {0};
    float weights[64 * 128], transposed[64 * 128];
    assert_status(dense_load(ck, 16, 0, &dense, &err), MOEC_OK, err);
    static const struct {
        enum moec_role role;
        uint32_t layer;
        const char *name;
    } cases[] = {
        {MOEC_ROLE_EMBEDDING, MOEC_LAYER_NONE, "model.embed_tokens.weight"},
        {MOEC_ROLE_FINAL_NORM, MOEC_LAYER_NONE, "model.norm.weight"},
        {MOEC_ROLE_ATTENTION_NORM, 1, "model.layers.1.input_layernorm.weight"},
        {MOEC_ROLE_MLP_NORM, 1, "model.layers.1.post_attention_layernorm.weight"},
        {MOEC_ROLE_Q, 0, "model.layers.0.self_attn.q_proj.weight"},
        {MOEC_ROLE_K_BIAS, 3, "model.layers.3.self_attn.k_proj.bias"},
        {MOEC_ROLE_O, 2, "model.layers.2.self_attn.o_proj.weight"},
        {MOEC_ROLE_ROUTER, 3, "model.layers.3.mlp.gate.weight"},
        {MOEC_ROLE_SHARED_EXPERT_GATE, 3, "model.layers.3.mlp.shared_expert_gate.weight"},
        {MOEC_ROLE_SHARED_UP, 1, "model.layers.1.mlp.shared_expert.up_proj.weight"},
        {MOEC_ROLE_SHARED_GATE, 1, "model.layers.1.mlp.shared_expert.gate_proj.weight"},
        {MOEC_ROLE_SHARED_DOWN, 1, "model.layers.1.mlp.shared_expert.down_proj.weight"},
        {MOEC_ROLE_DENSE_DOWN, 2, "model.layers.2.mlp.down_proj.weight"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_true(moec_dense_find(&dense, cases[i].role, cases[i].layer, &m));
        for (uint32_t r = 0; r < m.rows; r++)
            moec_codec_decode_row(m.codec, m.data + r * m.stride_bytes, m.columns, weights + r * m.columns);
        const float *expected = weights;
        if (cases[i].role == MOEC_ROLE_SHARED_DOWN || cases[i].role == MOEC_ROLE_DENSE_DOWN) {
            for (uint32_t r = 0; r < m.rows; r++)
                for (uint32_t e = 0; e < m.columns; e++)
                    transposed[e * m.rows + r] = weights[r * m.columns + e];
            expected = transposed;
        }
        assert_weights(folder, shard, cases[i].name, expected, (size_t)m.rows * m.columns);
    }
    moec_dense_release(&dense);
    moec_checkpoint_close(ck);
}

/* ---- digest ---- */

struct seen {
    uint64_t done, total;
    int calls;
};

static void note_progress(void *context, uint64_t done, uint64_t total)
{
    struct seen *seen = context;
    assert_true(done >= seen->done && done <= total);
    seen->done = done;
    seen->total = total;
    seen->calls++;
}

static void digest_of(const char *folder, uint8_t digest[static MOEC_SHA256_BYTES])
{
    struct moec_checkpoint *ck = open_good(folder);
    struct moec_error err = {0};
    struct seen seen = {0};
    uint8_t again[MOEC_SHA256_BYTES];
    assert_status(moec_checkpoint_digest(ck, note_progress, &seen, digest, &err), MOEC_OK, err);
    assert_true(seen.calls > 0);
    assert_int_equal(seen.done, seen.total);
    seen = (struct seen){0};
    assert_status(moec_checkpoint_digest(ck, note_progress, &seen, again, &err), MOEC_OK, err);
    assert_int_equal(seen.calls, 0);
    assert_memory_equal(digest, again, sizeof again);
    moec_checkpoint_close(ck);
}

static void test_checkpoint__digest_covers_every_file(void **state)
{
    (void)state;
    static const char *const names[] = {"config.json", "generation_config.json",
                                        "model.safetensors.index.json", "model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors"};
    uint8_t first[MOEC_SHA256_BYTES], copied[MOEC_SHA256_BYTES], changed[MOEC_SHA256_BYTES];
    char *folder = temporary_folder();
    temporary_copy(FAMILIES "qwen2_moe", folder);
    digest_of(FAMILIES "qwen2_moe", first);
    digest_of(folder, copied);
    assert_memory_equal(first, copied, sizeof first);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n = 0;
        uint8_t *bytes = temporary_read(folder, names[i], &n);
        if (strstr(names[i], ".json") !=
            NULL) { /* the NUL behind becomes white space, which changes no value */
            bytes[n] = '\n';
            temporary_write(folder, names[i], bytes, n + 1);
        } else {
            bytes[n - 1] ^= 1;
            temporary_write(folder, names[i], bytes, n);
            bytes[n - 1] ^= 1;
        }
        digest_of(folder, changed);
        assert_memory_not_equal(first, changed, sizeof first);
        temporary_write(folder, names[i], bytes, n);
        free(bytes);
    }
    digest_of(folder, copied);
    assert_memory_equal(first, copied, sizeof first);
    temporary_remove(folder);
}

/* Name, NUL, size and bytes of each file, in a fixed order: profiles and bundles hold this digest, and one
 * that changes makes strangers of all of them. */
static void test_checkpoint__digest_stays_what_it_was(void **state)
{
    (void)state;
    static const char *const names[] = {"config.json", "generation_config.json",
                                        "model.safetensors.index.json", "model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors"};
    uint8_t digest[MOEC_SHA256_BYTES], own[MOEC_SHA256_BYTES];
    struct moec_sha256 sha;
    moec_sha256_init(&sha);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n = 0;
        uint8_t *bytes = temporary_read(FAMILIES "qwen2_moe", names[i], &n), size[8];
        moec_put_u64(size, n);
        moec_sha256_update(&sha, names[i], strlen(names[i]) + 1);
        moec_sha256_update(&sha, size, sizeof size);
        moec_sha256_update(&sha, bytes, n);
        free(bytes);
    }
    moec_sha256_finish(&sha, own);
    digest_of(FAMILIES "qwen2_moe", digest);
    assert_memory_equal(digest, own, sizeof own);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint__configs),
        cmocka_unit_test(test_checkpoint__experts_are_the_tensors_of_their_names),
        cmocka_unit_test(test_checkpoint__stacked_experts_are_the_same_model),
        cmocka_unit_test(test_checkpoint__records_are_those_of_the_weights),
        cmocka_unit_test(test_checkpoint__sixteen_bits_keep_the_source),
        cmocka_unit_test(test_checkpoint__dense_weights),
        cmocka_unit_test(test_checkpoint__dense_tensors_stand_in_their_places),
        cmocka_unit_test(test_checkpoint__digest_covers_every_file),
        cmocka_unit_test(test_checkpoint__digest_stays_what_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
