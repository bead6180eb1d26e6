/* Many sequences through one engine of libmoert: does the peak of memory stay within the budget, and does
 * every token have the logits of the resident run, also when reads fail?
 *
 *     make build/tools/soak
 *     build/tools/soak model.moec --memory 64MiB --tokens 10000 --mode edgemoe
 *     build/tools/soak model.moec --buffer 1MiB --check --sessions 3 --tokens 2000
 *     build/tools/soak model.moec --buffer 1MiB --check --faults 10000
 *
 * Sequences begin with a random prompt, go on with draws from the model, and end at a random length within
 * the context, end-of-text tokens or not. Prints one line of figures; exit status 1 when the peak passed the
 * budget or logits differ. Runs under the sanitizers like any test (make SANITIZE=thread
 * build/sanitize-thread/tools/soak). */
#include "cli/options/options.h"
#include "cli/terminal/terminal.h"
#include "runtime/engine/engine_test_hook.h"
#include "tests/unit/faulty_reader.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* Steps that fail are repeated; what fails this often in a row does not come back. */
#define MAX_TRIES 1000

struct soak {
    struct moert_options options;
    uint64_t n_token; /* to generate, all sessions together */
    uint64_t seed;
    uint64_t n_fault; /* to inject; 0 = none */
    bool is_checked;  /* against a resident engine */

    struct moert_engine *engine;
    struct moert_engine *reference; /* NULL unless checked */
    struct faults faults;
    atomic_ullong n_generated, n_prompt, n_sequence, n_failed_steps;
    atomic_uint n_wrong;
    atomic_bool has_ended; /* a step failed for good */
};

/* One session and its double. */
struct worker {
    struct soak *soak;
    struct moert_session *session;
    struct moert_session *double_session; /* NULL unless checked */
    float *logits, *expected;             /* (n_vocab) */
    uint32_t *prompt;                     /* (n_context) */
    uint64_t state;
    struct moert_error err;
};

static uint32_t draw(struct worker *worker, uint32_t below)
{
    worker->state ^= worker->state << 13;
    worker->state ^= worker->state >> 7;
    worker->state ^= worker->state << 17;
    return (uint32_t)(worker->state >> 32) % below;
}

/* A step, repeated while injected faults make it fail; false when it fails otherwise. */
static bool step(struct worker *worker, const uint32_t *tokens, uint32_t n)
{
    struct soak *soak = worker->soak;
    for (int tries = 0; tries < MAX_TRIES; tries++) {
        struct moert_error err = {0};
        const enum moert_status status = moert_session_step(worker->session, tokens, n, worker->logits, &err);
        if (status == MOERT_OK)
            break;
        const bool may_be_injected = status == MOERT_ERR_IO || status == MOERT_ERR_CHECKSUM;
        atomic_fetch_add(&soak->n_failed_steps, 1);
        if (soak->n_fault == 0 || !may_be_injected || tries == MAX_TRIES - 1) {
            worker->err = err;
            return false;
        }
    }
    if (worker->double_session == NULL)
        return true;
    if (moert_session_step(worker->double_session, tokens, n, worker->expected, &worker->err) != MOERT_OK)
        return false;
    const uint32_t n_vocab = moert_engine_info(soak->engine).model.n_vocab;
    if (memcmp(worker->logits, worker->expected, n_vocab * sizeof *worker->logits) != 0)
        atomic_fetch_add(&soak->n_wrong, 1);
    return true;
}

/* Stops injecting when enough was injected. */
static bool is_done(struct soak *soak)
{
    const uint64_t n_injected =
        (uint64_t)atomic_load(&soak->faults.n_errors) + atomic_load(&soak->faults.n_flips);
    if (soak->n_fault > 0)
        return n_injected >= soak->n_fault;
    return atomic_load(&soak->n_generated) >= soak->n_token;
}

static bool run_sequence(struct worker *worker)
{
    struct soak *soak = worker->soak;
    const struct moert_info info = moert_engine_info(soak->engine);
    struct moert_sampler sampler = {.temperature = 1, .top_p = 1, .state = draw(worker, UINT32_MAX)};
    const uint32_t length = 2 + draw(worker, info.compute.n_context - 1);
    const uint32_t n_prompt = 1 + draw(worker, (length + 1) / 2);
    for (uint32_t i = 0; i < n_prompt; i++)
        worker->prompt[i] = draw(worker, info.model.n_vocab);
    moert_session_truncate(worker->session, 0);
    if (worker->double_session != NULL)
        moert_session_truncate(worker->double_session, 0);
    if (!step(worker, worker->prompt, n_prompt))
        return false;
    atomic_fetch_add(&soak->n_prompt, n_prompt);
    for (uint32_t at = n_prompt; at < length && !is_done(soak) && !atomic_load(&soak->has_ended); at++) {
        const uint32_t token = moert_sampler_next(&sampler, worker->logits, info.model.n_vocab);
        if (!step(worker, &token, 1))
            return false;
        atomic_fetch_add(&soak->n_generated, 1);
    }
    atomic_fetch_add(&soak->n_sequence, 1);
    return true;
}

static void *run_worker(void *context)
{
    struct worker *worker = context;
    const struct moert_info info = moert_engine_info(worker->soak->engine);
    bool is_good =
        moert_session_create(worker->soak->engine, &worker->session, &worker->err) == MOERT_OK &&
        (worker->soak->reference == NULL ||
         moert_session_create(worker->soak->reference, &worker->double_session, &worker->err) == MOERT_OK);
    worker->logits = calloc(info.model.n_vocab, sizeof *worker->logits);
    worker->expected =
        worker->soak->reference != NULL ? calloc(info.model.n_vocab, sizeof *worker->expected) : NULL;
    worker->prompt = calloc(info.compute.n_context, sizeof *worker->prompt);
    is_good = is_good && worker->logits != NULL && worker->prompt != NULL;
    while (is_good && !is_done(worker->soak) && !atomic_load(&worker->soak->has_ended))
        is_good = run_sequence(worker);
    if (!is_good)
        atomic_store(&worker->soak->has_ended, true);
    free(worker->logits);
    free(worker->expected);
    free(worker->prompt);
    moert_session_free(worker->session);
    moert_session_free(worker->double_session);
    return NULL;
}

/* The double runs the same copy with every expert resident. */
static bool open_engines(struct soak *soak, const char *path)
{
    struct moert_error err = {0};
    const struct moec_reader_test_hook hook = {soak->n_fault > 0 ? faulty_wrap : NULL, &soak->faults};
    enum moert_status status = moert_engine_open_hooked(path, &soak->options, &hook, &soak->engine, &err);
    if (status == MOERT_OK && soak->is_checked) {
        const struct moert_options resident = {.sessions = soak->options.sessions,
                                               .n_threads = soak->options.n_threads,
                                               .copy = moert_engine_info(soak->engine).experts.copy};
        status = moert_engine_open(path, &resident, &soak->reference, &err);
    }
    if (status != MOERT_OK)
        fprintf(stderr, "soak: %s\n", err.message);
    return status == MOERT_OK;
}

static bool run_workers(struct soak *soak)
{
    struct worker workers[64] = {0};
    pthread_t threads[64];
    uint32_t n_started = 0;
    while (n_started < soak->options.sessions.n_sessions) {
        struct worker *worker = &workers[n_started];
        *worker = (struct worker){.soak = soak, .state = soak->seed * 1000003 + n_started + 1};
        if (pthread_create(&threads[n_started], NULL, run_worker, worker) != 0)
            break;
        n_started++;
    }
    for (uint32_t i = 0; i < n_started; i++)
        (void)pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < n_started; i++)
        if (workers[i].err.status != MOERT_OK)
            fprintf(stderr, "soak: session %" PRIu32 ": %s\n", i, workers[i].err.message);
    return n_started == soak->options.sessions.n_sessions && !atomic_load(&soak->has_ended);
}

/* One line, so that runs can stand below each other. */
static bool report(const struct soak *soak)
{
    const struct moert_info info = moert_engine_info(soak->engine);
    const struct moert_stats stats = moert_engine_stats(soak->engine);
    const uint64_t n_asked = stats.hits + stats.late + stats.misses;
    const uint64_t peak_bytes = cli_peak_memory_bytes(), budget_bytes = soak->options.memory_bytes;
    const bool is_within = budget_bytes == 0 || peak_bytes <= budget_bytes;
    char peak[24], budget[24], buffer[24];
    printf("%-12s %llu tokens and %llu of prompts in %llu sequences, %" PRIu32
           " sessions: buffer %s, %.1f%% hits",
           info.experts.mode, atomic_load(&soak->n_generated), atomic_load(&soak->n_prompt),
           atomic_load(&soak->n_sequence), soak->options.sessions.n_sessions,
           cli_memory_text(buffer, info.memory.expert_buffer_bytes),
           n_asked > 0 ? 100 * (double)stats.hits / (double)n_asked : 0);
    if (budget_bytes > 0)
        printf(", peak %s of %s%s", cli_memory_text(peak, peak_bytes), cli_memory_text(budget, budget_bytes),
               is_within ? "" : " EXCEEDED");
    if (soak->n_fault > 0)
        printf(", %u reads failed, %u damaged, %u late, %llu steps repeated",
               atomic_load(&soak->faults.n_errors), atomic_load(&soak->faults.n_flips),
               atomic_load(&soak->faults.n_delays), atomic_load(&soak->n_failed_steps));
    if (soak->is_checked)
        printf(", %u wrong", atomic_load(&soak->n_wrong));
    printf("\n");
    return is_within && atomic_load(&soak->n_wrong) == 0;
}

static const struct cli_option options[] = {
    {"tokens", 'n', "N", NULL, "Generate N tokens in all (default 10000).", false},
    {"memory", 0, "SIZE", NULL, "Budget of the process.", false},
    {"buffer", 0, "SIZE", NULL, "Expert buffer of this size.", false},
    {"mode", 0, "MODE", NULL, "Run mode.", false},
    {"evict", 0, "POLICY", NULL, "Eviction policy.", false},
    {"predict", 0, "PREDICTOR", NULL, "Predictor.", false},
    {"copy", 0, "N", NULL, "Precision copy.", false},
    {"ctx", 0, "TOKENS", NULL, "Context (default 128).", false},
    {"sessions", 0, "N", NULL, "Sessions at once, each in a thread of its own (default 1).", false},
    {"threads", 't', "N", NULL, "Threads of each session.", false},
    {"check", 0, NULL, NULL, "Compare all logits with a resident engine's.", false},
    {"faults", 0, "N", NULL,
     "Break reads, flip bits and delay until N reads were hurt, in place of --tokens.", false},
    {"seed", 0, "S", NULL, "Of prompts, draws and faults (default 1).", false},
    {0},
};

static enum moec_status read_options(const struct cli_args *args, struct soak *soak, struct moec_error *err)
{
    uint32_t n_threads = 0;
    soak->options = moert_options_default();
    soak->options.sessions.n_context = 128;
    soak->options.buffer.mode = cli_text(args, "mode");
    soak->options.buffer.evict = cli_text(args, "evict");
    soak->options.buffer.predict = cli_text(args, "predict");
    soak->n_token = 10000;
    soak->seed = 1;
    soak->is_checked = cli_has(args, "check");
    MOEC_TRY(cli_u64(args, "tokens", 1, UINT64_MAX, &soak->n_token, err));
    MOEC_TRY(cli_bytes(args, "memory", &soak->options.memory_bytes, err));
    MOEC_TRY(cli_bytes(args, "buffer", &soak->options.buffer.size_bytes, err));
    MOEC_TRY(cli_u32(args, "copy", 0, 7, &soak->options.copy, err));
    MOEC_TRY(cli_u32(args, "ctx", 2, 1u << 24, &soak->options.sessions.n_context, err));
    MOEC_TRY(cli_u32(args, "sessions", 1, 64, &soak->options.sessions.n_sessions, err));
    MOEC_TRY(cli_u32(args, "threads", 1, 256, &n_threads, err));
    MOEC_TRY(cli_u64(args, "faults", 1, UINT32_MAX, &soak->n_fault, err));
    MOEC_TRY(cli_u64(args, "seed", 1, UINT32_MAX, &soak->seed, err));
    soak->options.n_threads = (int)n_threads;
    soak->faults =
        (struct faults){.errors = 600, .flips = 600, .delays = 600, .delay_ns = 200000, .state = soak->seed};
    return MOEC_OK;
}

static int run_soak(const struct cli_args *args)
{
    struct soak soak = {0};
    struct moec_error err = {0};
    if (read_options(args, &soak, &err) != MOEC_OK)
        return cli_fail(args, &err);
    bool is_good = open_engines(&soak, args->positional[0]);
    if (is_good) {
        is_good = run_workers(&soak);
        is_good = report(&soak) && is_good;
    }
    moert_engine_close(soak.reference);
    moert_engine_close(soak.engine);
    return is_good ? CLI_OK : CLI_FAILED;
}

int main(int argc, char **argv)
{
    static const struct cli_command command = {.name = "soak",
                                               .summary = "many sequences through one engine",
                                               .usage = "MODEL.moec",
                                               .about = "Peak of memory, and logits under faults.",
                                               .examples = "soak model.moec --memory 64MiB",
                                               .n_positional_min = 1,
                                               .n_positional_max = 1,
                                               .options = options,
                                               .run = run_soak};
    struct cli_args args;
    int status = CLI_OK;
    return cli_parse(&args, "soak", &command, (struct cli_words){argc, argv, 1}, &status) ? command.run(&args)
                                                                                          : status;
}
