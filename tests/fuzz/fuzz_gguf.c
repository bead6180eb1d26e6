/* Hostile GGUF files: the header alone, then as a checkpoint with its config, tensors and tokenizer. */
#include "formats/checkpoint/checkpoint.h"
#include "formats/gguf/ggml_blocks.h"
#include "formats/gguf/gguf.h"
#include "tests/fuzz/use_tokenizer.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What is accepted lies within the file, and is found under its name. */
static void check_header(const struct moec_gguf *gguf, size_t size)
{
    for (size_t i = 0; i < gguf->n_tensors; i++) {
        const struct moec_gguf_tensor *tensor = &gguf->tensors[i];
        require(tensor->offset <= size && tensor->n_bytes <= size - tensor->offset);
        require(moec_gguf_find_tensor(gguf, tensor->name) == tensor);
    }
    for (size_t i = 0; i < gguf->n_values; i++)
        require(moec_gguf_find(gguf, gguf->values[i].key) == &gguf->values[i]);
}

static void use_expert(const struct moec_checkpoint *checkpoint)
{
    const struct moec_config *config = moec_checkpoint_config(checkpoint);
    const size_t n = (size_t)config->n_ff_expert * config->n_embd;
    struct moec_error err = {0};
    if (moec_config_moe_count(config) == 0 || n > 1u << 16)
        return;
    float *weights = malloc(3 * n * sizeof *weights);
    require(weights != NULL);
    if (moec_checkpoint_load_expert(checkpoint, moec_config_moe_layer(config, 0), 0,
                                    (struct moec_expert_floats){weights, weights + n, weights + 2 * n},
                                    &err) != MOEC_OK)
        require(err.message[0] != '\0');
    free(weights);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    static char path[64];
    struct moec_gguf gguf = {.file = {.fd = -1}};
    struct moec_checkpoint *checkpoint = NULL;
    struct moec_error err = {0};
    bool is_short = false;
    if (fd < 0) {
        fd = memfd_create("gguf", 0);
        require(fd >= 0);
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (moec_gguf_parse(&gguf, data, size, size, "x.gguf", &is_short, &err) == MOEC_OK)
        check_header(&gguf, size);
    else
        require(err.message[0] != '\0' && !is_short);
    moec_gguf_forget(&gguf);
    require(ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size);
    err = (struct moec_error){0};
    if (moec_checkpoint_open(path, &checkpoint, &err) == MOEC_OK)
        use_expert(checkpoint);
    else
        require(err.message[0] != '\0');
    moec_checkpoint_close(checkpoint);
    return 0;
}
