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
};

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
    for (const char *line = option->help; *line != '\0'; line += *line == '\n') {
        const size_t n = strcspn(line, "\n"), row = strcspn(line, "\t\n");
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

static void print_bash(const struct table *table)
{
    fprintf(table->out,
            "# bash completion of moec: source <(moec completion bash)\n_moec()\n{\n"
            "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} words= files=0 "
            "list=0\n"
            "    local before=\n    COMPREPLY=()\n"
            "    # --option=value is three words\n"
            "    if [ \"$current\" = = ]; then\n        current=\n"
            "    elif [ \"$previous\" = = ]; then\n        previous=${COMP_WORDS[COMP_CWORD-2]}\n    fi\n"
            "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        words=\"");
    for (size_t i = 0; i < table->n_command; i++)
        fprintf(table->out, "%s ", table->commands[i]->name);
    for (size_t i = 0; i < table->n_extra; i++)
        fprintf(table->out, "%s ", table->extras[i].name);
    fprintf(table->out, "--help --version\"\n    else\n        case \"${COMP_WORDS[1]}\" in\n");
    for (size_t i = 0; i < table->n_command; i++)
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
            "        compopt -o filenames 2>/dev/null\n    fi\n}\n"
            "# moec-run is the verb alone\n"
            "_moec_run()\n{\n    COMP_WORDS=(moec run \"${COMP_WORDS[@]:1}\")\n"
            "    COMP_CWORD=$((COMP_CWORD + 1))\n    _moec\n}\n"
            "complete -F _moec moec\ncomplete -F _moec_run moec-run\n");
}

/* ---- zsh ---- */

/* Length of the first sentence, without its full stop. */
static size_t sentence_length(const char *text)
{
    size_t n = 0;
    while (text[n] != '\0' && text[n] != '\n' && text[n] != '\t' &&
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
            fprintf(out, "_values -s , %s %s", option->argument, values);
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
    fprintf(table->out,
            "#compdef moec moec-run\n# zsh completion of moec: a file named _moec in a folder of $fpath, or\n"
            "# source <(moec completion zsh)\n\n_moec()\n{\n"
            "    # moec-run is the verb alone\n"
            "    if [[ $service == moec-run ]]; then\n        words=(moec run \"${(@)words[2,-1]}\")\n"
            "        (( CURRENT++ ))\n    fi\n"
            "    local -a verbs\n    verbs=(\n");
    for (size_t i = 0; i < table->n_command + table->n_extra; i++) {
        const bool is_extra = i >= table->n_command;
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
        zsh_command(table, table->commands[i]);
    for (size_t i = 0; i < table->n_extra; i++)
        zsh_extra(table, &table->extras[i]);
    /* Autoloaded, the file is the function's body; sourced, it registers it. */
    fprintf(table->out, "    esac\n}\n\nif [ \"$funcstack[1]\" = _moec ]; then\n    _moec \"$@\"\nelse\n"
                        "    compdef _moec moec moec-run\nfi\n");
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

static void fish_option(FILE *out, const struct cli_command *command, const struct cli_option *option)
{
    char values[LONGEST_VALUES];
    values_of(option, values);
    fprintf(out, "complete -c moec -n '__fish_seen_subcommand_from %s' -l %s", command->name, option->name);
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

static void print_fish(const struct table *table)
{
    fprintf(table->out, "# fish completion of moec: moec completion fish | source\n");
    for (size_t i = 0; i < table->n_command; i++) {
        const struct cli_command *command = table->commands[i];
        fprintf(table->out, "complete -c moec -n __fish_use_subcommand -a %s -d ", command->name);
        fish_quoted(table->out, command->summary);
        fputc('\n', table->out);
        for (const struct cli_option *option = command->options; option->name != NULL; option++)
            fish_option(table->out, command, option);
        if (cli_writes_files(command))
            fish_option(table->out, command, &cli_force_option);
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
    fprintf(table->out, "complete -c moec-run -w 'moec run'\n");
}

bool cli_print_completion(FILE *out, const char *shell, const struct cli_command *const *commands,
                          size_t n_command, const struct cli_extra *extras, size_t n_extra)
{
    const struct table table = {out, commands, n_command, extras, n_extra};
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
