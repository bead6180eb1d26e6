/* Profiles from anywhere. The first byte chooses what the rest is:
 *   0 mod 3  a file, read as a stranger's: the checksum stands before HDF5
 *   1 mod 3  edits of an archive (attributes, datasets of other types, extents and storage), read with trust:
 * HDF5 is given well-formed archives, what they say is ours to doubt 2 mod 3  edits of values in memory: what
 * passes the check must survive writing, reading and both heatmaps */
#include "formats/profile_h5.h"
#include "profiler/heatmap.h"
#include "profiler/terminal_heatmap.h"
#include "tests/unit/synthetic_profile.h"

#include <hdf5.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct synthetic_shape shape = {.n_dense = 1,
                                             .n_moe_layer = 2,
                                             .n_expert = 4,
                                             .top_k = 2,
                                             .n_window = 3,
                                             .seq_len_tokens = 6,
                                             .n_bits = 2,
                                             .n_uniform = 2,
                                             .every_unreached = 0,
                                             .n_key = 3,
                                             .has_studies = true};

struct input {
    const uint8_t *at;
    size_t left;
};

static uint64_t take(struct input *input, size_t n)
{
    uint64_t value = 0;
    for (size_t i = 0; i < n && input->left > 0; i++, input->at++, input->left--)
        value |= (uint64_t)*input->at << (8 * i);
    return value;
}

static void show(const struct moec_profile *profile)
{
    char *text = NULL;
    const struct moec_terminal terminal = {.columns = 80, .colour = MOEC_TERMINAL_256, .utf8 = true};
    if (moec_terminal_heatmap(profile, 0, &terminal, &text, NULL) == MOEC_OK)
        free(text);
}

static void read_file(const uint8_t *data, size_t size, bool trust)
{
    struct moec_profile profile;
    struct moec_error err = {0};
    uint8_t digest[MOEC_SHA256_BYTES];
    uint8_t *copy = malloc(size > 0 ? size : 1);
    if (copy == NULL)
        return;
    memcpy(copy, data, size);
    if (moec_profile_decode(copy, size, "profile 'fuzz.h5'", trust, &profile, digest, &err) == MOEC_OK) {
        show(&profile);
        moec_profile_release(&profile);
    } else if (err.message[0] == '\0') {
        abort();
    }
    free(copy);
}

/* --- archives ----------------------------------------------------------------------------------------------
 */

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
                  {"/studies/predict/recall.predictor", "labels"}};
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
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    (void)H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    (void)H5Pset_fapl_core(access, 1 << 16, 0);
    (void)H5Pset_file_image(access, (void *)(uintptr_t)bytes, n_bytes);
    hid_t file = H5Fopen("/dev/null/fuzz", H5F_ACC_RDWR, access);
    if (file < 0)
        abort();
    for (int i = 0; i < 6 && input->left > 0; i++) {
        if (take(input, 1) % 2 == 0)
            edit_attribute(file, input);
        else
            edit_dataset(file, input);
    }
    (void)H5Fflush(file, H5F_SCOPE_GLOBAL);
    ssize_t n_image = H5Fget_file_image(file, NULL, 0);
    uint8_t *image = n_image > 0 ? malloc((size_t)n_image) : NULL;
    if (image != NULL && H5Fget_file_image(file, image, (size_t)n_image) == n_image)
        read_file(image, (size_t)n_image, true);
    free(image);
    (void)H5Fclose(file);
    (void)H5Pclose(access);
}

/* --- values ------------------------------------------------------------------------------------------------
 */

static void check_edited(struct moec_profile *p, struct input *input)
{
    const struct {
        void *array;
        size_t n_bytes;
    } arrays[] = {
        {&p->seed, sizeof p->seed},
        {&p->baseline_bits, sizeof p->baseline_bits},
        {&p->scheme, sizeof p->scheme},
        {&p->group, sizeof p->group},
        {p->task, sizeof p->task},
        {p->data_name, sizeof p->data_name},
        {p->bits, 2 * sizeof *p->bits},
        {p->uniform_bits, 2 * sizeof *p->uniform_bits},
        {p->moe_layers, 2 * sizeof *p->moe_layers},
        {p->window_length, 3 * sizeof *p->window_length},
        {p->window_scored, 3 * sizeof *p->window_scored},
        {p->window_index, 3 * sizeof *p->window_index},
        {p->window_tokens, 3 * 6 * sizeof *p->window_tokens},
        {p->reference.nll, 3 * sizeof(double)},
        {p->baseline.nll, 3 * sizeof(double)},
        {p->uniform[1].nll, 3 * sizeof(double)},
        {p->expert_nll, sizeof(double) * 2 * 4 * 2 * 3},
        {p->expert_kl, sizeof(double) * 2 * 4 * 2 * 3},
        {p->activations, 8 * sizeof *p->activations},
        {p->mean_gate_weight, 8 * sizeof(double)},
        {p->trace_experts, p->n_trace_token * 4 * sizeof(uint16_t)},
        {p->trace_weights, p->n_trace_token * 4 * sizeof(uint16_t)},
        {p->paths.keys, 3 * sizeof *p->paths.keys},
        {p->paths.values, 3 * 4 * sizeof *p->paths.values},
        {p->paths.frequency, 8 * sizeof *p->paths.frequency},
        {p->path_recall, 6 * sizeof(double)},
        {&p->cost_passes, sizeof p->cost_passes},
        {p->studies.items[1].name, sizeof p->studies.items[1].name},
        {p->studies.items[1].description, sizeof p->studies.items[1].description},
        {p->studies.items[1].values, 2 * 3 * 3 * sizeof(double)},
        {p->studies.items[1].axes[1].name, sizeof p->studies.items[1].axes[1].name},
        {p->studies.items[1].axes[1].labels, 3 * sizeof *p->studies.items[1].axes[1].labels},
        {p->studies.items[2].axes[0].values, 2 * sizeof(double)},
        {p->studies.items[2].axes[1].values, 4 * sizeof(double)},
        {p->studies.items[2].units, sizeof p->studies.items[2].units},
    };
    while (input->left > 0) {
        size_t which = take(input, 1) % (sizeof arrays / sizeof *arrays);
        size_t at = take(input, 2) % arrays[which].n_bytes;
        ((uint8_t *)arrays[which].array)[at] = (uint8_t)take(input, 1);
    }
    struct moec_error err = {0};
    uint8_t *bytes = NULL;
    size_t n_bytes = 0;
    if (moec_profile_check(p, "p", &err) != MOEC_OK)
        return;
    if (moec_profile_encode(p, &bytes, &n_bytes, &err) != MOEC_OK)
        abort();
    struct moec_profile again;
    uint8_t digest[MOEC_SHA256_BYTES];
    if (moec_profile_decode(bytes, n_bytes, "p", false, &again, digest, &err) != MOEC_OK)
        abort();
    if (memcmp(again.expert_nll, p->expert_nll, sizeof(double) * 2 * 4 * 2 * 3) != 0)
        abort();
    show(&again);
    moec_profile_release(&again);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    struct input input = {data + 1, size - 1};
    if (data[0] % 3 == 0) {
        read_file(data + 1, size - 1, false);
        return 0;
    }
    static uint8_t *archive;
    static size_t n_archive;
    struct moec_profile profile;
    if (synthetic_profile(&shape, &profile) != MOEC_OK ||
        (archive == NULL && moec_profile_encode(&profile, &archive, &n_archive, NULL) != MOEC_OK))
        abort();
    if (data[0] % 3 == 1)
        read_edited(archive, n_archive, &input);
    else
        check_edited(&profile, &input);
    moec_profile_release(&profile);
    return 0;
}
