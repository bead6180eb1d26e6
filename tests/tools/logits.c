/* Writes the logits of every position of a token file, for comparison with other implementations.
 *
 *     logits CHECKPOINT TOKENS.u32 OUT.f32 [--source SOURCE.u32] [--step] [--cpu NAME] [--threads N]
 *            [--chunk N]
 *
 * --source is what an encoder-decoder model reads first; TOKENS.u32 is its target then, and expert capacity
 * counts over all of it. TOKENS.u32 holds little-endian u32 ids of one sequence, OUT.f32 gets (n_tok,
 * n_vocab) F32. Experts run at their source precision. --step reads one token at a time; --chunk is the
 * largest prefill batch (default: all). */
#include "tests/unit/dense_load.h"

#include "formats/base/file.h"
#include "formats/base/memory.h"
#include "formats/checkpoint/checkpoint.h"
#include "profiler/evaluate/variants.h"
#include "runtime/forward/pass/session.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct options {
    const char *paths[3]; /* checkpoint, tokens, out */
    const char *source;
    const char *cpu;
    int threads;
    uint32_t chunk;
};

struct tool {
    struct moec_checkpoint *checkpoint;
    struct moec_variants *variants;
    struct moec_model *model;
    struct moec_forward forward;
    struct moec_session *session;
    char *tokens;
    uint32_t n_tok;
    char *source; /* NULL without one */
    uint32_t n_source;
    float *logits; /* (chunk, n_vocab) */
    uint32_t *at;  /* (chunk) */
};

static bool parse_count(const char *text, uint32_t max, uint32_t *out)
{
    char *end = NULL;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < 1 || value > max)
        return false;
    *out = (uint32_t)value;
    return true;
}

static bool parse(int argc, char **argv, struct options *options)
{
    int n_paths = 0;
    uint32_t threads = 0;
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--step") == 0)
            options->chunk = 1;
        else if (strcmp(argv[i], "--source") == 0 && more)
            options->source = argv[++i];
        else if (strcmp(argv[i], "--cpu") == 0 && more)
            options->cpu = argv[++i];
        else if (strcmp(argv[i], "--threads") == 0 && more && parse_count(argv[i + 1], 256, &threads))
            i++;
        else if (strcmp(argv[i], "--chunk") == 0 && more &&
                 parse_count(argv[i + 1], 1u << 20, &options->chunk))
            i++;
        else if (argv[i][0] != '-' && n_paths < 3)
            options->paths[n_paths++] = argv[i];
        else
            return false;
    }
    options->threads = (int)threads;
    return n_paths == 3;
}

static enum moec_status load_tokens(const char *path, char **bytes, uint32_t *n, struct moec_error *err)
{
    size_t n_bytes = 0;
    MOEC_TRY(moec_file_load(path, (uint64_t)MOEC_MAX_POSITIONS * 4, bytes, &n_bytes, err));
    *n = (uint32_t)(n_bytes / sizeof(uint32_t));
    if (*n == 0 || n_bytes % sizeof(uint32_t) != 0)
        return moec_fail(err, MOEC_ERR_FORMAT, "'%s' has %zu bytes, expected a multiple of 4", path, n_bytes);
    return MOEC_OK;
}

static enum moec_status open_tool(const struct options *options, struct tool *tool, uint32_t *chunk,
                                  struct moec_error *err)
{
    const struct moec_kernels *kernels = NULL;
    struct moec_dense dense = {0};
    MOEC_TRY(moec_kernels_find(options->cpu, &kernels, err));
    MOEC_TRY(load_tokens(options->paths[1], &tool->tokens, &tool->n_tok, err));
    if (options->source != NULL)
        MOEC_TRY(load_tokens(options->source, &tool->source, &tool->n_source, err));
    *chunk = options->chunk == 0 || options->chunk > tool->n_tok ? tool->n_tok : options->chunk;
    MOEC_TRY(moec_checkpoint_open(options->paths[0], &tool->checkpoint, err));
    moec_checkpoint_choose_rope(tool->checkpoint, tool->n_tok);
    const struct moec_config *config = moec_checkpoint_config(tool->checkpoint);
    MOEC_TRY(dense_load(tool->checkpoint, 16, 0, &dense, err));
    MOEC_TRY(moec_model_create(config, &dense, &tool->model, err));
    MOEC_TRY(moec_variants_create(
        tool->checkpoint, &(struct moec_variants_options){MOEC_SCHEME_SYMMETRIC, 0, 0, options->threads},
        &tool->variants, err));
    MOEC_TRY(moec_forward_init(&tool->forward, tool->model, kernels, options->threads,
                               moec_variants_experts(tool->variants), *chunk, err));
    const uint32_t n_context = tool->n_tok > tool->n_source ? tool->n_tok : tool->n_source;
    MOEC_TRY(moec_session_create(&tool->forward, n_context, &tool->session, err));
    if (tool->source != NULL) {
        moec_session_count_capacity(tool->session, true);
        MOEC_TRY(moec_session_encode(tool->session, (const uint32_t *)(const void *)tool->source,
                                     tool->n_source, err));
    }
    void *memory = NULL;
    MOEC_TRY(moec_alloc_aligned(&memory, (uint64_t)*chunk * config->n_vocab, sizeof(float), "logits", err));
    tool->logits = memory;
    MOEC_TRY(moec_alloc(&memory, *chunk, sizeof(uint32_t), "offsets", err));
    tool->at = memory;
    for (uint32_t i = 0; i < *chunk; i++)
        tool->at[i] = i;
    return MOEC_OK;
}

static enum moec_status write_logits(const struct options *options, struct tool *tool, uint32_t chunk,
                                     struct moec_output *output, struct moec_error *err)
{
    size_t n_vocab = tool->model->config.n_vocab;
    const uint32_t *tokens = (const uint32_t *)(const void *)tool->tokens;
    MOEC_TRY(moec_output_open(output, options->paths[2], err));
    for (uint32_t done = 0; done < tool->n_tok;) {
        uint32_t n = tool->n_tok - done < chunk ? tool->n_tok - done : chunk;
        MOEC_TRY(moec_session_step(tool->session, tokens + done, n, tool->at, n, tool->logits, err));
        MOEC_TRY(moec_output_append(output, tool->logits, n * n_vocab * sizeof(float), err));
        done += n;
    }
    return moec_output_commit(output, err);
}

int main(int argc, char **argv)
{
    struct options options = {.cpu = "auto"};
    struct tool tool = {0};
    struct moec_error err = {0};
    struct moec_output output = {.fd = -1};
    uint32_t chunk = 0;
    if (!parse(argc, argv, &options)) {
        fprintf(stderr,
                "usage: logits CHECKPOINT TOKENS.u32 OUT.f32 [--source SOURCE.u32] [--step] [--cpu NAME] "
                "[--threads N] [--chunk N]\n");
        return 2;
    }
    enum moec_status status = open_tool(&options, &tool, &chunk, &err);
    if (status == MOEC_OK)
        status = write_logits(&options, &tool, chunk, &output, &err);
    if (status != MOEC_OK)
        fprintf(stderr, "logits: %s\n", err.message);
    moec_output_abort(&output);
    free(tool.at);
    free(tool.logits);
    moec_session_free(tool.session);
    moec_forward_release(&tool.forward);
    moec_variants_free(tool.variants);
    moec_model_free(tool.model);
    moec_checkpoint_close(tool.checkpoint);
    free(tool.tokens);
    free(tool.source);
    return status == MOEC_OK ? 0 : 1;
}
