/* What a generation says: JSON, the bundle's section, limits. */
#include "tests/unit/temporary.h"

#include "formats/family/generation_json.h"

#define N_VOCAB 100

/* Reads a text as generation_config.json; the status is what it must be. */
static struct moec_generation read_text(const char *text, enum moec_status expected, const char *message)
{
    struct moec_generation generation = moec_generation_default();
    struct moec_json *root = NULL;
    struct moec_error err = {0};
    assert_status(moec_json_parse(text, strlen(text), 1u << 16, "g.json", &root, &err), MOEC_OK, err);
    assert_status(moec_generation_read(root, "'g.json'", N_VOCAB, &generation, &err), expected, err);
    if (message != NULL)
        assert_message(err, message);
    moec_json_free(root);
    return generation;
}

static const char everything[] =
    "{\"num_beams\": 4, \"length_penalty\": 2.5, \"repetition_penalty\": 1.25, \"early_stopping\": "
    "\"never\", \"no_repeat_ngram_size\": 3, \"min_length\": 5, \"min_new_tokens\": 6, \"max_length\": 70, "
    "\"max_new_tokens\": 80, \"forced_bos_token_id\": 0, \"forced_eos_token_id\": 9, \"suppress_tokens\": "
    "[7, 100, 8], \"begin_suppress_tokens\": [99], \"do_sample\": true, \"num_beam_groups\": 1, "
    "\"bad_words_ids\": null, \"sequence_bias\": [], \"renormalize_logits\": false}";

static void check_everything(const struct moec_generation *g)
{
    assert_int_equal(g->n_beam, 4);
    assert_true(g->length_penalty == 2.5 && g->repetition_penalty == 1.25);
    assert_int_equal(g->early_stopping, MOEC_STOP_NEVER);
    assert_int_equal(g->no_repeat_ngram, 3);
    assert_int_equal(g->min_length, 5);
    assert_int_equal(g->min_new_tokens, 6);
    assert_int_equal(g->max_length, 70);
    assert_int_equal(g->max_new_tokens, 80);
    assert_int_equal(g->forced_bos, 0);
    assert_int_equal(g->forced_eos.n, 1);
    assert_int_equal(g->forced_eos.ids[0], 9);
    assert_int_equal(g->suppress.n, 2); /* 100 is past the vocabulary */
    assert_int_equal(g->suppress.ids[1], 8);
    assert_int_equal(g->begin_suppress.n, 1);
    assert_int_equal(g->begin_suppress.ids[0], 99);
}

static void test_generation__json(void **state)
{
    (void)state;
    struct moec_generation g = read_text(everything, MOEC_OK, NULL);
    check_everything(&g);
    assert_false(moec_generation_is_default(&g));
    g = read_text("{}", MOEC_OK, NULL);
    assert_true(moec_generation_is_default(&g));
    /* What stands for the class's defaults. */
    g = read_text("{\"max_length\": 20, \"early_stopping\": false, \"forced_bos_token_id\": null, "
                  "\"num_beams\": 1, \"length_penalty\": 1, \"temperature\": 0.7}",
                  MOEC_OK, NULL);
    assert_true(moec_generation_is_default(&g));
    g = read_text("{\"early_stopping\": true, \"forced_eos_token_id\": [1, 2]}", MOEC_OK, NULL);
    assert_int_equal(g.early_stopping, MOEC_STOP_EARLY);
    assert_int_equal(g.forced_eos.n, 2);
}

static void test_generation__json_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum moec_status status;
        const char *message;
    } cases[] = {
        {"{\"num_beams\": 0}", MOEC_ERR_LIMIT, "'num_beams' 0, expected 1..64"},
        {"{\"num_beams\": 65}", MOEC_ERR_LIMIT, "'num_beams' 65"},
        {"{\"num_beams\": \"4\"}", MOEC_ERR_FORMAT, "num_beams"},
        {"{\"early_stopping\": \"soon\"}", MOEC_ERR_FORMAT, "'soon', expected true, false or 'never'"},
        {"{\"early_stopping\": 1}", MOEC_ERR_FORMAT, "early_stopping"},
        {"{\"repetition_penalty\": 0}", MOEC_ERR_LIMIT, "more than 0"},
        {"{\"length_penalty\": 1000}", MOEC_ERR_LIMIT, "expected -100..100"},
        {"{\"forced_bos_token_id\": 100}", MOEC_ERR_LIMIT, "'forced_bos_token_id' 100, expected 0..99"},
        {"{\"suppress_tokens\": [-1]}", MOEC_ERR_FORMAT, "suppress_tokens"},
        {"{\"suppress_tokens\": {}}", MOEC_ERR_FORMAT, "suppress_tokens"},
        {"{\"min_length\": 4294967295}", MOEC_ERR_LIMIT, "min_length"},
        {"{\"num_beam_groups\": 2}", MOEC_ERR_UNSUPPORTED, "'num_beam_groups', which moec does not support"},
        {"{\"bad_words_ids\": [[3]]}", MOEC_ERR_UNSUPPORTED, "'bad_words_ids'"},
        {"{\"renormalize_logits\": true}", MOEC_ERR_UNSUPPORTED, "'renormalize_logits'"},
        {"{\"stop_strings\": \"x\"}", MOEC_ERR_UNSUPPORTED, "'stop_strings'"},
        {"{\"encoder_repetition_penalty\": 1.5}", MOEC_ERR_UNSUPPORTED, "'encoder_repetition_penalty'"},
        {"{\"dola_layers\": \"high\"}", MOEC_ERR_UNSUPPORTED, "'dola_layers'"},
        {"{\"token_healing\": true}", MOEC_ERR_UNSUPPORTED, "'token_healing'"},
        {"{\"max_time\": 2.5}", MOEC_ERR_UNSUPPORTED, "'max_time'"},
        {"{\"forced_decoder_ids\": [[1, 2]]}", MOEC_ERR_UNSUPPORTED, "'forced_decoder_ids'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct moec_generation g = read_text(cases[i].text, cases[i].status, cases[i].message);
        assert_true(moec_generation_is_default(&g)); /* unchanged */
    }
}

static void test_generation__what_is_written_reads_back(void **state)
{
    (void)state;
    static const char *const texts[] = {
        everything, "{}", "{\"early_stopping\": true, \"forced_eos_token_id\": [1, 2], \"num_beams\": 2}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct moec_error err = {0};
        const struct moec_generation g = read_text(texts[i], MOEC_OK, NULL);
        struct moec_json_out *root = moec_json_out_object();
        char *text = NULL;
        moec_generation_write(&g, root);
        assert_status(moec_json_out_text(root, &text, &err), MOEC_OK, err);
        const struct moec_generation again = read_text(text, MOEC_OK, NULL);
        assert_memory_equal(&g, &again, sizeof g);
        moec_json_out_free(root);
        free(text);
    }
}

static void test_generation__section(void **state)
{
    (void)state;
    struct moec_error err = {0};
    const struct moec_generation g = read_text(everything, MOEC_OK, NULL);
    struct moec_generation back;
    uint8_t *bytes = NULL;
    size_t n = 0;
    assert_status(moec_generation_encode(&g, &bytes, &n, &err), MOEC_OK, err);
    assert_int_equal(n, 64 + 4 * 4);
    assert_status(moec_generation_decode(bytes, n, N_VOCAB, &back, &err), MOEC_OK, err);
    check_everything(&back);
    /* Ids belong to a vocabulary. */
    assert_status(moec_generation_decode(bytes, n, 99, &back, &err), MOEC_ERR_LIMIT, err);
    for (size_t shorter = 0; shorter < n; shorter++) {
        err = (struct moec_error){0};
        assert_status(moec_generation_decode(bytes, shorter, N_VOCAB, &back, &err), MOEC_ERR_FORMAT, err);
    }
    static const struct {
        size_t at;
        enum moec_status status;
        const char *message;
    } cases[] = {{0, MOEC_ERR_UNSUPPORTED, "version"},   {4, MOEC_ERR_LIMIT, "num_beams"},
                 {8, MOEC_ERR_LIMIT, "early_stopping"},  {12, MOEC_ERR_LIMIT, "no_repeat_ngram_size"},
                 {16, MOEC_ERR_LIMIT, "min_length"},     {28, MOEC_ERR_LIMIT, "max_new_tokens"},
                 {32, MOEC_ERR_LIMIT, "forced_bos"},     {40, MOEC_ERR_LIMIT, "tokens of a list"},
                 {52, MOEC_ERR_LIMIT, "length_penalty"}, {60, MOEC_ERR_LIMIT, "repetition_penalty"},
                 {68, MOEC_ERR_LIMIT, "suppress_tokens"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t damaged[128];
        memcpy(damaged, bytes, n);
        memset(damaged + cases[i].at, 0xfe, 4);
        err = (struct moec_error){0};
        assert_status(moec_generation_decode(damaged, n, N_VOCAB, &back, &err), cases[i].status, err);
        assert_message(err, cases[i].message);
    }
    free(bytes);
}

static void test_generation__room(void **state)
{
    (void)state;
    struct moec_generation g = moec_generation_default();
    assert_int_equal(moec_generation_room(&g, 10, 128), 128);
    g.max_length = 30;
    assert_int_equal(moec_generation_room(&g, 10, 128), 20);
    assert_int_equal(moec_generation_room(&g, 40, 128), 0);
    g.max_new_tokens = 7;
    assert_int_equal(moec_generation_room(&g, 40, 128), 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generation__json),
        cmocka_unit_test(test_generation__json_is_refused),
        cmocka_unit_test(test_generation__what_is_written_reads_back),
        cmocka_unit_test(test_generation__section),
        cmocka_unit_test(test_generation__room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
