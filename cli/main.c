/* moec: finds the verb and runs it. */
#include "cli/options/outputs.h"
#include "cli/output/terminal.h"
#include "cli/output/versions.h"
#include "cli/print/print.h"
#include "cli/verbs/commands.h"

#include <string.h>

static const struct cli_command *const commands[] = {
    &cli_command_profile, &cli_command_compile,  &cli_command_run,    &cli_command_eval,
    &cli_command_bench,   &cli_command_simulate, &cli_command_device, &cli_command_inspect,
    &cli_command_verify,  &cli_command_export,   &cli_command_strip,
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
static const struct {
    const char *name, *summary;
} extras[] = {
    {"help", "print the help of a verb: moec help compile"},
    {"manual", "print the man page of a verb: moec manual compile | man -l -"},
    {"completion", "print shell completion: moec completion bash|zsh|fish"},
};
#define N_EXTRAS (sizeof extras / sizeof *extras)

static void print_overview(FILE *out)
{
    fprintf(out, "moec %s: %s\n\nUsage: moec VERB [arguments] [options]\n\nVerbs:\n", MOEC_VERSION, synopsis);
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(out, "  %-11s %s\n", commands[i]->name, commands[i]->summary);
    for (size_t i = 0; i < N_EXTRAS; i++)
        fprintf(out, "  %-11s %s\n", extras[i].name, extras[i].summary);
    fprintf(out, "\nThe usual way:\n"
                 "  moec profile MODEL --data text.txt -o profile.h5 --heatmap heatmap.png\n"
                 "  moec compile MODEL --profile profile.h5 --max-loss 2%% -o model.moec\n"
                 "  moec run model.moec -p \"Once upon a time\" --memory 64MiB\n"
                 "\n'moec VERB --help' has the usual options, 'moec VERB --help-all' every option.\n"
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
                 ".Sh EXAMPLES\n.Bd -literal -offset indent\n"
                 "moec profile MODEL \\-\\-data text.txt \\-o profile.h5 \\-\\-heatmap heatmap.png\n"
                 "moec compile MODEL \\-\\-profile profile.h5 \\-\\-max\\-loss 2%% \\-o model.moec\n"
                 "moec run model.moec \\-p \"Once upon a time\" \\-\\-memory 64MiB\n.Ed\n");
}

/* ---- completion, written from the tables ---- */

static void complete_bash(void)
{
    printf("# bash completion of moec: source <(moec completion bash)\n_moec()\n{\n"
           "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} words=\n"
           "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        words=\"");
    for (size_t i = 0; i < N_COMMANDS; i++)
        printf("%s ", commands[i]->name);
    printf("help manual completion --help --version\"\n    else\n        case \"${COMP_WORDS[1]} $previous\" "
           "in\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        for (const struct cli_option *option = commands[i]->options; option->name != NULL; option++)
            if (option->choices != NULL) {
                printf("        \"%s --%s\") words=\"", commands[i]->name, option->name);
                for (const char *at = option->choices; *at != '\0'; at++)
                    putchar(*at == '|' ? ' ' : *at);
                printf("\" ;;\n");
            }
    printf("        *)\n            case \"${COMP_WORDS[1]}\" in\n");
    for (size_t i = 0; i < N_COMMANDS; i++) {
        printf("            %s) words=\"", commands[i]->name);
        for (const struct cli_option *option = commands[i]->options; option->name != NULL; option++)
            printf("--%s ", option->name);
        printf("--help --help-all\" ;;\n");
    }
    printf("            completion) words=\"bash zsh fish\" ;;\n            help|manual) words=\"");
    for (size_t i = 0; i < N_COMMANDS; i++)
        printf("%s ", commands[i]->name);
    printf("\" ;;\n            esac ;;\n        esac\n    fi\n"
           "    COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n}\n"
           "complete -o default -o bashdefault -F _moec moec\n");
}

/* zsh can run bash completions; its own list would say the same. */
static void complete_zsh(void)
{
    printf("# zsh completion of moec: source <(moec completion zsh)\nautoload -U +X bashcompinit && "
           "bashcompinit\n");
    complete_bash();
}

static void complete_fish(void)
{
    printf("# fish completion of moec: moec completion fish | source\n");
    for (size_t i = 0; i < N_COMMANDS; i++) {
        printf("complete -c moec -n __fish_use_subcommand -a %s -d '%s'\n", commands[i]->name,
               commands[i]->summary);
        for (const struct cli_option *option = commands[i]->options; option->name != NULL; option++) {
            printf("complete -c moec -n '__fish_seen_subcommand_from %s' -l %s", commands[i]->name,
                   option->name);
            if (option->letter)
                printf(" -s %c", option->letter);
            if (option->argument != NULL && option->argument[0] != '[')
                printf(" -r");
            if (option->choices != NULL) {
                printf(" -f -a '");
                for (const char *at = option->choices; *at != '\0'; at++)
                    putchar(*at == '|' ? ' ' : *at);
                putchar('\'');
            }
            putchar('\n');
        }
    }
}

static int completion(const char *shell)
{
    if (shell != NULL && strcmp(shell, "bash") == 0)
        complete_bash();
    else if (shell != NULL && strcmp(shell, "zsh") == 0)
        complete_zsh();
    else if (shell != NULL && strcmp(shell, "fish") == 0)
        complete_fish();
    else {
        fprintf(stderr, "moec completion: name a shell: bash, zsh or fish\n");
        return CLI_USAGE;
    }
    return CLI_OK;
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
        cli_print(stderr, "moec %s: no verb '%s'; 'moec help' lists them\n", argv[1], argv[2]);
        return CLI_USAGE;
    }
    print(stdout, "moec", command);
    return CLI_OK;
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
        return completion(argc > 2 ? argv[2] : NULL);
    const struct cli_command *command = find_command(verb);
    if (command == NULL) {
        cli_print(stderr, "moec: no verb '%s'; 'moec help' lists them\n", verb);
        return CLI_USAGE;
    }
    struct cli_args args;
    int status = CLI_OK;
    struct moec_error err = {0};
    if (!cli_parse(&args, "moec", command, argc, argv, 2, &status))
        return status;
    if (cli_check_outputs(&args, outputs, &err) != MOEC_OK)
        return cli_fail(&args, &err);
    return command->run(&args);
}

int main(int argc, char **argv)
{
    struct cli_outputs outputs = {0};
    cli_open_standard_files();
    return cli_finish("moec", &outputs, dispatch(argc, argv, &outputs));
}
