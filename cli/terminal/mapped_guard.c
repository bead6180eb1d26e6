/* The sentence and the terminal's settings are kept beforehand, since a handler may call little. The program
 * ends by _exit, and so without buffered output. */
#include "cli/terminal/mapped_guard.h"

#include "formats/base/printable.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

/* Made beforehand: the handler may call little. */
static char sentence[1024];
static size_t n_sentence;
static struct termios terminal;
static bool has_terminal;

static atomic_flag is_told = ATOMIC_FLAG_INIT;

/* Any other SIGBUS comes back when the instruction is run again, and then ends the process as usual. Of
 * threads that touch lost pages at once the first one speaks, and the others wait for the end. */
static void tell(int number, siginfo_t *info, void *context)
{
    (void)context;
    if (info->si_code != BUS_ADRERR && info->si_code != BUS_MCEERR_AR) {
        (void)signal(number, SIG_DFL);
        return;
    }
    while (atomic_flag_test_and_set(&is_told))
        (void)pause();
    if (has_terminal)
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &terminal);
    for (size_t done = 0; done < n_sentence;) {
        const ssize_t n = write(STDERR_FILENO, sentence + done, n_sentence - done);
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    _exit(CLI_FAILED);
}

void cli_guard_mapped(const struct cli_args *args)
{
    const struct sigaction action = {.sa_sigaction = tell, .sa_flags = SA_SIGINFO};
    const char *path = args->positional[0];
    char label[CLI_LABEL_BYTES], shown[800];
    (void)moec_printable(path, strlen(path), false, shown, sizeof shown);
    (void)snprintf(sentence, sizeof sentence,
                   "%s: '%s' was changed or its device failed while it was in use\n", cli_label(args, label),
                   shown);
    n_sentence = strlen(sentence);
    has_terminal = tcgetattr(STDIN_FILENO, &terminal) == 0;
    (void)sigaction(SIGBUS, &action, NULL);
}
