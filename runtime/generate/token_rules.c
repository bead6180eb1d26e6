/* rules_now says which rules speak, for those who apply them and for those who ask whether any does. A rule
 * that is missing there would not be asked where a device chooses. `seen` is all zero between calls: words
 * of the text's tokens are cleared after use. */
#include "runtime/generate/token_rules.h"

#include <math.h>

static uint32_t text_length(const struct moec_text_ids *text)
{
    return text->n_prompt + text->n_generated;
}

static uint32_t text_at(const struct moec_text_ids *text, uint32_t index)
{
    return index < text->n_prompt ? text->prompt[index] : text->generated[index - text->n_prompt];
}

bool moec_token_rules_is_end(const struct moec_token_rules *rules, uint32_t token)
{
    for (uint32_t i = 0; i < rules->n_eos; i++)
        if (rules->eos_ids[i] == token)
            return true;
    return false;
}

/* Each token of the text once, however often it stands there. */
static void penalise_repetition(const struct moec_token_rules *rules, const struct moec_text_ids *text,
                                float *scores)
{
    const float penalty = (float)rules->generation->repetition_penalty;
    for (uint32_t i = 0; i < text_length(text); i++) {
        const uint32_t token = text_at(text, i);
        const uint64_t bit = (uint64_t)1 << token % 64;
        if ((rules->seen[token / 64] & bit) != 0)
            continue;
        rules->seen[token / 64] |= bit;
        scores[token] = scores[token] < 0 ? scores[token] * penalty : scores[token] / penalty;
    }
    for (uint32_t i = 0; i < text_length(text); i++)
        rules->seen[text_at(text, i) / 64] = 0;
}

/* Forbids what followed, earlier in the text, the n - 1 tokens that it ends with. */
static void forbid_ngrams(const struct moec_text_ids *text, uint32_t n, float *scores)
{
    const uint32_t length = text_length(text);
    if (length < n)
        return;
    const uint32_t tail = length - (n - 1);
    for (uint32_t at = 0; at + n <= length; at++) {
        uint32_t same = 0;
        while (same < n - 1 && text_at(text, at + same) == text_at(text, tail + same))
            same++;
        if (same == n - 1)
            scores[text_at(text, at + n - 1)] = -INFINITY;
    }
}

static void suppress(const uint32_t *ids, uint32_t n, float *scores)
{
    for (uint32_t i = 0; i < n; i++)
        scores[ids[i]] = -INFINITY;
}

static void force(const uint32_t *ids, uint32_t n, uint32_t n_vocab, float *scores)
{
    for (uint32_t i = 0; i < n_vocab; i++)
        scores[i] = -INFINITY;
    for (uint32_t i = 0; i < n; i++)
        scores[ids[i]] = 0;
}

/* Rules that say something about the token after a text. */
struct rules_now {
    bool penalises, forbids_ngrams, keeps_on, begins, ends, is_first;
};

static struct rules_now rules_now(const struct moec_token_rules *rules, const struct moec_text_ids *text)
{
    const struct moec_generation *g = rules->generation;
    const uint32_t length = text_length(text);
    const uint32_t least = g->min_new_tokens > 0 ? text->n_prompt + g->min_new_tokens : g->min_length;
    const bool is_shifted = text->n_prompt <= 1 && g->forced_bos != MOEC_NO_TOKEN;
    return (struct rules_now){.penalises = g->repetition_penalty != 1,
                              .forbids_ngrams = g->no_repeat_ngram > 0,
                              .keeps_on = length < least && rules->n_eos > 0,
                              .begins = length == 1 && g->forced_bos != MOEC_NO_TOKEN,
                              .ends = length + 1 == rules->max_length && g->forced_eos.n > 0,
                              .is_first =
                                  length == text->n_prompt + (is_shifted ? 1 : 0) && g->begin_suppress.n > 0};
}

bool moec_token_rules_are_idle(const struct moec_token_rules *rules, const struct moec_text_ids *text)
{
    const struct rules_now now = rules_now(rules, text);
    return !now.penalises && !now.forbids_ngrams && !now.keeps_on && !now.begins && !now.ends &&
           !now.is_first && rules->generation->suppress.n == 0;
}

void moec_token_rules_apply(const struct moec_token_rules *rules, const struct moec_text_ids *text,
                            float *scores)
{
    const struct moec_generation *g = rules->generation;
    const struct rules_now now = rules_now(rules, text);
    if (now.penalises)
        penalise_repetition(rules, text, scores);
    if (now.forbids_ngrams)
        forbid_ngrams(text, g->no_repeat_ngram, scores);
    if (now.keeps_on)
        suppress(rules->eos_ids, rules->n_eos, scores);
    if (now.begins)
        force(&g->forced_bos, 1, rules->n_vocab, scores);
    if (now.ends)
        force(g->forced_eos.ids, g->forced_eos.n, rules->n_vocab, scores);
    suppress(g->suppress.ids, g->suppress.n, scores);
    if (now.is_first)
        suppress(g->begin_suppress.ids, g->begin_suppress.n, scores);
}
