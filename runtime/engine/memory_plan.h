/* How a memory budget is spent (D7): the peak resident size of the whole process, VmHWM, stays within it.
 *
 *  - process: what the program had touched when the plan was made: libraries, tokenizer, tables of the
 *    bundle, and its code, of which a share counts even where it was not touched yet
 *  - dense: dense weights and the tables made of them
 *  - KV cache: for n_context positions of each session, and of each beam; what is empty of it may serve as
 *    expert buffer meanwhile (runtime/engine/kv_lending.h)
 *  - scratch: activations for chunks of max_tokens tokens, of each session or shared by all
 *  - logits: rows handed out, and what choosing tokens takes
 *  - experts: the expert buffer; beside it the cache's tables, with its policy, predictor, reader and thread
 *  - margin: what no plan sees: code touched later, stacks, the allocator's own, and what the program that
 *    embeds the library asked for itself (options.reserve_bytes)
 *
 * The floor is all of it with chunks of one token and room for one record. What a budget has above the floor
 * goes to the prefill chunk first, up to a quarter of it, then to experts: a chunk twice as long halves the
 * bytes that a prompt reads when experts do not fit, while a larger buffer only adds some hits. When all
 * experts fit beside a larger chunk, or the buffer's size is fixed, the chunk may take more than the quarter.
 * Where tokens decide by logical caches and the budget has room for what these hold, chunks of more than
 * MOEC_PLAN_SHORT_TOKENS leave that room to experts, so that what is logically present is in memory.
 *
 * One token's working set is the line under which an LRU buffer hits nothing while decoding, since each
 * record is evicted before its layer comes round again, and policies that count uses hit little. Thread rule:
 * pure functions. */
#ifndef MOEC_RUNTIME_MEMORY_PLAN_H
#define MOEC_RUNTIME_MEMORY_PLAN_H

#include "formats/bundle/bundle.h"
#include "runtime/engine/process_memory.h"
#include "runtime/kernels/arithmetic.h"
#include "runtime/policy/decide/logical_cache.h"
#include "runtime/policy/decide/route.h"
#include "runtime/policy/evict/evict.h"

#define MOEC_PLAN_MAX_TOKENS   512 /* longest prefill chunk */
#define MOEC_PLAN_SHORT_TOKENS 32  /* that logical caches do not displace */
#define MOEC_PLAN_MARGIN_BYTES ((uint64_t)7 << 16)
#define MOEC_PLAN_THREAD_BYTES ((uint64_t)32 << 10) /* margin for each thread */

/* What the process takes besides. */
struct moec_process_request {
    uint64_t
        base_bytes; /* now (moec_memory_base_bytes), with the bundle open, dense weights not yet loaded */
    uint64_t reserve_bytes; /* that the program wants for itself, beside the library */
    int n_threads;
};

/* What the bundle takes. */
struct moec_bundle_request {
    uint64_t dense_bytes;          /* blob of the dense weights, and what bringing some late takes */
    uint64_t table_bytes;          /* of the expert cache */
    uint64_t largest_record_bytes; /* these three: see struct moec_record_sizes */
    uint64_t all_record_bytes;
    uint64_t token_record_bytes;
};

/* What sessions take. */
struct moec_sessions_request {
    uint32_t n_context;
    uint32_t n;               /* 0 counts as 1 */
    bool share_scratch;       /* they work one after the other, in one scratch */
    uint32_t n_beams;         /* sequences of each session; 0 counts as 1 */
    uint32_t n_logits;        /* rows of logits kept at once by all sessions together */
    uint64_t generator_bytes; /* of all generators, but for their sequences and those rows */
    uint32_t n_together; /* tokens that come together at most: no longer chunk is of use; 0 = not known */
};

/* What forward passes are. */
struct moec_pass_request {
    enum moec_arithmetic arithmetic;
    bool on_device;                 /* (runtime/cuda/gpu_backend.h) */
    const struct moec_route *route; /* of sessions that decide; NULL = none */
    bool keeps_logits;              /* of routers, for a trace (moec_forward_keep_logits) */
};

/* What the expert buffer is to be. */
struct moec_buffer_request {
    uint64_t n_bytes; /* as a user fixes it (no less than the largest record is taken, no more than all of
                         them); 0 = what the budget leaves */
    struct moec_logical_room logical; /* of sessions' logical caches; all zero = there are none */
    bool keeps_all;                   /* chunks take nothing that would hold an expert */
};

struct moec_memory_request {
    const struct moec_config *config;
    uint64_t budget_bytes; /* 0 = no limit */
    struct moec_process_request process;
    struct moec_bundle_request bundle;
    struct moec_sessions_request sessions;
    struct moec_pass_request pass;
    struct moec_buffer_request buffer;
};

/* Fills config and what a bundle knows, of a precision copy (policy NULL = LRU). */
void moec_memory_request_bundle(struct moec_memory_request *request, const struct moec_bundle *bundle,
                                uint32_t copy, const struct moec_evict_ops *policy);

/* Bytes by what takes them. */
struct moec_memory_parts {
    uint64_t base_bytes;
    uint64_t dense_bytes;   /* with derived tables */
    uint64_t kv_bytes;      /* all sessions */
    uint64_t scratch_bytes; /* all sessions, at max_tokens */
    uint64_t logits_bytes;
    uint64_t table_bytes;
    uint64_t margin_bytes;
};

/* What the buffer holds of the experts. */
struct moec_memory_experts {
    uint64_t working_set_bytes; /* of one token */
    uint64_t all_bytes;
    struct moec_logical_room logical; /* the request's */
    bool all_stay;                    /* every expert stays resident */
    bool below_working_set;           /* and not all_stay */
};

struct moec_memory_plan {
    uint32_t max_tokens;          /* prefill chunk, for moec_forward_init */
    uint64_t expert_buffer_bytes; /* for moec_expert_cache_create */
    struct moec_memory_parts parts;
    uint64_t total_bytes; /* the buffer and all parts */
    uint64_t floor_bytes; /* smallest budget that is accepted */
    uint32_t n_context;   /* positions that it holds: the request's */
    struct moec_memory_experts experts;
};

/* Errors: MOEC_ERR_BUDGET below the floor, itemised; MOEC_ERR_LIMIT when sizes overflow. */
MOEC_WARN_UNUSED enum moec_status moec_memory_plan_make(const struct moec_memory_request *request,
                                                        struct moec_memory_plan *plan,
                                                        struct moec_error *err);

/* Whether the expert buffer has room for what logical caches hold; true without them. */
bool moec_memory_plan_holds_logical(const struct moec_memory_plan *plan);

/* The smallest budget from which on every expert stays, whatever a larger one is spent on. */
uint64_t moec_memory_plan_whole_bytes(const struct moec_memory_request *request);

/* What another start of the program may take beyond a floor that was measured at this one: what is promised
 * of any start leaves it. Less than half a mebibyte and a thirty-second. */
uint64_t moec_memory_start_bytes(uint64_t floor_bytes);

/* The most positions, at most the request's, whose floor is within the budget at any start of the program: it
 * leaves moec_memory_start_bytes. 0 when not even one's is. Everything is within a budget of 0. */
uint32_t moec_memory_plan_context(const struct moec_memory_request *request);

/* Writes a warning about the plan for the user and returns true; returns false if there is none. */
bool moec_memory_plan_warning(const struct moec_memory_plan *plan, char *text, size_t capacity);

#endif
