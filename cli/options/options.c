/* Options are found by name in the verb's table; a name that it lacks is our mistake and ends the program.
 * One without an argument stores an empty value. One whose argument stands in brackets takes the next word
 * only if it is a choice. Tables lack --force, --help and --help-all. One notation of help texts serves
 * terminals and man pages. */
#include "cli/options/options.h"
#include "cli/options/nearest.h"
#include "cli/print/print.h"
#include "formats/base/printable.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const struct cli_option cli_force_option = {"force", 0, NULL, NULL, "Overwrite files that exist.", CLI_RARE};

const char *cli_command_label(const char *program, const struct cli_command *command,
                              char text[static CLI_LABEL_BYTES])
{
    bool is_alone = strcmp(program, "moec") != 0;
    (void)snprintf(text, CLI_LABEL_BYTES, "%s%s%s", program, is_alone ? "" : " ",
                   is_alone ? "" : command->name);
    return text;
}

static int find_option(const struct cli_command *command, const char *name, size_t length)
{
    for (int i = 0; command->options[i].name != NULL; i++)
        if (strlen(command->options[i].name) == length && memcmp(command->options[i].name, name, length) == 0)
            return i;
    return -1;
}

bool cli_writes_files(const struct cli_command *command)
{
    for (const struct cli_option *option = command->options; option->name != NULL; option++)
        if ((option->flags & CLI_OUTPUT) != 0)
            return true;
    return false;
}

static int find_letter(const struct cli_command *command, char letter)
{
    for (int i = 0; command->options[i].name != NULL; i++)
        if (command->options[i].letter == letter)
            return i;
    return -1;
}

static bool usage_error(const struct cli_args *args, int *status, const char *format, ...) MOEC_PRINTF(3, 4);

static bool usage_error(const struct cli_args *args, int *status, const char *format, ...)
{
    char label[CLI_LABEL_BYTES];
    fprintf(stderr, "%s: ", cli_command_label(args->program, args->command, label));
    va_list list;
    va_start(list, format);
    char *text = NULL;
    if (vasprintf(&text, format, list) >= 0)
        cli_put(stderr, text);
    va_end(list);
    free(text);
    fprintf(stderr, "\ntry '%s --help'\n", label);
    *status = CLI_USAGE;
    return false;
}

/* "" or ": did you mean '--memory'?" */
struct suggestion {
    char text[80];
};

static struct suggestion suggestion_of(const struct cli_nearest *nearest, const char *dashes)
{
    struct suggestion suggestion = {""};
    if (nearest->best != NULL)
        (void)snprintf(suggestion.text, sizeof suggestion.text, ": did you mean '%s%.*s'?", dashes,
                       (int)nearest->best_length, nearest->best);
    return suggestion;
}

/* Options of older versions, the option that says the same now, and how. */
static const struct {
    const char *name, *by, *now;
} retired[] = {
    {"evict-weights", "evict", "give the weights after the policy's name: --evict hobbit:0.4:0.3:0.1:0.2"},
    {"shallow-layers", "evict", "give the number of layers after the policy's name: --evict fate:3"},
    {"decisions", "replay-decisions", "use --record-decisions FILE"},
    {"tune-evict", "search-evict", "use --search-evict"},
};

static bool unknown_option(const struct cli_args *args, const char *word, int *status)
{
    const char *name = word + strspn(word, "-");
    const size_t n_name = strcspn(name, "=");
    for (size_t i = 0; i < sizeof retired / sizeof *retired; i++)
        if (strlen(retired[i].name) == n_name && memcmp(retired[i].name, name, n_name) == 0 &&
            cli_offers(args, retired[i].by))
            return usage_error(args, status, "there is no option '--%s' any more: %s", retired[i].name,
                               retired[i].now);
    struct cli_nearest nearest = cli_nearest_of(name, n_name);
    for (const struct cli_option *option = args->command->options; option->name != NULL; option++)
        cli_nearest_offer(&nearest, option->name, strlen(option->name));
    cli_nearest_offer(&nearest, "help", strlen("help"));
    if (cli_writes_files(args->command))
        cli_nearest_offer(&nearest, cli_force_option.name, strlen(cli_force_option.name));
    return usage_error(args, status, "unknown option '%s'%s", word, suggestion_of(&nearest, "--").text);
}

/* Whether the value is one of the words between the bars, whole; one that ends with a colon goes on. */
static bool is_choice(const char *choices, const char *value, size_t length)
{
    for (const char *at = choices; at != NULL;) {
        const size_t word = strcspn(at, "|");
        const bool goes_on = word > 0 && at[word - 1] == ':';
        if (length > 0 && (goes_on ? length >= word : length == word) && memcmp(at, value, word) == 0)
            return true;
        at = at[word] == '|' ? at + word + 1 : NULL;
    }
    return false;
}

/* The first word of a value that is none of the choices, which are one word or, of a LIST, several with
 * commas between them; NULL where all are. */
static const char *find_wrong(const struct cli_option *option, const char *value, size_t *length)
{
    const bool is_list = strcmp(option->argument, CLI_LIST) == 0;
    for (const char *at = value;; at += *length + 1) {
        *length = is_list ? strcspn(at, ",") : strlen(at);
        if (!is_choice(option->choices, at, *length))
            return at;
        if (at[*length] == '\0')
            return NULL;
    }
}

/* "png, svg or csv". */
static void say_choices(const char *choices, char *text, size_t capacity)
{
    size_t used = 0;
    for (const char *at = choices; *at != '\0' && used < capacity;) {
        const size_t n = strcspn(at, "|");
        const bool is_last = at[n] == '\0';
        const char *before = at == choices ? "" : is_last ? " or " : ", ";
        used += (size_t)snprintf(text + used, capacity - used, "%s%.*s", before, (int)n, at);
        at += n + (is_last ? 0 : 1);
    }
}

static bool wrong_choice(const struct cli_args *args, const struct cli_option *option, const char *word,
                         size_t length, int *status)
{
    char choices[256] = "";
    const size_t n_name = strcspn(word, ":");
    struct cli_nearest nearest = cli_nearest_of(word, n_name < length ? n_name : length);
    cli_nearest_offer_choices(&nearest, option->choices);
    if (strcmp(option->argument, CLI_LIST) != 0)
        return usage_error(args, status, "option '--%s' is '%s', expected one of %s%s", option->name, word,
                           option->choices, suggestion_of(&nearest, "").text);
    say_choices(option->choices, choices, sizeof choices);
    return usage_error(args, status, "option '--%s' has '%.*s', expected %s, separated by commas%s",
                       option->name, (int)(length < 100 ? length : 100), word, choices,
                       suggestion_of(&nearest, "").text);
}

static bool store(struct cli_args *args, int index, const char *value, int *status)
{
    const struct cli_option *option = &args->command->options[index];
    uint32_t limit = (option->flags & CLI_REPEATS) != 0 ? CLI_MAX_REPEATS : 1;
    assert(index < CLI_MAX_OPTIONS);
    if (args->n_values[index] == limit)
        return usage_error(args, status, "option '--%s' is given too often (limit: %" PRIu32 ")",
                           option->name, limit);
    const bool is_left_out = option->argument != NULL && option->argument[0] == '[' && value[0] == '\0';
    if (option->argument != NULL && option->choices != NULL && !is_left_out) {
        size_t length = 0;
        const char *wrong = find_wrong(option, value, &length);
        if (wrong != NULL)
            return wrong_choice(args, option, wrong, length, status);
    }
    args->values[index][args->n_values[index]++] = value;
    return true;
}

/* One "--name", "--name=value" or "-x" at argv[*at]; advances over its value. */
static bool parse_option(struct cli_args *args, int argc, char **argv, int *at, int *status)
{
    const char *word = argv[*at];
    const char *equals = NULL;
    int index;
    if (word[1] == '-') {
        equals = strchr(word, '=');
        index = find_option(args->command, word + 2,
                            equals != NULL ? (size_t)(equals - word - 2) : strlen(word + 2));
    } else {
        index = word[2] == '\0' ? find_letter(args->command, word[1]) : -1;
    }
    if (index < 0) {
        if (strcmp(word, "--force") == 0 && cli_writes_files(args->command)) {
            args->is_forced = true;
            return true;
        }
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            cli_print_help(stdout, args->program, args->command);
            *status = CLI_OK;
            return false;
        }
        if (strcmp(word, "--help-all") == 0) {
            cli_print_help_all(stdout, args->program, args->command);
            *status = CLI_OK;
            return false;
        }
        return unknown_option(args, word, status);
    }
    const struct cli_option *option = &args->command->options[index];
    if (option->argument == NULL) {
        if (equals != NULL)
            return usage_error(args, status, "option '--%s' takes no value", option->name);
        return store(args, index, "", status);
    }
    if (equals != NULL)
        return store(args, index, equals + 1, status);
    if (option->argument[0] == '[') {
        const bool follows =
            *at + 1 < argc && is_choice(option->choices, argv[*at + 1], strlen(argv[*at + 1]));
        return store(args, index, follows ? argv[++*at] : "", status);
    }
    if (*at + 1 >= argc)
        return usage_error(args, status, "option '--%s' needs a value: %s", option->name, option->argument);
    return store(args, index, argv[++*at], status);
}

/* As must_find: a table with more options than there are places for their values. */
static void check_table(const struct cli_command *command)
{
    size_t n = 0;
    while (command->options[n].name != NULL)
        n++;
    if (n > CLI_MAX_OPTIONS) {
        fprintf(stderr, "internal error: '%s' has %zu options, there is room for %d\n", command->name, n,
                CLI_MAX_OPTIONS);
        abort();
    }
}

bool cli_parse(struct cli_args *args, const char *program, const struct cli_command *command,
               struct cli_words words, int *status)
{
    const int argc = words.n;
    char **const argv = words.words;
    check_table(command);
    memset(args, 0, sizeof *args);
    args->n_local_ranks = 1;
    args->program = program;
    args->command = command;
    args->argc = argc;
    args->argv = argv;
    bool options_ended = false;
    for (int at = words.first; at < argc; at++) {
        if (!options_ended && strcmp(argv[at], "--") == 0) {
            options_ended = true;
            continue;
        }
        if (!options_ended && argv[at][0] == '-' && argv[at][1] != '\0') {
            if (!parse_option(args, argc, argv, &at, status))
                return false;
            continue;
        }
        if (args->n_positional == command->n_positional_max)
            return usage_error(args, status, "unexpected argument '%s'", argv[at]);
        args->positional[args->n_positional++] = argv[at];
    }
    if (args->n_positional < command->n_positional_min)
        return usage_error(args, status, "missing argument: expected %s", command->usage);
    return true;
}

/* A name that is not in the table is a mistake of ours, not of the user. */
static int must_find(const struct cli_args *args, const char *name)
{
    int index = find_option(args->command, name, strlen(name));
    if (index < 0) {
        fprintf(stderr, "internal error: option '%s' is not in the table of '%s'\n", name,
                args->command->name);
        abort();
    }
    return index;
}

bool cli_offers(const struct cli_args *args, const char *name)
{
    return find_option(args->command, name, strlen(name)) >= 0;
}

bool cli_has(const struct cli_args *args, const char *name)
{
    return args->n_values[must_find(args, name)] > 0;
}

uint32_t cli_count(const struct cli_args *args, const char *name)
{
    return args->n_values[must_find(args, name)];
}

const char *cli_repeat(const struct cli_args *args, const char *name, uint32_t index)
{
    return args->values[must_find(args, name)][index];
}

const char *cli_text(const struct cli_args *args, const char *name)
{
    int index = must_find(args, name);
    return args->n_values[index] > 0 ? args->values[index][args->n_values[index] - 1] : NULL;
}

void cli_assume(struct cli_args *args, const char *name, const char *value)
{
    const int index = must_find(args, name);
    if (args->n_values[index] == 0)
        args->values[index][args->n_values[index]++] = value;
}

static bool parse_u64(const char *text, uint64_t *out, const char **end)
{
    if (!isdigit((unsigned char)text[0]))
        return false;
    char *stop = NULL;
    errno = 0;
    unsigned long long value = strtoull(text, &stop, 10);
    if (errno != 0)
        return false;
    *out = value;
    *end = stop;
    return true;
}

enum moec_status cli_u64(const struct cli_args *args, const char *name, uint64_t min, uint64_t max,
                         uint64_t *out, struct moec_error *err)
{
    const char *text = cli_text(args, name);
    if (text == NULL)
        return MOEC_OK;
    uint64_t value = 0;
    const char *end = "";
    if (!parse_u64(text, &value, &end) || *end != '\0' || value < min || value > max)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "option '--%s' is '%s', expected a whole number from %" PRIu64 " to %" PRIu64, name,
                         text, min, max);
    *out = value;
    return MOEC_OK;
}

enum moec_status cli_u32(const struct cli_args *args, const char *name, uint32_t min, uint32_t max,
                         uint32_t *out, struct moec_error *err)
{
    uint64_t value = *out;
    MOEC_TRY(cli_u64(args, name, min, max, &value, err));
    *out = (uint32_t)value;
    return MOEC_OK;
}

enum moec_status cli_double(const struct cli_args *args, const char *name, double min, double max,
                            double *out, struct moec_error *err)
{
    const char *text = cli_text(args, name);
    if (text == NULL)
        return MOEC_OK;
    char *end = NULL;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= min && value <= max))
        return moec_fail(err, MOEC_ERR_USAGE, "option '--%s' is '%s', expected a number from %g to %g", name,
                         text, min, max);
    *out = value;
    return MOEC_OK;
}

enum moec_status cli_fraction(const struct cli_args *args, const char *name, double *out,
                              struct moec_error *err)
{
    const char *text = cli_text(args, name);
    if (text == NULL)
        return MOEC_OK;
    char *end = NULL;
    double value = strtod(text, &end);
    bool percent = end != text && end[0] == '%' && end[1] == '\0';
    if (end == text || !(percent || *end == '\0') || !isfinite(value) || value < 0)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "option '--%s' is '%s', expected a fraction such as 2%% or 0.02", name, text);
    if (!percent && value >= 1)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "option '--%s' is '%s': a value of 1 or more needs a percent sign ('%s%%' is %g)",
                         name, text, text, value / 100);
    *out = percent ? value / 100 : value;
    return MOEC_OK;
}

bool cli_parse_size(const char *text, uint64_t *out)
{
    static const struct {
        const char *suffix;
        uint64_t factor;
    } units[] = {{"", 1},           {"B", 1},          {"KB", 1000},      {"MB", 1000000}, {"GB", 1000000000},
                 {"KiB", 1u << 10}, {"MiB", 1u << 20}, {"GiB", 1u << 30}, {"K", 1u << 10}, {"M", 1u << 20},
                 {"G", 1u << 30}};
    char *end = NULL;
    double value = strtod(text, &end);
    if (end == text || !isfinite(value) || value < 0)
        return false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcasecmp(end, units[i].suffix) == 0 && value * (double)units[i].factor < 0x1p60) {
            *out = (uint64_t)(value * (double)units[i].factor);
            return true;
        }
    return false;
}

/* Somebody who types "25" means megabytes; what is that small needs no option. */
enum moec_status cli_check_size_unit(const char *name, const char *text, uint64_t bytes,
                                     struct moec_error *err)
{
    if (bytes >= CLI_LEAST_BARE_BYTES || bytes == 0 || !isdigit((unsigned char)text[strlen(text) - 1]))
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_USAGE,
                     "option '--%s' is '%s', which means %" PRIu64
                     " bytes: give a unit, such as %sMiB, or %sB for bytes",
                     name, text, bytes, text, text);
}

enum moec_status cli_bytes(const struct cli_args *args, const char *name, uint64_t *out,
                           struct moec_error *err)
{
    const char *text = cli_text(args, name);
    uint64_t bytes = 0;
    if (text == NULL)
        return MOEC_OK;
    if (!cli_parse_size(text, &bytes))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "option '--%s' is '%s', expected a size such as 64MiB, 20MB or 1048576", name, text);
    MOEC_TRY(cli_check_size_unit(name, text, bytes, err));
    *out = bytes;
    return MOEC_OK;
}

static int compare_u32(const void *a, const void *b)
{
    uint32_t left, right;
    memcpy(&left, a, sizeof left);
    memcpy(&right, b, sizeof right);
    return (left > right) - (left < right);
}

static bool is_listed(const uint32_t *list, uint32_t value)
{
    for (; *list != 0; list++)
        if (*list == value)
            return true;
    return false;
}

enum moec_status cli_duration(const struct cli_args *args, const char *name, double *out,
                              struct moec_error *err)
{
    static const struct {
        const char *suffix;
        double seconds;
    } units[] = {{"s", 1}, {"m", 60}, {"min", 60}, {"h", 3600}};
    const char *text = cli_text(args, name);
    if (text == NULL)
        return MOEC_OK;
    char *end = NULL;
    double value = strtod(text, &end);
    if (end != text && isfinite(value) && value > 0 && value < 1e9)
        for (size_t i = 0; i < sizeof units / sizeof *units; i++)
            if (strcasecmp(end, units[i].suffix) == 0) {
                *out = value * units[i].seconds;
                return MOEC_OK;
            }
    return moec_fail(err, MOEC_ERR_USAGE, "option '--%s' is '%s', expected a duration such as 90s, 30m or 2h",
                     name, text);
}

enum moec_status cli_u32_list(const struct cli_args *args, const char *name, const uint32_t *allowed,
                              struct cli_numbers *list, struct moec_error *err)
{
    const char *text = cli_text(args, name);
    if (text == NULL)
        return MOEC_OK;
    uint32_t count = 0;
    for (const char *at = text;; at++) {
        uint64_t value = 0;
        bool ok = parse_u64(at, &value, &at) && value > 0 && value <= UINT32_MAX &&
                  is_listed(allowed, (uint32_t)value) && (*at == ',' || *at == '\0');
        for (uint32_t i = 0; ok && i < count; i++)
            ok = list->all[i] != value;
        if (!ok || count == list->most) {
            char choices[128] = "";
            for (size_t i = 0; allowed[i] != 0; i++) {
                size_t used = strlen(choices);
                (void)snprintf(choices + used, sizeof choices - used, "%s%" PRIu32, i > 0 ? ", " : "",
                               allowed[i]);
            }
            return moec_fail(
                err, MOEC_ERR_USAGE,
                "option '--%s' is '%s', expected different numbers, separated by commas, each one of %s",
                name, text, choices);
        }
        list->all[count++] = (uint32_t)value;
        if (*at == '\0')
            break;
    }
    qsort(list->all, count, sizeof *list->all, compare_u32);
    list->n = count;
    return MOEC_OK;
}

/* $'...', for words that would steer the terminal: every byte that is no plain one becomes an escape. */
static void print_escaped(FILE *out, const char *word)
{
    fputs("$'", out);
    for (; *word != '\0'; word++) {
        if (isalnum((unsigned char)*word) || strchr("_-./,:=+%@ ", *word) != NULL)
            fputc(*word, out);
        else
            fprintf(out, "\\x%02x", (unsigned)(unsigned char)*word);
    }
    fputc('\'', out);
}

void cli_print_word(FILE *out, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./,:=+%@";
    if (word[0] != '\0' && word[strspn(word, plain)] == '\0') {
        fputs(word, out);
        return;
    }
    if (moec_printable(word, strlen(word), false, NULL, 0) != strlen(word)) {
        print_escaped(out, word);
        return;
    }
    fputc('\'', out);
    for (; *word != '\0'; word++) {
        if (*word == '\'')
            fputs("'\\''", out);
        else
            fputc(*word, out);
    }
    fputc('\'', out);
}

void cli_print_again(FILE *out, const struct cli_args *args, const char *flag)
{
    const bool is_there = cli_has(args, flag);
    for (int i = 0; i < args->argc; i++) {
        if (i > 0)
            fputc(' ', out);
        cli_print_word(out, args->argv[i]);
        if (i == 1 && !is_there)
            fprintf(out, " --%s", flag);
    }
}

void cli_print_changed(FILE *out, const struct cli_args *args, const char *program, const char *option,
                       const char *value)
{
    const char *own = args->argv[0], *slash = strrchr(own, '/');
    const bool is_other = strcmp(program, args->program) != 0;
    const size_t n = strlen(option);
    if (!is_other)
        cli_print_word(out, own);
    else
        fprintf(out, "%.*s%s", slash != NULL ? (int)(slash - own + 1) : 0, own, program);
    /* Another program has no verbs. */
    for (int i = is_other ? 2 : 1; i < args->argc; i++) {
        const char *word = args->argv[i];
        if (option[0] != '\0' && strncmp(word, "--", 2) == 0 && strncmp(word + 2, option, n) == 0 &&
            (word[2 + n] == '\0' || word[2 + n] == '=')) {
            i += word[2 + n] == '\0';
            continue;
        }
        fputc(' ', out);
        cli_print_word(out, word);
    }
    if (option[0] != '\0')
        fprintf(out, " --%s %s", option, value);
}

const char *cli_label(const struct cli_args *args, char text[static CLI_LABEL_BYTES])
{
    return cli_command_label(args->program, args->command, text);
}

void (*cli_failed)(const struct cli_args *args, const struct moec_error *err);

int cli_fail(const struct cli_args *args, const struct moec_error *err)
{
    char label[CLI_LABEL_BYTES];
    if (cli_failed != NULL)
        cli_failed(args, err);
    cli_print(stderr, "%s: %s\n", cli_label(args, label), err->status != MOEC_OK ? err->message : "failed");
    return err->status == MOEC_ERR_USAGE ? CLI_USAGE : CLI_FAILED;
}
