/* Every transfer is whole or failed: calls that are interrupted or take a part go on. Whoever waits with a
 * deadline looks at the clock before each read. */
#include "formats/base/pipe.h"

#include "formats/base/clock.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

bool moec_pipe_write(int fd, const void *bytes, size_t n)
{
    const uint8_t *at = bytes;
    while (n > 0) {
        ssize_t written = send(fd, at, n, MSG_NOSIGNAL);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return false;
        at += written;
        n -= (size_t)written;
    }
    return true;
}

bool moec_pipe_send(int fd, uint8_t kind, const void *payload, size_t n)
{
    uint8_t head[MOEC_PIPE_HEAD_BYTES] = {kind};
    uint32_t length = (uint32_t)n;
    memcpy(head + 1, &length, sizeof length);
    return moec_pipe_write(fd, head, sizeof head) && moec_pipe_write(fd, payload, n);
}

int64_t moec_pipe_now_ms(void)
{
    return (int64_t)(moec_now_ns() / 1000000u);
}

enum moec_pipe_outcome moec_pipe_read(int fd, void *buffer, size_t n, int64_t deadline_ms)
{
    uint8_t *at = buffer;
    while (n > 0) {
        if (deadline_ms >= 0) {
            int64_t left = deadline_ms - moec_pipe_now_ms();
            struct pollfd wait = {.fd = fd, .events = POLLIN};
            int ready = left > 0 ? poll(&wait, 1, left > INT32_MAX ? INT32_MAX : (int)left) : 0;
            if (ready < 0 && errno == EINTR)
                continue;
            if (ready <= 0)
                return MOEC_PIPE_LATE;
        }
        ssize_t got = recv(fd, at, n, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return MOEC_PIPE_CLOSED;
        at += got;
        n -= (size_t)got;
    }
    return MOEC_PIPE_OK;
}

enum moec_pipe_outcome moec_pipe_read_head(int fd, uint8_t *kind, uint32_t *n, int64_t deadline_ms)
{
    uint8_t head[MOEC_PIPE_HEAD_BYTES];
    enum moec_pipe_outcome outcome = moec_pipe_read(fd, head, sizeof head, deadline_ms);
    if (outcome == MOEC_PIPE_OK) {
        *kind = head[0];
        memcpy(n, head + 1, sizeof *n);
    }
    return outcome;
}
