/* Help and man pages, made from the tables of options (cli/options/options.h). Texts have one notation: a line
 * "value<tab>meaning" is a row of a table, everything else is running text, a paragraph a line. What follows
 * CLI_RESEARCH is left to the heading of research. */
#include "cli/options/options.h"

#include <inttypes.h>
#include <string.h>

static const struct cli_option help_option = {"help", 'h', NULL, NULL, "Print the usual options.", 0};
static const struct cli_option help_all_option = {"help-all", 0, NULL, NULL, "Print every option.", 0};

/* In the order in which they are shown. */
static const struct {
    unsigned heading;
    const char *title;
} headings[] = {
    {CLI_OF_TEXT, "Text"},
    {CLI_OF_DATA, "Data"},
    {CLI_OF_BITS, "Bitwidths and codes"},
    {CLI_OF_LOSS, "Loss"},
    {CLI_OF_MEMORY, "Memory and storage"},
    {CLI_OF_DECISIONS, "Decisions about each token"},
    {CLI_OF_DEVICE, "Device"},
    {CLI_OF_NETWORK, "Network"},
    {CLI_OF_OUTPUT, "Output"},
    {CLI_OF_ALL, "General"},
    {CLI_OF_RESEARCH, "Research"},
};
#define N_HEADING (sizeof headings / sizeof *headings)

/* What a text says beside CLI_RESEARCH; NULL = nothing. */
static const char *research_of(const char *text)
{
    const char *at = text + strcspn(text, CLI_RESEARCH);
    return *at == '\0' ? NULL : at + 1;
}

static const char *line_end(const char *text)
{
    return text + strcspn(text, "\n" CLI_RESEARCH);
}

/* The line after this one; its own end after the last one of a part. */
static const char *next_line(const char *line)
{
    const char *end = line_end(line);
    return end + (*end == '\n');
}

static bool is_over(const char *at)
{
    return at == line_end(at) && *at != '\n';
}

/* Where the meaning of a table row begins; NULL when the line is running text. */
static const char *row_meaning(const char *line)
{
    const char *tab = memchr(line, '\t', (size_t)(line_end(line) - line));
    return tab == NULL ? NULL : tab + 1;
}

/* Wraps one line at word boundaries to 80 columns with a hanging indent;
 * `column` is where the cursor stands. */
static void print_line(FILE *out, const char *text, const char *end, int indent, int column)
{
    while (text < end) {
        const int length = (int)strcspn(text, " \n" CLI_RESEARCH);
        if (column > indent && column + 1 + length > 80) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            fputc(' ', out);
            column++;
        }
        fprintf(out, "%.*s", length, text);
        column += length;
        text += length;
        while (*text == ' ')
            text++;
    }
    fputc('\n', out);
}

/* Paragraphs and tables from column `indent`; `column` is where the cursor stands. Values of one text stand
 * in one column. */
static void print_text(FILE *out, const char *text, int indent, int column)
{
    int width = 0;
    for (const char *at = text; !is_over(at); at = next_line(at)) {
        const char *meaning = row_meaning(at);
        if (meaning != NULL && meaning - at - 1 > width)
            width = (int)(meaning - at - 1);
    }
    for (const char *at = text; !is_over(at); at = next_line(at)) {
        const char *end = line_end(at);
        const char *meaning = row_meaning(at);
        if (at != text) {
            fprintf(out, "%*s", indent, "");
            column = indent;
        }
        if (meaning != NULL) {
            column += fprintf(out, "%-*.*s  ", width, (int)(meaning - at - 1), at);
            print_line(out, meaning, end, indent + width + 2, column);
        } else {
            print_line(out, at, end, indent, column);
        }
    }
}

#define HELP_COLUMN     28
#define LONGEST_EXAMPLE 512

/* `help` is what is said of it there; a table begins on a line of its own. */
static void print_help_option(FILE *out, const struct cli_option *option, const char *help)
{
    char left[80];
    const int width =
        snprintf(left, sizeof left, "  %c%c%c --%s%s%s", option->letter ? '-' : ' ',
                 option->letter ? option->letter : ' ', option->letter ? ',' : ' ', option->name,
                 option->argument != NULL ? " " : "", option->argument != NULL ? option->argument : "");
    if (width < HELP_COLUMN && row_meaning(help) == NULL)
        fprintf(out, "%-*s", HELP_COLUMN, left);
    else
        fprintf(out, "%s\n%*s", left, HELP_COLUMN, "");
    print_text(out, help, HELP_COLUMN, HELP_COLUMN);
}

/* One line of examples; a command that is too long is continued before an option. */
static void print_example(FILE *out, const char *line, const char *end)
{
    int indent = 2;
    while (end - line > 80 - indent) {
        const char *cut = NULL;
        for (const char *at = line + 1; at < end && at - line <= 80 - indent - 2; at++)
            if (at[0] == ' ' && at[1] == '-')
                cut = at;
        if (cut == NULL)
            break;
        fprintf(out, "%*s%.*s \\\n", indent, "", (int)(cut - line), line);
        line = cut + 1;
        indent = 6;
    }
    fprintf(out, "%*s%.*s\n", indent, "", (int)(end - line), line);
}

/* The examples say "moec VERB"; a program that is one command is named in its place. */
static void print_examples(FILE *out, const char *label, const struct cli_command *command,
                           const char *examples)
{
    char line[LONGEST_EXAMPLE], verb[CLI_LABEL_BYTES];
    const size_t n_verb = strlen(cli_command_label("moec", command, verb));
    for (const char *at = examples; at != NULL && *at != '\0';) {
        const char *end = line_end(at);
        size_t n = 0;
        while (at < end && n + CLI_LABEL_BYTES < sizeof line) {
            const bool is_verb = strncmp(at, verb, n_verb) == 0 && at[n_verb] == ' ';
            n += (size_t)snprintf(line + n, CLI_LABEL_BYTES, "%.*s", is_verb ? CLI_LABEL_BYTES : 1,
                                  is_verb ? label : at);
            at += is_verb ? n_verb : 1;
        }
        print_example(out, line, line + n);
        at = end + (*end == '\n');
    }
}

typedef void print_option_fn(FILE *out, const struct cli_option *option, const char *help);

/* Options under one heading, usual ones first; the research of others stands under that of research. Returns
 * how many there are. */
static uint32_t each_option(FILE *out, const struct cli_command *command, unsigned heading,
                            print_option_fn *print)
{
    uint32_t count = 0;
    for (unsigned rare = 0; rare <= CLI_RARE; rare += CLI_RARE)
        for (const struct cli_option *option = command->options; option->name != NULL; option++) {
            const bool is_own = (option->flags & CLI_HEADINGS) == heading;
            const char *help = is_own ? option->help : research_of(option->help);
            if ((option->flags & CLI_RARE) != rare || help == NULL || (!is_own && heading != CLI_OF_RESEARCH))
                continue;
            count++;
            if (print != NULL)
                print(out, option, help);
        }
    return count;
}

static uint32_t count_rare(const struct cli_command *command)
{
    uint32_t n = cli_writes_files(command);
    for (const struct cli_option *option = command->options; option->name != NULL; option++)
        n += (option->flags & CLI_RARE) != 0;
    return n;
}

void cli_print_help(FILE *out, const char *program, const struct cli_command *command)
{
    char label[CLI_LABEL_BYTES];
    const uint32_t n_rare = count_rare(command);
    fprintf(out, "Usage: %s %s [options]\n\n", cli_command_label(program, command, label), command->usage);
    print_text(out, command->about, 0, 0);
    fprintf(out, "\nOptions:\n");
    for (const struct cli_option *option = command->options; option->name != NULL; option++)
        if ((option->flags & CLI_RARE) == 0)
            print_help_option(out, option, option->help);
    print_help_option(out, &help_option, help_option.help);
    fprintf(out, "\nExamples:\n");
    print_examples(out, label, command, command->examples);
    if (n_rare > 0)
        fprintf(out, "\n'%s --help-all' lists %" PRIu32 " more option%s.\n", label, n_rare,
                n_rare == 1 ? "" : "s");
    else if (command->details != NULL)
        fprintf(out, "\n'%s --help-all' tells more.\n", label);
}

/* What every command has, behind the options of CLI_OF_ALL. */
static void each_implied(FILE *out, const struct cli_command *command, print_option_fn *print)
{
    if (cli_writes_files(command))
        print(out, &cli_force_option, cli_force_option.help);
    print(out, &help_option, help_option.help);
    print(out, &help_all_option, help_all_option.help);
}

/* Whether a command's options stand under one heading, which then says no more than "Options". */
static bool has_one_heading(const struct cli_command *command)
{
    for (size_t h = 0; h < N_HEADING; h++)
        if (headings[h].heading != CLI_OF_ALL && each_option(NULL, command, headings[h].heading, NULL) > 0)
            return false;
    return true;
}

void cli_print_help_all(FILE *out, const char *program, const struct cli_command *command)
{
    char label[CLI_LABEL_BYTES];
    fprintf(out, "Usage: %s %s [options]\n\n", cli_command_label(program, command, label), command->usage);
    print_text(out, command->about, 0, 0);
    if (command->details != NULL) {
        fputc('\n', out);
        print_text(out, command->details, 0, 0);
    }
    for (size_t h = 0; h < N_HEADING; h++) {
        const unsigned heading = headings[h].heading;
        const char *title = has_one_heading(command) ? "Options" : headings[h].title;
        if (heading != CLI_OF_ALL && each_option(NULL, command, heading, NULL) == 0)
            continue;
        fprintf(out, "\n%s:\n", title);
        (void)each_option(out, command, heading, print_help_option);
        if (heading == CLI_OF_ALL)
            each_implied(out, command, print_help_option);
    }
    fprintf(out, "\nExamples:\n");
    print_examples(out, label, command, command->examples);
    print_examples(out, label, command, command->more_examples);
}

/* mdoc text up to `end`: a leading dot or quote and backslashes would be requests, bare hyphens are typeset
 * as such. */
static void print_roff_line(FILE *out, const char *text, const char *end)
{
    if (text < end && (*text == '.' || *text == '\''))
        fputs("\\&", out);
    for (; text < end; text++) {
        if (*text == '\\')
            fputs("\\e", out);
        else if (*text == '-')
            fputs("\\-", out);
        else
            fputc(*text, out);
    }
    fputc('\n', out);
}

void cli_print_roff_lines(FILE *out, const char *text)
{
    for (const char *at = text; at != NULL && *at != '\0';) {
        const char *end = line_end(at);
        print_roff_line(out, at, end);
        at = end + (*end == '\n');
    }
}

/* Paragraphs, and tables as lists. */
static void print_roff(FILE *out, const char *text)
{
    bool in_table = false;
    for (const char *at = text; !is_over(at); at = next_line(at)) {
        const char *end = line_end(at);
        const char *meaning = row_meaning(at);
        if (meaning != NULL && !in_table)
            fprintf(out, ".Bl -tag -width Ds -compact\n");
        else if (meaning == NULL && in_table)
            fprintf(out, ".El\n");
        else if (meaning == NULL && at != text)
            fprintf(out, ".Pp\n");
        in_table = meaning != NULL;
        if (in_table) {
            fprintf(out, ".It ");
            print_roff_line(out, at, meaning - 1);
            print_roff_line(out, meaning, end);
        } else {
            print_roff_line(out, at, end);
        }
    }
    if (in_table)
        fprintf(out, ".El\n");
}

static void print_manual_option(FILE *out, const struct cli_option *option, const char *help)
{
    fprintf(out, ".It ");
    if (option->letter)
        fprintf(out, "Fl %c , ", option->letter);
    fprintf(out, "Fl \\-");
    for (const char *at = option->name; *at != '\0'; at++)
        fprintf(out, *at == '-' ? "\\-" : "%c", *at);
    if (option->argument != NULL && option->argument[0] == '[')
        fprintf(out, " Op Ar %.*s", (int)strlen(option->argument) - 2, option->argument + 1);
    else if (option->argument != NULL)
        fprintf(out, " Ar %s", option->argument);
    fputc('\n', out);
    print_roff(out, help);
}

void cli_print_manual(FILE *out, const char *program, const struct cli_command *command)
{
    bool is_alone = strcmp(program, "moec") != 0;
    char page[64];
    (void)snprintf(page, sizeof page, "%s%s%s", program, is_alone ? "" : "-", is_alone ? "" : command->name);
    fprintf(out, ".Dd $Mdocdate$\n.Dt %s 1\n.Os moec %s\n.Sh NAME\n.Nm %s\n.Nd ", page, MOEC_VERSION, page);
    print_roff(out, command->summary);
    char label[CLI_LABEL_BYTES];
    fprintf(out, ".Sh SYNOPSIS\n.Nm %s\n.Ar %s\n.Op Ar options\n.Sh DESCRIPTION\n",
            cli_command_label(program, command, label), command->usage);
    print_roff(out, command->about);
    if (command->details != NULL) {
        fprintf(out, ".Pp\n");
        print_roff(out, command->details);
    }
    fprintf(out, ".Sh OPTIONS\n");
    for (size_t h = 0; h < N_HEADING; h++) {
        const unsigned heading = headings[h].heading;
        if (heading != CLI_OF_ALL && each_option(NULL, command, heading, NULL) == 0)
            continue;
        if (!has_one_heading(command))
            fprintf(out, ".Ss %s\n", headings[h].title);
        fprintf(out, ".Bl -tag -width Ds\n");
        (void)each_option(out, command, heading, print_manual_option);
        if (heading == CLI_OF_ALL)
            each_implied(out, command, print_manual_option);
        fprintf(out, ".El\n");
    }
    fprintf(out, ".Sh EXIT STATUS\n0 on success, 1 when the work failed, 2 for wrong usage.\n"
                 ".Sh EXAMPLES\n.Bd -literal -offset indent\n");
    cli_print_roff_lines(out, command->examples);
    cli_print_roff_lines(out, command->more_examples);
    fprintf(out, ".Ed\n");
}
