/* Keeps a small budget, and uses it, while a model runs (D7).
 *
 * How much of a program's files is mapped shows only when its code has run: of moec-run between 1.3 and 2.4
 * MiB of 6, by the pieces in which the page cache holds the file. The plan counts more than most starts take.
 * So the watch looks at the process after each step:
 *
 *  - What the plan counted for files and they do not take is given to the expert buffer, once two tokens were
 *    generated alone: by then the code of a text has run. The buffer gives it back before a new prompt, whose
 *    code may be another.
 *  - Where the process comes near its budget all the same, the pages of this program's code are given back.
 *    Those that are in use come back at the next step, which takes some microseconds and reads nothing.
 *
 * Thread rule: moec_memory_watch_end from any thread; it gives to the buffer only where one session exists.
 */
#ifndef MOEC_RUNTIME_MEMORY_WATCH_H
#define MOEC_RUNTIME_MEMORY_WATCH_H

#include "runtime/engine/kv_lending.h"

#define MOEC_WATCH_SMALL_BYTES   ((uint64_t)64 << 20)  /* of larger budgets what is left over is no matter */
#define MOEC_WATCH_RESERVE_BYTES ((uint64_t)64 << 10)  /* of files that are not given to the buffer */
#define MOEC_WATCH_NEAR_BYTES    ((uint64_t)256 << 10) /* of the budget: code is given back */

struct moec_memory_watch {
    bool is_on;
    uint64_t budget_bytes;
    uint64_t files_bytes; /* that the plan counts for pages of files */
    uint64_t most_bytes;  /* that the buffer may be given; 0 = nothing */
    uint32_t n_alone;     /* tokens that were generated since a prompt */
};

/* What a plan leaves to watch. Off without a budget. is_alone: one session exists, and the buffer's size may
 * change. Errors: those of reading /proc. */
MOEC_WARN_UNUSED enum moec_status moec_memory_watch_plan(struct moec_memory_watch *watch,
                                                         const struct moec_memory_plan *plan,
                                                         uint64_t budget_bytes, bool is_alone,
                                                         struct moec_error *err);

/* Before a prompt, or several tokens that come together. The caller holds no experts. */
void moec_memory_watch_begin(struct moec_memory_watch *watch, struct moec_kv_lending *lending);
/* After a step of n_tokens. The caller holds no experts. */
void moec_memory_watch_end(struct moec_memory_watch *watch, struct moec_kv_lending *lending,
                           uint32_t n_tokens);

#endif
