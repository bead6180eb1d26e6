/* There are enough candidates for n_beam running texts even where every beam could end. -1e9 stands for "out
 * of the race": a finite number, so that sums still compare, as in transformers. Two sets of rows change
 * places at each step, as new texts are written from old ones. Finished texts are chosen after that, from
 * the old rows. A text that falls out gives its row to the one that comes in. */
#include "runtime/generate/beam_search.h"

#include "formats/base/elementary.h"
#include "formats/base/memory.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* What stands for "out of the race" in the scores of transformers. */
#define OUT 1e9f

#define MAX_CANDIDATES (MOEC_MAX_BEAMS * (1 + MOEC_MAX_EOS))

struct candidate {
    float score;
    uint32_t parent;
    uint32_t token;
    bool is_end; /* nothing follows it */
};

struct finished {
    float score;
    bool is_finished; /* false: a place that no text has taken */
    uint32_t n_tokens;
    uint32_t row; /* in `texts` */
};

struct moec_beams {
    struct moec_generation generation;
    uint32_t eos_ids[MOEC_MAX_EOS];
    uint32_t n_eos, n_vocab, n_candidate;
    uint32_t room; /* tokens of a row */
    uint32_t n_tokens;
    uint32_t n_generated;
    uint32_t *running;  /* (n_beam, room), owned */
    uint32_t *previous; /* (n_beam, room), owned: the rows before the last advance */
    uint32_t *texts;    /* (n_beam, room) of finished texts, owned */
    float scores[MOEC_MAX_BEAMS];
    uint32_t parents[MOEC_MAX_BEAMS];
    struct finished finished[MOEC_MAX_BEAMS]; /* best first */
    struct candidate candidates[MAX_CANDIDATES];
    bool may_improve;
};

uint64_t moec_beams_bytes(uint32_t n_beam, uint32_t max_new_tokens)
{
    return sizeof(struct moec_beams) + (uint64_t)3 * n_beam * max_new_tokens * sizeof(uint32_t);
}

enum moec_status moec_beams_create(const struct moec_generation *generation, const uint32_t *eos_ids,
                                   uint32_t n_eos, uint32_t n_vocab, uint32_t max_new_tokens,
                                   struct moec_beams **out, struct moec_error *err)
{
    void *memory = NULL;
    enum moec_status status = MOEC_OK;
    const uint32_t each = n_eos > 1 ? 1 + n_eos : 2;
    const uint64_t n_ids = (uint64_t)generation->n_beam * max_new_tokens;
    if (n_vocab < each || n_eos > MOEC_MAX_EOS)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "a beam search looks at %" PRIu32 " tokens for each beam, but the vocabulary has "
                         "only %" PRIu32 " tokens",
                         each, n_vocab);
    MOEC_TRY(moec_alloc(&memory, 1, sizeof(struct moec_beams), "a beam search", err));
    struct moec_beams *beams = memory;
    beams->generation = *generation;
    beams->n_eos = n_eos;
    beams->n_vocab = n_vocab;
    beams->n_candidate = each * generation->n_beam;
    beams->room = max_new_tokens;
    if (n_eos > 0)
        memcpy(beams->eos_ids, eos_ids, n_eos * sizeof *eos_ids);
    uint32_t **const rows[] = {&beams->running, &beams->previous, &beams->texts};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        MOEC_TRY_OUT(moec_alloc((void **)rows[i], n_ids, sizeof(uint32_t), "texts of a beam search", err));
    *out = beams;
    beams = NULL;
out:
    moec_beams_free(beams);
    return status;
}

void moec_beams_free(struct moec_beams *beams)
{
    if (beams == NULL)
        return;
    free(beams->running);
    free(beams->previous);
    free(beams->texts);
    free(beams);
}

void moec_beams_start(struct moec_beams *beams, uint32_t n_tokens)
{
    beams->n_tokens = n_tokens < beams->room ? n_tokens : beams->room;
    beams->n_generated = 0;
    beams->may_improve = true;
    for (uint32_t i = 0; i < beams->generation.n_beam; i++) {
        /* All beams hold the same text at first, and only one of them may be continued. */
        beams->scores[i] = i == 0 ? 0 : -OUT;
        beams->parents[i] = i;
        beams->finished[i] = (struct finished){.score = -OUT, .row = i};
    }
}

/* ---- one step ---- */

/* Puts a candidate into its place among n; the last one falls out when all places are taken. */
static uint32_t insert_candidate(struct moec_beams *beams, uint32_t n, struct candidate candidate)
{
    uint32_t at = n < beams->n_candidate ? n : beams->n_candidate - 1;
    while (at > 0 && beams->candidates[at - 1].score < candidate.score) {
        beams->candidates[at] = beams->candidates[at - 1];
        at--;
    }
    beams->candidates[at] = candidate;
    return n < beams->n_candidate ? n + 1 : n;
}

/* The best continuations, best first. */
static void find_candidates(struct moec_beams *beams, const float *log_probs)
{
    uint32_t n = 0;
    for (uint32_t beam = 0; beam < beams->generation.n_beam; beam++) {
        for (uint32_t token = 0; token < beams->n_vocab; token++) {
            const float score = log_probs[(size_t)beam * beams->n_vocab + token] + beams->scores[beam];
            if (n < beams->n_candidate || score > beams->candidates[n - 1].score)
                n = insert_candidate(beams, n,
                                     (struct candidate){.score = score, .parent = beam, .token = token});
        }
    }
    const bool is_last = beams->n_generated + 1 >= beams->n_tokens;
    for (uint32_t i = 0; i < beams->n_candidate; i++) {
        struct candidate *candidate = &beams->candidates[i];
        candidate->is_end = is_last;
        for (uint32_t eos = 0; eos < beams->n_eos && !candidate->is_end; eos++)
            candidate->is_end = beams->eos_ids[eos] == candidate->token;
    }
}

static void write_text(const struct moec_beams *beams, const uint32_t *rows,
                       const struct candidate *candidate, uint32_t *row)
{
    memcpy(row, rows + (size_t)candidate->parent * beams->room, beams->n_generated * sizeof *row);
    row[beams->n_generated] = candidate->token;
}

/* The best that do not end go on. Candidates lie in order, so those come first, then those that ended. */
static void choose_running(struct moec_beams *beams)
{
    float scores[MAX_CANDIDATES];
    bool is_taken[MAX_CANDIDATES] = {false};
    uint32_t *rows = beams->running;
    beams->running = beams->previous;
    beams->previous = rows;
    for (uint32_t i = 0; i < beams->n_candidate; i++)
        scores[i] = beams->candidates[i].score + (beams->candidates[i].is_end ? -OUT : 0);
    for (uint32_t beam = 0; beam < beams->generation.n_beam; beam++) {
        uint32_t best = MAX_CANDIDATES;
        for (uint32_t i = 0; i < beams->n_candidate; i++)
            if (!is_taken[i] && (best == MAX_CANDIDATES || scores[i] > scores[best]))
                best = i;
        is_taken[best] = true;
        beams->scores[beam] = scores[best];
        beams->parents[beam] = beams->candidates[best].parent;
        write_text(beams, beams->previous, &beams->candidates[best],
                   beams->running + (size_t)beam * beams->room);
    }
}

/* n ^ power, as wide as transformers takes it before it rounds to F32. */
static float length_divisor(uint32_t n, double power)
{
    if (power == 0 || n == 1)
        return 1;
    return power == 1 ? (float)n : (float)moec_exp_f64(power * moec_log_f64(n));
}

static bool all_finished(const struct moec_beams *beams)
{
    for (uint32_t i = 0; i < beams->generation.n_beam; i++)
        if (!beams->finished[i].is_finished)
            return false;
    return true;
}

/* Texts that have just ended against those that had before; the rows before the advance are in `previous`. */
static void update_finished(struct moec_beams *beams)
{
    const uint32_t n_beam = beams->generation.n_beam;
    const float divisor = length_divisor(beams->n_generated + 1, beams->generation.length_penalty);
    const bool is_full = all_finished(beams) && beams->generation.early_stopping == MOEC_STOP_EARLY;
    for (uint32_t i = 0; i < n_beam; i++) {
        const struct candidate *candidate = &beams->candidates[i];
        float score = candidate->score / divisor;
        if (!candidate->is_end || is_full || !beams->may_improve)
            continue;
        uint32_t at = n_beam;
        while (at > 0 && beams->finished[at - 1].score < score)
            at--;
        if (at == n_beam)
            continue;
        const uint32_t row = beams->finished[n_beam - 1].row;
        memmove(beams->finished + at + 1, beams->finished + at, (n_beam - 1 - at) * sizeof *beams->finished);
        beams->finished[at] = (struct finished){
            .score = score, .is_finished = true, .n_tokens = beams->n_generated + 1, .row = row};
        write_text(beams, beams->previous, candidate, beams->texts + (size_t)row * beams->room);
    }
}

/* Whether the best running beam may still become better than the worst finished text. */
static bool can_improve(const struct moec_beams *beams)
{
    const struct moec_generation *g = &beams->generation;
    const bool at_greatest = g->early_stopping == MOEC_STOP_NEVER && g->length_penalty > 0;
    const float best = beams->scores[0] /
                       length_divisor(at_greatest ? beams->n_tokens : beams->n_generated, g->length_penalty);
    const float worst = all_finished(beams) ? beams->finished[g->n_beam - 1].score : -OUT;
    return best > worst;
}

bool moec_beams_advance(struct moec_beams *beams, const float *log_probs)
{
    bool all_end = true;
    find_candidates(beams, log_probs);
    for (uint32_t i = 0; i < beams->n_candidate; i++)
        all_end = all_end && beams->candidates[i].is_end;
    choose_running(beams);
    update_finished(beams);
    beams->n_generated++;
    beams->may_improve = beams->may_improve && can_improve(beams);
    const bool is_full = all_finished(beams) && beams->generation.early_stopping == MOEC_STOP_EARLY;
    return beams->may_improve && !is_full && !all_end;
}

/* ---- what is there ---- */

uint32_t moec_beams_length(const struct moec_beams *beams)
{
    return beams->n_generated;
}

const uint32_t *moec_beams_text(const struct moec_beams *beams, uint32_t beam)
{
    return beams->running + (size_t)beam * beams->room;
}

const uint32_t *moec_beams_parents(const struct moec_beams *beams)
{
    return beams->parents;
}

const uint32_t *moec_beams_best(const struct moec_beams *beams, uint32_t *n_tokens, float *score)
{
    const struct finished *best = &beams->finished[0];
    *n_tokens = best->is_finished ? best->n_tokens : 0;
    *score = best->score;
    return beams->texts + (size_t)best->row * beams->room;
}
