/* The verbs of moec; each cmd_*.c defines one. Adding a verb: a cmd_NAME.c with its table and run function, a
 * line here, a line in main.c. Help, man page and completion follow from the table;
 * tests/cli/help.sh checks them. */
#ifndef MOEC_CLI_COMMANDS_H
#define MOEC_CLI_COMMANDS_H

#include "cli/options/options.h"

extern const struct cli_command cli_command_profile;
extern const struct cli_command cli_command_compile;
extern const struct cli_command cli_command_run;
extern const struct cli_command cli_command_eval;
extern const struct cli_command cli_command_bench;
extern const struct cli_command cli_command_inspect;
extern const struct cli_command cli_command_verify;
extern const struct cli_command cli_command_export;
extern const struct cli_command cli_command_strip;
extern const struct cli_command cli_command_sparsify;
extern const struct cli_command cli_command_tune;
extern const struct cli_command cli_command_fit;
extern const struct cli_command cli_command_predict;
extern const struct cli_command cli_command_simulate;
extern const struct cli_command cli_command_device;
extern const struct cli_command cli_command_doctor;
extern const struct cli_command cli_command_chat;
extern const struct cli_command cli_command_serve;

#endif
