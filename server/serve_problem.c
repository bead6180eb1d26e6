/* The first refusal stays, so that what fails because of it does not hide the reason. Faults of the client
 * are told from those of the server by the status of the library. */
#include "server/serve_problem.h"

#include "formats/base/utf8.h"
#include "formats/json/json_write.h"

#include <stdio.h>
#include <string.h>

/* Cut in the middle of a character, or with bytes of a client in it, a text is cut where it is whole. */
static void keep_whole(char *text)
{
    text[moec_utf8_valid_bytes(text, strlen(text))] = '\0';
}

static const char *type_of(unsigned status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 429:
        return "rate_limit_error";
    default:
        return status < 500 ? "invalid_request_error" : "server_error";
    }
}

static const char *code_of(unsigned status)
{
    switch (status) {
    case 401:
        return "invalid_api_key";
    case 404:
        return "not_found";
    case 413:
        return "too_large";
    case 429:
        return "queue_full";
    case 503:
        return "shutting_down";
    default:
        return NULL;
    }
}

bool serve_refuse(struct serve_problem *problem, unsigned status, const char *param, const char *format, ...)
{
    if (problem->status != 0)
        return false;
    problem->status = status;
    problem->type = type_of(status);
    problem->code = code_of(status);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(problem->message, sizeof problem->message, format, arguments);
    va_end(arguments);
    (void)snprintf(problem->param, sizeof problem->param, "%s", param != NULL ? param : "");
    keep_whole(problem->message);
    keep_whole(problem->param);
    return false;
}

bool serve_refuse_error(struct serve_problem *problem, const char *param, enum moec_status status,
                        const char *message)
{
    const bool is_clients = status == MOEC_ERR_USAGE || status == MOEC_ERR_LIMIT ||
                            status == MOEC_ERR_FORMAT || status == MOEC_ERR_UNSUPPORTED;
    return serve_refuse(problem, is_clients ? 400 : 500, param, "%s", message);
}

char *serve_problem_text(const struct serve_problem *problem)
{
    struct moec_json_out *root = moec_json_out_object(), *error = moec_json_out_object();
    char *text = NULL;
    moec_json_out_string(error, "message", problem->message);
    moec_json_out_string(error, "type", problem->type);
    moec_json_out_string_or_null(error, "param", problem->param);
    moec_json_out_string_or_null(error, "code", problem->code);
    moec_json_out_node(root, "error", error);
    if (moec_json_out_line(root, &text, NULL) != MOEC_OK)
        text = NULL;
    moec_json_out_free(root);
    return text;
}
