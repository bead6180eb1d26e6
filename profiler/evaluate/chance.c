#include "profiler/evaluate/chance.h"

#include <stdio.h>

bool moec_chance_is(const struct moec_chance *chance)
{
    return chance->is_accuracy ? !(chance->original > chance->guessing)
                               : !(chance->original < chance->guessing);
}

enum moec_status moec_chance_check(const struct moec_chance *chance, bool goes_on,
                                   char note[static MOEC_CHANCE_NOTE_BYTES], struct moec_error *err)
{
    char numbers[192];
    note[0] = '\0';
    if (!moec_chance_is(chance))
        return MOEC_OK;
    if (chance->is_accuracy)
        (void)snprintf(numbers, sizeof numbers,
                       "%.1f%% of the choices are right, and random choices give %.1f%%",
                       100 * chance->original, 100 * chance->guessing);
    else
        (void)snprintf(
            numbers, sizeof numbers,
            "its perplexity is %.6g, and guessing evenly among all tokens of its vocabulary gives %.0f",
            chance->original, chance->guessing);
    (void)snprintf(note, MOEC_CHANCE_NOTE_BYTES, "%s predicts '%.200s' no better than chance: %s",
                   chance->subject != NULL ? chance->subject : "the original", chance->data_name, numbers);
    if (goes_on)
        return MOEC_OK;
    return moec_fail(
        err, MOEC_ERR_MISMATCH,
        "%s; a loss relative to this model would mean nothing. Likely causes: a tokenizer from another "
        "model, "
        "weights that are wrong or partly from another model, or text in a language or of a kind that the "
        "model does not know. Correct the cause, or give --anyway to continue: the result then repeats this "
        "warning",
        note);
}
