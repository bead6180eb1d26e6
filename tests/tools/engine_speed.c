/* Times prompts and tokens of a bundle as llama-bench times those of a GGUF file, so that the two can be
 * raced.
 *
 *     engine_speed MODEL.moec [--prompt N] [--generate N] [--repeat N] [--threads N] [--memory BYTES]
 *                  [--arithmetic NAME] [--kv NAME]
 *
 * Each repetition clears the session, reads N random tokens at once (--prompt, 0) and then others one by one
 * (--generate, 0). Tokens are what llama-bench draws: rand() of the C library, never seeded, modulo the
 * vocabulary. A prompt of 256 tokens is read before anything is timed, so that experts are in
 * memory, as far as --memory, the budget of the process, lets them (0, the default, holds all). Prints JSON:
 * tokens per second of each repetition. */
#include "runtime/moert.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WARM_TOKENS 256u

struct settings {
    const char *path, *arithmetic, *kv;
    uint64_t n_prompt, n_generate, n_repeat, n_threads, memory_bytes;
};

struct bench {
    struct settings settings;
    struct moert_engine *engine;
    struct moert_session *session;
    uint32_t n_vocab;
    uint32_t *tokens; /* (n_prompt + WARM_TOKENS) */
    float *logits;    /* (n_vocab) */
};

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void check(enum moert_status status, const struct moert_error *err)
{
    if (status == MOERT_OK)
        return;
    fprintf(stderr, "engine_speed: %s\n", err->message);
    exit(1);
}

static void *allocate(size_t n, size_t size)
{
    void *memory = calloc(n > 0 ? n : 1, size);
    if (memory == NULL) {
        fprintf(stderr, "engine_speed: out of memory\n");
        exit(1);
    }
    return memory;
}

static bool read_settings(int argc, char **argv, struct settings *s)
{
    *s = (struct settings){.n_repeat = 1};
    const struct {
        const char *name;
        uint64_t *value;
    } options[] = {{"--prompt", &s->n_prompt},
                   {"--generate", &s->n_generate},
                   {"--repeat", &s->n_repeat},
                   {"--threads", &s->n_threads},
                   {"--memory", &s->memory_bytes}};
    if (argc < 2 || argc % 2 != 0)
        return false;
    s->path = argv[1];
    for (int i = 2; i < argc; i += 2) {
        char *end = NULL;
        size_t o = 0;
        if (strcmp(argv[i], "--arithmetic") == 0) {
            s->arithmetic = argv[i + 1];
            continue;
        }
        if (strcmp(argv[i], "--kv") == 0) {
            s->kv = argv[i + 1];
            continue;
        }
        while (o < sizeof options / sizeof *options && strcmp(argv[i], options[o].name) != 0)
            o++;
        if (o == sizeof options / sizeof *options)
            return false;
        *options[o].value = strtoull(argv[i + 1], &end, 10);
        if (end == argv[i + 1] || *end != '\0')
            return false;
    }
    return s->n_prompt + s->n_generate > 0 && s->n_prompt + s->n_generate < 65536 && s->n_threads <= 256;
}

static void step(struct bench *bench, size_t n_tokens)
{
    struct moert_error err = {0};
    for (size_t i = 0; i < n_tokens; i++)
        bench->tokens[i] = (uint32_t)rand() % bench->n_vocab;
    check(moert_session_step(bench->session, bench->tokens, n_tokens, bench->logits, &err), &err);
}

static void open_bundle(struct bench *bench)
{
    struct moert_error err = {0};
    const struct settings *s = &bench->settings;
    struct moert_options options = moert_options_default();
    options.memory_bytes = s->memory_bytes;
    options.n_threads = (int)s->n_threads;
    options.arithmetic = s->arithmetic;
    options.sessions.kv = s->kv;
    options.sessions.n_context = (uint32_t)(s->n_prompt + s->n_generate) + WARM_TOKENS;
    check(moert_engine_open(s->path, &options, &bench->engine, &err), &err);
    check(moert_session_create(bench->engine, &bench->session, &err), &err);
    bench->n_vocab = moert_engine_info(bench->engine).model.n_vocab;
    bench->tokens = allocate(s->n_prompt + WARM_TOKENS, sizeof *bench->tokens);
    bench->logits = allocate(bench->n_vocab, sizeof *bench->logits);
    step(bench, WARM_TOKENS);
}

static void print_rates(const char *name, const double *rates, uint64_t n)
{
    printf("\"%s\": [", name);
    for (uint64_t i = 0; i < n; i++)
        printf("%s%.6g", i > 0 ? ", " : "", rates[i]);
    printf("]");
}

int main(int argc, char **argv)
{
    struct bench bench = {0};
    if (!read_settings(argc, argv, &bench.settings)) {
        fprintf(stderr, "usage: engine_speed MODEL.moec [--prompt N] [--generate N] [--repeat N] [--threads "
                        "N] [--arithmetic NAME] [--kv NAME] [--memory BYTES]\n");
        return 2;
    }
    const struct settings *s = &bench.settings;
    open_bundle(&bench);
    double *prompts = allocate(s->n_repeat, sizeof *prompts), *texts = allocate(s->n_repeat, sizeof *texts);
    for (uint64_t i = 0; i < s->n_repeat; i++) {
        moert_session_truncate(bench.session, 0);
        const double begin = seconds();
        if (s->n_prompt > 0)
            step(&bench, s->n_prompt);
        const double middle = seconds();
        for (uint64_t n = 0; n < s->n_generate; n++)
            step(&bench, 1);
        prompts[i] = (double)s->n_prompt / (middle - begin);
        texts[i] = (double)s->n_generate / (seconds() - middle);
    }
    printf("{");
    print_rates("prompt", prompts, s->n_prompt > 0 ? s->n_repeat : 0);
    printf(", ");
    print_rates("generate", texts, s->n_generate > 0 ? s->n_repeat : 0);
    printf("}\n");
    free(prompts);
    free(texts);
    free(bench.tokens);
    free(bench.logits);
    moert_session_free(bench.session);
    moert_engine_close(bench.engine);
    return 0;
}
