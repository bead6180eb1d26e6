/* A record of what a running engine did, for people (Perfetto) and for the simulator.
 *
 * Events go into a buffer of fixed size while tokens are computed (no allocation, no system call) and are
 * written to the file between steps. The file is JSON in the trace-event form that Perfetto and
 * chrome://tracing open; line by line in formats/trace/TRACE.md. The forward pass records answers and
 * computing (struct moec_forward has the trace), sources of experts record reads and waiting. Thread rule:
 * any thread records (one lock inside, held for a copy); flush from a thread that steps. */
#ifndef MOEC_RUNTIME_TRACE_H
#define MOEC_RUNTIME_TRACE_H

#include "formats/bundle/bundle.h"
#include "runtime/seam/experts.h"

struct moec_trace;

enum moec_trace_lane { /* rows in the viewer */
                       MOEC_TRACE_COMPUTE,
                       MOEC_TRACE_STALL,   /* the computing thread waits for storage */
                       MOEC_TRACE_DEMAND,  /* reads that the router asked for */
                       MOEC_TRACE_PRELOAD, /* reads of guesses */
};

/* In which copies experts are taken. */
struct moec_trace_copies {
    uint32_t copy;
    uint32_t low;          /* that they may be taken in too; 0: none */
    const char *precision; /* the word by which they are; NULL or "": not told */
};

/* How they come into the buffer. */
struct moec_trace_policy {
    const char *evict, *predict; /* names */
    uint32_t preload_count, preload_ahead;
    uint64_t buffer_bytes; /* of the expert buffer */
};

struct moec_trace_setup {
    const char *path;                 /* of the file */
    const struct moec_bundle *bundle; /* borrowed until closed */
    struct moec_trace_copies copies;
    struct moec_trace_policy policy;
    bool has_logits;         /* answers carry them */
    uint64_t capacity_bytes; /* of events kept between flushes; 0 = 4 MiB */
};

/* Bytes of memory that a trace takes at most, for a budget. */
uint64_t moec_trace_bytes(const struct moec_trace_setup *setup);

/* The file appears under its name when the trace is closed. Errors: MOEC_ERR_IO, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_trace_open(const struct moec_trace_setup *setup,
                                                  struct moec_trace **out, struct moec_error *err);
/* Ends the file and frees the trace, also on failure. NULL-safe. Errors: MOEC_ERR_IO, also of flushes before.
 */
MOEC_WARN_UNUSED enum moec_status moec_trace_close(struct moec_trace *trace, struct moec_error *err);

/* Frees the trace without writing its file; an existing file of that name stays as it was. For an engine that
 * fails to open. NULL-safe. */
void moec_trace_discard(struct moec_trace *trace);

#define MOEC_TRACE_NONE 0xffffffffu /* no layer, no expert */

/* A span of a lane. */
struct moec_trace_span {
    const char *what; /* a string constant */
    enum moec_trace_lane lane;
    uint32_t layer;  /* of the model, or MOEC_TRACE_NONE */
    uint32_t expert; /* likewise */
    bool has_form;   /* of another form than whole records of the trace's copy: */
    struct moec_expert_form form;
    uint64_t n_bytes;
    uint64_t begin_ns, end_ns;
};

/* NULL trace: nothing. Events that find no room are dropped and counted in the file. */
void moec_trace_record(struct moec_trace *trace, const struct moec_trace_span *span);
/* A span of MOEC_TRACE_COMPUTE that ends now. */
void moec_trace_compute(struct moec_trace *trace, const char *what, uint32_t layer, uint64_t begin_ns);
/* A router's answer, with all that prediction and replay need. One that finds no room is flushed for: call it
 * without locks that others wait for. */
void moec_trace_answer(struct moec_trace *trace, const struct moec_router_answer *answer, uint32_t top_k,
                       uint64_t now_ns);
/* Between steps: writes what was recorded. NULL-safe. */
void moec_trace_flush(struct moec_trace *trace);

/* CLOCK_MONOTONIC where there is a trace, else 0: begin = moec_trace_now(trace) before what a span covers. */
uint64_t moec_trace_now(const struct moec_trace *trace);

#endif
