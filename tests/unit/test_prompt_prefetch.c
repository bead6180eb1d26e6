/* What a prompt is expected to ask of the layer that its tokens come to (runtime/policy/schedule/prompt_prefetch.h). */
#include "tests/unit/status.h"

#include "runtime/policy/evict/evict.h"
#include "runtime/policy/schedule/prompt_prefetch.h"

#define N_LAYER  3u
#define N_EXPERT 8u

/* Two encoder layers and one of a decoder; in layer 1 experts 3, 1 and 6 are taken by a half, a quarter and a
 * sixteenth of the tokens, and the others by none. */
static struct moec_path_value frequency[N_LAYER * N_EXPERT];
static const struct moec_path_table paths = {.n_layer = N_LAYER,
                                             .n_expert = N_EXPERT,
                                             .frequency = frequency},
                                    no_paths = {0};

struct view {
    bool is_present[N_LAYER * N_EXPERT];
    uint32_t n_asked;
};

static bool is_present(void *context, uint32_t key)
{
    struct view *view = context;
    view->n_asked++;
    return view->is_present[key];
}

static struct moec_prompt_prefetch make(struct view *view, const struct moec_path_table *table)
{
    static const uint16_t experts[] = {3, 1, 6, 0, 2, 4, 5, 7};
    for (uint32_t i = 0; i < N_LAYER * N_EXPERT; i++)
        frequency[i] = (struct moec_path_value){
            .expert = experts[i % N_EXPERT],
            .probability =
                (uint16_t)(i % N_EXPERT < 3 ? 65536u >> (i % N_EXPERT == 2 ? 4 : i % N_EXPERT + 1) : 0)};
    *view = (struct view){0};
    return (struct moec_prompt_prefetch){
        .setup = {.n_layer = N_LAYER, .n_encoder = 2, .n_expert = N_EXPERT, .top_k = 1, .paths = table},
        .view = {.is_present = is_present, .context = view}};
}

/* Takes what is next; all of it when there are fewer than n. */
static uint32_t take(struct moec_prompt_prefetch *prompt_prefetch, struct view *view, uint32_t n,
                     uint32_t *keys)
{
    uint32_t n_taken = 0;
    for (uint32_t key;
         n_taken < n && (key = moec_prompt_prefetch_next(prompt_prefetch)) != MOEC_EVICT_NONE;) {
        assert_int_equal(moec_prompt_prefetch_next(prompt_prefetch), key); /* as long as it is absent */
        view->is_present[key] = true;
        keys[n_taken++] = key;
    }
    return n_taken;
}

static void test_prompt_prefetch__the_most_popular_come_first(void **state)
{
    (void)state;
    struct view view;
    struct moec_prompt_prefetch prompt_prefetch = make(&view, &paths);
    uint32_t keys[N_EXPERT];
    assert_false(moec_prompt_prefetch_is_open(&prompt_prefetch));
    assert_int_equal(moec_prompt_prefetch_next(&prompt_prefetch), MOEC_EVICT_NONE);
    moec_prompt_prefetch_begin(&prompt_prefetch, 1, 80, NULL); /* 40, 20 and 5 tokens */
    assert_int_equal(view.n_asked, 3);                         /* and what is present was named */
    assert_int_equal(take(&prompt_prefetch, &view, N_EXPERT, keys), 3);
    assert_int_equal(keys[0], N_EXPERT + 3);
    assert_int_equal(keys[1], N_EXPERT + 1);
    assert_int_equal(keys[2], N_EXPERT + 6);
    view.is_present[N_EXPERT + 3] = false;
    moec_prompt_prefetch_begin(&prompt_prefetch, 1, 20, NULL); /* 10, 5 and 1 */
    assert_int_equal(take(&prompt_prefetch, &view, N_EXPERT, keys), 1);
    moec_prompt_prefetch_begin(&prompt_prefetch, 1, 7, NULL);
    assert_false(moec_prompt_prefetch_is_open(&prompt_prefetch));
}

static void test_prompt_prefetch__forms_are_told_apart(void **state)
{
    (void)state;
    struct view view;
    struct moec_prompt_prefetch prompt_prefetch = make(&view, &paths);
    prompt_prefetch.setup.n_form = 2;
    moec_prompt_prefetch_begin(&prompt_prefetch, 0, 8, NULL);
    assert_int_equal(moec_prompt_prefetch_next(&prompt_prefetch), 3);
    static const bool is_low[N_EXPERT] = {[1] = true};
    uint32_t keys[N_EXPERT];
    moec_prompt_prefetch_begin(&prompt_prefetch, 1, 16, is_low);
    assert_int_equal(take(&prompt_prefetch, &view, N_EXPERT, keys), 2);
    assert_int_equal(keys[0], 2 * N_EXPERT + 3);
    assert_int_equal(keys[1], 3 * N_EXPERT + 1);
    prompt_prefetch.setup.n_form = 1; /* where there are none */
    moec_prompt_prefetch_begin(&prompt_prefetch, 1, 16, is_low);
    assert_int_equal(take(&prompt_prefetch, &view, N_EXPERT, keys), 2);
    assert_int_equal(keys[1], N_EXPERT + 1);
    prompt_prefetch.setup.n_form = 2;
    prompt_prefetch.setup.n_layer = 1; /* and the table is of another model */
    moec_prompt_prefetch_begin(&prompt_prefetch, 0, 8, NULL);
    assert_false(moec_prompt_prefetch_is_open(&prompt_prefetch));
}

static void test_prompt_prefetch__without_a_table_all_or_none(void **state)
{
    (void)state;
    struct view view;
    struct moec_prompt_prefetch prompt_prefetch = make(&view, &no_paths);
    uint32_t keys[N_EXPERT];
    moec_prompt_prefetch_begin(&prompt_prefetch, 2, 127, NULL);
    assert_false(moec_prompt_prefetch_is_open(&prompt_prefetch));
    moec_prompt_prefetch_begin(&prompt_prefetch, 2, 128, NULL);
    assert_int_equal(take(&prompt_prefetch, &view, N_EXPERT, keys), N_EXPERT);
    for (uint32_t i = 0; i < N_EXPERT; i++)
        assert_int_equal(keys[i], 2 * N_EXPERT + i);
}

static void test_prompt_prefetch__answers_lead_on_within_a_stack(void **state)
{
    (void)state;
    struct view view;
    struct moec_prompt_prefetch prompt_prefetch = make(&view, &paths);
    static const uint32_t active[] = {2, N_EXPERT + 2};
    struct moec_router_answer answer = {.n_tok = 100, .active = {.list = active, .n = 1}};
    moec_prompt_prefetch_answered(&prompt_prefetch, 0, &answer);
    assert_true(moec_prompt_prefetch_is_open(&prompt_prefetch));
    assert_int_equal(moec_prompt_prefetch_next(&prompt_prefetch), N_EXPERT + 3);
    moec_prompt_prefetch_answered(&prompt_prefetch, 1, &answer); /* the decoder's tokens are others */
    assert_false(moec_prompt_prefetch_is_open(&prompt_prefetch));
    moec_prompt_prefetch_answered(&prompt_prefetch, 2, &answer);
    assert_false(moec_prompt_prefetch_is_open(&prompt_prefetch));
    answer.active.n = 2; /* in two forms */
    moec_prompt_prefetch_answered(&prompt_prefetch, 0, &answer);
    assert_false(moec_prompt_prefetch_is_open(&prompt_prefetch));
    static const bool is_low[N_EXPERT] = {[3] = true};
    prompt_prefetch.setup.n_form = 2;
    answer.next.is_low = is_low; /* and what the next layer's will be is known */
    moec_prompt_prefetch_answered(&prompt_prefetch, 0, &answer);
    assert_int_equal(moec_prompt_prefetch_next(&prompt_prefetch), 3 * N_EXPERT + 3);
    prompt_prefetch.setup.n_form = 0;
    answer = (struct moec_router_answer){.n_tok = 100, .form = 1, .active = {.list = active, .n = 1}};
    moec_prompt_prefetch_answered(&prompt_prefetch, 0, &answer);
    assert_false(moec_prompt_prefetch_is_open(&prompt_prefetch));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompt_prefetch__the_most_popular_come_first),
        cmocka_unit_test(test_prompt_prefetch__forms_are_told_apart),
        cmocka_unit_test(test_prompt_prefetch__without_a_table_all_or_none),
        cmocka_unit_test(test_prompt_prefetch__answers_lead_on_within_a_stack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
