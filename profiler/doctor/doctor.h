/* What a model is and what it would take to run: for a checkpoint as compile would write it, experts at each
 * bitwidth and dense weights at 16 and at 4 bits, or as the request says; for a bundle as it is, each of its precision copies.
 *
 * From headers alone. Sizes of files are exact but for the dense weights, which are counted as they are in
 * memory and are compressed in the file. Memory is that of the runtime's own plan (memory_plan.h) for one
 * session, for moec-run and for moec run. Thread rule: pure functions, which ask the system for its
 * processors. */
#ifndef MOEC_PROFILER_DOCTOR_H
#define MOEC_PROFILER_DOCTOR_H

#include "formats/bundle/bundle.h"
#include "formats/checkpoint/checkpoint.h"

#define MOEC_DOCTOR_MAX_SIZES 8
#define MOEC_DOCTOR_MAX_DENSE 2

#define MOEC_DOCTOR_CONTEXT_TOKENS 512u

/* What programs hold before a model's weights, without its tokenizer. */
enum moec_doctor_program { MOEC_DOCTOR_MOEC_RUN, MOEC_DOCTOR_MOEC, MOEC_DOCTOR_N_PROGRAM };

/* moec-run's, with a bundle open, on x86-64: 6.3 to 6.55 MiB in 200 starts with Debian 12; Debian 13's
 * libraries and code took .6 more. Three eighths of the code are counted (process_memory.h), so kernels that are
 * added raise it: tests/cli/doctor.sh compares. */
#define MOEC_DOCTOR_RUN_BYTES ((uint64_t)53 << 17)

/* At any start of a program (moec_memory_start_bytes). */
struct moec_doctor_need {
    uint64_t least_bytes; /* smallest --memory */
    uint64_t whole_bytes; /* --memory from which on every expert stays */
    double kept;          /* part of the experts' bytes that stays within the budget; -1: refused, 1 without
                             a budget */
};

/* With dense weights at one bitwidth. */
struct moec_doctor_plan {
    uint64_t bundle_bytes; /* at most */
    struct moec_doctor_need needs[MOEC_DOCTOR_N_PROGRAM];
};

/* Experts all at one bitwidth, or a copy of a bundle. */
struct moec_doctor_size {
    uint32_t bits;         /* 0 = mixed */
    bool is_exact;         /* bits is 16, but stands for codes that the source has: MXFP4 */
    uint64_t expert_bytes; /* all, with padding */
    uint64_t token_bytes;  /* one token's: MoE layers x top-k x record; less than that hits nothing */
    struct moec_doctor_plan plans[MOEC_DOCTOR_MAX_DENSE];
};

struct moec_doctor {
    uint64_t n_parameter;
    uint64_t n_active;  /* of one token: all but experts that it does not choose; embeddings count whole */
    uint32_t n_context; /* tokens of the KV cache that is counted */
    uint32_t n_dense;
    uint32_t dense_bits[MOEC_DOCTOR_MAX_DENSE]; /* of a bundle: 0, as they are */
    uint32_t n_size;
    struct moec_doctor_size sizes[MOEC_DOCTOR_MAX_SIZES];
};

struct moec_doctor_request {
    /* Of the process that runs the model, with its tokenizer and before any weights are loaded. */
    uint64_t base_bytes[MOEC_DOCTOR_N_PROGRAM];
    uint64_t budget_bytes; /* 0 = none */
    uint32_t n_context;    /* as many as the model knows where that is less; 0 = MOEC_DOCTOR_CONTEXT_TOKENS */
    uint32_t dense_bits;   /* of a checkpoint's second plan; 0 = 4 */
    int n_threads;         /* as moec_pool_make */
};

/* Bytes that a process takes beside base_bytes once it has this tokenizer; 0 without one (NULL). It is
 * counted by what the tokenizer allocates: resident pages would differ from run to run, and what is fitted
 * to a memory with them. Errors: those of moec_tokenizer_create. */
MOEC_WARN_UNUSED enum moec_status moec_doctor_tokenizer_bytes(const struct moec_tokenizer_model *model,
                                                              uint64_t *n_bytes, struct moec_error *err);

/* Errors: MOEC_ERR_MEMORY, MOEC_ERR_LIMIT. */
MOEC_WARN_UNUSED enum moec_status moec_doctor_checkpoint(const struct moec_checkpoint *checkpoint,
                                                         const struct moec_doctor_request *request,
                                                         struct moec_doctor *doctor, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_doctor_bundle(const struct moec_bundle *bundle,
                                                     const struct moec_doctor_request *request,
                                                     struct moec_doctor *doctor, struct moec_error *err);

#endif
