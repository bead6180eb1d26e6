/* Rows by a task's own function: `row` of its script makes of each row of the data, a Lua table, the one that
 * its templates read (datasets/tasks/README.md). */
#ifndef MOEC_COMPILER_TASK_ROWS_H
#define MOEC_COMPILER_TASK_ROWS_H

#include "profiler/tasks/task.h"

/* A moec_task_reshape for a task whose `script` has the function. Runs it as a guest (lua_host.h): by its
 * thread rule, from the main thread while no parallel region runs. Errors as moec_task_reshape says, and
 * MOEC_ERR_SCRIPT where the script is no longer the one that the task was read from. */
MOEC_WARN_UNUSED enum moec_status moec_task_rows_reshape(const struct moec_task *task,
                                                         const struct moec_task_data *data, char **lines,
                                                         size_t *n_lines, struct moec_error *err);

#endif
