/* How byte-level tokenizers cut text into words, as the tokenizer.json of the models says it (Oniguruma's
 * dialect), for containers that have only a name for it: GGUF's `tokenizer.ggml.pre`, and a folder with
 * vocab.json and merges.txt alone. Thread rule: constant data. */
#ifndef MOEC_FORMATS_WORD_PATTERNS_H
#define MOEC_FORMATS_WORD_PATTERNS_H

#define MOEC_WORDS_CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define MOEC_WORDS_END          " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* Qwen2 and what was made of it: every digit is a word. */
#define MOEC_WORDS_QWEN2 MOEC_WORDS_CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|" MOEC_WORDS_END

#endif
