/* The command line as tables: one struct cli_command for each verb, with its options. Parsing, --help, man
 * pages and shell completion all work from these tables, so they never disagree. */
#ifndef MOEC_CLI_OPTIONS_H
#define MOEC_CLI_OPTIONS_H

#include "formats/base/error.h"

#include <stddef.h>
#include <stdio.h>

#define CLI_MAX_OPTIONS     64
#define CLI_MAX_POSITIONALS 4
#define CLI_MAX_REPEATS     8

#define CLI_LEAST_BARE_BYTES 65536

/* Exit statuses. */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/* Flags of an option; 0 = shown by --help, given once. */
enum {
    CLI_REPEATS = 1, /* may be given up to CLI_MAX_REPEATS times */
    CLI_RARE = 2,    /* left to --help-all, the man page and completion */
    /* What its value names (cli/options/outputs.h); arguments without an option are inputs. */
    CLI_INPUT = 4,  /* a file or folder that is read */
    CLI_OUTPUT = 8, /* a file or folder that is written */
    CLI_IN_PLACE =
        16, /* an output that may be an input, with --force: the new file takes its place when whole */
    CLI_BUILT_IN = 32, /* an input that may also be the name of something built in */
    /* One of these: the heading under which --help-all and the man page have it. */
    CLI_OF_ALL = 0 << 6, /* the general one, which comes behind the others */
    CLI_OF_TEXT = 1 << 6,
    CLI_OF_DATA = 2 << 6,
    CLI_OF_BITS = 3 << 6,
    CLI_OF_LOSS = 4 << 6,
    CLI_OF_MEMORY = 5 << 6,
    CLI_OF_DECISIONS = 6 << 6,
    CLI_OF_DEVICE = 7 << 6,
    CLI_OF_NETWORK = 8 << 6,
    CLI_OF_OUTPUT = 9 << 6,
    CLI_OF_RESEARCH = 10 << 6, /* what only reproduces a baseline of a paper */
    CLI_HEADINGS = 15 << 6
};

/* In a help text: what follows is of research, though the option is not. --help leaves it out. */
#define CLI_RESEARCH "\f"

/* Placeholder of an option that takes several words with commas between them. */
#define CLI_LIST "LIST"

/* The instruction sets of this architecture that --cpu takes, and the same in words. */
#if defined(__aarch64__)
#define CLI_CPU_CHOICES "auto|scalar|neon"
#define CLI_CPU_SETS    "scalar or neon"
#else
#define CLI_CPU_CHOICES "auto|scalar|avx2|avx2-gfni|avx512|avx512-vbmi"
#define CLI_CPU_SETS    "scalar, avx2, avx2-gfni, avx512 or avx512-vbmi"
#endif

/* What a verb's first argument is. */
enum cli_model { CLI_NO_MODEL, CLI_BUNDLE, CLI_CHECKPOINT, CLI_BUNDLE_OR_CHECKPOINT };

struct cli_option {
    const char *name; /* without dashes; NULL ends a table */
    char letter;      /* 0 = none */
    /* Placeholder ("FILE"), NULL for a flag; "[a|b]": one of the choices, or none (""). */
    const char *argument;
    /* "a|b|c" for completion and checking, of each word of a CLI_LIST; "a:" goes on as it likes; NULL = free */
    const char *choices;
    const char *help; /* one or more sentences, defaults included; a line "value\tmeaning" is a table row */
    unsigned flags;
};

struct cli_args;
struct moec_ranks;

struct cli_command {
    const char *name;
    enum cli_model model;
    const char *summary;       /* one line */
    const char *usage;         /* positional part: "MODEL.moec" */
    const char *about;         /* what it does, in a few lines */
    const char *details;       /* paragraphs for --help-all and the man page, NULL = none */
    const char *examples;      /* lines, each a command or a comment with '#' */
    const char *more_examples; /* for --help-all and the man page, NULL = none */
    uint32_t n_positional_min;
    uint32_t n_positional_max;
    const struct cli_option *options;        /* ends with a NULL name; --help, --help-all and, where files are
                                              * written, --force are implied */
    int (*run)(const struct cli_args *args); /* exit status */
    bool is_offline;                         /* works in long regions, which OpenMP runs */
    bool shares_work;                        /* with the other ranks of mpirun or srun */
    bool takes_config;                       /* MODEL may be a folder of JSON files alone, without weights */
};

struct cli_args {
    const char *program; /* "moec", "moec-run" or "moec-run --describe-device" */
    const struct cli_command *command;
    int argc; /* as the program was started */
    char **argv;
    const char *positional[CLI_MAX_POSITIONALS];
    uint32_t n_positional;
    const char *values[CLI_MAX_OPTIONS][CLI_MAX_REPEATS]; /* borrowed from argv */
    uint32_t n_values[CLI_MAX_OPTIONS];
    bool is_forced;           /* --force: outputs may exist */
    struct moec_ranks *ranks; /* that share the work; NULL = this process is alone */
    uint32_t n_local_ranks;   /* of them, on this machine; 1 alone */
};

extern const struct cli_option cli_force_option; /* implied where files are written */

/* Whether one of the command's options names a file to write. */
bool cli_writes_files(const struct cli_command *command);

/* The words of a command line. */
struct cli_words {
    int n;
    char **words; /* (n), as argv */
    int first;    /* that belongs to the command */
};

/* Parses the command's words. On --help or --help-all prints it to stdout and returns false with *status =
 * CLI_OK; on wrong usage prints the mistake to stderr and returns false with CLI_USAGE. "-" is a positional;
 * "--" ends options; "--name=value" works. */
bool cli_parse(struct cli_args *args, const char *program, const struct cli_command *command,
               struct cli_words words, int *status);

/* Whether the command has such an option at all: for code that serves several commands. */
bool cli_offers(const struct cli_args *args, const char *name);

/* Whether an option was given, its last value (NULL when absent), and its values.
 * The name must be in the table. */
bool cli_has(const struct cli_args *args, const char *name);
const char *cli_text(const struct cli_args *args, const char *name);
uint32_t cli_count(const struct cli_args *args, const char *name);
const char *cli_repeat(const struct cli_args *args, const char *name, uint32_t index);

/* Gives an option that takes a value and was not given: as if it stood on the command line. `value` is kept.
 */
void cli_assume(struct cli_args *args, const char *name, const char *value);

/* Typed values; `*out` keeps its default when the option is absent. Errors (MOEC_ERR_USAGE) name option,
 * value and what is expected. */
MOEC_WARN_UNUSED enum moec_status cli_u64(const struct cli_args *args, const char *name, uint64_t min,
                                          uint64_t max, uint64_t *out, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status cli_u32(const struct cli_args *args, const char *name, uint32_t min,
                                          uint32_t max, uint32_t *out, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status cli_double(const struct cli_args *args, const char *name, double min,
                                             double max, double *out, struct moec_error *err);
/* A loss: "2%" and "0.02" are the same; 1 and above without % is refused (D5). */
MOEC_WARN_UNUSED enum moec_status cli_fraction(const struct cli_args *args, const char *name, double *out,
                                               struct moec_error *err);
/* "64MiB", as cli_bytes without its limit; false, with `*out` unchanged, for anything else. */
bool cli_parse_size(const char *text, uint64_t *out);
/* Refuses fewer than CLI_LEAST_BARE_BYTES that came without a unit, as cli_bytes does. */
MOEC_WARN_UNUSED enum moec_status cli_check_size_unit(const char *name, const char *text, uint64_t bytes,
                                                      struct moec_error *err);
/* Bytes: a number with an optional unit in any case; KB, MB, GB are powers of 1000, KiB, MiB, GiB and K, M, G
 * of 1024. Fewer than CLI_LEAST_BARE_BYTES need a unit. */
MOEC_WARN_UNUSED enum moec_status cli_bytes(const struct cli_args *args, const char *name, uint64_t *out,
                                            struct moec_error *err);
/* Seconds: a number with its unit, s, m (or min) or h, more than 0. */
MOEC_WARN_UNUSED enum moec_status cli_duration(const struct cli_args *args, const char *name, double *out,
                                               struct moec_error *err);
/* Numbers of an option. */
struct cli_numbers {
    uint32_t *all; /* (n of room for `most`) */
    uint32_t n, most;
};

/* A comma-separated list of numbers, each one of `allowed` (0-terminated); sorted, without repeats. */
MOEC_WARN_UNUSED enum moec_status cli_u32_list(const struct cli_args *args, const char *name,
                                               const uint32_t *allowed, struct cli_numbers *list,
                                               struct moec_error *err);

/* Prints a word as a shell takes it, quoted where it must be. */
void cli_print_word(FILE *out, const char *word);

/* Prints the command line as a shell takes it, with --`flag` after the verb when it is not there yet. */
void cli_print_again(FILE *out, const struct cli_args *args, const char *flag);

/* Prints the command line as a shell takes it, run by `program` and with --`option` `value` in place of what
 * it had; "" changes no option. Programs other than args->program stand beside it and have no verbs. */
void cli_print_changed(FILE *out, const struct cli_args *args, const char *program, const char *option,
                       const char *value);

/* What begins a message: "moec run", or "moec-run" for the program that is one command. */
#define CLI_LABEL_BYTES 64
const char *cli_label(const struct cli_args *args, char text[static CLI_LABEL_BYTES]);
/* The same of a command: "moec compile", "moec-run --describe-device". */
const char *cli_command_label(const char *program, const struct cli_command *command,
                              char text[static CLI_LABEL_BYTES]);

/* Prints "moec VERB: message" to stderr and returns the exit status:
 * CLI_USAGE for MOEC_ERR_USAGE, else CLI_FAILED. */
int cli_fail(const struct cli_args *args, const struct moec_error *err);
/* Told of each failure before it is printed; NULL = nobody. */
extern void (*cli_failed)(const struct cli_args *args, const struct moec_error *err);

/* help.c: help of one command. The usual options, in at most 48 lines of 80 columns (tests/cli/help.sh counts
 * them); every option under its heading; its man page in mdoc. */
void cli_print_help(FILE *out, const char *program, const struct cli_command *command);
void cli_print_help_all(FILE *out, const char *program, const struct cli_command *command);
void cli_print_manual(FILE *out, const char *program, const struct cli_command *command);
/* Lines of a man page as they are: of examples. */
void cli_print_roff_lines(FILE *out, const char *text);

#endif
