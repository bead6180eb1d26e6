/* One row's process: a child that opens an engine through libmoert's public header and computes samples when
 * asked. A child of its own, because peak memory is a property of a process (D7), and because what kills one
 * row must not kill the others.
 *
 *   bench                               worker (forked)
 *     |-- fork ------------------------->| opens the engine, waits until its buffer is warm
 *     |<-- OPENED | FAILED --------------|
 *     |--- RUN sample ------------------>| prompt, then token after token
 *     |<-- SAMPLE, times | FAILED -------|
 *     |--- (closes) or SIGKILL --------->| _exit
 *
 * Frames are those of formats/base/pipe.h; payloads are the structs below. A worker ends when the bench does,
 * however that ends. Thread rule: one thread. */
#ifndef MOEC_PROFILER_BENCH_WORKER_H
#define MOEC_PROFILER_BENCH_WORKER_H

#include "formats/base/digest.h"
#include "runtime/moert.h"
#include "runtime/policy/evict/evict.h"

#include <sys/types.h>

/* Token ids of all samples; the same for every worker. */
struct moec_bench_tokens {
    uint32_t n_sample;
    uint32_t prompt_tokens, n_tokens; /* of a sample: the prompt, and the tokens fed after it */
    uint32_t *tokens; /* (n_sample + 1, prompt_tokens + n_tokens), owned; the last row is the one
                       * that is not counted */
    char name[256];   /* of the data */
    uint8_t digest[MOEC_SHA256_BYTES]; /* of the tokens */
};

struct moec_bench_opened {
    uint32_t n_threads, prefill_tokens, copy;
    uint64_t base_bytes, dense_bytes, kv_bytes, scratch_bytes;
    uint64_t expert_buffer_bytes, expert_total_bytes, working_set_bytes;
    uint64_t logical_cache_bytes, logical_passing_bytes; /* of decisions; 0 = there is no logical cache */
    bool keeps_logical_cache;
    char cpu[16], arithmetic[16], kv[8], evict[MOEC_EVICT_WORD_BYTES], predict[24];
    char reader[160]; /* how bytes come from the device */
    char device[64];  /* "" = none, with: */
    uint64_t vram_bytes, vram_pool_bytes;
    char tuned[160];   /* the bundle's own decisions where they are in use; "" = none */
    char warning[512]; /* a warning for the user; "" = none */
    double open_seconds;
};

/* What libmoert counted over some steps. */
struct moec_bench_counters {
    uint64_t hits, late, misses;
    uint64_t useful_preloads, wasted_preloads;
    uint64_t read_bytes, stall_ns, compute_ns;
    uint64_t n_taken, n_decided_miss, n_low, n_skipped; /* of decisions, as struct moert_decided */
    uint64_t pool_hits, pool_late, pool_misses, copied_bytes, record_bytes; /* of a device */
};

struct moec_bench_sample {
    uint64_t prefill_ns;
    struct moec_bench_counters prefill, decode;
    double decode_joules; /* NaN: not available */
    uint64_t peak_bytes;  /* of the process so far */
    uint32_t logits_crc;  /* CRC32C of all logits: the same for equal precisions */
    uint32_t reserved;
};

/* One decoded token. */
struct moec_bench_token {
    uint64_t ns;         /* its step and the choice of the next */
    uint64_t read_bytes; /* from the device meanwhile, preloads included */
};

struct moec_bench_worker_setup {
    const char *path;                       /* of the bundle */
    struct moert_options engine;            /* but for its context, which is what a sample takes */
    const struct moec_bench_tokens *tokens; /* borrowed while the worker lives */
};

struct moec_bench_worker {
    pid_t pid;  /* 0: none */
    int socket; /* -1: none */
};

/* Asked several times a second while a worker works: a status other than MOEC_OK ends the waiting. */
struct moec_bench_wait {
    enum moec_status (*poll)(void *context, struct moec_error *err);
    void *context;
};

/* Forks. `others` (n_others) are the workers that exist: the new one lets go of their sockets. */
MOEC_WARN_UNUSED enum moec_status moec_bench_worker_start(const struct moec_bench_worker_setup *setup,
                                                          const struct moec_bench_worker *others,
                                                          uint32_t n_others, struct moec_bench_worker *worker,
                                                          struct moec_error *err);

/* Waits for its engine. Errors: what the worker reports, MOEC_ERR_IO when it died (the message says of
 * what), and what `wait` says. */
MOEC_WARN_UNUSED enum moec_status moec_bench_worker_opened(struct moec_bench_worker *worker,
                                                           const struct moec_bench_wait *wait,
                                                           struct moec_bench_opened *opened,
                                                           struct moec_error *err);

/* Room for what is measured of each token that a sample decodes. */
struct moec_bench_decoded {
    struct moec_bench_token *tokens; /* (n_tokens) */
    uint32_t n_tokens;
};

/* Computes a sample (n_sample: the one that is not counted) and waits for it.
 * Errors as above. */
MOEC_WARN_UNUSED enum moec_status moec_bench_worker_run(struct moec_bench_worker *worker, uint32_t sample,
                                                        const struct moec_bench_wait *wait,
                                                        struct moec_bench_sample *out,
                                                        const struct moec_bench_decoded *decoded,
                                                        struct moec_error *err);

/* Lets the worker close its engine (its trace appears then) and end; after some seconds it is ended anyway.
 * NULL-safe, idempotent. Errors: what the worker reports (a trace that could not be written), MOEC_ERR_IO
 * where it had to be ended. */
MOEC_WARN_UNUSED enum moec_status moec_bench_worker_finish(struct moec_bench_worker *worker,
                                                           struct moec_error *err);

/* Ends the worker, at once, and waits until it is gone. NULL-safe, idempotent. */
void moec_bench_worker_end(struct moec_bench_worker *worker);

#endif
