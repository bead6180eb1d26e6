/* The layout takes the most decimals with which all experts of a layer fit beside each other. Else a cell is
 * one to three columns of a character, and what still does not fit comes in bands. A character's bucket comes
 * from the scale of colours, so the two and the legend agree. Everything is written into memory first. */
#include "profiler/report/terminal_heatmap.h"

#include "formats/base/memory.h"
#include "profiler/plot/plot.h"
#include "profiler/report/heatmap.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define N_BUCKET       9
#define LEAST_COLUMNS  60 /* the list of sensitive experts */
#define MOST_COLUMNS   500
#define ROW_LABEL      7 /* columns before the cells: "%5u  " */
#define N_MOST         5 /* experts listed */
#define UNREACHED_MARK "?"

/* Sparse to dense. */
static const char ramp[N_BUCKET + 1] = ".:-=+*#%@";

/* What is being rendered. */
struct page {
    FILE *stream;
    const struct moec_profile *profile;
    const struct moec_heatmap *map;
    struct moec_terminal terminal;
    uint32_t cell;     /* columns of a cell, the space after it included */
    uint32_t band;     /* experts beside each other */
    int cell_decimals; /* of the loss in a cell, -1 = a character */
    int decimals;      /* of losses elsewhere */
};

/* ---- colour ---- */

/* Nearest colour of the 6 x 6 x 6 cube of 256-colour terminals. */
static unsigned cube_index(struct moec_colour colour)
{
    static const int levels[6] = {0, 95, 135, 175, 215, 255};
    const uint8_t parts[3] = {colour.red, colour.green, colour.blue};
    unsigned index = 0;
    for (size_t i = 0; i < 3; i++) {
        unsigned best = 0;
        for (unsigned level = 1; level < 6; level++)
            if (abs(levels[level] - parts[i]) < abs(levels[best] - parts[i]))
                best = level;
        index = index * 6 + best;
    }
    return 16 + index;
}

static void start_colour(const struct page *page, double loss)
{
    struct moec_colour colour = moec_heatmap_colour(page->map, loss);
    struct moec_colour ink = moec_colour_ink(colour);
    if (page->terminal.colour == MOEC_TERMINAL_TRUE)
        (void)fprintf(page->stream, "\033[38;2;%d;%d;%d;48;2;%d;%d;%dm", ink.red, ink.green, ink.blue,
                      colour.red, colour.green, colour.blue);
    else if (page->terminal.colour == MOEC_TERMINAL_256)
        (void)fprintf(page->stream, "\033[38;5;%u;48;5;%um", cube_index(ink), cube_index(colour));
}

static void end_colour(const struct page *page)
{
    if (page->terminal.colour != MOEC_TERMINAL_PLAIN)
        (void)fputs("\033[0m", page->stream);
}

/* ---- text ---- */

/* Columns of UTF-8 text, one for each character:
 * names of files in wide scripts may break earlier than they must. */
static size_t count_columns(const char *text, size_t n_bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < n_bytes; i++)
        n += ((uint8_t)text[i] & 0xc0u) != 0x80u;
    return n;
}

/* Longest start of `text` that fits `room` columns, cut between characters; at a space if there is one. */
static size_t line_length(const char *text, size_t room)
{
    size_t at = 0, columns = 0, space = 0;
    while (text[at] != '\0') {
        if (((uint8_t)text[at] & 0xc0u) != 0x80u && ++columns > room)
            break;
        if (text[at] == ' ')
            space = at;
        at++;
    }
    return text[at] == '\0' || space == 0 ? at : space;
}

/* "label  text", wrapped under itself. Characters beyond ASCII become '?' where the terminal has none. */
static void put_paragraph(const struct page *page, const char *label, const char *text)
{
    size_t indent = count_columns(label, strlen(label));
    size_t room = page->terminal.columns > indent + 8 ? page->terminal.columns - indent : 8;
    (void)fputs(label, page->stream);
    for (size_t line = 0; *text != '\0'; line++) {
        size_t n = line_length(text, room);
        if (line > 0)
            (void)fprintf(page->stream, "%*s", (int)indent, "");
        for (size_t i = 0; i < n; i++) {
            uint8_t byte = (uint8_t)text[i];
            if (page->terminal.utf8 || byte < 0x80)
                (void)fputc(byte, page->stream);
            else if (byte >= 0xc0)
                (void)fputc('?', page->stream);
        }
        (void)fputc('\n', page->stream);
        text += n + strspn(text + n, " ");
    }
}

static void put_spaces(const struct page *page, uint32_t n)
{
    (void)fprintf(page->stream, "%*s", (int)n, "");
}

/* ---- layout ---- */

static int number_width(const struct moec_heatmap *map, int decimals)
{
    int largest = snprintf(NULL, 0, "%.*f", decimals, 100 * map->range.largest);
    int lowest = snprintf(NULL, 0, "%.*f", decimals, 100 * map->range.least);
    return largest > lowest ? largest : lowest;
}

static void lay_out(struct page *page)
{
    const struct moec_heatmap *map = page->map;
    uint32_t room = page->terminal.columns - ROW_LABEL;
    page->decimals = moec_heatmap_decimals(map);
    page->cell_decimals = -1;
    for (int decimals = page->decimals; decimals >= 1 && page->cell_decimals < 0; decimals--) {
        uint32_t cell = (uint32_t)number_width(map, decimals) + 2;
        if ((uint64_t)cell * map->n_expert <= room) {
            page->cell = cell;
            page->cell_decimals = decimals;
            page->band = map->n_expert;
        }
    }
    if (page->cell_decimals >= 0)
        return;
    page->cell = 1;
    while (page->cell < 3 && (uint64_t)(page->cell + 1) * map->n_expert <= room)
        page->cell++;
    page->band = map->n_expert;
    /* Bands of a multiple of 16 experts, so that the same column stands for like numbers. */
    if (map->n_expert > room)
        page->band = room / 16 * 16;
}

static int bucket_of(const struct moec_heatmap *map, double loss)
{
    int bucket = (int)(moec_heatmap_unit(map, loss) * N_BUCKET);
    return bucket < N_BUCKET ? bucket : N_BUCKET - 1;
}

/* ---- parts ---- */

static void put_header(const struct page *page)
{
    struct moec_heatmap_words words;
    moec_heatmap_describe(page->profile, page->map, &words);
    put_paragraph(page, "", words.title);
    (void)fputc('\n', page->stream);
    put_paragraph(page, "model  ", words.model);
    put_paragraph(page, "data   ", words.data);
    put_paragraph(page, "loss   ", words.measure);
    (void)fputc('\n', page->stream);
}

/* Numbers of experts over right-aligned losses. */
static void put_numbers_right(const struct page *page)
{
    put_spaces(page, ROW_LABEL);
    for (uint32_t e = 0; e < page->map->n_expert; e++)
        (void)fprintf(page->stream, "%s%*" PRIu32, e > 0 ? "  " : "", (int)page->cell - 2, e);
    (void)fputc('\n', page->stream);
}

/* Numbers of experts over the columns where their cells begin, as many as keep a space between them,
 * and a rule. */
static void put_numbers_left(const struct page *page, uint32_t first, uint32_t last)
{
    bool utf8 = page->terminal.utf8;
    const char *rule = page->cell > 1 ? " " : utf8 ? "\u2500" : "-";
    uint32_t widest = (uint32_t)snprintf(NULL, 0, "%" PRIu32, page->map->n_expert - 1), column = 0;
    uint32_t every = moec_ticks_every(page->map->n_expert, page->cell, page->cell == 1 ? 8 : widest + 1);
    put_spaces(page, ROW_LABEL);
    for (uint32_t e = first; e <= last; e += every) {
        uint32_t at = (e - first) * page->cell;
        if (ROW_LABEL + at + widest > page->terminal.columns)
            break;
        put_spaces(page, at - column);
        column = at + (uint32_t)fprintf(page->stream, "%" PRIu32, e);
    }
    (void)fputc('\n', page->stream);
    put_spaces(page, ROW_LABEL);
    for (uint32_t e = first; e <= last; e++) {
        (void)fputs((e - first) % every > 0 ? rule : utf8 ? "\u2502" : "|", page->stream);
        if (page->cell > 1 && last - e < every && (e - first) % every == 0)
            break;
        put_spaces(page, page->cell - 1);
    }
    (void)fputc('\n', page->stream);
}

static void put_cell(const struct page *page, uint32_t s, uint32_t e, bool last)
{
    uint64_t i = (uint64_t)s * page->map->n_expert + e;
    int filled = page->cell_decimals >= 0 ? (int)page->cell - 2 : (int)page->cell > 2 ? 2 : 1;
    if (!page->map->cells.reached[i]) {
        (void)fprintf(page->stream, "%*s", filled, UNREACHED_MARK);
    } else {
        double loss = page->map->cells.loss[i];
        start_colour(page, loss);
        if (page->cell_decimals >= 0)
            (void)fprintf(page->stream, "%*.*f", filled, page->cell_decimals, 100 * loss);
        else
            for (int column = 0; column < filled; column++)
                (void)fputc(ramp[bucket_of(page->map, loss)], page->stream);
        end_colour(page);
    }
    if (!last)
        put_spaces(page, page->cell - (uint32_t)filled);
}

static void put_bands(const struct page *page)
{
    const struct moec_heatmap *map = page->map;
    for (uint32_t first = 0; first < map->n_expert; first += page->band) {
        uint32_t last = map->n_expert - first > page->band ? first + page->band - 1 : map->n_expert - 1;
        (void)fprintf(page->stream, "layer  expert %" PRIu32, first);
        if (last > first)
            (void)fprintf(page->stream, " to %" PRIu32, last);
        (void)fputc('\n', page->stream);
        if (page->cell_decimals >= 0)
            put_numbers_right(page);
        else
            put_numbers_left(page, first, last);
        for (uint32_t s = 0; s < map->n_layer; s++) {
            (void)fprintf(page->stream, "%5" PRIu32 "%c ", page->profile->moe_layers[s],
                          moec_profile_stack_mark(page->profile, page->profile->moe_layers[s]));
            for (uint32_t e = first; e <= last; e++)
                put_cell(page, s, e, e == last);
            (void)fputc('\n', page->stream);
        }
        (void)fputc('\n', page->stream);
    }
}

/* What the marks of layers mean. */
static void put_stacks(const struct page *page)
{
    char text[80];
    if (!moec_config_is_encoder_decoder(&page->profile->config))
        return;
    moec_profile_layer_label(page->profile, sizeof text, text);
    (void)fprintf(page->stream, "%s\n", text);
}

static void put_legend(const struct page *page)
{
    const struct moec_heatmap *map = page->map;
    int width = number_width(map, page->decimals + 1);
    uint32_t entry = 2 * (uint32_t)width + 10, column = 0;
    if (page->cell_decimals < 0) {
        (void)fputs("loss, %\n", page->stream);
        for (int bucket = 0; bucket < N_BUCKET; bucket++) {
            if (column + entry > page->terminal.columns) {
                (void)fputc('\n', page->stream);
                column = 0;
            }
            (void)fputs("  ", page->stream);
            start_colour(page, moec_heatmap_loss_at(map, (bucket + 0.5) / N_BUCKET));
            (void)fprintf(page->stream, "%c%c", ramp[bucket], ramp[bucket]);
            end_colour(page);
            (void)fprintf(page->stream, " %*.*f", width, page->decimals + 1,
                          100 * moec_heatmap_loss_at(map, (double)bucket / N_BUCKET));
            (void)fprintf(page->stream, " to %*.*f", width, page->decimals + 1,
                          100 * moec_heatmap_loss_at(map, (bucket + 1.0) / N_BUCKET));
            column += entry;
        }
        (void)fputc('\n', page->stream);
    }
    if (map->counts.n_unreached > 0)
        (void)fprintf(page->stream,
                      "  " UNREACHED_MARK "  never reached by the data, loss unknown: %" PRIu64 "\n",
                      map->counts.n_unreached);
    (void)fputc('\n', page->stream);
}

/* The most sensitive reached experts, the largest loss first; equal ones by index.
 * Returns how many there are. */
static uint32_t find_most_sensitive(const struct moec_heatmap *map, uint64_t most[static N_MOST])
{
    uint32_t n = 0;
    for (uint64_t i = 0; i < (uint64_t)map->n_layer * map->n_expert; i++) {
        if (!map->cells.reached[i])
            continue;
        uint32_t at = n < N_MOST ? n++ : N_MOST;
        for (; at > 0 && map->cells.loss[most[at - 1]] < map->cells.loss[i]; at--)
            if (at < N_MOST)
                most[at] = most[at - 1];
        if (at < N_MOST)
            most[at] = i;
    }
    return n;
}

static void put_most_sensitive(const struct page *page)
{
    const struct moec_heatmap *map = page->map;
    uint64_t most[N_MOST];
    uint32_t n = find_most_sensitive(map, most);
    if (n == 0)
        (void)fputs("the data reached no expert\n", page->stream);
    else
        (void)fputs("most sensitive           loss, %  over baseline     tokens\n", page->stream);
    for (uint32_t r = 0; r < n; r++) {
        uint32_t e = (uint32_t)(most[r] % map->n_expert),
                 layer = page->profile->moe_layers[most[r] / map->n_expert];
        double loss = map->cells.loss[most[r]];
        char name[40];
        const char mark[2] = {moec_profile_stack_mark(page->profile, layer), '\0'};
        (void)snprintf(name, sizeof name, "layer %" PRIu32 "%s expert %" PRIu32, layer,
                       mark[0] == ' ' ? "" : mark, e);
        (void)fprintf(page->stream, "%-24s %7.*f  %+13.*f %10" PRIu64 "\n", name, page->decimals, 100 * loss,
                      page->decimals, 100 * (loss - map->range.baseline),
                      page->profile->activations[most[r]]);
    }
    (void)fputc('\n', page->stream);
}

static void put_whole_model(const struct page *page)
{
    const struct moec_profile *profile = page->profile;
    char bits[16];
    bool shown = false;
    (void)fputs("all experts at           loss, %\n", page->stream);
    for (uint32_t u = 0; u < profile->n_uniform; u++) {
        bool baseline = profile->uniform_bits[u] == profile->baseline_bits;
        shown = shown || baseline;
        moec_heatmap_bits_name(profile->uniform_bits[u], bits);
        (void)fprintf(page->stream, "%-24s %7.*f%s\n", bits, page->decimals,
                      100 * moec_profile_loss(profile, profile->uniform[u].nll),
                      baseline ? "  (baseline)" : "");
    }
    moec_heatmap_bits_name(profile->baseline_bits, bits);
    if (!shown)
        (void)fprintf(page->stream, "%-24s %7.*f  (baseline)\n", bits, page->decimals,
                      100 * page->map->range.baseline);
}

enum moec_status moec_terminal_heatmap(const struct moec_profile *profile, uint32_t bits,
                                       const struct moec_terminal *terminal, char **text,
                                       struct moec_error *err)
{
    struct moec_heatmap map = {0};
    struct page page = {.profile = profile, .map = &map, .terminal = *terminal};
    char *bytes = NULL;
    size_t n_bytes = 0;
    enum moec_status status = MOEC_OK;
    if (page.terminal.columns < LEAST_COLUMNS)
        page.terminal.columns = LEAST_COLUMNS;
    if (page.terminal.columns > MOST_COLUMNS)
        page.terminal.columns = MOST_COLUMNS;
    MOEC_TRY_OUT(moec_heatmap_make(profile, bits, &map, err));
    page.stream = open_memstream(&bytes, &n_bytes);
    if (page.stream == NULL) {
        status = moec_fail(err, MOEC_ERR_MEMORY, "out of memory: text heatmap");
        goto out;
    }
    lay_out(&page);
    put_header(&page);
    put_stacks(&page);
    put_bands(&page);
    put_legend(&page);
    put_most_sensitive(&page);
    put_whole_model(&page);
    if (fclose(page.stream) != 0)
        status = moec_fail(err, MOEC_ERR_MEMORY, "out of memory: text heatmap");
    else
        *text = bytes;
out:
    if (status != MOEC_OK)
        free(bytes);
    moec_heatmap_release(&map);
    return status;
}
