#include "runtime/policy/preload.h"

#include "formats/base/elementary.h"
#include "formats/base/memory.h"
#include "runtime/policy/evict.h"
#include "runtime/policy/preload_trial.h"

#include <string.h>

#define N_BIN       8       /* of scores */
#define MEMORY      128.0f  /* guesses that a rate remembers, with those before at half their weight */
#define RANK_PRIOR  4.0f    /* guesses that the predictor's score counts for */
#define CELL_PRIOR  8.0f    /* guesses that the rate of the rank counts for, in the rate of a score */
#define STEP        0.0625f /* weight of a new sample in a mean of times */
#define MOST_CHANGE 4.0f    /* a time counts as at most so many times the mean before, and as little */
/* c / t: the chance that the record that makes room would have been used before the wrong guess is. */
#define PRICE 0.2f

/* How often something was right. */
struct rate {
    float right, seen;
};

/* One guess at what the next router will answer. */
struct guess {
    uint32_t expert;
    uint32_t rank;     /* capped to what is told apart */
    uint32_t bin;      /* of its score */
    float score;       /* chance that it is needed, as the predictor has it */
    float probability; /* as learned */
    bool is_absent;    /* when the router before answered */
    bool is_given;
};

enum known { NOT_KNOWN = 0, KNOWN, KNOWN_AND_GIVEN /* since the last answer */ };

/* When the next router will answer, from the first call for a guess on, is learned by how many reads were in
 * flight then: so many and more. */
#define N_WINDOW 6

struct moec_preload {
    struct moec_preload_setup setup;
    struct moec_predict *predict;
    uint32_t n_rank;                    /* told apart: min(2k, E) */
    struct rate *ranks;                 /* (2, n_layer, n_rank): of one token, of batches */
    struct rate *cells;                 /* (2, n_layer, n_rank, N_BIN) */
    float *windows;                     /* (2, n_layer, N_WINDOW): ns, of batches ns a token; 0 = unknown */
    struct moec_scored_expert *ranking; /* (n_expert) */
    struct guess *guesses;              /* (n_expert) */
    uint32_t n_guess, n_given;

    /* the answer that guesses follow */
    bool has_answer;
    uint32_t answered; /* MoE ordinal */
    uint32_t target;   /* that is guessed at */
    uint32_t n_tok;
    uint64_t answered_ns;
    uint64_t asked_ns; /* first time that somebody asked for a guess; 0 = nobody */
    uint32_t window;   /* reads in flight then, as windows tell them apart */

    struct moec_preload_trial trial;

    /* What layers will ask for (n_layer, n_expert), enum known; NULL unless the predictor knows tokens.
     * Layers from known_end on are not known. */
    uint8_t *known;
    uint32_t known_end;

    /* reads; 0 = unknown */
    float alone_ns, alone_bytes; /* with their latency */
    float queued_byte_ns;        /* without: t / n_bytes */
};

static uint32_t rank_count(const struct moec_predict_setup *model)
{
    return 2 * model->top_k < model->n_expert ? 2 * model->top_k : model->n_expert;
}

static uint64_t rate_count(const struct moec_predict_setup *model)
{
    return (uint64_t)2 * model->n_layer * rank_count(model);
}

static uint64_t known_count(const struct moec_preload_setup *setup)
{
    return setup->predictor->knows_tokens ? (uint64_t)setup->model.n_layer * setup->model.n_expert : 0;
}

uint64_t moec_preload_state_bytes(const struct moec_preload_setup *setup)
{
    const struct moec_predict_setup *model = &setup->model;
    return sizeof(struct moec_preload) + setup->predictor->state_bytes(model) +
           rate_count(model) * (1 + N_BIN) * sizeof(struct rate) +
           (uint64_t)2 * model->n_layer * N_WINDOW * sizeof(float) + known_count(setup) +
           model->n_expert * (sizeof(struct moec_scored_expert) + sizeof(struct guess));
}

enum moec_status moec_preload_create(const struct moec_preload_setup *setup, struct moec_preload **out,
                                     struct moec_error *err)
{
    static const char what[] = "preloading";
    const struct moec_predict_setup *model = &setup->model;
    enum moec_status status = MOEC_OK;
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, 1, sizeof(struct moec_preload), what, err));
    struct moec_preload *preload = memory;
    preload->setup = *setup;
    preload->n_rank = rank_count(model);
    moec_preload_trial_init(&preload->trial);
    MOEC_TRY_OUT(moec_alloc(&memory, rate_count(model), sizeof(struct rate), what, err));
    preload->ranks = memory;
    MOEC_TRY_OUT(moec_alloc(&memory, rate_count(model) * N_BIN, sizeof(struct rate), what, err));
    preload->cells = memory;
    MOEC_TRY_OUT(moec_alloc(&memory, (uint64_t)2 * model->n_layer * N_WINDOW, sizeof(float), what, err));
    preload->windows = memory;
    MOEC_TRY_OUT(moec_alloc(&memory, model->n_expert, sizeof *preload->ranking, what, err));
    preload->ranking = memory;
    MOEC_TRY_OUT(moec_alloc(&memory, model->n_expert, sizeof *preload->guesses, what, err));
    preload->guesses = memory;
    if (setup->predictor->knows_tokens) {
        MOEC_TRY_OUT(moec_alloc(&memory, known_count(setup), 1, what, err));
        preload->known = memory;
    }
    MOEC_TRY_OUT(setup->predictor->create(model, &preload->predict, err));
    *out = preload;
    preload = NULL;
out:
    moec_preload_free(preload);
    return status;
}

void moec_preload_free(struct moec_preload *preload)
{
    if (preload == NULL)
        return;
    if (preload->predict != NULL)
        preload->predict->ops->destroy(preload->predict);
    free(preload->ranks);
    free(preload->cells);
    free(preload->windows);
    free(preload->ranking);
    free(preload->guesses);
    free(preload->known);
    free(preload);
}

/* ---- what is learned ---- */

static struct rate *rank_of(struct moec_preload *preload, const struct guess *guess)
{
    const uint32_t batch = preload->n_tok > 1;
    return &preload
                ->ranks[((size_t)batch * preload->setup.model.n_layer + preload->target) * preload->n_rank +
                        guess->rank];
}

static struct rate *cell_of(struct moec_preload *preload, const struct guess *guess)
{
    return &preload->cells[(size_t)(rank_of(preload, guess) - preload->ranks) * N_BIN + guess->bin];
}

static void rate_add(struct rate *rate, bool is_right)
{
    if (rate->seen >= MEMORY) {
        rate->seen *= 0.5f;
        rate->right *= 0.5f;
    }
    rate->seen += 1;
    rate->right += is_right ? 1.0f : 0.0f;
}

/* The score stands in for what was not seen yet: of the rank, and that of the rank for the score's. */
static float learned_probability(struct moec_preload *preload, const struct guess *guess)
{
    const struct rate *rank = rank_of(preload, guess), *cell = cell_of(preload, guess);
    const float of_rank = (rank->right + RANK_PRIOR * guess->score) / (rank->seen + RANK_PRIOR);
    return (cell->right + CELL_PRIOR * of_rank) / (cell->seen + CELL_PRIOR);
}

static void mean_add(float *mean, float sample)
{
    if (*mean <= 0) {
        *mean = sample;
        return;
    }
    const float most = *mean * MOST_CHANGE, least = *mean / MOST_CHANGE;
    sample = sample > most ? most : sample < least ? least : sample;
    *mean += STEP * (sample - *mean);
}

void moec_preload_timed(struct moec_preload *preload, uint64_t n_bytes, uint64_t read_ns, bool is_alone)
{
    if (n_bytes == 0 || read_ns == 0)
        return;
    if (is_alone) {
        mean_add(&preload->alone_ns, (float)read_ns);
        mean_add(&preload->alone_bytes, (float)n_bytes);
    } else {
        mean_add(&preload->queued_byte_ns, (float)read_ns / (float)n_bytes);
    }
}

/* A read's latency and transfer. Until reads that followed others were seen, all of it counts as transfer. */
struct read_time {
    float latency_ns, transfer_ns;
};

static struct read_time read_time(const struct moec_preload *preload, uint32_t key)
{
    const struct moec_preload_view *view = &preload->setup.view;
    const float n_bytes = (float)view->n_bytes_of(view->context, key);
    float byte_ns = preload->queued_byte_ns, latency_ns = 0;
    if (preload->alone_bytes > 0) {
        const float alone = preload->alone_ns / preload->alone_bytes;
        byte_ns = byte_ns > 0 && byte_ns < alone ? byte_ns : alone;
        latency_ns = preload->alone_ns - byte_ns * preload->alone_bytes;
    }
    return (struct read_time){latency_ns > 0 ? latency_ns : 0, byte_ns * n_bytes};
}

/* The mean that this window belongs to, a token's. */
static float *window_of(const struct moec_preload *preload)
{
    const uint32_t batch = preload->n_tok > 1;
    const size_t row = (size_t)batch * preload->setup.model.n_layer + preload->target;
    return &preload->windows[row * N_WINDOW + preload->window];
}

/* ---- what is known ---- */

void moec_preload_know(struct moec_preload *preload, uint32_t ordinal, const uint32_t *experts, uint32_t n)
{
    const uint32_t n_expert = preload->setup.model.n_expert;
    uint8_t *row = preload->known + (size_t)ordinal * n_expert;
    memset(row, NOT_KNOWN, n_expert);
    for (uint32_t i = 0; i < n; i++)
        row[experts[i]] = KNOWN;
    preload->known_end = ordinal + 1 > preload->known_end ? ordinal + 1 : preload->known_end;
}

bool moec_preload_knows(const struct moec_preload *preload)
{
    return preload->known_end > 0;
}

/* A layer has answered: it is known no more, and the others may be asked for again. */
static void end_known(struct moec_preload *preload, uint32_t ordinal)
{
    const size_t n_expert = preload->setup.model.n_expert;
    if (ordinal >= preload->known_end)
        return;
    memset(preload->known + ordinal * n_expert, NOT_KNOWN, n_expert);
    if (ordinal + 1 == preload->known_end)
        preload->known_end = 0;
    for (size_t key = 0; key < preload->known_end * n_expert; key++)
        preload->known[key] = preload->known[key] == KNOWN_AND_GIVEN ? KNOWN : preload->known[key];
}

static uint32_t next_known(struct moec_preload *preload)
{
    const struct moec_preload_view *view = &preload->setup.view;
    const uint32_t end = preload->known_end * preload->setup.model.n_expert;
    for (uint32_t key = 0; key < end; key++) {
        if (preload->known[key] != KNOWN || view->is_present(view->context, key))
            continue;
        preload->known[key] = KNOWN_AND_GIVEN;
        return key;
    }
    return MOEC_EVICT_NONE;
}

/* ---- answers ---- */

static bool is_listed(const struct moec_router_answer *answer, uint32_t expert)
{
    uint32_t low = 0, high = answer->n_active;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (answer->active[middle] == expert)
            return true;
        if (answer->active[middle] < expert)
            low = middle + 1;
        else
            high = middle;
    }
    return false;
}

/* In any form. */
static bool is_active(const struct moec_preload *preload, const struct moec_router_answer *answer,
                      uint32_t expert)
{
    const uint32_t most = answer->n_active > 0 ? answer->active[answer->n_active - 1] : 0;
    for (; expert <= most; expert += preload->setup.model.n_expert)
        if (is_listed(answer, expert))
            return true;
    return false;
}

static void judge(struct moec_preload *preload, const struct moec_router_answer *answer, uint64_t now_ns)
{
    for (uint32_t i = 0; i < preload->n_guess; i++) {
        const struct guess *guess = &preload->guesses[i];
        if (!guess->is_absent)
            continue;
        const bool is_right = is_active(preload, answer, guess->expert);
        rate_add(rank_of(preload, guess), is_right);
        rate_add(cell_of(preload, guess), is_right);
    }
    if (preload->asked_ns > 0 && now_ns > preload->asked_ns)
        mean_add(window_of(preload), (float)(now_ns - preload->asked_ns) / (float)preload->n_tok);
}

/* Chance that any of the answer's tokens will choose it, 0 to 1 whatever the score is. NaN counts as 0: then
 * only what is learned decides. */
static float score_probability(float expected_tokens, uint32_t n_tok)
{
    if (!(expected_tokens > 0))
        return 0;
    if (n_tok > 1)
        return 1.0f - (float)moec_exp_f64(-(double)expected_tokens);
    return expected_tokens < 1 ? expected_tokens : 1;
}

/* The layer that answers next: each token goes round in a decoder, each input passes an encoder once. */
static uint32_t layer_after(const struct moec_predict_setup *model, uint32_t ordinal)
{
    if (ordinal + 1 < model->n_layer)
        return ordinal + 1;
    return model->n_encoder < model->n_layer ? model->n_encoder : 0;
}

/* What an answer says of the layer after it: where a target begins, nothing but that one token comes. */
static struct moec_router_answer answer_for_next(const struct moec_predict_setup *model,
                                                 const struct moec_router_answer *answer, uint32_t ordinal)
{
    struct moec_router_answer next = *answer;
    if (model->n_encoder == 0 || layer_after(model, ordinal) != model->n_encoder)
        return next;
    next.experts = next.last_experts = NULL;
    next.weights = next.last_weights = NULL;
    next.next_gate = NULL;
    next.n_next_gate = 0;
    next.next_learned = NULL;
    next.n_next_learned = 0;
    next.n_tok = ordinal < model->n_encoder ? 1 : answer->n_tok;
    return next;
}

void moec_preload_answer(struct moec_preload *preload, const struct moec_router_answer *answered,
                         uint32_t ordinal, uint64_t now_ns)
{
    const struct moec_predict_setup *model = &preload->setup.model;
    if (preload->has_answer && preload->target == ordinal)
        judge(preload, answered, now_ns);
    end_known(preload, ordinal);
    preload->has_answer = true;
    preload->answered = ordinal;
    preload->target = layer_after(model, ordinal);
    preload->n_tok = answer_for_next(model, answered, ordinal).n_tok;
    preload->answered_ns = now_ns;
    preload->asked_ns = 0;
    preload->n_guess = preload->n_given = 0;
    if (answered->n_tok > 1)
        moec_preload_trial_pause(&preload->trial);
    else if (ordinal == (model->n_encoder < model->n_layer ? model->n_encoder : 0))
        moec_preload_trial_token(&preload->trial, now_ns);
}

bool moec_preload_wants_rank(const struct moec_preload *preload)
{
    return preload->setup.count > 0 || !preload->setup.is_tried || preload->trial.is_guessing;
}

void moec_preload_rank(struct moec_preload *preload, const struct moec_router_answer *answered)
{
    const struct moec_preload_view *view = &preload->setup.view;
    const struct moec_router_answer next =
        answer_for_next(&preload->setup.model, answered, preload->answered);
    const struct moec_router_answer *answer = &next;
    const uint32_t base = preload->target * preload->setup.model.n_expert;
    preload->n_guess =
        preload->predict->ops->rank(preload->predict, answer, preload->target, preload->ranking);
    for (uint32_t i = 0; i < preload->n_guess; i++) {
        struct guess *guess = &preload->guesses[i];
        const float score = score_probability(preload->ranking[i].score, answer->n_tok);
        const uint32_t bin = (uint32_t)(score * N_BIN);
        *guess =
            (struct guess){.expert = preload->ranking[i].expert,
                           .rank = i < preload->n_rank ? i : preload->n_rank - 1,
                           .bin = bin < N_BIN ? bin : N_BIN - 1,
                           .score = score,
                           .is_absent = !view->is_present(view->context, base + preload->ranking[i].expert)};
        guess->probability = learned_probability(preload, guess);
    }
}

/* ---- guesses ---- */

static float later(float a, float b)
{
    return a > b ? a : b;
}

/* What is known when a guess is weighed, in ns. */
struct moment {
    struct read_time time;
    float window_ns; /* until the next answer */
    float n_other;   /* misses that are expected beside it */
    uint32_t n_ahead;
};

/* Whether a guess pays: the rule and the letters of runtime/policy/preload.h. */
static bool is_worth_it(const struct moment *at, float p)
{
    const float a = at->time.latency_ns, t = at->time.transfer_ns, w = at->window_ns;
    const float alone = (float)moec_exp_f64(-(double)(at->n_other > 0 ? at->n_other : 0));
    const float busy = (float)at->n_ahead * t, there = later(a, busy) + t, demand = later(busy, w + a);
    const float held_up = later(there, w + a) - demand;
    const float saved_alone = demand + t - later(w, there), saved = t - held_up;
    return p * (alone * saved_alone + (1 - alone) * saved) > (1 - p) * (held_up + PRICE * t);
}

static float window_left(struct moec_preload *preload, uint64_t now_ns, uint32_t n_ahead)
{
    if (now_ns < preload->answered_ns)
        now_ns = preload->answered_ns;
    if (preload->asked_ns == 0) {
        preload->asked_ns = now_ns;
        preload->window = n_ahead < N_WINDOW ? n_ahead : N_WINDOW - 1;
    }
    const float window_ns = *window_of(preload) * (float)preload->n_tok;
    const float passed_ns = (float)(now_ns - preload->asked_ns);
    return passed_ns < window_ns ? window_ns - passed_ns : 0;
}

static uint32_t give(struct moec_preload *preload, struct guess *guess)
{
    guess->is_given = true;
    preload->n_given++;
    return preload->target * preload->setup.model.n_expert + guess->expert;
}

static float expected_misses(const struct moec_preload *preload)
{
    float n_missing = 0;
    for (uint32_t i = 0; i < preload->n_guess; i++) {
        const struct guess *guess = &preload->guesses[i];
        n_missing += guess->is_absent && !guess->is_given ? guess->probability : 0;
    }
    return n_missing;
}

uint32_t moec_preload_next_behind(struct moec_preload *preload, uint64_t now_ns, uint32_t n_ahead)
{
    const struct moec_preload_view *view = &preload->setup.view;
    const uint32_t base = preload->target * preload->setup.model.n_expert;
    const bool is_counted = preload->setup.count > 0;
    struct moment at = {.n_ahead = n_ahead};
    const uint32_t known = next_known(preload);
    if (known != MOEC_EVICT_NONE)
        return known;
    if (!preload->has_answer || (is_counted && preload->n_given >= preload->setup.count))
        return MOEC_EVICT_NONE;
    if (!is_counted)
        at.window_ns = window_left(preload, now_ns, n_ahead);
    if (!is_counted && at.window_ns <= 0)
        return MOEC_EVICT_NONE;
    const float n_missing = expected_misses(preload);
    for (uint32_t i = 0; i < preload->n_guess; i++) {
        struct guess *guess = &preload->guesses[i];
        if (guess->is_given || view->is_present(view->context, base + guess->expert))
            continue;
        at.time = read_time(preload, base + guess->expert);
        at.n_other = n_missing - guess->probability;
        if (is_counted || is_worth_it(&at, guess->probability))
            return give(preload, guess);
    }
    return MOEC_EVICT_NONE;
}

uint32_t moec_preload_next(struct moec_preload *preload, uint64_t now_ns)
{
    return moec_preload_next_behind(preload, now_ns, 0);
}
