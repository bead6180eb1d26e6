/* What an engine is made of, for the files of this room. */
#ifndef MOEC_RUNTIME_ENGINE_H
#define MOEC_RUNTIME_ENGINE_H

#include "formats/bundle/record_parts.h"
#include "formats/decisions/decision_file.h"
#include "formats/model/decision_settings.h"
#include "formats/tables/expert_predictor.h"
#include "runtime/engine/engine_gpu.h"
#include "runtime/engine/kv_lending.h"
#include "runtime/engine/memory_plan.h"
#include "runtime/engine/memory_watch.h"
#include "runtime/engine/mode.h"
#include "runtime/experts/clocked_experts.h"
#include "runtime/experts/expert_cache.h"
#include "runtime/experts/expert_stream.h"
#include "runtime/experts/low_copy.h"
#include "runtime/forward/moe/decide.h"
#include "runtime/forward/moe/sparsity.h"
#include "runtime/kernels/arithmetic.h"
#include "runtime/text/tokenizer.h"
#include "runtime/trace/trace.h"

#include <stdatomic.h>

#define MOEC_MAX_SESSIONS 1024u /* of an engine */

/* What its products are computed in. */
struct moec_engine_arithmetic {
    enum moec_arithmetic kind;
    char certified[32]; /* what the certificate of what runs means; "" = there is none */
    bool falls_back;    /* it means bf16, nothing else was asked for, and nothing here computes in that */
};

/* What its sessions have and share. */
struct moec_engine_sessions {
    uint32_t n_context;
    uint32_t rope_tokens;    /* the context that was asked for, which rotary angles are chosen by */
    uint32_t n_prompt;       /* of the options' prompt */
    uint32_t n_sessions;     /* allowed */
    uint32_t n_beams;        /* allowed to a generator */
    bool drafts;             /* likewise */
    bool one_thread;         /* they share `work` */
    struct moert_work *work; /* of the sessions that exist, while they share it (moert_session.c) */
    atomic_uint n_open;      /* sessions that exist */
};

/* Where experts come from. */
struct moec_engine_experts {
    struct moec_expert_cache *cache; /* one of these two serves them */
    struct moec_expert_stream *stream;
    struct moec_engine_gpu *gpu; /* in front of the cache; NULL = the CPU alone */
    bool on_device;              /* as the options say */
    struct moec_record_io io;
    struct moec_record_parts parts;         /* of experts that come in parts; n_layer 0 = they come whole */
    struct moec_expert_predictor predictor; /* n_layer 0 = nothing learned is asked */
    struct moec_kv_lending lending;
    struct moec_memory_watch watch;
};

/* What tokens decide. */
struct moec_engine_decisions {
    struct moec_route route;
    struct moec_logical_cache *logical;  /* of the route, owned; NULL where it looks at none */
    struct moec_decision_settings tuned; /* the bundle's, where they are in use; else all zero */
    char tuned_slots[2][12];             /* its slots and low slots in words */
    /* With a precision or a prefill: the copy that stands in for important experts' others. */
    struct moec_cache_form low;
    uint32_t low_pool_slots;          /* by what the buffer holds: of --low-slots, 0 = not told */
    uint64_t low_pool_bytes;          /* of the buffer, for low copies alone; 0 = there are no pools */
    struct moec_decision_file replay; /* until the book has it; path NULL = none */
    struct moec_decision_book *book;  /* with decisions by what the buffer holds; else NULL */
    uint64_t *record_bytes[2];        /* with decisions, of struct moec_decider, owned */
    struct moec_sparsity *sparsity;   /* NULL = none */
    bool is_planned;                  /* it is that of the bundle's plan */
};

/* What is recorded. */
struct moec_engine_trace {
    struct moec_trace *file;   /* NULL when none is written */
    bool scores;               /* with what routers say of every expert */
    atomic_ullong *compute_ns; /* (MoE layers), owned */
};

struct moert_engine {
    struct moec_bundle *bundle;
    struct moec_model *model;
    struct moec_tokenizer *tokenizer; /* NULL when the bundle has none */
    struct moec_engine_chat *chat;
    const struct moec_kernels *kernels;
    int n_threads;
    struct moec_mode_choice choice;
    struct moec_memory_plan plan;
    struct moec_engine_arithmetic arithmetic;
    struct moec_engine_sessions sessions;
    struct moec_engine_experts experts;
    struct moec_engine_decisions decisions;
    struct moec_engine_trace trace;
};

/* Whichever of cache and stream serves the experts; borrowed. */
struct moec_experts *moert_engine_experts(const struct moert_engine *engine);
/* The tokens that a text may have after a prompt of n_prompt, of those asked for (MOERT_TOKENS_OF_MODEL too).
 */
uint32_t moert_engine_text_room(const struct moert_engine *engine, uint32_t asked, uint32_t n_prompt);

#endif
