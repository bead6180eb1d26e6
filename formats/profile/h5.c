/* An archive is an image in memory: writing takes HDF5's image at the end, reading lends the caller's bytes
 * without a copy. Each dataset is checked before it is read: link, type, extents, filters, chunk size. It
 * may not claim more bytes than its stored ones can inflate to. Time stamps are off in every object, and
 * chunks follow from extents alone, so equal profiles are equal files. */
#include "formats/profile/h5_internal.h"

#include "formats/base/memory.h"

#include <hdf5_hl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* One chunk is at most this long: small enough to skip what is not asked for, large enough to compress. */
#define CHUNK_BYTES ((uint64_t)1 << 20)
/* Chunks of foreign files are allocated whole when read. */
#define CHUNK_LIMIT_BYTES ((uint64_t)64 << 20)
/* Deflate cannot shrink data more than 1032 times (RFC 1951: 258 bytes in 2 bits), plus headers. */
#define DEFLATE_MAX_RATIO 1040
#define DEFLATE_LEVEL     6

static const uint8_t signature[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};

/* ---- errors ---- */

static herr_t innermost_message(unsigned at, const H5E_error2_t *error, void *data)
{
    char *text = data;
    if (at == 0 && error->desc != NULL)
        (void)snprintf(text, 160, "%s", error->desc);
    return 0;
}

enum moec_status moec_h5_fail(const struct moec_h5 *h5, const char *action, const char *path,
                              struct moec_error *err)
{
    char reason[160] = "no reason given";
    (void)H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, innermost_message, reason);
    return moec_fail(err, MOEC_ERR_FORMAT, "%s: HDF5 cannot %s '%s': %s", h5->subject, action, path, reason);
}

static enum moec_status archive_new(const char *subject, struct moec_h5 **out, struct moec_error *err)
{
    struct moec_h5 *h5 = NULL;
    MOEC_TRY(moec_alloc((void **)&h5, 1, sizeof *h5, "an HDF5 archive", err));
    h5->file = H5I_INVALID_HID;
    enum moec_status status = moec_strndup(&h5->subject, subject, strlen(subject), err);
    if (status != MOEC_OK) {
        free(h5);
        return status;
    }
    (void)H5Eget_auto2(H5E_DEFAULT, &h5->old_auto, &h5->old_auto_data);
    (void)H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    *out = h5;
    return MOEC_OK;
}

void moec_h5_close(struct moec_h5 *h5)
{
    if (h5 == NULL)
        return;
    if (h5->file >= 0)
        (void)H5Fclose(h5->file);
    (void)H5Eset_auto2(H5E_DEFAULT, h5->old_auto, h5->old_auto_data);
    free(h5->subject);
    free(h5);
}

/* ---- types ---- */

size_t moec_h5_type_bytes(enum moec_h5_type type)
{
    static const uint8_t bytes[] = {
        [MOEC_H5_U8] = 1,  [MOEC_H5_U16] = 2, [MOEC_H5_F16] = 2, [MOEC_H5_HALF] = 4,
        [MOEC_H5_U32] = 4, [MOEC_H5_U64] = 8, [MOEC_H5_F64] = 8};
    return bytes[type];
}

static const char *type_name(enum moec_h5_type type)
{
    static const char *const names[] = {
        [MOEC_H5_U8] = "u8",   [MOEC_H5_U16] = "u16", [MOEC_H5_F16] = "f16", [MOEC_H5_HALF] = "f32",
        [MOEC_H5_U32] = "u32", [MOEC_H5_U64] = "u64", [MOEC_H5_F64] = "f64"};
    return names[type];
}

/* HDF5 1.10 has no half type; h5py and HDFView know this one by its fields. */
static hid_t half_type(H5T_order_t order)
{
    hid_t type = H5Tcopy(H5T_IEEE_F32LE);
    if (type >= 0 && (H5Tset_fields(type, 15, 10, 5, 0, 10) < 0 || H5Tset_size(type, 2) < 0 ||
                      H5Tset_ebias(type, 15) < 0 || H5Tset_order(type, order) < 0)) {
        (void)H5Tclose(type);
        return H5I_INVALID_HID;
    }
    return type;
}

/* Type in the file: little-endian everywhere. Closed by the caller. */
static hid_t file_type(enum moec_h5_type type)
{
    switch (type) {
    case MOEC_H5_U8:
        return H5Tcopy(H5T_STD_U8LE);
    case MOEC_H5_U16:
        return H5Tcopy(H5T_STD_U16LE);
    case MOEC_H5_F16:
        return half_type(H5T_ORDER_LE);
    case MOEC_H5_HALF:
        return H5Tcopy(H5T_IEEE_F32LE);
    case MOEC_H5_U32:
        return H5Tcopy(H5T_STD_U32LE);
    case MOEC_H5_U64:
        return H5Tcopy(H5T_STD_U64LE);
    case MOEC_H5_F64:
        return H5Tcopy(H5T_IEEE_F64LE);
    }
    return H5I_INVALID_HID;
}

/* Type in memory. Closed by the caller. */
static hid_t memory_type(enum moec_h5_type type)
{
    switch (type) {
    case MOEC_H5_U8:
        return H5Tcopy(H5T_NATIVE_UINT8);
    case MOEC_H5_U16:
        return H5Tcopy(H5T_NATIVE_UINT16);
    case MOEC_H5_F16:
    case MOEC_H5_HALF:
        return half_type(H5Tget_order(H5T_NATIVE_UINT16));
    case MOEC_H5_U32:
        return H5Tcopy(H5T_NATIVE_UINT32);
    case MOEC_H5_U64:
        return H5Tcopy(H5T_NATIVE_UINT64);
    case MOEC_H5_F64:
        return H5Tcopy(H5T_NATIVE_DOUBLE);
    }
    return H5I_INVALID_HID;
}

/* ---- opening and finishing ---- */

/* The in-memory driver opens nothing, but HDF5 first looks for a file of the archive's name, so it is one
 * that cannot be; it tells open archives apart by their names. */
static void name_archive(char name[static 40])
{
    static unsigned counter;
    (void)snprintf(name, 40, "/dev/null/moec-%u", counter++);
}

enum moec_status moec_h5_create(uint64_t user_block_bytes, struct moec_h5 **out, struct moec_error *err)
{
    struct moec_h5 *h5 = NULL;
    MOEC_TRY(archive_new("a new profile", &h5, err));
    h5->user_block_bytes = user_block_bytes;
    enum moec_status status = MOEC_OK;
    char name[40];
    name_archive(name);
    hid_t creation = H5Pcreate(H5P_FILE_CREATE);
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    /* Time stamps of the root group are set here; without them equal profiles are equal files. */
    if (creation < 0 || access < 0 || H5Pset_userblock(creation, user_block_bytes) < 0 ||
        H5Pset_obj_track_times(creation, 0) < 0 || H5Pset_fapl_core(access, (size_t)1 << 20, 0) < 0)
        status = moec_h5_fail(h5, "prepare", "/", err);
    if (status == MOEC_OK) {
        h5->file = H5Fcreate(name, H5F_ACC_TRUNC, creation, access);
        if (h5->file < 0)
            status = moec_h5_fail(h5, "create", "/", err);
    }
    if (creation >= 0)
        (void)H5Pclose(creation);
    if (access >= 0)
        (void)H5Pclose(access);
    if (status != MOEC_OK) {
        moec_h5_close(h5);
        return status;
    }
    *out = h5;
    return MOEC_OK;
}

/* Whether the image that HDF5 gives begins with the user block differs between its versions,
 * so it is looked at. */
enum moec_status moec_h5_take_bytes(struct moec_h5 *h5, uint8_t **bytes, size_t *n_bytes,
                                    struct moec_error *err)
{
    uint8_t *image = NULL;
    if (H5Fflush(h5->file, H5F_SCOPE_GLOBAL) < 0)
        return moec_h5_fail(h5, "finish", "/", err);
    ssize_t length = H5Fget_file_image(h5->file, NULL, 0);
    if (length <= 0)
        return moec_h5_fail(h5, "finish", "/", err);
    size_t block = (size_t)h5->user_block_bytes, n = (size_t)length;
    MOEC_TRY(moec_alloc((void **)&image, (uint64_t)n + block, 1, "the bytes of a profile", err));
    if (H5Fget_file_image(h5->file, image + block, n) != length) {
        free(image);
        return moec_h5_fail(h5, "finish", "/", err);
    }
    bool has_block = memcmp(image + block, signature, sizeof signature) != 0;
    if (has_block)
        memmove(image, image + block, n);
    *bytes = image;
    *n_bytes = has_block ? n : n + block;
    return MOEC_OK;
}

/* HDF5 reads the caller's bytes where they lie: its driver asks these for memory and copies, and gets the
 * bytes themselves. (H5LTopen_file_image does the same and leaks.) */
static void *image_borrow(size_t n_bytes, H5FD_file_image_op_t operation, void *bytes)
{
    (void)n_bytes;
    (void)operation;
    return bytes;
}

static void *image_copy(void *to, const void *from, size_t n_bytes, H5FD_file_image_op_t operation,
                        void *bytes)
{
    (void)from;
    (void)n_bytes;
    (void)operation;
    return to == bytes ? to : NULL;
}

static void *image_grow(void *image, size_t n_bytes, H5FD_file_image_op_t operation, void *bytes)
{
    (void)image;
    (void)n_bytes;
    (void)operation;
    (void)bytes;
    return NULL;
}

static herr_t image_return(void *image, H5FD_file_image_op_t operation, void *bytes)
{
    (void)image;
    (void)operation;
    (void)bytes;
    return 0;
}

static void *image_share(void *bytes)
{
    return bytes;
}

static herr_t image_unshare(void *bytes)
{
    (void)bytes;
    return 0;
}

enum moec_status moec_h5_open(uint8_t *bytes, size_t n_bytes, const char *subject, struct moec_h5 **out,
                              struct moec_error *err)
{
    struct moec_h5 *h5 = NULL;
    H5FD_file_image_callbacks_t borrow = {image_borrow, image_copy,    image_grow, image_return,
                                          image_share,  image_unshare, bytes};
    MOEC_TRY(archive_new(subject, &h5, err));
    h5->bytes = bytes;
    h5->n_bytes = n_bytes;
    char name[40];
    name_archive(name);
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    if (access >= 0 && H5Pset_fapl_core(access, (size_t)1 << 16, 0) >= 0 &&
        H5Pset_file_image_callbacks(access, &borrow) >= 0 && H5Pset_file_image(access, bytes, n_bytes) >= 0)
        h5->file = H5Fopen(name, H5F_ACC_RDONLY, access);
    enum moec_status status = h5->file < 0 ? moec_h5_fail(h5, "open", "/", err) : MOEC_OK;
    if (access >= 0)
        (void)H5Pclose(access);
    if (status != MOEC_OK) {
        moec_h5_close(h5);
        return status;
    }
    *out = h5;
    return MOEC_OK;
}

bool moec_h5_has_signature(const uint8_t *bytes, size_t n_bytes)
{
    for (size_t offset = 0; offset < n_bytes && n_bytes - offset >= sizeof signature;
         offset = offset == 0 ? 512 : 2 * offset) {
        if (memcmp(bytes + offset, signature, sizeof signature) == 0)
            return true;
        if (offset > n_bytes / 2)
            break;
    }
    return false;
}

/* ---- links ---- */

enum moec_status moec_h5_check_links(struct moec_h5 *h5, const char *path, struct moec_error *err)
{
    char step[256];
    size_t length = strlen(path);
    if (length >= sizeof step)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s: the path '%s' has more than 255 bytes", h5->subject,
                         path);
    for (size_t i = 1; i <= length && length > 1; i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        memcpy(step, path, i);
        step[i] = '\0';
        H5L_info_t info;
        htri_t exists = H5Lexists(h5->file, step, H5P_DEFAULT);
        if (exists < 0)
            return moec_h5_fail(h5, "look for", step, err);
        if (exists == 0)
            return moec_fail(err, MOEC_ERR_FORMAT, "%s has no '%s'", h5->subject, step);
        if (H5Lget_info(h5->file, step, &info, H5P_DEFAULT) < 0)
            return moec_h5_fail(h5, "look for", step, err);
        if (info.type != H5L_TYPE_HARD)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "%s: '%s' is a soft or external link, expected the data itself", h5->subject,
                             step);
    }
    return MOEC_OK;
}

/* ---- writing ---- */

enum moec_status moec_h5_write_group(struct moec_h5 *h5, const char *path, struct moec_error *err)
{
    hid_t creation = H5Pcreate(H5P_GROUP_CREATE);
    hid_t group = H5I_INVALID_HID;
    if (creation >= 0 && H5Pset_obj_track_times(creation, 0) >= 0)
        group = H5Gcreate2(h5->file, path, H5P_DEFAULT, creation, H5P_DEFAULT);
    enum moec_status status = group < 0 ? moec_h5_fail(h5, "create group", path, err) : MOEC_OK;
    if (creation >= 0)
        (void)H5Pclose(creation);
    if (group >= 0)
        (void)H5Gclose(group);
    return status;
}

/* Halves extents from the left until a chunk fits: rows of one layer or of a few tokens stay together. */
static void choose_chunk(const struct moec_h5_dataset *dataset, hsize_t *chunk)
{
    uint64_t bytes = moec_h5_type_bytes(dataset->type);
    for (uint32_t i = 0; i < dataset->rank; i++) {
        chunk[i] = dataset->dims[i];
        bytes *= dataset->dims[i];
    }
    for (uint32_t i = 0; i < dataset->rank; i++)
        while (bytes > CHUNK_BYTES && chunk[i] > 1) {
            bytes /= chunk[i];
            chunk[i] = (chunk[i] + 1) / 2;
            bytes *= chunk[i];
        }
}

/* Creation properties of a dataset; closed by the caller. */
static hid_t dataset_creation(const struct moec_h5_dataset *dataset)
{
    hsize_t chunk[MOEC_H5_MAX_RANK];
    bool empty = dataset->rank == 0;
    for (uint32_t i = 0; i < dataset->rank; i++)
        empty = empty || dataset->dims[i] == 0;
    hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
    if (creation < 0)
        return creation;
    bool good = H5Pset_obj_track_times(creation, 0) >= 0;
    /* HDF5 has no chunks of extent 0, nor of single values. */
    if (!empty) {
        choose_chunk(dataset, chunk);
        good = good && H5Pset_chunk(creation, (int)dataset->rank, chunk) >= 0 &&
               (moec_h5_type_bytes(dataset->type) == 1 || H5Pset_shuffle(creation) >= 0) &&
               H5Pset_deflate(creation, DEFLATE_LEVEL) >= 0;
    }
    if (good)
        return creation;
    (void)H5Pclose(creation);
    return H5I_INVALID_HID;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

/* What an axis is called: the end of its scale's path, behind the name of the study that owns the scale. */
static const char *axis_name(const char *path)
{
    const char *name = base_name(path), *dot = strrchr(name, '.');
    return dot == NULL ? name : dot + 1;
}

/* A scale appears under its name beside the dataset too: netCDF, and with it xarray, knows the dimensions of
 * a group by the scales in it. */
static bool link_scale(const struct moec_h5 *h5, const char *dataset, const char *scale)
{
    char path[256];
    const int n =
        snprintf(path, sizeof path, "%.*s%s", (int)(base_name(dataset) - dataset), dataset, base_name(scale));
    if (n < 0 || (size_t)n >= sizeof path)
        return false;
    return H5Lexists(h5->file, path, H5P_DEFAULT) > 0 ||
           H5Lcreate_hard(h5->file, scale, h5->file, path, H5P_DEFAULT, H5P_DEFAULT) >= 0;
}

static bool attach_axes(const struct moec_h5 *h5, const struct moec_h5_dataset *dataset, hid_t id)
{
    if (dataset->rank == 1 && strcmp(dataset->axes[0], dataset->path) == 0)
        return H5DSset_scale(id, axis_name(dataset->path)) >= 0;
    for (uint32_t i = 0; i < dataset->rank; i++) {
        hid_t scale = H5Dopen2(h5->file, dataset->axes[i], H5P_DEFAULT);
        if (scale < 0)
            return false;
        bool good = H5DSattach_scale(id, scale, i) >= 0 &&
                    H5DSset_label(id, i, axis_name(dataset->axes[i])) >= 0 &&
                    link_scale(h5, dataset->path, dataset->axes[i]);
        (void)H5Dclose(scale);
        if (!good)
            return false;
    }
    return true;
}

enum moec_status moec_h5_write(struct moec_h5 *h5, const struct moec_h5_dataset *dataset, const void *data,
                               struct moec_error *err)
{
    hsize_t dims[MOEC_H5_MAX_RANK];
    uint64_t n = 1;
    for (uint32_t i = 0; i < dataset->rank; i++) {
        dims[i] = dataset->dims[i];
        n *= dataset->dims[i];
    }
    hid_t stored = file_type(dataset->type), held = memory_type(dataset->type);
    hid_t space =
        dataset->rank > 0 ? H5Screate_simple((int)dataset->rank, dims, NULL) : H5Screate(H5S_SCALAR);
    hid_t creation = dataset_creation(dataset);
    hid_t id = H5I_INVALID_HID;
    enum moec_status status = MOEC_OK;
    if (stored >= 0 && held >= 0 && space >= 0 && creation >= 0)
        id = H5Dcreate2(h5->file, dataset->path, stored, space, H5P_DEFAULT, creation, H5P_DEFAULT);
    if (id < 0 || (n > 0 && H5Dwrite(id, held, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0) ||
        !attach_axes(h5, dataset, id)) {
        status = moec_h5_fail(h5, "write", dataset->path, err);
        goto out;
    }
    MOEC_TRY_OUT(moec_h5_write_text(h5, dataset->path, "units", dataset->units, err));
    MOEC_TRY_OUT(moec_h5_write_text(h5, dataset->path, "description", dataset->description, err));
    if (dataset->source != NULL)
        MOEC_TRY_OUT(moec_h5_write_text(h5, dataset->path, "source", dataset->source, err));
out:
    if (id >= 0)
        (void)H5Dclose(id);
    if (creation >= 0)
        (void)H5Pclose(creation);
    if (space >= 0)
        (void)H5Sclose(space);
    if (held >= 0)
        (void)H5Tclose(held);
    if (stored >= 0)
        (void)H5Tclose(stored);
    return status;
}

/* ---- reading ---- */

/* Rank and extents of an open dataset; rank -1 when they are none that this reads. */
static enum moec_status read_extents(const struct moec_h5 *h5, const char *path, hid_t id, int *rank,
                                     hsize_t dims[static H5S_MAX_RANK], struct moec_error *err)
{
    hid_t space = H5Dget_space(id);
    if (space < 0)
        return moec_h5_fail(h5, "read the extents of", path, err);
    H5S_class_t class = H5Sget_simple_extent_type(space);
    *rank = class == H5S_SCALAR || class == H5S_SIMPLE ? H5Sget_simple_extent_ndims(space) : -1;
    if (*rank > H5S_MAX_RANK || (*rank > 0 && H5Sget_simple_extent_dims(space, dims, NULL) != *rank))
        *rank = -1;
    (void)H5Sclose(space);
    return MOEC_OK;
}

static enum moec_status check_extents(const struct moec_h5 *h5, const struct moec_h5_dataset *dataset,
                                      hid_t id, uint64_t *n_bytes, struct moec_error *err)
{
    hsize_t dims[H5S_MAX_RANK];
    int rank = -1;
    MOEC_TRY(read_extents(h5, dataset->path, id, &rank, dims, err));
    if (rank < 0 || (uint32_t)rank != dataset->rank)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s: the dataset '%s' has %d axes, expected %" PRIu32,
                         h5->subject, dataset->path, rank, dataset->rank);
    *n_bytes = moec_h5_type_bytes(dataset->type);
    for (uint32_t i = 0; i < dataset->rank; i++) {
        if (dims[i] != dataset->dims[i])
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "%s: the dataset '%s' has length %" PRIu64 " along axis '%s', expected "
                             "%" PRIu64,
                             h5->subject, dataset->path, (uint64_t)dims[i], axis_name(dataset->axes[i]),
                             dataset->dims[i]);
        if (__builtin_mul_overflow(*n_bytes, dataset->dims[i], n_bytes))
            return moec_fail(err, MOEC_ERR_LIMIT, "%s: the dataset '%s' is larger than the address space",
                             h5->subject, dataset->path);
    }
    return MOEC_OK;
}

static enum moec_status check_type(const struct moec_h5 *h5, const struct moec_h5_dataset *dataset, hid_t id,
                                   struct moec_error *err)
{
    hid_t found = H5Dget_type(id), expected = file_type(dataset->type);
    htri_t equal = found >= 0 && expected >= 0 ? H5Tequal(found, expected) : -1;
    if (found >= 0)
        (void)H5Tclose(found);
    if (expected >= 0)
        (void)H5Tclose(expected);
    if (equal < 0)
        return moec_h5_fail(h5, "read the type of", dataset->path, err);
    if (equal == 0)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s: the dataset '%s' has the wrong type, expected little-endian %s", h5->subject,
                         dataset->path, type_name(dataset->type));
    return MOEC_OK;
}

static bool filters_are_known(hid_t creation)
{
    int n = H5Pget_nfilters(creation);
    for (int i = 0; i < n; i++) {
        unsigned flags = 0, config = 0;
        size_t n_values = 0;
        H5Z_filter_t filter =
            H5Pget_filter2(creation, (unsigned)i, &flags, &n_values, NULL, 0, NULL, &config);
        if (filter != H5Z_FILTER_DEFLATE && filter != H5Z_FILTER_SHUFFLE && filter != H5Z_FILTER_FLETCHER32)
            return false;
    }
    return n >= 0;
}

static bool chunk_is_small(hid_t creation, uint64_t value_bytes)
{
    hsize_t chunk[H5S_MAX_RANK];
    int rank = H5Pget_chunk(creation, H5S_MAX_RANK, chunk);
    uint64_t bytes = value_bytes;
    for (int i = 0; i < rank; i++)
        if (__builtin_mul_overflow(bytes, (uint64_t)chunk[i], &bytes))
            return false;
    return rank > 0 && bytes <= CHUNK_LIMIT_BYTES;
}

/* What a dataset claims must be in the archive: an empty one of huge extents would otherwise take all memory.
 */
static enum moec_status check_storage(const struct moec_h5 *h5, const struct moec_h5_dataset *dataset,
                                      hid_t id, uint64_t n_bytes, struct moec_error *err)
{
    hid_t creation = H5Dget_create_plist(id);
    if (creation < 0)
        return moec_h5_fail(h5, "read the layout of", dataset->path, err);
    H5D_layout_t layout = H5Pget_layout(creation);
    bool good = layout == H5D_COMPACT || (layout == H5D_CONTIGUOUS && H5Pget_external_count(creation) == 0) ||
                (layout == H5D_CHUNKED && filters_are_known(creation) &&
                 chunk_is_small(creation, moec_h5_type_bytes(dataset->type)));
    (void)H5Pclose(creation);
    if (!good)
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "%s: the dataset '%s' is stored in a way that moec does not read: in another file, with a "
            "filter other than shuffle and deflate, or in chunks over %" PRIu64 " bytes",
            h5->subject, dataset->path, CHUNK_LIMIT_BYTES);
    uint64_t stored = H5Dget_storage_size(id);
    if (stored > h5->n_bytes || n_bytes / DEFLATE_MAX_RATIO > stored)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s: the dataset '%s' claims %" PRIu64 " bytes of data, but stores %" PRIu64
                         " bytes in a file of %zu bytes: the file is damaged",
                         h5->subject, dataset->path, n_bytes, stored, h5->n_bytes);
    return MOEC_OK;
}

static enum moec_status open_checked(struct moec_h5 *h5, const struct moec_h5_dataset *dataset, hid_t *out,
                                     uint64_t *n_bytes, struct moec_error *err)
{
    MOEC_TRY(moec_h5_check_links(h5, dataset->path, err));
    hid_t id = H5Dopen2(h5->file, dataset->path, H5P_DEFAULT);
    if (id < 0)
        return moec_h5_fail(h5, "open", dataset->path, err);
    enum moec_status status = check_type(h5, dataset, id, err);
    if (status == MOEC_OK)
        status = check_extents(h5, dataset, id, n_bytes, err);
    if (status == MOEC_OK)
        status = check_storage(h5, dataset, id, *n_bytes, err);
    if (status != MOEC_OK)
        (void)H5Dclose(id);
    else
        *out = id;
    return status;
}

enum moec_status moec_h5_check(struct moec_h5 *h5, const struct moec_h5_dataset *dataset,
                               struct moec_error *err)
{
    hid_t id = H5I_INVALID_HID;
    uint64_t n_bytes = 0;
    MOEC_TRY(open_checked(h5, dataset, &id, &n_bytes, err));
    (void)H5Dclose(id);
    return MOEC_OK;
}

enum moec_status moec_h5_read_extents(struct moec_h5 *h5, const char *path, uint32_t *rank,
                                      uint64_t dims[static MOEC_H5_MAX_RANK], struct moec_error *err)
{
    hsize_t found[H5S_MAX_RANK];
    int n = -1;
    MOEC_TRY(moec_h5_check_links(h5, path, err));
    hid_t id = H5Dopen2(h5->file, path, H5P_DEFAULT);
    if (id < 0)
        return moec_h5_fail(h5, "open", path, err);
    enum moec_status status = read_extents(h5, path, id, &n, found, err);
    (void)H5Dclose(id);
    MOEC_TRY(status);
    if (n < 0 || n > MOEC_H5_MAX_RANK)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s: the dataset '%s' has %d axes, expected at most %d",
                         h5->subject, path, n, MOEC_H5_MAX_RANK);
    *rank = (uint32_t)n;
    for (int i = 0; i < n; i++)
        dims[i] = found[i];
    return MOEC_OK;
}

bool moec_h5_has(struct moec_h5 *h5, const char *path)
{
    return H5Lexists(h5->file, path, H5P_DEFAULT) > 0;
}

bool moec_h5_is_same(struct moec_h5 *h5, const char *path, const char *other)
{
    H5L_info_t a, b;
    return H5Lget_info(h5->file, path, &a, H5P_DEFAULT) >= 0 &&
           H5Lget_info(h5->file, other, &b, H5P_DEFAULT) >= 0 && a.type == H5L_TYPE_HARD &&
           b.type == H5L_TYPE_HARD && a.u.address == b.u.address;
}

struct list {
    void *context;
    moec_h5_visit *visit;
    struct moec_error *err;
    enum moec_status status;
};

static herr_t visit_link(hid_t group, const char *name, const H5L_info_t *info, void *data)
{
    struct list *list = data;
    (void)group;
    (void)info;
    list->status = list->visit(list->context, name, list->err);
    return list->status == MOEC_OK ? 0 : 1;
}

enum moec_status moec_h5_list(struct moec_h5 *h5, const char *path, moec_h5_visit *visit, void *context,
                              struct moec_error *err)
{
    struct list list = {context, visit, err, MOEC_OK};
    MOEC_TRY(moec_h5_check_links(h5, path, err));
    hid_t group = H5Gopen2(h5->file, path, H5P_DEFAULT);
    if (group < 0)
        return moec_h5_fail(h5, "open the group", path, err);
    herr_t ended = H5Literate(group, H5_INDEX_NAME, H5_ITER_INC, NULL, visit_link, &list);
    (void)H5Gclose(group);
    if (ended < 0)
        return moec_h5_fail(h5, "list", path, err);
    return list.status;
}

enum moec_status moec_h5_read(struct moec_h5 *h5, const struct moec_h5_dataset *dataset, void *data,
                              struct moec_error *err)
{
    hid_t id = H5I_INVALID_HID;
    uint64_t n_bytes = 0;
    MOEC_TRY(open_checked(h5, dataset, &id, &n_bytes, err));
    enum moec_status status = MOEC_OK;
    hid_t held = memory_type(dataset->type);
    if (held < 0 || (n_bytes > 0 && H5Dread(id, held, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0))
        status = moec_h5_fail(h5, "read", dataset->path, err);
    if (held >= 0)
        (void)H5Tclose(held);
    (void)H5Dclose(id);
    return status;
}

void moec_h5_version(char text[static 32])
{
    unsigned major = 0, minor = 0, release = 0;
    (void)H5get_libversion(&major, &minor, &release);
    (void)snprintf(text, 32, "%u.%u.%u", major, minor, release);
}
