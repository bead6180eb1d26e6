/* Archives of profiles whose attributes and datasets were edited (other types, extents, storage, links), read
 * with trust: HDF5 is given well-formed archives, what they say is ours to doubt. One first byte of 16 asks
 * that what can be read is written again, too. */
#include "tests/fuzz/use_profile.h"

#include <hdf5.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct {
    const char *path, *name;
} attributes[] = {{"/", "format_version"},
                  {"/", "seq_len_tokens"},
                  {"/", "seed"},
                  {"/", "baseline_bits"},
                  {"/", "group"},
                  {"/", "n_moe_layer"},
                  {"/", "n_expert"},
                  {"/", "top_k"},
                  {"/", "n_window"},
                  {"/", "n_uniform"},
                  {"/", "n_bits"},
                  {"/", "n_trace_token"},
                  {"/", "n_path_key"},
                  {"/", "n_config_byte"},
                  {"/", "task"},
                  {"/", "cost_passes"},
                  {"/studies/routing/margin", "axes"},
                  {"/studies/routing/margin", "units"},
                  {"/studies/routing/margin", "source"},
                  {"/studies/predict/recall.predictor", "labels"},
                  {"/", "n_measured_window"}};
static const char *const datasets[] = {"/axes/moe_layer",
                                       "/axes/bits",
                                       "/model/config",
                                       "/windows/tokens",
                                       "/windows/length",
                                       "/reference/nll",
                                       "/baseline/kl",
                                       "/uniform/nll",
                                       "/sensitivity/nll",
                                       "/routing/trace",
                                       "/routing/trace_weights",
                                       "/paths/key_layer",
                                       "/paths/value_expert",
                                       "/paths/recall",
                                       "/paths",
                                       "/windows",
                                       "/studies",
                                       "/studies/gate",
                                       "/studies/gate/one",
                                       "/studies/gate/two",
                                       "/studies/predict/recall",
                                       "/studies/predict/recall.predictor",
                                       "/studies/predict/recall.cut",
                                       "/studies/routing/margin"};

static hid_t pick_type(uint64_t choice)
{
    switch (choice % 6) {
    case 0:
        return H5T_STD_U32LE;
    case 1:
        return H5T_IEEE_F64LE;
    case 2:
        return H5T_STD_U64LE;
    case 3:
        return H5T_STD_U16BE;
    case 4:
        return H5T_C_S1;
    default:
        return H5T_STD_U8LE;
    }
}

/* A text as h5py writes one, of variable length. */
static void edit_text(hid_t file, struct input *input)
{
    const size_t which = take(input, 1) % (sizeof attributes / sizeof *attributes);
    const char *path = attributes[which].path, *name = attributes[which].name;
    char text[300] = "";
    const char *const texts[] = {text, text, text, text};
    const hsize_t n = take(input, 1) % 4, length = take(input, 2) % sizeof text;
    memset(text, (int)(32 + take(input, 1) % 96), length);
    hid_t type = H5Tcopy(H5T_C_S1), space = n > 0 ? H5Screate_simple(1, &n, NULL) : H5Screate(H5S_SCALAR);
    (void)H5Tset_size(type, H5T_VARIABLE);
    (void)H5Adelete_by_name(file, path, name, H5P_DEFAULT);
    hid_t attribute = H5Acreate_by_name(file, path, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    if (attribute >= 0) {
        (void)H5Awrite(attribute, type, texts);
        (void)H5Aclose(attribute);
    }
    (void)H5Sclose(space);
    (void)H5Tclose(type);
}

static void edit_attribute(hid_t file, struct input *input)
{
    const size_t which = take(input, 1) % (sizeof attributes / sizeof *attributes);
    const char *path = attributes[which].path, *name = attributes[which].name;
    hid_t type = pick_type(take(input, 1) % 8 == 0 ? take(input, 1) : 2);
    uint64_t value = take(input, 1 + take(input, 1) % 8);
    hid_t space = H5Screate(H5S_SCALAR);
    (void)H5Adelete_by_name(file, path, name, H5P_DEFAULT);
    hid_t attribute = H5Acreate_by_name(file, path, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    if (attribute >= 0) {
        (void)H5Awrite(attribute, type, &value);
        (void)H5Aclose(attribute);
    }
    (void)H5Sclose(space);
}

static void edit_dataset(hid_t file, struct input *input)
{
    const char *path = datasets[take(input, 1) % (sizeof datasets / sizeof *datasets)];
    uint64_t kind = take(input, 1);
    (void)H5Ldelete(file, path, H5P_DEFAULT);
    if (kind % 8 == 0) {
        (void)H5Lcreate_soft("/sensitivity/kl", file, path, H5P_DEFAULT, H5P_DEFAULT);
        return;
    }
    if (kind % 8 == 1) {
        (void)H5Lcreate_external("/dev/null", "/x", file, path, H5P_DEFAULT, H5P_DEFAULT);
        return;
    }
    hsize_t dims[4], chunk[4];
    int rank = (int)(take(input, 1) % 5);
    for (int i = 0; i < rank; i++) {
        dims[i] = take(input, 1 + take(input, 1) % 5);
        chunk[i] = dims[i] > 3 ? 3 : dims[i] > 0 ? dims[i] : 1;
    }
    hid_t space = rank > 0 ? H5Screate_simple(rank, dims, NULL) : H5Screate(H5S_SCALAR);
    hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
    /* Storage comes with the first write, so extents of any size cost nothing. */
    if (rank > 0 && kind % 3 > 0)
        (void)H5Pset_chunk(creation, rank, chunk);
    if (kind % 3 == 2)
        (void)H5Pset_fletcher32(creation);
    hid_t dataset =
        H5Dcreate2(file, path, pick_type(take(input, 1)), space, H5P_DEFAULT, creation, H5P_DEFAULT);
    if (dataset >= 0)
        (void)H5Dclose(dataset);
    (void)H5Pclose(creation);
    (void)H5Sclose(space);
}

static void read_edited(const uint8_t *bytes, size_t n_bytes, struct input *input)
{
    const bool writes = take(input, 1) % 16 == 0;
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    (void)H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    (void)H5Pset_fapl_core(access, 1 << 16, 0);
    (void)H5Pset_file_image(access, (void *)(uintptr_t)bytes, n_bytes);
    hid_t file = H5Fopen("/dev/null/fuzz", H5F_ACC_RDWR, access);
    if (file < 0)
        abort();
    for (int i = 0; i < 6 && input->left > 0; i++) {
        const uint64_t kind = take(input, 1);
        if (kind % 2 == 0 && kind >= 128)
            edit_text(file, input);
        else if (kind % 2 == 0)
            edit_attribute(file, input);
        else
            edit_dataset(file, input);
    }
    (void)H5Fflush(file, H5F_SCOPE_GLOBAL);
    ssize_t n_image = H5Fget_file_image(file, NULL, 0);
    uint8_t *image = n_image > 0 ? malloc((size_t)n_image) : NULL;
    if (image != NULL && H5Fget_file_image(file, image, (size_t)n_image) == n_image)
        read_profile(image, (size_t)n_image, true, writes);
    free(image);
    (void)H5Fclose(file);
    (void)H5Pclose(access);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t *archive;
    static size_t n_archive;
    struct input input = {data, size};
    struct moec_profile profile;
    if (archive == NULL) {
        if (synthetic_profile(&fuzz_shape, &profile) != MOEC_OK ||
            moec_profile_encode(&profile, &archive, &n_archive, NULL) != MOEC_OK)
            abort();
        moec_profile_release(&profile);
    }
    read_edited(archive, n_archive, &input);
    return 0;
}
