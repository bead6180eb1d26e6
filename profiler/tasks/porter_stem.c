/* Steps follow the paper's order and work in place, as none makes the word longer. In a step the first rule
 * whose suffix matches decides, even where its condition fails. The tables are NLTK's, and any change to them
 * changes scores. */
#include "profiler/tasks/porter_stem.h"

#include <stdbool.h>
#include <string.h>

/* The word at work: letters 0..n-1. Rules shorten it or write a replacement that is never longer
 * than the suffix. */
struct word {
    char *letters;
    size_t n;
};

static bool is_vowel_letter(char c)
{
    return c == 'a' || c == 'e' || c == 'i' || c == 'o' || c == 'u';
}

/* A y is a consonant where the letter before it is none, or at the start. */
static bool is_consonant(const char *letters, size_t i)
{
    size_t run = 0;
    while (i > run && letters[i - run] == 'y')
        run++;
    bool consonant = !is_vowel_letter(letters[i - run]);
    return run % 2 == 1 ? !consonant : consonant;
}

/* m of the paper: how often a vowel is followed by a consonant in the first n letters. */
static size_t measure(const char *letters, size_t n)
{
    size_t m = 0;
    bool before = true;
    for (size_t i = 0; i < n; i++) {
        bool consonant = letters[i] == 'y' ? i == 0 || !before : !is_vowel_letter(letters[i]);
        m += i > 0 && consonant && !before;
        before = consonant;
    }
    return m;
}

static bool has_vowel(const char *letters, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        /* The second of two letters is a vowel when it is a y after a consonant. */
        if (is_vowel_letter(letters[i]) || (i > 0 && letters[i] == 'y'))
            return true;
    }
    return false;
}

/* *o of the paper, and two letters vowel-consonant. */
static bool ends_cvc(const char *letters, size_t n)
{
    if (n == 2)
        return !is_consonant(letters, 0) && is_consonant(letters, 1);
    if (n < 3)
        return false;
    char last = letters[n - 1];
    return is_consonant(letters, n - 3) && !is_consonant(letters, n - 2) && is_consonant(letters, n - 1) &&
           last != 'w' && last != 'x' && last != 'y';
}

static bool ends_with(const struct word *word, const char *suffix)
{
    size_t n = strlen(suffix);
    return word->n >= n && memcmp(word->letters + word->n - n, suffix, n) == 0;
}

static void replace(struct word *word, size_t n_suffix, const char *replacement)
{
    size_t n = strlen(replacement);
    memcpy(word->letters + word->n - n_suffix, replacement, n);
    word->n = word->n - n_suffix + n;
}

struct rule {
    const char *suffix;
    const char *replacement;
};

/* The first rule whose suffix the word has decides: it applies when the stem's measure is above `above`. */
static void apply(struct word *word, const struct rule *rules, size_t above)
{
    for (; rules->suffix != NULL; rules++) {
        if (!ends_with(word, rules->suffix))
            continue;
        size_t n = strlen(rules->suffix);
        if (measure(word->letters, word->n - n) > above)
            replace(word, n, rules->replacement);
        return;
    }
}

static bool find_irregular(struct word *word)
{
    static const char *const forms[][2] = {
        {"sky", "sky"},        {"skies", "sky"},       {"dying", "die"},        {"lying", "lie"},
        {"tying", "tie"},      {"news", "news"},       {"innings", "inning"},   {"inning", "inning"},
        {"outings", "outing"}, {"outing", "outing"},   {"cannings", "canning"}, {"canning", "canning"},
        {"howe", "howe"},      {"proceed", "proceed"}, {"exceed", "exceed"},    {"succeed", "succeed"},
    };
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if (strlen(forms[i][0]) != word->n || !ends_with(word, forms[i][0]))
            continue;
        replace(word, word->n, forms[i][1]);
        return true;
    }
    return false;
}

/* Plurals. */
static void step_1a(struct word *word)
{
    if (ends_with(word, "ies") && word->n == 4)
        replace(word, 3, "ie");
    else if (ends_with(word, "sses"))
        replace(word, 4, "ss");
    else if (ends_with(word, "ies"))
        replace(word, 3, "i");
    else if (ends_with(word, "s") && !ends_with(word, "ss"))
        replace(word, 1, "");
}

/* What is left of a word whose -ed or -ing is gone. */
static void mend_stem(struct word *word)
{
    const char last = word->letters[word->n - 1];
    if (ends_with(word, "at") || ends_with(word, "bl") || ends_with(word, "iz")) {
        word->letters[word->n++] = 'e';
    } else if (word->n >= 2 && word->letters[word->n - 2] == last &&
               is_consonant(word->letters, word->n - 1)) {
        if (last != 'l' && last != 's' && last != 'z')
            word->n--;
    } else if (measure(word->letters, word->n) == 1 && ends_cvc(word->letters, word->n)) {
        word->letters[word->n++] = 'e';
    }
}

/* -ed and -ing. */
static void step_1b(struct word *word)
{
    if (ends_with(word, "ied")) {
        replace(word, 3, word->n == 4 ? "ie" : "i");
    } else if (ends_with(word, "eed")) {
        if (measure(word->letters, word->n - 3) > 0)
            replace(word, 3, "ee");
    } else {
        size_t n = ends_with(word, "ed") ? 2 : ends_with(word, "ing") ? 3 : 0;
        if (n == 0 || !has_vowel(word->letters, word->n - n))
            return;
        word->n -= n;
        mend_stem(word);
    }
}

static void step_1c(struct word *word)
{
    if (ends_with(word, "y") && word->n > 2 && is_consonant(word->letters, word->n - 2))
        replace(word, 1, "i");
}

static void step_2(struct word *word)
{
    static const struct rule rules[] = {
        {"ational", "ate"}, {"tional", "tion"}, {"enci", "ence"}, {"anci", "ance"}, {"izer", "ize"},
        {"bli", "ble"},     {"alli", "al"},     {"entli", "ent"}, {"eli", "e"},     {"ousli", "ous"},
        {"ization", "ize"}, {"ation", "ate"},   {"ator", "ate"},  {"alism", "al"},  {"iveness", "ive"},
        {"fulness", "ful"}, {"ousness", "ous"}, {"aliti", "al"},  {"iviti", "ive"}, {"biliti", "ble"},
        {"fulli", "ful"},   {NULL, NULL},
    };
    if (ends_with(word, "alli") && measure(word->letters, word->n - 4) > 0)
        replace(word, 4, "al"); /* and on with the step */
    /* The l counts with the stem, so that geo- and theo- are long enough. */
    if (ends_with(word, "logi")) {
        if (measure(word->letters, word->n - 3) > 0)
            replace(word, 1, "");
        return;
    }
    apply(word, rules, 0);
}

static void step_3(struct word *word)
{
    static const struct rule rules[] = {
        {"icate", "ic"}, {"ative", ""}, {"alize", "al"}, {"iciti", "ic"},
        {"ical", "ic"},  {"ful", ""},   {"ness", ""},    {NULL, NULL},
    };
    apply(word, rules, 0);
}

static void step_4(struct word *word)
{
    static const struct rule rules[] = {
        {"al", ""},  {"ance", ""},  {"ence", ""}, {"er", ""},  {"ic", ""},   {"able", ""}, {"ible", ""},
        {"ant", ""}, {"ement", ""}, {"ment", ""}, {"ent", ""}, {"ou", ""},   {"ism", ""},  {"ate", ""},
        {"iti", ""}, {"ous", ""},   {"ive", ""},  {"ize", ""}, {NULL, NULL},
    };
    if (ends_with(word, "ion")) {
        if (measure(word->letters, word->n - 3) > 1 &&
            (word->letters[word->n - 4] == 's' || word->letters[word->n - 4] == 't'))
            replace(word, 3, "");
        return;
    }
    apply(word, rules, 1);
}

static void step_5(struct word *word)
{
    if (ends_with(word, "e")) {
        size_t m = measure(word->letters, word->n - 1);
        if (m > 1 || (m == 1 && !ends_cvc(word->letters, word->n - 1)))
            word->n--;
    }
    if (ends_with(word, "ll") && measure(word->letters, word->n - 1) > 1)
        word->n--;
}

size_t moec_porter_stem(char *letters, size_t n_bytes)
{
    struct word word = {letters, n_bytes};
    if (find_irregular(&word) || word.n <= 2)
        return word.n;
    step_1a(&word);
    step_1b(&word);
    step_1c(&word);
    step_2(&word);
    step_3(&word);
    step_4(&word);
    step_5(&word);
    return word.n;
}
