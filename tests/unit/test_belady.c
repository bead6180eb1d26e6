/* Belady's rule against every possible schedule of small buffers. */
#include "tests/unit/temporary.h"

#include "profiler/simulate/belady.h"
#include "tests/unit/synthetic_recording.h"

#define N_LAYER  2
#define N_EXPERT 3
#define N_KEY    (N_LAYER * N_EXPERT)
#define N_STEP   7

/* Keys of an answer as a set of bits. */
static uint32_t needed_at(const struct moec_recording *recording, uint64_t a)
{
    uint32_t needed = 0;
    uint32_t n = 0;
    const uint32_t *active = moec_recording_active(recording, a, &n);
    for (uint32_t i = 0; i < n; i++)
        needed |= 1u << (a % N_LAYER * N_EXPERT + active[i]);
    return needed;
}

static bool fits(const struct moec_simulated_model *model, uint32_t keys, uint64_t capacity)
{
    uint64_t bytes = 0;
    for (uint32_t key = 0; key < N_KEY; key++)
        bytes += keys >> key & 1 ? model->records.slot_bytes[key] : 0;
    return bytes <= capacity;
}

/* Most hits in decode steps of any schedule that starts with these keys: from the last answer to the first,
 * for every set that may be present, every set that may stay beside what is needed. A prompt's experts need
 * not stay. */
static uint32_t best(const struct moec_recording *recording, const struct moec_simulated_model *model,
                     uint64_t capacity, uint32_t start)
{
    uint32_t later[1u << N_KEY] = {0}, now[1u << N_KEY];
    for (uint64_t a = recording->n_step * N_LAYER; a-- > 0;) {
        const uint32_t needed = needed_at(recording, a);
        const uint32_t counted = recording->steps[a / N_LAYER].is_prefill ? 0 : needed;
        for (uint32_t present = 0; present < 1u << N_KEY; present++) {
            now[present] = 0;
            for (uint32_t kept = counted; kept < 1u << N_KEY; kept++) {
                if ((kept & counted) != counted || (kept & ~(present | needed)) != 0 ||
                    !fits(model, kept, capacity))
                    continue;
                const uint32_t hits = later[kept] + (uint32_t)__builtin_popcount(present & counted);
                now[present] = hits > now[present] ? hits : now[present];
            }
        }
        memcpy(later, now, sizeof later);
    }
    return later[start];
}

/* prompts: steps, as bits, that are prompts. */
static void compare(const uint64_t *slots, uint64_t capacity, uint32_t top_k, uint64_t seed, uint32_t prompts)
{
    static const uint32_t start[] = {1, 4};
    struct moec_replay replay;
    struct moec_recording recording;
    struct moec_simulated_model model;
    struct moec_belady_future future;
    struct moec_belady belady;
    uint64_t n_counted = 0;
    synthetic_steps(N_LAYER, N_EXPERT, top_k, 0, N_STEP, &replay);
    synthetic_choices(seed, &replay);
    synthetic_recording(&replay, &recording);
    synthetic_model(&recording, slots, &model);
    for (uint32_t step = 0; step < N_STEP; step++)
        recording.steps[step].is_prefill = prompts >> step & 1;
    for (uint64_t a = 0; a < N_STEP * N_LAYER; a++)
        n_counted += recording.steps[a / N_LAYER].is_prefill ? 0 : replay.answers[a].n_active;
    assert_int_equal(moec_belady_look_ahead(&recording, &model, &future, NULL), MOEC_OK);
    assert_int_equal(moec_belady_run(&future, capacity, start, 2, &belady, NULL), MOEC_OK);
    const uint32_t most = best(&recording, &model, capacity, 1u << 1 | 1u << 4);
    assert_int_equal(belady.asked, n_counted);
    if (model.slots.is_equal)
        assert_int_equal(belady.hits, most);
    assert_true(belady.hits <= most);
    assert_true(belady.most_hits + 1e-9 >= most);
    moec_belady_release(&future);
    moec_simulated_model_release(&model);
    moec_recording_release(&recording);
    moec_replay_release(&replay);
}

static void test_belady__is_the_best_for_equal_slots(void **state)
{
    static const uint64_t slots[N_KEY] = {8, 8, 8, 8, 8, 8};
    (void)state;
    for (uint64_t seed = 0; seed < 12; seed++)
        for (uint64_t n = 2; n <= 4; n++)
            compare(slots, 8 * n, seed % 2 ? 1 : 2, seed, 0);
}

static void test_belady__counts_no_prompts(void **state)
{
    static const uint64_t equal[N_KEY] = {8, 8, 8, 8, 8, 8}, others[N_KEY] = {4, 8, 16, 16, 8, 4};
    (void)state;
    for (uint64_t seed = 0; seed < 12; seed++)
        for (uint32_t prompts = 1; prompts < 1u << N_STEP; prompts += 6) {
            compare(equal, 16 + 8 * (seed % 3), seed % 2 ? 1 : 2, seed, prompts);
            compare(others, 24 + 4 * (seed % 5), seed % 2 ? 1 : 2, seed, prompts);
        }
}

static void test_belady__bounds_slots_of_different_sizes(void **state)
{
    static const uint64_t slots[N_KEY] = {4, 8, 16, 16, 8, 4};
    (void)state;
    for (uint64_t seed = 0; seed < 12; seed++)
        for (uint64_t n = 24; n <= 40; n += 4)
            compare(slots, n, seed % 2 ? 1 : 2, seed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_belady__is_the_best_for_equal_slots),
        cmocka_unit_test(test_belady__bounds_slots_of_different_sizes),
        cmocka_unit_test(test_belady__counts_no_prompts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
