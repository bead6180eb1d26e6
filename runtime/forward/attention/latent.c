/* An item of work is one head for a tile of tokens. The head's keys are absorbed into the query chunk by
 * chunk, in order. So a row's sum does not depend on the thread that made it. Outputs take the place of
 * queries; lanes past latent_dim are zero. */
#include "runtime/forward/attention/latent.h"

#include "runtime/forward/context/steps.h"

#include <string.h>

/* A batch; an item is one head for a tile of tokens. */
struct run {
    const struct moec_forward *forward;
    const struct moec_layer_kind *kind;
    const struct moec_matrix *kv_up;
    uint32_t n_tok;
    size_t stride; /* of latents in a thread's scratch */
    size_t row;    /* of tokens in scratch */
};

/* What an item works on. */
struct part {
    uint32_t head;
    uint32_t first_row; /* of kv_up: the head's keys */
    uint32_t n_tok;
    float *tokens;            /* the first token's row */
    float *weights, *latents; /* of the thread */
};

static struct part part_of(const struct run *run, size_t item, int thread)
{
    const struct moec_layer_kind *kind = run->kind;
    const struct moec_scratch *scratch = moec_forward_scratch(run->forward);
    const uint32_t head = (uint32_t)(item % kind->n_head);
    const uint32_t first = (uint32_t)(item / kind->n_head) * MOEC_TILE_TOKENS;
    float *own = scratch->threads[thread].latent;
    return (struct part){.head = head,
                         .first_row = head * (moec_layer_plain_dim(kind) + moec_layer_value_dim(kind)),
                         .n_tok = moec_min_u32(MOEC_TILE_TOKENS, run->n_tok - first),
                         .tokens = scratch->mixer.q + first * run->row,
                         .weights = own,
                         .latents = own + MOEC_SUM_CHUNK * run->stride};
}

/* latents[t] = sum over i of query[t][i] x row i of the head's keys. */
static void multiply_keys(const struct run *run, const struct part *part)
{
    const struct moec_layer_kind *kind = run->kind;
    const struct moec_kernels *kernels = run->forward->kernels;
    const uint32_t n_plain = moec_layer_plain_dim(kind);
    const float *queries = part->tokens + moec_latent_queries(kind) + (size_t)part->head * kind->head_dim;
    for (uint32_t first = 0; first < n_plain; first += MOEC_SUM_CHUNK) {
        const uint32_t n_rows = moec_min_u32(MOEC_SUM_CHUNK, n_plain - first);
        kernels->sum_chunk_tokens(run->kv_up, part->first_row + first, n_rows, queries + first, run->row,
                                  part->n_tok, first > 0, part->weights, part->latents, run->stride);
    }
}

static void absorb_item(void *context, size_t item, int thread)
{
    const struct run *run = context;
    const struct moec_layer_kind *kind = run->kind;
    const struct part part = part_of(run, item, thread);
    multiply_keys(run, &part);
    for (uint32_t t = 0; t < part.n_tok; t++) {
        float *row = part.tokens + t * run->row;
        float *to = row + (size_t)part.head * moec_layer_score_dim(kind);
        const float *query = row + moec_latent_queries(kind) + (size_t)part.head * kind->head_dim;
        memcpy(to, part.latents + t * run->stride, kind->latent_dim * sizeof *to);
        memcpy(to + kind->latent_dim, query + moec_layer_plain_dim(kind), kind->rotary_dim * sizeof *to);
    }
}

static void expand_item(void *context, size_t item, int thread)
{
    const struct run *run = context;
    const struct moec_layer_kind *kind = run->kind;
    const struct moec_kernels *kernels = run->forward->kernels;
    const struct part part = part_of(run, item, thread);
    const uint32_t n = kind->latent_dim, value_dim = moec_layer_value_dim(kind);
    float *outputs = part.tokens + moec_latent_queries(kind) + (size_t)part.head * value_dim;
    for (uint32_t t = 0; t < part.n_tok; t++) {
        float *latent = part.latents + t * run->stride;
        const float *from = part.tokens + t * run->row + (size_t)part.head * moec_layer_score_dim(kind);
        memcpy(latent, from, n * sizeof *latent);
        memset(latent + n, 0, (run->stride - n) * sizeof *latent);
    }
    for (uint32_t first = 0; first < value_dim; first += MOEC_SUM_CHUNK) {
        const uint32_t n_rows = moec_min_u32(MOEC_SUM_CHUNK, value_dim - first);
        const uint32_t row = part.first_row + moec_layer_plain_dim(kind) + first;
        kernels->dot_tokens(run->kv_up, row, n_rows, part.latents, run->stride, part.n_tok, part.weights,
                            outputs + first, run->row);
    }
}

static void run_heads(struct run *run, uint64_t rows, moec_parallel_body *body)
{
    const uint64_t work = run->n_tok * rows * run->kind->latent_dim;
    moec_forward_run(run->forward, (size_t)moec_tile_count(run->n_tok) * run->kind->n_head, work, body, run);
}

static struct run run_of(const struct moec_forward *forward, const struct moec_layer_kind *kind,
                         const struct moec_matrix *kv_up, uint32_t n_tok)
{
    return (struct run){.forward = forward,
                        .kind = kind,
                        .kv_up = kv_up,
                        .n_tok = n_tok,
                        .stride = moec_lanes_padded(kind->latent_dim),
                        .row = moec_latent_token_floats(kind)};
}

void moec_latent_absorb(const struct moec_forward *forward, const struct moec_layer_kind *kind,
                        const struct moec_matrix *kv_up, uint32_t n_tok)
{
    struct run run = run_of(forward, kind, kv_up, n_tok);
    run_heads(&run, (uint64_t)kind->n_head * moec_layer_plain_dim(kind), absorb_item);
}

void moec_latent_expand(const struct moec_forward *forward, const struct moec_layer_kind *kind,
                        const struct moec_matrix *kv_up, uint32_t n_tok)
{
    struct run run = run_of(forward, kind, kv_up, n_tok);
    const size_t n = moec_layer_out_dim(kind), room = moec_lanes_padded(n);
    run_heads(&run, n, expand_item);
    float *outputs = moec_forward_scratch(forward)->mixer.q + moec_latent_queries(kind);
    for (uint32_t t = 0; t < n_tok && n < room; t++)
        memset(outputs + t * run.row + n, 0, (room - n) * sizeof *outputs);
}
