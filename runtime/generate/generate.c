/* The session holds the text but for its last token, which runs with the next step. A draft adds rows of
 * logits: while chosen tokens agree with it the next row is there. The first that does not takes the session
 * back to what stands. A token that is chosen with its step leaves the sampler as it was until the token is
 * taken. Of beams the first that continues a sequence takes it over; others copy it from the prompt's end
 * on. */
#include "runtime/generate/generate.h"

#include "formats/base/clock.h"
#include "formats/base/elementary.h"
#include "formats/base/memory.h"
#include "runtime/forward/moe/decide.h"
#include "runtime/generate/beam_search.h"
#include "runtime/generate/draft_pace.h"
#include "runtime/generate/generate_test_hook.h"
#include "runtime/generate/sampler.h"
#include "runtime/generate/token_rules.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define DRAFT_ROWS (MOERT_DRAFT_TOKENS + 1u) /* of logits, at most in a step */
_Static_assert(MOERT_DRAFT_TOKENS == MOEC_DRAFT_MOST, "drafts have one greatest length");

/* What a generator with drafts keeps beside its text. */
struct drafts {
    struct moec_draft_lookup lookup;
    struct moec_draft_pace pace;
    uint32_t tokens[MOERT_DRAFT_TOKENS]; /* of the last step */
    uint32_t n;                          /* of them */
    uint32_t n_equal;                    /* as the lookup answered */
    uint32_t n_right;                    /* of them, as far as tokens were chosen */
    uint64_t n_drafted, n_accepted;
};

/* Owned. */
struct arrays {
    float *logits;       /* (rows of a step, n_vocab); NULL where the caller gives them */
    float *exponentials; /* (n_vocab); NULL without beams */
    uint32_t *prompt;    /* (n_context) */
    uint32_t *generated; /* (n_context): the last needs no position, and a prompt has one; without beams */
};

/* The text's room, and how far it is. */
struct text {
    uint32_t n_context;
    uint32_t n_prompt;
    uint32_t n_tokens; /* asked for, as far as the context lets them */
    bool is_cut;       /* by the context */
    uint32_t n_generated;
    uint64_t n_run, n_steps;
};

/* The next token, without beams. */
struct next {
    float *row; /* its logits, NULL where there are none */
    /* Chosen with the step that ran the last one, and the sampler behind it. */
    bool is_chosen;
    struct moec_chosen chosen;
    struct moert_sampler sampler;
};

/* With beams. */
struct search {
    struct moec_beams *beams; /* owned */
    /* Of the running beams, best first; owned, but the generator's session. */
    struct moec_session *sequences[MOEC_MAX_BEAMS];
    bool is_done;
    uint32_t n_given; /* of the best text */
    float score;
};

struct moec_generator {
    struct moec_session *session; /* borrowed: the first beam */
    struct {
        const struct moec_config *config;
        const struct moec_kernels *kernels;
    } model;
    struct moec_generation generation;
    struct moert_sampler sampler;
    struct moec_step_hooks hooks;
    struct moec_token_rules rules;
    struct arrays arrays;
    struct text text;
    struct next next;
    struct drafts *drafts; /* owned; NULL without drafts */
    struct search search;
};

static uint64_t seen_words(const struct moec_config *config)
{
    return (config->n_vocab + (uint64_t)63) / 64;
}

uint64_t moec_generator_bytes(const struct moec_config *config, uint32_t n_context, uint32_t n_beam,
                              bool drafts)
{
    const uint64_t row = (uint64_t)config->n_vocab * sizeof(float);
    const uint64_t ids = (uint64_t)2 * n_context * sizeof(uint32_t);
    uint64_t n_bytes = sizeof(struct moec_generator) + ids + row + seen_words(config) * sizeof(uint64_t);
    if (drafts)
        n_bytes += sizeof(struct drafts) + ids + MOERT_DRAFT_TOKENS * row;
    if (n_beam > 1)
        n_bytes += n_beam * row + moec_beams_bytes(n_beam, n_context) +
                   (n_beam - 1) * moec_session_beside_bytes(config, n_context);
    return n_bytes;
}

static enum moec_status create_beams(struct moec_generator *g, struct moec_error *err)
{
    const uint32_t n_beam = g->generation.n_beam;
    MOEC_TRY(moec_alloc_aligned((void **)&g->arrays.exponentials, g->model.config->n_vocab,
                                sizeof *g->arrays.exponentials, "probabilities", err));
    MOEC_TRY(moec_beams_create(&g->generation, g->rules.eos_ids, g->rules.n_eos, g->model.config->n_vocab,
                               g->text.n_context, &g->search.beams, err));
    g->search.sequences[0] = g->session;
    for (uint32_t i = 1; i < n_beam; i++)
        MOEC_TRY(moec_session_beside(g->session, &g->search.sequences[i], err));
    return MOEC_OK;
}

/* Of an encoder-decoder model the source is looked through too. */
static enum moec_status create_drafts(struct moec_generator *g, struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, 1, sizeof(struct drafts), "drafts", err));
    g->drafts = memory;
    *g->drafts = (struct drafts){0};
    return moec_draft_lookup_create(2 * g->text.n_context, &g->drafts->lookup, err);
}

static enum moec_status check_options(const struct moec_generator_options *options, uint32_t n_vocab,
                                      struct moec_error *err)
{
    const struct moec_generation *generation = options->generation;
    MOEC_TRY(moec_generation_check(generation, n_vocab, "the generation", err));
    if (generation->n_beam > 1 && options->sampler.temperature > 0)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "a beam search of %" PRIu32 " beams does not sample: a "
                         "temperature needs a single beam",
                         generation->n_beam);
    if (options->is_given && (generation->n_beam > 1 || options->drafts))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "a generator that takes logits from its caller needs a single beam and no drafts");
    if (generation->n_beam > 1 && options->drafts)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "a beam search of %" PRIu32 " beams continues several texts at "
                         "once: drafts need a single beam",
                         generation->n_beam);
    return MOEC_OK;
}

enum moec_status moec_generator_create(struct moec_session *session,
                                       const struct moec_generator_options *options,
                                       struct moec_generator **out, struct moec_error *err)
{
    void *memory = NULL;
    enum moec_status status = MOEC_OK;
    const struct moec_forward *forward = moec_session_forward(session);
    const struct moec_config *config = &forward->model->config;
    const struct moec_generation *generation = options->generation;
    MOEC_TRY(check_options(options, config->n_vocab, err));
    MOEC_TRY(moec_alloc(&memory, 1, sizeof(struct moec_generator), "a generator", err));
    struct moec_generator *g = memory;
    *g = (struct moec_generator){.session = session,
                                 .model = {.config = config, .kernels = forward->kernels},
                                 .generation = *generation,
                                 .sampler = options->sampler,
                                 .hooks = options->hooks,
                                 .text.n_context = moec_session_context(session)};
    g->rules = (struct moec_token_rules){.generation = &g->generation,
                                         .eos_ids = config->ids.eos,
                                         .n_eos = options->ignore_eos ? 0 : config->ids.n_eos,
                                         .n_vocab = config->n_vocab};
    MOEC_TRY_OUT(moec_alloc((void **)&g->rules.seen, seen_words(config), sizeof *g->rules.seen,
                            "tokens that a text has", err));
    MOEC_TRY_OUT(
        moec_alloc((void **)&g->arrays.prompt, g->text.n_context, sizeof *g->arrays.prompt, "a prompt", err));
    MOEC_TRY_OUT(moec_alloc((void **)&g->arrays.generated, g->text.n_context, sizeof *g->arrays.generated,
                            "generated tokens", err));
    if (!options->is_given)
        MOEC_TRY_OUT(moec_alloc_aligned((void **)&g->arrays.logits,
                                        options->drafts ? DRAFT_ROWS : generation->n_beam,
                                        config->n_vocab * sizeof(float), "logits", err));
    if (generation->n_beam > 1)
        MOEC_TRY_OUT(create_beams(g, err));
    if (options->drafts)
        MOEC_TRY_OUT(create_drafts(g, err));
    *out = g;
    g = NULL;
out:
    moec_generator_free(g);
    return status;
}

void moec_generator_free(struct moec_generator *g)
{
    if (g == NULL)
        return;
    for (uint32_t i = 0; i < MOEC_MAX_BEAMS; i++)
        if (g->search.sequences[i] != g->session)
            moec_session_free(g->search.sequences[i]);
    moec_beams_free(g->search.beams);
    if (g->drafts != NULL)
        moec_draft_lookup_release(&g->drafts->lookup);
    free(g->drafts);
    free(g->rules.seen);
    free(g->arrays.prompt);
    free(g->arrays.generated);
    free(g->arrays.logits);
    free(g->arrays.exponentials);
    free(g);
}

struct moert_generation moec_generation_to_public(const struct moec_generation *generation)
{
    return (struct moert_generation){.n_tokens = MOERT_TOKENS_OF_MODEL,
                                     .n_beams = generation->n_beam,
                                     .length_penalty = generation->length_penalty,
                                     .repetition_penalty = generation->repetition_penalty,
                                     .early_stopping = (enum moert_early_stopping)generation->early_stopping,
                                     .no_repeat_ngram = generation->no_repeat_ngram,
                                     .sampler = moert_sampler_greedy()};
}

void moec_generation_take_public(struct moec_generation *generation, const struct moert_generation *asked)
{
    generation->n_beam = asked->n_beams;
    generation->length_penalty = asked->length_penalty;
    generation->repetition_penalty = asked->repetition_penalty;
    generation->early_stopping = (enum moec_early_stopping)asked->early_stopping;
    generation->no_repeat_ngram = asked->no_repeat_ngram;
    if (asked->min_tokens > 0)
        generation->min_new_tokens = asked->min_tokens;
}

static void begin_step(const struct moec_generator *g)
{
    if (g->hooks.begin != NULL)
        g->hooks.begin(g->hooks.context);
}

static void end_step(const struct moec_generator *g)
{
    if (g->hooks.end != NULL)
        g->hooks.end(g->hooks.context);
}

/* Whether the next token can be chosen where the model runs: nobody looks at its logits. */
static bool chooses_with_step(const struct moec_generator *g)
{
    const struct moec_text_ids text = {g->arrays.prompt, g->text.n_prompt, g->arrays.generated,
                                       g->text.n_generated};
    return moec_forward_chooses(moec_session_forward(g->session)) && g->search.beams == NULL &&
           g->text.n_generated < g->text.n_tokens && moec_sampler_is_draw(&g->sampler) &&
           moec_token_rules_are_idle(&g->rules, &text);
}

static enum moec_status read_and_choose(struct moec_generator *g, const uint32_t *tokens, uint32_t n,
                                        struct moec_error *err)
{
    g->next.sampler = g->sampler;
    const struct moec_draw how = moec_sampler_draw(&g->next.sampler);
    const enum moec_status status =
        moec_session_step_choose(g->session, tokens, n, &how, &g->next.chosen, err);
    g->next.is_chosen = status == MOEC_OK;
    return status;
}

static enum moec_status read_for_logits(struct moec_generator *g, const uint32_t *tokens, uint32_t n,
                                        uint32_t first, struct moec_error *err)
{
    uint32_t at[DRAFT_ROWS];
    for (uint32_t i = 0; i < n - first; i++)
        at[i] = first + i;
    const enum moec_status status =
        moec_session_step(g->session, tokens, n, at, n - first, g->arrays.logits, err);
    g->next.row = status == MOEC_OK ? g->arrays.logits : NULL;
    return status;
}

/* Reads tokens into the session; the first row of logits is that after token `first`, others follow. Or the
 * token after the only row is chosen at once. */
static enum moec_status read_tokens(struct moec_generator *g, const uint32_t *tokens, uint32_t n,
                                    uint32_t first, struct moec_error *err)
{
    g->next.row = NULL;
    g->next.is_chosen = false;
    begin_step(g);
    const enum moec_status status = first + 1 == n && chooses_with_step(g)
                                        ? read_and_choose(g, tokens, n, err)
                                        : read_for_logits(g, tokens, n, first, err);
    end_step(g);
    g->text.n_run += n;
    return status;
}

/* The prompt is the source; the target begins with the model's own token. */
static enum moec_status encode(struct moec_generator *g, const uint32_t *prompt, uint32_t n_prompt,
                               struct moec_error *err)
{
    moec_session_count_capacity(g->session, false);
    begin_step(g);
    const enum moec_status status = moec_session_encode(g->session, prompt, n_prompt, err);
    end_step(g);
    g->text.n_run += n_prompt;
    return status;
}

static void start_drafts(struct moec_generator *g, const uint32_t *prompt, uint32_t n_prompt)
{
    struct drafts *drafts = g->drafts;
    drafts->n = drafts->n_right = 0;
    drafts->n_drafted = drafts->n_accepted = 0;
    moec_draft_pace_reset(&drafts->pace);
    moec_draft_lookup_clear(&drafts->lookup);
    moec_draft_lookup_append(&drafts->lookup, prompt, n_prompt);
}

/* Tokens at the start of a prompt that the session holds: of the text before this one. The last token is read
 * in any case, for its logits. */
static uint32_t count_kept(const struct moec_generator *g, const uint32_t *prompt, uint32_t n_prompt)
{
    const uint32_t held = moec_session_keepable(g->session, UINT32_MAX);
    uint32_t n = 0;
    if (g->search.beams != NULL)
        return 0;
    while (n + 1 < n_prompt && n < held && n < g->text.n_prompt + g->text.n_generated &&
           prompt[n] ==
               (n < g->text.n_prompt ? g->arrays.prompt[n] : g->arrays.generated[n - g->text.n_prompt]))
        n++;
    return n;
}

/* Takes a prompt, of which nothing has been read yet. */
static enum moec_status begin_text(struct moec_generator *g, const uint32_t *prompt, uint32_t n_prompt,
                                   uint32_t n_tokens, struct moec_error *err)
{
    if (n_prompt == 0)
        return moec_fail(err, MOEC_ERR_USAGE, "the prompt is empty: this model can only continue a text");
    if (n_prompt > g->text.n_context)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "the prompt has %" PRIu32 " tokens, but the context has only %" PRIu32 ": %s",
                         n_prompt, g->text.n_context,
                         g->text.n_context < g->model.config->n_position
                             ? "raise --ctx or shorten the prompt"
                             : "shorten the prompt: the model supports at most this context");
    const bool has_encoder = moec_config_is_encoder_decoder(g->model.config);
    g->text.n_prompt = has_encoder ? 1 : n_prompt;
    const uint32_t room = g->text.n_context - g->text.n_prompt + 1;
    memcpy(g->arrays.prompt, has_encoder ? &g->model.config->ids.decoder_start : prompt,
           g->text.n_prompt * sizeof *prompt);
    g->text.is_cut = n_tokens > room;
    g->text.n_tokens = g->text.is_cut ? room : n_tokens;
    g->rules.max_length = g->text.n_prompt + g->text.n_tokens;
    g->text.n_generated = g->search.n_given = 0;
    g->search.is_done = false;
    g->search.score = 0;
    g->text.n_run = g->text.n_steps = 0;
    g->next.row = NULL;
    g->next.is_chosen = false;
    return MOEC_OK;
}

static enum moec_status start(struct moec_generator *g, const uint32_t *prompt, uint32_t n_prompt,
                              uint32_t n_tokens, bool keeps, uint32_t *n_kept, struct moec_error *err)
{
    const bool has_encoder = moec_config_is_encoder_decoder(g->model.config);
    const uint32_t kept = keeps ? count_kept(g, prompt, n_prompt) : 0;
    *n_kept = 0;
    if (g->arrays.logits == NULL)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "this generator takes logits from its caller, so it cannot read a prompt");
    MOEC_TRY(begin_text(g, prompt, n_prompt, n_tokens, err));
    moec_session_truncate(g->session, kept);
    if (g->drafts != NULL)
        start_drafts(g, prompt, n_prompt);
    if (has_encoder)
        MOEC_TRY(encode(g, prompt, n_prompt, err));
    moec_session_set_prompt(g->session, has_encoder ? 0 : g->text.n_prompt);
    *n_kept = kept;
    return read_tokens(g, g->arrays.prompt + kept, g->text.n_prompt - kept, g->text.n_prompt - kept - 1, err);
}

enum moec_status moec_generator_start(struct moec_generator *g, const uint32_t *prompt, uint32_t n_prompt,
                                      uint32_t n_tokens, struct moec_error *err)
{
    uint32_t n_kept = 0;
    return start(g, prompt, n_prompt, n_tokens, false, &n_kept, err);
}

enum moec_status moec_generator_continue(struct moec_generator *g, const uint32_t *prompt, uint32_t n_prompt,
                                         uint32_t n_tokens, uint32_t *n_kept, struct moec_error *err)
{
    return start(g, prompt, n_prompt, n_tokens, true, n_kept, err);
}

static enum moec_generated why_over(const struct moec_generator *g)
{
    return g->text.is_cut ? MOEC_GENERATED_CONTEXT : MOEC_GENERATED_LENGTH;
}

static enum moec_status check_finite(double value, struct moec_error *err)
{
    if (isfinite(value))
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_FORMAT,
                     "no token has a finite score: the logits are not finite, or every token is suppressed");
}

/* ---- without beams ---- */

/* Tokens to draft after the last one, into drafts->tokens. */
static uint32_t draft(struct moec_generator *g)
{
    struct drafts *drafts = g->drafts;
    const uint32_t n_chunk = moec_session_forward(g->session)->max_tokens;
    /* The token that the step has to run takes one place, and gives one of the tokens that are left. */
    uint32_t most = (n_chunk < DRAFT_ROWS ? n_chunk : DRAFT_ROWS) - 1;
    if (most > g->text.n_tokens - g->text.n_generated - 1)
        most = g->text.n_tokens - g->text.n_generated - 1;
    drafts->n_equal = moec_draft_lookup_find(&drafts->lookup, most, drafts->tokens);
    return moec_draft_pace_choose(&drafts->pace, drafts->n_equal, drafts->n_equal > 0 ? most : 0);
}

/* Runs the model on the last token, with a draft behind it. */
static enum moec_status run_last(struct moec_generator *g, struct moec_error *err)
{
    struct drafts *drafts = g->drafts;
    uint32_t tokens[DRAFT_ROWS] = {g->arrays.generated[g->text.n_generated - 1]}, n = 0;
    if (drafts != NULL) {
        n = draft(g);
        memcpy(tokens + 1, drafts->tokens, n * sizeof *tokens);
    }
    const uint64_t begin_ns = moec_now_ns();
    MOEC_TRY(read_tokens(g, tokens, n + 1, 0, err));
    g->text.n_steps++;
    if (drafts != NULL) {
        moec_draft_pace_step(&drafts->pace, n, moec_now_ns() - begin_ns);
        drafts->n = n;
        drafts->n_right = 0;
        drafts->n_drafted += n;
    }
    return MOEC_OK;
}

/* After a token was chosen: whether the last step ran it, so that the next one's logits are there. */
static void find_row(struct moec_generator *g, uint32_t token)
{
    struct drafts *drafts = g->drafts;
    g->next.row = NULL;
    if (drafts == NULL)
        return;
    moec_draft_lookup_append(&drafts->lookup, &token, 1);
    if (drafts->n_right == drafts->n)
        return;
    const bool is_right = token == drafts->tokens[drafts->n_right];
    moec_draft_pace_answer(&drafts->pace, drafts->n_equal, is_right);
    if (is_right && g->text.n_generated < g->text.n_tokens) {
        drafts->n_right++;
        drafts->n_accepted++;
        g->next.row = g->arrays.logits + (size_t)drafts->n_right * g->model.config->n_vocab;
    } else {
        drafts->n = drafts->n_right;
        moec_session_truncate(g->session, g->text.n_prompt + g->text.n_generated - 1);
    }
}

static enum moec_status take_chosen(struct moec_generator *g, uint32_t *token, struct moec_error *err)
{
    MOEC_TRY(check_finite(g->next.chosen.largest, err));
    g->next.is_chosen = false;
    g->sampler = g->next.sampler;
    *token = g->next.chosen.token;
    return MOEC_OK;
}

static enum moec_status choose_from(struct moec_generator *g, float *row, uint32_t *token,
                                    struct moec_error *err)
{
    const struct moec_text_ids text = {g->arrays.prompt, g->text.n_prompt, g->arrays.generated,
                                       g->text.n_generated};
    moec_token_rules_apply(&g->rules, &text, row);
    const float largest = g->model.kernels->max(row, g->model.config->n_vocab);
    MOEC_TRY(check_finite(largest, err));
    *token = moert_sampler_next(&g->sampler, row, g->model.config->n_vocab);
    return MOEC_OK;
}

/* The token is the next one of the text. */
static enum moec_generated append_token(struct moec_generator *g, uint32_t token)
{
    g->arrays.generated[g->text.n_generated++] = token;
    if (!moec_token_rules_is_end(&g->rules, token))
        return MOEC_GENERATED_TOKEN;
    g->text.n_tokens = g->text.n_generated;
    return MOEC_GENERATED_END;
}

static enum moec_status next_token(struct moec_generator *g, uint32_t *token, enum moec_generated *what,
                                   struct moec_error *err)
{
    if (g->text.n_generated == g->text.n_tokens) {
        *what = why_over(g);
        return MOEC_OK;
    }
    if (g->next.row == NULL && !g->next.is_chosen)
        MOEC_TRY(run_last(g, err));
    if (g->next.is_chosen)
        MOEC_TRY(take_chosen(g, token, err));
    else
        MOEC_TRY(choose_from(g, g->next.row, token, err));
    *what = append_token(g, *token);
    find_row(g, *token);
    return MOEC_OK;
}

/* ---- of logits that are given ---- */

enum moec_status moec_generator_begin(struct moec_generator *g, const uint32_t *prompt, uint32_t n_prompt,
                                      uint32_t n_tokens, struct moec_error *err)
{
    if (g->arrays.logits != NULL || moec_config_is_encoder_decoder(g->model.config))
        return moec_fail(err, MOEC_ERR_USAGE, "this generator runs the model itself: start it with a prompt");
    return begin_text(g, prompt, n_prompt, n_tokens, err);
}

enum moec_status moec_generator_choose(struct moec_generator *g, float *logits, uint32_t *token,
                                       enum moec_generated *what, struct moec_error *err)
{
    *what = why_over(g);
    if (g->text.n_generated == g->text.n_tokens)
        return MOEC_OK;
    MOEC_TRY(choose_from(g, logits, token, err));
    *what = append_token(g, *token);
    return MOEC_OK;
}

/* ---- beams ---- */

/* Logits of a row to log probabilities: (x - max) - log(sum of exp(x - max)), in F32 as torch has it. */
static enum moec_status to_log_probs(struct moec_generator *g, float *row, struct moec_error *err)
{
    const uint32_t n_vocab = g->model.config->n_vocab;
    const float largest = g->model.kernels->max(row, n_vocab);
    MOEC_TRY(check_finite(largest, err));
    const float sum = g->model.kernels->exp_sum(row, largest, n_vocab, g->arrays.exponentials);
    MOEC_TRY(check_finite(sum, err));
    const float log_sum = (float)moec_log_f64(sum);
    for (uint32_t i = 0; i < n_vocab; i++)
        row[i] = (row[i] - largest) - log_sum;
    return MOEC_OK;
}

/* Lets sequences follow the beams that were chosen. The first that continues a beam takes its sequence over;
 * others get a copy in a sequence that nobody continues. All hold the same up to position `shared`. */
static void reorder(struct moec_generator *g, uint32_t shared)
{
    const uint32_t n_beam = g->generation.n_beam;
    const uint32_t *parents = moec_beams_parents(g->search.beams);
    struct moec_session *old[MOEC_MAX_BEAMS];
    bool is_taken[MOEC_MAX_BEAMS] = {false};
    memcpy(old, g->search.sequences, sizeof old);
    for (uint32_t i = 0; i < n_beam; i++) {
        g->search.sequences[i] = is_taken[parents[i]] ? NULL : old[parents[i]];
        is_taken[parents[i]] = true;
    }
    for (uint32_t i = 0, spare = 0; i < n_beam; i++) {
        if (g->search.sequences[i] != NULL)
            continue;
        while (is_taken[spare])
            spare++;
        is_taken[spare] = true;
        moec_session_copy_after(old[spare], old[parents[i]], shared);
        g->search.sequences[i] = old[spare];
    }
}

/* The first step: all beams hold the prompt, which stands in the session alone. */
static void spread(struct moec_generator *g)
{
    for (uint32_t i = 1; i < g->generation.n_beam; i++)
        memcpy(g->arrays.logits + (size_t)i * g->model.config->n_vocab, g->arrays.logits,
               g->model.config->n_vocab * sizeof(float));
    for (uint32_t i = 0; i < g->generation.n_beam; i++)
        if (g->search.sequences[i] != g->session)
            moec_session_copy(g->search.sequences[i], g->session);
}

static enum moec_status search(struct moec_generator *g, struct moec_error *err)
{
    const uint32_t n_beam = g->generation.n_beam, n_vocab = g->model.config->n_vocab;
    uint32_t tokens[MOEC_MAX_BEAMS];
    moec_beams_start(g->search.beams, g->text.n_tokens);
    spread(g);
    for (;;) {
        const uint32_t n_generated = moec_beams_length(g->search.beams);
        for (uint32_t i = 0; i < n_beam; i++) {
            const struct moec_text_ids text = {g->arrays.prompt, g->text.n_prompt,
                                               moec_beams_text(g->search.beams, i), n_generated};
            MOEC_TRY(to_log_probs(g, g->arrays.logits + (size_t)i * n_vocab, err));
            moec_token_rules_apply(&g->rules, &text, g->arrays.logits + (size_t)i * n_vocab);
        }
        MOEC_TRY(check_finite(g->model.kernels->max(g->arrays.logits, (size_t)n_beam * n_vocab), err));
        if (!moec_beams_advance(g->search.beams, g->arrays.logits))
            break;
        reorder(g, g->text.n_prompt);
        for (uint32_t i = 0; i < n_beam; i++)
            tokens[i] = moec_beams_text(g->search.beams, i)[n_generated];
        begin_step(g);
        const enum moec_status status =
            moec_session_step_each(g->search.sequences, tokens, n_beam, g->arrays.logits, err);
        end_step(g);
        MOEC_TRY(status);
        g->text.n_run += n_beam;
        g->text.n_steps++;
    }
    g->search.is_done = true;
    return MOEC_OK;
}

static enum moec_status next_of_best(struct moec_generator *g, uint32_t *token, enum moec_generated *what,
                                     struct moec_error *err)
{
    uint32_t n = 0;
    *what = why_over(g);
    if (g->text.n_tokens == 0)
        return MOEC_OK;
    if (!g->search.is_done)
        MOEC_TRY(search(g, err));
    const uint32_t *best = moec_beams_best(g->search.beams, &n, &g->search.score);
    if (g->search.n_given == n)
        return MOEC_OK;
    *token = best[g->search.n_given++];
    *what = moec_token_rules_is_end(&g->rules, *token) ? MOEC_GENERATED_END : MOEC_GENERATED_TOKEN;
    return MOEC_OK;
}

enum moec_status moec_generator_next(struct moec_generator *g, uint32_t *token, enum moec_generated *what,
                                     struct moec_error *err)
{
    return g->search.beams != NULL ? next_of_best(g, token, what, err) : next_token(g, token, what, err);
}

float moec_generator_score(const struct moec_generator *g)
{
    return g->search.score;
}

uint32_t moec_generator_left(const struct moec_generator *g)
{
    return g->text.n_tokens - (g->search.beams != NULL ? g->search.n_given : g->text.n_generated);
}

uint64_t moec_generator_steps(const struct moec_generator *g)
{
    return g->text.n_steps;
}

uint64_t moec_generator_drafted(const struct moec_generator *g)
{
    return g->drafts != NULL ? g->drafts->n_drafted : 0;
}

uint64_t moec_generator_accepted(const struct moec_generator *g)
{
    return g->drafts != NULL ? g->drafts->n_accepted : 0;
}

uint64_t moec_generator_tokens_run(const struct moec_generator *g)
{
    return g->text.n_run;
}

struct moec_route_counts moec_generator_route_counts(const struct moec_generator *g)
{
    struct moec_route_counts sum = moec_session_route_counts(g->session);
    for (uint32_t i = 0; i < MOEC_MAX_BEAMS; i++) {
        if (g->search.sequences[i] == NULL || g->search.sequences[i] == g->session)
            continue;
        const struct moec_route_counts one = moec_session_route_counts(g->search.sequences[i]);
        moec_route_counts_add(&sum, &one);
    }
    return sum;
}
