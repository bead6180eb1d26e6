#include "tests/unit/temporary.h"
#include "tests/unit/tensor_entry.h"

#include "formats/checkpoint/safetensors.h"

/* Writes header and `n_data` data bytes as 'x.safetensors' and opens it. The header length is `length` when
 * that is not negative. */
static enum moec_status open_made(const char *header, int64_t length, size_t n_data,
                                  struct moec_safetensors *safetensors, struct moec_error *err)
{
    char *folder = temporary_folder(), *path = temporary_path(folder, "x.safetensors");
    size_t n_header = strlen(header), n = 8 + n_header + n_data;
    uint8_t *bytes = calloc(1, n);
    assert_non_null(bytes);
    uint64_t stated = length < 0 ? n_header : (uint64_t)length;
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)((stated >> (8 * i)) & 0xff);
    memcpy(bytes + 8, header, n_header);
    temporary_write(folder, "x.safetensors", bytes, n);
    enum moec_status status = moec_safetensors_open(safetensors, path, err);
    if (status != MOEC_OK) {
        assert_message(*err, "x.safetensors");
        assert_null(safetensors->entries);
        assert_int_equal(safetensors->file.fd, -1);
    }
    free(bytes);
    free(path);
    temporary_remove(folder);
    return status;
}

#define A "\"a\": {\"dtype\": \"BF16\", \"shape\": [2, 3], \"data_offsets\": [0, 12]}"

static void test_safetensors__table(void **state)
{
    (void)state;
    static const char header[] = "{\"z\": {\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[12,20]}," A
                                 ", \"empty\": {\"dtype\":\"F16\",\"shape\":[0,4],\"data_offsets\":[12,12]},"
                                 "\"__metadata__\": {\"format\": \"pt\"}, "
                                 "\"n\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[20,28]}}   ";
    struct moec_safetensors file;
    struct moec_error err = {0};
    assert_status(open_made(header, -1, 28, &file, &err), MOEC_OK, err);
    assert_int_equal(file.n_entries, 4);
    const struct moec_safetensors_entry *a = tensor_entry(&file, "a");
    assert_non_null(a);
    assert_int_equal(a->dtype, MOEC_DTYPE_BF16);
    assert_string_equal(a->dtype_name, "BF16");
    assert_int_equal(a->n_dims, 2);
    assert_int_equal(a->shape[0], 2);
    assert_int_equal(a->shape[1], 3);
    assert_int_equal(a->offset, 8 + strlen(header));
    assert_int_equal(a->n_bytes, 12);
    const struct moec_safetensors_entry *n = tensor_entry(&file, "n");
    assert_non_null(n);
    assert_int_equal(n->dtype, MOEC_DTYPE_COUNT);
    assert_int_equal(n->n_dims, 0);
    assert_int_equal(n->offset, 8 + strlen(header) + 20);
    assert_non_null(tensor_entry(&file, "empty"));
    assert_null(tensor_entry(&file, "__metadata__"));
    assert_null(tensor_entry(&file, "b"));
    moec_safetensors_forget(&file);
    assert_null(tensor_entry(&file, "a"));
    moec_safetensors_close(&file);
    moec_safetensors_close(&file);
    moec_safetensors_close(NULL);
}

/* Of a dtype that came later: its bytes have their place, and others are read. */
static void test_safetensors__unknown_dtype(void **state)
{
    (void)state;
    static const char header[] =
        "{\"b\": {\"dtype\": \"F4_E2M1_of_a_name_that_does_not_end_so_soon\", \"shape\": [3, 5], "
        "\"data_offsets\": [12, 20]}, " A "}";
    struct moec_safetensors file;
    struct moec_error err = {0};
    assert_status(open_made(header, -1, 20, &file, &err), MOEC_OK, err);
    const struct moec_safetensors_entry *b = tensor_entry(&file, "b");
    assert_non_null(b);
    assert_int_equal(b->dtype, MOEC_DTYPE_COUNT);
    assert_string_equal(b->dtype_name, "F4_E2M1_of_a_name_that_does_not_");
    assert_int_equal(b->n_bytes, 8);
    assert_non_null(tensor_entry(&file, "a"));
    moec_safetensors_close(&file);
}

struct bad_case {
    const char *header;
    int64_t length; /* stated; -1: as it is */
    size_t n_data;
    enum moec_status status;
    const char *part;
};

static void test_safetensors__damage_is_refused_with_its_place(void **state)
{
    (void)state;
    static const struct bad_case cases[] = {
        /* header length */
        {"{" A "}", INT64_MAX, 12, MOEC_ERR_LIMIT, "at offset 0"},
        {"{" A "}", 104857601, 12, MOEC_ERR_LIMIT, "more than the limit of 104857600"},
        {"{" A "}", 104857600, 12, MOEC_ERR_FORMAT,
         "inside its header of 104857600 bytes: the file is truncated"},
        {"{" A "}", 0, 12, MOEC_ERR_FORMAT, "offset 8"},
        {"{" A "}", 20, 12, MOEC_ERR_FORMAT, "not valid JSON"},
        /* header text */
        {"[1]", -1, 12, MOEC_ERR_FORMAT, "an array, expected an object"},
        {"{" A "} x", -1, 12, MOEC_ERR_FORMAT, "not valid JSON"},
        {"{" A ", " A "}", -1, 24, MOEC_ERR_FORMAT, "duplicate"},
        {"{\"a\": [1]}", -1, 0, MOEC_ERR_FORMAT, "tensor 'a' in"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1]}}", -1, 4, MOEC_ERR_FORMAT, "no 'data_offsets'"},
        {"{\"a\": {\"dtype\": \"F32\", \"data_offsets\": [0, 4]}}", -1, 4, MOEC_ERR_FORMAT, "no 'shape'"},
        {"{\"a\": {\"shape\": [1], \"data_offsets\": [0, 4]}}", -1, 4, MOEC_ERR_FORMAT, "no 'dtype'"},
        {"{\"a\": {\"dtype\": \"F31\", \"shape\": [1], \"data_offsets\": [0, 5]}}", -1, 4, MOEC_ERR_FORMAT,
         "the file is truncated"},
        {"{\"a\": {\"dtype\": 4, \"shape\": [1], \"data_offsets\": [0, 4]}}", -1, 4, MOEC_ERR_FORMAT,
         "'dtype'"},
        /* shapes */
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 4]}}", -1, 4, MOEC_ERR_FORMAT,
         "has 4 bytes at offset"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [-1], \"data_offsets\": [0, 4]}}", -1, 4, MOEC_ERR_FORMAT,
         "shape[0] of tensor 'a'"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1.0], \"data_offsets\": [0, 4]}}", -1, 4, MOEC_ERR_FORMAT,
         "shape[0]"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [99999999999999999999], \"data_offsets\": [0, 4]}}", -1, 4,
         MOEC_ERR_FORMAT, "x.safetensors"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [281474976710656, "
         "281474976710656], \"data_offsets\": [0, 4]}}",
         -1, 4, MOEC_ERR_FORMAT, "needs more than"},
        {"{\"a\": {\"dtype\": \"U8\", \"shape\": [1,1,1,1,1,1,1,1,1], \"data_offsets\": [0, 1]}}", -1, 1,
         MOEC_ERR_LIMIT, "9 dimensions"},
        /* ranges */
        {"{" A "}", -1, 11, MOEC_ERR_FORMAT, "the file is truncated"},
        {"{" A "}", -1, 13, MOEC_ERR_FORMAT, "1 bytes after its last tensor"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [4, 0]}}", -1, 4, MOEC_ERR_FORMAT,
         "expected the first to be at most the second"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0]}}", -1, 4, MOEC_ERR_FORMAT,
         "1 data_offsets"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [-4, 0]}}", -1, 4, MOEC_ERR_FORMAT,
         "data_offsets[0]"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": "
         "[1], \"data_offsets\": [9223372036854775803, 9223372036854775807]}}",
         -1, 4, MOEC_ERR_FORMAT, "tensor 'a'"},
        {"{" A ", \"b\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [8, 12]}}", -1, 12,
         MOEC_ERR_FORMAT, "tensor 'b' in"},
        {"{" A ", \"b\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [8, 12]}}", -1, 12,
         MOEC_ERR_FORMAT, "inside tensor 'a' that ends at"},
        {"{" A ", \"b\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [16, 20]}}", -1, 20,
         MOEC_ERR_FORMAT, "belong to no tensor"},
        {"{}", -1, 3, MOEC_ERR_FORMAT, "3 bytes after its last tensor"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moec_safetensors file;
        struct moec_error err = {0};
        assert_status(open_made(cases[i].header, cases[i].length, cases[i].n_data, &file, &err),
                      cases[i].status, err);
        assert_message(err, cases[i].part);
    }
}

static void test_safetensors__short_and_missing_files(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    char *path = temporary_path(folder, "x"), *missing = temporary_path(folder, "y");
    struct moec_safetensors file;
    for (size_t n = 0; n < 8; n++) {
        struct moec_error err = {0};
        temporary_write(folder, "x", "\2\0\0\0\0\0\0\0", n);
        assert_status(moec_safetensors_open(&file, path, &err), MOEC_ERR_FORMAT, err);
        assert_message(err, "too few for a safetensors file");
    }
    struct moec_error err = {0};
    temporary_write(folder, "x", "\2\0\0\0\0\0\0\0{}", 10);
    assert_status(moec_safetensors_open(&file, path, &err), MOEC_OK, err);
    assert_int_equal(file.n_entries, 0);
    assert_null(tensor_entry(&file, "a"));
    moec_safetensors_close(&file);
    assert_status(moec_safetensors_open(&file, missing, &err), MOEC_ERR_NOT_FOUND, err);
    free(path);
    free(missing);
    temporary_remove(folder);
}

static void test_safetensors__shape_text(void **state)
{
    (void)state;
    char text[192];
    uint64_t shape[MOEC_TENSOR_MAX_DIMS];
    for (size_t i = 0; i < MOEC_TENSOR_MAX_DIMS; i++)
        shape[i] = UINT64_MAX;
    assert_string_equal(moec_tensor_shape_text(shape, 0, text), "[]");
    assert_string_equal(moec_tensor_shape_text(shape, 1, text), "[18446744073709551615]");
    (void)moec_tensor_shape_text(shape, MOEC_TENSOR_MAX_DIMS, text);
    assert_int_equal(strlen(text), 8 * 20 + 7 * 2 + 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_safetensors__table),
        cmocka_unit_test(test_safetensors__unknown_dtype),
        cmocka_unit_test(test_safetensors__damage_is_refused_with_its_place),
        cmocka_unit_test(test_safetensors__short_and_missing_files),
        cmocka_unit_test(test_safetensors__shape_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
