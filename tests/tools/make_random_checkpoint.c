/* Writes a checkpoint of random weights with the dimensions of a real model: what shows that profiling and
 * compiling take checkpoints larger than memory, without downloading one.
 *
 *     make_random_checkpoint --tokenizer TOKENIZER.json
 *         [--preset olmoe-1b-7b|qwen3-30b-a3b|gpt-oss-20b|small] [--layers N] [--hidden N] [--heads N]
 *         [--kv-heads N] [--experts N] [--top-k N] [--ff N] [--vocab N]
 *         [--shard SIZE_MB] [--seed S] [--hash-layers N] [--no-weights] FOLDER
 *
 * OLMoE architecture (RMS norm of queries and keys, no shared expert, head not tied), BF16; of the preset
 * qwen3-30b-a3b that of Qwen3-MoE, of gpt-oss-20b that of gpt-oss with experts in MXFP4, and with
 * --hash-layers that of hash_moe (docs/families.md), whose first N layers route by a random table of the
 * tokens. Weights are uniform in +-sqrt(3 / inputs), so that a product of normed inputs has variance 1 and
 * activations stay sane over any number of layers; norms are 1. With --no-weights there are only config.json
 * and tokenizer, which are enough for moec doctor. The same options give the same bytes on every machine.
 * Memory stays at a few MiB: tensors are written as they are drawn. */
#include "formats/base/half.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_TENSORS 400000u
#define MAX_SHARDS  999u
#define PIECE       (1u << 16) /* weights drawn at once */
#define MX_GROUP    32u        /* weights that share a scale in MXFP4 */

struct dimensions {
    const char *preset;
    uint32_t n_layer, n_embd, n_head, n_kv_head, n_expert, top_k, n_ff, n_vocab, n_position;
    uint32_t head_dim; /* 0: hidden size / heads, and norms over the whole projection (OLMoE) */
    bool is_gpt_oss;
};

static const struct dimensions presets[] = {
    {"olmoe-1b-7b", 16, 2048, 16, 16, 64, 8, 1024, 50304, 4096, 0, false},
    {"small", 3, 256, 4, 4, 8, 2, 128, 4096, 512, 0, false},
    {"qwen3-30b-a3b", 48, 2048, 32, 4, 128, 8, 768, 151936, 40960, 128, false},
    {"gpt-oss-20b", 24, 2880, 64, 8, 32, 4, 2880, 201088, 131072, 64, true},
};

/* How a tensor is stored. */
enum form { FORM_BF16, FORM_I64, FORM_CODES, FORM_SCALES };

struct tensor {
    char name[96];
    uint32_t rows, columns; /* rows 0: a vector of ones */
    enum form form;    /* codes and scales of MXFP4: U8, (n_stacked, rows / n_stacked, columns / 32, ..) */
    uint32_t n_choice; /* I64: in each row different numbers below it */
    uint32_t n_stacked;
    bool is_vector; /* of one row */
    uint32_t shard;
    uint64_t offset; /* in the shard's data */
};

struct maker {
    struct dimensions sizes;
    uint64_t seed, shard_bytes;
    const char *tokenizer, *folder;
    struct tensor *tensors;
    uint32_t n_tensor, n_shard;
    bool is_hashed, has_no_weights;
    uint32_t n_hash;  /* layers that route by token */
    uint64_t n_bytes; /* of all weights */
};

static void die(const char *what, const char *subject)
{
    fprintf(stderr, "make_random_checkpoint: %s '%s'%s%s\n", what, subject, errno != 0 ? ": " : "",
            errno != 0 ? strerror(errno) : "");
    exit(2);
}

static uint64_t tensor_bytes(const struct tensor *tensor)
{
    static const uint32_t halves[] = {
        [FORM_BF16] = 4, [FORM_I64] = 16, [FORM_CODES] = 1}; /* bytes, doubled */
    const uint64_t n = (uint64_t)(tensor->rows > 0 ? tensor->rows : 1) * tensor->columns;
    return tensor->form == FORM_SCALES ? n / MX_GROUP : n * halves[tensor->form] / 2;
}

static void add_tensor(struct maker *maker, struct tensor made, const char *name)
{
    static uint64_t in_shard;
    if (maker->n_tensor == MAX_TENSORS)
        die("too many tensors at", name);
    struct tensor *tensor = &maker->tensors[maker->n_tensor++];
    *tensor = made;
    (void)snprintf(tensor->name, sizeof tensor->name, "%s", name);
    const uint64_t n_bytes = tensor_bytes(tensor);
    if (maker->n_shard == 0 || (in_shard > 0 && in_shard + n_bytes > maker->shard_bytes)) {
        maker->n_shard++;
        in_shard = 0;
    }
    tensor->shard = maker->n_shard - 1;
    tensor->offset = in_shard;
    in_shard += n_bytes;
    maker->n_bytes += n_bytes;
}

static void add(struct maker *maker, uint32_t rows, uint32_t columns, const char *name)
{
    add_tensor(maker, (struct tensor){.rows = rows, .columns = columns}, name);
}

static void add_vector(struct maker *maker, uint32_t columns, const char *name)
{
    add_tensor(maker, (struct tensor){.rows = 1, .columns = columns, .is_vector = true}, name);
}

/* What only hash_moe has: a table or a bias of the choice, and a shared expert. */
static void add_hashed(struct maker *maker, uint32_t layer)
{
    const struct dimensions *d = &maker->sizes;
    char name[96];
    if (layer < maker->n_hash) {
        (void)snprintf(name, sizeof name, "model.layers.%" PRIu32 ".mlp.gate.tid2eid", layer);
        add_tensor(maker,
                   (struct tensor){
                       .rows = d->n_vocab, .columns = d->top_k, .form = FORM_I64, .n_choice = d->n_expert},
                   name);
    } else {
        (void)snprintf(name, sizeof name, "model.layers.%" PRIu32 ".mlp.gate.e_score_correction_bias", layer);
        add(maker, 0, d->n_expert, name);
    }
    static const char *const projections[] = {"gate_proj", "up_proj", "down_proj"};
    for (int p = 0; p < 3; p++) {
        (void)snprintf(name, sizeof name, "model.layers.%" PRIu32 ".mlp.shared_experts.%s.weight", layer,
                       projections[p]);
        add(maker, p == 2 ? d->n_embd : d->n_ff, p == 2 ? d->n_ff : d->n_embd, name);
    }
}

/* What gpt-oss has in place of a router without biases, norms of heads and experts one by one. */
static void add_gpt_oss(struct maker *maker, uint32_t layer)
{
    const struct dimensions *d = &maker->sizes;
    const uint32_t q = d->n_head * d->head_dim, kv = d->n_kv_head * d->head_dim;
    const struct {
        const char *name;
        uint32_t n;
    } vectors[] = {{"self_attn.q_proj.bias", q},   {"self_attn.k_proj.bias", kv},
                   {"self_attn.v_proj.bias", kv},  {"self_attn.o_proj.bias", d->n_embd},
                   {"self_attn.sinks", d->n_head}, {"mlp.router.bias", d->n_expert}};
    const struct {
        const char *name;
        uint32_t outputs, inputs;
    } experts[] = {{"gate_up_proj", 2 * d->n_ff, d->n_embd}, {"down_proj", d->n_embd, d->n_ff}};
    char name[96];
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        (void)snprintf(name, sizeof name, "model.layers.%" PRIu32 ".%s", layer, vectors[i].name);
        add_vector(maker, vectors[i].n, name);
    }
    (void)snprintf(name, sizeof name, "model.layers.%" PRIu32 ".mlp.router.weight", layer);
    add(maker, d->n_expert, d->n_embd, name);
    for (size_t i = 0; i < 2; i++) {
        struct tensor tensor = {.rows = d->n_expert * experts[i].outputs,
                                .columns = experts[i].inputs,
                                .form = FORM_CODES,
                                .n_stacked = d->n_expert};
        const int n =
            snprintf(name, sizeof name, "model.layers.%" PRIu32 ".mlp.experts.%s", layer, experts[i].name);
        (void)snprintf(name + n, sizeof name - (size_t)n, "_blocks");
        add_tensor(maker, tensor, name);
        tensor.form = FORM_SCALES;
        (void)snprintf(name + n, sizeof name - (size_t)n, "_scales");
        add_tensor(maker, tensor, name);
        (void)snprintf(name + n, sizeof name - (size_t)n, "_bias");
        add(maker, d->n_expert, experts[i].outputs, name);
    }
}

static void add_layer(struct maker *maker, uint32_t layer)
{
    const struct dimensions *d = &maker->sizes;
    const uint32_t head_dim = d->head_dim > 0 ? d->head_dim : d->n_embd / d->n_head;
    const uint32_t q = d->n_head * head_dim, kv = d->n_kv_head * head_dim;
    const struct {
        const char *name;
        uint32_t rows, columns;
    } dense[] = {{"input_layernorm", 0, d->n_embd},
                 {"self_attn.q_proj", q, d->n_embd},
                 {"self_attn.k_proj", kv, d->n_embd},
                 {"self_attn.v_proj", kv, d->n_embd},
                 {"self_attn.o_proj", d->n_embd, q},
                 {"self_attn.q_norm", 0, d->head_dim > 0 ? head_dim : q},
                 {"self_attn.k_norm", 0, d->head_dim > 0 ? head_dim : kv},
                 {"post_attention_layernorm", 0, d->n_embd},
                 {"mlp.gate", d->n_expert, d->n_embd}};
    char name[96];
    for (size_t i = 0; i < sizeof dense / sizeof *dense; i++) {
        const bool is_own = strcmp(dense[i].name, "mlp.gate") == 0;
        if ((maker->is_hashed || d->is_gpt_oss) && strstr(dense[i].name, "_norm") != NULL)
            continue;
        if (d->is_gpt_oss && is_own)
            continue;
        (void)snprintf(name, sizeof name, "model.layers.%" PRIu32 ".%s.weight", layer, dense[i].name);
        add(maker, dense[i].rows, dense[i].columns, name);
    }
    if (maker->is_hashed)
        add_hashed(maker, layer);
    if (d->is_gpt_oss) {
        add_gpt_oss(maker, layer);
        return;
    }
    static const char *const projections[] = {"gate_proj", "up_proj", "down_proj"};
    for (uint32_t expert = 0; expert < d->n_expert; expert++) {
        for (int p = 0; p < 3; p++) {
            (void)snprintf(name, sizeof name, "model.layers.%" PRIu32 ".mlp.experts.%" PRIu32 ".%s.weight",
                           layer, expert, projections[p]);
            add(maker, p == 2 ? d->n_embd : d->n_ff, p == 2 ? d->n_ff : d->n_embd, name);
        }
    }
}

static FILE *create(const struct maker *maker, const char *name)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/%s", maker->folder, name);
    FILE *file = fopen(path, "wbe");
    if (file == NULL)
        die("cannot create", path);
    return file;
}

static void finish(FILE *file, const char *name)
{
    if (ferror(file) != 0 || fclose(file) != 0)
        die("cannot write", name);
}

static void shard_name(const struct maker *maker, uint32_t shard, char name[static 64])
{
    (void)snprintf(name, 64, "model-%05" PRIu32 "-of-%05" PRIu32 ".safetensors", shard + 1, maker->n_shard);
}

/* ---- weights ---- */

/* SplitMix64 (Steele, Lea and Flood, 2014). */
static uint64_t next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Every BF16 weight that a tensor of so many inputs may have. */
static void fill_table(uint32_t columns, uint16_t table[static 65536])
{
    const double limit = sqrt(3.0 / columns);
    for (uint32_t i = 0; i < 65536; i++)
        table[i] = moec_f32_to_bf16((float)(limit * ((2.0 * i + 1) / 65536 - 1)));
}

/* Rows of different numbers, as I64. */
static void write_numbers(const struct tensor *tensor, uint64_t state, FILE *file)
{
    uint8_t row[64][8] = {0};
    if (tensor->columns > 64 || tensor->n_choice < tensor->columns || tensor->n_choice > 65536)
        die("no such choice for", tensor->name);
    for (uint32_t r = 0; r < tensor->rows; r++) {
        for (uint32_t i = 0; i < tensor->columns;) {
            const uint32_t number = (uint32_t)(next(&state) % tensor->n_choice);
            bool is_new = true;
            for (uint32_t j = 0; j < i; j++)
                is_new = is_new && (row[j][0] | row[j][1] << 8) != (int)number;
            row[i][0] = (uint8_t)number;
            row[i][1] = (uint8_t)(number >> 8);
            i += is_new;
        }
        if (fwrite(row, 8, tensor->columns, file) != tensor->columns)
            die("cannot write", tensor->name);
    }
}

/* Codes at random; scales so that weights have about the variance of others, give or take an octave. */
static void write_bytes(const struct tensor *tensor, uint64_t state, FILE *file)
{
    static uint8_t piece[PIECE];
    const double level = 2.9; /* root mean square of the levels */
    const uint8_t scale = (uint8_t)(127 + lround(log2(1 / (level * sqrt(tensor->columns)))));
    for (uint64_t left = tensor_bytes(tensor), n; left > 0; left -= n) {
        n = left < PIECE ? left : PIECE;
        for (uint64_t i = 0; i < n; i++) {
            const uint8_t bits = (uint8_t)(next(&state) >> 32);
            piece[i] = tensor->form == FORM_SCALES ? (uint8_t)(scale - bits % 2) : bits;
        }
        if (fwrite(piece, 1, n, file) != n)
            die("cannot write", tensor->name);
    }
}

static void write_tensor(const struct maker *maker, uint32_t index, uint16_t *table, uint32_t *table_columns,
                         FILE *file)
{
    static uint16_t piece[PIECE];
    const struct tensor *tensor = &maker->tensors[index];
    uint64_t state = maker->seed * 0x9e3779b97f4a7c15u + index;
    uint64_t left = tensor_bytes(tensor) / 2;
    const bool ones = tensor->rows == 0;
    if (tensor->form == FORM_I64) {
        write_numbers(tensor, state, file);
        return;
    }
    if (tensor->form != FORM_BF16) {
        write_bytes(tensor, state, file);
        return;
    }
    /* Rows of the embedding are looked up, not multiplied: variance 1. */
    const uint32_t columns = index == 0 ? 1 : tensor->columns;
    if (!ones && columns != *table_columns) {
        fill_table(columns, table);
        *table_columns = columns;
    }
    while (left > 0) {
        const size_t n = left < PIECE ? (size_t)left : PIECE;
        for (size_t i = 0; i < n; i += 4) {
            const uint64_t bits = ones ? 0 : next(&state);
            for (size_t j = 0; j < 4; j++)
                piece[i + j] = ones ? moec_f32_to_bf16(1) : table[bits >> (16 * j) & 0xffff];
        }
        if (fwrite(piece, 2, n, file) != n)
            die("cannot write", tensor->name);
        left -= n;
    }
}

/* Header of one shard, as long as a multiple of 8; returns the number of bytes before the data. */
static void write_header(const struct maker *maker, uint32_t first, uint32_t end, FILE *file)
{
    char *text = NULL;
    size_t n = 0;
    FILE *header = open_memstream(&text, &n);
    if (header == NULL)
        die("cannot write", "a header");
    fputs("{\"__metadata__\":{\"format\":\"pt\"}", header);
    for (uint32_t i = first; i < end; i++) {
        const struct tensor *tensor = &maker->tensors[i];
        static const char *const dtypes[] = {"BF16", "I64", "U8", "U8"};
        fprintf(header, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", tensor->name, dtypes[tensor->form]);
        if (tensor->n_stacked > 0)
            fprintf(header, "%" PRIu32 ",%" PRIu32 ",", tensor->n_stacked, tensor->rows / tensor->n_stacked);
        else if (tensor->rows > 0 && !tensor->is_vector)
            fprintf(header, "%" PRIu32 ",", tensor->rows);
        fprintf(header, "%" PRIu32 "%s],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
                tensor->columns / (tensor->n_stacked > 0 ? MX_GROUP : 1),
                tensor->form == FORM_CODES ? ",16" : "", tensor->offset,
                tensor->offset + tensor_bytes(tensor));
    }
    fputs("}", header);
    (void)fflush(header);
    while (n % 8 != 0) {
        fputc(' ', header);
        (void)fflush(header);
    }
    (void)fclose(header);
    for (int i = 0; i < 8; i++)
        fputc((int)((uint64_t)n >> (8 * i) & 0xff), file);
    (void)fwrite(text, 1, n, file);
    free(text);
}

static void write_shards(const struct maker *maker)
{
    uint16_t *table = calloc(65536, sizeof *table);
    uint32_t table_columns = 0, at = 0;
    if (table == NULL)
        die("no memory for", "a table");
    for (uint32_t shard = 0; shard < maker->n_shard; shard++) {
        char name[64];
        uint32_t end = at;
        while (end < maker->n_tensor && maker->tensors[end].shard == shard)
            end++;
        shard_name(maker, shard, name);
        FILE *file = create(maker, name);
        write_header(maker, at, end, file);
        for (; at < end; at++)
            write_tensor(maker, at, table, &table_columns, file);
        finish(file, name);
    }
    free(table);
}

/* ---- the rest of the folder ---- */

static void write_index(const struct maker *maker)
{
    FILE *file = create(maker, "model.safetensors.index.json");
    fprintf(file, "{\"metadata\": {\"total_size\": %" PRIu64 "}, \"weight_map\": {", maker->n_bytes);
    for (uint32_t i = 0; i < maker->n_tensor; i++) {
        char name[64];
        shard_name(maker, maker->tensors[i].shard, name);
        fprintf(file, "%s\n  \"%s\": \"%s\"", i > 0 ? "," : "", maker->tensors[i].name, name);
    }
    fputs("\n}}\n", file);
    finish(file, "the index");
}

static void write_config(const struct maker *maker)
{
    const struct dimensions *d = &maker->sizes;
    FILE *file = create(maker, "config.json");
    if (d->is_gpt_oss)
        fprintf(file,
                "{\n  \"architectures\": [\"GptOssForCausalLM\"],\n  \"model_type\": \"gpt_oss\",\n"
                "  \"quantization_config\": {\"quant_method\": \"mxfp4\"},\n  \"head_dim\": %" PRIu32
                ",\n  \"num_local_experts\": %" PRIu32 ",\n  \"sliding_window\": 128,\n",
                d->head_dim, d->n_expert);
    else if (maker->is_hashed)
        fprintf(file,
                "{\n  \"architectures\": [\"HashMoeForCausalLM\"],\n  \"model_type\": \"hash_moe\",\n"
                "  \"num_hash_layers\": %" PRIu32 ",\n  \"n_routed_experts\": %" PRIu32
                ",\n  \"moe_intermediate_size\": %" PRIu32 ",\n",
                maker->n_hash, d->n_expert, d->n_ff);
    else if (d->head_dim > 0)
        fprintf(file,
                "{\n  \"architectures\": [\"Qwen3MoeForCausalLM\"],\n  \"model_type\": \"qwen3_moe\",\n"
                "  \"head_dim\": %" PRIu32 ",\n  \"moe_intermediate_size\": %" PRIu32 ",\n",
                d->head_dim, d->n_ff);
    else
        fputs("{\n  \"architectures\": [\"OlmoeForCausalLM\"],\n  \"model_type\": \"olmoe\",\n", file);
    fprintf(file,
            "  \"torch_dtype\": \"bfloat16\",\n  \"hidden_size\": %" PRIu32
            ",\n  \"intermediate_size\": %" PRIu32 ",\n  \"num_hidden_layers\": %" PRIu32
            ",\n  \"num_attention_heads\": %" PRIu32 ",\n  \"num_key_value_heads\": %" PRIu32
            ",\n  \"num_experts\": %" PRIu32 ",\n  \"num_experts_per_tok\": %" PRIu32
            ",\n  \"vocab_size\": %" PRIu32 ",\n  \"max_position_embeddings\": %" PRIu32 ",\n",
            d->n_embd, d->n_ff, d->n_layer, d->n_head, d->n_kv_head, d->n_expert, d->top_k, d->n_vocab,
            d->n_position);
    /* As Qwen3-MoE's published models have it. */
    fprintf(file, "  \"attention_bias\": %s,\n  \"norm_topk_prob\": %s,\n", d->is_gpt_oss ? "true" : "false",
            d->head_dim > 0 && !d->is_gpt_oss ? "true" : "false");
    fputs("  \"clip_qkv\": null,\n  \"hidden_act\": \"silu\",\n"
          "  \"rms_norm_eps\": 1e-05,\n  \"rope_theta\": 10000.0,\n"
          "  \"rope_scaling\": null,\n  \"tie_word_embeddings\": false,\n  \"eos_token_id\": 0\n}\n",
          file);
    finish(file, "config.json");
}

static void copy_tokenizer(const struct maker *maker)
{
    static char buffer[1 << 16];
    FILE *from = fopen(maker->tokenizer, "rbe"), *to = create(maker, "tokenizer.json");
    if (from == NULL)
        die("cannot read", maker->tokenizer);
    for (size_t n = fread(buffer, 1, sizeof buffer, from); n > 0; n = fread(buffer, 1, sizeof buffer, from))
        (void)fwrite(buffer, 1, n, to);
    (void)fclose(from);
    finish(to, "tokenizer.json");
}

/* ---- options ---- */

static uint64_t number(const char *option, const char *text, uint64_t most)
{
    char *end = NULL;
    errno = 0;
    const uint64_t value = text == NULL ? 0 : strtoull(text, &end, 10);
    if (text == NULL || end == text || *end != '\0' || errno != 0 || value > most) {
        errno = 0;
        die("a wrong or missing number for", option);
    }
    return value;
}

static void set_preset(struct maker *maker, const char *name)
{
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
        if (name != NULL && strcmp(presets[i].preset, name) == 0) {
            maker->sizes = presets[i];
            return;
        }
    }
    die("no preset", name == NULL ? "" : name);
}

/* Options that have no value. */
static bool read_flag(struct maker *maker, const char *option)
{
    const bool found = strcmp(option, "--no-weights") == 0;
    maker->has_no_weights = maker->has_no_weights || found;
    return found;
}

static void read_options(struct maker *maker, int argc, char **argv)
{
    struct dimensions *d = &maker->sizes;
    const struct {
        const char *name;
        uint32_t *value;
    } options[] = {{"--layers", &d->n_layer},
                   {"--hidden", &d->n_embd},
                   {"--heads", &d->n_head},
                   {"--kv-heads", &d->n_kv_head},
                   {"--experts", &d->n_expert},
                   {"--top-k", &d->top_k},
                   {"--ff", &d->n_ff},
                   {"--vocab", &d->n_vocab},
                   {"--positions", &d->n_position}};
    for (int i = 1; i < argc; i++) {
        const char *text = i + 1 < argc ? argv[i + 1] : NULL;
        bool found = argv[i][0] == '-';
        if (read_flag(maker, argv[i]))
            continue;
        if (!found)
            maker->folder = argv[i];
        else if (strcmp(argv[i], "--preset") == 0)
            set_preset(maker, text);
        else if (strcmp(argv[i], "--tokenizer") == 0)
            maker->tokenizer = text;
        else if (strcmp(argv[i], "--seed") == 0)
            maker->seed = number(argv[i], text, UINT64_MAX);
        else if (strcmp(argv[i], "--hash-layers") == 0) {
            maker->is_hashed = true;
            maker->n_hash = (uint32_t)number(argv[i], text, UINT32_MAX);
        } else if (strcmp(argv[i], "--shard") == 0)
            maker->shard_bytes = number(argv[i], text, 1u << 20) * 1000000;
        else
            found = false;
        for (size_t o = 0; o < sizeof options / sizeof *options; o++) {
            if (strcmp(argv[i], options[o].name) != 0)
                continue;
            *options[o].value = (uint32_t)number(argv[i], text, 1u << 20);
            found = true;
        }
        if (!found && argv[i][0] == '-')
            die("unknown option", argv[i]);
        i += argv[i][0] == '-';
    }
    if (maker->folder == NULL || maker->tokenizer == NULL)
        die("expected --tokenizer FILE and a folder, got", argc > 1 ? argv[argc - 1] : "nothing");
    if (d->n_head == 0 || d->n_embd % d->n_head != 0 || d->n_embd % 4 != 0 || d->n_layer == 0 ||
        d->n_kv_head == 0 || maker->shard_bytes == 0)
        die("dimensions do not fit together in", maker->folder);
}

int main(int argc, char **argv)
{
    struct maker maker = {.sizes = presets[1], .seed = 1, .shard_bytes = 5000000000u};
    read_options(&maker, argc, argv);
    if (mkdir(maker.folder, 0777) != 0 && errno != EEXIST)
        die("cannot create", maker.folder);
    errno = 0;
    maker.tensors = calloc(MAX_TENSORS, sizeof *maker.tensors);
    if (maker.tensors == NULL)
        die("no memory for", "the table of tensors");
    add(&maker, maker.sizes.n_vocab, maker.sizes.n_embd, "model.embed_tokens.weight");
    for (uint32_t layer = 0; layer < maker.sizes.n_layer; layer++)
        add_layer(&maker, layer);
    add(&maker, 0, maker.sizes.n_embd, "model.norm.weight");
    add(&maker, maker.sizes.n_vocab, maker.sizes.n_embd, "lm_head.weight");
    if (maker.n_shard > MAX_SHARDS)
        die("more than 999 shards in", maker.folder);
    write_config(&maker);
    copy_tokenizer(&maker);
    if (maker.has_no_weights) {
        free(maker.tensors);
        return 0;
    }
    write_shards(&maker);
    write_index(&maker);
    printf("%s: %" PRIu64 " bytes of weights in %" PRIu32 " tensors and %" PRIu32 " files\n", maker.folder,
           maker.n_bytes, maker.n_tensor, maker.n_shard);
    free(maker.tensors);
    return 0;
}
