/* A dictionary of files that are given as text and are none, each with what the refusal must say. */
#include "profiler/tasks/text_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES(bytes) bytes, sizeof bytes - 1

/* What the refusal of these bytes says. */
static const char *refusal(const char *bytes, size_t n_bytes, const char *subject)
{
    static struct moec_error err;
    struct moec_text_found found;
    err = (struct moec_error){0};
    if (moec_text_check(bytes, n_bytes, subject, &found, &err) != MOEC_ERR_UNSUPPORTED)
        fail_msg("'%s' is not refused", subject);
    return err.message;
}

static void assert_says(const char *message, const char *part)
{
    if (strstr(message, part) == NULL)
        fail_msg("'%s' lacks '%s'", message, part);
}

static struct moec_text_found accepted(const char *bytes, size_t n_bytes)
{
    struct moec_text_found found;
    struct moec_error err = {0};
    if (moec_text_check(bytes, n_bytes, "data", &found, &err) != MOEC_OK)
        fail_msg("%s", err.message);
    return found;
}

static const struct {
    const char *name, *bytes;
    size_t n_bytes;
    const char *says[2];
} dictionary[] = {
    {"a/d.parquet", BYTES("PAR1\x15\0\x15\x80PAR1"), {"is a Parquet file", "ParquetFile(sys.argv[1])"}},
    {"d.parquet", BYTES("PAR1\x15\0\x15\x80PAR1"), {"pyarrow", "'d.parquet' > 'd.jsonl'"}},
    {"d.arrow", BYTES("ARROW1\0\0\xff\xff\xff\xff"), {"an Arrow file", "read_table"}},
    {"d.arrow", BYTES("\xff\xff\xff\xff\x10\0\0\0"), {"an Arrow stream", "open_stream"}},
    {"d.feather", BYTES("FEA1\0\0\0\0"), {"a Feather file", "'d.feather' > 'd.jsonl'"}},
    {"d.jsonl.gz", BYTES("\x1f\x8b\x08\0"), {"gzip", "gzip -dc 'd.jsonl.gz' > 'd.jsonl'"}},
    {"d.txt.xz", BYTES("\xfd\x37zXZ\0\0\x04"), {"xz data", "xz -dc 'd.txt.xz' > 'd.txt'"}},
    {"d.txt.bz2", BYTES("BZh91AY&SY\xab\xcd"), {"bzip2", "bzip2 -dc 'd.txt.bz2' > 'd.txt'"}},
    {"d.lz4", BYTES("\x04\x22\x4d\x18\x60\x40\x82"), {"lz4", "lz4 -dc 'd.lz4' > 'd'"}},
    {"d.txt", BYTES("\x1f\x8b\x08\0"), {"gzip", "gzip -dc 'd.txt' > 'd.txt.txt'"}},
    {"d.jsonl", BYTES("ARROW1\0\0\xff\xff"), {"an Arrow file", "'d.jsonl' > 'd.jsonl.jsonl'"}},
    {"d.zst", BYTES("\x28\xb5\x2f\xfd\x04\0"), {"zstd data within zstd data", "zstd -dc"}},
    {"d.docx", BYTES("PK\x03\x04\x14\0\x06\0"), {"ZIP archive", "unzip 'd.docx'"}},
    {"d.7z", BYTES("7z\xbc\xaf\x27\x1c\0"), {"7z archive", "7z x 'd.7z'"}},
    {"d.rar", BYTES("Rar!\x1a\x07\x01\0"), {"RAR archive", "unrar x"}},
    {"d.pdf", BYTES("%PDF-1.4\n%abc\n1 0 obj"), {"a PDF document", "pdftotext 'd.pdf' 'd.txt'"}},
    {"d.rtf", BYTES("{\\rtf1\\ansi text}"), {"an RTF document", "export"}},
    {"d.doc", BYTES("\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\0"), {"older Office", "export"}},
    {"d.db", BYTES("SQLite format 3\0\x10\0"), {"an SQLite database", "export"}},
    {"d.h5", BYTES("\x89HDF\r\n\x1a\n\0"), {"an HDF5 file", "export"}},
    {"d.pkl", BYTES("\x80\x04\x95\x10\0\0"), {"a Python pickle", "export"}},
    {"d.npy", BYTES("\x93NUMPY\x01\0v\0"), {"a NumPy array", "export"}},
    {"d.avro",
     BYTES("Obj\x01\x04\x14"
           "avro.codec\x80"),
     {"an Avro file", "export"}},
    {"d.orc", BYTES("ORC\0\x11\xe2"), {"an ORC file", "export"}},
    {"d.gguf", BYTES("GGUF\x03\0\0\0"), {"a GGUF model", "export"}},
    {"d.png", BYTES("\x89PNG\r\n\x1a\n\0"), {"a PNG image", "export"}},
    {"d.jpg", BYTES("\xff\xd8\xff\xe0\0\x10JFIF"), {"a JPEG image", "export"}},
    {"d",
     BYTES("\x7f"
           "ELF\x02\x01\x01\0"),
     {"a program", "export"}},
    {"d.txt",
     BYTES("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2\nsize 12\n"),
     {"a Git LFS pointer", "git lfs pull"}},
    {"d.txt", BYTES("\xff\xfeh\0i\0"), {"is UTF-16 text", "iconv -f UTF-16 -t UTF-8 'd.txt' > 'd-utf8.txt'"}},
    {"d.txt", BYTES("\xfe\xff\0h\0i"), {"is UTF-16 text", "iconv -f UTF-16 -t"}},
    {"d.txt", BYTES("\xff\xfe\0\0h\0\0\0"), {"is UTF-32 text", "iconv -f UTF-32 -t"}},
    {"a.b/d",
     BYTES("h\0e\0l\0l\0o\0\n\0"),
     {"is UTF-16 text", "-f UTF-16LE -t UTF-8 'a.b/d' > 'a.b/d-utf8'"}},
    {"d.csv",
     BYTES("\0h\0e\0l\0l\0o\0\n"),
     {"is UTF-16 text", "-f UTF-16BE -t UTF-8 'd.csv' > 'd-utf8.csv'"}},
    {"d.txt", BYTES("h\0\0\0i\0\0\0\n\0\0\0"), {"is UTF-32 text", "-f UTF-32LE"}},
    {"d.txt", BYTES("\0\0\0h\0\0\0i\0\0\0\n"), {"is UTF-32 text", "-f UTF-32BE"}},
    /* "дом, снег" in UTF-16: only comma, space and line end have a zero. */
    {"d.txt",
     BYTES("\x34\x04\x3e\x04\x3c\x04,\0 \0\x41\x04\x3d\x04\x35\x04\x33\x04\n\0"),
     {"is UTF-16 text", "-f UTF-16LE"}},
    /* Token numbers of two bytes look like UTF-16 with control characters. */
    {"d.bin", BYTES("\x01\0\x02\0\x10\0\x03\0\x80\0\x61\0\x05\0\x99\0"), {"binary data", "offset 1"}},
    {"d.txt",
     BYTES("a long line of text that is whole, but for one byte\0 in its middle\n"),
     {"1 NUL bytes, the first at offset 51", "tr -d '\\000' < 'd.txt' > 'd-utf8.txt'"}},
    {"d.txt",
     BYTES("un caf\xe9 tr\xe8s fort\n"),
     {"not UTF-8 text (byte 0xe9 at offset 6)", "iconv -f WINDOWS-1252 -t UTF-8 'd.txt' > 'd-utf8.txt'"}},
    {"d.txt",
     BYTES("ORC\xc9"
           "E DU BOIS"),
     {"not UTF-8 text", "Latin-1"}},
    {"d.txt", BYTES("\x93\xfa\x96\x7b\x8c\xea\n"), {"not UTF-8 text", "older encoding"}},
    {"d.bin", BYTES("\x9a\x01\x02\xf3\x03\x1a\x99\x05\x06\x91"), {"binary data", "offset 0"}},
};

static void test_text_check__what_is_no_text_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof dictionary / sizeof *dictionary; i++) {
        const char *message = refusal(dictionary[i].bytes, dictionary[i].n_bytes, dictionary[i].name);
        assert_says(message, dictionary[i].says[0]);
        assert_says(message, dictionary[i].says[1]);
    }
    char archive[600] = "a.txt";
    memcpy(archive + 257, "ustar", 5);
    assert_says(refusal(archive, sizeof archive, "d.tar"), "a tar archive");
    memset(archive, 'p', 512);
    memcpy(archive + 512, "\x89HDF\r\n\x1a\n", 8);
    assert_says(refusal(archive, sizeof archive, "d.h5"), "such as a profile");
}

static void test_text_check__text_that_begins_like_another_format(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "PAR1 is a magic number", "GGUF files", "ORC and goblin", "BZh91AY&SY is how bzip2 begins", "PKZIP",
        "SQLite format 3",        "ARROW1",     "ustar",          "version https://example.org",    ""};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        assert_int_equal(accepted(texts[i], strlen(texts[i])).n_broken, 0);
}

static void test_text_check__a_few_broken_places_stay(void **state)
{
    (void)state;
    /* A file that was split within characters: the end of one, and the begin of another. */
    struct moec_text_found found = accepted(BYTES("\x80\x94 dash \xe2\x80"));
    assert_int_equal(found.n_broken, 3);
    assert_int_equal(found.first_broken, 0);
    char text[64] = "";
    for (int i = 0; i < 16; i++)
        memcpy(text + 2 * i, "\xc3\xa9", 2);
    memcpy(text + 32, "a\xe9 b", 4);
    found = accepted(text, 36);
    assert_int_equal(found.n_broken, 1);
    assert_int_equal(found.first_broken, 33);
    assert_says(refusal(text + 2, 34, "data"), "offset 31"); /* one for fifteen is too many */
}

static void check_lines(const char *from, const char *to)
{
    char text[64];
    const size_t n = strlen(from);
    memcpy(text, from, n);
    const struct moec_text_found found = accepted(text, n);
    assert_int_equal(moec_text_has_foreign_lines(&found), strcmp(from, to) != 0);
    assert_int_equal(moec_text_unify_lines(&found, text, n), strlen(to));
    assert_memory_equal(text, to, strlen(to));
}

static void test_text_check__line_ends(void **state)
{
    (void)state;
    check_lines("one\ntwo\n", "one\ntwo\n");
    check_lines("one\r\n\r\ntwo\r\n", "one\n\ntwo\n");
    check_lines("one\rtwo\r", "one\ntwo\n");
    check_lines("bar\rover\nnext", "bar\rover\nnext");       /* a CR among LF is no line end */
    check_lines("bar\rover\r\nnext\r", "bar\rover\nnext\r"); /* nor among CR LF */
    struct moec_text_found found = accepted(BYTES("a\r\nb\nc\rd\r\n"));
    assert_int_equal(found.n_crlf, 2);
    assert_int_equal(found.n_lf, 1);
    assert_int_equal(found.n_cr, 1);
}

static void test_text_check__white_space(void **state)
{
    (void)state;
    assert_true(moec_text_is_blank("", 0));
    assert_true(moec_text_is_blank(BYTES(" \t\r\n\v\f\xc2\xa0\xe3\x80\x80\xef\xbb\xbf\xe2\x80\x8b")));
    assert_false(moec_text_is_blank(BYTES(" \n.")));
    assert_false(moec_text_is_blank(BYTES("\xe3\x80\x81")));
    assert_false(moec_text_is_blank(BYTES(" \xe3\x80")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_check__what_is_no_text_is_named),
        cmocka_unit_test(test_text_check__text_that_begins_like_another_format),
        cmocka_unit_test(test_text_check__a_few_broken_places_stay),
        cmocka_unit_test(test_text_check__line_ends),
        cmocka_unit_test(test_text_check__white_space),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
