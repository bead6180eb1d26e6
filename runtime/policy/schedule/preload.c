/* A chance is learned in two steps. The rate of a rank begins at the predictor's score, and the rate of
 * (rank, score) begins at that of the rank. Only what was absent when it was ranked is judged, since nothing
 * is read for the rest. What is said of a layer `ahead` waits for as many answers in one of `ahead` lists,
 * which come round. Times of reads and windows are running means, in which a sample counts as at most four
 * times the mean. Likely experts of all layers come before less likely ones of any. */
#include "runtime/policy/schedule/preload.h"

#include "formats/base/elementary.h"
#include "formats/base/memory.h"
#include "runtime/policy/evict/evict.h"
#include "runtime/policy/schedule/preload_trial.h"

#include <inttypes.h>
#include <string.h>

#define N_BIN       8       /* of scores */
#define MEMORY      128.0f  /* prefetches that a rate remembers, with those before at half their weight */
#define RANK_PRIOR  4.0f    /* prefetches that the predictor's score counts for */
#define CELL_PRIOR  8.0f    /* prefetches that the rate of the rank counts for, in the rate of a score */
#define STEP        0.0625f /* weight of a new sample in a mean of times */
#define MOST_CHANGE 4.0f    /* a time counts as at most so many times the mean before, and as little */
/* c / t: the chance that the record that makes room would have been used before the wrong prefetch is. */
#define PRICE 0.2f

/* How often something was right. */
struct rate {
    float right, seen;
};

/* One prefetch at what a router will answer. */
struct prefetch {
    uint32_t expert;
    uint32_t form;
    uint32_t rank;     /* capped to what is told apart */
    uint32_t bin;      /* of its score */
    float score;       /* chance that it is needed, as the predictor has it */
    float probability; /* as learned */
    bool is_absent;    /* when it was ranked */
    bool is_given;
};

/* What one answer said of a layer. */
struct prefetches {
    struct prefetch *of; /* (n_expert) */
    uint32_t n;
    uint32_t n_likely; /* of these, the first ones: as many as will be chosen, or more */
    uint32_t ahead;    /* MoE layers from the one that answered */
    uint32_t target;   /* MoE ordinal */
    uint32_t n_tok;
};

enum known { NOT_KNOWN = 0, KNOWN, KNOWN_AND_GIVEN /* since the last answer */ };

/* When the next router will answer, from the first call for a prefetch on, is learned by how many reads were in
 * flight then: so many and more. */
#define N_WINDOW 6

/* How often prefetches were right, and how long answers take, as learned. */
struct rates {
    uint32_t n_rank;    /* told apart */
    struct rate *ranks; /* (2, p, n_layer, n_rank): of one token, of batches */
    struct rate *cells; /* (2, p, n_layer, n_rank, N_BIN) */
    float *windows;     /* (2, n_layer, N_WINDOW): ns, of batches ns a token; 0 = unknown */
};

struct lists {
    struct moec_scored_expert *ranking; /* (n_expert) */
    /* (1 + 2 + .. + p): what was said of a layer `ahead` waits for as many answers, which come round. */
    struct prefetches *prefetches;
    struct prefetch *all; /* (1 + 2 + .. + p, n_expert): theirs */
};

/* The answer that prefetches follow. */
struct answer {
    bool exists;
    uint32_t ordinal;  /* MoE ordinal */
    uint32_t target;   /* that answers next */
    uint32_t n_tok;    /* then */
    uint32_t turn;     /* counts answers */
    uint32_t n_ranked; /* layers ahead, so far */
    uint32_t n_given;
};

struct times {
    uint64_t answered_ns;
    uint64_t asked_ns; /* first time that somebody asked for a prefetch; 0 = nobody */
    uint32_t window;   /* reads in flight then, as windows tell them apart */
    /* Of reads; 0 = unknown. */
    float alone_ns, alone_bytes; /* with their latency */
    float queued_byte_ns;        /* without: t / n_bytes */
};

/* What layers will ask for. */
struct knowledge {
    uint8_t *of;  /* (n_layer, n_expert), enum known; NULL unless the predictor knows tokens */
    uint32_t end; /* layers from here on are not known */
};

struct moec_preload {
    struct moec_preload_setup setup;
    struct moec_predict *predict;
    struct rates rates;
    struct lists lists;
    struct answer answer;
    struct times times;
    struct moec_preload_trial trial;
    struct knowledge known;
};

static uint32_t rank_count(const struct moec_predict_setup *model)
{
    return moec_predicted_experts(model->top_k, model->n_expert);
}

static uint32_t layers_ahead(const struct moec_preload_setup *setup)
{
    return setup->bounds.ahead > 1 ? setup->bounds.ahead : 1;
}

static uint64_t rate_count(const struct moec_preload_setup *setup)
{
    return (uint64_t)2 * layers_ahead(setup) * setup->model.n_layer * rank_count(&setup->model);
}

/* Lists of prefetches up to so many layers ahead. */
static uint32_t list_count(uint32_t ahead)
{
    return ahead * (ahead + 1) / 2;
}

static uint64_t known_count(const struct moec_preload_setup *setup)
{
    return setup->predictor->knows_tokens ? (uint64_t)setup->model.n_layer * setup->model.n_expert : 0;
}

uint64_t moec_preload_state_bytes(const struct moec_preload_setup *setup)
{
    const struct moec_predict_setup *model = &setup->model;
    return sizeof(struct moec_preload) + setup->predictor->state_bytes(model) +
           rate_count(setup) * (1 + N_BIN) * sizeof(struct rate) +
           (uint64_t)2 * model->n_layer * N_WINDOW * sizeof(float) + known_count(setup) +
           model->n_expert * sizeof(struct moec_scored_expert) +
           list_count(layers_ahead(setup)) *
               (sizeof(struct prefetches) + model->n_expert * sizeof(struct prefetch));
}

static enum moec_status create_prefetches(struct moec_preload *preload, struct moec_error *err)
{
    const uint32_t n_list = list_count(layers_ahead(&preload->setup)),
                   n_expert = preload->setup.model.n_expert;
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, n_list, sizeof *preload->lists.prefetches, "preloading", err));
    preload->lists.prefetches = memory;
    MOEC_TRY(moec_alloc(&memory, (uint64_t)n_list * n_expert, sizeof(struct prefetch), "preloading", err));
    preload->lists.all = memory;
    for (uint32_t i = 0; i < n_list; i++)
        preload->lists.prefetches[i].of = preload->lists.all + (size_t)i * n_expert;
    return MOEC_OK;
}

enum moec_status moec_preload_create(const struct moec_preload_setup *setup, struct moec_preload **out,
                                     struct moec_error *err)
{
    static const char what[] = "preloading";
    const struct moec_predict_setup *model = &setup->model;
    enum moec_status status = MOEC_OK;
    void *memory = NULL;
    if (setup->bounds.ahead > 1 &&
        (setup->bounds.ahead > MOEC_GATES_AHEAD || !setup->predictor->needs_next_gate))
        return moec_fail(
            err, MOEC_ERR_USAGE, "predictor '%s' cannot predict %" PRIu32 " layers ahead, expected 1%s",
            setup->predictor->name, setup->bounds.ahead,
            setup->predictor->needs_next_gate ? " to 4"
                                              : ", because it does not run the routers of later layers");
    MOEC_TRY(moec_alloc(&memory, 1, sizeof(struct moec_preload), what, err));
    struct moec_preload *preload = memory;
    preload->setup = *setup;
    preload->rates.n_rank = rank_count(model);
    moec_preload_trial_init(&preload->trial);
    MOEC_TRY_OUT(moec_alloc(&memory, rate_count(setup), sizeof(struct rate), what, err));
    preload->rates.ranks = memory;
    MOEC_TRY_OUT(moec_alloc(&memory, rate_count(setup) * N_BIN, sizeof(struct rate), what, err));
    preload->rates.cells = memory;
    MOEC_TRY_OUT(moec_alloc(&memory, (uint64_t)2 * model->n_layer * N_WINDOW, sizeof(float), what, err));
    preload->rates.windows = memory;
    MOEC_TRY_OUT(moec_alloc(&memory, model->n_expert, sizeof *preload->lists.ranking, what, err));
    preload->lists.ranking = memory;
    MOEC_TRY_OUT(create_prefetches(preload, err));
    if (setup->predictor->knows_tokens) {
        MOEC_TRY_OUT(moec_alloc(&memory, known_count(setup), 1, what, err));
        preload->known.of = memory;
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
    free(preload->rates.ranks);
    free(preload->rates.cells);
    free(preload->rates.windows);
    free(preload->lists.ranking);
    free(preload->lists.prefetches);
    free(preload->lists.all);
    free(preload->known.of);
    free(preload);
}

/* ---- what is learned ---- */

static size_t rate_of(const struct moec_preload *preload, const struct prefetches *list,
                      const struct prefetch *prefetch)
{
    const uint32_t batch = list->n_tok > 1, n_ahead = layers_ahead(&preload->setup);
    const size_t row = (size_t)batch * n_ahead + list->ahead - 1;
    return (row * preload->setup.model.n_layer + list->target) * preload->rates.n_rank + prefetch->rank;
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
static float learned_probability(const struct moec_preload *preload, const struct prefetches *list,
                                 const struct prefetch *prefetch)
{
    const size_t at = rate_of(preload, list, prefetch);
    const struct rate *rank = &preload->rates.ranks[at],
                      *cell = &preload->rates.cells[at * N_BIN + prefetch->bin];
    const float of_rank = (rank->right + RANK_PRIOR * prefetch->score) / (rank->seen + RANK_PRIOR);
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
        mean_add(&preload->times.alone_ns, (float)read_ns);
        mean_add(&preload->times.alone_bytes, (float)n_bytes);
    } else {
        mean_add(&preload->times.queued_byte_ns, (float)read_ns / (float)n_bytes);
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
    float byte_ns = preload->times.queued_byte_ns, latency_ns = 0;
    if (preload->times.alone_bytes > 0) {
        const float alone = preload->times.alone_ns / preload->times.alone_bytes;
        byte_ns = byte_ns > 0 && byte_ns < alone ? byte_ns : alone;
        latency_ns = preload->times.alone_ns - byte_ns * preload->times.alone_bytes;
    }
    return (struct read_time){latency_ns > 0 ? latency_ns : 0, byte_ns * n_bytes};
}

/* A token's mean time until a layer answers. */
static float *window_of(const struct moec_preload *preload, uint32_t target, uint32_t window)
{
    const uint32_t batch = preload->answer.n_tok > 1;
    const size_t row = (size_t)batch * preload->setup.model.n_layer + target;
    return &preload->rates.windows[row * N_WINDOW + window];
}

bool moec_preload_has_time(const struct moec_preload *preload, uint64_t now_ns)
{
    const float window_ns =
        *window_of(preload, preload->answer.target, preload->times.window) * (float)preload->answer.n_tok;
    if (!preload->answer.exists || preload->times.asked_ns == 0 || preload->times.alone_ns <= 0 ||
        window_ns <= 0)
        return true;
    const float passed_ns = now_ns > preload->times.asked_ns ? (float)(now_ns - preload->times.asked_ns) : 0;
    return passed_ns + preload->times.alone_ns < window_ns;
}

/* ---- what is known ---- */

void moec_preload_know(struct moec_preload *preload, uint32_t ordinal, const uint32_t *experts, uint32_t n)
{
    const uint32_t n_expert = preload->setup.model.n_expert;
    uint8_t *row = preload->known.of + (size_t)ordinal * n_expert;
    memset(row, NOT_KNOWN, n_expert);
    for (uint32_t i = 0; i < n; i++)
        row[experts[i]] = KNOWN;
    preload->known.end = ordinal + 1 > preload->known.end ? ordinal + 1 : preload->known.end;
}

bool moec_preload_knows(const struct moec_preload *preload)
{
    return preload->known.end > 0;
}

/* A layer has answered: it is known no more, and the others may be asked for again. */
static void end_known(struct moec_preload *preload, uint32_t ordinal)
{
    const size_t n_expert = preload->setup.model.n_expert;
    if (ordinal >= preload->known.end)
        return;
    memset(preload->known.of + ordinal * n_expert, NOT_KNOWN, n_expert);
    if (ordinal + 1 == preload->known.end)
        preload->known.end = 0;
    for (size_t key = 0; key < preload->known.end * n_expert; key++)
        preload->known.of[key] = preload->known.of[key] == KNOWN_AND_GIVEN ? KNOWN : preload->known.of[key];
}

/* How a prefetch is named. */
static uint32_t name_of(const struct moec_preload *preload, uint32_t ordinal, uint32_t form, uint32_t expert)
{
    const uint32_t n_form = preload->setup.n_form > 1 ? preload->setup.n_form : 1;
    return (ordinal * n_form + form) * preload->setup.model.n_expert + expert;
}

static uint32_t next_known(struct moec_preload *preload)
{
    const struct moec_preload_view *view = &preload->setup.view;
    const uint32_t n_expert = preload->setup.model.n_expert, end = preload->known.end * n_expert;
    for (uint32_t i = 0; i < end; i++) {
        const uint32_t key = name_of(preload, i / n_expert, 0, i % n_expert);
        if (preload->known.of[i] != KNOWN || view->is_present(view->context, key))
            continue;
        preload->known.of[i] = KNOWN_AND_GIVEN;
        return key;
    }
    return MOEC_EVICT_NONE;
}

/* ---- answers ---- */

static bool is_listed(const struct moec_router_answer *answer, uint32_t expert)
{
    uint32_t low = 0, high = answer->active.n;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (answer->active.list[middle] == expert)
            return true;
        if (answer->active.list[middle] < expert)
            low = middle + 1;
        else
            high = middle;
    }
    return false;
}

/* In the form that was prefetched. */
static bool is_right(const struct moec_preload *preload, const struct moec_router_answer *answer,
                     const struct prefetch *prefetch)
{
    return prefetch->form >= answer->form &&
           is_listed(answer,
                     (prefetch->form - answer->form) * preload->setup.model.n_expert + prefetch->expert);
}

/* What the answer of a turn said, or will say, of the layer `ahead` of it. */
static struct prefetches *prefetches_at(const struct moec_preload *preload, uint32_t ahead, uint32_t turn)
{
    return &preload->lists.prefetches[list_count(ahead - 1) + turn % ahead];
}

/* Judges what was said of the layer, and makes room for what this answer says. */
static void judge(struct moec_preload *preload, const struct moec_router_answer *answer, uint32_t ordinal)
{
    for (uint32_t ahead = 1; ahead <= layers_ahead(&preload->setup); ahead++) {
        struct prefetches *list = prefetches_at(preload, ahead, preload->answer.turn);
        for (uint32_t i = 0; i < list->n && list->target == ordinal; i++) {
            if (!list->of[i].is_absent)
                continue;
            const size_t at = rate_of(preload, list, &list->of[i]);
            const bool was_right = is_right(preload, answer, &list->of[i]);
            rate_add(&preload->rates.ranks[at], was_right);
            rate_add(&preload->rates.cells[at * N_BIN + list->of[i].bin], was_right);
        }
        list->n = list->n_likely = 0;
    }
}

static void learn_window(struct moec_preload *preload, uint64_t now_ns)
{
    if (preload->times.asked_ns > 0 && now_ns > preload->times.asked_ns)
        mean_add(window_of(preload, preload->answer.target, preload->times.window),
                 (float)(now_ns - preload->times.asked_ns) / (float)preload->answer.n_tok);
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
    next.choices.experts = next.last.experts = NULL;
    next.choices.weights = next.last.weights = NULL;
    next.next.gate.experts = NULL;
    next.next.gate.n = 0;
    next.next.learned.experts = NULL;
    next.next.learned.n = 0;
    next.n_tok = ordinal < model->n_encoder ? 1 : answer->n_tok;
    return next;
}

/* What it says of a layer further on: its gate, and nothing of choices that are not made yet. */
static struct moec_router_answer answer_for_later(const struct moec_router_answer *answer, uint32_t ahead)
{
    struct moec_router_answer later = *answer;
    later.choices.experts = later.last.experts = NULL;
    later.choices.weights = later.last.weights = NULL;
    later.next.gate.experts = answer->next.later[ahead - 2].experts;
    later.next.gate.n = answer->next.later[ahead - 2].n;
    later.next.learned.experts = NULL;
    later.next.learned.n = 0;
    return later;
}

void moec_preload_answer(struct moec_preload *preload, const struct moec_router_answer *answered,
                         uint32_t ordinal, uint64_t now_ns)
{
    const struct moec_predict_setup *model = &preload->setup.model;
    if (preload->answer.exists && preload->answer.target == ordinal)
        learn_window(preload, now_ns);
    preload->answer.turn++;
    judge(preload, answered, ordinal);
    end_known(preload, ordinal);
    preload->answer.exists = true;
    preload->answer.ordinal = ordinal;
    preload->answer.target = layer_after(model, ordinal);
    preload->answer.n_tok = answer_for_next(model, answered, ordinal).n_tok;
    preload->times.answered_ns = now_ns;
    preload->times.asked_ns = 0;
    preload->answer.n_ranked = preload->answer.n_given = 0;
    if (answered->n_tok > 1)
        moec_preload_trial_pause(&preload->trial);
    else if (ordinal == (model->n_encoder < model->n_layer ? model->n_encoder : 0))
        moec_preload_trial_token(&preload->trial, now_ns);
}

/* ---- precision ---- */

#define HIGH    0u /* forms: the copy that is run, and the low one */
#define LOW     1u
#define SKIPPED 2u

/* Where the high copy is, no other is read in its place. */
struct view_residents {
    struct moec_residents base;
    const struct moec_preload *preload;
};

static bool has_high(const struct moec_residents *self, uint32_t layer, uint32_t expert)
{
    const struct moec_preload *preload = ((const struct view_residents *)self)->preload;
    const struct moec_preload_view *view = &preload->setup.view;
    return view->is_present(view->context, name_of(preload, layer, HIGH, expert));
}

static float gate_of(const struct moec_router_answer *answer, uint32_t expert)
{
    for (uint32_t i = 0; i < answer->next.gate.n; i++)
        if (answer->next.gate.experts[i].expert == expert)
            return answer->next.gate.experts[i].score;
    return 0;
}

/* The forms in which one token will ask for the n experts that were ranked, if it chooses them: by eq. 2 on
 * the weights that the gate foretells. What is ranked behind its k choices would be the least of them, with a
 * score of 1. False where all are of the high copy, as what is hinted is with Fate, or the gate foretells
 * nothing. */
static bool choose_forms(const struct moec_preload *preload, uint32_t ordinal,
                         const struct moec_router_answer *answer, uint32_t n, uint8_t *forms)
{
    const struct moec_precision *precision = &preload->setup.precision;
    const struct view_residents residents = {{has_high}, preload};
    const uint32_t top_k = preload->setup.model.top_k, k = n < top_k ? n : top_k;
    uint32_t experts[MOEC_MAX_TOP_K] = {0};
    float weights[MOEC_MAX_TOP_K] = {0};
    bool skips[MOEC_MAX_TOP_K] = {false}, is_low[MOEC_MAX_TOP_K];
    const bool has_scores = precision->kind != MOEC_PRECISION_ONE && precision->kind != MOEC_PRECISION_FATE;
    if (preload->setup.n_form < 2 || !has_scores || answer->n_tok > 1 || answer->next.gate.n == 0 || k == 0)
        return false;
    for (uint32_t i = 0; i < k; i++) {
        experts[i] = preload->lists.ranking[i].expert;
        weights[i] = gate_of(answer, experts[i]);
    }
    moec_precision_decide(precision, &(struct moec_token_experts){k, experts, weights, skips, is_low},
                          &residents.base, ordinal, NULL, 0);
    const uint8_t last = precision->high_score >= 1 ? HIGH : precision->low_score >= 1 ? LOW : SKIPPED;
    for (uint32_t i = 0; i < n; i++)
        forms[i] = i >= k ? last : skips[i] ? SKIPPED : is_low[i] ? LOW : HIGH;
    return true;
}

/* ---- ranking ---- */

/* Whether a walk may go on from the last layer that was ranked: everything that it will probably ask for is
 * there, and the stack has a layer behind it. */
static bool goes_on(const struct moec_preload *preload)
{
    const struct moec_predict_setup *model = &preload->setup.model;
    const uint32_t end = preload->answer.ordinal < model->n_encoder ? model->n_encoder : model->n_layer;
    const struct prefetches *last = prefetches_at(preload, preload->answer.n_ranked, preload->answer.turn);
    if (preload->answer.n_ranked >= layers_ahead(&preload->setup) ||
        preload->answer.ordinal + preload->answer.n_ranked + 1 >= end)
        return false;
    for (uint32_t i = 0; i < last->n_likely; i++)
        if (last->of[i].is_absent)
            return false;
    return true;
}

bool moec_preload_wants_rank(const struct moec_preload *preload, uint32_t ahead)
{
    const bool prefetches =
        preload->setup.bounds.count > 0 || !preload->setup.bounds.is_tried || preload->trial.is_prefetching;
    return prefetches && preload->answer.n_ranked + 1 == ahead && (ahead == 1 || goes_on(preload));
}

/* Of one token the first k, of a batch those that one of its tokens or more are expected to choose. */
static uint32_t likely_count(const struct moec_preload *preload, uint32_t n, uint32_t n_tok)
{
    uint32_t n_likely = 0;
    while (n_likely < n &&
           (n_tok > 1 ? preload->lists.ranking[n_likely].score >= 1 : n_likely < preload->setup.model.top_k))
        n_likely++;
    return n_likely;
}

void moec_preload_rank(struct moec_preload *preload, const struct moec_router_answer *answered,
                       uint32_t ahead)
{
    const struct moec_preload_view *view = &preload->setup.view;
    const struct moec_router_answer answer =
        ahead == 1 ? answer_for_next(&preload->setup.model, answered, preload->answer.ordinal)
                   : answer_for_later(answered, ahead);
    struct prefetches *list = prefetches_at(preload, ahead, preload->answer.turn);
    uint8_t forms[MOEC_MOST_PREDICTED];
    list->ahead = ahead;
    list->target = ahead == 1 ? preload->answer.target : preload->answer.ordinal + ahead;
    list->n_tok = answer.n_tok;
    preload->answer.n_ranked = ahead;
    const uint32_t n =
        preload->predict->ops->rank(preload->predict, &answer, list->target, preload->lists.ranking);
    const uint32_t n_likely = likely_count(preload, n, answer.n_tok);
    const bool is_mixed = choose_forms(preload, list->target, &answer, n, forms);
    list->n = list->n_likely = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (is_mixed && forms[i] == SKIPPED)
            continue;
        struct prefetch *prefetch = &list->of[list->n++];
        const float score = score_probability(preload->lists.ranking[i].score, answer.n_tok);
        const uint32_t bin = (uint32_t)(score * N_BIN);
        *prefetch = (struct prefetch){.expert = preload->lists.ranking[i].expert,
                                      .form = is_mixed ? forms[i] : 0,
                                      .rank = i < preload->rates.n_rank ? i : preload->rates.n_rank - 1,
                                      .bin = bin < N_BIN ? bin : N_BIN - 1,
                                      .score = score};
        prefetch->is_absent = !view->is_present(
            view->context, name_of(preload, list->target, prefetch->form, prefetch->expert));
        prefetch->probability = learned_probability(preload, list, prefetch);
        list->n_likely += i < n_likely;
    }
}

/* ---- prefetches ---- */

static float later(float a, float b)
{
    return a > b ? a : b;
}

/* What is known when a prefetch is weighed, in ns. */
struct moment {
    struct read_time time;
    float window_ns; /* until the next answer */
    float until_ns;  /* until that of the layer that is prefetched at: not before */
    float n_other;   /* misses that are expected beside it */
    float handling_ns;
    uint32_t n_ahead;
};

/* Whether a prefetch pays: the rule and the letters of runtime/policy/schedule/preload.h. */
static bool is_worth_it(const struct moment *at, float p)
{
    const float a = at->time.latency_ns, t = at->time.transfer_ns, w = at->window_ns, v = at->until_ns;
    const float alone = (float)moec_exp_f64(-(double)(at->n_other > 0 ? at->n_other : 0));
    const float busy = (float)at->n_ahead * t, there = later(a, busy) + t, demand = later(busy, w + a);
    const float held_up = later(there, w + a) - demand;
    const float saved_alone = v > w ? v + a + t - later(v, there) - held_up : demand + t - later(w, there);
    return p * (alone * saved_alone + (1 - alone) * (t - held_up)) >
           (1 - p) * (held_up + PRICE * t) + at->handling_ns;
}

static float window_left(struct moec_preload *preload, uint64_t now_ns, uint32_t n_ahead)
{
    if (now_ns < preload->times.answered_ns)
        now_ns = preload->times.answered_ns;
    if (preload->times.asked_ns == 0) {
        preload->times.asked_ns = now_ns;
        preload->times.window = n_ahead < N_WINDOW ? n_ahead : N_WINDOW - 1;
    }
    const float window_ns =
        *window_of(preload, preload->answer.target, preload->times.window) * (float)preload->answer.n_tok;
    const float passed_ns = (float)(now_ns - preload->times.asked_ns);
    return passed_ns < window_ns ? window_ns - passed_ns : 0;
}

/* Until the list's layer answers; window_ns until the next one does. */
static float until(const struct moec_preload *preload, const struct prefetches *list, float window_ns)
{
    for (uint32_t target = preload->answer.target + 1; list->ahead > 1 && target <= list->target; target++)
        window_ns += *window_of(preload, target, 0) * (float)preload->answer.n_tok;
    return window_ns;
}

static float expected_misses(const struct prefetches *list)
{
    float n_missing = 0;
    for (uint32_t i = 0; i < list->n; i++) {
        const struct prefetch *prefetch = &list->of[i];
        n_missing += prefetch->is_absent && !prefetch->is_given ? prefetch->probability : 0;
    }
    return n_missing;
}

/* The first prefetch of first .. end - 1 of a list that is worth it. */
static uint32_t next_of(struct moec_preload *preload, const struct prefetches *list, uint32_t first,
                        uint32_t end, struct moment *at)
{
    const struct moec_preload_view *view = &preload->setup.view;
    const bool is_counted = preload->setup.bounds.count > 0;
    const float n_missing = expected_misses(list);
    at->until_ns = until(preload, list, at->window_ns);
    for (uint32_t i = first; i < end; i++) {
        struct prefetch *prefetch = &list->of[i];
        const uint32_t key = name_of(preload, list->target, prefetch->form, prefetch->expert);
        if (prefetch->is_given || view->is_present(view->context, key))
            continue;
        at->time = read_time(preload, key);
        at->n_other = n_missing - prefetch->probability;
        if (!is_counted && !is_worth_it(at, prefetch->probability))
            continue;
        prefetch->is_given = true;
        preload->answer.n_given++;
        return key;
    }
    return MOEC_EVICT_NONE;
}

/* What is likely of any layer, the nearest first, goes before what is less likely, which waits for the end of
 * the walk. */
static uint32_t next_prefetch(struct moec_preload *preload, struct moment *at)
{
    uint32_t key = MOEC_EVICT_NONE;
    for (uint32_t ahead = 1; ahead <= preload->answer.n_ranked && key == MOEC_EVICT_NONE; ahead++) {
        const struct prefetches *list = prefetches_at(preload, ahead, preload->answer.turn);
        key = next_of(preload, list, 0, list->n_likely, at);
    }
    if (moec_preload_wants_rank(preload, preload->answer.n_ranked + 1))
        return key;
    for (uint32_t ahead = 1; ahead <= preload->answer.n_ranked && key == MOEC_EVICT_NONE; ahead++) {
        const struct prefetches *list = prefetches_at(preload, ahead, preload->answer.turn);
        key = next_of(preload, list, list->n_likely, list->n, at);
    }
    return key;
}

uint32_t moec_preload_next_behind(struct moec_preload *preload, uint64_t now_ns, uint32_t n_ahead)
{
    const bool is_counted = preload->setup.bounds.count > 0;
    struct moment at = {.n_ahead = n_ahead, .handling_ns = (float)preload->setup.bounds.handling_ns};
    const uint32_t known = next_known(preload);
    if (known != MOEC_EVICT_NONE)
        return known;
    if (!preload->answer.exists || (is_counted && preload->answer.n_given >= preload->setup.bounds.count))
        return MOEC_EVICT_NONE;
    if (!is_counted)
        at.window_ns = window_left(preload, now_ns, n_ahead);
    if (!is_counted && at.window_ns <= 0)
        return MOEC_EVICT_NONE;
    return next_prefetch(preload, &at);
}

uint32_t moec_preload_next(struct moec_preload *preload, uint64_t now_ns)
{
    return moec_preload_next_behind(preload, now_ns, 0);
}
