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

static void check_answer(const struct moec_replay *replay, const struct moec_replay_answer *answer,
                         uint32_t n_tok)
{
    const uint64_t n = (uint64_t)n_tok * replay->top_k;
    const bool is_limited = replay->spans != NULL;
    const uint32_t *active = replay->active + answer->active, *experts = replay->experts + answer->choices;
    require((answer->n_active >= 1 || is_limited) && answer->n_active <= replay->n_expert);
    require(answer->done_ns >= answer->answered_ns);
    for (uint32_t i = 0; i < answer->n_active; i++) {
        require(active[i] < replay->n_expert && (i == 0 || active[i] > active[i - 1]));
        require(is_chosen(experts, n, active[i]));
    }
    for (uint64_t i = 0; i < n; i++) {
        const float weight = replay->weights[answer->choices + i];
        require(isfinite(weight));
        require((is_limited && weight == 0) || is_chosen(active, answer->n_active, experts[i]));
    }
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
