/* The runtime's own decider gets a forward pass that has nothing but what it reads. Of each answer come forms
 * known before, the decision, hints of the next gate, then changes of the logical cache. That is the
 * runtime's order, and each step looks at what the one before left. A change is noted as a key that flips;
 * `first` says where those of an answer begin. */
#include "profiler/simulate/simulated_decisions.h"

#include "formats/base/memory.h"
#include "runtime/forward/moe/decide.h"
#include "runtime/forward/moe/router.h"

#include <inttypes.h>
#include <string.h>

enum moec_status moec_simulated_decisions_check(const struct moec_replay *replay,
                                                const struct moec_config *config, const char *path,
                                                struct moec_error *err)
{
    if (replay->n_logit == 0)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "the trace '%s' does not hold the router scores of every expert, and decisions need them: "
            "record a new trace with moec run --trace FILE --trace-scores",
            path);
    if (moec_config_is_encoder_decoder(config) || moec_config_routes_by_token(config))
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "decisions cannot be simulated for family '%s', whose %s: measure them with moec "
                         "eval and moec bench",
                         config->family,
                         moec_config_is_encoder_decoder(config)
                             ? "encoder makes its own decisions"
                             : "layers route by token id, which traces do not have");
    bool is_same = replay->n_layer == moec_config_moe_count(config) && replay->n_expert == config->n_expert &&
                   replay->top_k == config->top_k && replay->n_logit == moec_config_choices(config);
    for (uint32_t s = 0; is_same && s < replay->n_layer; s++)
        is_same = replay->moe_layers[s] == moec_config_moe_layer(config, s);
    if (!is_same)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the trace '%s' was recorded with another model: give the bundle of that run "
                         "with --model",
                         path);
    return MOEC_OK;
}

void moec_simulated_decisions_release(struct moec_simulated_decisions *decided)
{
    free(decided->replay.answers);
    free(decided->replay.active);
    free(decided->replay.experts);
    free(decided->replay.weights);
    free(decided->replay.is_low);
    if (decided->owns_scored)
        free(decided->replay.scored);
    free(decided->forms.rows);
    free(decided->forms.is_low);
    free(decided->logical.first);
    free(decided->logical.keys);
    *decided = (struct moec_simulated_decisions){0};
}

/* ---- what it works with ---- */

struct work {
    const struct moec_simulated_decisions_setup *setup;
    struct moec_simulated_decisions *decided;
    struct moec_forward forward;
    struct moec_decider decider;
    struct moec_route_state state;
    uint32_t *counts;    /* (S, E), owned: tokens that experts took, where they take no more than so many */
    uint64_t *predicted; /* (words), owned: of the token at work; NULL where no precision asks */
    bool *is_active;     /* (F x E), owned: clear between answers */
    uint64_t n_active;
    uint64_t later_ns;               /* than recorded, modulo 2^64: what was computed took longer */
    struct moec_logical_cache *held; /* owned: what the state's pools hold */
    bool *was_held;                  /* (S, F, E), owned: at the last answer */
    size_t n_key, key_capacity;      /* of the changes */
    uint32_t n_low;                  /* rows of the forms so far */
};

static uint64_t n_choices(const struct moec_simulated_decisions_setup *setup, uint32_t *max_tokens)
{
    const struct moec_replay *replay = setup->replay;
    uint64_t n = 0;
    *max_tokens = 0;
    for (uint64_t step = 0; step < replay->n_step; step++) {
        n += (uint64_t)replay->n_tok[step] * replay->n_layer * replay->top_k;
        *max_tokens = replay->n_tok[step] > *max_tokens ? replay->n_tok[step] : *max_tokens;
    }
    return n;
}

static enum moec_status allocate(struct work *work, uint64_t n, struct moec_error *err)
{
    const struct moec_replay *from = work->setup->replay;
    const struct moec_config *config = &work->setup->model->config;
    struct moec_replay *to = &work->decided->replay;
    const uint64_t n_answer = from->n_step * from->n_layer;
    *to = *from;
    to->n_form = moec_route_takes_low(work->setup->route) ? 2 : 1;
    to->answers = NULL;
    to->active = to->experts = NULL;
    to->weights = NULL;
    to->is_low = NULL;
    MOEC_TRY(moec_alloc((void **)&to->answers, n_answer, sizeof *to->answers, "decided answers", err));
    memcpy(to->answers, from->answers, n_answer * sizeof *to->answers);
    MOEC_TRY(moec_alloc((void **)&to->active, n, sizeof *to->active, "decided answers", err));
    MOEC_TRY(moec_alloc((void **)&to->experts, n, sizeof *to->experts, "decided answers", err));
    MOEC_TRY(moec_alloc((void **)&to->weights, n, sizeof *to->weights, "decided answers", err));
    if (to->n_form > 1)
        MOEC_TRY(moec_alloc((void **)&to->is_low, n, sizeof *to->is_low, "decided answers", err));
    MOEC_TRY(moec_alloc((void **)&work->is_active, (uint64_t)to->n_form * to->n_expert, sizeof(bool),
                        "decided answers", err));
    if (config->router.expert_capacity > 0)
        MOEC_TRY(moec_alloc((void **)&work->counts, (uint64_t)to->n_layer * to->n_expert,
                            sizeof *work->counts, "decided answers", err));
    if (work->setup->route->precision.kind == MOEC_PRECISION_FATE)
        return moec_alloc((void **)&work->predicted, moec_precision_predicted_words(config),
                          sizeof *work->predicted, "experts that layers foresee", err);
    return MOEC_OK;
}

/* Guesses that are yet to be asked what a decision makes of them. */
static enum moec_status allocate_scored(struct work *work, struct moec_error *err)
{
    const struct moec_replay *from = work->setup->replay;
    struct moec_simulated_decisions *decided = work->decided;
    uint64_t n = 0;
    if (from->next_logits == NULL || moec_route_looks_at_buffer(work->setup->route))
        return MOEC_OK;
    for (uint64_t a = 0; a < from->n_step * from->n_layer; a++) {
        const uint64_t end = from->answers[a].next_gate + from->answers[a].n_next_gate;
        n = end > n ? end : n;
    }
    decided->replay.scored = NULL;
    MOEC_TRY(moec_alloc((void **)&decided->replay.scored, n, sizeof *from->scored, "decided answers", err));
    decided->owns_scored = true;
    memcpy(decided->replay.scored, from->scored, n * sizeof *from->scored);
    return MOEC_OK;
}

/* Room for what is known of the answers of all prompts. */
static enum moec_status allocate_forms(struct work *work, struct moec_error *err)
{
    const struct moec_recording *recording = work->setup->recording;
    struct moec_recorded_forms *forms = &work->decided->forms;
    const uint64_t n_answer = recording->n_step * recording->shape.n_layer;
    uint64_t n_row = 0;
    if (work->setup->route->prefill.kind == MOEC_PREFILL_SAME)
        return MOEC_OK;
    for (uint64_t step = 0; step < recording->n_step; step++)
        n_row += recording->steps[step].is_prefill ? recording->shape.n_layer : 0;
    MOEC_TRY(moec_alloc((void **)&forms->rows, n_answer, sizeof *forms->rows, "decided answers", err));
    memset(forms->rows, 0xff, n_answer * sizeof *forms->rows);
    return moec_alloc((void **)&forms->is_low, n_row * recording->shape.n_expert, sizeof(bool),
                      "decided answers", err);
}

static enum moec_status allocate_logical(struct work *work, struct moec_error *err)
{
    const struct moec_replay *replay = &work->decided->replay;
    const struct moec_route *route = work->setup->route;
    struct moec_recorded_logical *logical = &work->decided->logical;
    logical->n_slots[0] = route->n_slots;
    logical->n_slots[1] = route->n_low_slots;
    MOEC_TRY(moec_logical_cache_create(
        &(struct moec_logical_shape){
            replay->n_layer, replay->n_form, replay->n_expert, {logical->n_slots[0], logical->n_slots[1]}},
        1, &work->held, err));
    MOEC_TRY(moec_alloc((void **)&work->was_held,
                        (uint64_t)replay->n_layer * replay->n_form * replay->n_expert, sizeof(bool),
                        "decided answers", err));
    return moec_alloc((void **)&logical->first, replay->n_step * replay->n_layer + 1, sizeof *logical->first,
                      "decided answers", err);
}

static void release(struct work *work)
{
    moec_decider_release(&work->decider);
    moec_route_state_release(&work->state);
    moec_logical_cache_free(work->held);
    free(work->was_held);
    free(work->counts);
    free(work->predicted);
    free(work->is_active);
}

/* ---- what is foreseen ---- */

/* What counts a prompt before it reads any of it needs it whole. */
static enum moec_status check_prompts(const struct moec_simulated_decisions_setup *setup,
                                      struct moec_error *err)
{
    const struct moec_prefill *prefill = &setup->route->prefill;
    for (uint64_t step = 0; moec_prefill_looks_ahead(prefill) && step < setup->recording->n_step; step++) {
        const struct moec_recorded_step *info = &setup->recording->steps[step];
        if (info->is_prefill && !info->begins)
            return moec_fail(
                err, MOEC_ERR_USAGE,
                "prefill '%s' counts the experts of a whole prompt before it reads any, but the trace has a "
                "prompt in several chunks (step %" PRIu64
                "): record the trace with more --memory, or use prefill "
                "'unpopular', which works block by block",
                moec_prefill_name(prefill), step);
    }
    return MOEC_OK;
}

/* A trace sums what a gate says over the tokens of a chunk, and names of one token's experts 2k. */
static enum moec_status check_predicted(const struct moec_simulated_decisions_setup *setup,
                                        struct moec_error *err)
{
    const struct moec_replay *replay = setup->replay;
    const struct moec_precision *precision = &setup->route->precision;
    const uint32_t width = moec_precision_width(precision, &setup->model->config);
    if (precision->kind != MOEC_PRECISION_FATE)
        return MOEC_OK;
    for (uint64_t a = 0; a < replay->n_step * replay->n_layer; a++) {
        const uint64_t step = a / replay->n_layer;
        const bool is_prompt = setup->recording->steps[step].is_prefill;
        if (a % replay->n_layer + 1 == replay->n_layer || (is_prompt && setup->route->decode_only))
            continue;
        if (replay->n_tok[step] > 1)
            return moec_fail(err, MOEC_ERR_USAGE,
                             "--precision fate needs a prediction for each token, but this trace has one for "
                             "all tokens of a prompt together: give --decide decode");
        if (replay->answers[a].n_next_gate < width)
            return moec_fail(err, MOEC_ERR_USAGE,
                             "the trace has only %" PRIu32 " predicted experts per layer, but precision "
                             "fate asks for %" PRIu32 ": give fate:%" PRIu32,
                             replay->answers[a].n_next_gate, width, replay->answers[a].n_next_gate);
    }
    return MOEC_OK;
}

/* The experts that the answer before named for this one. */
static const uint64_t *hint(const struct work *work, const struct moec_replay_answer *answer,
                            uint32_t ordinal)
{
    const struct moec_config *config = &work->setup->model->config;
    const uint32_t width = moec_precision_width(&work->setup->route->precision, config);
    if (work->predicted == NULL || ordinal == 0)
        return work->predicted;
    const struct moec_scored_expert *best = work->setup->replay->scored + answer[-1].next_gate;
    memset(work->predicted, 0, moec_precision_predicted_words(config) * sizeof *work->predicted);
    for (uint32_t i = 0; i < width && i < answer[-1].n_next_gate; i++)
        work->predicted[best[i].expert / 64] |= (uint64_t)1 << best[i].expert % 64;
    return work->predicted;
}

/* ---- answers ---- */

static bool is_low_at(const struct moec_replay *replay, uint64_t choice)
{
    return replay->is_low != NULL && replay->is_low[choice];
}

/* Whether a token's choices, from `first` on, have this recorded one in the same copy. */
static bool is_taken(const struct moec_replay *decided, uint64_t first, const struct moec_replay *recorded,
                     uint64_t choice)
{
    for (uint64_t c = first; c < first + decided->top_k; c++)
        if (decided->experts[c] == recorded->experts[choice] && decided->weights[c] != 0 &&
            is_low_at(decided, c) == is_low_at(recorded, choice))
            return true;
    return false;
}

/* Lists what the tokens ask for, and counts what they took of the recorded. */
static void list_active(struct work *work, const struct moec_replay_answer *from, uint64_t n_choice,
                        struct moec_replay_answer *to)
{
    const struct moec_replay *recorded = work->setup->replay, *decided = &work->decided->replay;
    const uint32_t n_key = decided->n_form * decided->n_expert;
    for (uint64_t i = 0; i < n_choice; i++) {
        const uint64_t first = to->choices + i - i % recorded->top_k;
        if (recorded->weights[from->choices + i] == 0)
            continue;
        work->decided->n_choice++;
        work->decided->n_changed += !is_taken(decided, first, recorded, from->choices + i);
    }
    to->active = work->n_active;
    for (uint32_t key = 0; key < n_key; key++) {
        if (work->is_active[key])
            decided->active[work->n_active++] = key;
        work->is_active[key] = false;
    }
    to->n_active = (uint32_t)(work->n_active - to->active);
}

/* Where computing takes what it took, each expert takes its part, and what comes after it is sooner or later
 * by what that differs. */
static void move_times(struct work *work, const struct moec_replay_answer *from,
                       struct moec_replay_answer *to)
{
    const uint64_t busy_ns = from->answered_ns + from->stall_ns;
    to->answered_ns = from->answered_ns + work->later_ns;
    to->done_ns = from->done_ns + work->later_ns;
    if (from->done_ns <= busy_ns || from->n_active == 0)
        return;
    const double part = (double)to->n_active / from->n_active;
    const uint64_t own_ns = (uint64_t)((double)(from->done_ns - busy_ns) * part);
    to->done_ns = to->answered_ns + from->stall_ns + own_ns;
    work->later_ns += own_ns - (from->done_ns - busy_ns);
}

/* What is known of an answer before it comes, as the runtime tells it. */
static void note_forms(struct work *work, const struct moec_sequences *sequences, uint32_t ordinal,
                       uint64_t a)
{
    struct moec_recorded_forms *forms = &work->decided->forms;
    const uint32_t n_expert = work->setup->replay->n_expert;
    const bool *is_low = NULL;
    if (forms->rows == NULL || !moec_decide_forms(&work->forward, sequences, ordinal, &is_low) ||
        is_low == NULL)
        return;
    memcpy(forms->is_low + (size_t)work->n_low * n_expert, is_low, n_expert * sizeof(bool));
    forms->rows[a] = work->n_low++;
}

static void decide_answer(struct work *work, uint64_t step, uint32_t ordinal, uint64_t *n_choice)
{
    const struct moec_simulated_decisions_setup *setup = work->setup;
    const struct moec_replay *recorded = setup->replay;
    const struct moec_config *config = &setup->model->config;
    const uint64_t a = step * recorded->n_layer + ordinal;
    const struct moec_replay_answer *from = &recorded->answers[a];
    const uint32_t n_tok = recorded->n_tok[step];
    struct moec_replay *to = &work->decided->replay;
    struct moec_replay_answer *answer = &to->answers[a];
    answer->choices = *n_choice;
    *n_choice += (uint64_t)n_tok * recorded->top_k;
    const struct moec_sequence_rows rows = {
        .n_rows = n_tok,
        .counts = work->counts != NULL ? work->counts + (size_t)ordinal * config->n_expert : NULL,
        .decides = {.route = &work->state,
                    .layer = ordinal,
                    .n_prompt = setup->recording->steps[step].is_prefill ? n_tok : 0,
                    .predicted = (uint64_t *)hint(work, from, ordinal)}};
    const struct moec_sequences sequences = {.spans = &rows, .n_spans = 1};
    const struct moec_routing routing = {.experts = to->experts + answer->choices,
                                         .weights = to->weights + answer->choices};
    for (uint32_t t = 0; t < n_tok; t++)
        memcpy(work->decider.logits + t * work->decider.stride,
               recorded->logits + from->logits + (size_t)t * recorded->n_logit,
               recorded->n_logit * sizeof(float));
    note_forms(work, &sequences, ordinal, a);
    moec_decide(&work->forward, recorded->moe_layers[ordinal], &sequences, &routing);
    const bool has_passed = config->n_identity > 0 || config->router.expert_capacity > 0;
    for (uint64_t i = 0; i < (uint64_t)n_tok * recorded->top_k; i++) {
        const uint64_t c = answer->choices + i;
        const bool is_low = to->is_low != NULL && work->decider.is_low[i];
        const bool asks = !work->decider.skips[i] && !(has_passed && moec_capacity_was_full(to->weights[c]));
        if (asks)
            work->is_active[to->experts[c] + (is_low ? config->n_expert : 0)] = true;
        else
            to->weights[c] = 0;
        if (to->is_low != NULL)
            to->is_low[c] = is_low;
    }
    list_active(work, from, (uint64_t)n_tok * recorded->top_k, answer);
    move_times(work, from, answer);
}

/* Of a token's guesses at the next layer those that it would not take there, as its logical cache is now. */
static void foretell_gate(struct work *work, uint64_t step, uint32_t ordinal)
{
    const struct moec_replay *recorded = work->setup->replay;
    const struct moec_replay_answer *answer = &recorded->answers[step * recorded->n_layer + ordinal];
    const bool is_free = work->setup->recording->steps[step].is_prefill && work->setup->route->decode_only;
    const struct moec_sequence_rows rows = {.n_rows = 1,
                                            .decides = {.route = &work->state, .layer = ordinal}};
    if (!work->decided->owns_scored || recorded->n_tok[step] != 1 || answer->n_next_gate == 0 || is_free)
        return;
    moec_decide_foretell(&work->forward, recorded->moe_layers[ordinal + 1], 1, &rows,
                         recorded->next_logits + answer->logits,
                         work->decided->replay.scored + answer->next_gate, answer->n_next_gate);
}

/* Notes which of n keys from `first` on have entered the logical cache, or left it, since it was last asked.
 */
static enum moec_status note_held(struct work *work, uint32_t first, uint32_t n, struct moec_error *err)
{
    struct moec_recorded_logical *logical = &work->decided->logical;
    for (uint32_t key = first; key < first + n; key++) {
        const bool is_held = moec_logical_cache_has(work->held, key);
        if (is_held == work->was_held[key])
            continue;
        work->was_held[key] = is_held;
        MOEC_TRY(moec_grow((void **)&logical->keys, &work->key_capacity, work->n_key + 1,
                           sizeof *logical->keys, "decided answers", err));
        logical->keys[work->n_key++] = key;
    }
    return MOEC_OK;
}

static void begin_sequence(struct work *work)
{
    const struct moec_replay *recorded = work->setup->replay;
    for (uint32_t s = 0; s < recorded->n_layer; s++)
        moec_route_state_reset(&work->state, s);
    if (work->counts != NULL)
        memset(work->counts, 0, (size_t)recorded->n_layer * recorded->n_expert * sizeof *work->counts);
}

static void count_since(const struct moec_route_counts *before, const struct moec_route_counts *now,
                        struct moec_route_counts *sum)
{
    sum->n_position += now->n_position - before->n_position;
    sum->n_taken += now->n_taken - before->n_taken;
    sum->n_missed += now->n_missed - before->n_missed;
    sum->n_low += now->n_low - before->n_low;
    sum->n_low_missed += now->n_low_missed - before->n_low_missed;
    sum->n_skipped += now->n_skipped - before->n_skipped;
    sum->missed_bytes += now->missed_bytes - before->missed_bytes;
}

static enum moec_status decide_steps(struct work *work, struct moec_error *err)
{
    const struct moec_replay *recorded = work->setup->replay;
    const uint32_t n_layer_key = work->decided->replay.n_form * recorded->n_expert;
    uint64_t *first = work->decided->logical.first, n_choice = 0;
    for (uint64_t step = 0; step < recorded->n_step; step++) {
        const struct moec_recorded_step *info = &work->setup->recording->steps[step];
        const struct moec_route_counts before = work->state.counts;
        if (step == work->setup->recording->counted.first) {
            work->decided->prompt = work->decided->decode = (struct moec_route_counts){0};
            work->decided->n_choice = work->decided->n_changed = 0;
        }
        if (info->begins)
            begin_sequence(work);
        /* What a sequence begins with, in every layer; the first answer notes the more. */
        MOEC_TRY(note_held(work, 0, info->begins ? recorded->n_layer * n_layer_key : 0, err));
        for (uint32_t s = 0; s < recorded->n_layer; s++) {
            decide_answer(work, step, s, &n_choice);
            foretell_gate(work, step, s);
            MOEC_TRY(note_held(work, s * n_layer_key, n_layer_key, err));
            first[step * recorded->n_layer + s + 1] = work->n_key;
        }
        count_since(&before, &work->state.counts,
                    info->is_prefill ? &work->decided->prompt : &work->decided->decode);
    }
    return MOEC_OK;
}

enum moec_status moec_simulated_decisions_make(const struct moec_simulated_decisions_setup *setup,
                                               struct moec_simulated_decisions *decided,
                                               struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_config *config = &setup->model->config;
    struct work work = {.setup = setup, .decided = decided};
    uint32_t max_tokens = 0;
    const uint64_t n = n_choices(setup, &max_tokens);
    *decided = (struct moec_simulated_decisions){0};
    MOEC_TRY_OUT(check_predicted(setup, err));
    MOEC_TRY_OUT(check_prompts(setup, err));
    MOEC_TRY_OUT(allocate(&work, n, err));
    MOEC_TRY_OUT(allocate_scored(&work, err));
    MOEC_TRY_OUT(moec_decider_create(config, setup->route, max_tokens, &work.decider, err));
    MOEC_TRY_OUT(moec_route_state_create(config, setup->route, setup->replay->n_layer, 0, &work.state, err));
    MOEC_TRY_OUT(allocate_logical(&work, err));
    MOEC_TRY_OUT(allocate_forms(&work, err));
    moec_route_state_share(&work.state, work.held);
    work.decider.record_bytes[0] = setup->record_bytes[0];
    work.decider.record_bytes[1] = setup->record_bytes[1];
    work.forward = (struct moec_forward){
        .model = setup->model, .kernels = moec_kernels_best(), .decider = &work.decider};
    MOEC_TRY_OUT(decide_steps(&work, err));
out:
    release(&work);
    if (status != MOEC_OK)
        moec_simulated_decisions_release(decided);
    return status;
}
