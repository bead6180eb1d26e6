/* The files that a command line names: no output may be an input, whatever its name (hard links and symbolic
 * links lead to the same file), and no two outputs may be the same file. Also, which outputs are in place
 * when a verb fails at its end. The option tables say which values are inputs and outputs (CLI_INPUT,
 * CLI_OUTPUT); arguments without an option are inputs. If an input is a folder, the files of a checkpoint in
 * it count: *.safetensors, *.gguf, *.json, *.model. Thread rule: main thread. */
#ifndef MOEC_CLI_OUTPUTS_H
#define MOEC_CLI_OUTPUTS_H

#include "cli/options/options.h"

#include <sys/stat.h>

#define CLI_MAX_OUTPUTS 16

/* What the names of the outputs referred to before the work. */
struct cli_outputs {
    uint32_t n;
    const char *paths[CLI_MAX_OUTPUTS]; /* borrowed from argv */
    struct stat before[CLI_MAX_OUTPUTS];
    bool existed[CLI_MAX_OUTPUTS];
};

/* Checks every output before any work, and fills `outputs`. Errors: MOEC_ERR_USAGE naming the option, the
 * file and what else the file is. */
MOEC_WARN_UNUSED enum moec_status cli_check_outputs(const struct cli_args *args, struct cli_outputs *outputs,
                                                    struct moec_error *err);

/* Nothing that exists is overwritten without being told so: a file with contents needs --force or, where a
 * person sits at a terminal, a yes. Devices, pipes and empty files lose nothing. Errors: MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED enum moec_status
cli_check_overwriting(const struct cli_args *args, const struct cli_outputs *outputs, struct moec_error *err);

/* The file of --output of a verb that may write into its input: what the option names, else with --force the
 * input itself. Errors: MOEC_ERR_USAGE without both. */
MOEC_WARN_UNUSED enum moec_status cli_output_or_input(const struct cli_args *args, const char **path,
                                                      struct moec_error *err);

/* Whether files can be written into a folder that --`option` names, or that it makes: found out before the
 * work. Errors: MOEC_ERR_IO naming both. */
MOEC_WARN_UNUSED enum moec_status cli_check_folder(const char *option, const char *path,
                                                   struct moec_error *err);

/* cli_check_outputs for one more file that an option leads to: a journal, a figure or a trace in a folder. It
 * may not be what another option writes either. */
MOEC_WARN_UNUSED enum moec_status cli_check_output(const struct cli_args *args, const char *option,
                                                   const char *path, struct moec_error *err);

/* For the end of a program: a full disk or a closed pipe behind stdout must not look like success, and an
 * output that is in place must not look like failure. Flushes stdout, and after a failure says on stderr what
 * was written all the same. `status` of the verb; returns the program's. */
int cli_finish(const char *program, const struct cli_outputs *outputs, int status);

#endif
