/* Pages of other hosts must not reach this server through a browser. So Host is an address, localhost or a
 * name that was given. Origin is that host or one that was given. A body must say that it is JSON, which no
 * plain form can. Keys are kept as SHA-256, and all are compared, so time tells nothing of which one is
 * near. */
#include "server/serve_guard.h"

#include "formats/base/file.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define LEAST_KEY_BYTES 16u
#define MOST_KEY_BYTES  1024u
#define KEY_FILE_BYTES  65536u

/* ---- hosts and origins ---- */

/* The name of "name:port" or "[address]:port". False for what is neither. */
static bool cut_port(const char *host, char name[static 256])
{
    const bool is_bracketed = host[0] == '[';
    const char *end = is_bracketed ? strchr(host, ']') : host + strcspn(host, ":");
    const char *begin = is_bracketed ? host + 1 : host;
    if (end == NULL || end - begin <= 0 || end - begin > 255)
        return false;
    memcpy(name, begin, (size_t)(end - begin));
    name[end - begin] = '\0';
    const char *port = end + (is_bracketed ? 1 : 0);
    if (port[0] == '\0')
        return true;
    return port[0] == ':' && strspn(port + 1, "0123456789") == strlen(port + 1) && strlen(port + 1) <= 5;
}

static bool is_address(const char *name)
{
    struct in6_addr address;
    return inet_pton(AF_INET, name, &address) == 1 || inet_pton(AF_INET6, name, &address) == 1;
}

bool serve_guard_host(const struct serve_options *options, const char *host)
{
    char name[256];
    if (host == NULL || !cut_port(host, name))
        return false;
    if (is_address(name) || strcasecmp(name, "localhost") == 0)
        return true;
    for (uint32_t i = 0; i < options->n_name; i++)
        if (strcasecmp(name, options->names[i]) == 0)
            return true;
    return false;
}

bool serve_guard_names_origin(const struct serve_options *options, const char *origin)
{
    for (uint32_t i = 0; i < options->n_origin; i++)
        if (strcmp(origin, options->origins[i]) == 0)
            return true;
    return false;
}

bool serve_guard_origin(const struct serve_options *options, const char *origin, const char *host)
{
    const char *rest = strncmp(origin, "http://", 7) == 0    ? origin + 7
                       : strncmp(origin, "https://", 8) == 0 ? origin + 8
                                                             : NULL;
    return (rest != NULL && host != NULL && strcasecmp(rest, host) == 0) ||
           serve_guard_names_origin(options, origin);
}

bool serve_guard_json(const char *type)
{
    static const char json[] = "application/json";
    if (type == NULL || strncasecmp(type, json, sizeof json - 1) != 0)
        return false;
    return type[sizeof json - 1] == '\0' || type[sizeof json - 1] == ';' || type[sizeof json - 1] == ' ';
}

/* ---- keys ---- */

bool serve_guard_key(const struct serve_options *options, const char *authorization)
{
    uint8_t digest[MOEC_SHA256_BYTES];
    bool is_known = false;
    if (options->n_key == 0)
        return true;
    if (authorization == NULL || strncasecmp(authorization, "Bearer ", 7) != 0)
        return false;
    moec_sha256(authorization + 7, strlen(authorization + 7), digest);
    for (uint32_t i = 0; i < options->n_key; i++)
        is_known = moec_sha256_equal(digest, options->keys[i]) || is_known;
    return is_known;
}

static enum moec_status add_key(struct serve_options *options, const char *key, size_t n, const char *path,
                                struct moec_error *err)
{
    if (n < LEAST_KEY_BYTES || n > MOST_KEY_BYTES || options->n_key == SERVE_MAX_KEYS)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "a key in the key file '%s' has %zu bytes, expected %u to %u bytes, and at most %u keys in "
            "the file: openssl rand -hex 32 makes a key",
            path, n, LEAST_KEY_BYTES, MOST_KEY_BYTES, SERVE_MAX_KEYS);
    moec_sha256(key, n, options->keys[options->n_key++]);
    return MOEC_OK;
}

static enum moec_status add_keys(struct serve_options *options, const char *text, size_t n, const char *path,
                                 struct moec_error *err)
{
    for (size_t at = 0; at < n;) {
        const char *line = text + at, *end = memchr(line, '\n', n - at);
        size_t length = end != NULL ? (size_t)(end - line) : n - at;
        at += length + 1;
        while (length > 0 && isspace((unsigned char)line[length - 1]))
            length--;
        if (length > 0 && line[0] != '#')
            MOEC_TRY(add_key(options, line, length, path, err));
    }
    if (options->n_key == 0)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the key file '%s' has no key: write at least one key into it, one key per line",
                         path);
    return MOEC_OK;
}

enum moec_status serve_read_keys(struct serve_options *options, const char *path, struct moec_error *err)
{
    struct stat info;
    char *text = NULL;
    size_t n = 0;
    if (stat(path, &info) == 0 && (!S_ISREG(info.st_mode) || (info.st_mode & 077) != 0))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the key file '%s' has mode %04o, expected a file that only its owner can read: "
                         "chmod 600 it",
                         path, (unsigned)(info.st_mode & 07777));
    MOEC_TRY(moec_file_load(path, KEY_FILE_BYTES, &text, &n, err));
    const enum moec_status status = add_keys(options, text, n, path, err);
    explicit_bzero(text, n);
    free(text);
    return status;
}

enum moec_status serve_address_check(const char *address, bool *is_local, struct moec_error *err)
{
    struct in_addr four;
    struct in6_addr six;
    if (inet_pton(AF_INET, address, &four) == 1)
        *is_local = ntohl(four.s_addr) >> 24 == 127;
    else if (inet_pton(AF_INET6, address, &six) == 1)
        *is_local = IN6_IS_ADDR_LOOPBACK(&six);
    else
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the address '%s' is not an IP address: expected one such as 127.0.0.1, 0.0.0.0 "
                         "or ::1",
                         address);
    return MOEC_OK;
}
