/* Traces from anywhere: what is taken for a replay holds what formats/trace/replay.h promises. */
#include "formats/trace/trace_json.h"
#include "tests/fuzz/fuzz_file.h"

#include <math.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool is_chosen(const uint32_t *experts, uint64_t n, uint32_t expert)
{
    for (uint64_t i = 0; i < n; i++) {
        if (experts[i] == expert)
            return true;
    }
    return false;
}

static void check_scored(const struct moec_replay *replay, uint64_t first, uint32_t n)
{
    require(n <= replay->n_expert);
    for (uint32_t i = 0; i < n; i++) {
        const struct moec_scored_expert *one = &replay->scored[first + i];
        require(one->expert < replay->n_expert && isfinite(one->score));
        require(i == 0 || one->score <= one[-1].score);
    }
}

/* The number by which active experts name a choice. */
static uint32_t key_of(const struct moec_replay *replay, uint64_t choice)
{
    const bool is_low = replay->n_form > 1 && replay->is_low[choice];
    return replay->experts[choice] + (is_low ? replay->n_expert : 0);
}

static bool asks_for(const struct moec_replay *replay, uint64_t first, uint64_t n, uint32_t key)
{
    for (uint64_t i = first; i < first + n; i++) {
        if (key_of(replay, i) == key)
            return true;
    }
    return false;
}

/* Any bits may stand there; that they do is seen by reading them. */
static void check_logits(const struct moec_replay *replay, const struct moec_replay_answer *answer,
                         uint32_t n_tok)
{
    uint32_t n_number = 0;
    for (uint64_t i = 0; i < (uint64_t)n_tok * replay->n_logit; i++)
        n_number += !isnan(replay->logits[answer->logits + i]);
    require(n_number <= (uint64_t)n_tok * replay->n_logit);
}

static void check_answer(const struct moec_replay *replay, const struct moec_replay_answer *answer,
                         uint32_t n_tok)
{
    const uint64_t n = (uint64_t)n_tok * replay->top_k;
    const uint32_t n_key = replay->n_form * replay->n_expert, *active = replay->active + answer->active;
    require(answer->n_active <= n_key);
    require(answer->done_ns >= answer->answered_ns);
    for (uint32_t i = 0; i < answer->n_active; i++) {
        require(active[i] < n_key && (i == 0 || active[i] > active[i - 1]));
        require(asks_for(replay, answer->choices, n, active[i]));
    }
    for (uint64_t i = 0; i < n; i++) {
        const float weight = replay->weights[answer->choices + i];
        require(isfinite(weight) && replay->experts[answer->choices + i] < replay->n_expert);
        require(weight == 0 || is_chosen(active, answer->n_active, key_of(replay, answer->choices + i)));
    }
    check_logits(replay, answer, n_tok);
    check_scored(replay, answer->next_gate, answer->n_next_gate);
    for (size_t i = 0; i < MOEC_REPLAY_LATER; i++)
        check_scored(replay, answer->later_gates[i], answer->n_later_gates[i]);
    check_scored(replay, answer->next_learned, answer->n_next_learned);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct moec_replay replay;
    struct moec_error err = {0};
    write_file("trace", data, size);
    if (moec_replay_load(path, &replay, &err) != MOEC_OK) {
        require(err.message[0] != '\0' && replay.n_step == 0 && replay.answers == NULL);
        return 0;
    }
    require(replay.n_step > 0 && replay.n_layer > 0 && replay.top_k <= replay.n_expert);
    require(replay.paths->n_layer == 0 || replay.paths->n_layer == replay.n_layer);
    for (uint64_t step = 0; step < replay.n_step; step++) {
        const struct moec_replay_span span = moec_replay_passed(&replay, step);
        require(replay.n_tok[step] > 0);
        require(span.first < span.end && span.end <= replay.n_layer);
        require(span.end <= replay.n_encoder ||
                (span.first == replay.n_encoder && span.end == replay.n_layer));
        for (uint32_t s = 0; s < replay.n_layer; s++) {
            const struct moec_replay_answer *answer = &replay.answers[step * replay.n_layer + s];
            if (s >= span.first && s < span.end)
                check_answer(&replay, answer, replay.n_tok[step]);
            else
                require(answer->n_active == 0 && answer->n_next_gate + answer->n_next_learned == 0);
        }
    }
    moec_replay_release(&replay);
    return 0;
}
