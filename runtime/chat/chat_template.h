/* Chat templates: Jinja as transformers sets it up for apply_chat_template (an immutable sandbox,
 * trim_blocks, lstrip_blocks, loop controls, {% generation %}), or rather the part of it that models'
 * templates use:
 *
 *     statements   for (unpacking, if, else, recursive, loop.*), if, set, set blocks, macro, call, filter,
 *                  with, raw, break, continue, generation
 *     expressions  Python's literals, operators, slices and comparisons; x if c else y; filters and tests
 *     names        namespace, dict, range, raise_exception, strftime_now
 *
 * Not there: inheritance, includes, imports, do, varargs, autoescaping, the format specifications of
 * str.format, and methods that change a value, which the sandbox forbids anyway. A template that uses more is
 * refused when it is parsed, with the place. What is there gives the text that Jinja gives, but for str.upper
 * and str.lower of letters that change their length, and for text that Jinja would print of macros and
 * namespaces, which is refused.
 *
 * Templates come from strangers: steps, nesting, memory and output are bounded (below), and nothing of the
 * system can be reached, the date included, which the caller passes. Thread rule: a template is immutable
 * after parsing; each rendering belongs to one thread. */
#ifndef MOEC_RUNTIME_CHAT_TEMPLATE_H
#define MOEC_RUNTIME_CHAT_TEMPLATE_H

#include "runtime/chat/chat_value.h"

#include <time.h>

#define MOEC_CHAT_MAX_TEMPLATE_BYTES ((size_t)1 << 20)
#define MOEC_CHAT_MAX_STEPS          ((uint64_t)20 << 20)  /* expressions, statements, items looked at */
#define MOEC_CHAT_MAX_CALLS          64                    /* macros within macros */
#define MOEC_CHAT_MAX_MEMORY_BYTES   ((uint64_t)256 << 20) /* of all values of a rendering */
#define MOEC_CHAT_MAX_OUTPUT_BYTES   ((size_t)64 << 20)

struct moec_chat_template;

/* The text is not needed afterwards. Errors: MOEC_ERR_FORMAT, MOEC_ERR_UNSUPPORTED, MOEC_ERR_LIMIT, with line
 * and column; MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_chat_template_parse(const char *text, size_t n_bytes,
                                                           struct moec_chat_template **out,
                                                           struct moec_error *err);
void moec_chat_template_free(struct moec_chat_template *chat_template);

/* Renders with the variables of a dict whose values were measured (moec_chat_measure). `date` is what
 * strftime_now shows. The text, a STRING with marks, lives in `arena`, which is limited to
 * MOEC_CHAT_MAX_MEMORY_BYTES beside what it has, where it has no lower limit. Errors: MOEC_ERR_USAGE for what the template itself refuses
 * (raise_exception), MOEC_ERR_FORMAT for what Jinja would fail at, MOEC_ERR_LIMIT beyond a bound, with line
 * and column. */
MOEC_WARN_UNUSED enum moec_status moec_chat_template_render(const struct moec_chat_template *chat_template,
                                                            const struct moec_chat_dict *variables,
                                                            const struct tm *date,
                                                            struct moec_chat_arena *arena,
                                                            struct moec_chat_value *text,
                                                            struct moec_error *err);

#endif
