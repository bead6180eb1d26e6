/* The first signal's time is kept in an atomic, and one that follows within SAME_REQUEST_NS is taken as the
 * same request. Any later one restores the default action and raises the signal again. Calls that a signal
 * interrupts are restarted. */
#include "cli/terminal/interrupt.h"

#include "formats/base/clock.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>

/* One request may come as two signals: timeout(1) and service managers signal the process and its group. */
#define SAME_REQUEST_NS 200000000LL

static atomic_int asked;
static atomic_llong asked_ns;

static void ask(int number)
{
    const long long now = (long long)moec_now_ns();
    long long first = 0;
    if (atomic_compare_exchange_strong(&asked_ns, &first, now)) {
        atomic_store(&asked, number);
        return;
    }
    if (now - first < SAME_REQUEST_NS)
        return;
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

void cli_interrupt_catch(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction now;
        struct sigaction action = {.sa_handler = ask, .sa_flags = SA_RESTART};
        if (sigaction(numbers[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            (void)sigaction(numbers[i], &action, NULL);
    }
}

int cli_interrupt_signal(void)
{
    return atomic_load(&asked);
}

bool cli_interrupt_is_asked(void)
{
    return cli_interrupt_signal() != 0;
}

enum moec_status cli_interrupt_status(void)
{
    return cli_interrupt_is_asked() ? MOEC_ERR_CANCELLED : MOEC_OK;
}

enum moec_status cli_interrupt_search(enum moec_status status, struct moec_error *err)
{
    if (status != MOEC_ERR_SCRIPT || cli_interrupt_status() == MOEC_OK)
        return status;
    *err = (struct moec_error){0};
    return moec_fail(err, MOEC_ERR_CANCELLED, "search: stopped; nothing was written");
}

int cli_interrupt_fail(const struct cli_args *args, const struct moec_error *err)
{
    const int status = cli_fail(args, err);
    const int number = cli_interrupt_signal();
    return err->status == MOEC_ERR_CANCELLED && number != 0 ? 128 + number : status;
}
