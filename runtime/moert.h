/* libmoert: run a `.moec` file inside a memory budget. The whole public interface; link with `pkg-config
 * moert`.
 *
 *     struct moert_error err = {0};
 *     struct moert_engine *engine = NULL;
 *     struct moert_options options = moert_options_default();
 *     options.memory_bytes = 64u << 20;
 *     if (moert_engine_open("model.moec", &options, &engine, &err) != MOERT_OK) {
 *         fprintf(stderr, "%s\n", err.message);
 *         return 1;
 *     }
 *     ... see docs/embed.c for a complete program ...
 *     moert_engine_close(engine);
 *
 * Conventions. Functions that can fail return an enum moert_status and fill a caller-owned message (may be
 * NULL). Results go through out-pointers and are valid only on success. The library never prints, exits or
 * reads the environment. Strings are UTF-8. A token's logits depend only on the tokens before it: never on
 * chunking, threads, cache or budget.
 *
 * Threads. An engine is immutable to its users and may serve sessions in several threads at once; each
 * session, sampler and text stream belongs to one thread at a time. */
#ifndef MOERT_H
#define MOERT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MOERT_API __attribute__((visibility("default")))

/* Values match the families of messages: 10.. memory, 20.. input/output, 30.. file contents. */
enum moert_status {
    MOERT_OK = 0,
    MOERT_ERR_USAGE = 1,   /* an argument is out of range */
    MOERT_ERR_MEMORY = 10, /* the system has no memory */
    MOERT_ERR_BUDGET = 11, /* memory_bytes is under the floor; the message itemises it */
    MOERT_ERR_LIMIT = 12,  /* context full, id outside the vocabulary, ... */
    MOERT_ERR_IO = 20,
    MOERT_ERR_NOT_FOUND = 21,
    MOERT_ERR_FORMAT = 30,      /* not a bundle, or malformed */
    MOERT_ERR_CHECKSUM = 31,    /* damaged; the message names the section or the expert */
    MOERT_ERR_UNSUPPORTED = 32, /* a newer version, a feature or instruction set that is not here */
    MOERT_ERR_MISMATCH = 33
};

/* Zero-initialise. The first error wins; untouched on success. */
struct moert_error {
    int status;
    char message[1024];
};

struct moert_options {
    uint64_t memory_bytes; /* budget of the whole process (peak resident size), 0 = no limit: experts stay
                              resident */
    uint32_t n_context;    /* tokens of each session's KV cache, 0 = min(2048, what the model allows) */
    uint32_t n_sessions;   /* sessions that may exist at once, default 1 */
    uint32_t n_beams;      /* most beams that a generator of a session may have, each with a KV cache;
                              0 = what the bundle's generation asks for, mostly 1 */
    int n_threads;         /* 0 = all cores that this process may use */
    const char *cpu;       /* "auto", "scalar", "avx2", "avx512": the same bits at different speed */
    uint32_t copy;         /* precision copy to run, 0 = the compiled assignment, or what the mode runs */

    /* How experts come into memory: speed and memory alone, never the result of the precision that is run.
     * Strings are borrowed for the call; NULL leaves the choice to the mode. What contradicts a mode is
     * refused (MOERT_ERR_USAGE).
     *
     * "cache" (NULL): experts stay until others need the room, with any policy, predictor and copy.
     * "edgemoe": that with EdgeMoE's policy, and guesses by the bundle's path table. Baselines, most of which
     * need precision copies in the bundle: "io-free" and "io-qfree" hold every expert at 16 and at 8 bits;
     * "io-exp" and "io-qexp" read 16 and 4 bits on demand and keep nothing; "io-exp+lru" and "io-qexp+lru"
     * keep them in the buffer; "sti" reads every expert in order for every token, and serves one session. */
    const char *mode;
    /* Which experts make room: "fifo", "lru", "lfu", "edgemoe", "edgemoe-literal", "arc", "random". */
    const char *evict;
    /* Which experts the next layer will need, so that they are read while this one computes: "none",
     * "frequency", "path" (the bundle's path table), "gate" (the next layer's router), "path+gate". */
    const char *predict;
    uint32_t preload_count; /* experts guessed for each layer; 0 = while there is time and it pays */
    /* How storage is read: "auto" (NULL) measures which is faster, "direct" past the page cache, "cached"
     * through it. */
    const char *io;
    uint64_t emulate_bytes_per_second; /* a slower device: its bandwidth, 0 = the one that there is, */
    uint64_t emulate_latency_ns;       /* and how long it takes to begin a read */
    /* Writes what the engine does to this file, for Perfetto and for `moec simulate`
     * (formats/trace/TRACE.md); it appears when the engine is closed. */
    const char *trace;
    /* Of the expert buffer, for comparisons at equal buffers (no less than the largest record is taken, no
     * more than all); 0 = what the budget leaves. */
    uint64_t expert_buffer_bytes;
};

/* What the engine holds and how the budget is spent. */
struct moert_info {
    uint32_t n_vocab;
    uint32_t n_context;
    uint32_t n_layer;
    uint32_t n_moe_layer;
    uint32_t n_encoder_layer;     /* of these the first ones are an encoder's; 0 in a model of one stack */
    uint32_t n_moe_encoder_layer; /* of n_moe_layer */
    uint32_t decoder_start_id;    /* every target's first token, where there is an encoder */
    uint32_t pad_id;
    uint32_t n_expert;
    uint32_t top_k;
    uint32_t n_threads;
    const char *cpu;        /* instruction set in use */
    const char *mode;       /* run mode in use */
    const char *evict;      /* eviction policy in use, "none" where nothing is evicted */
    const char *predict;    /* predictor in use */
    uint32_t preload_count; /* as asked for */
    const char *io;         /* how storage is read, in words; valid while the engine is open */
    uint32_t copy;          /* precision copy in use, 0 = the compiled assignment */
    uint32_t bits;          /* of its experts; 0 = mixed */
    uint64_t base_bytes;    /* program and libraries, as measured when opening */
    uint64_t dense_bytes;   /* dense weights and tables */
    uint64_t kv_bytes;      /* KV caches */
    uint64_t scratch_bytes; /* activations */
    uint64_t table_bytes;   /* of the expert buffer: entries, policy */
    uint64_t expert_buffer_bytes;
    uint64_t total_bytes;        /* planned peak of the process, margin included */
    uint64_t expert_total_bytes; /* all experts of the copy in use */
    uint64_t
        working_set_bytes;   /* experts of one generated token: MoE layers (a decoder's, where there are two
                                stacks) x top-k x mean record of the layer; an LRU
                                buffer below it hits nothing in decoding */
    uint32_t prefill_tokens; /* largest chunk of a prefill */
    uint32_t n_beams;        /* most of a generator */
};

/* Of experts that routers asked for, each of which counts once as a hit, late or a miss. Counted since the
 * engine was opened; what happened in between is the difference of two calls. */
struct moert_stats {
    uint64_t hits;            /* in memory when the router answered */
    uint64_t late;            /* on the way then: guessed, or read for the start or another session */
    uint64_t misses;          /* not asked for before */
    uint64_t useful_preloads; /* experts that were guessed and then needed */
    uint64_t wasted_preloads; /* and not */
    uint64_t evictions;
    uint64_t read_bytes;    /* of all reads */
    uint64_t preload_bytes; /* of these, for guesses */
    uint64_t read_ns;       /* from asking the device to its answer, summed over reads */
    uint64_t stall_ns;      /* sessions waited for experts */
    uint64_t compute_ns;    /* steps without such waiting; of a layer: from its router's answer to the next */
};

struct moert_engine;
struct moert_session;
struct moert_text;

MOERT_API const char *moert_version(void);
MOERT_API struct moert_options moert_options_default(void);

/* Opens a bundle: checks header, contents and dense weights, plans the budget, prepares the tokenizer. */
MOERT_API enum moert_status moert_engine_open(const char *path, const struct moert_options *options,
                                              struct moert_engine **out, struct moert_error *err);
/* Sessions and text streams must be gone. NULL is fine. */
MOERT_API void moert_engine_close(struct moert_engine *engine);
/* The same, and says whether the trace was written whole (MOERT_ERR_IO otherwise). */
MOERT_API enum moert_status moert_engine_end(struct moert_engine *engine, struct moert_error *err);
/* Waits until the buffer holds the experts that it starts with; otherwise they come in the background. */
MOERT_API void moert_engine_warm(struct moert_engine *engine);
MOERT_API struct moert_info moert_engine_info(const struct moert_engine *engine);
/* Writes what a user should be told about the budget (an expert buffer under one token's working set) and
 * returns true when there is something. */
MOERT_API bool moert_engine_warning(const struct moert_engine *engine, char *text, size_t capacity);
/* Of all MoE layers, and of one: ordinal 0 .. n_moe_layer - 1. */
MOERT_API struct moert_stats moert_engine_stats(const struct moert_engine *engine);
MOERT_API struct moert_stats moert_engine_layer_stats(const struct moert_engine *engine, uint32_t ordinal);
/* The model layer that is MoE layer `ordinal`. */
MOERT_API uint32_t moert_engine_moe_layer(const struct moert_engine *engine, uint32_t ordinal);

/* True for the ids that end a text (there may be several). */
MOERT_API bool moert_token_is_end(const struct moert_engine *engine, uint32_t token);

/* Text to token ids; `add_special` lets the tokenizer's post-processor add BOS and the like. `*tokens` is the
 * caller's (moert_free). Errors: MOERT_ERR_UNSUPPORTED when the bundle has no tokenizer. */
MOERT_API enum moert_status moert_tokenize(const struct moert_engine *engine, const char *text,
                                           size_t n_bytes, bool add_special, uint32_t **tokens,
                                           size_t *n_tokens, struct moert_error *err);
MOERT_API void moert_free(void *memory);

/* Token ids to text as they come; UTF-8 characters are held back until whole. `*piece` (n_bytes long, maybe
 * 0) is borrowed until the next call. flush gives what was held back and starts anew. */
MOERT_API enum moert_status moert_text_create(const struct moert_engine *engine, struct moert_text **out,
                                              struct moert_error *err);
MOERT_API enum moert_status moert_text_push(struct moert_text *text, uint32_t token, const char **piece,
                                            size_t *n_bytes, struct moert_error *err);
MOERT_API enum moert_status moert_text_flush(struct moert_text *text, const char **piece, size_t *n_bytes,
                                             struct moert_error *err);
MOERT_API void moert_text_free(struct moert_text *text);

/* One sequence. At most options.n_sessions exist at once (MOERT_ERR_LIMIT). */
MOERT_API enum moert_status moert_session_create(struct moert_engine *engine, struct moert_session **out,
                                                 struct moert_error *err);
MOERT_API void moert_session_free(struct moert_session *session);

/* Encoder-decoder models: reads a source whole and starts an empty target for it, whose first token is
 * decoder_start_id; must come before the first step. A copy made by moert_session_fork has the source too.
 * Errors: MOERT_ERR_USAGE for a model without an encoder, MOERT_ERR_LIMIT when the source is longer than the
 * context (source and target each have n_context positions). */
MOERT_API enum moert_status moert_session_encode(struct moert_session *session, const uint32_t *tokens,
                                                 size_t n_tokens, struct moert_error *err);

/* Appends n tokens. When `logits` is not NULL it receives the logits after the last of them: n_vocab floats.
 * On failure the session is where it was. */
MOERT_API enum moert_status moert_session_step(struct moert_session *session, const uint32_t *tokens,
                                               size_t n_tokens, float *logits, struct moert_error *err);
/* The same with logits at chosen offsets (increasing) into `tokens`: logits (n_at, n_vocab). */
MOERT_API enum moert_status moert_session_step_at(struct moert_session *session, const uint32_t *tokens,
                                                  size_t n_tokens, const uint32_t *at, size_t n_at,
                                                  float *logits, struct moert_error *err);
MOERT_API uint32_t moert_session_length(const struct moert_session *session);
/* Forgets everything from position n on (no-op past the end). */
MOERT_API void moert_session_truncate(struct moert_session *session, uint32_t n);
/* An independent copy; counts as one more session. */
MOERT_API enum moert_status moert_session_fork(const struct moert_session *session,
                                               struct moert_session **out, struct moert_error *err);

/* Choosing the next token. temperature 0 is greedy (ties to the lower id). Otherwise: logits / temperature,
 * the top_k largest (0 = all), the smallest set of these with probability >= top_p, one draw. The same seed
 * draws the same tokens. */
struct moert_sampler {
    float temperature;
    uint32_t top_k;
    float top_p;
    uint64_t state; /* of the generator: set it to the seed */
};
MOERT_API struct moert_sampler moert_sampler_greedy(void);
/* `logits` (n_vocab) is used as scratch when temperature > 0. */
MOERT_API uint32_t moert_sampler_next(struct moert_sampler *sampler, float *logits, uint32_t n_vocab);

enum moert_early_stopping {
    MOERT_STOP_HEURISTIC = 0, /* when no running beam seems to become better than the worst finished one */
    MOERT_STOP_EARLY = 1,     /* likewise, and when as many are finished as there are beams */
    MOERT_STOP_NEVER = 2,     /* when none can: longer texts may be better */
};

#define MOERT_TOKENS_OF_MODEL UINT32_MAX

/* How a text is generated. moert_generation_default gives what the bundle says (the model's
 * generation_config.json), with no more beams than the engine was opened for; the bundle also forces and
 * suppresses tokens. For the same settings the tokens are those of transformers. */
struct moert_generation {
    uint32_t n_tokens;         /* generated at most; MOERT_TOKENS_OF_MODEL = as the bundle says, else 128 */
    uint32_t min_tokens;       /* generated before the text may end; 0 = as the bundle says */
    uint32_t n_beams;          /* 1 = token by token; a beam search finds a likelier text */
    double length_penalty;     /* beams are compared by log probability / (tokens ^ this) */
    double repetition_penalty; /* makes tokens of the text less likely; 1 = none */
    enum moert_early_stopping early_stopping;
    uint32_t no_repeat_ngram;     /* no n tokens stand twice, 0 = off */
    bool ignore_end;              /* go on after tokens that end a text */
    struct moert_sampler sampler; /* greedy with beams */
};
MOERT_API struct moert_generation moert_generation_default(const struct moert_engine *engine);

enum moert_generated {
    MOERT_GENERATED_TOKEN = 0,   /* one more token */
    MOERT_GENERATED_END = 1,     /* the token that ends the text; not part of it */
    MOERT_GENERATED_LENGTH = 2,  /* no token: there are as many as were asked for */
    MOERT_GENERATED_CONTEXT = 3, /* no token: the context is full */
};

/* Generates texts on a session, one after the other, and has it to itself until freed. Allocates when it is
 * made, and then no more. Errors: MOERT_ERR_LIMIT for more beams than options.n_beams. */
struct moert_generator;
MOERT_API enum moert_status moert_generator_create(struct moert_session *session,
                                                   const struct moert_generation *generation,
                                                   struct moert_generator **out, struct moert_error *err);
MOERT_API void moert_generator_free(struct moert_generator *generator);
/* Reads a prompt, for an encoder where the model has one: forgets what the session held. */
MOERT_API enum moert_status moert_generator_start(struct moert_generator *generator, const uint32_t *tokens,
                                                  size_t n_tokens, struct moert_error *err);
/* The next token. With beams all the work is done in the first call. */
MOERT_API enum moert_status moert_generator_next(struct moert_generator *generator, uint32_t *token,
                                                 enum moert_generated *what, struct moert_error *err);
/* Runs of the model on generated tokens since the start: one for a token, whatever the beams. */
MOERT_API uint64_t moert_generator_steps(const struct moert_generator *generator);

#ifdef __cplusplus
}
#endif
#endif
