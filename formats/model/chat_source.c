/* Texts are sorted by name, each name once, and a section that is not sorted is refused. So the same texts
 * give the same bytes, in whatever order they were added. */
#include "formats/model/chat_source.h"

#include "formats/base/bytes.h"
#include "formats/base/memory.h"
#include "formats/base/utf8.h"

#include <stdio.h>
#include <string.h>

#define VERSION      1u
#define HEADER_BYTES 8u
#define ENTRY_BYTES  8u

static bool is_name(const char *name, size_t n)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_";
    return n > 0 && n <= MOEC_CHAT_SOURCE_MAX_NAME && strspn(name, letters) >= n;
}

enum moec_status moec_chat_source_add(struct moec_chat_source *source, const char *name, const char *bytes,
                                      size_t n_bytes, struct moec_error *err)
{
    uint32_t at = 0;
    char *copy = NULL;
    while (at < source->n && strcmp(source->texts[at].name, name) < 0)
        at++;
    const bool replaces = at < source->n && strcmp(source->texts[at].name, name) == 0;
    if (!is_name(name, strlen(name)))
        return moec_fail(
            err, MOEC_ERR_LIMIT,
            "a chat text is named '%.40s', expected 1 to %u lower-case letters, digits and underscores", name,
            MOEC_CHAT_SOURCE_MAX_NAME);
    if (n_bytes > MOEC_CHAT_SOURCE_MAX_BYTES)
        return moec_fail(err, MOEC_ERR_LIMIT, "the chat text '%s' has %zu bytes, expected at most %zu", name,
                         n_bytes, MOEC_CHAT_SOURCE_MAX_BYTES);
    if (!replaces && source->n == MOEC_CHAT_SOURCE_MAX_TEXTS)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "the chat text '%s' cannot be added: there are already %u texts, the most that moec "
                         "keeps",
                         name, MOEC_CHAT_SOURCE_MAX_TEXTS);
    if (moec_utf8_valid_bytes(bytes, n_bytes) != n_bytes || memchr(bytes, '\0', n_bytes) != NULL)
        return moec_fail(err, MOEC_ERR_FORMAT, "the chat text '%s' is not UTF-8, or has a NUL", name);
    MOEC_TRY(moec_strndup(&copy, bytes, n_bytes, err));
    if (replaces) {
        free(source->texts[at].bytes);
    } else {
        memmove(&source->texts[at + 1], &source->texts[at], (source->n - at) * sizeof *source->texts);
        source->n++;
    }
    (void)snprintf(source->texts[at].name, sizeof source->texts[at].name, "%s", name);
    source->texts[at].bytes = copy;
    source->texts[at].n_bytes = n_bytes;
    return MOEC_OK;
}

const struct moec_chat_text *moec_chat_source_find(const struct moec_chat_source *source, const char *name)
{
    for (uint32_t i = 0; i < source->n; i++)
        if (strcmp(source->texts[i].name, name) == 0)
            return &source->texts[i];
    return NULL;
}

void moec_chat_source_release(struct moec_chat_source *source)
{
    for (uint32_t i = 0; i < source->n; i++)
        free(source->texts[i].bytes);
    *source = (struct moec_chat_source){.n = 0};
}

enum moec_status moec_chat_source_encode(const struct moec_chat_source *source, uint8_t **bytes,
                                         size_t *n_bytes, struct moec_error *err)
{
    size_t n = HEADER_BYTES + (size_t)source->n * ENTRY_BYTES;
    for (uint32_t i = 0; i < source->n; i++)
        n += strlen(source->texts[i].name) + source->texts[i].n_bytes;
    MOEC_TRY(moec_alloc((void **)bytes, n, 1, "texts of conversations", err));
    uint8_t *entry = *bytes + HEADER_BYTES, *at = entry + (size_t)source->n * ENTRY_BYTES;
    moec_put_u32(*bytes, VERSION);
    moec_put_u32(*bytes + 4, source->n);
    for (uint32_t i = 0; i < source->n; i++, entry += ENTRY_BYTES) {
        const struct moec_chat_text *text = &source->texts[i];
        const size_t n_name = strlen(text->name);
        moec_put_u32(entry, (uint32_t)n_name);
        moec_put_u32(entry + 4, (uint32_t)text->n_bytes);
        memcpy(at, text->name, n_name);
        memcpy(at + n_name, text->bytes, text->n_bytes);
        at += n_name + text->n_bytes;
    }
    *n_bytes = n;
    return MOEC_OK;
}

static enum moec_status decode(const uint8_t *bytes, size_t n_bytes, struct moec_chat_source *source,
                               struct moec_error *err)
{
    const uint32_t n = n_bytes >= HEADER_BYTES ? moec_get_u32(bytes + 4) : 0;
    if (n_bytes >= HEADER_BYTES && moec_get_u32(bytes) != VERSION)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED, "the chat section has version %u, expected %u",
                         moec_get_u32(bytes), VERSION);
    if (n == 0 || n > MOEC_CHAT_SOURCE_MAX_TEXTS || n_bytes - HEADER_BYTES < (size_t)n * ENTRY_BYTES)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the chat section of %zu bytes states %u texts, expected 1 to %u that fit in its "
                         "bytes",
                         n_bytes, n, MOEC_CHAT_SOURCE_MAX_TEXTS);
    const uint8_t *entry = bytes + HEADER_BYTES;
    size_t at = HEADER_BYTES + (size_t)n * ENTRY_BYTES;
    for (uint32_t i = 0; i < n; i++, entry += ENTRY_BYTES) {
        const size_t n_name = moec_get_u32(entry), n_text = moec_get_u32(entry + 4);
        char name[MOEC_CHAT_SOURCE_MAX_NAME + 1] = "";
        if (n_name > MOEC_CHAT_SOURCE_MAX_NAME || n_name > n_bytes - at || n_text > n_bytes - at - n_name)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "text %u of the chat section extends past the section's end", i);
        memcpy(name, bytes + at, n_name);
        if (strlen(name) != n_name || !is_name(name, n_name) ||
            (i > 0 && strcmp(source->texts[i - 1].name, name) >= 0))
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "the name of text %u in the chat section is invalid, or not in alphabetical "
                             "order",
                             i);
        MOEC_TRY(moec_chat_source_add(source, name, (const char *)bytes + at + n_name, n_text, err));
        at += n_name + n_text;
    }
    if (at != n_bytes)
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "the bundle's chat section has %zu bytes after its last text, expected none: the bundle is damaged",
            n_bytes - at);
    return MOEC_OK;
}

enum moec_status moec_chat_source_decode(const uint8_t *bytes, size_t n_bytes,
                                         struct moec_chat_source *source, struct moec_error *err)
{
    const enum moec_status status = decode(bytes, n_bytes, source, err);
    if (status != MOEC_OK)
        moec_chat_source_release(source);
    return status;
}
