/* Samples are full windows in equal steps over the data, and one more for the sample that is not counted. The
 * built-in text is repeated in turned orders, doubled until it gives windows enough. It may not change:
 * benches of different versions compare by its digest. */
#include "profiler/bench/bench_tokens.h"

#include "formats/base/memory.h"
#include "profiler/common/random.h"
#include "profiler/evaluate/windows.h"
#include "profiler/tasks/task.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAX_REPEATS 4096 /* of the text that moec brings */

/* Plain prose of several kinds, so that routers have something to tell apart. */
static const char *const paragraphs[] = {
    "The harbour wakes before the town does. Long before the first bus climbs the hill, lamps move along the "
    "quay and engines cough in the dark. Nets are shaken out, crates are counted, and somebody always calls "
    "for a rope that somebody else has just taken away. By the time the sun stands over the breakwater, the "
    "boats are small marks on grey water and only the gulls are left to argue.",
    "To bake a plain loaf, mix five hundred grams of flour with three hundred and fifty of water, ten of "
    "salt and two of dry yeast. Fold the dough four times, half an hour apart, and let it rest in a cool "
    "place until morning. Heat the oven with a heavy pot inside. Bake for thirty minutes with the lid on and "
    "for fifteen more without it, then wait at least an hour before you cut the bread.",
    "A storage device answers in order of arrival unless it is told otherwise. The first byte of a request "
    "comes after its latency, the others at the rate of its bandwidth; when many requests wait at once, the "
    "latencies overlap and only the bandwidth is left. This is why a program that knows early what it will "
    "need should ask early, and why a program that guesses should guess seldom and well.",
    "\"Did you lock the gate?\" asked Marta. \"I thought you had the key,\" said her brother, and for a "
    "while neither of them moved. Then they laughed, turned the cart round on the narrow road and drove back "
    "past the mill, past the empty school and the two poplars, to a gate that stood wide open, with a goat "
    "in the middle of it that looked at them as if they were late.",
    "The council met on Tuesday to discuss the bridge. Repairs would cost four million and take two years; a "
    "new bridge would cost nine and take three. Members from the eastern districts asked for a ferry in the "
    "meantime. The treasurer pointed out that the ferry had been sold in the spring. After a long debate the "
    "council voted to have the question examined once more.",
    "Let n be a whole number greater than one. Either n is prime, or it has a divisor between one and "
    "itself; the least such divisor is prime, for any divisor of it would be a smaller one of n. Divide by "
    "it and begin again with the quotient. The numbers grow smaller at each step, so the procedure ends, and "
    "what has been written down on the way is a list of primes whose product is n.",
    "In autumn the marsh turns from green to copper. Geese come down in long lines and stay until the ice "
    "drives them on. The keeper walks the dyke twice a day with a stick and a notebook, counts what he can "
    "see, guesses what he cannot, and writes both numbers into separate columns. He has done so for thirty "
    "years. The columns, he says, have never once agreed.",
    "for every shelf in the store room: read the label, weigh the box, write down both; if the box is empty, "
    "put it on the pile by the door; if the label is missing, open the box and make a new one; when the last "
    "shelf is done, add up the weights, compare the sum with last month's, and sign the sheet. Do not leave "
    "the light on.",
};
#define N_PARAGRAPH (sizeof paragraphs / sizeof *paragraphs)

/* The paragraphs `repeats` times, in an order that turns each time, so that windows differ. */
static enum moec_status write_text(uint32_t repeats, char **text, size_t *n_bytes, struct moec_error *err)
{
    size_t once = 0;
    for (size_t i = 0; i < N_PARAGRAPH; i++)
        once += strlen(paragraphs[i]) + 2;
    MOEC_TRY(moec_alloc((void **)text, repeats, once, "a text", err));
    char *at = *text;
    for (uint32_t r = 0; r < repeats; r++)
        for (size_t i = 0; i < N_PARAGRAPH; i++) {
            const char *paragraph = paragraphs[(r + i * (2 * (size_t)r + 1)) % N_PARAGRAPH];
            at = mempcpy(at, paragraph, strlen(paragraph));
            *at++ = '\n';
            *at++ = '\n';
        }
    *n_bytes = (size_t)(at - *text);
    return MOEC_OK;
}

/* Whether a window has all the tokens of a sample: a source of the prompt's length or longer and a target
 * where windows have sources, else its whole length. */
static bool is_full(const struct moec_windows *windows, uint32_t w, const struct moec_bench_tokens *tokens)
{
    if (windows->source == NULL)
        return windows->length[w] == windows->seq_len_tokens;
    return windows->source[w] >= tokens->prompt_tokens && windows->scored[w] >= tokens->n_tokens;
}

static uint32_t count_full(const struct moec_windows *windows, const struct moec_bench_tokens *tokens)
{
    uint32_t n = 0;
    for (uint32_t w = 0; w < windows->n_window; w++)
        n += is_full(windows, w, tokens);
    return n;
}

/* Number of the full window `which`. */
static uint32_t full_window(const struct moec_windows *windows, const struct moec_bench_tokens *tokens,
                            uint32_t which)
{
    uint32_t w = 0;
    for (;; w++)
        if (is_full(windows, w, tokens) && which-- == 0)
            return w;
}

static void take_windows(const struct moec_windows *windows, uint32_t n_full,
                         struct moec_bench_tokens *tokens)
{
    const uint32_t n = n_full > tokens->n_sample ? tokens->n_sample + 1 : n_full;
    uint32_t *to = tokens->tokens;
    assert(n > 0);
    for (uint32_t s = 0; s <= tokens->n_sample; s++) {
        const uint32_t w = full_window(windows, tokens, (uint32_t)((uint64_t)(s % n) * n_full / n));
        const uint32_t *from = moec_windows_tokens(windows, w);
        to = mempcpy(to, from, tokens->prompt_tokens * sizeof *to);
        /* The start of a target is no token of the sample. */
        from = windows->source != NULL ? moec_windows_target(windows, w) + 1 : from + tokens->prompt_tokens;
        to = mempcpy(to, from, tokens->n_tokens * sizeof *to);
    }
}

/* `config` says whether windows have sources; NULL: they have none. */
static enum moec_status cut(const struct moec_rows *rows, const struct moec_tokenizer *tokenizer,
                            const struct moec_config *config, const struct moec_bench_tokens *tokens,
                            struct moec_windows *windows, struct moec_error *err)
{
    struct moec_windows_options options = {.seq_len_tokens = tokens->prompt_tokens + tokens->n_tokens};
    const struct moec_pool alone = moec_pool_make(1); /* the bench forks afterwards */
    if (config != NULL)
        moec_windows_options_for(config, &options);
    if (options.has_source)
        options.seq_len_tokens =
            tokens->prompt_tokens > tokens->n_tokens ? tokens->prompt_tokens : tokens->n_tokens + 1;
    return moec_windows_make(rows, tokenizer, &options, &alone, windows, err);
}

static enum moec_status from_rows(const struct moec_rows *rows, const struct moec_tokenizer *tokenizer,
                                  const struct moec_config *config, struct moec_bench_tokens *tokens,
                                  struct moec_error *err)
{
    struct moec_windows windows = {0};
    MOEC_TRY(cut(rows, tokenizer, config, tokens, &windows, err));
    const uint32_t n_full = count_full(&windows, tokens);
    enum moec_status status = MOEC_OK;
    if (n_full < tokens->n_sample && windows.source != NULL)
        status = moec_fail(err, MOEC_ERR_LIMIT,
                           "data '%s' has %" PRIu32 " rows with a source of %" PRIu32 " tokens and a target "
                           "of %" PRIu32 " or more, expected %" PRIu32 " (one per sample): give more data, "
                           "or ask for fewer or shorter samples",
                           rows->name, n_full, tokens->prompt_tokens, tokens->n_tokens, tokens->n_sample);
    else if (n_full < tokens->n_sample)
        status = moec_fail(err, MOEC_ERR_LIMIT,
                           "data '%s' has %" PRIu32 " windows of %" PRIu32 " tokens, expected %" PRIu32
                           " (one per sample): give more data, or ask for fewer or shorter samples",
                           rows->name, n_full, windows.seq_len_tokens, tokens->n_sample);
    else
        take_windows(&windows, n_full, tokens);
    moec_windows_release(&windows);
    (void)snprintf(tokens->name, sizeof tokens->name, "%s", rows->name);
    return status;
}

static enum moec_status from_own_text(const struct moec_tokenizer *tokenizer,
                                      struct moec_bench_tokens *tokens, struct moec_error *err)
{
    const struct moec_task task = moec_task_text();
    for (uint32_t repeats = 1;; repeats *= 2) {
        char *text = NULL;
        size_t n_bytes = 0;
        struct moec_rows rows = {0};
        struct moec_windows windows = {0};
        enum moec_status status = write_text(repeats, &text, &n_bytes, err);
        const struct moec_task_data data = {MOEC_TASK_FORMAT_TEXT, 0, text, n_bytes, "moec's own text"};
        if (status == MOEC_OK)
            status = moec_rows_parse(&task, &data, &rows, err);
        if (status == MOEC_OK)
            status = cut(&rows, tokenizer, NULL, tokens, &windows, err);
        const uint32_t n_full = status == MOEC_OK ? count_full(&windows, tokens) : 0;
        const bool is_enough = n_full > tokens->n_sample;
        if (is_enough)
            take_windows(&windows, n_full, tokens);
        moec_windows_release(&windows);
        moec_rows_release(&rows);
        free(text);
        if (status != MOEC_OK || is_enough)
            return status;
        if (repeats >= MAX_REPEATS)
            return moec_fail(err, MOEC_ERR_LIMIT,
                             "%" PRIu32 " samples of %" PRIu32 " tokens need more text than "
                             "moec has built in; give --data FILE",
                             tokens->n_sample, tokens->prompt_tokens + tokens->n_tokens);
    }
}

static void draw(const struct moec_bundle *bundle, struct moec_bench_tokens *tokens)
{
    struct moec_random random = {.state = 0};
    const uint64_t n =
        ((uint64_t)tokens->n_sample + 1) * ((uint64_t)tokens->prompt_tokens + tokens->n_tokens);
    for (uint64_t i = 0; i < n; i++)
        tokens->tokens[i] = (uint32_t)moec_random_below(&random, bundle->config.n_vocab);
    (void)snprintf(tokens->name, sizeof tokens->name, "pseudo-random tokens");
}

enum moec_status moec_bench_tokens_make(const struct moec_bundle *bundle, const struct moec_rows *rows,
                                        struct moec_bench_tokens *tokens, struct moec_error *err)
{
    struct moec_tokenizer *tokenizer = NULL;
    enum moec_status status = MOEC_OK;
    const uint64_t n =
        ((uint64_t)tokens->n_sample + 1) * ((uint64_t)tokens->prompt_tokens + tokens->n_tokens);
    if (tokens->n_sample == 0 || tokens->prompt_tokens == 0 || tokens->n_tokens == 0)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the numbers of samples, prompt tokens and generated tokens must each be 1 or more");
    if (bundle->tokenizer == NULL && rows != NULL)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "the bundle '%s' has no tokenizer, so it cannot be benched on text: leave out "
                         "--data",
                         bundle->file.path);
    MOEC_TRY(moec_alloc((void **)&tokens->tokens, n, sizeof(uint32_t), "tokens of samples", err));
    if (bundle->tokenizer == NULL) {
        draw(bundle, tokens);
    } else {
        MOEC_TRY_OUT(moec_tokenizer_create(bundle->tokenizer, &tokenizer, err));
        if (rows != NULL) {
            MOEC_TRY_OUT(from_rows(rows, tokenizer, &bundle->config, tokens, err));
        } else {
            (void)snprintf(tokens->name, sizeof tokens->name, "moec's own text");
            MOEC_TRY_OUT(from_own_text(tokenizer, tokens, err));
        }
    }
    moec_sha256(tokens->tokens, n * sizeof(uint32_t), tokens->digest);
out:
    moec_tokenizer_free(tokenizer);
    if (status != MOEC_OK)
        moec_bench_tokens_release(tokens);
    return status;
}

void moec_bench_tokens_release(struct moec_bench_tokens *tokens)
{
    free(tokens->tokens);
    tokens->tokens = NULL;
}
