/* Texts are written with variable length, which other readers take for strings. HDF5 never reads such a text
 * here: it only says where the object is, and h5_text.c reads the bytes with its own bounds. Texts of fixed
 * length are older profiles'; each must end within its room. */
#include "formats/base/memory.h"
#include "formats/profile/h5_internal.h"
#include "formats/profile/h5_text.h"

#include <inttypes.h>
#include <string.h>

/* An attribute of a group or dataset. */
struct place {
    const char *path, *name;
};

/* The type of a value in the file, and in memory. */
struct types {
    hid_t stored, held;
};

/* n = 0: one value; else a list of n. */
static enum moec_status write_attribute(struct moec_h5 *h5, struct place place, struct types types,
                                        uint64_t n, const void *value, struct moec_error *err)
{
    const hsize_t dims[1] = {n};
    hid_t space = n > 0 ? H5Screate_simple(1, dims, NULL) : H5Screate(H5S_SCALAR),
          attribute = H5I_INVALID_HID;
    if (space >= 0 && types.stored >= 0)
        attribute = H5Acreate_by_name(h5->file, place.path, place.name, types.stored, space, H5P_DEFAULT,
                                      H5P_DEFAULT, H5P_DEFAULT);
    enum moec_status status = MOEC_OK;
    if (attribute < 0 || H5Awrite(attribute, types.held, value) < 0) {
        status = moec_h5_fail(h5, "write an attribute of", place.path, err);
        (void)moec_error_prefix(err, "attribute '%s'", place.name);
    }
    if (attribute >= 0)
        (void)H5Aclose(attribute);
    if (space >= 0)
        (void)H5Sclose(space);
    return status;
}

/* Of variable length, which readers everywhere take for strings. Closed by the caller. */
static hid_t text_type(void)
{
    hid_t type = H5Tcopy(H5T_C_S1);
    if (type >= 0 && (H5Tset_size(type, H5T_VARIABLE) < 0 || H5Tset_cset(type, H5T_CSET_UTF8) < 0)) {
        (void)H5Tclose(type);
        return H5I_INVALID_HID;
    }
    return type;
}

/* n = 0: one text; else a list of n. */
static enum moec_status write_texts(struct moec_h5 *h5, const char *path, const char *name, uint64_t n,
                                    const char *const *texts, struct moec_error *err)
{
    hid_t type = text_type();
    if (type < 0)
        return moec_h5_fail(h5, "write an attribute of", path, err);
    enum moec_status status =
        write_attribute(h5, (struct place){path, name}, (struct types){type, type}, n, texts, err);
    (void)H5Tclose(type);
    return status;
}

enum moec_status moec_h5_write_text(struct moec_h5 *h5, const char *path, const char *name, const char *text,
                                    struct moec_error *err)
{
    return write_texts(h5, path, name, 0, &text, err);
}

enum moec_status moec_h5_write_u64(struct moec_h5 *h5, const char *path, const char *name, uint64_t value,
                                   struct moec_error *err)
{
    return write_attribute(h5, (struct place){path, name}, (struct types){H5T_STD_U64LE, H5T_NATIVE_UINT64},
                           0, &value, err);
}

enum moec_status moec_h5_write_f64(struct moec_h5 *h5, const char *path, const char *name, double value,
                                   struct moec_error *err)
{
    return write_attribute(h5, (struct place){path, name}, (struct types){H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE},
                           0, &value, err);
}

enum moec_status moec_h5_write_texts(struct moec_h5 *h5, const char *path, const char *name,
                                     const char *texts, struct moec_h5_text_list list, struct moec_error *err)
{
    const char **each = NULL;
    MOEC_TRY(moec_alloc((void **)&each, list.n, sizeof *each, "a list of texts", err));
    for (uint64_t i = 0; i < list.n; i++)
        each[i] = texts + i * list.text_bytes;
    enum moec_status status = write_texts(h5, path, name, list.n, each, err);
    free(each);
    return status;
}

enum moec_status moec_h5_has_attribute(struct moec_h5 *h5, const char *path, const char *name, bool *has,
                                       struct moec_error *err)
{
    MOEC_TRY(moec_h5_check_links(h5, path, err));
    htri_t exists = H5Aexists_by_name(h5->file, path, name, H5P_DEFAULT);
    if (exists < 0)
        return moec_h5_fail(h5, "look for attributes of", path, err);
    *has = exists > 0;
    return MOEC_OK;
}

/* An attribute that is open, and its type. */
struct opened {
    hid_t attribute, type;
};

static void close_attribute(struct opened opened)
{
    (void)H5Tclose(opened.type);
    (void)H5Aclose(opened.attribute);
}

/* Opens one value (n = 0) or a list of n. */
static enum moec_status open_attribute(struct moec_h5 *h5, struct place place, uint64_t n,
                                       struct opened *opened, struct moec_error *err)
{
    const char *path = place.path, *name = place.name;
    bool has = false;
    MOEC_TRY(moec_h5_has_attribute(h5, path, name, &has, err));
    if (!has)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s: '%s' has no attribute '%s'", h5->subject, path, name);
    hid_t id = H5Aopen_by_name(h5->file, path, name, H5P_DEFAULT, H5P_DEFAULT);
    if (id < 0)
        return moec_h5_fail(h5, "open an attribute of", path, err);
    hid_t space = H5Aget_space(id);
    hsize_t length = 0;
    bool good = space >= 0 && H5Sget_simple_extent_type(space) == (n > 0 ? H5S_SIMPLE : H5S_SCALAR);
    if (good && n > 0)
        good = H5Sget_simple_extent_ndims(space) == 1 &&
               H5Sget_simple_extent_dims(space, &length, NULL) == 1 && length == n;
    if (space >= 0)
        (void)H5Sclose(space);
    hid_t found = good ? H5Aget_type(id) : H5I_INVALID_HID;
    if (found < 0) {
        (void)H5Aclose(id);
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s: attribute '%s' of '%s' has the wrong shape, expected %" PRIu64 " value%s",
                         h5->subject, name, path, n > 0 ? n : 1,
                         n > 1    ? "s"
                         : n == 1 ? " in a list"
                                  : ", not a list");
    }
    *opened = (struct opened){id, found};
    return MOEC_OK;
}

/* Of variable length: HDF5 says where the object is, and its bytes are read here (formats/profile/h5_text.h).
 */
static enum moec_status read_variable(struct moec_h5 *h5, struct place place, char *texts,
                                      struct moec_h5_text_list list, struct moec_error *err)
{
    const char *path = place.path, *name = place.name;
    struct moec_h5_image image = {.bytes = h5->bytes, .n_bytes = h5->n_bytes};
    hsize_t user_block_bytes = 0;
    size_t address_bytes = 0, length_bytes = 0;
    H5O_info_t info;
    hid_t creation = H5Fget_create_plist(h5->file);
    bool good = creation >= 0 && H5Pget_userblock(creation, &user_block_bytes) >= 0 &&
                H5Pget_sizes(creation, &address_bytes, &length_bytes) >= 0 &&
                H5Oget_info_by_name2(h5->file, path, &info, H5O_INFO_BASIC, H5P_DEFAULT) >= 0;
    if (creation >= 0)
        (void)H5Pclose(creation);
    if (!good)
        return moec_h5_fail(h5, "find the header of", path, err);
    if (address_bytes != sizeof(uint64_t) || length_bytes != sizeof(uint64_t))
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "%s is an HDF5 file with addresses of %zu bytes and lengths of %zu "
                         "bytes, expected 8 for both",
                         h5->subject, address_bytes, length_bytes);
    image.base = user_block_bytes;
    enum moec_status status = moec_h5_text_read(&image, info.addr, name, texts, list, err);
    if (status != MOEC_OK)
        (void)moec_error_prefix(err, "%s: attribute '%s' of '%s'", h5->subject, name, path);
    return status;
}

/* Of fixed length, as profiles up to version 2 have them: in file and memory of one size, so that HDF5 moves
 * bytes and nothing else. */
static enum moec_status read_fixed(struct moec_h5 *h5, struct place place, struct opened opened, char *texts,
                                   struct moec_h5_text_list list, struct moec_error *err)
{
    const char *path = place.path, *name = place.name;
    const size_t text_bytes = list.text_bytes, found = H5Tget_size(opened.type);
    if (found == 0 || found > text_bytes || (list.n > 1 && found != text_bytes))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s: attribute '%s' of '%s' has texts of %zu bytes, expected %s%zu", h5->subject,
                         name, path, found, list.n > 1 ? "" : "up to ", text_bytes);
    if (H5Aread(opened.attribute, opened.type, texts) < 0)
        return moec_h5_fail(h5, "read an attribute of", path, err);
    for (uint64_t i = 0; i < list.n; i++)
        if (memchr(texts + i * text_bytes, '\0', text_bytes) == NULL)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "%s: attribute '%s' of '%s' has a text without an end: text number %" PRIu64
                             " has no zero byte within %zu bytes",
                             h5->subject, name, path, i, text_bytes);
    return MOEC_OK;
}

/* One text, or a list. */
static enum moec_status read_texts(struct moec_h5 *h5, struct place place, bool is_list, char *texts,
                                   struct moec_h5_text_list list, struct moec_error *err)
{
    struct opened opened = {H5I_INVALID_HID, H5I_INVALID_HID};
    MOEC_TRY(open_attribute(h5, place, is_list ? list.n : 0, &opened, err));
    memset(texts, 0, list.n * list.text_bytes);
    enum moec_status status = MOEC_OK;
    if (H5Tget_class(opened.type) != H5T_STRING)
        status = moec_fail(err, MOEC_ERR_FORMAT, "%s: attribute '%s' of '%s' is not a text", h5->subject,
                           place.name, place.path);
    else if (H5Tis_variable_str(opened.type) != 0)
        status = read_variable(h5, place, texts, list, err);
    else
        status = read_fixed(h5, place, opened, texts, list, err);
    close_attribute(opened);
    return status;
}

enum moec_status moec_h5_read_text(struct moec_h5 *h5, const char *path, const char *name, char *text,
                                   size_t capacity, struct moec_error *err)
{
    return read_texts(h5, (struct place){path, name}, false, text, (struct moec_h5_text_list){capacity, 1},
                      err);
}

enum moec_status moec_h5_read_texts(struct moec_h5 *h5, const char *path, const char *name, char *texts,
                                    struct moec_h5_text_list list, struct moec_error *err)
{
    return read_texts(h5, (struct place){path, name}, true, texts, list, err);
}

static enum moec_status read_number(struct moec_h5 *h5, struct place place, struct types types, void *value,
                                    struct moec_error *err)
{
    struct opened opened = {H5I_INVALID_HID, H5I_INVALID_HID};
    MOEC_TRY(open_attribute(h5, place, 0, &opened, err));
    enum moec_status status = MOEC_OK;
    if (H5Tequal(opened.type, types.stored) <= 0)
        status =
            moec_fail(err, MOEC_ERR_FORMAT, "%s: attribute '%s' of '%s' has the wrong type, expected %s",
                      h5->subject, place.name, place.path,
                      H5Tget_class(types.stored) == H5T_FLOAT ? "little-endian f64" : "little-endian u64");
    else if (H5Aread(opened.attribute, types.held, value) < 0)
        status = moec_h5_fail(h5, "read an attribute of", place.path, err);
    close_attribute(opened);
    return status;
}

enum moec_status moec_h5_read_u64(struct moec_h5 *h5, const char *path, const char *name, uint64_t *value,
                                  struct moec_error *err)
{
    return read_number(h5, (struct place){path, name}, (struct types){H5T_STD_U64LE, H5T_NATIVE_UINT64},
                       value, err);
}

enum moec_status moec_h5_read_f64(struct moec_h5 *h5, const char *path, const char *name, double *value,
                                  struct moec_error *err)
{
    return read_number(h5, (struct place){path, name}, (struct types){H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE},
                       value, err);
}
