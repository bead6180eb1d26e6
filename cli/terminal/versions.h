/* What `moec --version` prints: version, libraries, compiler, instruction set. */
#ifndef MOEC_CLI_VERSIONS_H
#define MOEC_CLI_VERSIONS_H

#include <stdio.h>

void cli_print_versions(FILE *out);

#endif
