/* Every tensor in use is a range of bytes in a file, sorted by file and offset, and ranges do not overlap.
 * Files are passed in the same order, so one position in the list is enough. A block that a piece of reading
 * cuts is carried over to the next piece. So each block is looked at once, whole. */
#include "formats/checkpoint/finite_check.h"

#include "formats/base/memory.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define BLOCK_WEIGHTS 256 /* of the largest block */

/* ---- what is looked at ---- */

static uint64_t bytes_of(const struct moec_tensor_coding *coding, uint64_t n_weight)
{
    return n_weight / coding->block_weights * coding->block_bytes;
}

static void add_range(struct moec_finite_check *check, const struct moec_finite_range *range, uint64_t offset,
                      struct moec_tensor_span span)
{
    struct moec_finite_range *added = &check->ranges[check->n_range];
    if (range->coding->is_integer || range->coding->block_bytes > MOEC_FINITE_BLOCK_BYTES ||
        range->coding->block_weights > BLOCK_WEIGHTS || span.from == span.end)
        return;
    *added = *range;
    added->first = span.from;
    added->begin = offset + bytes_of(range->coding, span.from);
    added->end = offset + bytes_of(range->coding, span.end);
    check->n_range++;
}

/* Adds a matrix, as often as it stands one after the other (heads), and its factors. */
static void add_view(struct moec_finite_check *check, const struct moec_checkpoint_tensor *tensor,
                     uint32_t n_copy)
{
    const struct moec_tensor_view *view = tensor->view;
    const struct moec_tensor_scales *scales = &view->tensor.scales;
    struct moec_tensor_span span = moec_tensor_view_span(view);
    struct moec_finite_range range = {.line = view->tensor.line,
                                      .coding = view->tensor.coding,
                                      .tensor = *tensor,
                                      .file = view->tensor.file};
    span.end += (n_copy - 1) * (uint64_t)view->rows * view->columns;
    add_range(check, &range, view->tensor.offset, span);
    if (scales->coding == NULL)
        return;
    range = (struct moec_finite_range){.line = scales->scale_line,
                                       .coding = scales->coding,
                                       .tensor = *tensor,
                                       .file = scales->file,
                                       .are_factors = true};
    add_range(check, &range, scales->offset, moec_tensor_view_factors(view));
}

static void add_dense(struct moec_finite_check *check)
{
    const struct moec_checkpoint *ck = check->checkpoint;
    for (uint32_t i = 0; i <= ck->config.n_layer; i++) {
        const uint32_t layer = i < ck->config.n_layer ? i : MOEC_LAYER_NONE;
        for (int role = 0; role < MOEC_ROLE_COUNT; role++) {
            const struct moec_checkpoint_tensor tensor =
                moec_checkpoint_dense_tensor(ck, (enum moec_role)role, layer);
            const bool has_heads = ck->has_split_latents && layer != MOEC_LAYER_NONE &&
                                   (role == MOEC_ROLE_K || role == MOEC_ROLE_V) &&
                                   moec_role_expected(&ck->config, MOEC_ROLE_KV_UP, layer);
            const bool is_split = ck->has_split_latents && role == MOEC_ROLE_KV_UP;
            if (tensor.view->tensor.coding != NULL && !is_split)
                add_view(check, &tensor, has_heads ? moec_config_layer(&ck->config, layer)->n_head : 1);
        }
    }
}

static void add_experts(struct moec_finite_check *check)
{
    const struct moec_checkpoint *ck = check->checkpoint;
    const uint32_t n_layer = moec_config_moe_count(&ck->config);
    for (uint32_t ordinal = 0; ordinal < n_layer; ordinal++)
        for (uint32_t expert = 0; expert < ck->config.n_expert; expert++)
            for (int p = 0; p < MOEC_PROJECTION_COUNT; p++) {
                const struct moec_checkpoint_tensor tensor =
                    moec_checkpoint_expert_tensor(ck, moec_config_moe_layer(&ck->config, ordinal), ordinal,
                                                  expert, (enum moec_projection)p);
                if (tensor.view->tensor.coding != NULL)
                    add_view(check, &tensor, 1);
            }
}

static int compare(const void *a, const void *b)
{
    const struct moec_finite_range *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* Parts of one tensor may take turns in it: what two of them span is looked at once. */
static void cut_overlaps(struct moec_finite_check *check)
{
    size_t n = 0;
    for (size_t i = 0; i < check->n_range; i++) {
        struct moec_finite_range range = check->ranges[i];
        const struct moec_finite_range *before = n > 0 ? &check->ranges[n - 1] : NULL;
        if (before != NULL && before->file == range.file && before->end > range.begin) {
            const uint64_t n_block =
                (before->end - range.begin + range.coding->block_bytes - 1) / range.coding->block_bytes;
            range.begin += n_block * range.coding->block_bytes;
            range.first += n_block * range.coding->block_weights;
        }
        if (range.begin < range.end)
            check->ranges[n++] = range;
    }
    check->n_range = n;
}

enum moec_status moec_finite_check_begin(const struct moec_checkpoint *checkpoint,
                                         struct moec_finite_check *check, struct moec_error *err)
{
    const struct moec_config *config = &checkpoint->config;
    const uint64_t n_dense = ((uint64_t)config->n_layer + 1) * MOEC_ROLE_COUNT,
                   n_expert =
                       (uint64_t)moec_config_moe_count(config) * config->n_expert * MOEC_PROJECTION_COUNT;
    *check = (struct moec_finite_check){.checkpoint = checkpoint};
    MOEC_TRY(moec_alloc((void **)&check->ranges, 2 * (n_dense + n_expert), sizeof *check->ranges,
                        "list of tensors", err));
    add_dense(check);
    add_experts(check);
    qsort(check->ranges, check->n_range, sizeof *check->ranges, compare);
    cut_overlaps(check);
    return MOEC_OK;
}

void moec_finite_check_release(struct moec_finite_check *check)
{
    free(check->ranges);
    check->ranges = NULL;
    check->n_range = 0;
}

/* ---- looking ---- */

static const char *value_text(float value)
{
    return isnan(value) ? "NaN" : value > 0 ? "infinity" : "-infinity";
}

/* The message, of the block at byte `at` of the range. */
static enum moec_status fail_block(const struct moec_finite_check *check,
                                   const struct moec_finite_range *range, uint64_t at, const uint8_t *block,
                                   struct moec_error *err)
{
    const struct moec_checkpoint *ck = check->checkpoint;
    const struct moec_checkpoint_tensor *tensor = &range->tensor;
    char name[MOEC_TENSOR_NAME_BYTES];
    float weights[BLOCK_WEIGHTS] = {0};
    uint32_t bad = 0;
    range->coding->decode(block, range->coding->block_weights, weights);
    while (bad + 1 < range->coding->block_weights && isfinite(weights[bad]))
        bad++;
    const uint64_t weight =
        range->first + at / range->coding->block_bytes * range->coding->block_weights + bad;
    return moec_fail(
        err, MOEC_ERR_FORMAT,
        "%stensor '%s' in '%s' has %s at [%" PRIu64 ", %" PRIu64 "] (offset %" PRIu64
        "), expected finite numbers: the file is damaged, or the model was saved with such values",
        range->are_factors ? "a factor of " : "",
        moec_checkpoint_tensor_name(ck, tensor->pattern, tensor->layer, tensor->expert, name),
        ck->source->file(ck->source, range->file)->path, value_text(weights[bad]), weight / range->line,
        weight % range->line, range->begin + at);
}

static enum moec_status check_blocks(const struct moec_finite_check *check,
                                     const struct moec_finite_range *range, uint64_t at,
                                     const uint8_t *blocks, size_t n_block, struct moec_error *err)
{
    const struct moec_tensor_coding *coding = range->coding;
    if (moec_tensor_coding_is_finite(coding, blocks, n_block))
        return MOEC_OK;
    while (moec_tensor_coding_is_finite(coding, blocks, 1)) {
        blocks += coding->block_bytes;
        at += coding->block_bytes;
    }
    return fail_block(check, range, at, blocks, err);
}

/* Bytes of a range from its byte `at` on, after those that were looked at before. */
static enum moec_status check_range(struct moec_finite_check *check, const struct moec_finite_range *range,
                                    uint64_t at, const uint8_t *bytes, size_t n, struct moec_error *err)
{
    const size_t block = range->coding->block_bytes, begun = (size_t)(at % block);
    if (begun > 0) {
        const size_t missing = block - begun, taken = n < missing ? n : missing;
        memcpy(check->carry + begun, bytes, taken);
        if (taken < missing)
            return MOEC_OK;
        MOEC_TRY(check_blocks(check, range, at - begun, check->carry, 1, err));
        at += taken;
        bytes += taken;
        n -= taken;
    }
    MOEC_TRY(check_blocks(check, range, at, bytes, n / block, err));
    memcpy(check->carry, bytes + n / block * block, n % block);
    return MOEC_OK;
}

enum moec_status moec_finite_check_bytes(struct moec_finite_check *check, uint32_t file, uint64_t offset,
                                         const uint8_t *bytes, size_t n, struct moec_error *err)
{
    const uint64_t end = offset + n;
    for (; check->at < check->n_range; check->at++) {
        const struct moec_finite_range *range = &check->ranges[check->at];
        if (range->file > file || (range->file == file && range->begin >= end))
            break;
        if (range->file < file || range->end <= offset)
            continue;
        const uint64_t from = range->begin > offset ? range->begin : offset,
                       to = range->end < end ? range->end : end;
        MOEC_TRY(check_range(check, range, from - range->begin, bytes + (from - offset), (size_t)(to - from),
                             err));
        if (range->end > end)
            break; /* it goes on in the next piece */
    }
    return MOEC_OK;
}
