/* What a bench is asked for, and what it measured of each row (profiler/bench/bench.h has the words). Plain data:
 * a row's strings are its own, options borrow. */
#ifndef MOEC_PROFILER_BENCH_RESULT_H
#define MOEC_PROFILER_BENCH_RESULT_H

#include "formats/bundle/bundle.h"
#include "profiler/bench/bench_worker.h"
#include "profiler/common/progress.h"
#include "profiler/tasks/rows.h"
#include "runtime/storage/reader.h"

#define MOEC_BENCH_MAX_LIST 16  /* values of one option */
#define MOEC_BENCH_MAX_ROWS 256 /* processes, at once where memory allows */
#define MOEC_BENCH_NAME     128

/* What experts may take. */
struct moec_bench_memory {
    char name[24];  /* as asked for: "25%", "64MiB" */
    double share;   /* of the bytes of all experts of the compiled assignment, for every mode; 0: */
    uint64_t bytes; /* budget of the whole process, as `moec run --memory` */
};

struct moec_bench_storage {
    char name[32]; /* as asked for: "550MB/s,80us"; "" = the device itself */
    struct moec_emulation emulation;
};

struct moec_bench_options {
    const char *path; /* of the bundle */
    const char *modes[MOEC_BENCH_MAX_LIST];
    uint32_t n_mode; /* 0: all that the bundle has the copies for */
    struct moec_bench_memory memories[MOEC_BENCH_MAX_LIST];
    uint32_t n_memory;
    struct moec_bench_storage storages[MOEC_BENCH_MAX_LIST];
    uint32_t n_storage;                      /* 1 or more; the device itself is a storage too */
    const char *evicts[MOEC_BENCH_MAX_LIST]; /* words of moec_evict_read */
    uint32_t n_evict;                        /* of the mode cache, a row each; 0: its own */
    /* What all rows have in common, those on a device one at a time. Of its buffer, predict and preload_ahead are
     * of the mode cache, preload_count of rows that guess; vram_bytes of rows but those with everything resident;
     * trace.scores of rows that are traced. */
    struct moert_options engine;
    const char *traces; /* folder that exists, for a trace of each row; NULL: none */
    /* Called with the file of each trace before any work; a failure ends the bench. May be NULL. */
    enum moec_status (*check_trace)(void *context, const char *path, struct moec_error *err);
    void *check_context;
    bool against_none; /* beside each row that preloads the same one without */
    bool ablation;     /* rows for EdgeMoE's Fig. 18 */
    uint32_t n_sample, prompt_tokens, n_tokens;
    const struct moec_rows *rows; /* data, borrowed; NULL: a text that moec brings */
};

enum moec_bench_kind {
    MOEC_BENCH_ROW,
    MOEC_BENCH_REFERENCE, /* everything resident, for the floor of rows of the same copy */
};

/* What is shown of a row. NaN: not available. */
struct moec_bench_figures {
    double ttft_ms, tpot_ms_median, tpot_ms_p95, tpot_ms_mean;
    double hit_rate, late_rate, miss_rate; /* of the experts that routers asked for while decoding */
    double bytes_per_token;                /* read while decoding, preloads included */
    double stall_ms;                       /* of a token: the computing thread waited for storage */
    double compute_ms;                     /* of a token of the same precisions, all resident */
    double bytes_per_second;               /* of the device, median over samples */
    double transfer_ms;                    /* bytes_per_token at the device's bandwidth */
    double floor_ms;                       /* mean over tokens */
    double prompt_bytes;                   /* read for a prompt, preloads included, mean */
    double prompt_compute_ms, prompt_transfer_ms, prompt_floor_ms; /* as above, of a prompt */
    double joules_per_token;
    /* Of rows that decide, while decoding: misses of the logical cache among the experts taken; of all
     * chosen, those taken in a low copy, and those skipped. */
    double decided_miss_rate, low_rate, skip_rate;
    uint64_t useful_preloads, wasted_preloads;
};

struct moec_bench_row {
    enum moec_bench_kind kind;
    char name[MOEC_BENCH_NAME]; /* "edgemoe 25%" */
    const char *mode, *label;   /* label: the mode as figures call it */
    uint32_t copy;              /* precision copy that it runs */
    uint32_t memory;            /* index into memories, n_memory where it does not matter */
    uint32_t storage;           /* index into storages, n_storage: everything is resident */
    uint32_t pair;              /* index of the same row without predictions; own index where there is none */
    uint32_t group;             /* of rows that run at the same time */
    bool is_variant;            /* made for --evict, --against-none or the ablation */
    uint64_t memory_bytes; /* asked for: of experts, or of the process where memories[memory].share is 0 */
    struct moert_options engine;   /* how the worker opens it */
    char *trace;                   /* owned: file that engine.trace names; NULL: none */
    struct moec_error error;       /* status MOEC_OK: measured */
    struct moec_error trace_error; /* of a measured row: why its trace is not there */
    struct moec_bench_opened opened;
    struct moec_bench_sample *samples; /* (n_sample), owned */
    struct moec_bench_token *decoded;  /* (n_sample, n_tokens), owned */
    double *bytes_per_second;          /* (n_sample), owned: of its device; 0: everything is resident */
    uint64_t peak_bytes;               /* of its process */
    struct moec_bench_figures figures;
};

struct moec_bench {
    struct moec_bench_options options; /* borrows as they did */
    struct moec_bench_tokens tokens;   /* owned */
    uint32_t n_row;
    struct moec_bench_row *rows; /* (n_row), owned; in the order of the table, references last */
    uint32_t n_failed;           /* rows with an error */
    uint32_t n_untraced;         /* rows with a trace_error */
    uint32_t n_group;
    uint64_t expert_total_bytes;                            /* of the compiled assignment */
    double bandwidth[MOEC_BENCH_MAX_LIST][MOEC_MAX_COPIES]; /* bytes a second of each storage, reading records
                                                             * of each copy, measured last; 0: not needed */
    char left_out[512]; /* modes that the bundle has no copy for, in words; "" = none */
};

/* The first row with this label, memory, storage, default policies and without pair; NULL when there is none
 * or it failed. */
const struct moec_bench_row *moec_bench_find(const struct moec_bench *bench, const char *label,
                                             uint32_t memory, uint32_t storage);

#endif
