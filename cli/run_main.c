/* moec-run: the run command alone, linked with libmoert and nothing else of moec. */
#include "cli/verbs/commands.h"
#include "runtime/moert.h"

#include <string.h>

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        printf("moec-run %s\n", moert_version());
        return CLI_OK;
    }
    struct cli_args args;
    int status = CLI_OK;
    if (!cli_parse(&args, "moec-run", &cli_command_run, argc, argv, 1, &status))
        return status;
    status = cli_command_run.run(&args);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "moec-run: cannot write to standard output\n");
        return status != CLI_OK ? status : CLI_FAILED;
    }
    return status;
}
