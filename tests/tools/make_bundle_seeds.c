/* Writes the seed corpus of the bundle fuzzer: `make_bundle_seeds tests/fuzz/corpus/bundle`. To be run again
 * when the format changes. */
#include "tests/unit/temporary.h"

#include "tests/unit/sample_bundle.h"

int main(int argc, char **argv)
{
    struct sample s;
    if (argc != 2) {
        fprintf(stderr, "usage: make_bundle_seeds FOLDER\n");
        return 2;
    }
    char *full = temporary_path(argv[1], "full.moec"), *bare = temporary_path(argv[1], "bare.moec"),
         *levels = temporary_path(argv[1], "levels.moec");
    sample_make(&s, 3, 6, 3, 1);
    (void)sample_write(&s, full);
    struct moec_codec kept[MOEC_CODEC_TABLE];
    memcpy(kept, s.codecs, sizeof kept);
    for (uint32_t bits = 2; bits <= 4; bits++)
        s.codecs[bits].scheme = bits == 3 ? MOEC_SCHEME_LOGARITHMIC : MOEC_SCHEME_GAUSSIAN;
    s.codecs[8].scheme = MOEC_SCHEME_LOGARITHMIC;
    (void)sample_write(&s, levels);
    memcpy(s.codecs, kept, sizeof kept);
    s.parts.generation = NULL;
    s.parts.tokenizer = NULL;
    s.parts.paths = NULL;
    s.parts.routing = NULL;
    s.parts.alignment = 128;
    s.certificate.present = false;
    s.n_extra = 0;
    (void)sample_write(&s, bare);
    sample_release(&s);
    free(full);
    free(bare);
    free(levels);
    return 0;
}
