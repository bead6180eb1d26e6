/* The heatmap of expert sensitivity for terminals: readable without colour and at 80 columns, whatever the
 * model.
 *
 * Every expert has a cell of its own: with its loss in percent where there is room, else with one of nine
 * characters from sparse to dense that the legend explains. Where the experts of a layer do not fit beside
 * each other, the heatmap comes in bands. Colour only adds to the characters. Thread rule: pure function. */
#ifndef MOEC_PROFILER_TERMINAL_HEATMAP_H
#define MOEC_PROFILER_TERMINAL_HEATMAP_H

#include "formats/profile/profile.h"

enum moec_terminal_colour { MOEC_TERMINAL_PLAIN, MOEC_TERMINAL_256, MOEC_TERMINAL_TRUE };

struct moec_terminal {
    uint32_t columns; /* width; taken as 60 when less, as 500 when more */
    enum moec_terminal_colour colour;
    bool utf8; /* the terminal shows more than ASCII */
};

/* Renders the losses at `bits` (0 = the lowest profiled) with the most sensitive experts, the baseline and
 * the losses of the whole model at each bitwidth. `text` is NUL-terminated, ends in a newline and is owned by
 * the caller. Errors: those of moec_heatmap_make, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_terminal_heatmap(const struct moec_profile *profile, uint32_t bits,
                                                        const struct moec_terminal *terminal, char **text,
                                                        struct moec_error *err);

#endif
