/* Checkpoint folders that are damaged, incomplete or at odds with themselves, and what refuses them. */
#include "tests/unit/dense_load.h"
#include "tests/unit/fixture_checkpoint.h"
#include "tests/unit/tensor_entry.h"

#include "formats/checkpoint/safetensors.h"

static void refuse(const char *folder, enum moec_status status, const char *part)
{
    struct moec_checkpoint *ck = NULL;
    struct moec_error err = {0};
    assert_status(moec_checkpoint_open(folder, &ck, &err), status, err);
    assert_null(ck);
    assert_message(err, part);
}

/* Replaces the first `from` in a file by `to`, which must not be longer; spaces follow. */
static void patch(const char *folder, const char *name, const char *from, const char *to)
{
    size_t n = 0, n_from = strlen(from), n_to = strlen(to);
    uint8_t *bytes = temporary_read(folder, name, &n);
    uint8_t *at = memmem(bytes, n, from, n_from);
    assert_non_null(at);
    assert_true(n_to <= n_from);
    memcpy(at, to, n_to);
    memset(at + n_to, ' ', n_from - n_to);
    temporary_write(folder, name, bytes, n);
    free(bytes);
}

/* Where a tensor's bytes begin and how many there are. */
static uint8_t *tensor_bytes(uint8_t *file, const char *name, size_t *n)
{
    uint64_t header = 0;
    unsigned long long first = 0, end = 0;
    char quoted[128];
    memcpy(&header, file, sizeof header);
    (void)snprintf(quoted, sizeof quoted, "\"%s\":", name);
    const char *at = memmem(file + 8, header, quoted, strlen(quoted));
    assert_non_null(at);
    assert_int_equal(sscanf(strstr(at, "data_offsets"), "data_offsets\":[%llu,%llu]", &first, &end), 2);
    *n = (size_t)(end - first);
    return file + 8 + header + first;
}

/* Writes the weights of one tensor over those of another of its size. */
static void copy_tensor(const char *folder, const char *from, const char *to)
{
    size_t n_file = 0, n_from = 0, n_to = 0;
    uint8_t *file = temporary_read(folder, "model.safetensors", &n_file);
    const uint8_t *source = tensor_bytes(file, from, &n_from);
    uint8_t *target = tensor_bytes(file, to, &n_to);
    assert_int_equal(n_from, n_to);
    memcpy(target, source, n_to);
    temporary_write(folder, "model.safetensors", file, n_file);
    free(file);
}

/* A head that differs from the embedding counts, whatever 'tie_word_embeddings' says; one that is the same
 * does not. */
static void test_checkpoint_damage__a_head_beside_a_tied_one(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    struct moec_matrix head;
    struct moec_dense dense = {0};
    struct moec_error err = {0};
    temporary_copy(FAMILIES "qwen3_moe", folder);
    patch(folder, "config.json", "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
    struct moec_checkpoint *ck = open_good(folder), *plain = open_good(FAMILIES "qwen3_moe");
    assert_false(moec_checkpoint_config(ck)->head.is_tied);
    assert_int_equal(moec_checkpoint_weight_bytes(ck), moec_checkpoint_weight_bytes(plain));
    assert_ok(dense_load(ck, 16, 0, &dense, &err), err);
    assert_true(moec_dense_find(&dense, MOEC_ROLE_HEAD, MOEC_LAYER_NONE, &head));
    moec_dense_release(&dense);
    moec_checkpoint_close(plain);
    moec_checkpoint_close(ck);
    copy_tensor(folder, "model.embed_tokens.weight", "lm_head.weight");
    ck = open_good(folder);
    assert_true(moec_checkpoint_config(ck)->head.is_tied);
    moec_checkpoint_close(ck);
    temporary_remove(folder);
}

static void delete_file(const char *folder, const char *name)
{
    char *path = temporary_path(folder, name);
    assert_int_equal(unlink(path), 0);
    free(path);
}

static void test_checkpoint_damage__folders_that_are_none(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    char *file = temporary_path(folder, "config.json");
    refuse("/no/such/folder", MOEC_ERR_NOT_FOUND, "'/no/such/folder' does not exist");
    refuse(folder, MOEC_ERR_NOT_FOUND, "config.json");
    temporary_write(folder, "config.json", "{}", 2);
    refuse(file, MOEC_ERR_FORMAT, "is a file but not GGUF, expected a folder");
    refuse(folder, MOEC_ERR_FORMAT, "no 'model_type'");
    temporary_write(folder, "config.json", "{\"model_type\": \"llama\"}", 23);
    refuse(folder, MOEC_ERR_UNSUPPORTED,
           "says 'model_type' 'llama', supported families: 'qwen2_moe', 'qwen3_moe', 'olmoe'");
    temporary_write(folder, "config.json", "{\"model_type\": ", 15);
    refuse(folder, MOEC_ERR_FORMAT, "not valid JSON at line 1");
    temporary_write(folder, "config.json", "[]", 2);
    refuse(folder, MOEC_ERR_FORMAT, "an array, expected an object");
    temporary_write(folder, "config.json", "{\"model_type\": \"mixtral\"}", 25);
    refuse(folder, MOEC_ERR_NOT_FOUND, "expected 'model.safetensors' or 'model.safetensors.index.json'");
    temporary_write(folder, "pytorch_model.bin", "x", 1);
    refuse(folder, MOEC_ERR_UNSUPPORTED, "convert the model with transformers");
    free(file);
    temporary_remove(folder);
}

/* A file that may be absent and is there, but cannot be opened, does not count as absent. */
static void test_checkpoint_damage__files_that_do_not_open(void **state)
{
    (void)state;
    static const char *const names[] = {"generation_config.json", "tokenizer.json",
                                        "tokenizer.model",        "spiece.model",
                                        "model.safetensors",      "tokenizer_config.json"};
    char *folder = temporary_folder();
    size_t n_model = 0;
    uint8_t *model = temporary_read("tests/fuzz/corpus/sentencepiece", "unigram", &n_model);
    temporary_copy(FAMILIES "olmoe-b", folder);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = temporary_path(folder, names[i]);
        size_t n = 0;
        uint8_t *bytes = moec_path_exists(path) ? temporary_read(folder, names[i], &n) : NULL;
        if (strcmp(names[i], "tokenizer_config.json") == 0) /* read where there is a .model */
            temporary_write(folder, "spiece.model", model, n_model);
        (void)unlink(path);
        assert_int_equal(symlink(names[i], path), 0);
        refuse(folder, MOEC_ERR_IO, names[i]);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(symlink("absent", path), 0);
        refuse(folder, MOEC_ERR_NOT_FOUND, names[i]);
        assert_int_equal(unlink(path), 0);
        if (bytes != NULL)
            temporary_write(folder, names[i], bytes, n);
        free(bytes);
        free(path);
    }
    moec_checkpoint_close(open_good(folder));
    free(model);
    temporary_remove(folder);
}

static void write_text(const char *folder, const char *name, const char *text)
{
    temporary_write(folder, name, text, strlen(text));
}

/* What git has in place of a file that git-lfs did not fetch. */
static void test_checkpoint_damage__pointers_of_git_lfs(void **state)
{
    (void)state;
    static const char pointer[] =
        "version https://git-lfs.github.com/spec/v1\noid sha256:"
        "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";
    static const char *const names[] = {"model.safetensors", "config.json", "tokenizer.json", "spiece.model"};
    char *folder = temporary_folder(), part[128];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        temporary_copy(FAMILIES "olmoe-b", folder);
        write_text(folder, names[i], pointer);
        (void)snprintf(part, sizeof part,
                       "/%s' is a Git LFS pointer, not the file itself: run 'git lfs pull'", names[i]);
        refuse(folder, MOEC_ERR_FORMAT, part);
        delete_file(folder, names[i]);
    }
    write_text(folder, "x.gguf", pointer);
    char *path = temporary_path(folder, "x.gguf");
    refuse(path, MOEC_ERR_FORMAT, "/x.gguf' is a Git LFS pointer");
    free(path);
    temporary_remove(folder);
}

static void link_to(const char *target, const char *folder, const char *name)
{
    char *path = temporary_path(folder, name);
    (void)unlink(path);
    assert_int_equal(symlink(target, path), 0);
    free(path);
}

/* Files of the Hub's cache are links to blobs, which someone may have deleted. */
static void test_checkpoint_damage__links_that_lead_nowhere(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    temporary_copy(FAMILIES "olmoe-b", folder);
    link_to("../../blobs/4d7a", folder, "model.safetensors");
    refuse(folder, MOEC_ERR_NOT_FOUND,
           "/model.safetensors' is a link to '../../blobs/4d7a', which does not exist: download");
    link_to("gone", folder, "link");
    char *path = temporary_path(folder, "link");
    refuse(path, MOEC_ERR_NOT_FOUND, "/link' is a link to 'gone', which does not exist");
    free(path);
    temporary_remove(folder);
}

static char *make_folder(const char *folder, const char *name)
{
    char *path = temporary_path(folder, name);
    assert_int_equal(mkdir(path, 0777), 0);
    return path;
}

static void assert_note(const char *path, const char *part)
{
    struct moec_checkpoint *ck = open_good(path);
    const char *note = moec_checkpoint_note(ck);
    assert_true(note != NULL && strstr(note, part) != NULL);
    moec_checkpoint_close(ck);
}

/* models--OWNER--NAME/snapshots/COMMIT, with 'refs/main' that names a commit. */
static void test_checkpoint_damage__the_cache_of_the_hub(void **state)
{
    (void)state;
    char *folder = temporary_folder(), *root = make_folder(folder, "models--some--olmoe");
    char *snapshots = make_folder(root, "snapshots"), *refs = make_folder(root, "refs");
    refuse(root, MOEC_ERR_NOT_FOUND, "olmoe' in the Hub's cache has no snapshot");
    char *first = make_folder(snapshots, "a1b2");
    temporary_copy(FAMILIES "olmoe-b", first);
    assert_note(root, "olmoe' is a model in the Hub's cache: moec reads 'snapshots/a1b2' in it");
    struct moec_checkpoint *ck = open_good(first);
    assert_null(moec_checkpoint_note(ck));
    moec_checkpoint_close(ck);
    char *second = make_folder(snapshots, "c3d4");
    refuse(root, MOEC_ERR_NOT_FOUND,
           "has the snapshots 'a1b2', 'c3d4', but 'refs/main' names none of them; give one snapshot, such "
           "as '");
    refuse(root, MOEC_ERR_NOT_FOUND, "models--some--olmoe/snapshots/a1b2'");
    write_text(refs, "main", "a1b2\n");
    assert_note(root, "moec reads 'snapshots/a1b2' in it");
    refuse(folder, MOEC_ERR_NOT_FOUND,
           "is the Hub's cache, not a model: give one of its models: 'models--some--olmoe'");
    free(second);
    free(first);
    free(refs);
    free(snapshots);
    free(root);
    temporary_remove(folder);
}

static void copy_file(const char *from_folder, const char *from, const char *folder, const char *name)
{
    size_t n = 0;
    uint8_t *bytes = temporary_read(from_folder, from, &n);
    temporary_write(folder, name, bytes, n);
    free(bytes);
}

/* As they are published: with or without a config.json, some quantisations, and a projector of pictures. */
static void test_checkpoint_damage__folders_with_gguf(void **state)
{
    (void)state;
    static const char gguf[] = "tests/fixtures/gguf/";
    char *folder = temporary_folder();
    copy_file(gguf, "olmoe.gguf", folder, "olmoe-Q8_0.gguf");
    copy_file(gguf, "olmoe.gguf", folder, "mmproj-F16.gguf");
    assert_note(folder, "is a folder with a GGUF file: moec reads 'olmoe-Q8_0.gguf' in it");
    write_text(folder, "config.json", "{\"model_type\": \"olmoe\"}");
    assert_note(folder, "moec reads 'olmoe-Q8_0.gguf' in it");
    copy_file(gguf, "olmoe.gguf", folder, "olmoe-Q4_0.gguf");
    refuse(folder, MOEC_ERR_NOT_FOUND,
           "has no safetensors but 2 GGUF files: 'olmoe-Q4_0.gguf', 'olmoe-Q8_0.gguf'; give one of these "
           "files, such as '");
    refuse(folder, MOEC_ERR_NOT_FOUND, "/olmoe-Q4_0.gguf'");
    delete_file(folder, "olmoe-Q4_0.gguf");
    delete_file(folder, "olmoe-Q8_0.gguf");
    copy_file(gguf, "parts-00001-of-00002.gguf", folder, "parts-00001-of-00002.gguf");
    copy_file(gguf, "parts-00002-of-00002.gguf", folder, "parts-00002-of-00002.gguf");
    assert_note(folder, "moec reads 'parts-00001-of-00002.gguf' in it");
    temporary_copy(FAMILIES "olmoe-b", folder);
    struct moec_checkpoint *ck = open_good(folder); /* safetensors go first */
    assert_null(moec_checkpoint_note(ck));
    moec_checkpoint_close(ck);
    temporary_remove(folder);
}

/* Tools that quantise leave a file of their own, and none of the tensors that the model needs. */
static void test_checkpoint_damage__quantised_by_a_tool(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    temporary_copy(FAMILIES "olmoe-b", folder);
    write_text(folder, "hf_quant_config.json", "{}");
    moec_checkpoint_close(open_good(folder));
    patch(folder, "model.safetensors", "experts.0.up_proj.weight\"", "experts.0.up_proj.weighs\"");
    refuse(folder, MOEC_ERR_UNSUPPORTED,
           "and the file 'hf_quant_config.json' says that the weights are quantised already");
    temporary_remove(folder);
}

/* A tensor of a dtype of tomorrow is refused by the model that needs it. */
static void test_checkpoint_damage__unknown_dtypes(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    temporary_copy(FAMILIES "olmoe-b", folder);
    size_t n = 0;
    uint8_t *bytes = temporary_read(folder, "model.safetensors", &n);
    uint8_t *at = memmem(bytes, n, "\"dtype\":\"F32\"", strlen("\"dtype\":\"F32\""));
    at = at != NULL ? at : memmem(bytes, n, "\"dtype\":\"F16\"", strlen("\"dtype\":\"F16\""));
    assert_non_null(at);
    memcpy(at + 9, "F13", 3);
    temporary_write(folder, "model.safetensors", bytes, n);
    free(bytes);
    refuse(folder, MOEC_ERR_UNSUPPORTED, "has dtype F13, expected BF16, F16 or F32");
    temporary_remove(folder);
}

static void test_checkpoint_damage__shards(void **state)
{
    (void)state;
    static const char index[] = "model.safetensors.index.json", second[] = "model-00002-of-00002.safetensors";
    char *folder = temporary_folder();
    temporary_copy(FAMILIES "qwen2_moe", folder);
    char *path = temporary_path(folder, second), *away = temporary_path(folder, "away");
    assert_int_equal(rename(path, away), 0);
    refuse(folder, MOEC_ERR_NOT_FOUND, second);
    refuse(folder, MOEC_ERR_NOT_FOUND, "shard 2 of 2 in");
    assert_int_equal(rename(away, path), 0);
    size_t n = 0;
    uint8_t *good = temporary_read(folder, index, &n);

    static const char *const outside[] = {
        "", "..", ".hidden", "/etc/passwd", "sub/model.safetensors", "sub\\model"};
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
        char map[96];
        int length = snprintf(map, sizeof map, "{\"weight_map\": {\"a\": \"%s\"}}",
                              strchr(outside[i], '\\') != NULL ? "sub\\\\model" : outside[i]);
        temporary_write(folder, index, map, (size_t)length);
        refuse(folder, MOEC_ERR_FORMAT, "expected a plain file name");
        refuse(folder, MOEC_ERR_FORMAT, outside[i]);
    }
    temporary_write(folder, index, good, n);
    patch(folder, index, "\"lm_head.weight\"", "\"lm_heat.weight\""); /* which the model does not need */
    moec_checkpoint_close(open_good(folder));
    temporary_write(folder, index, good, n);
    patch(folder, index, "\"lm_head.weight\": \"model-00002", "\"lm_head.weight\": \"model-00001");
    refuse(folder, MOEC_ERR_FORMAT, "says that tensor 'lm_head.weight' is in 'model-00001");
    temporary_write(folder, index, good, n);
    patch(folder, index, "\"weight_map\"", "\"weight_mop\"");
    refuse(folder, MOEC_ERR_FORMAT, "no 'weight_map'");
    temporary_write(folder, index, "{\"weight_map\": {}}", 18);
    refuse(folder, MOEC_ERR_FORMAT, "names 0 shards");
    temporary_write(folder, index, "{\"weight_map\": {\"a\": 5}}", 24);
    refuse(folder, MOEC_ERR_FORMAT, "shard of tensor 'a'");
    temporary_write(folder, index, good, n / 2);
    refuse(folder, MOEC_ERR_FORMAT, "not valid JSON");
    temporary_write(folder, index, good, n);
    free(good);

    good = temporary_read(folder, second, &n);
    temporary_write(folder, second, good, n - 7);
    refuse(folder, MOEC_ERR_FORMAT, "the file is truncated");
    temporary_write(folder, second, good, n);
    free(good);
    moec_checkpoint_close(open_good(folder));
    free(path);
    free(away);
    temporary_remove(folder);
}

/* Copies of the embedding under other names must hold the same weights; MLPs have the matrices that the
 * config says. */
static void test_checkpoint_damage__switch_tensors(void **state)
{
    (void)state;
    struct moec_error err = {0};
    char *folder = temporary_folder();
    temporary_copy(FAMILIES "switch-gated", folder);
    struct moec_checkpoint *ck = open_good(folder);
    moec_checkpoint_close(ck);
    static const char *const shards[] = {"model-00001-of-00002.safetensors",
                                         "model-00002-of-00002.safetensors"};
    bool is_found = false;
    for (size_t i = 0; i < 2; i++) {
        struct moec_safetensors file;
        char *path = temporary_path(folder, shards[i]);
        assert_status(moec_safetensors_open(&file, path, &err), MOEC_OK, err);
        const struct moec_safetensors_entry *copy = tensor_entry(&file, "decoder.embed_tokens.weight");
        const uint64_t at = copy != NULL ? copy->offset + copy->n_bytes - 1 : 0;
        moec_safetensors_close(&file);
        free(path);
        if (at == 0)
            continue;
        size_t n = 0;
        uint8_t *bytes = temporary_read(folder, shards[i], &n);
        bytes[at] ^= 1;
        temporary_write(folder, shards[i], bytes, n);
        refuse(folder, MOEC_ERR_UNSUPPORTED, "'decoder.embed_tokens.weight'");
        bytes[at] ^= 1;
        temporary_write(folder, shards[i], bytes, n);
        free(bytes);
        is_found = true;
    }
    assert_true(is_found);
    patch(folder, "config.json", "\"gated-gelu\"", "\"relu\"");
    refuse(folder, MOEC_ERR_FORMAT, "expert_0.wi.weight");
    temporary_remove(folder);
}

static void test_checkpoint_damage__tensors(void **state)
{
    (void)state;
    static const char weights[] = "model.safetensors", some_k[] = "model.layers.1.self_attn.k_proj.weight";
    static const struct {
        const char *from, *to;
        enum moec_status status;
        const char *part;
    } cases[] = {
        {some_k, "model.layers.1.self_attn.x_proj.weight", MOEC_ERR_FORMAT,
         "model.safetensors' has no tensor 'model.layers.1.self_attn.k_proj.weight', "
         "which models of family 'mixtral' need"},
        {"\"model.layers.1.self_attn.k_proj.weight\":{\"dtype\":\"BF16\"",
         "\"model.layers.1.self_attn.k_proj.weight\":{\"dtype\":\"I16\"", MOEC_ERR_UNSUPPORTED,
         "has dtype I16, expected BF16, F16 or F32"},
        {"\"model.layers.1.self_attn.k_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[16,32]",
         "\"model.layers.1.self_attn.k_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[32,16]", MOEC_ERR_FORMAT,
         "has shape [32, 16], expected [16, 32]"},
        {"\"model.layers.1.self_attn.k_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[16,32]",
         "\"model.layers.1.self_attn.k_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[512]", MOEC_ERR_FORMAT,
         "has shape [512], expected [16, 32]"},
        {"\"model.layers.2.block_sparse_moe.experts.1.w2.weight\":{\"dtype\":\"BF16\"",
         "\"model.layers.2.block_sparse_moe.experts.1.w2.weight\":{\"dtype\":\"F16\"", MOEC_ERR_UNSUPPORTED,
         "has dtype F16 but earlier experts have BF16"},
    };
    char *folder = temporary_folder();
    temporary_copy(FAMILIES "mixtral", folder);
    size_t n = 0;
    uint8_t *good = temporary_read(folder, weights, &n);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        patch(folder, weights, cases[i].from, cases[i].to);
        refuse(folder, cases[i].status, cases[i].part);
        temporary_write(folder, weights, good, n);
    }
    patch(folder, "config.json", "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4");
    refuse(folder, MOEC_ERR_FORMAT, "no tensor 'model.layers.3.input_layernorm.weight'");
    free(good);
    temporary_remove(folder);
}

static void test_checkpoint_damage__weights_that_are_no_numbers(void **state)
{
    (void)state;
    static const char weights[] = "model.safetensors";
    char *folder = temporary_folder(), *path = NULL;
    temporary_copy(FAMILIES "mixtral", folder);
    path = temporary_path(folder, weights);
    struct moec_safetensors table;
    struct moec_error err = {0};
    size_t n = 0;
    assert_status(moec_safetensors_open(&table, path, &err), MOEC_OK, err);
    uint64_t down = tensor_entry(&table, "model.layers.1.block_sparse_moe.experts.2.w2.weight")->offset +
                    2 * (20 * 3 + 4);
    uint64_t norm = tensor_entry(&table, "model.norm.weight")->offset + 2 * 9;
    moec_safetensors_close(&table);
    uint8_t *bytes = temporary_read(folder, weights, &n);
    memcpy(bytes + down, "\xc1\x7f", 2); /* NaN */
    memcpy(bytes + norm, "\x80\xff", 2); /* -infinity */
    temporary_write(folder, weights, bytes, n);
    free(bytes);

    struct moec_checkpoint *ck = open_good(folder);
    struct expert_weights w = expert_weights(moec_checkpoint_config(ck));
    void *scratch = malloc(moec_checkpoint_expert_scratch_bytes(ck));
    assert_non_null(scratch);
    char place[64];
    (void)snprintf(place, sizeof place, "NaN at [3, 4] (offset %llu)", (unsigned long long)down);
    assert_status(
        moec_checkpoint_load_expert(ck, 1, 2, (struct moec_expert_floats){w.gate, w.up, w.down}, &err),
        MOEC_ERR_FORMAT, err);
    assert_message(err, "tensor 'model.layers.1.block_sparse_moe.experts.2.w2.weight' in");
    assert_message(err, place);
    for (uint32_t bits = 2; bits <= 16; bits *= 2) {
        struct moec_codec codec;
        err = (struct moec_error){0};
        assert_status(moec_codec_for_bits(bits, MOEC_SCHEME_SYMMETRIC, 0, MOEC_DTYPE_BF16, &codec, &err),
                      MOEC_OK, err);
        struct moec_record_layout layout = moec_record_layout_make(moec_checkpoint_config(ck), codec);
        uint8_t *record = malloc(layout.n_bytes);
        assert_non_null(record);
        assert_status(moec_checkpoint_encode_expert(ck, 1, 2, &layout, scratch, record, &err),
                      MOEC_ERR_FORMAT, err);
        assert_message(err, place);
        err = (struct moec_error){0};
        assert_status(moec_checkpoint_encode_expert(ck, 1, 3, &layout, scratch, record, &err), MOEC_OK, err);
        free(record);
    }
    struct moec_dense dense;
    assert_status(dense_load(ck, 8, 0, &dense, &err), MOEC_ERR_FORMAT, err);
    assert_message(err, "tensor 'model.norm.weight'");
    assert_message(err, "infinity at [0, 9]");
    free(scratch);
    free(w.gate);
    moec_checkpoint_close(ck);
    free(path);
    temporary_remove(folder);
}

/* Numbers of experts for each token that name none, or one twice. */
static void test_checkpoint_damage__tables_of_tokens(void **state)
{
    (void)state;
    static const struct {
        uint8_t bytes[8];
        const char *part;
    } cases[] = {{{8}, "routing table of layer 3 sends token id 5 to expert 8, expected one of 0..7"},
                 {{255, 255, 255, 255, 255, 255, 255, 255}, "sends token id 5 to expert -1"}};
    static const char weights[] = "model.safetensors";
    char *folder = temporary_folder();
    temporary_copy(FAMILIES "hash_moe", folder);
    char *path = temporary_path(folder, weights);
    struct moec_safetensors table;
    struct moec_error err = {0};
    size_t n = 0;
    assert_status(moec_safetensors_open(&table, path, &err), MOEC_OK, err);
    const uint64_t at = tensor_entry(&table, "model.layers.3.mlp.gate.tid2eid")->offset + 8 * 3 * 5;
    moec_safetensors_close(&table);
    uint8_t *bytes = temporary_read(folder, weights, &n);
    for (size_t i = 0; i < 3; i++) {
        struct moec_dense dense = {0};
        memcpy(bytes + at + 8, i < 2 ? cases[i].bytes : bytes + at, 8);
        temporary_write(folder, weights, bytes, n);
        struct moec_checkpoint *ck = open_good(folder);
        err = (struct moec_error){0};
        assert_status(dense_load(ck, 16, 0, &dense, &err), MOEC_ERR_FORMAT, err);
        assert_message(err, i < 2 ? cases[i].part : "twice, expected 3 different ones");
        moec_checkpoint_close(ck);
    }
    free(bytes);
    free(path);
    temporary_remove(folder);
}

/* A file that shrinks after it was opened must give a message, not a signal. */
static void test_checkpoint_damage__a_file_cut_while_open(void **state)
{
    (void)state;
    char *folder = temporary_folder(), *path = temporary_path(folder, "model.safetensors");
    temporary_copy(FAMILIES "mixtral", folder);
    struct moec_checkpoint *ck = open_good(folder);
    struct expert_weights w = expert_weights(moec_checkpoint_config(ck));
    struct moec_error err = {0};
    assert_int_equal(truncate(path, 20000), 0);
    assert_status(
        moec_checkpoint_load_expert(ck, 2, 5, (struct moec_expert_floats){w.gate, w.up, w.down}, &err),
        MOEC_ERR_IO, err);
    assert_message(err, "tensor 'model.layers.2.block_sparse_moe.experts.5.w1.weight'");
    assert_message(err, "the file is truncated");
    free(w.gate);
    moec_checkpoint_close(ck);
    free(path);
    temporary_remove(folder);
}

/* Bits of header and JSON flipped here and there: never a crash, and never an empty message. */
static void test_checkpoint_damage__flipped_bits(void **state)
{
    (void)state;
    static const char *const names[] = {"model.safetensors", "config.json", "generation_config.json"};
    char *folder = temporary_folder();
    temporary_copy(FAMILIES "mixtral", folder);
    uint64_t seed = 6;
    int refused = 0;
    for (size_t f = 0; f < 3; f++) {
        size_t n = 0;
        uint8_t *bytes = temporary_read(folder, names[f], &n);
        size_t range = f == 0 ? 9000 : n;
        for (int i = 0; i < 400; i++) {
            size_t at = i < 8 ? (size_t)i : random_u32(&seed) % range;
            uint8_t bit = (uint8_t)(1u << (random_u32(&seed) & 7));
            struct moec_checkpoint *ck = NULL;
            struct moec_error err = {0};
            bytes[at] ^= bit;
            temporary_write(folder, names[f], bytes, n);
            if (moec_checkpoint_open(folder, &ck, &err) != MOEC_OK) {
                assert_true(strlen(err.message) > 10);
                refused++;
            }
            moec_checkpoint_close(ck);
            bytes[at] ^= bit;
        }
        temporary_write(folder, names[f], bytes, n);
        free(bytes);
    }
    assert_true(refused > 500);
    moec_checkpoint_close(open_good(folder));
    temporary_remove(folder);
}

static void test_checkpoint_damage__tokenizer_and_generation_config(void **state)
{
    (void)state;
    static const char tokenizer[] =
        "{\"version\": \"1.0\", \"added_tokens\": [], \"normalizer\": null, \"pre_tokenizer\": null, "
        "\"post_processor\": null, \"decoder\": null, \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, "
        "\"b\": %d}, \"merges\": []}}";
    char *folder = temporary_folder(), text[512];
    temporary_copy(FAMILIES "olmoe-b", folder); /* vocabulary of 113 */
    (void)snprintf(text, sizeof text, tokenizer, 112);
    temporary_write(folder, "tokenizer.json", text, strlen(text));
    struct moec_checkpoint *ck = open_good(folder);
    assert_non_null(moec_checkpoint_tokenizer(ck));
    assert_int_equal(moec_checkpoint_tokenizer(ck)->n_tokens, 113);
    moec_checkpoint_close(ck);
    (void)snprintf(text, sizeof text, tokenizer, 113);
    temporary_write(folder, "tokenizer.json", text, strlen(text));
    refuse(folder, MOEC_ERR_MISMATCH, "tokenizer.json");
    temporary_write(folder, "tokenizer.json", "{", 1);
    refuse(folder, MOEC_ERR_FORMAT, "tokenizer.json");
    delete_file(folder, "tokenizer.json");

    /* SentencePiece's file where there is no other; its ids must fit too. */
    size_t n_model = 0;
    uint8_t *model = temporary_read("tests/fuzz/corpus/sentencepiece", "unigram", &n_model),
            digests[2][MOEC_SHA256_BYTES];
    struct moec_error digest_err = {0};
    temporary_write(folder, "spiece.model", model, n_model);
    temporary_write(folder, "tokenizer_config.json", "{\"tokenizer_class\": \"T5Tokenizer\"}", 34);
    ck = open_good(folder);
    assert_int_equal(moec_checkpoint_tokenizer(ck)->n_tokens, 11);
    assert_int_equal(moec_checkpoint_tokenizer(ck)->n_prefix, 0);
    assert_int_equal(moec_checkpoint_tokenizer(ck)->n_suffix, 1);
    assert_int_equal(moec_checkpoint_digest(ck, NULL, NULL, digests[0], &digest_err), MOEC_OK);
    moec_checkpoint_close(ck);
    const char *config = "{\"tokenizer_class\": \"LlamaTokenizerFast\", \"add_eos_token\": false}";
    temporary_write(folder, "tokenizer_config.json", config, strlen(config));
    ck = open_good(folder);
    assert_int_equal(moec_checkpoint_tokenizer(ck)->n_prefix, 1);
    assert_int_equal(moec_checkpoint_tokenizer(ck)->n_suffix, 0);
    assert_int_equal(moec_checkpoint_digest(ck, NULL, NULL, digests[1], &digest_err), MOEC_OK);
    assert_memory_not_equal(digests[0], digests[1], sizeof digests[0]);
    moec_checkpoint_close(ck);
    temporary_write(folder, "spiece.model", model, n_model - 1);
    refuse(folder, MOEC_ERR_FORMAT, "spiece.model");
    delete_file(folder, "spiece.model");
    free(model);

    static const struct {
        const char *text;
        uint32_t n_eos, first;
    } cases[] = {{"{\"eos_token_id\": 7}", 1, 7},
                 {"{\"eos_token_id\": [9, 113, 8]}", 2, 9}, /* 113 is past the vocabulary */
                 {"{\"eos_token_id\": null}", 1, 112},
                 {"{}", 1, 112},
                 {"{\"eos_token_id\": []}", 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        temporary_write(folder, "generation_config.json", cases[i].text, strlen(cases[i].text));
        ck = open_good(folder);
        assert_int_equal(moec_checkpoint_config(ck)->ids.n_eos, cases[i].n_eos);
        if (cases[i].n_eos > 0)
            assert_int_equal(moec_checkpoint_config(ck)->ids.eos[0], cases[i].first);
        moec_checkpoint_close(ck);
    }
    /* Settings of generation: config.json's count where no other file speaks, or where that was made of it.
     */
    static const struct {
        const char *text;
        uint32_t n_beam, no_repeat_ngram;
    } settings[] = {{NULL, 3, 0},
                    {"{\"no_repeat_ngram_size\": 2}", 1, 2},
                    {"{\"no_repeat_ngram_size\": 2, \"_from_model_config\": true}", 3, 2}};
    size_t n_config = 0;
    char *config_text = (char *)temporary_read(folder, "config.json", &n_config), beams[4096];
    assert_true(n_config < sizeof beams - 32 && config_text[0] == '{');
    const int n_beams_text =
        snprintf(beams, sizeof beams, "{\"num_beams\": 3,%.*s", (int)(n_config - 1), config_text + 1);
    temporary_write(folder, "config.json", beams, (size_t)n_beams_text);
    delete_file(folder, "generation_config.json");
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        if (settings[i].text != NULL)
            temporary_write(folder, "generation_config.json", settings[i].text, strlen(settings[i].text));
        ck = open_good(folder);
        assert_int_equal(moec_checkpoint_generation(ck)->n_beam, settings[i].n_beam);
        assert_int_equal(moec_checkpoint_generation(ck)->no_repeat_ngram, settings[i].no_repeat_ngram);
        moec_checkpoint_close(ck);
    }
    temporary_write(folder, "config.json", config_text, n_config);
    free(config_text);

    static const char start[] = "{\"decoder_start_token_id\": 3}";
    char *pair = temporary_folder();
    temporary_copy(FAMILIES "switch", pair);
    temporary_write(pair, "generation_config.json", start, strlen(start));
    refuse(pair, MOEC_ERR_UNSUPPORTED, "'decoder_start_token_id' 3, but config.json says 0");
    temporary_remove(pair);

    static const char many[] = "{\"eos_token_id\": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}";
    temporary_write(folder, "generation_config.json", many, strlen(many));
    refuse(folder, MOEC_ERR_LIMIT, "more than 16 ids");
    temporary_write(folder, "generation_config.json", "{\"eos_token_id\": \"x\"}", 21);
    refuse(folder, MOEC_ERR_FORMAT, "'eos_token_id' in");
    temporary_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint_damage__a_head_beside_a_tied_one),
        cmocka_unit_test(test_checkpoint_damage__folders_that_are_none),
        cmocka_unit_test(test_checkpoint_damage__files_that_do_not_open),
        cmocka_unit_test(test_checkpoint_damage__pointers_of_git_lfs),
        cmocka_unit_test(test_checkpoint_damage__links_that_lead_nowhere),
        cmocka_unit_test(test_checkpoint_damage__the_cache_of_the_hub),
        cmocka_unit_test(test_checkpoint_damage__folders_with_gguf),
        cmocka_unit_test(test_checkpoint_damage__quantised_by_a_tool),
        cmocka_unit_test(test_checkpoint_damage__unknown_dtypes),
        cmocka_unit_test(test_checkpoint_damage__shards),
        cmocka_unit_test(test_checkpoint_damage__switch_tensors),
        cmocka_unit_test(test_checkpoint_damage__tensors),
        cmocka_unit_test(test_checkpoint_damage__weights_that_are_no_numbers),
        cmocka_unit_test(test_checkpoint_damage__tables_of_tokens),
        cmocka_unit_test(test_checkpoint_damage__a_file_cut_while_open),
        cmocka_unit_test(test_checkpoint_damage__flipped_bits),
        cmocka_unit_test(test_checkpoint_damage__tokenizer_and_generation_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
