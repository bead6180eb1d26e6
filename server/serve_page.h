/* The page at /: a first talk with the model, in plain HTML. It writes what the model says as text, never as
 * HTML, and its policy lets it reach this server alone. Thread rule: constants. */
#ifndef MOEC_SERVER_SERVE_PAGE_H
#define MOEC_SERVER_SERVE_PAGE_H

#define SERVE_PAGE_POLICY                                                                                    \
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; "         \
    "form-action 'none'; frame-ancestors 'none'"

extern const char serve_page_html[], serve_page_script[], serve_page_style[];

#endif
