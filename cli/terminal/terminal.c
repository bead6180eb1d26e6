/* What stdout can show: colours, columns, UTF-8. Options come before the environment (NO_COLOR, TERM,
 * COLORTERM), which comes before what the terminal says. Sizes are written in steps of 1000 for files and
 * of 1024 for memory. */
#include "cli/terminal/terminal.h"

#include "formats/base/clock.h"
#include "runtime/engine/memory_plan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static bool contains(const char *text, const char *part)
{
    return text != NULL && strstr(text, part) != NULL;
}

static enum cli_colour detect_colour(const char *wish)
{
    if (strcmp(wish, "never") == 0)
        return CLI_COLOUR_NONE;
    const char *term = getenv("TERM");
    const char *no_colour = getenv("NO_COLOR");
    bool is_capable = isatty(STDOUT_FILENO) && term != NULL && strcmp(term, "dumb") != 0 &&
                      (no_colour == NULL || no_colour[0] == '\0');
    if (strcmp(wish, "always") != 0 && !is_capable)
        return CLI_COLOUR_NONE;
    const char *depth = getenv("COLORTERM");
    return contains(depth, "truecolor") || contains(depth, "24bit") ? CLI_COLOUR_TRUE : CLI_COLOUR_256;
}

static bool detect_utf8(void)
{
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        if (value != NULL && value[0] != '\0')
            return contains(value, "UTF-8") || contains(value, "utf8") || contains(value, "UTF8");
    }
    return false;
}

struct cli_terminal cli_terminal_detect(const char *colour)
{
    struct cli_terminal terminal = {.columns = 80, .colour = detect_colour(colour), .is_utf8 = detect_utf8()};
    struct winsize size;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 40)
        terminal.columns = size.ws_col;
    return terminal;
}

static const char *scaled(char text[static 24], uint64_t bytes, double step,
                          const char *const units[static 5])
{
    double value = (double)bytes;
    int unit = 0;
    while (value >= step && unit < 4) {
        value /= step;
        unit++;
    }
    if (unit == 0)
        (void)snprintf(text, 24, "%" PRIu64 " %s", bytes, units[0]);
    else
        (void)snprintf(text, 24, "%.*f %s", value < 10 ? 2 : value < 100 ? 1 : 0, value, units[unit]);
    return text;
}

const char *cli_size_text(char text[static 24], uint64_t bytes)
{
    static const char *const units[5] = {"B", "kB", "MB", "GB", "TB"};
    return scaled(text, bytes, 1000, units);
}

const char *cli_memory_text(char text[static 24], uint64_t bytes)
{
    static const char *const units[5] = {"B", "KiB", "MiB", "GiB", "TiB"};
    return scaled(text, bytes, 1024, units);
}

const char *cli_budget_text(char text[static 24], uint64_t bytes)
{
    const uint64_t mib = (uint64_t)1 << 20, n = (10 * bytes + mib - 1) / mib;
    (void)snprintf(text, 24, "%" PRIu64 ".%" PRIu64 "MiB", n / 10, n % 10);
    return text;
}

uint64_t cli_peak_memory_bytes(void)
{
    uint64_t bytes = 0;
    return moec_memory_peak_bytes(&bytes, NULL) == MOEC_OK ? bytes : 0;
}

double cli_seconds(void)
{
    return (double)moec_now_ns() * 1e-9;
}
