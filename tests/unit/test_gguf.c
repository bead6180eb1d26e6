/* GGUF files: what they hold equals what the gguf package reads, a model in one is the model of its folder,
 * and damaged ones are refused. Fixtures: tests/fixtures/make_gguf.py. */
#include "tests/unit/dense_load.h"
#include "tests/unit/temporary.h"

#include "formats/base/bytes.h"
#include "formats/base/file.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/checkpoint/gguf_source.h"
#include "formats/gguf/ggml_blocks.h"
#include "formats/gguf/gguf.h"
#include "formats/tokenizer/gguf_tokenizer.h"
#include "runtime/text/tokenizer.h"

#include <math.h>

#define GGUF     "tests/fixtures/gguf/"
#define FAMILIES "tests/fixtures/families/"

/* ---- blocks ---- */

static int by_offset(const void *a, const void *b)
{
    const struct moec_gguf_tensor *x = a, *y = b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static void test_gguf__blocks_decode_as_in_the_package(void **state)
{
    (void)state;
    struct moec_gguf gguf;
    struct moec_error err = {0};
    size_t n_bytes = 0, at = 0;
    assert_ok(moec_gguf_open(&gguf, GGUF "blocks.gguf", &err), err);
    const float *expected = (const float *)(void *)temporary_read(GGUF, "values.f32", &n_bytes);
    assert_int_equal(gguf.n_tensors, 22);
    qsort(gguf.tensors, gguf.n_tensors, sizeof *gguf.tensors, by_offset);
    for (size_t i = 0; i < gguf.n_tensors; i++) {
        const struct moec_gguf_tensor *tensor = &gguf.tensors[i];
        const struct moec_ggml_type *type = moec_ggml_type_find(tensor->type);
        const size_t n = (size_t)(tensor->dims[0] * tensor->dims[1]);
        uint8_t stored[1024];
        float weights[1024];
        assert_string_equal(type->name, tensor->name);
        assert_int_equal(tensor->n_bytes, n / type->block_weights * type->block_bytes);
        assert_ok(moec_file_read(&gguf.file, tensor->offset, stored, tensor->n_bytes, &err), err);
        type->decode(stored, n, weights);
        assert_true(at + n <= n_bytes / sizeof *expected);
        for (size_t k = 0; k < n; k++)
            if (memcmp(&weights[k], &expected[at + k], sizeof *weights) != 0)
                fail_msg("%s: weight %zu is %.9g, expected %.9g", type->name, k, (double)weights[k],
                         (double)expected[at + k]);
        at += n;
    }
    assert_int_equal(at * sizeof *expected, n_bytes);
    free((void *)(uintptr_t)expected);
    moec_gguf_close(&gguf);
}

/* ---- models ---- */

static float *decoded(const struct moec_dense *dense, const struct moec_dense_entry *entry)
{
    const size_t row_bytes = moec_codec_row_bytes(entry->codec, entry->columns);
    float *weights = malloc((size_t)entry->rows * entry->columns * sizeof *weights);
    assert_non_null(weights);
    for (uint32_t r = 0; r < entry->rows; r++)
        moec_codec_decode_row(entry->codec, dense->blob + entry->offset + r * row_bytes, entry->columns,
                              weights + (size_t)r * entry->columns);
    return weights;
}

/* Whatever the checkpoint's dtype is. */
static bool is_kept_in_f32(enum moec_role role)
{
    return role == MOEC_ROLE_ROUTER || role == MOEC_ROLE_CONVOLUTION || role == MOEC_ROLE_Q_CONVOLUTION ||
           role == MOEC_ROLE_K_CONVOLUTION || role == MOEC_ROLE_V_CONVOLUTION ||
           role == MOEC_ROLE_EXPERT_GATE_BIAS || role == MOEC_ROLE_EXPERT_UP_BIAS ||
           role == MOEC_ROLE_EXPERT_DOWN_BIAS;
}

static void assert_same_dense(const struct moec_checkpoint *a, const struct moec_checkpoint *b)
{
    struct moec_dense dense[2];
    struct moec_error err = {0};
    assert_ok(dense_load(a, 16, 0, &dense[0], &err), err);
    assert_ok(dense_load(b, 16, 0, &dense[1], &err), err);
    assert_int_equal(dense[0].n_entries, dense[1].n_entries);
    for (uint32_t i = 0; i < dense[0].n_entries; i++) {
        const struct moec_dense_entry *entry = &dense[0].entries[i];
        float *x = decoded(&dense[0], entry), *y = decoded(&dense[1], &dense[1].entries[i]);
        if (entry->role == MOEC_ROLE_DELTA_DECAY_LOG) /* its exp was rounded to F32 */
            for (uint32_t k = 0; k < entry->columns; k++)
                assert_true(fabsf(x[k] - y[k]) <= 1e-6f);
        else
            assert_memory_equal(x, y, (size_t)entry->rows * entry->columns * sizeof *x);
        if (entry->rows > 1 && !is_kept_in_f32(entry->role))
            assert_int_equal(entry->codec.dtype, dense[1].entries[i].codec.dtype);
        free(x);
        free(y);
    }
    moec_dense_release(&dense[0]);
    moec_dense_release(&dense[1]);
}

static void assert_same_experts(const struct moec_checkpoint *a, const struct moec_checkpoint *b)
{
    const struct moec_config *c = moec_checkpoint_config(a);
    const size_t n = (size_t)c->n_ff_expert * c->n_embd;
    struct moec_error err = {0};
    float *x = malloc(3 * n * sizeof *x), *y = malloc(3 * n * sizeof *y);
    assert_true(x != NULL && y != NULL);
    for (uint32_t layer = 0; layer < c->n_layer; layer++)
        for (uint32_t expert = 0; moec_config_is_moe(c, layer) && expert < c->n_expert; expert++) {
            assert_ok(moec_checkpoint_load_expert(a, layer, expert,
                                                  (struct moec_expert_floats){x, x + n, x + 2 * n}, &err),
                      err);
            assert_ok(moec_checkpoint_load_expert(b, layer, expert,
                                                  (struct moec_expert_floats){y, y + n, y + 2 * n}, &err),
                      err);
            for (size_t k = c->mlp.plain ? n : 0; k < 3 * n; k++) /* ggml has no minus zero in MXFP4 */
                assert_true(memcmp(&x[k], &y[k], sizeof *x) == 0 || (x[k] == 0 && y[k] == 0));
        }
    free(x);
    free(y);
}

/* The same config, dense weights and experts, bit for bit. */
static void assert_same_model(const char *folder, const char *gguf)
{
    struct moec_checkpoint *a = NULL, *b = NULL;
    struct moec_error err = {0};
    uint8_t *x = NULL, *y = NULL;
    size_t n_x = 0, n_y = 0;
    assert_ok(moec_checkpoint_open(folder, &a, &err), err);
    assert_ok(moec_checkpoint_open(gguf, &b, &err), err);
    assert_ok(moec_config_encode(moec_checkpoint_config(a), &x, &n_x, &err), err);
    assert_ok(moec_config_encode(moec_checkpoint_config(b), &y, &n_y, &err), err);
    assert_int_equal(n_x, n_y);
    assert_memory_equal(x, y, n_x);
    const uint64_t n_a = moec_checkpoint_expert_bytes(a), n_b = moec_checkpoint_expert_bytes(b);
    if (n_a != n_b) /* a folder's MXFP4 has scales in tensors of their own, which do not count */
        assert_int_equal(n_a / 16 * 17, n_b);
    assert_null(moec_checkpoint_tokenizer(b));
    assert_same_dense(a, b);
    assert_same_experts(a, b);
    free(x);
    free(y);
    moec_checkpoint_close(a);
    moec_checkpoint_close(b);
}

static void test_gguf__a_model_is_that_of_its_folder(void **state)
{
    (void)state;
    assert_same_model(FAMILIES "olmoe", GGUF "olmoe.gguf");
    assert_same_model(FAMILIES "olmoe", GGUF "parts-00001-of-00002.gguf");
    assert_same_model(FAMILIES "qwen2_moe", GGUF "qwen2_moe.gguf");
    assert_same_model(FAMILIES "mixtral", GGUF "mixtral.gguf");
}

/* Keys and values of latents in one tensor, as converters wrote them until April 2025. */
static void test_gguf__whole_latents(void **state)
{
    (void)state;
    assert_same_model(FAMILIES "deepseek_v3", GGUF "families/deepseek_v3-whole.gguf");
}

/* Mistral's own format becomes another architecture. */
static void test_gguf__mistral_4_under_the_name_of_deepseek(void **state)
{
    (void)state;
    assert_same_model(FAMILIES "mistral4", GGUF "families/mistral4-deepseek2.gguf");
}

/* Queries, keys and values in one tensor, and their biases; of one family in pairs. */
static void test_gguf__fused_tensors(void **state)
{
    (void)state;
    assert_same_model(FAMILIES "granitemoeshared", GGUF "families/granitemoeshared-fused.gguf");
    assert_same_model(FAMILIES "glm4_moe", GGUF "families/glm4_moe-fused.gguf");
}

/* Files of llama.cpp's own converter, beside the folder that it was given: that of the family, some with
 * another config.json (tests/fixtures/make_gguf_families.py). */
static void test_gguf__what_the_converter_changes_is_undone(void **state)
{
    (void)state;
    static const char *const names[] = {
        "afmoe",          "deepseek",      "dots1",          "ernie4_5_moe",
        "exaone_moe",     "glm4_moe",      "granitemoe",     "granitemoeshared",
        "hunyuan_v1_moe", "minimax_m2",    "qwen3_moe-yarn", "qwen3_next",
        "gpt_oss",        "gpt_oss-mxfp4", "lfm2_moe",       "granitemoehybrid",
        "deepseek_v2",    "deepseek_v3",   "nemotron_h",     "qwen3_5_moe",
        "gemma4",         "phimoe",        "mistral4",       "kimi_linear",
        "llama4"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char gguf[128], config[128], family[128], own[128];
        print_message("%s\n", names[i]);
        (void)snprintf(gguf, sizeof gguf, GGUF "families/%s.gguf", names[i]);
        (void)snprintf(config, sizeof config, GGUF "families/%s.config.json", names[i]);
        (void)snprintf(family, sizeof family, FAMILIES "%s/", names[i]);
        (void)snprintf(own, sizeof own, GGUF "families/%s", names[i]);
        if (!moec_path_exists(config)) {
            assert_same_model(moec_path_exists(own) ? own : family, gguf);
            continue;
        }
        size_t n = 0;
        char *folder = temporary_folder();
        uint8_t *bytes = temporary_read(".", config, &n);
        temporary_write(folder, "config.json", bytes, n);
        free(bytes);
        bytes = temporary_read(family, "model.safetensors", &n);
        temporary_write(folder, "model.safetensors", bytes, n);
        free(bytes);
        assert_same_model(folder, gguf);
        temporary_remove(folder);
    }
}

/* Where config.json of a gpt_oss model says nothing about RoPE, it is YaRN; a GGUF file means plain RoPE. */
static void test_gguf__rope_without_scaling(void **state)
{
    static const char yarn[] = {4, 0, 0, 0, 0, 0, 0, 0, 'y', 'a', 'r', 'n'}; /* with its length before it */
    char *folder = temporary_folder();
    struct moec_error err = {0};
    struct moec_checkpoint *ck = NULL;
    size_t n = 0;
    uint8_t *bytes = temporary_read(GGUF "families", "gpt_oss.gguf", &n),
            *at = memmem(bytes, n, yarn, sizeof yarn);
    (void)state;
    assert_non_null(at);
    memcpy(at + 8, "none", 4);
    temporary_write(folder, "plain.gguf", bytes, n);
    char *path = temporary_path(folder, "plain.gguf");
    assert_ok(moec_checkpoint_open(path, &ck, &err), err);
    assert_int_equal(moec_checkpoint_config(ck)->kinds[0].rope_scaling.kind, MOEC_ROPE_PLAIN);
    moec_checkpoint_close(ck);
    free(path);
    free(bytes);
    temporary_remove(folder);
}

/* ---- tokenizers ---- */

/* A line of expected.txt: text in hex, ids, and of a tokenizer.json ids with those around the text. */
static void check_line(const struct moec_tokenizer *tokenizer, const char *name, char *line)
{
    char *columns[3] = {line, NULL, NULL};
    char text[4096];
    size_t n_text = 0;
    for (size_t i = 1; i < 3; i++) {
        columns[i] = columns[i - 1] == NULL ? NULL : strchr(columns[i - 1], '\t');
        if (columns[i] != NULL)
            *columns[i]++ = '\0';
    }
    if (columns[2] != NULL)
        columns[2][strcspn(columns[2], "\t")] = '\0';
    assert_true(strlen(line) / 2 < sizeof text);
    for (; line[2 * n_text] != '\0'; n_text++) {
        unsigned byte = 0;
        assert_int_equal(sscanf(line + 2 * n_text, "%2x", &byte), 1);
        text[n_text] = (char)byte;
    }
    for (size_t with = 0; with < 2 && columns[1 + with] != NULL; with++) {
        struct moec_error err = {0};
        uint32_t *ids = NULL;
        size_t n_ids = 0, n = 0;
        assert_ok(
            moec_tokenizer_encode(tokenizer, (struct moec_text){text, n_text}, with == 1, &ids, &n_ids, &err),
            err);
        for (char *rest = NULL, *id = strtok_r(columns[1 + with], " ", &rest); id != NULL;
             id = strtok_r(NULL, " ", &rest), n++)
            if (n >= n_ids || ids[n] != strtoul(id, NULL, 10))
                fail_msg("%s, text %s: id %zu is not %s", name, line, n, id);
        assert_int_equal(n, n_ids);
        free(ids);
    }
}

/* The tokenizer of a GGUF file gives the ids that a file of texts lists. */
static void check_ids(const char *path, const char *folder, const char *expected)
{
    struct moec_gguf gguf;
    struct moec_tokenizer_model model;
    struct moec_tokenizer *tokenizer = NULL;
    struct moec_error err = {0};
    bool found = false;
    size_t n_lines = 0, n_bytes = 0;
    assert_ok(moec_gguf_open(&gguf, path, &err), err);
    assert_ok(moec_gguf_tokenizer_read(&gguf, &model, &found, &err), err);
    assert_true(found);
    moec_gguf_close(&gguf);
    assert_ok(moec_tokenizer_create(&model, &tokenizer, &err), err);
    uint8_t *read = temporary_read(folder, expected, &n_bytes);
    char *lines = realloc(read, n_bytes + 1);
    assert_non_null(lines);
    lines[n_bytes] = '\0';
    for (char *line = lines, *end; (end = strchr(line, '\n')) != NULL; line = end + 1, n_lines++) {
        *end = '\0';
        check_line(tokenizer, path, line);
    }
    assert_true(n_lines > 100);
    free(lines);
    moec_tokenizer_free(tokenizer);
    moec_tokenizer_model_release(&model);
}

static void test_gguf__tokenizers_give_the_ids_of_their_files(void **state)
{
    (void)state;
    static const struct {
        const char *name, *folder;
    } cases[] = {{"gpt2", "tests/fixtures/tokenizers/gpt2"},
                 {"llama3", "tests/fixtures/tokenizers/llama3"},
                 {"qwen2", "tests/fixtures/tokenizers/qwen2"},
                 {"olmoe", "tests/fixtures/tokenizers/olmoe"},
                 {"gemma", "tests/fixtures/tokenizers/gemma"},
                 {"bpe", "tests/fixtures/sentencepiece/bpe"},
                 {"bpe-plain", "tests/fixtures/sentencepiece/bpe-plain"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[128];
        (void)snprintf(path, sizeof path, GGUF "vocab/%s.gguf", cases[i].name);
        check_ids(path, cases[i].folder, "expected.txt");
    }
}

/* Ids of llama.cpp, or of the pattern that the models have (tests/fixtures/make_gguf_cuts.py). */
static void test_gguf__cuts(void **state)
{
    (void)state;
    check_ids(GGUF "cuts/exaone-moe.gguf", GGUF "cuts", "exaone-moe.txt");
    check_ids(GGUF "cuts/kimi-k2.gguf", GGUF "cuts", "kimi-k2.txt");
}

/* Ids of a text of which the bytes from `typed` on come from a user. */
static uint32_t *ids_of(const char *path, const char *text, size_t typed, size_t *n_ids)
{
    struct moec_gguf gguf;
    struct moec_tokenizer_model model;
    struct moec_tokenizer *tokenizer = NULL;
    struct moec_error err = {0};
    uint8_t marks[64] = {0};
    uint32_t *ids = NULL;
    bool found = false;
    assert_true(strlen(text) <= sizeof marks);
    memset(marks + typed, 1, sizeof marks - typed);
    assert_ok(moec_gguf_open(&gguf, path, &err), err);
    assert_ok(moec_gguf_tokenizer_read(&gguf, &model, &found, &err), err);
    moec_gguf_close(&gguf);
    assert_ok(moec_tokenizer_create(&model, &tokenizer, &err), err);
    assert_ok(moec_tokenizer_encode_marked(tokenizer, (struct moec_text){text, strlen(text)}, marks, &ids,
                                           n_ids, &err),
              err);
    moec_tokenizer_free(tokenizer);
    moec_tokenizer_model_release(&model);
    return ids;
}

/* Control pieces of SentencePiece are tokens where a chat template wrote them, and nowhere else. */
static void test_gguf__control_pieces_of_templates(void **state)
{
    (void)state;
    static const char both[] = "<s>the</s><s>";
    size_t n = 0, n_other = 0;
    uint32_t *ids = ids_of(GGUF "vocab/bpe.gguf", both, 10, &n);
    assert_true(n > 5 && ids[0] == 1);
    size_t end = 1;
    while (end < n && ids[end] != 2)
        end++;
    assert_true(end + 3 < n); /* what was typed is more than one piece */
    for (size_t i = 1; i < n; i++)
        assert_true(ids[i] != 1 && (i == end || ids[i] != 2));
    free(ids);
    ids = ids_of(GGUF "vocab/bpe.gguf", both, 0, &n);
    for (size_t i = 0; i < n; i++)
        assert_true(ids[i] > 2);
    free(ids);
    /* Phi's take the white space behind them. */
    ids = ids_of(GGUF "vocab/bpe-phi.gguf", "<|end|>\n the", 13, &n);
    uint32_t *other = ids_of(GGUF "vocab/bpe-phi.gguf", "<|end|>the", 10, &n_other);
    assert_int_equal(n, n_other);
    assert_memory_equal(ids, other, n * sizeof *ids);
    assert_int_equal(ids[0], 800);
    free(ids);
    free(other);
}

/* ---- what is refused ---- */

static void refuse(const char *folder, const char *name, const uint8_t *bytes, size_t n,
                   enum moec_status status, const char *part)
{
    struct moec_checkpoint *ck = NULL;
    struct moec_error err = {0};
    temporary_write(folder, name, bytes, n);
    char *path = temporary_path(folder, name);
    assert_status(moec_checkpoint_open(path, &ck, &err), status, err);
    assert_null(ck);
    assert_message(err, part);
    free(path);
}

/* Replaces the first `from` by `to` of the same length and expects the file to be refused. */
static void refuse_patched(const char *folder, const char *source, const char *from, const char *to,
                           enum moec_status status, const char *part)
{
    size_t n = 0;
    uint8_t *bytes = temporary_read(GGUF, source, &n), *at = memmem(bytes, n, from, strlen(from));
    assert_non_null(at);
    assert_int_equal(strlen(from), strlen(to));
    memcpy(at, to, strlen(to));
    refuse(folder, source, bytes, n, status, part);
    free(bytes);
}

static void test_gguf__models_that_are_not_known(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    refuse_patched(folder, "olmoe.gguf", "GGUF", "GGML", MOEC_ERR_FORMAT, "is a file but not GGUF");
    refuse_patched(folder, "olmoe.gguf", "GGUF\3", "GGUF\1", MOEC_ERR_UNSUPPORTED, "GGUF of version 1");
    refuse_patched(
        folder, "olmoe.gguf", "olmoe", "gemma", MOEC_ERR_UNSUPPORTED,
        "has 'general.architecture' 'gemma', supported architectures: 'olmoe', 'qwen2moe', 'qwen3moe', "
        "'llama'");
    refuse_patched(folder, "olmoe.gguf", "olmoe.block_count", "olmoe.block_xxxxx", MOEC_ERR_FORMAT,
                   "has no 'olmoe.block_count'");
    refuse_patched(folder, "olmoe.gguf", "blk.1.ffn_up_exps.weight", "blk.1.ffn_up_exxx.weight",
                   MOEC_ERR_FORMAT,
                   "has no tensor 'blk.1.ffn_up_exps.weight', which models of family 'olmoe' need");
    refuse_patched(folder, "olmoe.gguf", "blk.1.ffn_up_exps.weight", "blk.0.ffn_up_exps.weight",
                   MOEC_ERR_FORMAT, "has tensor 'blk.0.ffn_up_exps.weight' twice");
    refuse_patched(folder, "parts-00001-of-00002.gguf", "blk.0.attn_q.weight", "blk.0.attn_q.weighx",
                   MOEC_ERR_NOT_FOUND, "parts-00002-of-00002.gguf");
    temporary_remove(folder);
}

/* The value of a key is another one. */
static void refuse_value(const char *folder, const char *name, const char *key, uint32_t value,
                         const char *part)
{
    size_t n = 0;
    uint8_t *bytes = temporary_read(GGUF "families", name, &n);
    uint8_t *at = memmem(bytes, n, key, strlen(key));
    assert_non_null(at);
    moec_put_u32(at + strlen(key) + 4, value); /* behind the type */
    refuse(folder, name, bytes, n, MOEC_ERR_UNSUPPORTED, part);
    free(bytes);
}

static void test_gguf__routers_that_a_family_does_not_have(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    refuse_value(folder, "glm4_moe.gguf", "glm4moe.expert_gating_func", 1,
                 "'glm4moe.expert_gating_func' 1, only 2 (sigmoid) is supported");
    refuse_value(folder, "deepseek.gguf", "deepseek.expert_weights_scale", 0x40200000u,
                 "'deepseek.expert_weights_scale' 2.5, only 1 is supported");
    static const char yarn[] = {4, 0, 0, 0, 0, 0, 0, 0, 'y', 'a', 'r', 'n'}; /* with its length before it */
    size_t n = 0;
    uint8_t *bytes = temporary_read(GGUF "families", "qwen3_moe-yarn.gguf", &n),
            *at = memmem(bytes, n, yarn, sizeof yarn);
    assert_non_null(at);
    memcpy(at + 8, "worm", 4);
    refuse(folder, "x.gguf", bytes, n, MOEC_ERR_UNSUPPORTED, "asks for RoPE of type 'worm'");
    free(bytes);
    temporary_remove(folder);
}

/* What the converter leaves out and no published model tells. */
static void test_gguf__what_the_converter_leaves_out(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    refuse_value(folder, "phimoe.gguf", "phimoe.context_length", 8192,
                 "has LongRoPE from 4096 to 8192 positions without 'short_mscale'");
    refuse_value(folder, "kimi_linear.gguf", "kimi-linear.expert_group_used_count", 2,
                 "chooses experts from 2 groups");
    refuse_value(folder, "llama4.gguf", "llama4.rope.freq_base", 0x447a0000u,
                 "matches no RoPE scaling with 'low_freq_factor' 1");
    refuse_value(folder, "gemma4.gguf", "gemma4.embedding_length_per_layer_input", 8,
                 "says 'hidden_size_per_layer_input' 8, only 0 is supported");
    temporary_remove(folder);
}

static void test_gguf__parts_belong_together(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    size_t n = 0;
    uint8_t *first = temporary_read(GGUF, "parts-00001-of-00002.gguf", &n);
    temporary_write(folder, "parts-00002-of-00002.gguf", first, n);
    refuse(folder, "parts-00001-of-00002.gguf", first, n, MOEC_ERR_MISMATCH, "says that it is part 0 of 2");
    refuse(folder, "first.gguf", first, n, MOEC_ERR_MISMATCH,
           "expected a name that ends with '-00001-of-00002.gguf'");
    free(first);
    uint8_t *second = temporary_read(GGUF, "parts-00002-of-00002.gguf", &n);
    refuse(folder, "parts-00002-of-00002.gguf", second, n, MOEC_ERR_USAGE, "is part 2 of a split model");
    uint8_t *name = memmem(second, n, "blk.0.ffn_up_exps.weight", strlen("blk.0.ffn_up_exps.weight"));
    assert_non_null(name);
    memcpy(name, "blk.0.attn_k_norm.weight", strlen("blk.0.attn_k_norm.weight"));
    temporary_write(folder, "parts-00002-of-00002.gguf", second, n);
    first = temporary_read(GGUF, "parts-00001-of-00002.gguf", &n);
    refuse(folder, "parts-00001-of-00002.gguf", first, n, MOEC_ERR_MISMATCH,
           "tensor 'blk.0.attn_k_norm.weight' is in '");
    refuse(folder, "parts-00001-of-00002.gguf", first, n, MOEC_ERR_MISMATCH,
           "parts-00001-of-00002.gguf' and in '");
    free(first);
    free(second);
    temporary_remove(folder);
}

/* What the converter calls a model that has none. */
static void test_gguf__no_tokenizer(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    size_t n = 0;
    uint8_t *bytes = temporary_read(GGUF "vocab", "qwen2.gguf", &n), *at = memmem(bytes, n, "gpt2", 4);
    struct moec_gguf gguf;
    struct moec_tokenizer_model model;
    struct moec_error err = {0};
    bool found = true;
    assert_non_null(at);
    memcpy(at, "none", 4);
    temporary_write(folder, "x.gguf", bytes, n);
    char *path = temporary_path(folder, "x.gguf");
    assert_ok(moec_gguf_open(&gguf, path, &err), err);
    assert_ok(moec_gguf_tokenizer_read(&gguf, &model, &found, &err), err);
    assert_false(found);
    moec_gguf_close(&gguf);
    free(path);
    free(bytes);
    temporary_remove(folder);
}

static void test_gguf__tokenizers_that_are_not_known(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *part;
    } cases[] = {{"qwen2", "qwen9", "'tokenizer.ggml.pre' 'qwen9', a way to split text into words"},
                 {"tokenizer.ggml.pre", "tokenizer.ggml.prx", "has no 'tokenizer.ggml.pre'"},
                 {"gpt2", "bert", "'tokenizer.ggml.model' 'bert', expected 'gpt2', 'gemma4' or 'llama'"}};
    char *folder = temporary_folder();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = 0;
        uint8_t *bytes = temporary_read(GGUF "vocab", "qwen2.gguf", &n);
        uint8_t *at = memmem(bytes, n, cases[i].from, strlen(cases[i].from));
        struct moec_gguf gguf;
        struct moec_tokenizer_model model;
        struct moec_error err = {0};
        bool found = false;
        assert_non_null(at);
        memcpy(at, cases[i].to, strlen(cases[i].to));
        temporary_write(folder, "x.gguf", bytes, n);
        char *path = temporary_path(folder, "x.gguf");
        assert_ok(moec_gguf_open(&gguf, path, &err), err);
        assert_status(moec_gguf_tokenizer_read(&gguf, &model, &found, &err), MOEC_ERR_UNSUPPORTED, err);
        assert_message(err, cases[i].part);
        moec_gguf_close(&gguf);
        free(path);
        free(bytes);
    }
    temporary_remove(folder);
}

static enum moec_status parse(const uint8_t *bytes, size_t n, uint64_t file_bytes, bool *is_short)
{
    struct moec_gguf gguf = {.file = {.fd = -1}};
    struct moec_error err = {0};
    const enum moec_status status = moec_gguf_parse(&gguf, bytes, n, file_bytes, "x.gguf", is_short, &err);
    if (status != MOEC_OK)
        assert_true(err.message[0] != '\0' && gguf.n_values == 0 && gguf.n_tensors == 0);
    moec_gguf_forget(&gguf);
    return status;
}

static void test_gguf__headers_that_end_early(void **state)
{
    (void)state;
    size_t n = 0;
    uint8_t *bytes = temporary_read(GGUF, "blocks.gguf", &n);
    bool is_short = false;
    assert_int_equal(parse(bytes, n, n, &is_short), MOEC_OK);
    size_t enough = 0;
    while (parse(bytes, enough, n, &is_short) != MOEC_OK) {
        assert_true(is_short);             /* more bytes of the file would help */
        uint8_t *cut = malloc(enough + 1); /* so that a checker sees reads past the end */
        assert_non_null(cut);
        memcpy(cut, bytes, enough);
        assert_int_not_equal(parse(cut, enough, enough, &is_short), MOEC_OK);
        assert_false(is_short);
        free(cut);
        enough++;
    }
    assert_true(enough > 1000 / 2 && enough < n);
    /* A tensor past the end of the file. */
    assert_int_equal(parse(bytes, n, n - 100, &is_short), MOEC_ERR_FORMAT);
    free(bytes);
}

/* One tensor of `columns` values of a type, in a file whose data is as long as said: the smallest GGUF file.
 */
static enum moec_status parse_tensor(uint32_t type, uint64_t columns, uint64_t data_bytes)
{
    uint8_t bytes[4096] = "GGUF\3";
    uint64_t at = 24; /* after the version, the numbers of tensors and of values */
    bool is_short = false;
    moec_put_u64(bytes + 8, 1);
    moec_put_u64(bytes + at, 1); /* its name */
    bytes[at + 8] = 't';
    moec_put_u32(bytes + at + 9, 1); /* extents */
    moec_put_u64(bytes + at + 13, columns);
    moec_put_u32(bytes + at + 21, type);
    moec_put_u64(bytes + at + 25, 0); /* the first byte of the data, which begins at a multiple of 32 */
    at = (at + 33 + 31) / 32 * 32;
    assert_true(at + data_bytes <= sizeof bytes);
    return parse(bytes, at + data_bytes, at + data_bytes, &is_short);
}

/* A tensor ends with its last block: where a byte of that is missing, it is refused. */
static void test_gguf__a_last_block_that_is_not_there(void **state)
{
    (void)state;
    /* F32, F16, Q4_0 (32 values, 18 bytes), Q8_0 (34), Q4_K (256 values, 144 bytes), Q6_K (210). */
    static const struct {
        uint32_t type, n_values, n_bytes;
    } blocks[] = {{0, 1, 4}, {1, 1, 2}, {2, 32, 18}, {8, 32, 34}, {12, 256, 144}, {14, 256, 210}};
    for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++)
        for (uint64_t n = 1; n <= 3; n++) {
            const uint64_t columns = n * blocks[b].n_values, n_bytes = n * blocks[b].n_bytes;
            assert_int_equal(parse_tensor(blocks[b].type, columns, n_bytes), MOEC_OK);
            assert_int_equal(parse_tensor(blocks[b].type, columns, n_bytes - 1), MOEC_ERR_FORMAT);
            assert_int_equal(parse_tensor(blocks[b].type, columns, n_bytes - blocks[b].n_bytes),
                             MOEC_ERR_FORMAT);
        }
}

/* Counts and lengths of every size: each is compared with what is left before anything is allocated or read.
 */
static void test_gguf__numbers_that_are_too_large(void **state)
{
    (void)state;
    size_t n = 0;
    uint8_t *bytes = temporary_read(GGUF, "blocks.gguf", &n);
    static const uint64_t large[] = {UINT64_MAX, INT64_MAX, (uint64_t)1 << 32, UINT64_MAX - 7,
                                     (uint64_t)1 << 61};
    bool is_short = false;
    for (size_t at = 4; at + 8 < 1200 && at + 8 < n; at++)
        for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
            uint8_t kept[8];
            memcpy(kept, bytes + at, 8);
            moec_put_u64(bytes + at, large[i]);
            (void)parse(bytes, n, n, &is_short);
            memcpy(bytes + at, kept, 8);
        }
    for (size_t at = 8; at < 24; at += 8) {
        uint8_t kept[8];
        memcpy(kept, bytes + at, 8);
        moec_put_u64(bytes + at, n);
        assert_int_equal(parse(bytes, n, n, &is_short), MOEC_ERR_LIMIT);
        memcpy(bytes + at, kept, 8);
    }
    free(bytes);
}

/* Integers of 64 bits are read as such, not through a double. */
static void test_gguf__large_integers_are_exact(void **state)
{
    (void)state;
    static const uint64_t numbers[] = {0, 1, ((uint64_t)1 << 53) + 1, INT64_MAX, UINT64_MAX};
    const struct moec_gguf gguf = {.file.path = (char[]){"a.gguf"}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        for (int is_signed = 0; is_signed < 2; is_signed++) {
            const uint32_t type = is_signed ? MOEC_GGUF_I64 : MOEC_GGUF_U64;
            const bool is_negative = is_signed && numbers[i] > INT64_MAX;
            struct moec_error err = {0};
            uint8_t bytes[8];
            uint64_t read = 0;
            moec_put_u64(bytes, numbers[i]);
            const struct moec_gguf_value value = {
                .key = "n", .type = type, .item_type = type, .n_items = 1, .bytes = bytes, .n_bytes = 8};
            assert_int_equal(moec_gguf_as_u64(&gguf, &value, &read, &err),
                             is_negative ? MOEC_ERR_FORMAT : MOEC_OK);
            if (is_negative)
                assert_non_null(
                    strstr(err.message, "'n' in the GGUF file 'a.gguf' is -1, expected 0 or more"));
            else
                assert_true(read == numbers[i]);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gguf__blocks_decode_as_in_the_package),
        cmocka_unit_test(test_gguf__a_model_is_that_of_its_folder),
        cmocka_unit_test(test_gguf__what_the_converter_changes_is_undone),
        cmocka_unit_test(test_gguf__fused_tensors),
        cmocka_unit_test(test_gguf__whole_latents),
        cmocka_unit_test(test_gguf__mistral_4_under_the_name_of_deepseek),
        cmocka_unit_test(test_gguf__tokenizers_give_the_ids_of_their_files),
        cmocka_unit_test(test_gguf__cuts),
        cmocka_unit_test(test_gguf__control_pieces_of_templates),
        cmocka_unit_test(test_gguf__models_that_are_not_known),
        cmocka_unit_test(test_gguf__routers_that_a_family_does_not_have),
        cmocka_unit_test(test_gguf__rope_without_scaling),
        cmocka_unit_test(test_gguf__what_the_converter_leaves_out),
        cmocka_unit_test(test_gguf__parts_belong_together),
        cmocka_unit_test(test_gguf__no_tokenizer),
        cmocka_unit_test(test_gguf__tokenizers_that_are_not_known),
        cmocka_unit_test(test_gguf__headers_that_end_early),
        cmocka_unit_test(test_gguf__a_last_block_that_is_not_there),
        cmocka_unit_test(test_gguf__numbers_that_are_too_large),
        cmocka_unit_test(test_gguf__large_integers_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
