/* What a program asks of the system before it does anything: standard files, limits and signals that would
 * otherwise end it without a word. Thread rule: the main thread, before there are others. */
#ifndef MOEC_CLI_PROCESS_H
#define MOEC_CLI_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

/* The least stack that every verb was tried with, and the one that is asked for. */
#define CLI_STACK_LEAST_BYTES     (384u << 10)
#define CLI_RUN_STACK_LEAST_BYTES (112u << 10) /* of moec-run, which reads no scripts, texts or charts */

/* Where stdin, stdout or stderr is closed, the next file to be opened would take its place, and messages
 * would be written into that file: /dev/null is opened there for reading; reading gives nothing, and writing
 * fails. A file that grows over its limit (ulimit -f) becomes an error of the write instead of a signal. Soft
 * limits of open files and of the stack are raised as far as the hard ones allow, up to what is of use;
 * threads get as much stack. Says on stderr why and answers false where the stack stays smaller than
 * least_stack_bytes. */
bool cli_prepare_process(const char *program, uint64_t least_stack_bytes);

#endif
