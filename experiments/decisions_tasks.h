/* Tasks with all experts at one bitwidth and with decisions: Tables 2 and 3 of Fate, Table 3 of HOBBIT.
 *
 * Scores are shares (0.7 is 70 %), losses fractions of the checkpoint's score. Thread rule: plain data. */
#ifndef MOEC_EXPERIMENTS_DECISIONS_TASKS_H
#define MOEC_EXPERIMENTS_DECISIONS_TASKS_H

#include "experiments/page.h"
#include "experiments/paper_claim.h"

enum decisions_task_side {
    TASK_INT8,
    TASK_INT4,
    TASK_INT2,
    TASK_FATE_HIGH, /* as Fate on its faster machine */
    TASK_FATE_LOW,  /* on its slower machine */
    TASK_HOBBIT_16, /* 16 bits with low copies of 4 */
    TASK_HOBBIT_8,  /* 8 with 2 */
    TASK_N_SIDE
};

struct decisions_score {
    double value, loss, low, high; /* 90 % interval of the loss; NaN: not measured */
};

struct decisions_task {
    char name[32];
    double reference, deviation; /* the checkpoint's score, its standard error */
    uint32_t n_row;
    struct decisions_score sides[TASK_N_SIDE];
};

#define DECISIONS_MAX_TASKS 12

struct decisions_tasks {
    uint32_t n;
    struct decisions_task items[DECISIONS_MAX_TASKS];
};

/* Reads `folder`; one that is missing has none. Errors: MOEC_ERR_FORMAT for a damaged file. */
MOEC_WARN_UNUSED enum moec_status decisions_tasks_read(const char *folder, struct decisions_tasks *tasks,
                                                       struct moec_error *err);
/* Adds the papers' sentences to `claims`, judged by the tasks that the checkpoint does better than by chance.
 */
void decisions_task_findings(const struct decisions_tasks *tasks, struct experiment_claims *claims);
/* The table of all scores; nothing where there are none. */
MOEC_WARN_UNUSED enum moec_status decisions_page_tasks(const struct experiment_page *page,
                                                       const struct decisions_tasks *tasks,
                                                       struct moec_error *err);

#endif
