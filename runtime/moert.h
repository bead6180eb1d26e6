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
 * Conventions. Functions that can fail return an enum moert_status and fill a caller-owned message, which may
 * be NULL. Results go through out-pointers and are valid only on success. The library never prints, exits or
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
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MOERT_API __attribute__((visibility("default")))

/* Values match the families of messages: 10.. memory, 20.. input/output, 30.. file contents. */
enum moert_status {
    MOERT_OK = 0,
    MOERT_ERR_USAGE = 1,   /* an argument is out of range */
    MOERT_ERR_MEMORY = 10, /* the system is out of memory */
    MOERT_ERR_BUDGET = 11, /* memory_bytes is below the smallest budget that works; the message itemises it */
    MOERT_ERR_LIMIT = 12,  /* context full, id outside the vocabulary, ... */
    MOERT_ERR_IO = 20,     /* storage, or a GPU that failed: its sessions can only be freed */
    MOERT_ERR_NOT_FOUND = 21,
    MOERT_ERR_FORMAT = 30,      /* not a bundle, or malformed */
    MOERT_ERR_CHECKSUM = 31,    /* damaged; the message names the section or the expert */
    MOERT_ERR_UNSUPPORTED = 32, /* a newer version, or a feature or instruction set that is not available */
    MOERT_ERR_MISMATCH = 33
};

/* Zero-initialise. The first error wins; untouched on success. */
struct moert_error {
    int status;
    char message[1024];
};

#define MOERT_TOKENS_OF_MODEL UINT32_MAX

/* Decisions about each token, which change the output. They look at a logical cache, so the result depends on
 * these settings and the tokens alone, never on memory, threads or chunks; but for the precision
 * "shared:T1:T2", which looks at the expert buffer (see `record`). Without a route, a precision and a prefill
 * a bundle's own settings are used where it has any (moec tune; moert_engine_tuned tells them) and its
 * compiled assignment runs; they are certified for that. `none` turns them off. */
struct moert_decisions {
    /* Which experts (cache-conditional experts, arXiv:2412.00099): "cache-prior:0.2", "max-rank:8",
     * "cumsum:0.7", "prune:3", or "top-k", which counts misses alone; NULL = the router's own. */
    const char *route;
    /* In which precision they are taken (HOBBIT, arXiv:2411.01433): "hobbit:0.6:0.9", "always:0.6:0.9" or
     * "shared:0.6:0.9"; NULL = in one. "hobbit:0.6:0.9:128" decides about an expert once in each block of 128
     * tokens of a prompt, which is the default; 0 = for each token. */
    const char *precision;
    /* In which precision those of a prompt are (Fate, arXiv:2502.12224): "unpopular:0.25:512", or
     * "whole:0.25" and "popular:0.25", which need the prompt in one call; NULL = as those of other tokens.
     * Prompts are what moert_session_set_prompt says. */
    const char *prefill;
    const char *slots; /* experts of each layer in the logical cache, "12" or "50%"; NULL = "50%" */
    /* With a precision or a prefill, low copies beside them; NULL = "25%". With "shared" those of each layer
     * that the pool of low copies has room for; NULL = half as many as the other pool has high ones. */
    const char *low_slots;
    uint32_t low_bits;    /* of the low copy; 0 = the smallest in the bundle */
    uint32_t keep_top;    /* with a route, a token's best so many experts are taken in any case */
    bool starts_frequent; /* the logical cache begins with what was used most in calibration, else empty */
    bool decode_only;     /* prompts keep the router's choice, at one precision; of a bundle's settings too */
    bool all_tokens;      /* they do not, although a bundle's settings were certified so; not both */
    bool none;            /* not even the bundle's; then nothing above may be given */
    /* "shared" is "hobbit" with the paper's own cache, a pool of high copies and one of low copies that all
     * layers share: an expert is there where the first holds its high copy when the token decides, or a token
     * before it in the same chunk takes it high. The output then depends on memory, storage and time. It is
     * for one precision copy and its low one, on the CPU, in decoders; there is no logical cache, so neither
     * a route, a prefill nor slots, but low_slots. It cannot be certified. `record` names a file for what was
     * decided: sequence (sessions in the order in which they were created) and beam, position, token, layer
     * and rank give the precision (formats/decisions/decision_file.h). Each position has the decision that
     * stands when the session is freed: of drafts that were rejected, and of positions that were truncated,
     * nothing is kept. The file appears when the engine is closed (moert_engine_end tells of errors). NULL =
     * none; only with "shared". `replay` names such a file, whose decisions are taken instead of any look at
     * memory: with the same sessions, tokens and beams the logits are the same bit for bit, at any
     * memory_bytes. Precision, low_bits and decode_only come from the file where they are not given. Errors:
     * MOERT_ERR_MISMATCH for a file of another bundle, precision, arithmetic, kv, copy or rotary context; and
     * of a step at a token or position that the file has not, naming it. Not with `record` nor drafts. NULL =
     * none. */
    const char *record;
    const char *replay;
    /* About this share of an expert's neurons, those with the smallest |up . x|, is left out (FloE,
     * arXiv:2505.05950); 0 = as the bundle's own plan says, where it has one (moec sparsify --max-loss).
     * Needs a bundle with thresholds (moec sparsify) and its compiled assignment, and looks at no cache. */
    double sparsity;
    bool all_neurons; /* no neuron is left out, not even by the bundle's plan; sparsity is then 0 */
};

/* Route, precision and prefill as "cache-prior:0.2, hobbit:0.8:1"; empty where there is none of them. */
#define MOERT_DECISIONS_TEXT_BYTES 128
MOERT_API void moert_decisions_text(const struct moert_decisions *decisions,
                                    char text[MOERT_DECISIONS_TEXT_BYTES]);

/* How experts come to a device, and what decides with options.device.cooperates: times of a byte of an expert,
 * all zero: measured, the processor's while it runs. */
struct moert_transfer {
    /* With a sparsity, a decoded token's experts are copied whole too, not their up projections and the
     * active neurons alone (FloE, arXiv:2505.05950). The output is the same. */
    bool copies_whole;
    double cpu_byte_ns;  /* computed with by the processor, for each token */
    double copy_byte_ns; /* copied to the device */
    double gpu_byte_ns;  /* computed with there; not measured, and small */
};

/* The smallest budget of a set of options: what this process opens, with what it has mapped by then. Another
 * start of the program may map more. */
struct moert_floor {
    uint64_t memory_bytes;
    uint64_t start_bytes; /* that another start may take on top */
    uint32_t n_context;   /* positions of the KV caches that it holds */
    uint32_t n_prompt;    /* of these, the prompt's; 0 without one */
    /* The most that options.memory_bytes holds at any start; 0 = none, or no limit. */
    uint32_t n_context_fits;
};

/* Sessions that may exist, each with a KV cache and activations. */
struct moert_session_options {
    uint32_t n_context;  /* tokens of each session's KV cache, 0 = min(2048, what the model allows) */
    uint32_t n_sessions; /* sessions that may exist at once, default 1 */
    uint32_t n_beams;    /* the most beams that a session's generator may use, each with a KV cache;
                            0 = as the bundle's generation settings say, usually 1 */
    bool drafts;         /* generators may draft (moert_generation.draft): each then has logits of
                            MOERT_DRAFT_TOKENS more positions */
    /* Sessions are used by one thread, one after the other: they share one set of activations, which the
     * budget counts once, and several can take a step together (moert_step_each). */
    bool one_thread;
    /* How attention keeps keys and values: "f32" (NULL), or in less memory and for less time at long
     * contexts, which changes the output a little: "f16", each rounded to the nearest F16, or "int8", each
     * head's in groups of 32 rounded to INT8 with an F16 scale. One result on every instruction set too.
     * Errors: MOERT_ERR_UNSUPPORTED for models with an encoder and on a device. */
    const char *kv;
};

/* A GPU. */
struct moert_device_options {
    /* NULL = the CPU alone, or "cuda" or "cuda:N": the pass runs on that GPU, with the same bits in the
     * canonical arithmetic, its experts in a pool in front of the expert buffer, which becomes pinned memory.
     * Errors: MOERT_ERR_UNSUPPORTED without libmoert-cuda.so or such a device, and for the int8
     * arithmetic. */
    const char *name;
    /* Limit on what is allocated of the device's memory; 0 = most of what is free there. */
    uint64_t vram_bytes;
    /* The processor computes a missed expert where it is done before the device would have it (Fiddler,
     * arXiv:2402.07033), by times that are measured; for one session. The output stays the same. */
    bool cooperates;
    struct moert_transfer transfer;
};

/* How experts come into memory. This affects speed and memory use, never the results at a given precision.
 * NULL leaves the choice to the mode. A choice that contradicts the mode is refused (MOERT_ERR_USAGE). */
struct moert_buffer_options {
    /* "cache" (NULL): experts stay until others need the room, with any policy, predictor and copy.
     * "edgemoe": the same with EdgeMoE's policy and predictions by the bundle's path table.
     * Baselines, most of which need precision copies in the bundle:
     * "io-free", "io-qfree": all experts in memory, at 16 and at 8 bits.
     * "io-exp", "io-qexp": read when used, at 16 and at 4 bits, and not kept.
     * "io-exp+lru", "io-qexp+lru": the same, but kept in the buffer.
     * "sti": every expert is read in order for every token; serves one session.
     * "lod": the assignment, read when used and not kept.
     * "eap", "moe-offloading", "moe-infinity": kept by "arc", "lru", "lfu", read ahead by path, gate, path.
     */
    const char *mode;
    /* Which expert is evicted when the buffer is full: "fifo", "lru", "lfu", "edgemoe", "edgemoe-literal",
     * "arc", "random", "hobbit", "lhu", or "fate", which keeps the first layers whole and shares the rest.
     * Mode "cache" takes "hobbit" where this is NULL, and "edgemoe" for an encoder with experts, whose experts
     * are done when the target begins. Two have parameters in their word:
     * "hobbit:0.4:0.3:0.1:0.2" weighs recency, uses, uses in high precision and distance of the layer; without
     * them the weights are the bundle's (moec simulate --search-evict), equal where it has none. "fate:3" counts
     * the first 3 MoE layers (of a decoder) as those whose experts are predicted badly; without a number it is
     * the bundle's, which needs one that was compiled with a profile. */
    const char *evict;
    /* How the next layer's experts are predicted, so that they are read while this layer computes: "none",
     * "frequency", "path" (the bundle's path table), "gate" (the next layer's router), "path+gate", "learned"
     * (what moec predict taught the bundle; not with a device), "token" (what is known once the token is).
     * Where this is NULL, mode "cache" takes "token" for models with layers that route by token, "none" with
     * a device, "gate" where tokens decide by a logical cache, of which gates alone know, else "learned" for
     * a bundle that was taught and "gate" for others. */
    const char *predict;
    uint32_t preload_count; /* experts preloaded for each layer; 0 = as many as time allows, while it pays */
    /* With "gate" and "path+gate": how many layers ahead gates are asked, 1 to 4, each while everything that
     * the layers before it will probably ask for is there; 0 = 1. */
    uint32_t preload_ahead;
    /* Size of the expert buffer, for comparisons at equal sizes, raised to the largest record and lowered to
     * the size of all experts where needed; 0 = what the budget leaves. */
    uint64_t size_bytes;
    /* The budget counts KV caches full. Until they are, the expert buffer has what is empty of them too, and
     * gives it up as they grow: faster, and the same results. With keeps_size it has its own size from the
     * beginning, for comparisons; so it does where its size is given, and while a trace is written. */
    bool keeps_size;
};

/* The storage that a bundle is read from. */
struct moert_storage_options {
    /* How it is read: "direct" bypasses the page cache, "cached" uses it, "auto" (NULL) measures which
     * is faster. "mapped" uses the page cache's own pages without a copy, "auto+mapped" does so where the
     * bundle is in the page cache and aligned to pages, else measures: a large bundle then starts several
     * times as fast. Nothing is mapped unless it is asked for: where the file is cut short or its device
     * fails while it is mapped, touching its pages raises SIGBUS in whichever thread does, and a file that is
     * overwritten in place changes under the engine. The library installs no handler; a host that maps has
     * one of its own, or files that are replaced by renaming alone, as moec writes them. */
    const char *io;
    uint64_t emulate_bytes_per_second; /* emulates a slower device: its bandwidth (0 = no emulation) */
    uint64_t emulate_latency_ns;       /* and its latency */
    uint64_t emulate_request_ns;       /* and what each request takes of it beside its bytes */
};

/* A record of what the engine did. */
struct moert_trace_options {
    /* File for a trace, for Perfetto and `moec simulate` (formats/trace/TRACE.md); it appears when the engine
     * is closed. NULL = none. */
    const char *path;
    bool scores; /* with what routers say of every expert: for `moec simulate` of decisions */
};

/* What will be generated, where all of it is known. The KV caches then have no more positions than that takes,
 * within n_context. */
struct moert_text_options {
    const char *prompt; /* NULL = it is not known */
    size_t n_prompt_bytes;
    uint32_t n_tokens; /* at most (MOERT_TOKENS_OF_MODEL as in moert_generation) */
};

/* Grouped by what reads them. Begin with moert_options_default; zero is each member's usual choice. Strings are
 * borrowed for the call. */
struct moert_options {
    uint64_t memory_bytes;  /* limit on the peak resident size of the whole process; 0 = no limit, experts
                               stay resident */
    uint64_t reserve_bytes; /* of memory_bytes, for what the program itself will allocate after opening */
    int n_threads;          /* 0 = all cores that this process may use */
    const char *cpu;        /* "auto", "scalar", "avx2", "avx512", "neon": same bits, different speed */
    /* "canonical", or "int8": activations are rounded to INT8 and products with integer codes are sums of
     * integers (runtime/kernels/int8.h), which is faster and changes the output a little. One result on every
     * instruction set too. Or "bf16", of a device alone: activations and weights are rounded to BF16 and
     * multiplied by tensor cores (runtime/cuda/kernels/bf16.h), which is faster for many tokens and changes
     * the output a little; one result on one kind of device. Errors: MOERT_ERR_UNSUPPORTED without a device,
     * on one of a compute capability below 8.0, and with `cooperates`. NULL: the one that the bundle's
     * certificate means (moec compile --arithmetic), canonical without one; where that is bf16 and there is
     * no device that has it, canonical too, of which moert_engine_warning tells. */
    const char *arithmetic;
    uint32_t copy; /* precision copy to run; 0 = the compiled assignment, or the mode's copy */
    struct moert_session_options sessions;
    struct moert_device_options device;
    struct moert_buffer_options buffer;
    struct moert_storage_options storage;
    struct moert_decisions decisions;
    struct moert_text_options text;
    struct moert_trace_options trace;
    /* Borrowed for the call: where the budget is refused as below its floor, that floor. NULL = not asked. */
    struct moert_floor *refused_floor;
};

/* The model that the bundle has. */
struct moert_model_info {
    uint32_t n_vocab;
    uint32_t n_position; /* the longest context that it knows */
    uint32_t n_expert;
    uint32_t top_k;
    uint32_t decoder_start_id; /* first token of every target; models with an encoder */
    uint32_t pad_id;
    uint32_t rope_limit;   /* the trained context where rotary angles depend on whether the context is longer
                              (LongRoPE, dynamic NTK), else 0 */
    uint32_t rope_context; /* the angles are for contexts of up to this; 0 = up to rope_limit */
};

struct moert_layers_info {
    uint32_t n;
    uint32_t n_moe;
    uint32_t n_encoder;     /* the first n layers are an encoder's; 0 = decoder only */
    uint32_t n_moe_encoder; /* of these, MoE layers */
};

/* How it is computed. */
struct moert_compute_info {
    uint32_t n_threads;
    const char *cpu;        /* instruction set in use */
    const char *arithmetic; /* "canonical", "int8" or "bf16" */
    /* The one that the certificate of the bundle, or of its settings or its plan of sparsity where they are
     * in use, means; NULL without one. */
    const char *certified_arithmetic;
    const char *kv; /* "f32", "f16" or "int8" */
    uint32_t n_context;
    uint32_t prefill_tokens; /* largest chunk of a prompt */
    uint32_t n_beams;        /* the most that a generator may use */
};

/* How experts come into memory. */
struct moert_experts_info {
    const char *mode;       /* run mode in use */
    const char *evict;      /* eviction in use, "none" if nothing is evicted */
    const char *predict;    /* predictor in use */
    uint32_t preload_count; /* as asked for */
    uint32_t preload_ahead; /* layers that are predicted at most, 0 = nothing is */
    uint32_t copy;          /* precision copy in use, 0 = the compiled assignment */
    uint32_t bits;          /* bitwidth of its experts; 0 = mixed */
};

struct moert_storage_info {
    const char *io; /* how it is read, in words; valid while the engine is open */
    /* What moec fit made the bundle for: bytes a second, and the latency of a request; 0 where it was not
     * fitted. */
    uint64_t fitted_bytes_per_second, fitted_latency_ns;
};

/* How the budget is spent. */
struct moert_memory_info {
    uint64_t base_bytes;    /* program and libraries, measured on opening */
    uint64_t dense_bytes;   /* dense weights and tables */
    uint64_t kv_bytes;      /* KV caches */
    uint64_t kv_lent_bytes; /* of these, what the expert buffer has beside its own now */
    uint64_t scratch_bytes; /* activations */
    uint64_t table_bytes;   /* bookkeeping of the expert buffer */
    uint64_t expert_buffer_bytes;
    uint64_t total_bytes; /* planned peak of the process, margin included */
};

/* What the expert buffer is to hold. */
struct moert_buffer_info {
    uint64_t low_pool_bytes; /* of it, with precision shared: for low copies alone; else 0 */
    uint64_t all_bytes;      /* all experts of the copy in use */
    /* Experts of one generated token: MoE layers (of the decoder, if there are two stacks) x top-k x mean
     * record of the layer. A smaller LRU buffer hits nothing in decoding. */
    uint64_t working_set_bytes;
    /* With decisions by logical caches: what those of all sequences together may hold of the experts, and
     * what a prompt may ask for beside it. While the expert buffer has room for the first, what is logically
     * present stays in memory; with room for both, while prompts pass too. Else it may be read again, which
     * costs time and changes no word. 0 without such decisions. */
    uint64_t logical_cache_bytes;
    uint64_t logical_passing_bytes;
    bool keeps_logical_cache; /* the buffer has room for the first now */
};

/* Of the device, NULL and 0 without one. */
struct moert_device_info {
    const char *name;
    uint64_t vram_bytes;      /* what is planned of its memory */
    uint64_t vram_pool_bytes; /* in the pool of experts */
};

/* What the engine holds, by what it says something of. */
struct moert_info {
    struct moert_model_info model;
    struct moert_layers_info layers;
    struct moert_compute_info compute;
    struct moert_experts_info experts;
    struct moert_storage_info storage;
    struct moert_memory_info memory;
    struct moert_buffer_info buffer;
    struct moert_device_info device;
};

/* Counters since the engine was opened; subtract two readings for what happened in between. Each expert that
 * a router asked for counts once: as a hit, late or a miss. */
struct moert_stats {
    uint64_t hits;            /* in memory when the router answered */
    uint64_t late;            /* still being read then: a preload, or for the start or another session */
    uint64_t misses;          /* not requested before */
    uint64_t useful_preloads; /* preloaded experts that were then needed */
    uint64_t wasted_preloads; /* preloaded experts that were not */
    uint64_t evictions;
    uint64_t read_bytes;    /* in all */
    uint64_t preload_bytes; /* of these, by preloads */
    uint64_t read_ns;       /* from request to completion, summed over reads */
    uint64_t stall_ns;      /* time that sessions waited for experts */
    uint64_t compute_ns;    /* time of steps without such waits; of a layer: from its router's answer to the
                              next layer's */
    uint64_t n_reads;       /* requests to storage that were answered */
    uint64_t pair_bytes;    /* of read_bytes: for gate and down rows alone, of experts that come in parts */
    uint64_t busy_ns;       /* in which at least one read was under way */
};

struct moert_engine;
struct moert_session;
struct moert_text;

MOERT_API const char *moert_version(void);
MOERT_API struct moert_options moert_options_default(void);

/* Opens a bundle: checks header, contents and dense weights, plans the budget, prepares the tokenizer. */
MOERT_API enum moert_status moert_engine_open(const char *path, const struct moert_options *options,
                                              struct moert_engine **out, struct moert_error *err);
/* What moert_engine_open with these options takes at least. Errors: those of opening, but for the budget's.
 */
MOERT_API enum moert_status moert_engine_floor(const char *path, const struct moert_options *options,
                                               struct moert_floor *out, struct moert_error *err);
/* Free sessions and text streams first. NULL is allowed. */
MOERT_API void moert_engine_close(struct moert_engine *engine);
/* Closes the engine and reports whether the trace was written completely (MOERT_ERR_IO if not). */
MOERT_API enum moert_status moert_engine_end(struct moert_engine *engine, struct moert_error *err);
/* Waits until the buffer holds the experts that it starts with.
 * Without this call they are read in the background. */
MOERT_API void moert_engine_warm(struct moert_engine *engine);
MOERT_API struct moert_info moert_engine_info(const struct moert_engine *engine);
/* The bundle's own decisions where they are in use, all zero otherwise; strings live as long as the engine.
 */
MOERT_API struct moert_decisions moert_engine_tuned(const struct moert_engine *engine);
/* Writes a warning, such as of an expert buffer below one token's working set or of a certificate's
 * arithmetic that is not computed here, and returns true; returns false if there is nothing to warn of. */
MOERT_API bool moert_engine_warning(const struct moert_engine *engine, char *text, size_t capacity);
/* Counters of all MoE layers, and of one: ordinal 0 .. info.layers.n_moe - 1. */
MOERT_API struct moert_stats moert_engine_stats(const struct moert_engine *engine);
MOERT_API struct moert_stats moert_engine_layer_stats(const struct moert_engine *engine, uint32_t ordinal);

/* Experts that a router asked for, by the pool on the device: all 0 without one. Those of moert_stats are
 * then of what the pool asks for. */
struct moert_pool_stats {
    uint64_t hits;            /* on the device when the router answered */
    uint64_t late;            /* on their way there */
    uint64_t misses;          /* in the process's memory, or in storage */
    uint64_t computed_by_cpu; /* of these, with options.device.cooperates */
    uint64_t evictions;
    uint64_t copied_bytes; /* to the device, predictions included: */
    uint64_t
        record_bytes; /* of the whole records of what was copied, where neurons are copied alone; else 0 */
    double gathered_bytes_per_second; /* what gathering and copying them reached when it was measured */
    uint64_t chunk_bytes;             /* that are gathered at once then */
    uint64_t guessed_bytes;  /* of what options.buffer.predict names, copied before it was asked for */
    uint64_t useful_guesses; /* experts that were asked for then */
    uint64_t wasted_guesses; /* evicted before, or given up on their way */
};
MOERT_API struct moert_pool_stats moert_engine_pool_stats(const struct moert_engine *engine);

/* Neurons of routed experts since the engine was opened, for each token that an expert computed, with the
 * bytes of their encoded weights: in all, and those that the sparsity left. All 0 without one. */
struct moert_neurons {
    uint64_t n_neuron, n_active;
    uint64_t dense_bytes, active_bytes;
    bool is_planned; /* the bundle's plan says which */
};
MOERT_API struct moert_neurons moert_engine_neurons(const struct moert_engine *engine);
/* The index in the model of MoE layer `ordinal`. */
MOERT_API uint32_t moert_engine_moe_layer(const struct moert_engine *engine, uint32_t ordinal);

/* Whether this id ends a text; several ids may. */
MOERT_API bool moert_token_is_end(const struct moert_engine *engine, uint32_t token);

/* Text to token ids; `add_special` lets the tokenizer's post-processor add BOS and the like. The caller frees
 * `*tokens` with moert_free. Errors: MOERT_ERR_UNSUPPORTED if the bundle has no tokenizer. */
MOERT_API enum moert_status moert_tokenize(const struct moert_engine *engine, const char *text,
                                           size_t n_bytes, bool add_special, uint32_t **tokens,
                                           size_t *n_tokens, struct moert_error *err);
/* The same for what a user typed: no part of the text becomes a special token, whatever it spells. */
MOERT_API enum moert_status moert_tokenize_typed(const struct moert_engine *engine, const char *text,
                                                 size_t n_bytes, bool add_special, uint32_t **tokens,
                                                 size_t *n_tokens, struct moert_error *err);
/* The text of tokens (UTF-8, a NUL follows), special ones spelled out unless they are skipped; ids outside the
 * vocabulary are left out. The caller frees `*text` with moert_free. Errors: as moert_tokenize. */
MOERT_API enum moert_status moert_detokenize(const struct moert_engine *engine, const uint32_t *tokens,
                                             size_t n_tokens, bool skip_special, char **text, size_t *n_bytes,
                                             struct moert_error *err);
MOERT_API void moert_free(void *memory);

/* Token ids to text, one at a time; incomplete UTF-8 characters are held back. `*piece` (n_bytes, possibly 0)
 * is valid until the next call. flush returns what was held back and resets the stream. */
MOERT_API enum moert_status moert_text_create(const struct moert_engine *engine, struct moert_text **out,
                                              struct moert_error *err);
MOERT_API enum moert_status moert_text_push(struct moert_text *text, uint32_t token, const char **piece,
                                            size_t *n_bytes, struct moert_error *err);
MOERT_API enum moert_status moert_text_flush(struct moert_text *text, const char **piece, size_t *n_bytes,
                                             struct moert_error *err);
MOERT_API void moert_text_free(struct moert_text *text);

/* One sequence. At most options.sessions.n_sessions exist at once (MOERT_ERR_LIMIT). */
MOERT_API enum moert_status moert_session_create(struct moert_engine *engine, struct moert_session **out,
                                                 struct moert_error *err);
MOERT_API void moert_session_free(struct moert_session *session);

/* Encoder-decoder models: reads a whole source and starts an empty target for it, whose first token is
 * info.model.decoder_start_id. Call it before the first step. moert_session_fork copies the source too.
 * Errors: MOERT_ERR_USAGE for a model without an encoder, MOERT_ERR_LIMIT if the source is longer than the
 * context (source and target each have n_context positions). */
MOERT_API enum moert_status moert_session_encode(struct moert_session *session, const uint32_t *tokens,
                                                 size_t n_tokens, struct moert_error *err);

/* Appends n tokens. If `logits` is not NULL, it receives the logits after the last one: n_vocab floats. A
 * failure leaves the session unchanged. */
MOERT_API enum moert_status moert_session_step(struct moert_session *session, const uint32_t *tokens,
                                               size_t n_tokens, float *logits, struct moert_error *err);
/* The same with logits after the tokens at chosen, increasing offsets: logits (n_at, n_vocab). */
MOERT_API enum moert_status moert_session_step_at(struct moert_session *session, const uint32_t *tokens,
                                                  size_t n_tokens, const uint32_t *at, size_t n_at,
                                                  float *logits, struct moert_error *err);
/* Appends tokens[i] to sessions[i], n different ones of an engine with
 * options.sessions.one_thread, in one batch: an
 * expert that several need is read and decoded once. logits (n, n_vocab); they are those of n single steps. A
 * failure leaves all sessions unchanged. Errors: MOERT_ERR_USAGE without one_thread. */
MOERT_API enum moert_status moert_step_each(struct moert_session *const *sessions, const uint32_t *tokens,
                                            size_t n, float *logits, struct moert_error *err);

/* How likely a token is: the natural logarithm of its probability, and 1 + the number of likelier ones (equal
 * ones come in the order of their ids). */
struct moert_score {
    uint32_t token;
    uint32_t rank;
    double log_prob;
};
#define MOERT_SCORE_BEST 20 /* likeliest tokens that can be asked for */
/* Scores `token` by logits (n_vocab), which are then scratch, and the n_best likeliest tokens: scores (1 +
 * n_best), the token's first, then those of ranks 1, 2, ... Errors: MOERT_ERR_LIMIT for more than
 * MOERT_SCORE_BEST or the vocabulary. */
MOERT_API enum moert_status moert_logits_score(const struct moert_engine *engine, float *logits,
                                               uint32_t token, uint32_t n_best, struct moert_score *scores,
                                               struct moert_error *err);

/* Tokens to append, and those whose scores are asked for: next[i] after tokens[i]. */
struct moert_scoring {
    const uint32_t *tokens; /* (n_tokens) */
    const uint32_t *next;   /* (n_next), at most n_tokens of them */
    size_t n_tokens, n_next;
    uint32_t n_best;
    float *rows; /* (n_rows, n_vocab), scratch: logits are never held for all tokens at once */
    uint32_t n_rows;
};
/* Appends tokens as moert_session_step does; scores (n_next, 1 + n_best) as moert_logits_score has them, and
 * the logits after the last token into `last` (n_vocab), where it is not NULL. Text that is longer than one
 * call takes can come in parts. Errors: those of both. */
MOERT_API enum moert_status moert_session_score(struct moert_session *session,
                                                const struct moert_scoring *scoring,
                                                struct moert_score *scores, float *last,
                                                struct moert_error *err);

/* Keeps, of the session's first n positions, those that may begin another prompt, which then gives what it
 * gives in an empty session, and removes all others. Returns how many are kept: n, or fewer where the session
 * is shorter, where generated positions are decided about in another way than a prompt's, and with an
 * encoder. */
MOERT_API uint32_t moert_session_keep(struct moert_session *session, uint32_t n);
/* The same of a copy of `from` in `to`, another session of the engine, whose own positions are lost. */
MOERT_API uint32_t moert_session_copy(struct moert_session *to, const struct moert_session *from, uint32_t n);

/* Positions below n are a prompt's (decisions.decode_only); generators set it by themselves. 0 at first. */
MOERT_API void moert_session_set_prompt(struct moert_session *session, uint32_t n);

/* What tokens took by the decisions, those taken back too, prompts not with decode_only; 0 without decisions. */
struct moert_decided {
    uint64_t n_taken, n_missed;   /* experts, and those of them that the logical cache had not */
    uint64_t n_low, n_low_missed; /* of these, low copies */
    uint64_t n_skipped;           /* experts that were chosen and not taken */
    double missed_bytes;          /* of the records of n_missed, for each token */
};
MOERT_API struct moert_decided moert_session_decided(const struct moert_session *session);
MOERT_API uint32_t moert_session_length(const struct moert_session *session);
/* Removes every position from n on; does nothing if the session is shorter. */
MOERT_API void moert_session_truncate(struct moert_session *session, uint32_t n);
/* An independent copy; counts as one more session. */
MOERT_API enum moert_status moert_session_fork(const struct moert_session *session,
                                               struct moert_session **out, struct moert_error *err);

/* Choosing the next token. temperature 0 is greedy (ties to the lower id). Otherwise: logits / temperature,
 * the top_k largest (0 = all), the smallest set of these with probability >= top_p; of them those with at
 * least min_p of the likeliest one's probability (0 = all); of them the smallest set with probability >=
 * typical_p whose information is nearest to the average (0 or 1 = all; Meister et al., "Locally Typical
 * Sampling", 2022); one draw. The order and the sets are those of transformers. The same seed draws the same
 * tokens. */
struct moert_sampler {
    float temperature;
    uint32_t top_k;
    float top_p;
    uint64_t state; /* of the random numbers: set it to the seed */
    float min_p, typical_p;
};
MOERT_API struct moert_sampler moert_sampler_greedy(void);
/* `logits` (n_vocab) is used as scratch when temperature > 0. */
MOERT_API uint32_t moert_sampler_next(struct moert_sampler *sampler, float *logits, uint32_t n_vocab);

enum moert_early_stopping {
    MOERT_STOP_HEURISTIC = 0, /* when no running beam is likely to beat the worst finished one */
    MOERT_STOP_EARLY = 1,     /* likewise, or when as many have finished as there are beams */
    MOERT_STOP_NEVER = 2,     /* when no running beam can beat it, even if it grows longer */
};

#define MOERT_DRAFT_TOKENS 8 /* of the longest draft */

/* Guesses at the next tokens, which the model verifies in one batch. They never change what is generated, and
 * are made only as long as they pay. */
enum moert_draft {
    MOERT_DRAFT_NONE = 0,
    MOERT_DRAFT_LOOKUP = 1, /* what followed the last tokens where they stood before in prompt or text */
};

/* How a text is generated. moert_generation_default returns the bundle's settings (the model's
 * generation_config.json), with no more beams than the engine was opened for. The bundle may also force and
 * suppress tokens. The same settings give the same tokens as transformers. */
struct moert_generation {
    uint32_t n_tokens;         /* at most this many; MOERT_TOKENS_OF_MODEL = as the bundle says, else 128 */
    uint32_t min_tokens;       /* at least this many; 0 = as the bundle says */
    uint32_t n_beams;          /* 1 = token by token; more beams find a likelier text */
    double length_penalty;     /* beams are compared by log probability / (tokens ^ this) */
    double repetition_penalty; /* makes tokens already in the text less likely; 1 = off */
    enum moert_early_stopping early_stopping;
    uint32_t no_repeat_ngram;     /* no sequence of n tokens occurs twice; 0 = off */
    bool ignore_end;              /* continue after tokens that end a text */
    struct moert_sampler sampler; /* greedy with beams */
    enum moert_draft draft;       /* none with beams */
    bool
        is_given; /* the caller runs the session and gives logits (moert_generator_begin); no beams, drafts */
};
MOERT_API struct moert_generation moert_generation_default(const struct moert_engine *engine);

enum moert_generated {
    MOERT_GENERATED_TOKEN = 0,   /* one more token */
    MOERT_GENERATED_END = 1,     /* the token that ends the text; not part of it */
    MOERT_GENERATED_LENGTH = 2,  /* no token: n_tokens have been generated */
    MOERT_GENERATED_CONTEXT = 3, /* no token: the context is full */
};

/* Generates texts on a session, one after the other. Nothing else may use the session until the generator is
 * freed. It allocates only when it is created. Errors: MOERT_ERR_LIMIT for more beams than
 * options.sessions.n_beams and for drafts without options.sessions.drafts; MOERT_ERR_USAGE for draws or
 * drafts with beams. */
struct moert_generator;
MOERT_API enum moert_status moert_generator_create(struct moert_session *session,
                                                   const struct moert_generation *generation,
                                                   struct moert_generator **out, struct moert_error *err);
MOERT_API void moert_generator_free(struct moert_generator *generator);
/* Reads a prompt, with the encoder if the model has one, after clearing the session. */
MOERT_API enum moert_status moert_generator_start(struct moert_generator *generator, const uint32_t *tokens,
                                                  size_t n_tokens, struct moert_error *err);
/* The same for a prompt that may begin with what the session holds of the text before, such as the next turn
 * of a conversation: that much is kept, `*n_kept` tokens, and only the others are read. What is generated is
 * the same. Beams and encoders keep nothing. */
MOERT_API enum moert_status moert_generator_continue(struct moert_generator *generator,
                                                     const uint32_t *tokens, size_t n_tokens, size_t *n_kept,
                                                     struct moert_error *err);
/* The next token. With beams all the work is done in the first call. */
MOERT_API enum moert_status moert_generator_next(struct moert_generator *generator, uint32_t *token,
                                                 enum moert_generated *what, struct moert_error *err);
/* In place of start and next where generation.is_given: takes a prompt, which the caller appends to the session
 * (after moert_session_set_prompt), and chooses the next token from the logits after the last one (n_vocab),
 * which are then scratch. The caller appends what was chosen. The text is that of start and next. Errors:
 * MOERT_ERR_USAGE of another generator. */
MOERT_API enum moert_status moert_generator_begin(struct moert_generator *generator, const uint32_t *tokens,
                                                  size_t n_tokens, struct moert_error *err);
MOERT_API enum moert_status moert_generator_choose(struct moert_generator *generator, float *logits,
                                                   uint32_t *token, enum moert_generated *what,
                                                   struct moert_error *err);
/* Tokens that may still follow. */
MOERT_API uint32_t moert_generator_left(const struct moert_generator *generator);
/* How often the model has run on generated tokens since the start: once for each token, whatever the beams,
 * but for accepted drafts. */
MOERT_API uint64_t moert_generator_steps(const struct moert_generator *generator);
/* Tokens that were drafted since the start, and those of them that saved a step. */
MOERT_API uint64_t moert_generator_drafted(const struct moert_generator *generator);
MOERT_API uint64_t moert_generator_accepted(const struct moert_generator *generator);

/* ---- conversations ---- */

/* Values that a chat template is given: null, bools, numbers, strings, lists and dicts. They belong to what
 * they were made with and are freed with it. Making one never fails: what went wrong (memory, a string that
 * is not UTF-8) is reported by moert_chat_render. One thread. */
struct moert_values;
struct moert_value;
MOERT_API enum moert_status moert_values_create(struct moert_values **out, struct moert_error *err);
MOERT_API void moert_values_free(struct moert_values *values);
MOERT_API struct moert_value *moert_value_null(struct moert_values *values);
MOERT_API struct moert_value *moert_value_bool(struct moert_values *values, bool value);
MOERT_API struct moert_value *moert_value_int(struct moert_values *values, int64_t value);
MOERT_API struct moert_value *moert_value_double(struct moert_values *values, double value);
MOERT_API struct moert_value *moert_value_string(struct moert_values *values, const char *text,
                                                 size_t n_bytes);
MOERT_API struct moert_value *moert_value_list(struct moert_values *values);
MOERT_API struct moert_value *moert_value_dict(struct moert_values *values);
/* `list` and `dict` are what they are called. A key that is there gets the new value. */
MOERT_API void moert_value_append(struct moert_values *values, struct moert_value *list,
                                  const struct moert_value *item);
MOERT_API void moert_value_set(struct moert_values *values, struct moert_value *dict, const char *key,
                               const struct moert_value *value);

/* A conversation as transformers' apply_chat_template takes it. NULL members are not there for the template.
 */
struct moert_chat {
    const struct moert_value *messages;  /* a list of dicts with role and content */
    const struct moert_value *tools;     /* a list of JSON schemas */
    const struct moert_value *variables; /* a dict of others, such as documents or enable_thinking */
    bool add_generation_prompt;          /* ends with what begins an answer */
    const struct tm *date;               /* for templates that show it */
    uint64_t memory_bytes;               /* that rendering may take; 0 = 256 MiB */
};

/* The text of a conversation, and for each byte whether it came from the caller's values (1) or is the
 * template's own (0). */
struct moert_chat_text {
    char *text; /* UTF-8; a NUL follows */
    uint8_t *marks;
    size_t n_bytes;
};

/* Whether the bundle has a chat template. */
MOERT_API bool moert_engine_has_chat(const struct moert_engine *engine);
/* Renders with the bundle's template; `*out` is released with moert_chat_text_release. Errors:
 * MOERT_ERR_UNSUPPORTED where the bundle has none, or one that uses more of Jinja than there is here, with
 * the place; MOERT_ERR_USAGE where the template refuses the conversation; MOERT_ERR_FORMAT where it fails;
 * MOERT_ERR_LIMIT where it does not end. */
MOERT_API enum moert_status moert_chat_render(const struct moert_engine *engine, struct moert_values *values,
                                              const struct moert_chat *chat, struct moert_chat_text *out,
                                              struct moert_error *err);
MOERT_API void moert_chat_text_release(struct moert_chat_text *text);
/* Its tokens. Special tokens are recognised in what the template wrote alone: what a user types never becomes
 * one. The caller frees `*tokens` with moert_free. */
MOERT_API enum moert_status moert_chat_tokenize(const struct moert_engine *engine,
                                                const struct moert_chat_text *text, uint32_t **tokens,
                                                size_t *n_tokens, struct moert_error *err);

#ifdef __cplusplus
}
#endif
#endif
