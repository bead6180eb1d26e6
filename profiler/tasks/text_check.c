/* Text that is whole UTF-8 without NUL is accepted, but for three formats that may be ASCII throughout. What
 * is not is named: by a mark or a signature at its start, which are certain; then by the places of its NUL
 * bytes, which lie at the same place of each unit in UTF-16 and UTF-32; then by how often its UTF-8 breaks:
 * an older encoding breaks at nearly each character beyond ASCII, a damaged UTF-8 text at few. */
#include "profiler/tasks/text_check.h"

#include "formats/base/utf8.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Valid characters of several bytes for each broken place, in text that counts as UTF-8. */
#define WIDE_FOR_BROKEN 16
/* Of units that are characters up to U+00FF in UTF-16 and UTF-32 at most one in this many is a control. */
#define SMALL_FOR_CONTROL 32
/* One unit in this many is such a character at least: digits, spaces and line ends of any script. */
#define UNITS_FOR_SMALL 256
/* A text may have lost the first bytes of a character where a file was split. */
#define MOST_CUT_BYTES 3

/* ---- names ---- */

/* A file name for the result of a command: `%.*s%s%s`. */
struct new_name {
    int stem_bytes;
    const char *stem, *middle, *ending;
};
#define NEW_NAME(name) (name).stem_bytes, (name).stem, (name).middle, (name).ending

/* Where the ending of the file's name begins, or the name's end. */
static const char *find_ending(const char *subject)
{
    const char *slash = strrchr(subject, '/'), *dot = strrchr(subject, '.');
    const bool has = dot != NULL && dot != subject && (slash == NULL || dot > slash + 1);
    return has ? dot : subject + strlen(subject);
}

/* "data.jsonl" of "data.jsonl.gz"; a name without the suffix gets ".txt", so that it is another one. */
static struct new_name unpacked(const char *subject, const char *suffix)
{
    const char *dot = find_ending(subject);
    const bool has = strcmp(dot, suffix) == 0;
    return (struct new_name){(int)(has ? (size_t)(dot - subject) : strlen(subject)), subject, "",
                             has ? "" : ".txt"};
}

/* The name with this ending in the place of its own, or after it where they are the same. */
static struct new_name converted(const char *subject, const char *ending)
{
    const char *dot = find_ending(subject);
    const bool is_same = strcmp(dot, ending) == 0;
    return (struct new_name){(int)(is_same ? strlen(subject) : (size_t)(dot - subject)), subject, "", ending};
}

/* "data-utf8.jsonl" of "data.jsonl": the ending says what the format is. */
static struct new_name in_utf8(const char *subject)
{
    const char *dot = find_ending(subject);
    return (struct new_name){(int)(dot - subject), subject, "-utf8", dot};
}

/* ---- other formats ---- */

/* How to make text of it. */
enum advice {
    ADVICE_EXPORT, /* with the program that wrote it */
    ADVICE_UNPACK, /* `command FILE > text` */
    ADVICE_OPEN,   /* an archive: `command FILE` */
    ADVICE_PYARROW,
    ADVICE_PDF,
    ADVICE_LFS,
};

/* What else must hold of the data. */
enum certainty {
    CERTAIN_ALWAYS, /* the format may be ASCII throughout */
    CERTAIN_BROKEN, /* it is no UTF-8 text */
    CERTAIN_NUL,    /* nor text in an older encoding, which may begin with the same letters: it has NUL */
};

struct signature {
    const char *bytes;
    uint16_t n_bytes, offset;
    enum certainty certainty;
    enum advice advice;
    const char *name;
    const char *command; /* of UNPACK and OPEN; of PYARROW: where rows come from */
    const char *suffix;  /* of UNPACK: that the name loses */
};

#define BYTES(bytes) bytes, sizeof bytes - 1, 0
#define PARQUET_ROWS "b in pyarrow.parquet.ParquetFile(sys.argv[1]).iter_batches() for r in b.to_pylist()"
#define FEATHER_ROWS "r in pyarrow.feather.read_table(sys.argv[1]).to_pylist()"
#define STREAM_ROWS  "b in pyarrow.ipc.open_stream(sys.argv[1]) for r in b.to_pylist()"

static const struct signature signatures[] = {
    {BYTES("version https://git-lfs.github.com/spec/"), CERTAIN_ALWAYS, ADVICE_LFS, "a Git LFS pointer", NULL,
     NULL},
    {BYTES("%PDF-"), CERTAIN_ALWAYS, ADVICE_PDF, "a PDF document", NULL, NULL},
    {BYTES("{\\rtf1"), CERTAIN_ALWAYS, ADVICE_EXPORT, "an RTF document", NULL, NULL},
    {BYTES("PAR1"), CERTAIN_NUL, ADVICE_PYARROW, "a Parquet file", PARQUET_ROWS, NULL},
    {BYTES("ARROW1"), CERTAIN_NUL, ADVICE_PYARROW, "an Arrow file", FEATHER_ROWS, NULL},
    {BYTES("FEA1"), CERTAIN_NUL, ADVICE_PYARROW, "a Feather file", FEATHER_ROWS, NULL},
    {BYTES("\xff\xff\xff\xff"), CERTAIN_BROKEN, ADVICE_PYARROW, "an Arrow stream", STREAM_ROWS, NULL},
    {BYTES("\x1f\x8b"), CERTAIN_BROKEN, ADVICE_UNPACK, "gzip data", "gzip -dc", ".gz"},
    {BYTES("\xfd\x37zXZ"), CERTAIN_BROKEN, ADVICE_UNPACK, "xz data", "xz -dc", ".xz"},
    {"1AY&SY", 6, 4, CERTAIN_BROKEN, ADVICE_UNPACK, "bzip2 data", "bzip2 -dc", ".bz2"},
    {BYTES("\x04\x22\x4d\x18"), CERTAIN_BROKEN, ADVICE_UNPACK, "lz4 data", "lz4 -dc", ".lz4"},
    {BYTES("\x28\xb5\x2f\xfd"), CERTAIN_BROKEN, ADVICE_UNPACK, "zstd data within zstd data", "zstd -dc",
     ".zst"},
    {BYTES("PK\x03\x04"), CERTAIN_BROKEN, ADVICE_OPEN,
     "a ZIP archive, as .docx, .xlsx, .epub and .npz files are", "unzip", NULL},
    {BYTES("7z\xbc\xaf\x27\x1c"), CERTAIN_BROKEN, ADVICE_OPEN, "a 7z archive", "7z x", NULL},
    {BYTES("Rar!\x1a\x07"), CERTAIN_BROKEN, ADVICE_OPEN, "a RAR archive", "unrar x", NULL},
    {"ustar", 5, 257, CERTAIN_NUL, ADVICE_OPEN, "a tar archive", "tar -xf", NULL},
    {BYTES("\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"), CERTAIN_BROKEN, ADVICE_EXPORT,
     "a document of an older Office", NULL, NULL},
    {BYTES("SQLite format 3"), CERTAIN_NUL, ADVICE_EXPORT, "an SQLite database", NULL, NULL},
    {BYTES("\x89HDF\r\n\x1a\n"), CERTAIN_BROKEN, ADVICE_EXPORT, "an HDF5 file", NULL, NULL},
    {"\x89HDF\r\n\x1a\n", 8, 512, CERTAIN_BROKEN, ADVICE_EXPORT, "an HDF5 file, such as a profile", NULL,
     NULL},
    {BYTES("\x80\x02"), CERTAIN_BROKEN, ADVICE_EXPORT, "a Python pickle", NULL, NULL},
    {BYTES("\x80\x03"), CERTAIN_BROKEN, ADVICE_EXPORT, "a Python pickle", NULL, NULL},
    {BYTES("\x80\x04\x95"), CERTAIN_BROKEN, ADVICE_EXPORT, "a Python pickle", NULL, NULL},
    {BYTES("\x80\x05\x95"), CERTAIN_BROKEN, ADVICE_EXPORT, "a Python pickle", NULL, NULL},
    {BYTES("\x93NUMPY"), CERTAIN_BROKEN, ADVICE_EXPORT, "a NumPy array", NULL, NULL},
    {BYTES("Obj\x01"), CERTAIN_BROKEN, ADVICE_EXPORT, "an Avro file", NULL, NULL},
    {BYTES("ORC"), CERTAIN_NUL, ADVICE_EXPORT, "an ORC file", NULL, NULL},
    {BYTES("GGUF"), CERTAIN_NUL, ADVICE_EXPORT, "a GGUF model", NULL, NULL},
    {BYTES("\x89PNG"), CERTAIN_BROKEN, ADVICE_EXPORT, "a PNG image", NULL, NULL},
    {BYTES("\xff\xd8\xff"), CERTAIN_BROKEN, ADVICE_EXPORT, "a JPEG image", NULL, NULL},
    {BYTES("\x7f"
           "ELF"),
     CERTAIN_BROKEN, ADVICE_EXPORT, "a program", NULL, NULL},
};

static const struct signature *find_signature(const char *bytes, size_t n_bytes, enum certainty known)
{
    for (size_t i = 0; i < sizeof signatures / sizeof *signatures; i++) {
        const struct signature *one = &signatures[i];
        if (one->certainty <= known && n_bytes >= (size_t)one->offset + one->n_bytes &&
            memcmp(bytes + one->offset, one->bytes, one->n_bytes) == 0)
            return one;
    }
    return NULL;
}

static enum moec_status refuse_format(const struct signature *format, const char *subject,
                                      struct moec_error *err)
{
    struct new_name to = {0};
    switch (format->advice) {
    case ADVICE_UNPACK:
        to = unpacked(subject, format->suffix);
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "'%s' is %s, expected text, JSONL, JSON or CSV; unpack it: %s '%s' > '%.*s%s%s'",
                         subject, format->name, format->command, subject, NEW_NAME(to));
    case ADVICE_OPEN:
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "'%s' is %s, expected text, JSONL, JSON or CSV; unpack it (%s '%s') or save the "
                         "document as text",
                         subject, format->name, format->command, subject);
    case ADVICE_PYARROW:
        to = converted(subject, ".jsonl");
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "'%s' is %s, expected text, JSONL, JSON or CSV; make JSONL of it with pyarrow: "
                         "python3 -c \"import json, sys, pyarrow.feather, pyarrow.parquet; "
                         "[print(json.dumps(r, default=str)) for %s]\" '%s' > '%.*s%s%s'",
                         subject, format->name, format->command, subject, NEW_NAME(to));
    case ADVICE_PDF:
        to = converted(subject, ".txt");
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "'%s' is %s, expected text, JSONL, JSON or CSV; make text of "
                         "it: pdftotext '%s' '%.*s%s%s'",
                         subject, format->name, subject, NEW_NAME(to));
    case ADVICE_LFS:
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "'%s' is %s, a few lines instead of the data; fetch the data: git lfs pull", subject,
                         format->name);
    default:
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "'%s' is %s, expected text, JSONL, JSON or CSV; export its text with the program "
                         "that wrote it",
                         subject, format->name);
    }
}

/* ---- encodings ---- */

static enum moec_status refuse_encoding(const char *encoding, const char *of_iconv, const char *subject,
                                        struct moec_error *err)
{
    const struct new_name to = in_utf8(subject);
    return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                     "'%s' is %s text, expected UTF-8; convert it: iconv -f %s -t UTF-8 '%s' > '%.*s%s%s'",
                     subject, encoding, of_iconv, subject, NEW_NAME(to));
}

/* Text of units of two or four bytes. */
struct wide_encoding {
    const char *mark; /* that may begin it */
    uint8_t mark_bytes, unit_bytes;
    bool is_little;
    const char *name, *without_mark; /* as iconv calls it */
};

/* Wider first: the mark of UTF-32LE begins with that of UTF-16LE. */
static const struct wide_encoding wide_encodings[] = {
    {"\xff\xfe\0\0", 4, 4, true, "UTF-32", "UTF-32LE"},
    {"\0\0\xfe\xff", 4, 4, false, "UTF-32", "UTF-32BE"},
    {"\xff\xfe", 2, 2, true, "UTF-16", "UTF-16LE"},
    {"\xfe\xff", 2, 2, false, "UTF-16", "UTF-16BE"},
};

static uint32_t read_unit(const struct wide_encoding *encoding, const char *bytes)
{
    uint32_t value = 0;
    for (uint8_t i = 0; i < encoding->unit_bytes; i++) {
        const uint8_t byte = (uint8_t)bytes[encoding->is_little ? encoding->unit_bytes - 1 - i : i];
        value = value << 8 | byte;
    }
    return value;
}

static bool is_control(uint32_t value)
{
    return (value < 0x20 && !(value >= '\t' && value <= '\r')) || (value >= 0x7F && value < 0xA0);
}

/* Characters up to U+00FF if the bytes are text in this encoding, 0 if they cannot be. */
static uint64_t small_characters(const struct wide_encoding *encoding, const char *bytes, size_t n_bytes)
{
    uint64_t n_small = 0, n_control = 0;
    const size_t n_unit = n_bytes / encoding->unit_bytes;
    for (size_t i = 0; i < n_unit; i++) {
        const uint32_t value = read_unit(encoding, bytes + i * encoding->unit_bytes);
        if (value > 0x10FFFF)
            return 0;
        n_small += value < 0x100;
        n_control += is_control(value);
    }
    return n_small * UNITS_FOR_SMALL >= n_unit && n_control * SMALL_FOR_CONTROL <= n_small ? n_small : 0;
}

/* The encoding in which the bytes are text; NULL = none. */
static const struct wide_encoding *find_wide(const char *bytes, size_t n_bytes)
{
    const struct wide_encoding *best = NULL;
    uint64_t most = 0;
    for (size_t i = 0; i < sizeof wide_encodings / sizeof *wide_encodings; i++) {
        const struct wide_encoding *one = &wide_encodings[i];
        const uint64_t n_small = small_characters(one, bytes, n_bytes);
        if (n_small > most) {
            best = one;
            most = n_small;
        }
    }
    return best;
}

/* ---- all of it ---- */

struct scan {
    uint64_t n_nul, first_nul, n_control;
    uint64_t n_wide; /* valid characters of several bytes */
    uint64_t n_cut;  /* broken places at the very start and end */
    struct moec_text_found *found;
};

static void scan_lines(char byte, char next, struct moec_text_found *found)
{
    if (byte == '\n')
        found->n_lf++;
    else if (byte == '\r' && next == '\n')
        found->n_crlf++;
    else if (byte == '\r')
        found->n_cr++;
}

static void scan(const char *bytes, size_t n_bytes, struct scan *s)
{
    size_t at = 0;
    while (at < n_bytes) {
        const struct moec_utf8_char c = moec_utf8_read(bytes + at, n_bytes - at);
        if (!c.valid) {
            if (s->found->n_broken++ == 0)
                s->found->first_broken = at;
            const bool is_rest =
                at < MOST_CUT_BYTES && at + 1 == s->found->n_broken && (bytes[at] & 0xC0) == 0x80;
            s->n_cut += c.cut_off || is_rest;
        } else if (c.n_bytes > 1) {
            s->n_wide++;
        } else if (bytes[at] == '\0') {
            if (s->n_nul++ == 0)
                s->first_nul = at;
        } else if (is_control(c.code_point)) {
            s->n_control++;
        } else {
            scan_lines(bytes[at], at + 1 < n_bytes ? bytes[at + 1] : '\0', s->found);
        }
        at += c.n_bytes;
    }
    s->found->n_lf -= s->found->n_crlf;
}

static enum moec_status refuse_nul(const char *bytes, size_t n_bytes, const struct scan *s,
                                   const char *subject, struct moec_error *err)
{
    const bool is_rare = s->found->n_broken == 0 && s->n_nul + s->n_control <= n_bytes / SMALL_FOR_CONTROL;
    const struct wide_encoding *wide = is_rare ? NULL : find_wide(bytes, n_bytes);
    if (wide != NULL)
        return refuse_encoding(wide->name, wide->without_mark, subject, err);
    if (!is_rare)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "'%s' is binary data (a NUL byte at offset %" PRIu64
                         "), expected text, JSONL, JSON or CSV in UTF-8",
                         subject, s->first_nul);
    const struct new_name to = in_utf8(subject);
    return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                     "'%s' has %" PRIu64 " NUL bytes, the first at offset %" PRIu64 ", but text has no NUL "
                     "bytes; remove them: tr -d '\\000' < '%s' > '%.*s%s%s'",
                     subject, s->n_nul, s->first_nul, subject, NEW_NAME(to));
}

static enum moec_status refuse_broken(const char *bytes, size_t n_bytes, const struct scan *s,
                                      const char *subject, struct moec_error *err)
{
    const struct new_name to = in_utf8(subject);
    const uint64_t at = s->found->first_broken;
    if (s->n_control * SMALL_FOR_CONTROL > n_bytes)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "'%s' is binary data (not UTF-8 from offset %" PRIu64 " on), expected text, JSONL, "
                         "JSON or CSV in UTF-8",
                         subject, at);
    return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                     "'%s' is not UTF-8 text (byte 0x%02x at offset %" PRIu64 "), probably Latin-1 or "
                     "another older encoding; convert it: iconv -f WINDOWS-1252 -t UTF-8 '%s' > '%.*s%s%s' "
                     "(replace WINDOWS-1252 if the encoding is another)",
                     subject, (uint8_t)bytes[at], at, subject, NEW_NAME(to));
}

enum moec_status moec_text_check(const char *bytes, size_t n_bytes, const char *subject,
                                 struct moec_text_found *found, struct moec_error *err)
{
    *found = (struct moec_text_found){0};
    struct scan s = {.found = found};
    scan(bytes, n_bytes, &s);
    const uint64_t n_strange = found->n_broken - s.n_cut;
    const bool is_text = s.n_nul == 0 && n_strange * WIDE_FOR_BROKEN <= s.n_wide;
    for (size_t i = 0; !is_text && i < sizeof wide_encodings / sizeof *wide_encodings; i++) {
        const struct wide_encoding *one = &wide_encodings[i];
        if (n_bytes >= one->mark_bytes && memcmp(bytes, one->mark, one->mark_bytes) == 0)
            return refuse_encoding(one->name, one->name, subject, err);
    }
    const struct signature *format = find_signature(bytes, n_bytes,
                                                    s.n_nul > 0 ? CERTAIN_NUL
                                                    : is_text   ? CERTAIN_ALWAYS
                                                                : CERTAIN_BROKEN);
    if (format != NULL)
        return refuse_format(format, subject, err);
    if (s.n_nul > 0)
        return refuse_nul(bytes, n_bytes, &s, subject, err);
    return is_text ? MOEC_OK : refuse_broken(bytes, n_bytes, &s, subject, err);
}

/* ---- line ends and white space ---- */

bool moec_text_has_foreign_lines(const struct moec_text_found *found)
{
    return found->n_crlf > 0 || (found->n_cr > 0 && found->n_lf == 0);
}

size_t moec_text_unify_lines(const struct moec_text_found *found, char *bytes, size_t n_bytes)
{
    const bool is_cr_alone = found->n_crlf == 0 && found->n_lf == 0;
    size_t n = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        const bool is_pair = bytes[i] == '\r' && i + 1 < n_bytes && bytes[i + 1] == '\n';
        if (!is_pair)
            bytes[n++] = is_cr_alone && bytes[i] == '\r' ? '\n' : bytes[i];
    }
    return n;
}

static bool is_space(uint32_t c)
{
    return c == ' ' || (c >= '\t' && c <= '\r') || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200B) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000 || c == 0xFEFF;
}

bool moec_text_is_blank(const char *bytes, size_t n_bytes)
{
    size_t at = 0;
    while (at < n_bytes) {
        const struct moec_utf8_char c = moec_utf8_read(bytes + at, n_bytes - at);
        if (!c.valid || !is_space(c.code_point))
            return false;
        at += c.n_bytes;
    }
    return true;
}
