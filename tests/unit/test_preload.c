/* The chooser of preloads, with a predictor and times made up. */
#include "tests/unit/status.h"

#include "runtime/policy/evict/evict.h"
#include "runtime/policy/schedule/preload.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define S     3
#define E     16
#define K     2
#define BYTES 50000

/* A predictor that ranks 2k experts from `first` on. */
struct oracle {
    struct moec_predict base;
    uint32_t n_expert;
};
static uint32_t oracle_first;
static float oracle_score;
static struct moec_router_answer last_asked; /* what it was asked last */
static uint32_t last_next;

static uint64_t oracle_bytes(const struct moec_predict_setup *setup)
{
    (void)setup;
    return sizeof(struct oracle);
}

static const struct moec_predict_ops oracle_ops;

static enum moec_status oracle_create(const struct moec_predict_setup *setup, struct moec_predict **out,
                                      struct moec_error *err)
{
    (void)err;
    struct oracle *oracle = calloc(1, sizeof *oracle);
    oracle->base.ops = &oracle_ops;
    oracle->n_expert = setup->n_expert;
    *out = &oracle->base;
    return MOEC_OK;
}

static void oracle_destroy(struct moec_predict *self)
{
    free(self);
}

static uint32_t oracle_rank(struct moec_predict *self, const struct moec_router_answer *answer, uint32_t next,
                            struct moec_scored_expert *out)
{
    const struct oracle *oracle = (const struct oracle *)self;
    last_asked = *answer;
    last_next = next;
    for (uint32_t i = 0; i < 2 * K; i++)
        out[i] = (struct moec_scored_expert){(oracle_first + i) % oracle->n_expert,
                                             oracle_score * (float)answer->n_tok / (float)(1 + i)};
    return 2 * K;
}

static const struct moec_predict_ops oracle_ops = {.name = "oracle",
                                                   .state_bytes = oracle_bytes,
                                                   .create = oracle_create,
                                                   .destroy = oracle_destroy,
                                                   .rank = oracle_rank};

/* A machine in which each router answers window_ns after the one before, or after the reads that the one
 * before demanded. */
struct world {
    struct moec_preload *preload;
    bool present[S * E];
    uint64_t now_ns, window_ns, latency_ns, transfer_ns;
    uint64_t demand_ns; /* storage is busy after an answer */
    uint32_t n_ahead;   /* reads in flight when the first guess is asked for */
    uint32_t right_percent, n_tok;
    uint32_t random;
    uint32_t n_asked, n_given, n_right;
};

static bool is_present(void *context, uint32_t key)
{
    return ((const struct world *)context)->present[key];
}

static bool is_present_in(void *context, uint32_t key)
{
    return ((const bool *)context)[key];
}

static uint64_t n_bytes_of(void *context, uint32_t key)
{
    (void)context;
    (void)key;
    return BYTES;
}

static struct world *world_make(uint32_t count)
{
    struct world *world = calloc(1, sizeof *world);
    struct moec_error err = {0};
    const struct moec_preload_setup setup = {
        .predictor = &oracle_ops,
        .model = {.n_layer = S, .n_expert = E, .top_k = K},
        .view = {.is_present = is_present, .n_bytes_of = n_bytes_of, .context = world},
        .bounds.count = count};
    assert_non_null(world);
    assert_true(moec_preload_state_bytes(&setup) > 0);
    assert_ok(moec_preload_create(&setup, &world->preload, &err), err);
    world->now_ns = 1000000;
    world->n_tok = 1;
    world->random = 1;
    oracle_score = 0.5f;
    return world;
}

static void world_free(struct world *world)
{
    moec_preload_free(world->preload);
    free(world);
}

static uint32_t draw(struct world *world, uint32_t n)
{
    world->random = world->random * 1664525u + 1013904223u;
    return (world->random >> 8) % n;
}

static void answer(struct world *world, uint32_t ordinal, uint32_t first)
{
    uint32_t active[K];
    for (uint32_t i = 0; i < K; i++)
        active[i] = (first + i) % E;
    if (active[0] > active[1]) {
        const uint32_t swapped = active[0];
        active[0] = active[1];
        active[1] = swapped;
    }
    const struct moec_router_answer it = {
        .layer = ordinal, .n_tok = world->n_tok, .active = {.list = active, .n = K}};
    moec_preload_answer(world->preload, &it, ordinal, world->now_ns);
    if (moec_preload_wants_rank(world->preload, 1))
        moec_preload_rank(world->preload, &it, 1);
}

/* Layer by layer: guesses are read one after the other until the router answers, with the first of the
 * ranking right in right_percent of the layers. */
static void run(struct world *world, uint32_t n_layers)
{
    world->n_asked = world->n_given = world->n_right = 0;
    uint32_t first = 0;
    for (uint32_t i = 0; i < n_layers; i++) {
        oracle_first = draw(world, E);
        answer(world, i % S, first);
        moec_preload_timed(world->preload, BYTES, world->latency_ns + world->transfer_ns, true);
        moec_preload_timed(world->preload, BYTES, world->transfer_ns, false);
        const bool is_right = draw(world, 100) < world->right_percent;
        first = is_right ? oracle_first : (oracle_first + E / 2) % E;
        const uint64_t start_ns = world->now_ns + world->demand_ns;
        uint64_t at_ns = start_ns;
        world->n_asked++;
        while (at_ns < start_ns + world->window_ns) {
            const uint32_t key =
                moec_preload_next_behind(world->preload, at_ns, at_ns == start_ns ? world->n_ahead : 0);
            if (key == MOEC_EVICT_NONE)
                break;
            assert_int_equal(key / E, (i + 1) % S);
            assert_false(world->present[key]);
            world->n_given++;
            world->n_right += is_right && (key % E + E - first) % E < K;
            at_ns += world->latency_ns + world->transfer_ns;
        }
        world->now_ns = start_ns + world->window_ns;
    }
}

static void test_preload__guesses_where_it_pays(void **state)
{
    (void)state;
    struct world *world = world_make(0);
    world->window_ns = 400000;
    world->latency_ns = 80000;
    world->transfer_ns = 90000;
    world->right_percent = 90;
    run(world, 300);
    run(world, 300);
    assert_true(world->n_given > 500); /* there is time for three, and the first two are right mostly */
    assert_true(world->n_right > world->n_given * 3 / 4);
    world->demand_ns = 500000; /* the same behind demanded reads */
    run(world, 300);
    run(world, 300);
    assert_true(world->n_given > 500);
    world_free(world);
}

/* Weights that are damaged make scores that are no numbers, or out of all bounds. */
static void test_preload__bad_scores_are_no_scores(void **state)
{
    (void)state;
    static const float scores[] = {NAN, -1e30f, -INFINITY, INFINITY};
    for (size_t i = 0; i < 8; i++) {
        struct world *world = world_make(0);
        world->window_ns = 400000;
        world->latency_ns = 80000;
        world->transfer_ns = 90000;
        world->right_percent = 90;
        world->n_tok = 1 + (uint32_t)i / 4;
        oracle_score = scores[i % 4];
        run(world, 600);
        run(world, 300);
        assert_true(world->n_given > 300); /* rightly, as was learned */
        world_free(world);
    }
}

static void test_preload__leaves_it_with_a_weak_predictor(void **state)
{
    (void)state;
    struct world *world = world_make(0);
    world->window_ns = 400000;
    world->latency_ns = 80000;
    world->transfer_ns = 90000;
    world->right_percent = 5;
    run(world, 300);
    run(world, 300);
    assert_int_equal(world->n_given, 0);
    world->right_percent = 90; /* and takes it up when guesses become right */
    run(world, 1500);
    run(world, 300);
    assert_true(world->n_given > 400);
    world->right_percent = 0; /* and leaves it again */
    run(world, 1500);
    run(world, 300);
    assert_int_equal(world->n_given, 0);
    world_free(world);
}

static void test_preload__leaves_it_on_slow_storage(void **state)
{
    (void)state;
    struct world *world = world_make(0);
    world->window_ns = 150000;
    world->latency_ns = 80000;
    world->transfer_ns = 1000000;
    world->right_percent = 60;
    run(world, 300);
    run(world, 300);
    assert_int_equal(world->n_given, 0);
    world->right_percent = 99; /* but not what is nearly certain */
    run(world, 3000);
    run(world, 300);
    assert_true(world->n_given > 250);
    assert_true(world->n_right > world->n_given * 9 / 10);
    world_free(world);
}

/* What would come too late by itself costs nothing behind demanded reads, if it is there before the next ones
 * could come. */
static void test_preload__guesses_behind_what_is_demanded(void **state)
{
    (void)state;
    for (uint32_t n_ahead = 0; n_ahead < 3; n_ahead++) {
        struct world *world = world_make(0);
        world->latency_ns = 80000;
        world->transfer_ns = 90000;
        world->right_percent = 30;
        world->n_ahead = n_ahead;
        world->window_ns = 60000 + n_ahead * world->transfer_ns;
        run(world, 600);
        run(world, 300);
        if (n_ahead == 0)
            assert_int_equal(world->n_given, 0);
        else
            assert_true(world->n_given > 250);
        world_free(world);
    }
}

static void test_preload__guesses_nothing_late_and_nothing_twice(void **state)
{
    (void)state;
    struct world *world = world_make(0);
    assert_int_equal(moec_preload_next(world->preload, 5), MOEC_EVICT_NONE);
    world->window_ns = 400000;
    world->transfer_ns = 50000;
    world->right_percent = 100;
    oracle_first = 3;
    answer(world, 0, 0);
    assert_int_equal(moec_preload_next(world->preload, world->now_ns), MOEC_EVICT_NONE); /* no times yet */
    run(world, 30);
    oracle_first = 3;
    answer(world, 0, 0);
    world->present[E + 3] = true;
    assert_int_equal(moec_preload_next(world->preload, world->now_ns), E + 4); /* 3 came meanwhile */
    assert_int_not_equal(moec_preload_next(world->preload, world->now_ns), E + 4);
    answer(world, 0, 0);
    assert_int_equal(moec_preload_next(world->preload, world->now_ns), E + 4);
    answer(world, 0, 0);
    (void)moec_preload_next(world->preload, world->now_ns);
    for (uint64_t late_ns = 360000; late_ns < 600000; late_ns += 40000)
        assert_int_equal(moec_preload_next(world->preload, world->now_ns + late_ns), MOEC_EVICT_NONE);
    world_free(world);
}

/* In a window of 400 us a read of 90 us has time until 310 us after the first question. */
static void test_preload__knows_whether_there_is_time_for_another_read(void **state)
{
    (void)state;
    struct world *world = world_make(0);
    world->window_ns = 400000;
    world->latency_ns = 40000;
    world->transfer_ns = 50000;
    world->right_percent = 100;
    assert_true(moec_preload_has_time(world->preload, 5)); /* nothing is known */
    run(world, 60);
    answer(world, 0, 0);
    assert_true(moec_preload_has_time(world->preload, world->now_ns + 600000)); /* nobody has asked */
    (void)moec_preload_next(world->preload, world->now_ns);
    assert_true(moec_preload_has_time(world->preload, world->now_ns + 300000));
    assert_false(moec_preload_has_time(world->preload, world->now_ns + 320000));
    assert_false(moec_preload_has_time(world->preload, world->now_ns + 600000));
    world_free(world);
}

/* Whatever it costs, the first ones that are absent: a function of the answers alone. */
static void test_preload__counts(void **state)
{
    (void)state;
    for (uint32_t count = 1; count <= 2 * K + 1; count++) {
        struct world *world = world_make(count);
        world->present[E + 6] = true;
        oracle_first = 5;
        for (uint32_t round = 0; round < 20; round++) {
            uint32_t n = 0;
            answer(world, 0, 0); /* always wrong */
            for (uint32_t i = 0; i < 2 * K; i++) {
                if (i == 1 || n == count)
                    continue;
                assert_int_equal(moec_preload_next(world->preload, round * 7777), E + 5 + i);
                n++;
            }
            assert_int_equal(moec_preload_next(world->preload, 0), MOEC_EVICT_NONE);
            answer(world, 1, 0);
            world->now_ns += 1000 * round;
        }
        world_free(world);
    }
}

static void test_preload__learns_batches_apart(void **state)
{
    (void)state;
    struct world *world = world_make(0);
    world->window_ns = 400000;
    world->transfer_ns = 90000;
    world->right_percent = 0;
    run(world, 600);
    assert_int_equal(moec_preload_next(world->preload, world->now_ns), MOEC_EVICT_NONE);
    world->n_tok = 64;
    world->window_ns = 64 * 100000;
    world->right_percent = 100;
    run(world, 600);
    run(world, 100);
    assert_true(world->n_given >= 100 * K);
    world->n_tok = 1;
    world->window_ns = 400000;
    world->right_percent = 0;
    run(world, 300);
    assert_true(world->n_given <= 2 * K); /* those that the last batch's ranking left */
    world_free(world);
}

/* MoE layer 0 is an encoder's: after it, and after the last one, comes the decoder's first, for one token of
 * a target of which nothing is known; between the decoder's layers everything is. */
static void test_preload__goes_from_the_encoder_to_the_decoder(void **state)
{
    (void)state;
    static const uint32_t active[] = {1, 2};
    const uint32_t experts[] = {1, 2};
    const float weights[] = {0.5f, 0.25f};
    const struct moec_scored_expert gate = {3, 1};
    struct moec_preload *preload = NULL;
    struct moec_error err = {0};
    struct world world = {.n_tok = 1};
    const struct moec_preload_setup setup = {
        .predictor = &oracle_ops,
        .model = {.n_layer = S, .n_expert = E, .top_k = K, .n_encoder = 1},
        .view = {.is_present = is_present, .n_bytes_of = n_bytes_of, .context = &world},
        .bounds.count = 1};
    oracle_score = 0.5f;
    oracle_first = 4;
    assert_ok(moec_preload_create(&setup, &preload, &err), err);
    /* (ordinal that answers, tokens) -> (ordinal guessed at, tokens, whether choices and gates are told) */
    static const uint32_t cases[][5] = {
        {0, 9, 1, 1, 0}, {1, 1, 2, 1, 1}, {2, 1, 1, 1, 0}, {1, 3, 2, 3, 1}, {2, 3, 1, 3, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint32_t *c = cases[i];
        const struct moec_router_answer answer = {.n_tok = c[1],
                                                  .active = {.list = active, .n = 2},
                                                  .choices = {.experts = experts, .weights = weights},
                                                  .last = {.experts = experts, .weights = weights},
                                                  .next = {.gate = {.experts = &gate, .n = 1}}};
        moec_preload_answer(preload, &answer, c[0], 1000 * (i + 1));
        assert_true(moec_preload_wants_rank(preload, 1));
        moec_preload_rank(preload, &answer, 1);
        assert_int_equal(last_next, c[2]);
        assert_int_equal(last_asked.n_tok, c[3]);
        assert_int_equal(last_asked.choices.experts != NULL && last_asked.last.experts != NULL, c[4]);
        assert_int_equal(last_asked.next.gate.n, c[4]);
        assert_int_equal(moec_preload_next(preload, 1000 * (i + 1) + 1), c[2] * E + 4);
    }
    moec_preload_free(preload);
}

/* Keys that it names now, as text. */
static const char *named(struct world *world, struct moec_preload *preload)
{
    static char text[200];
    size_t used = 0;
    text[0] = 0;
    for (uint32_t key; (key = moec_preload_next(preload, ++world->now_ns)) != MOEC_EVICT_NONE;)
        used += (size_t)snprintf(text + used, sizeof text - used, "%u.%u ", key / E, key % E);
    return text;
}

/* What layers will ask for comes in their order, each once between two answers, and again until it is there
 * or its layer has answered. */
static void test_preload__what_is_known_is_no_guess(void **state)
{
    (void)state;
    struct world *world = world_make(0);
    struct moec_preload *preload = NULL;
    struct moec_error err = {0};
    const struct moec_preload_setup setup = {
        .predictor = &moec_predict_token,
        .model = {.n_layer = S, .n_expert = E, .top_k = K},
        .view = {.is_present = is_present, .n_bytes_of = n_bytes_of, .context = world}};
    const uint32_t first[] = {3, 9}, last[] = {0, 3};
    struct moec_router_answer answer = {.n_tok = 1, .active = {.list = first, .n = 2}};
    assert_ok(moec_preload_create(&setup, &preload, &err), err);
    assert_false(moec_preload_knows(preload));
    assert_string_equal(named(world, preload), "");
    moec_preload_know(preload, 0, first, 2);
    moec_preload_know(preload, 2, last, 2);
    assert_true(moec_preload_knows(preload));
    world->present[9] = true;
    assert_string_equal(named(world, preload), "0.3 2.0 2.3 ");
    assert_string_equal(named(world, preload), "");
    world->present[2 * E] = true;
    moec_preload_answer(preload, &answer, 0, ++world->now_ns);
    moec_preload_rank(preload, &answer, 1);
    assert_string_equal(named(world, preload), "2.3 ");
    moec_preload_answer(preload, &answer, 1, ++world->now_ns);
    world->present[2 * E] = false;
    assert_string_equal(named(world, preload), "2.0 2.3 ");
    answer.active.list = last;
    moec_preload_answer(preload, &answer, 2, ++world->now_ns);
    assert_false(moec_preload_knows(preload));
    assert_string_equal(named(world, preload), "");
    moec_preload_know(preload, 0, last, 2); /* the next token */
    moec_preload_know(preload, 2, first, 2);
    assert_string_equal(named(world, preload), "0.0 0.3 2.3 2.9 ");
    moec_preload_free(preload);
    world_free(world);
}

static void test_preload__refuses_what_its_predictor_refuses(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_preload *preload = NULL;
    const struct moec_preload_setup setup = {.predictor = &moec_predict_path,
                                             .model = {.n_layer = S, .n_expert = E, .top_k = K}};
    assert_int_equal(moec_preload_create(&setup, &preload, &err), MOEC_ERR_USAGE);
    assert_null(preload);
    moec_preload_free(NULL);
}

/* ---- walks ---- */

static const struct moec_predict_ops gated_ops = {.name = "gated",
                                                  .needs_next_gate = true,
                                                  .state_bytes = oracle_bytes,
                                                  .create = oracle_create,
                                                  .destroy = oracle_destroy,
                                                  .rank = oracle_rank};

static const struct moec_scored_expert gate_near[] = {{5, 0.7f}, {6, 0.2f}},
                                       gate_far[] = {{9, 0.6f}, {3, 0.3f}};

static struct moec_router_answer gated_answer(uint32_t ordinal)
{
    static const uint32_t active[] = {1, 2};
    static const float weights[] = {0.5f, 0.25f};
    return (struct moec_router_answer){
        .layer = ordinal,
        .n_tok = 1,
        .active = {.list = active, .n = 2},
        .choices = {.experts = active, .weights = weights},
        .next = {.gate = {.experts = gate_near, .n = 2}, .later = {{gate_far, 2}}}};
}

/* On to the layer behind the next one where the first k of the next one's are there; what is less likely
 * waits for the end of the walk, and for what is likely further on. */
static void test_preload__walks_while_everything_is_there(void **state)
{
    (void)state;
    struct world *world = world_make(0);
    struct moec_preload *preload = NULL;
    struct moec_error err = {0};
    struct moec_preload_setup setup = {
        .predictor = &gated_ops,
        .model = {.n_layer = S, .n_expert = E, .top_k = K},
        .view = {.is_present = is_present, .n_bytes_of = n_bytes_of, .context = world},
        .bounds = {.ahead = 2, .count = 3}};
    assert_ok(moec_preload_create(&setup, &preload, &err), err);
    const struct moec_router_answer first = gated_answer(0), second = gated_answer(1);
    for (uint32_t n_there = 0; n_there <= K; n_there++) {
        memset(world->present, 0, sizeof world->present);
        for (uint32_t i = 0; i < n_there; i++)
            world->present[E + 5 + i] = true;
        moec_preload_answer(preload, &first, 0, ++world->now_ns);
        assert_false(moec_preload_wants_rank(preload, 2));
        oracle_first = 5;
        moec_preload_rank(preload, &first, 1);
        assert_ptr_equal(last_asked.next.gate.experts, gate_near);
        assert_non_null(last_asked.choices.experts);
        assert_int_equal(moec_preload_wants_rank(preload, 2), n_there == K);
        if (n_there == K) {
            assert_string_equal(named(world, preload), ""); /* before the walk has ended */
            oracle_first = 9;
            moec_preload_rank(preload, &first, 2);
            assert_int_equal(last_next, 2);
            assert_ptr_equal(last_asked.next.gate.experts, gate_far);
            assert_null(last_asked.choices.experts); /* of the layer between, which has not answered */
            assert_false(moec_preload_wants_rank(preload, 3));
        }
        static const char *const expected[] = {"1.5 1.6 1.7 ", "1.6 1.7 1.8 ", "2.9 2.10 1.7 "};
        assert_string_equal(named(world, preload), expected[n_there]);
        moec_preload_answer(preload, &second, 1, ++world->now_ns);
        memset(world->present, true, sizeof world->present);
        moec_preload_rank(preload, &second, 1);
        assert_false(moec_preload_wants_rank(preload, 2)); /* the next token's, of which there is no gate */
        moec_preload_answer(preload, &second, 2, ++world->now_ns);
    }
    moec_preload_free(preload);
    setup.bounds.ahead = MOEC_GATES_AHEAD + 1;
    assert_int_equal(moec_preload_create(&setup, &preload, &err), MOEC_ERR_USAGE);
    setup.bounds.ahead = 2;
    setup.predictor = &oracle_ops;
    err = (struct moec_error){0};
    assert_int_equal(moec_preload_create(&setup, &preload, &err), MOEC_ERR_USAGE);
    assert_non_null(strstr(err.message, "does not run the routers of later layers"));
    world_free(world);
}

/* Chances are learned for each distance: guesses at the layer behind the next one that are always wrong are
 * left, and those at the next one, which are right, are not. */
static void test_preload__learns_distances_apart(void **state)
{
    (void)state;
    struct world *world = world_make(0);
    struct moec_preload *preload = NULL;
    struct moec_error err = {0};
    const struct moec_preload_setup setup = {
        .predictor = &gated_ops,
        .model = {.n_layer = S, .n_expert = E, .top_k = K},
        .view = {.is_present = is_present, .n_bytes_of = n_bytes_of, .context = world},
        .bounds.ahead = 2};
    assert_ok(moec_preload_create(&setup, &preload, &err), err);
    uint32_t n_near = 0, n_far = 0;
    oracle_score = 1;
    for (uint32_t round = 0; round < 400; round++) {
        for (uint32_t ordinal = 0; ordinal < S; ordinal++) {
            const uint32_t active[] = {5, 6};
            struct moec_router_answer it = gated_answer(ordinal);
            it.active.list = active;
            memset(world->present, 0, sizeof world->present);
            if (ordinal == 0)
                world->present[E + 5] = world->present[E + 6] = true; /* so that walks go on */
            world->now_ns += 400000;
            moec_preload_answer(preload, &it, ordinal, world->now_ns);
            moec_preload_timed(preload, BYTES, 90000, true);
            moec_preload_timed(preload, BYTES, 50000, false);
            oracle_first = 5;
            moec_preload_rank(preload, &it, 1);
            oracle_first = 10;
            if (moec_preload_wants_rank(preload, 2))
                moec_preload_rank(preload, &it, 2);
            for (uint32_t key; (key = moec_preload_next(preload, world->now_ns)) != MOEC_EVICT_NONE;) {
                const bool is_far = key / E == 2 && ordinal == 0;
                n_far += is_far && round >= 200;
                n_near += !is_far && round >= 200 && (key % E == 5 || key % E == 6);
            }
        }
    }
    assert_int_equal(n_far, 0);
    assert_true(n_near >= 2 * 2 * 190); /* of layers 2 and 0 */
    moec_preload_free(preload);
    world_free(world);
}

/* Of K = 2 the first takes the high copy, and the second, whose score is 0.7 / 0.9, what the thresholds say;
 * ranks behind them are skipped. Where the high copy is there, HOBBIT takes it. */
static void test_preload__guesses_the_copy_that_the_score_asks_for(void **state)
{
    (void)state;
    static const struct {
        uint8_t kind;
        float high_score, low_score;
        bool has_high;
        const char *expected; /* layer, twice the form and expert of a key of two forms */
    } cases[] = {
        {MOEC_PRECISION_HOBBIT, 0.5f, 0.9f, false, "2.5 3.6 "},
        {MOEC_PRECISION_HOBBIT, 0.8f, 0.9f, false, "2.5 2.6 "},
        {MOEC_PRECISION_HOBBIT, 0.5f, 0.6f, false, "2.5 "},
        {MOEC_PRECISION_HOBBIT, 0.5f, 0.9f, true, "2.5 "},
        {MOEC_PRECISION_ALWAYS, 0.5f, 0.9f, true, "2.5 3.6 "},
        {MOEC_PRECISION_HOBBIT, 0.5f, 1.0f, false, "2.5 3.6 3.7 3.8 "},
        {MOEC_PRECISION_FATE, 0.5f, 0.9f, false, "2.5 2.6 2.7 2.8 "},
        {MOEC_PRECISION_ONE, 0, 0, false, "2.5 2.6 2.7 2.8 "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool present[2 * S * E] = {false};
        struct world *world = world_make(0);
        struct moec_preload *preload = NULL;
        struct moec_error err = {0};
        struct moec_preload_setup setup = {
            .predictor = &gated_ops,
            .model = {.n_layer = S, .n_expert = E, .top_k = K},
            .view = {.is_present = is_present_in, .n_bytes_of = n_bytes_of, .context = present},
            .bounds.count = 2 * K,
            .n_form = 2,
            .precision = {
                .kind = cases[i].kind, .high_score = cases[i].high_score, .low_score = cases[i].low_score}};
        const struct moec_router_answer it = gated_answer(0);
        assert_ok(moec_preload_create(&setup, &preload, &err), err);
        present[2 * E + 6] = cases[i].has_high;
        oracle_first = 5;
        moec_preload_answer(preload, &it, 0, ++world->now_ns);
        moec_preload_rank(preload, &it, 1);
        assert_string_equal(named(world, preload), cases[i].expected);
        moec_preload_free(preload);
        world_free(world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_preload__guesses_where_it_pays),
        cmocka_unit_test(test_preload__bad_scores_are_no_scores),
        cmocka_unit_test(test_preload__leaves_it_with_a_weak_predictor),
        cmocka_unit_test(test_preload__leaves_it_on_slow_storage),
        cmocka_unit_test(test_preload__guesses_behind_what_is_demanded),
        cmocka_unit_test(test_preload__guesses_nothing_late_and_nothing_twice),
        cmocka_unit_test(test_preload__knows_whether_there_is_time_for_another_read),
        cmocka_unit_test(test_preload__counts),
        cmocka_unit_test(test_preload__learns_batches_apart),
        cmocka_unit_test(test_preload__goes_from_the_encoder_to_the_decoder),
        cmocka_unit_test(test_preload__what_is_known_is_no_guess),
        cmocka_unit_test(test_preload__walks_while_everything_is_there),
        cmocka_unit_test(test_preload__learns_distances_apart),
        cmocka_unit_test(test_preload__guesses_the_copy_that_the_score_asks_for),
        cmocka_unit_test(test_preload__refuses_what_its_predictor_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
