/* Frames between a process and its child over a socket pair: kind (1 byte), length (u32, native order: both
 * ends are one program), payload. A peer that is gone is an answer, never a signal (SIGPIPE). Thread rule:
 * one thread for each end and direction. */
#ifndef MOEC_FORMATS_PIPE_H
#define MOEC_FORMATS_PIPE_H

#include "formats/base/error.h"

#include <stddef.h>

#define MOEC_PIPE_HEAD_BYTES 5u

/* False when the other end is gone. */
bool moec_pipe_write(int fd, const void *bytes, size_t n);
/* A whole frame; n must fit a u32. */
bool moec_pipe_send(int fd, uint8_t kind, const void *payload, size_t n);

enum moec_pipe_outcome { MOEC_PIPE_OK, MOEC_PIPE_CLOSED, MOEC_PIPE_LATE };

/* Reads exactly n bytes. deadline_ms is a time of moec_pipe_now_ms; < 0 waits for ever. */
enum moec_pipe_outcome moec_pipe_read(int fd, void *buffer, size_t n, int64_t deadline_ms);
/* The head of a frame. */
enum moec_pipe_outcome moec_pipe_read_head(int fd, uint8_t *kind, uint32_t *n, int64_t deadline_ms);

int64_t moec_pipe_now_ms(void);

#endif
