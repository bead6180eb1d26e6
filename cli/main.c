/* moec: finds the verb and runs it. */
#include "cli/options/completion.h"
#include "cli/options/inputs.h"
#include "cli/options/nearest.h"
#include "cli/options/outputs.h"
#include "cli/options/process.h"
#include "cli/options/started_ranks.h"
#include "cli/print/print.h"
#include "cli/settings/device_options.h"
#include "cli/terminal/terminal.h"
#include "cli/terminal/versions.h"
#include "cli/verbs/commands.h"
#include "profiler/common/openmp.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct cli_command *const commands[] = {
    &cli_command_profile, &cli_command_compile,  &cli_command_run,      &cli_command_eval,
    &cli_command_bench,   &cli_command_simulate, &cli_command_device,   &cli_command_inspect,
    &cli_command_verify,  &cli_command_export,   &cli_command_strip,    &cli_command_doctor,
    &cli_command_chat,    &cli_command_serve,    &cli_command_sparsify, &cli_command_predict,
    &cli_command_tune,    &cli_command_fit,
};
#define N_COMMANDS (sizeof commands / sizeof *commands)

static const struct cli_command *find_command(const char *name)
{
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    return NULL;
}

static const char synopsis[] = "compile Mixture-of-Experts models for devices that cannot hold them";

/* What is no verb of the table. */
static const struct cli_extra extras[] = {
    {"help", "print the help of a verb: moec help compile", NULL},
    {"manual", "print the man page of a verb: moec manual compile | man -l -", NULL},
    {"completion", "print shell completion: moec completion bash|zsh|fish", "bash|zsh|fish"},
};
#define N_EXTRAS (sizeof extras / sizeof *extras)

/* What to type first: to compile and to run; then, for who wants to look, what each expert loses. */
static const char *const steps[] = {
    "moec doctor MODEL",
    "moec compile MODEL --data mytext.txt --max-loss 2% -o model.moec",
    "moec run model.moec -p \"Once upon a time\" --memory 64MiB",
    "moec profile MODEL --data mytext.txt -o profile.h5 --heatmap heatmap.png",
};
#define N_STEPS (sizeof steps / sizeof *steps)

static void print_overview(FILE *out)
{
    fprintf(out, "moec %s: %s\n\nUsage: moec VERB [arguments] [options]\n\nVerbs:\n", MOEC_VERSION, synopsis);
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(out, "  %-11s %s\n", commands[i]->name, commands[i]->summary);
    for (size_t i = 0; i < N_EXTRAS; i++)
        fprintf(out, "  %-11s %s\n", extras[i].name, extras[i].summary);
    fprintf(out, "\nFirst steps:\n");
    for (size_t i = 0; i < N_STEPS; i++)
        fprintf(out, "  %s\n", steps[i]);
    fprintf(out, "\n'moec VERB --help' has the usual options, 'moec VERB --help-all' every option.\n"
                 "'moec --version' prints the versions of libraries and the instruction set.\n");
}

/* The man page of moec itself, in mdoc. */
static void print_manual_overview(FILE *out)
{
    fprintf(out,
            ".Dd $Mdocdate$\n.Dt moec 1\n.Os moec %s\n.Sh NAME\n.Nm moec\n.Nd %s\n"
            ".Sh SYNOPSIS\n.Nm moec\n.Ar verb\n.Op Ar arguments\n.Op Ar options\n"
            ".Sh DESCRIPTION\nEach verb has a man page of its own.\n.Bl -tag -width completion\n",
            MOEC_VERSION, synopsis);
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(out, ".It Xr moec-%s 1\n%s\n", commands[i]->name, commands[i]->summary);
    for (size_t i = 0; i < N_EXTRAS; i++)
        fprintf(out, ".It %s\n%s\n", extras[i].name, extras[i].summary);
    fprintf(out, ".El\n.Sh EXIT STATUS\n0 on success, 1 when the work failed, 2 for wrong usage.\n"
                 ".Sh EXAMPLES\n.Bd -literal -offset indent\n");
    for (size_t i = 0; i < N_STEPS; i++)
        cli_print_roff_lines(out, steps[i]);
    fprintf(out, ".Ed\n");
}

static int completion(const char *shell, const char *program)
{
    const struct cli_completion tables = {commands, N_COMMANDS, extras, N_EXTRAS};
    if (shell != NULL && cli_print_completion(stdout, shell, program, &tables))
        return CLI_OK;
    fprintf(stderr,
            "moec completion: name a shell: bash, zsh or fish; add moec-run for the completion of moec-run "
            "alone\n");
    return CLI_USAGE;
}

static int unknown_verb(const char *label, const char *word)
{
    struct cli_nearest nearest = cli_nearest_of(word, strlen(word));
    for (size_t i = 0; i < N_COMMANDS; i++)
        cli_nearest_offer(&nearest, commands[i]->name, strlen(commands[i]->name));
    for (size_t i = 0; i < N_EXTRAS; i++)
        cli_nearest_offer(&nearest, extras[i].name, strlen(extras[i].name));
    if (nearest.best != NULL)
        cli_print(stderr, "%s: no verb '%s': did you mean '%s'? 'moec help' lists all\n", label, word,
                  nearest.best);
    else
        cli_print(stderr, "%s: no verb '%s'; 'moec help' lists them\n", label, word);
    return CLI_USAGE;
}

/* help and manual of one verb; without a verb the overview. */
static int describe(int argc, char **argv, void (*overview)(FILE *),
                    void (*print)(FILE *, const char *, const struct cli_command *))
{
    if (argc < 3) {
        overview(stdout);
        return CLI_OK;
    }
    const struct cli_command *command = find_command(argv[2]);
    if (command == NULL) {
        char label[64];
        (void)snprintf(label, sizeof label, "moec %.40s", argv[1]);
        return unknown_verb(label, argv[2]);
    }
    print(stdout, "moec", command);
    return CLI_OK;
}

/* Threads of OpenMP that wait for the next region spin for milliseconds unless they are told to sleep. Alone
 * on a machine that gains nothing measurable; beside other programs it takes three times the processor time.
 * OpenMP reads this setting before main begins, so that the program starts itself anew with it. Where that
 * fails, the work is done all the same. */
static void restart_with_sleeping_waits(char **argv)
{
    if (getenv("OMP_WAIT_POLICY") == NULL && getenv("GOMP_SPINCOUNT") == NULL &&
        setenv("OMP_WAIT_POLICY", "passive", 1) == 0)
        (void)execv("/proc/self/exe", argv);
}

/* What is checked before any work. Only the first rank writes. */
static enum moec_status check(const struct cli_args *args, struct cli_outputs *outputs,
                              struct moec_error *err)
{
    MOEC_TRY(cli_check_inputs(args, err));
    if (moec_ranks_own(args->ranks) != 0)
        return MOEC_OK;
    MOEC_TRY(cli_check_outputs(args, outputs, err));
    return cli_check_overwriting(args, outputs, err);
}

static int run(const struct cli_command *command, int argc, char **argv, struct cli_outputs *outputs)
{
    const struct cli_started_ranks started = cli_started_ranks();
    struct cli_args args;
    struct moec_error err = {0};
    int status = CLI_OK;
    if (command->is_offline) {
        cli_ranks_unbind(&started); /* OpenMP counts processors when the program starts */
        restart_with_sleeping_waits(argv);
    }
    cli_ranks_begin(&started);
    if (!cli_parse(&args, "moec", command, (struct cli_words){argc, argv, 2}, &status))
        return status;
    if (command->is_offline)
        moec_openmp_use(getenv("OMP_NUM_THREADS") != NULL);
    if (cli_ranks_join(&started, &args, &args.ranks, &args.n_local_ranks, &err) != MOEC_OK ||
        check(&args, outputs, &err) != MOEC_OK)
        status = cli_fail(&args, &err);
    else
        status = command->run(&args);
    return cli_ranks_leave(&args, status);
}

static int dispatch(int argc, char **argv, struct cli_outputs *outputs)
{
    if (argc < 2) {
        print_overview(stderr);
        return CLI_USAGE;
    }
    const char *verb = argv[1];
    if (strcmp(verb, "--version") == 0) {
        cli_print_versions(stdout);
        return CLI_OK;
    }
    if (strcmp(verb, "--help") == 0 || strcmp(verb, "-h") == 0 || strcmp(verb, "help") == 0)
        return describe(argc, argv, print_overview, cli_print_help);
    if (strcmp(verb, "--help-all") == 0)
        return describe(argc, argv, print_overview, cli_print_help_all);
    if (strcmp(verb, "manual") == 0)
        return describe(argc, argv, print_manual_overview, cli_print_manual);
    if (strcmp(verb, "completion") == 0)
        return completion(argc > 2 ? argv[2] : NULL, argc > 3 ? argv[3] : "moec");
    const struct cli_command *command = find_command(verb);
    if (command == NULL)
        return unknown_verb("moec", verb);
    return run(command, argc, argv, outputs);
}

int main(int argc, char **argv)
{
    struct cli_outputs outputs = {0};
    cli_device_file = cli_read_device_file;
    cli_shape = cli_read_shape;
    cli_failed = cli_ranks_fail;
    const bool is_ready = cli_prepare_process("moec", CLI_STACK_LEAST_BYTES);
    return cli_finish("moec", &outputs, is_ready ? dispatch(argc, argv, &outputs) : CLI_FAILED);
}
