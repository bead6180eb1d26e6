/* A slot for each codec number and expert, and one more for an expert whose projections differ. A record is
 * known by numbers, so whatever changes what they mean must drop it and count n_change. The lock guards
 * slots, the store and what is expected, and encoding in parallel happens under it. What the router has just
 * asked for is moved to the end of those that may go. */
#include "profiler/evaluate/variants_internal.h"

#include "formats/base/memory.h"
#include "formats/base/work_tally.h"
#include "profiler/evaluate/variants_test_hook.h"

#include <inttypes.h>
#include <string.h>

/* One expert that moec_variants_prepare encodes. */
struct encode_job {
    uint32_t expert;
    uint32_t index; /* of the layout */
    uint8_t *bytes;
    enum moec_status status;
};

static enum moec_status check_expert(const struct moec_variants *variants, uint32_t layer, uint32_t expert,
                                     struct moec_error *err)
{
    if (layer >= variants->of.config->n_layer || variants->of.ordinals[layer] < 0)
        return moec_fail(err, MOEC_ERR_USAGE, "layer %" PRIu32 " has no routed experts", layer);
    if (expert >= variants->of.config->n_expert)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "expert %" PRIu32 " of layer %" PRIu32 " does not exist: a layer has %" PRIu32
                         " experts",
                         expert, layer, variants->of.config->n_expert);
    return MOEC_OK;
}

static enum moec_status check_code(const struct moec_variants *variants, uint32_t code,
                                   struct moec_error *err)
{
    if (variants_parts_of(variants, code).n == 0)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "variant number %" PRIu32 " is unknown: expected a bitwidth of experts, or the "
                         "number of a codec that was set",
                         code & 63u);
    return MOEC_OK;
}

/* A record in memory, into its empty slot. Its bytes are counted already. */
static void keep(struct moec_variants *variants, struct moec_record_slot *slot, uint8_t *bytes,
                 uint64_t n_bytes)
{
    variants->encoding.n_encoded++;
    moec_record_store_keep(&variants->store, slot, bytes, n_bytes);
}

/* Whether records of a layout hold floats as they are, or codes that are made of weights alone; MXFP4 does
 * neither where the checkpoint has it. */
static bool has_codecs(const struct moec_record_layout *layout, bool of_floats)
{
    bool all = true;
    for (int p = 0; p < MOEC_PROJECTION_COUNT; p++)
        if (p != MOEC_PROJECTION_GATE || layout->n_matrix == 3)
            all = all && (moec_codec_bits(layout->codecs[p]) >= 16) == of_floats &&
                  !moec_codec_traits(layout->codecs[p])->is_exact;
    return all;
}

/* From the exact weights where these are in memory. They hold all of what the checkpoint says. */
enum moec_status moec_variants_encode(const struct moec_variants *variants,
                                      const struct moec_expert_record *made, uint8_t *scratch, uint8_t *bytes,
                                      struct moec_error *err)
{
    const uint32_t exact = moec_variants_source_bits(variants);
    const struct moec_record_layout *layout = made->layout;
    const uint8_t *source = variants_slot_at(variants, made->layer, made->expert, exact)->bytes;
    const struct moec_record_layout *exact_layout = &variants->numbers.layouts[exact];
    if (source != NULL && variants->encoding.by == &variants->encoding.own.encoder &&
        has_codecs(exact_layout, true) && has_codecs(layout, false)) {
        const uint64_t begun_ns = moec_work_begin(MOEC_WORK_ENCODING);
        const enum moec_status status =
            moec_record_recode(exact_layout, source, layout, (float *)(void *)scratch, bytes, NULL);
        moec_work_end(MOEC_WORK_ENCODING, begun_ns, layout->n_bytes);
        if (status == MOEC_OK) /* else the checkpoint's error names the tensor */
            return MOEC_OK;
    }
    return moec_expert_encode(variants->encoding.by, made, scratch, bytes, err);
}

/* Fills an empty slot. */
static enum moec_status fill(struct moec_variants *variants, uint32_t layer, uint32_t expert, uint32_t index,
                             struct moec_error *err)
{
    const struct moec_record_layout layout = variants_layout_of(variants, layer, expert, index);
    if (!moec_record_store_make_room(&variants->store, layout.n_bytes))
        return moec_fail(err, MOEC_ERR_BUDGET,
                         "expert %" PRIu32 " of layer %" PRIu32 " needs %" PRIu64 " bytes, but experts in "
                         "use fill %" PRIu64 " of the %" PRIu64 " bytes allowed for expert variants",
                         expert, layer, layout.n_bytes, variants->store.used_bytes,
                         variants->store.limit_bytes);
    uint8_t *bytes = NULL;
    MOEC_TRY(moec_record_store_take(&variants->store, layout.n_bytes, &bytes, err));
    enum moec_status status =
        moec_variants_encode(variants, &(struct moec_expert_record){layer, expert, &layout},
                             variants->encoding.scratch, bytes, err);
    if (status != MOEC_OK) {
        moec_record_store_give_back(&variants->store, layout.n_bytes, bytes);
        return status;
    }
    keep(variants, variants_slot_at(variants, layer, expert, index), bytes, layout.n_bytes);
    return MOEC_OK;
}

/* Under the lock: takes a record out of the list of those that may go. */
static enum moec_status hold(struct moec_variants *variants, uint32_t layer, uint32_t expert, uint32_t index,
                             struct moec_mlp *mlp, struct moec_error *err)
{
    struct moec_record_slot *slot = variants_slot_at(variants, layer, expert, index);
    if (slot->bytes == NULL)
        MOEC_TRY(fill(variants, layer, expert, index, err));
    moec_record_slot_hold(slot);
    const struct moec_record_layout layout = variants_layout_of(variants, layer, expert, index);
    moec_record_bind(&layout, slot->bytes, mlp);
    return MOEC_OK;
}

/* mlp has one projection of `named`, the others of `rest`. */
static void compose(enum moec_projection projection, const struct moec_mlp *named,
                    const struct moec_mlp *rest, struct moec_mlp *mlp)
{
    *mlp = *rest;
    if (projection == MOEC_PROJECTION_GATE)
        mlp->gate = named->gate;
    else if (projection == MOEC_PROJECTION_UP)
        mlp->up = named->up;
    else
        mlp->down = named->down;
}

/* What a request gets. */
static struct variants_parts requested_parts(const struct moec_variants *variants,
                                             struct moec_expert_request request)
{
    return request.form == 0 ? variants_assigned_parts(variants, request.layer, request.expert)
                             : variants_parts_of(variants, variants->choice.low_code);
}

static enum moec_status borrow_parts(struct moec_variants *variants, uint32_t layer, uint32_t expert,
                                     struct variants_parts parts, struct moec_mlp *mlp,
                                     struct moec_error *err)
{
    struct moec_mlp bound[2];
    pthread_mutex_lock(&variants->lock);
    enum moec_status status = hold(variants, layer, expert, parts.index[0], &bound[0], err);
    if (status == MOEC_OK && parts.n == 2) {
        status = hold(variants, layer, expert, parts.index[1], &bound[1], err);
        if (status != MOEC_OK)
            moec_record_store_let_go(&variants->store,
                                     variants_slot_at(variants, layer, expert, parts.index[0]));
    }
    pthread_mutex_unlock(&variants->lock);
    if (status == MOEC_OK && parts.n == 2)
        compose(parts.projection, &bound[0], &bound[1], mlp);
    else if (status == MOEC_OK)
        *mlp = bound[0];
    return status;
}

static void give_back_parts(struct moec_variants *variants, uint32_t layer, uint32_t expert,
                            struct variants_parts parts)
{
    pthread_mutex_lock(&variants->lock);
    for (uint32_t i = 0; i < parts.n; i++)
        moec_record_store_let_go(&variants->store, variants_slot_at(variants, layer, expert, parts.index[i]));
    pthread_mutex_unlock(&variants->lock);
}

struct prepare {
    struct moec_variants *variants;
    uint32_t layer;
};

/* Errors are not kept here: the expert is encoded again, and its error reported, when it is asked for. */
static void encode_item(void *context, size_t item, int thread)
{
    const struct prepare *prepare = context;
    struct moec_variants *variants = prepare->variants;
    struct encode_job *job = &variants->encoding.jobs[item];
    uint8_t *scratch = variants->encoding.scratch + (size_t)thread * variants->encoding.scratch_bytes;
    const struct moec_record_layout layout =
        variants_layout_of(variants, prepare->layer, job->expert, job->index);
    const struct moec_expert_record made = {prepare->layer, job->expert, &layout};
    job->status = moec_variants_encode(variants, &made, scratch, job->bytes, NULL);
}

/* Reserves room and memory for a record if it is missing; false when there is none left. */
static bool plan_job(struct moec_variants *variants, uint32_t layer, uint32_t expert, uint32_t index,
                     uint32_t *n_jobs)
{
    uint8_t *bytes = NULL;
    const uint64_t n_bytes = variants_layout_of(variants, layer, expert, index).n_bytes;
    const struct encode_job *last = *n_jobs > 0 ? &variants->encoding.jobs[*n_jobs - 1] : NULL;
    const bool is_planned = last != NULL && last->expert == expert && last->index == index;
    if (is_planned || variants_slot_at(variants, layer, expert, index)->bytes != NULL)
        return true;
    if (!moec_record_store_make_room(&variants->store, n_bytes) ||
        moec_record_store_take(&variants->store, n_bytes, &bytes, NULL) != MOEC_OK)
        return false;
    variants->encoding.jobs[(*n_jobs)++] =
        (struct encode_job){.expert = expert, .index = index, .bytes = bytes};
    return true;
}

/* Under the lock: encodes what was planned on all threads. */
static void encode_jobs(struct moec_variants *variants, uint32_t layer, uint32_t n_jobs)
{
    struct prepare prepare = {variants, layer};
    moec_parallel_for(&variants->encoding.pool, n_jobs, encode_item, &prepare);
    for (uint32_t j = 0; j < n_jobs; j++) {
        struct encode_job *job = &variants->encoding.jobs[j];
        const uint64_t n_bytes = variants_layout_of(variants, layer, job->expert, job->index).n_bytes;
        if (job->status == MOEC_OK) {
            keep(variants, variants_slot_at(variants, layer, job->expert, job->index), job->bytes, n_bytes);
            continue;
        }
        moec_record_store_give_back(&variants->store, n_bytes, job->bytes);
    }
}

/* Of the experts that are encoded together. */
static bool is_missing(struct moec_variants *variants, uint32_t layer, uint32_t expert)
{
    const struct variants_parts parts = variants_assigned_parts(variants, layer, expert);
    bool missing = false;
    pthread_mutex_lock(&variants->lock);
    for (uint32_t i = 0; i < parts.n; i++)
        missing = missing || variants_slot_at(variants, layer, expert, parts.index[i])->bytes == NULL;
    pthread_mutex_unlock(&variants->lock);
    return missing;
}

/* Under the lock: those that are there become the last to make room, the first of them the very last. */
static void keep_expected(struct moec_variants *variants, uint32_t from)
{
    for (uint32_t at = variants->next.n; at-- > from;) {
        const uint32_t layer = variants->next.layer, expert = variants->next.all[at];
        const struct variants_parts parts = variants_assigned_parts(variants, layer, expert);
        for (uint32_t i = 0; i < parts.n; i++)
            moec_record_store_move(&variants->store,
                                   variants_slot_at(variants, layer, expert, parts.index[i]), true);
    }
}

/* Encodes on all threads, from this expert on, what the forward pass is going to ask for, as far as there is
 * room beside what it holds. */
static void encode_expected(struct moec_variants *variants, uint32_t layer, uint32_t expert)
{
    uint32_t n_jobs = 0;
    bool has_room = true;
    pthread_mutex_lock(&variants->lock);
    uint32_t from = 0;
    while (from < variants->next.n && variants->next.all[from] != expert)
        from++;
    if (layer == variants->next.layer)
        keep_expected(variants, from);
    for (uint32_t at = from; layer == variants->next.layer && has_room && at < variants->next.n; at++) {
        const uint32_t next = variants->next.all[at];
        const struct variants_parts parts = variants_assigned_parts(variants, layer, next);
        for (uint32_t i = 0; has_room && i < parts.n; i++)
            has_room = plan_job(variants, layer, next, parts.index[i], &n_jobs);
    }
    encode_jobs(variants, layer, n_jobs);
    pthread_mutex_unlock(&variants->lock);
}

static void expect(struct moec_experts *self, const struct moec_router_answer *answer)
{
    struct moec_variants *variants = (struct moec_variants *)self;
    if (answer->layer >= variants->of.config->n_layer || variants->of.ordinals[answer->layer] < 0)
        return;
    pthread_mutex_lock(&variants->lock);
    variants->next.layer = answer->layer;
    /* Those of form 0, which stand first. */
    variants->next.n = 0;
    while (variants->next.n < answer->active.n &&
           answer->active.list[variants->next.n] < variants->of.config->n_expert)
        variants->next.n++;
    memcpy(variants->next.all, answer->active.list, variants->next.n * sizeof *answer->active.list);
    pthread_mutex_unlock(&variants->lock);
}

static enum moec_status acquire(struct moec_experts *self, struct moec_expert_request request,
                                struct moec_mlp *mlp, struct moec_error *err)
{
    struct moec_variants *variants = (struct moec_variants *)self;
    const uint32_t layer = request.layer, expert = request.expert;
    MOEC_TRY(moec_experts_check_form(self, request, err));
    MOEC_TRY(check_expert(variants, layer, expert, err));
    if (request.form == 0 && is_missing(variants, layer, expert))
        encode_expected(variants, layer, expert);
    MOEC_TRY(borrow_parts(variants, layer, expert, requested_parts(variants, request), mlp, err));
    if (variants->choice.filters != NULL)
        mlp->filter = variants->choice.filters[variants_place_of(variants, layer, expert)];
    return MOEC_OK;
}

static void release(struct moec_experts *self, struct moec_expert_request request)
{
    struct moec_variants *variants = (struct moec_variants *)self;
    give_back_parts(variants, request.layer, request.expert, requested_parts(variants, request));
}

/* Held together as long as the limit has room beside those already held; the first is always tried. Room is
 * made with the parts that are there out of reach. */
static bool ready(struct moec_experts *self, struct moec_expert_request request)
{
    struct moec_variants *variants = (struct moec_variants *)self;
    const uint32_t layer = request.layer, expert = request.expert;
    const struct variants_parts parts = requested_parts(variants, request);
    struct moec_record_slot *there[2];
    uint32_t n_there = 0;
    uint64_t missing_bytes = 0;
    pthread_mutex_lock(&variants->lock);
    for (uint32_t i = 0; i < parts.n; i++) {
        struct moec_record_slot *slot = variants_slot_at(variants, layer, expert, parts.index[i]);
        if (slot->bytes == NULL) {
            missing_bytes += variants_layout_of(variants, layer, expert, parts.index[i]).n_bytes;
            continue;
        }
        moec_record_slot_hold(slot);
        there[n_there++] = slot;
    }
    bool is_ready = missing_bytes == 0 || moec_record_store_make_room(&variants->store, missing_bytes);
    for (uint32_t i = 0; i < n_there; i++)
        moec_record_store_let_go(&variants->store, there[i]);
    pthread_mutex_unlock(&variants->lock);
    return is_ready;
}

enum moec_status moec_variants_serve_low(struct moec_variants *variants, uint32_t code,
                                         struct moec_error *err)
{
    MOEC_TRY(check_code(variants, code, err));
    variants->choice.low_code = code;
    variants->experts.n_form = 2;
    return MOEC_OK;
}

/* Encoding is repeatable: a record is told by its numbers, until what they mean changes. */
static void variant_bytes(struct moec_experts *self, struct moec_expert_request request,
                          const struct moec_mlp *held, struct moec_expert_bytes *out)
{
    struct moec_variants *variants = (struct moec_variants *)self;
    const struct variants_parts parts = requested_parts(variants, request);
    const size_t place = variants_place_of(variants, request.layer, request.expert);
    const uint8_t *mixed = variants->choice.mixed[place].codecs;
    uint32_t content = parts.index[0];
    if (parts.n == 2)
        content |= (parts.projection + 1u) << 16 | parts.index[1] << 8;
    *out = (struct moec_expert_bytes){.n_range = parts.n};
    if (parts.index[0] == VARIANTS_MIXED)
        content = 1u << 24 | (uint32_t)mixed[0] << 16 | (uint32_t)mixed[1] << 8 | mixed[2];
    out->content = (uint64_t)variants->numbers.n_change << 32 | content;
    if (variants->choice.filters != NULL)
        out->filter = variants->choice.filters[place];
    for (uint32_t i = 0; i < parts.n; i++) {
        out->n_bytes[i] = variants_layout_of(variants, request.layer, request.expert, parts.index[i]).n_bytes;
        if (held != NULL)
            out->from[i] = variants_slot_at(variants, request.layer, request.expert, parts.index[i])->bytes;
    }
}

static const struct moec_experts_ops variants_ops = {
    .acquire = acquire, .release = release, .expect = expect, .bytes = variant_bytes, .ready = ready};

/* A codec that there was none of: its layout, and an empty slot for each expert. */
static enum moec_status add_number(struct moec_variants *variants, uint32_t number, struct moec_codec codec,
                                   struct moec_error *err)
{
    const uint64_t n_experts = (uint64_t)variants->of.n_moe * variants->of.config->n_expert;
    if (variants->numbers.slots[number] == NULL)
        MOEC_TRY(moec_alloc((void **)&variants->numbers.slots[number], n_experts,
                            sizeof(struct moec_record_slot), "the table of variants", err));
    variants->numbers.codecs[number] = codec;
    variants->numbers.layouts[number] = moec_record_layout_make(variants->of.config, codec);
    return MOEC_OK;
}

/* Which bitwidths there are is the codec's affair; an error about scheme or group shows at the first. */
static enum moec_status add_bitwidths(struct moec_variants *variants, enum moec_scheme scheme, uint32_t group,
                                      struct moec_error *err)
{
    const enum moec_dtype source = (enum moec_dtype)variants->of.config->expert_dtype;
    struct moec_codec codec = {.dtype = MOEC_DTYPE_F32};
    MOEC_TRY(add_number(variants, 32, codec, err));
    MOEC_TRY(moec_codec_for_bits(2, scheme, group, source, &codec, err));
    for (uint32_t bits = 1; bits <= 16; bits++)
        if (moec_codec_for_bits(bits, scheme, group, source, &codec, NULL) == MOEC_OK)
            MOEC_TRY(add_number(variants, bits, codec, err));
    uint64_t one = moec_variants_record_bytes(variants, moec_variants_source_bits(variants));
    if (variants->store.limit_bytes != 0 && variants->store.limit_bytes < one)
        return moec_fail(err, MOEC_ERR_BUDGET,
                         "a limit of %" PRIu64
                         " bytes for expert variants is too low: one expert needs %" PRIu64 " bytes",
                         variants->store.limit_bytes, one);
    return MOEC_OK;
}

static enum moec_status make_tables(struct moec_variants *variants, struct moec_error *err)
{
    uint64_t n_experts = (uint64_t)variants->of.n_moe * variants->of.config->n_expert;
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, n_experts, sizeof(struct moec_record_slot), "the table of variants", err));
    variants->numbers.slots[VARIANTS_MIXED] = memory;
    MOEC_TRY(moec_alloc(&memory, n_experts, 1, "the assignment", err));
    variants->choice.assignment = memory;
    MOEC_TRY(moec_alloc(&memory, n_experts, sizeof *variants->choice.mixed, "the assignment", err));
    variants->choice.mixed = memory;
    memset(variants->choice.assignment, (int)moec_variants_source_bits(variants), n_experts);
    variants->choice.rest_number = moec_variants_source_bits(variants);
    MOEC_TRY(moec_alloc(&memory, 2 * (uint64_t)variants->of.config->n_expert, sizeof *variants->encoding.jobs,
                        "encoding jobs", err));
    variants->encoding.jobs = memory;
    MOEC_TRY(moec_alloc(&memory, variants->of.config->n_expert, sizeof *variants->next.all,
                        "expected experts", err));
    variants->next.all = memory;
    variants->encoding.scratch_bytes =
        (moec_checkpoint_expert_scratch_bytes(variants->of.checkpoint) + 63) / 64 * 64;
    MOEC_TRY(moec_alloc_aligned(&memory, (uint64_t)variants->encoding.pool.n_threads,
                                variants->encoding.scratch_bytes, "working memory of the encoder", err));
    variants->encoding.scratch = memory;
    return MOEC_OK;
}

enum moec_status moec_variants_create(const struct moec_checkpoint *checkpoint,
                                      const struct moec_variants_options *options, struct moec_variants **out,
                                      struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, 1, sizeof(struct moec_variants), "variants", err));
    struct moec_variants *variants = memory;
    pthread_mutex_init(&variants->lock, NULL);
    moec_record_store_init(&variants->store, options->cache_limit_bytes);
    variants->experts = (struct moec_experts){.ops = &variants_ops, .max_held = UINT32_MAX};
    variants->of.checkpoint = checkpoint;
    variants->encoding.own = moec_checkpoint_encoder_make(checkpoint);
    variants->encoding.by = &variants->encoding.own.encoder;
    variants->of.config = moec_checkpoint_config(checkpoint);
    variants->encoding.pool = moec_pool_make(options->n_threads);
    variants->of.n_moe = moec_config_moe_count(variants->of.config);
    for (uint32_t layer = 0; layer < variants->of.config->n_layer; layer++)
        variants->of.ordinals[layer] = moec_config_moe_ordinal(variants->of.config, layer);
    MOEC_TRY_OUT(add_bitwidths(variants, options->scheme, options->group, err));
    MOEC_TRY_OUT(make_tables(variants, err));
    *out = variants;
    return MOEC_OK;

out:
    moec_variants_free(variants);
    return status;
}

void moec_variants_free(struct moec_variants *variants)
{
    if (variants == NULL)
        return;
    const size_t n = (size_t)variants->of.n_moe * variants->of.config->n_expert;
    for (uint32_t index = 0; index < N_VARIANTS_INDICES; index++) {
        for (size_t i = 0; variants->numbers.slots[index] != NULL && i < n; i++)
            free(variants->numbers.slots[index][i].bytes);
        free(variants->numbers.slots[index]);
    }
    moec_record_store_end(&variants->store);
    free(variants->encoding.scratch);
    free(variants->encoding.jobs);
    free(variants->next.all);
    free(variants->choice.assignment);
    free(variants->choice.mixed);
    pthread_mutex_destroy(&variants->lock);
    free(variants);
}

/* Drops the records of a number, those included that have it for one projection. */
static void drop_number(struct moec_variants *variants, uint32_t number)
{
    const size_t n = (size_t)variants->of.n_moe * variants->of.config->n_expert;
    pthread_mutex_lock(&variants->lock);
    variants->numbers.n_change++;
    variants->pace.encode_ns[number] = variants->pace.encode_ns[VARIANTS_MIXED] = 0;
    for (size_t i = 0; i < n; i++) {
        struct moec_record_slot *own = &variants->numbers.slots[number][i],
                                *mixed = &variants->numbers.slots[VARIANTS_MIXED][i];
        const uint8_t *used = variants->choice.mixed[i].codecs;
        if (own->bytes != NULL)
            moec_record_store_drop(&variants->store, own);
        if (mixed->bytes != NULL && (used[0] == number || used[1] == number || used[2] == number))
            moec_record_store_drop(&variants->store, mixed);
    }
    pthread_mutex_unlock(&variants->lock);
}

enum moec_status moec_variants_set_codec(struct moec_variants *variants, uint32_t number,
                                         struct moec_codec codec, struct moec_error *err)
{
    MOEC_TRY(moec_codec_check(codec, "the codec of variants", err));
    const uint32_t bits = moec_codec_bits(codec);
    if (bits >= 16)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "at %" PRIu32 " bits, experts keep the checkpoint's own weights, "
                         "so no codec can be chosen for them",
                         bits);
    if (number >= MOEC_CODEC_TABLE || (number < MOEC_CODEC_FIRST_OTHER && number != bits))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "a codec of %" PRIu32 " bits cannot have the number %" PRIu32 ", expected %" PRIu32
                         " or %d..%d",
                         bits, number, bits, MOEC_CODEC_FIRST_OTHER, MOEC_CODEC_TABLE - 1);
    if (!variants_has_number(variants, number))
        return add_number(variants, number, codec, err);
    const struct moec_codec old = variants->numbers.codecs[number];
    if (moec_codec_equal(old, codec) && old.quantizer == codec.quantizer)
        return MOEC_OK;
    drop_number(variants, number);
    return add_number(variants, number, codec, err);
}

struct moec_codec moec_variants_codec(const struct moec_variants *variants, uint32_t number)
{
    return variants->numbers.codecs[number];
}

enum moec_status moec_variants_set_codecs(struct moec_variants *variants,
                                          const struct moec_codec codecs[static MOEC_CODEC_TABLE],
                                          struct moec_error *err)
{
    for (uint32_t number = 0; number < MOEC_CODEC_TABLE; number++)
        if (moec_codec_bits(codecs[number]) < 16)
            MOEC_TRY(moec_variants_set_codec(variants, number, codecs[number], err));
    return MOEC_OK;
}

void moec_variants_set_encoder(struct moec_variants *variants, const struct moec_expert_encoder *encoder)
{
    const struct moec_expert_encoder *next = encoder != NULL ? encoder : &variants->encoding.own.encoder;
    const bool moves = next->reorders != variants->encoding.by->reorders;
    for (uint32_t number = 0; number < MOEC_CODEC_TABLE; number++)
        if (variants_has_number(variants, number) &&
            (moves || moec_codec_bits(variants->numbers.codecs[number]) < 16))
            drop_number(variants, number);
    variants->encoding.by = next;
}

struct moec_experts *moec_variants_experts(struct moec_variants *variants)
{
    return &variants->experts;
}

uint32_t moec_variants_source_bits(const struct moec_variants *variants)
{
    return variants->of.config->expert_dtype == MOEC_DTYPE_F32 ? 32 : 16;
}

enum moec_status moec_variants_assign(struct moec_variants *variants, const uint8_t *assignment,
                                      struct moec_error *err)
{
    uint32_t n_expert = variants->of.config->n_expert;
    size_t n = (size_t)variants->of.n_moe * n_expert;
    for (size_t i = 0; i < n; i++) {
        if (variants_parts_of(variants, assignment[i]).n == 0)
            return moec_fail(err, MOEC_ERR_USAGE,
                             "the assignment gives variant number %u to expert %" PRIu32 " of layer %" PRIu32
                             ", but no codec has this number",
                             assignment[i] & 63u, (uint32_t)(i % n_expert),
                             moec_config_moe_layer(variants->of.config, (uint32_t)(i / n_expert)));
    }
    memcpy(variants->choice.assignment, assignment, n);
    return MOEC_OK;
}

enum moec_status moec_variants_assign_plan(struct moec_variants *variants, const struct moec_plan *plan,
                                           struct moec_error *err)
{
    const size_t n = moec_plan_count(plan);
    if (plan->n_layer != variants->of.n_moe || plan->n_expert != variants->of.config->n_expert)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the plan has %" PRIu32 " layers of %" PRIu32 " experts, but the model has %" PRIu32
                         " layers of %" PRIu32 " experts",
                         plan->n_layer, plan->n_expert, variants->of.n_moe, variants->of.config->n_expert);
    for (size_t i = 0; i < n; i++)
        if (!moec_variant_exists(plan->experts[i], variants->numbers.codecs))
            return moec_fail(err, MOEC_ERR_USAGE,
                             "the plan gives codec numbers %u, %u and %u to expert %zu of layer %" PRIu32
                             ", but not all of these codecs exist",
                             plan->experts[i].codecs[0], plan->experts[i].codecs[1],
                             plan->experts[i].codecs[2], i % plan->n_expert,
                             moec_config_moe_layer(variants->of.config, (uint32_t)(i / plan->n_expert)));
    pthread_mutex_lock(&variants->lock);
    for (size_t i = 0; i < n; i++) {
        const bool is_uniform = moec_variant_is_uniform(plan->experts[i]);
        variants->choice.assignment[i] = is_uniform ? plan->experts[i].codecs[0] : 0;
        if (is_uniform || moec_variant_equal(variants->choice.mixed[i], plan->experts[i]))
            continue;
        struct moec_record_slot *slot = &variants->numbers.slots[VARIANTS_MIXED][i];
        if (slot->bytes != NULL)
            moec_record_store_drop(&variants->store, slot);
        variants->choice.mixed[i] = plan->experts[i];
    }
    pthread_mutex_unlock(&variants->lock);
    return MOEC_OK;
}

enum moec_status moec_variants_assign_one(struct moec_variants *variants, uint32_t layer, uint32_t expert,
                                          uint32_t code, struct moec_error *err)
{
    MOEC_TRY(check_expert(variants, layer, expert, err));
    MOEC_TRY(check_code(variants, code, err));
    variants->choice.assignment[variants_place_of(variants, layer, expert)] = (uint8_t)code;
    variants->next.n = 0; /* of a pass that is over */
    return MOEC_OK;
}

enum moec_status moec_variants_assign_all(struct moec_variants *variants, uint32_t code,
                                          struct moec_error *err)
{
    MOEC_TRY(check_code(variants, code, err));
    memset(variants->choice.assignment, (int)code,
           (size_t)variants->of.n_moe * variants->of.config->n_expert);
    return MOEC_OK;
}

enum moec_status moec_variants_set_rest(struct moec_variants *variants, uint32_t number,
                                        struct moec_error *err)
{
    if (!variants_has_number(variants, number))
        return check_code(variants, number, err);
    variants->choice.rest_number = number;
    return MOEC_OK;
}

void moec_variants_set_filters(struct moec_variants *variants, const struct moec_mlp_filter *filters)
{
    variants->choice.filters = filters;
}

static uint32_t plan_jobs(struct moec_variants *variants, uint32_t layer, uint32_t first, uint32_t end,
                          uint32_t code)
{
    uint32_t n_jobs = 0;
    for (uint32_t expert = first; expert < end; expert++) {
        const struct variants_parts parts =
            code != 0 ? variants_parts_of(variants, code) : variants_assigned_parts(variants, layer, expert);
        for (uint32_t i = 0; i < parts.n; i++) {
            if (!plan_job(variants, layer, expert, parts.index[i], &n_jobs))
                return n_jobs;
        }
    }
    return n_jobs;
}

enum moec_status moec_variants_prepare_some(struct moec_variants *variants, uint32_t layer, uint32_t first,
                                            uint32_t n, uint32_t code, struct moec_error *err)
{
    const uint32_t n_expert = variants->of.config->n_expert;
    MOEC_TRY(check_expert(variants, layer, first, err));
    if (code != 0)
        MOEC_TRY(check_code(variants, code, err));
    pthread_mutex_lock(&variants->lock);
    encode_jobs(variants, layer,
                plan_jobs(variants, layer, first, n < n_expert - first ? first + n : n_expert, code));
    pthread_mutex_unlock(&variants->lock);
    return MOEC_OK;
}

enum moec_status moec_variants_prepare(struct moec_variants *variants, uint32_t layer, uint32_t code,
                                       struct moec_error *err)
{
    return moec_variants_prepare_some(variants, layer, 0, variants->of.config->n_expert, code, err);
}

void moec_variants_rank(struct moec_variants *variants, uint32_t layer, uint32_t first, uint32_t n,
                        uint32_t code, enum moec_variants_need need)
{
    const uint32_t n_expert = variants->of.config->n_expert,
                   end = n < n_expert - first ? first + n : n_expert;
    const struct variants_parts parts = variants_parts_of(variants, code);
    pthread_mutex_lock(&variants->lock);
    for (uint32_t expert = end; expert-- > first;)
        for (uint32_t i = 0; i < parts.n; i++)
            moec_record_store_move(&variants->store,
                                   variants_slot_at(variants, layer, expert, parts.index[i]),
                                   need == MOEC_VARIANTS_SOON);
    pthread_mutex_unlock(&variants->lock);
}

uint64_t moec_variants_limit_bytes(const struct moec_variants *variants)
{
    return variants->store.limit_bytes;
}

uint64_t moec_variants_record_bytes(const struct moec_variants *variants, uint32_t code)
{
    const struct variants_parts parts = variants_parts_of(variants, code);
    return parts.n == 0 ? 0 : variants->numbers.layouts[parts.index[0]].n_bytes;
}

/* ---- for tests ---- */

uint64_t moec_variants_cached_bytes(const struct moec_variants *variants)
{
    return variants->store.used_bytes;
}

uint64_t moec_variants_encoded_count(const struct moec_variants *variants)
{
    return variants->encoding.n_encoded;
}
