/* Tables of a report: written once, shown as HTML and kept as TSV. Thread rule: plain data. */
#ifndef MOEC_EXPERIMENTS_TABLE_H
#define MOEC_EXPERIMENTS_TABLE_H

#include "formats/base/error.h"

#include <stdio.h>

struct experiment_table {
    const char *name; /* of its file, without ending */
    FILE *stream;     /* TSV: cells parted by tabs, rows by line ends, the first row has the headings */
    char *text;
    size_t n_bytes;
    bool is_begun; /* a cell of this row is written */
};

MOEC_WARN_UNUSED enum moec_status experiment_table_open(struct experiment_table *table, const char *name,
                                                        struct moec_error *err);
/* A cell; tabs and line ends in it become spaces. */
MOEC_PRINTF(2, 3) void experiment_table_cell(struct experiment_table *table, const char *format, ...);
/* A number with so many decimals after `factor` times it; a dash for NaN. */
void experiment_table_number(struct experiment_table *table, double value, double factor, int decimals);
/* Two shares as per cent, "0.12 to 0.34"; a dash unless both are finite. */
void experiment_table_interval(struct experiment_table *table, double low, double high);
void experiment_table_end_row(struct experiment_table *table);

/* Writes `folder`/name.tsv and the HTML to `page`, and frees the table in every case. */
MOEC_WARN_UNUSED enum moec_status experiment_table_close(struct experiment_table *table, const char *folder,
                                                         FILE *page, struct moec_error *err);

/* Frees what is open. */
void experiment_table_drop(struct experiment_table *table);

#endif
