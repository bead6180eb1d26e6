/* Ctrl-C and kill while long work runs: the first SIGINT, SIGTERM or SIGHUP asks it to stop where nothing is
 * lost, the second kills at once. Thread rule: main thread. */
#ifndef MOEC_CLI_INTERRUPT_H
#define MOEC_CLI_INTERRUPT_H

#include "cli/options/options.h"

/* From now on signals ask. Those that are ignored (nohup, background jobs of scripts) stay so. */
void cli_interrupt_catch(void);
/* The signal that asked, 0 when none did. Any thread. */
int cli_interrupt_signal(void);

/* MOEC_ERR_CANCELLED when a signal asked; what progress callbacks answer. */
enum moec_status cli_interrupt_status(void);

/* As cli_fail, but 128 + signal after MOEC_ERR_CANCELLED, as shells report a death by it. */
int cli_interrupt_fail(const struct cli_args *args, const struct moec_error *err);

#endif
