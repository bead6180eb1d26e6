/* moec-run: the run command alone, and what moec device does, for machines that have no moec: linked with
 * libmoert and what measures, and without any library of moec's own. */
#include "cli/options/inputs.h"
#include "cli/options/outputs.h"
#include "cli/options/process.h"
#include "cli/verbs/commands.h"
#include "runtime/moert.h"

#include <string.h>

#define DESCRIBE "--describe-device"

/* Moves --describe-device, which may stand anywhere but in a prompt's place, to the front. */
static bool is_describing(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], DESCRIBE) != 0 || strcmp(argv[i - 1], "-p") == 0 ||
            strcmp(argv[i - 1], "--prompt") == 0)
            continue;
        char *word = argv[i];
        memmove(&argv[2], &argv[1], (size_t)(i - 1) * sizeof *argv);
        argv[1] = word;
        return true;
    }
    return false;
}

static int run(int argc, char **argv, struct cli_outputs *outputs)
{
    struct cli_args args;
    struct moec_error err = {0};
    int status = CLI_OK;
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        printf("moec-run %s\n", moert_version());
        return CLI_OK;
    }
    const bool describes = is_describing(argc, argv);
    const struct cli_command *command = describes ? &cli_command_device : &cli_command_run;
    if (!cli_parse(&args, describes ? "moec-run " DESCRIBE : "moec-run", command,
                   (struct cli_words){argc, argv, describes ? 2 : 1}, &status)) {
        if (status == CLI_OK && !describes)
            printf("\n'moec-run " DESCRIBE "' measures this machine, for moec simulate.\n");
        return status;
    }
    if (cli_check_inputs(&args, &err) != MOEC_OK || cli_check_outputs(&args, outputs, &err) != MOEC_OK ||
        cli_check_overwriting(&args, outputs, &err) != MOEC_OK)
        return cli_fail(&args, &err);
    return command->run(&args);
}

int main(int argc, char **argv)
{
    struct cli_outputs outputs = {0};
    const bool is_ready = cli_prepare_process("moec-run", CLI_RUN_STACK_LEAST_BYTES);
    return cli_finish("moec-run", &outputs, is_ready ? run(argc, argv, &outputs) : CLI_FAILED);
}
