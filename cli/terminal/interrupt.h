/* Ctrl-C and kill while long work runs: the first SIGINT, SIGTERM or SIGHUP asks it to stop where nothing is
 * lost, the second kills at once. Thread rule: main thread. */
#ifndef MOEC_CLI_INTERRUPT_H
#define MOEC_CLI_INTERRUPT_H

#include "cli/options/options.h"

/* From now on a signal is a request to stop.
 * Ignored signals (nohup, background jobs of scripts) stay ignored. */
void cli_interrupt_catch(void);
/* The signal that was received, 0 = none. Any thread. */
int cli_interrupt_signal(void);
/* Whether there was one, for work that asks. Any thread. */
bool cli_interrupt_is_asked(void);

/* MOEC_ERR_CANCELLED after a signal; what progress callbacks return. */
enum moec_status cli_interrupt_status(void);

/* How a search by a policy ended: after a signal, which reaches the policy's process too, its death is no
 * fault of the script, and becomes MOEC_ERR_CANCELLED. Else `status`. */
MOEC_WARN_UNUSED enum moec_status cli_interrupt_search(enum moec_status status, struct moec_error *err);

/* As cli_fail, but 128 + signal after MOEC_ERR_CANCELLED, as shells report a death by it. */
int cli_interrupt_fail(const struct cli_args *args, const struct moec_error *err);

#endif
