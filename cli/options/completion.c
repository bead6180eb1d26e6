/* An option's values are its choices, the names that are built in, or the first words of rows in its help. A
 * new row of help is therefore offered too, if its words look like values. A word that ends with a colon goes
 * on. The program moec-run is completed as the verb run, or as device after --describe-device, by changing
 * the shell's words. */
#include "cli/options/completion.h"

#include "compiler/lua/lua_host.h"

#include <string.h>

#define LONGEST_VALUES 512

struct table {
    FILE *out;
    const struct cli_command *const *commands;
    size_t n_command;
    const struct cli_extra *extras;
    size_t n_extra;
    bool is_run_alone; /* of moec-run, which has two of the verbs */
};

static const char describe[] = "--describe-device";

/* moec-run is the verb run, and the verb device after that option. */
static bool is_offered(const struct table *table, const struct cli_command *command)
{
    return !table->is_run_alone || strcmp(command->name, "run") == 0 || strcmp(command->name, "device") == 0;
}

/* ---- what can follow an option ---- */

static bool names_files(const struct cli_option *option)
{
    return (option->flags & (CLI_INPUT | CLI_OUTPUT)) != 0;
}

static bool is_word(const char *at, size_t n)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789-+";
    return n > 0 && strspn(at, letters) >= n;
}

static void append_word(char values[static LONGEST_VALUES], const char *word, size_t n)
{
    const size_t used = strlen(values);
    if (used + n + 2 <= LONGEST_VALUES)
        (void)snprintf(values + used, LONGEST_VALUES - used, "%s%.*s", used > 0 ? " " : "", (int)n, word);
}

static bool is_list(const struct cli_option *option)
{
    return option->argument != NULL && strcmp(option->argument, CLI_LIST) == 0;
}

/* What is built in under the name of the option: its files are in the program. */
static void append_built_in(const struct cli_option *option, char values[static LONGEST_VALUES])
{
    const char *prefix = strcmp(option->name, "task") == 0 ? "tasks" : "policies", *name;
    for (size_t i = 0; (name = moec_lua_library_name(prefix, i)) != NULL; i++)
        append_word(values, name, strlen(name));
}

/* Values with spaces between them: the choices, what is built in, or the words that the help has a table of,
 * those before a colon with it. */
static void values_of(const struct cli_option *option, char values[static LONGEST_VALUES])
{
    values[0] = '\0';
    if ((option->flags & CLI_BUILT_IN) != 0) {
        append_built_in(option, values);
        return;
    }
    for (const char *at = option->choices; at != NULL && *at != '\0'; at += *at == '|') {
        const size_t n = strcspn(at, "|");
        append_word(values, at, n);
        at += n;
    }
    if (option->choices != NULL || option->argument == NULL)
        return;
    for (const char *line = option->help; *line != '\0'; line += *line != '\0') {
        const size_t n = strcspn(line, "\n" CLI_RESEARCH), row = strcspn(line, "\t\n" CLI_RESEARCH);
        /* "8, 4" is a row of two values. */
        for (size_t at = 0; row < n && at < row;) {
            const size_t word = strcspn(line + at, ", \t"), name = strcspn(line + at, ":, \t");
            if (is_word(line + at, name))
                append_word(values, line + at, name < word ? name + 1 : name);
            at += word + strspn(line + at + word, ", ");
        }
        line += n;
    }
}

/* ---- bash ---- */

static void bash_words_of_extra(const struct table *table, const struct cli_extra *extra)
{
    fprintf(table->out, "        %s) [ \"$COMP_CWORD\" -gt 2 ] || words=\"", extra->name);
    for (const char *at = extra->words; at != NULL && *at != '\0'; at++)
        fputc(*at == '|' ? ' ' : *at, table->out);
    for (size_t i = 0; extra->words == NULL && i < table->n_command; i++)
        fprintf(table->out, "%s%s", i > 0 ? " " : "", table->commands[i]->name);
    fprintf(table->out, "\" ;;\n");
}

static void bash_command(const struct table *table, const struct cli_command *command)
{
    char values[LONGEST_VALUES];
    fprintf(table->out, "        %s)\n            case \"$previous\" in\n", command->name);
    for (const struct cli_option *option = command->options; option->name != NULL; option++) {
        if (option->argument == NULL)
            continue;
        values_of(option, values);
        fprintf(table->out, "            --%s", option->name);
        if (option->letter != 0)
            fprintf(table->out, " | -%c", option->letter);
        fprintf(table->out, ") words=\"%s\"; files=%d%s ;;\n", values,
                names_files(option) || values[0] == '\0', is_list(option) ? "; list=1" : "");
    }
    fprintf(table->out, "            *) words=\"");
    for (const struct cli_option *option = command->options; option->name != NULL; option++)
        fprintf(table->out, "--%s ", option->name);
    fprintf(table->out, "%s--help --help-all\"; [[ $current == -* ]] || { words=; files=1; } ;;\n",
            cli_writes_files(command) ? "--force " : "");
    fprintf(table->out, "            esac ;;\n");
}

/* moec-run's words as those of moec, which `function` completes. */
static void bash_run(FILE *out, const char *function)
{
    fprintf(out,
            "# moec-run is the verb run, or device\n_moec_run()\n{\n"
            "    if [ \"$COMP_CWORD\" -gt 1 ] && [ \"${COMP_WORDS[1]}\" = %s ]; then\n"
            "        COMP_WORDS=(moec device \"${COMP_WORDS[@]:2}\")\n        %s\n        return\n    fi\n"
            "    COMP_WORDS=(moec run \"${COMP_WORDS[@]:1}\")\n    COMP_CWORD=$((COMP_CWORD + 1))\n    %s\n"
            "    if [ \"$COMP_CWORD\" -eq 2 ] && [[ ${COMP_WORDS[2]} == -* ]]; then\n"
            "        COMPREPLY+=($(compgen -W %s -- \"${COMP_WORDS[2]}\"))\n    fi\n}\n"
            "complete -F _moec_run moec-run\n",
            describe, function, function, describe);
}

static void print_bash(const struct table *table)
{
    const char *function = table->is_run_alone ? "_moec_run_verb" : "_moec";
    fprintf(table->out,
            "# bash completion of moec%s: source <(moec completion bash%s)\n"
            "%s()\n"
            "{\n"
            "    local current=${COMP_WORDS[COMP_CWORD]} "
            "previous=${COMP_WORDS[COMP_CWORD-1]} words= files=0 list=0\n"
            "    local before=\n"
            "    COMPREPLY=()\n"
            "    # --option=value is three words\n"
            "    if [ \"$current\" = = ]; then\n"
            "        current=\n"
            "    elif [ \"$previous\" = = ]; then\n"
            "        previous=${COMP_WORDS[COMP_CWORD-2]}\n"
            "    fi\n"
            "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
            "        words=\"",
            table->is_run_alone ? "-run" : "", table->is_run_alone ? " moec-run" : "", function);
    for (size_t i = 0; i < table->n_command; i++)
        if (is_offered(table, table->commands[i]))
            fprintf(table->out, "%s ", table->commands[i]->name);
    for (size_t i = 0; i < table->n_extra; i++)
        fprintf(table->out, "%s ", table->extras[i].name);
    fprintf(table->out, "--help --version\"\n    else\n        case \"${COMP_WORDS[1]}\" in\n");
    for (size_t i = 0; i < table->n_command; i++)
        if (is_offered(table, table->commands[i]))
            bash_command(table, table->commands[i]);
    for (size_t i = 0; i < table->n_extra; i++)
        bash_words_of_extra(table, &table->extras[i]);
    fprintf(table->out,
            "        esac\n    fi\n"
            "    [ \"$list\" -eq 0 ] || before=${current%%\"${current##*,}\"}\n"
            "    COMPREPLY=($(compgen -P \"$before\" -W \"$words\" -- \"${current#\"$before\"}\"))\n"
            "    # what goes on behind a colon or a comma\n"
            "    if [ \"$list\" -eq 1 ] || [[ ${COMPREPLY[0]} == *: ]]; then\n"
            "        compopt -o nospace 2>/dev/null\n    fi\n"
            "    if [ \"$files\" -eq 1 ]; then\n"
            "        local IFS=$'\\n'\n"
            "        COMPREPLY+=($(compgen -f -- \"$current\"))\n"
            "        compopt -o filenames 2>/dev/null\n    fi\n}\n");
    if (!table->is_run_alone)
        fprintf(table->out, "complete -F _moec moec\n");
    bash_run(table->out, function);
}

/* ---- zsh ---- */

/* Length of the first sentence, without its full stop. */
static size_t sentence_length(const char *text)
{
    size_t n = 0;
    while (text[n] != '\0' && text[n] != '\n' && text[n] != '\t' && text[n] != CLI_RESEARCH[0] &&
           !(text[n] == '.' && (text[n + 1] == ' ' || text[n + 1] == '\0')))
        n++;
    return n;
}

/* The first sentence, inside single quotes, with what _arguments and _describe read as signs escaped. */
static void zsh_sentence(FILE *out, const char *text)
{
    const char *end = text + sentence_length(text);
    for (const char *at = text; at < end; at++) {
        if (*at == '\'')
            fputs("'\\''", out);
        else if (strchr("[]:\\", *at) != NULL)
            fprintf(out, "\\%c", *at);
        else
            fputc(*at, out);
    }
}

static void zsh_values(FILE *out, const char *values)
{
    fputc('(', out);
    for (const char *at = values; *at != '\0'; at++)
        fprintf(out, *at == ':' ? "\\%c" : "%c", *at);
    fputc(')', out);
}

/* Words of a list; _values takes what follows a colon for a meaning. */
static void zsh_list(FILE *out, const char *argument, const char *values)
{
    fprintf(out, "_values -s , %s ", argument);
    for (const char *at = values; *at != '\0'; at++)
        fprintf(out, *at == ':' ? "\\%c" : "%c", *at);
}

static void zsh_option(FILE *out, const struct cli_option *option)
{
    char values[LONGEST_VALUES];
    fprintf(out, "            ");
    if ((option->flags & CLI_REPEATS) != 0)
        fprintf(out, "'*'");
    else if (option->letter != 0)
        fprintf(out, "'(-%c --%s)'", option->letter, option->name);
    if (option->letter != 0)
        fprintf(out, "{-%c,--%s}", option->letter, option->name);
    else
        fprintf(out, "--%s", option->name);
    fputs("'[", out);
    zsh_sentence(out, option->help);
    fputc(']', out);
    if (option->argument != NULL) {
        values_of(option, values);
        fputs(option->argument[0] == '[' ? "::" : ":", out);
        zsh_sentence(out, option->argument);
        fputc(':', out);
        if (names_files(option) && values[0] != '\0')
            fprintf(out, "{_alternative \"values\\:value\\:(%s)\" \"files\\:file\\:_files\"}", values);
        else if (is_list(option) && values[0] != '\0')
            zsh_list(out, option->argument, values);
        else if (values[0] != '\0')
            zsh_values(out, values);
        else if (names_files(option))
            fputs("_files", out);
    }
    fputs("' \\\n", out);
}

static void zsh_command(const struct table *table, const struct cli_command *command)
{
    fprintf(table->out, "    %s)\n        _arguments \\\n", command->name);
    for (const struct cli_option *option = command->options; option->name != NULL; option++)
        zsh_option(table->out, option);
    if (cli_writes_files(command))
        zsh_option(table->out, &cli_force_option);
    fprintf(table->out, "            '(-h --help)'{-h,--help}'[Print the usual options]' \\\n"
                        "            --help-all'[Print every option]' \\\n"
                        "            '*:file:_files' ;;\n");
}

static void zsh_extra(const struct table *table, const struct cli_extra *extra)
{
    fprintf(table->out, "    %s) ", extra->name);
    if (extra->words == NULL) {
        fprintf(table->out, "_describe verb verbs ;;\n");
        return;
    }
    fprintf(table->out, "compadd");
    for (const char *at = extra->words; *at != '\0'; at += *at == '|') {
        const size_t n = strcspn(at, "|");
        fprintf(table->out, " %.*s", (int)n, at);
        at += n;
    }
    fprintf(table->out, " ;;\n");
}

static void print_zsh(const struct table *table)
{
    const char *function = table->is_run_alone ? "_moec-run" : "_moec";
    const char *programs = table->is_run_alone ? "moec-run" : "moec moec-run";
    fprintf(table->out,
            "#compdef %s\n# zsh completion: a file named %s in a folder of $fpath, or\n"
            "# source <(moec completion zsh%s)\n\n%s()\n{\n"
            "    # moec-run is the verb run, or device\n"
            "    if [[ $service == moec-run ]] && (( CURRENT > 2 )) && [[ $words[2] == %s ]]; then\n"
            "        words=(moec device \"${(@)words[3,-1]}\")\n"
            "    elif [[ $service == moec-run ]]; then\n"
            "        words=(moec run \"${(@)words[2,-1]}\")\n        (( CURRENT++ ))\n"
            "        if (( CURRENT == 3 )) && [[ $words[3] == -* ]]; then\n"
            "            compadd -- %s\n        fi\n    fi\n"
            "    local -a verbs\n    verbs=(\n",
            programs, function, table->is_run_alone ? " moec-run" : "", function, describe, describe);
    for (size_t i = 0; i < table->n_command + table->n_extra; i++) {
        const bool is_extra = i >= table->n_command;
        if (!is_extra && !is_offered(table, table->commands[i]))
            continue;
        fprintf(table->out, "        '%s:",
                is_extra ? table->extras[i - table->n_command].name : table->commands[i]->name);
        zsh_sentence(table->out,
                     is_extra ? table->extras[i - table->n_command].summary : table->commands[i]->summary);
        fprintf(table->out, "'\n");
    }
    fprintf(table->out,
            "    )\n    if (( CURRENT == 2 )); then\n        _describe verb verbs\n        return\n"
            "    fi\n    local verb=$words[2]\n    shift words\n    (( CURRENT-- ))\n"
            "    case $verb in\n");
    for (size_t i = 0; i < table->n_command; i++)
        if (is_offered(table, table->commands[i]))
            zsh_command(table, table->commands[i]);
    for (size_t i = 0; i < table->n_extra; i++)
        zsh_extra(table, &table->extras[i]);
    /* Autoloaded, the file is the function's body; sourced, it registers it. */
    fprintf(table->out,
            "    esac\n}\n\nif [ \"$funcstack[1]\" = %s ]; then\n    %s \"$@\"\nelse\n"
            "    compdef %s %s\nfi\n",
            function, function, function, programs);
}

/* ---- fish ---- */

static void fish_quoted(FILE *out, const char *text)
{
    fputc('\'', out);
    const char *end = text + sentence_length(text);
    for (const char *at = text; at < end; at++) {
        if (*at == '\'' || *at == '\\')
            fputc('\\', out);
        fputc(*at, out);
    }
    fputc('\'', out);
}

/* `condition` says where the option belongs: "complete -c PROGRAM -n 'CONDITION'". */
static void fish_option(FILE *out, const char *condition, const struct cli_option *option)
{
    char values[LONGEST_VALUES];
    values_of(option, values);
    fprintf(out, "%s -l %s", condition, option->name);
    if (option->letter != 0)
        fprintf(out, " -s %c", option->letter);
    if (option->argument != NULL && option->argument[0] != '[')
        fprintf(out, " -r");
    if (option->argument != NULL)
        fprintf(out, names_files(option) ? " -F" : " -f");
    if (is_list(option) && values[0] != '\0')
        fprintf(out, " -a '(__fish_append , %s)'", values);
    else if (values[0] != '\0')
        fprintf(out, " -a '%s'", values);
    fprintf(out, " -d ");
    fish_quoted(out, option->help);
    fputc('\n', out);
}

static void fish_options(FILE *out, const char *condition, const struct cli_command *command)
{
    for (const struct cli_option *option = command->options; option->name != NULL; option++)
        fish_option(out, condition, option);
    if (cli_writes_files(command))
        fish_option(out, condition, &cli_force_option);
}

static void fish_verbs(const struct table *table)
{
    for (size_t i = 0; i < table->n_command; i++) {
        const struct cli_command *command = table->commands[i];
        char condition[96];
        fprintf(table->out, "complete -c moec -n __fish_use_subcommand -a %s -d ", command->name);
        fish_quoted(table->out, command->summary);
        fputc('\n', table->out);
        (void)snprintf(condition, sizeof condition, "complete -c moec -n '__fish_seen_subcommand_from %s'",
                       command->name);
        fish_options(table->out, condition, command);
    }
    for (size_t i = 0; i < table->n_extra; i++) {
        const struct cli_extra *extra = &table->extras[i];
        fprintf(table->out, "complete -c moec -n __fish_use_subcommand -a %s -d ", extra->name);
        fish_quoted(table->out, extra->summary);
        fprintf(table->out, "\ncomplete -c moec -n '__fish_seen_subcommand_from %s' -f -a '", extra->name);
        for (const char *at = extra->words; at != NULL && *at != '\0'; at++)
            fputc(*at == '|' ? ' ' : *at, table->out);
        for (size_t v = 0; extra->words == NULL && v < table->n_command; v++)
            fprintf(table->out, "%s%s", v > 0 ? " " : "", table->commands[v]->name);
        fprintf(table->out, "'\n");
    }
}

static void print_fish(const struct table *table)
{
    static const char is_run[] = "complete -c moec-run -n 'not __fish_contains_opt describe-device'",
                      is_device[] = "complete -c moec-run -n '__fish_contains_opt describe-device'";
    fprintf(table->out, "# fish completion: moec completion fish%s | source\n",
            table->is_run_alone ? " moec-run" : "");
    if (!table->is_run_alone)
        fish_verbs(table);
    fprintf(table->out, "%s -l %s -d 'Measure this machine, for moec simulate'\n", is_run, describe + 2);
    for (size_t i = 0; i < table->n_command; i++) {
        const struct cli_command *command = table->commands[i];
        if (strcmp(command->name, "run") == 0)
            fish_options(table->out, is_run, command);
        else if (strcmp(command->name, "device") == 0)
            fish_options(table->out, is_device, command);
    }
}

bool cli_print_completion(FILE *out, const char *shell, const char *program,
                          const struct cli_completion *completion)
{
    const bool is_run_alone = strcmp(program, "moec-run") == 0;
    const struct table table = {out,
                                completion->commands,
                                completion->n_command,
                                completion->extras,
                                is_run_alone ? 0 : completion->n_extra,
                                is_run_alone};
    if (!is_run_alone && strcmp(program, "moec") != 0)
        return false;
    if (strcmp(shell, "bash") == 0)
        print_bash(&table);
    else if (strcmp(shell, "zsh") == 0)
        print_zsh(&table);
    else if (strcmp(shell, "fish") == 0)
        print_fish(&table);
    else
        return false;
    return true;
}
