/* What each rank of the router's choice is worth (cache-conditional experts, Fig. 2): dropping the expert at
 * a rank in every MoE layer, dropping all from it on (the figure's left half), or putting another expert that
 * was not chosen in its place, with that one's own probability: a random one (its right half), or the best.
 */
#include "profiler/profile/weight_study.h"

#include "profiler/common/random.h"
#include "runtime/forward/pass/forward.h"

#include <string.h>

enum action { ACTION_DROP, ACTION_REPLACE, ACTION_CUT, ACTION_SWAP };

struct rank_edit {
    enum action action;
    uint32_t rank;
};

/* One of those that were not chosen, each as likely. It is drawn from the token's own scores, so that threads
 * and batches change nothing. */
static uint32_t draw_other(const struct moec_scored_token *token, const uint32_t *chosen, uint32_t rank)
{
    struct moec_random random = {.state = ((uint64_t)token->layer << 32) + rank};
    uint32_t n_skipped = 0, expert = 0;
    for (uint32_t e = 0; e < token->n_expert; e++) {
        uint32_t bits = 0;
        memcpy(&bits, &token->scores[e], sizeof bits);
        random.state = moec_random_next(&random) ^ bits;
    }
    n_skipped = (uint32_t)moec_random_below(&random, token->n_expert - token->top_k);
    for (;; expert++) {
        bool is_chosen = false;
        for (uint32_t i = 0; i < token->top_k; i++)
            is_chosen |= chosen[i] == expert;
        if (!is_chosen && n_skipped-- == 0)
            return expert;
    }
}

static void choose(const void *context, const struct moec_scored_token *token, uint32_t *experts, bool *skips)
{
    const struct rank_edit *edit = context;
    uint32_t best[MOEC_MAX_TOP_K + 1];
    float values[MOEC_MAX_TOP_K + 1];
    const uint32_t k = token->top_k;
    const bool takes_next = edit->action == ACTION_REPLACE,
               is_replaced = takes_next || edit->action == ACTION_SWAP;
    moec_choose_best(token, takes_next ? k + 1 : k, best, values);
    memcpy(experts, best, k * sizeof *experts);
    if (is_replaced)
        experts[edit->rank] = takes_next ? best[k] : draw_other(token, best, edit->rank);
    const uint32_t end = is_replaced ? edit->rank : edit->action == ACTION_CUT ? k : edit->rank + 1;
    for (uint32_t rank = edit->rank; rank < end; rank++)
        skips[rank] = true;
}

enum moec_status moec_rank_study_run(struct moec_weight_run *run, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_config *config = run->job->config;
    const uint32_t k = config->top_k;
    char labels[MOEC_STUDY_RANK_ACTIONS][MOEC_STUDY_LABEL] = {[ACTION_DROP] = "drop",
                                                              [ACTION_REPLACE] = "replace",
                                                              [ACTION_CUT] = "cut",
                                                              [ACTION_SWAP] = "random swap"};
    const struct moec_study shape = {
        .name = "rank/loss",
        .description = "loss when in every layer the expert at this rank is dropped, replaced by the best "
                       "expert that was not chosen or a random one, or cut with all ranks after it",
        .source = "cache-conditional experts, Fig. 2",
        .n_axis = 2,
        .axes = {{.name = "action", .n = MOEC_STUDY_RANK_ACTIONS, .labels = labels},
                 {.name = "rank", .n = k}}};
    struct moec_loss_study study;
    MOEC_TRY(moec_loss_study_create(&shape, &study, err));
    for (uint32_t action = 0; action < MOEC_STUDY_RANK_ACTIONS; action++) {
        for (uint32_t rank = 0; rank < k; rank++) {
            const struct rank_edit edit = {(enum action)action, rank};
            const struct moec_choice choice = {choose, &edit};
            const struct moec_scorer_variation variation = {.choice = &choice};
            if ((action == ACTION_REPLACE || action == ACTION_SWAP) && k == config->n_expert)
                continue; /* nobody is left */
            if (action == ACTION_CUT && rank == k - 1)
                moec_loss_study_repeat(&study, ACTION_CUT * k + rank, ACTION_DROP * k + rank);
            else
                MOEC_TRY_OUT(moec_weight_run_measure(run, &variation, &study, action * k + rank, err));
        }
    }
    status = moec_loss_study_add(&study, run->job->profile, err);
out:
    moec_loss_study_release(&study);
    return status;
}
