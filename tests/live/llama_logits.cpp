// Logits of llama.cpp at every position of a text: llama_logits MODEL.gguf TOKENS.u32 OUT.f32
#include "llama.h"

#include <cstdint>
#include <cstdio>
#include <vector>

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    std::vector<uint32_t> ids(4096);
    FILE *file = fopen(argv[2], "rb");
    if (file == nullptr)
        return 2;
    ids.resize(fread(ids.data(), sizeof ids[0], ids.size(), file));
    fclose(file);
    llama_log_set([](ggml_log_level level, const char *text, void *) {
        if (level == GGML_LOG_LEVEL_ERROR)
            fputs(text, stderr);
    }, nullptr);
    llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (model == nullptr)
        return 1;
    llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = 256;
    params.n_threads = params.n_threads_batch = 1;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.swa_full = true;
    llama_context *context = llama_init_from_model(model, params);
    if (context == nullptr)
        return 1;
    llama_batch batch = llama_batch_init((int32_t)ids.size(), 0, 1);
    batch.n_tokens = (int32_t)ids.size();
    for (size_t i = 0; i < ids.size(); i++) {
        batch.token[i] = (llama_token)ids[i];
        batch.pos[i] = (llama_pos)i;
        batch.n_seq_id[i] = batch.logits[i] = 1;
        batch.seq_id[i][0] = 0;
    }
    if (llama_decode(context, batch) != 0)
        return 1;
    const size_t n_vocab = (size_t)llama_vocab_n_tokens(llama_model_get_vocab(model));
    FILE *out = fopen(argv[3], "wb");
    for (size_t i = 0; out != nullptr && i < ids.size(); i++)
        fwrite(llama_get_logits_ith(context, (int32_t)i), sizeof(float), n_vocab, out);
    return out == nullptr || fclose(out) != 0;
}
