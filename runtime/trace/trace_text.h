/* The text of a trace file, formats/trace/TRACE.md (internal to runtime/). A line for each event; written
 * through a buffer of fixed size. The first failure is kept and ends all writing. Thread rule: one thread at
 * a time. */
#ifndef MOEC_RUNTIME_TRACE_TEXT_H
#define MOEC_RUNTIME_TRACE_TEXT_H

#include "runtime/trace/trace.h"

#define MOEC_TRACE_TEXT_BYTES 65536u
#define MOEC_TRACE_N_LANE     4u
#define MOEC_TRACE_N_ROW      64u /* rows of a lane in the viewer: spans of one row never overlap */

struct moec_trace_text {
    struct moec_output output;
    char *bytes; /* owned, MOEC_TRACE_TEXT_BYTES */
    size_t used;
    uint64_t start_ns;
    uint64_t row_end_ns[MOEC_TRACE_N_LANE][MOEC_TRACE_N_ROW]; /* 0 = not used yet */
    enum moec_status status;
    struct moec_error err;
};

/* Opens the output and writes the head. On failure nothing is left. */
MOEC_WARN_UNUSED enum moec_status moec_trace_text_open(struct moec_trace_text *text,
                                                       const struct moec_trace_setup *setup,
                                                       uint64_t start_ns, struct moec_error *err);
void moec_trace_text_span(struct moec_trace_text *text, const struct moec_trace_span *span);
void moec_trace_text_answer(struct moec_trace_text *text, const struct moec_router_answer *answer,
                            uint32_t top_k, uint64_t now_ns);
/* Writes out what stands in the buffer. */
void moec_trace_text_flush(struct moec_trace_text *text);
/* Ends the file, or removes it when anything failed, and frees. */
MOEC_WARN_UNUSED enum moec_status moec_trace_text_close(struct moec_trace_text *text, uint64_t n_lost_spans,
                                                        uint64_t n_lost_answers, struct moec_error *err);
/* Frees without a file. */
void moec_trace_text_discard(struct moec_trace_text *text);

#endif
