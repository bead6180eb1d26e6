/* Writes a bundle that is whole but that `moec run` refuses, because the pattern of its tokenizer is no
 * regular expression: `make_refused_bundle FILE.moec`. Compiling refuses such a checkpoint, but other
 * programs write bundles too. */
#include "tests/unit/temporary.h"

#include "tests/unit/sample_bundle.h"

int main(int argc, char **argv)
{
    static const char tokenizer[] =
        "{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"Split\","
        "\"pattern\":{\"Regex\":\"(open\"},\"behavior\":\"Isolated\",\"invert\":false},\"post_processor\":"
        "null,"
        "\"decoder\":null,\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
        "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,"
        "\"byte_fallback\":false,\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}}";
    struct sample s;
    struct moec_error err = {0};
    if (argc != 2) {
        fprintf(stderr, "usage: make_refused_bundle FILE.moec\n");
        return 2;
    }
    sample_make(&s, 3, 6, 3, 1);
    moec_tokenizer_model_release(&s.tokenizer);
    assert_status(moec_tokenizer_json_read(tokenizer, sizeof tokenizer - 1, "sample", &s.tokenizer, &err),
                  MOEC_OK, err);
    (void)sample_write(&s, argv[1]);
    sample_release(&s);
    return 0;
}
