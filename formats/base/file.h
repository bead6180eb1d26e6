/* Files: bounded reading and all-or-nothing writing.
 *
 * Inputs are read with pread (never left mapped: a file truncated underneath would kill the process, and
 * mapped pages would count against --memory). Outputs appear under their final name only when complete:
 * written to a temporary file in the same directory, fsynced, renamed. Thread rule: reads of one moec_file
 * from several threads are fine; an output belongs to one thread. */
#ifndef MOEC_FORMATS_FILE_H
#define MOEC_FORMATS_FILE_H

#include "formats/base/error.h"

#include <stddef.h>

struct moec_file {
    int fd; /* -1 when closed */
    uint64_t n_bytes;
    char *path; /* owned, for messages */
};

/* Opens a regular file for reading. Errors: MOEC_ERR_NOT_FOUND (also for a link that leads nowhere),
 * MOEC_ERR_IO ('path' is a directory, ...), MOEC_ERR_FORMAT for a pointer of git-lfs in place of the file. */
MOEC_WARN_UNUSED enum moec_status moec_file_open(struct moec_file *file, const char *path,
                                                 struct moec_error *err);
void moec_file_close(struct moec_file *file);

/* Reads exactly n bytes at `offset`, retrying EINTR and short reads. A file that ends early is MOEC_ERR_IO
 * naming path and offset. */
MOEC_WARN_UNUSED enum moec_status moec_file_read(const struct moec_file *file, uint64_t offset, void *buffer,
                                                 size_t n, struct moec_error *err);

/* Opens a regular file for reading and writing; with `create` one that must not exist yet, whose folder is
 * synced. Errors as moec_file_open; MOEC_ERR_IO when it cannot be created. */
MOEC_WARN_UNUSED enum moec_status moec_file_open_writable(struct moec_file *file, const char *path,
                                                          bool create, struct moec_error *err);
/* Writes n bytes at `offset`; n_bytes of the file grows where they end after it. */
MOEC_WARN_UNUSED enum moec_status moec_file_write(struct moec_file *file, uint64_t offset, const void *bytes,
                                                  size_t n, struct moec_error *err);

/* What offsets and lengths of direct reads (O_DIRECT) of this file, and where they read to, must be multiples
 * of: 512 where reading so succeeds, else 4096. Asks the device. */
uint32_t moec_file_direct_unit(const struct moec_file *file);

/* Tells the kernel that these cached pages will not be needed (posix_fadvise DONTNEED): big sequential
 * readers call it behind themselves. */
void moec_file_drop(const struct moec_file *file, uint64_t offset, uint64_t n_bytes);

/* Which share of these bytes is in the page cache, 0 to 1, of places spread over them; negative where the
 * kernel does not tell this user, or not of this file. */
double moec_file_cached_share(const struct moec_file *file, uint64_t offset, uint64_t n_bytes);

/* Tells the kernel that these bytes will be wanted soon (posix_fadvise WILLNEED). */
void moec_file_fetch(const struct moec_file *file, uint64_t offset, uint64_t n_bytes);

/* Reads a whole file of at most `limit_bytes`, with a NUL after it (not counted). Owned by the caller. */
MOEC_WARN_UNUSED enum moec_status moec_file_load(const char *path, uint64_t limit_bytes, char **bytes,
                                                 size_t *n_bytes, struct moec_error *err);

/* An output under construction. */
struct moec_output {
    int fd;           /* -1 when none */
    char *path;       /* owned: final name */
    char *temporary;  /* owned: name being written, same directory */
    uint64_t n_bytes; /* written so far by moec_output_append */
};

/* Creates the temporary file, locked, and removes those of this output that killed processes left. Errors:
 * MOEC_ERR_IO with the directory's problem. */
MOEC_WARN_UNUSED enum moec_status moec_output_open(struct moec_output *output, const char *path,
                                                   struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_output_append(struct moec_output *output, const void *bytes, size_t n,
                                                     struct moec_error *err);
/* Appends zero bytes up to a multiple of `alignment`. */
MOEC_WARN_UNUSED enum moec_status moec_output_align(struct moec_output *output, uint64_t alignment,
                                                    struct moec_error *err);
/* Overwrites bytes written before. */
MOEC_WARN_UNUSED enum moec_status moec_output_patch(struct moec_output *output, uint64_t offset,
                                                    const void *bytes, size_t n, struct moec_error *err);
/* fsync, rename, fsync of the directory. After success the output is closed; after failure the temporary is
 * gone. When only the last of these fails the file is in place all the same, and the message says so. */
MOEC_WARN_UNUSED enum moec_status moec_output_commit(struct moec_output *output, struct moec_error *err);
/* Removes the temporary; the final name keeps what it held. NULL-safe, idempotent, a no-op after commit. */
void moec_output_abort(struct moec_output *output);

/* Removes what killed processes left of this output; as opening it does. Errors: MOEC_ERR_MEMORY, MOEC_ERR_IO
 * for a link that leads nowhere. */
MOEC_WARN_UNUSED enum moec_status moec_output_remove_abandoned(const char *path, struct moec_error *err);

/* A file without a name in `folder`, of n_bytes whose room on the disk is reserved: it is gone when `*fd`,
 * the caller's, and every mapping of it are closed. `what` it is for, in messages. Errors: MOEC_ERR_IO. */
MOEC_WARN_UNUSED enum moec_status moec_file_temporary(const char *folder, uint64_t n_bytes, const char *what,
                                                      int *fd, struct moec_error *err);

/* A folder of files under construction: it appears under its name whole or not at all. */
struct moec_output_folder {
    int fd;          /* of the temporary folder, locked; -1 when none */
    char *path;      /* owned: final name, which does not exist */
    char *temporary; /* owned: folder beside it that the files are written into */
};

/* Creates the temporary folder, and removes those of the same name that killed processes left. Errors:
 * MOEC_ERR_IO when something has the final name already, or with the parent's problem. */
MOEC_WARN_UNUSED enum moec_status moec_output_folder_open(struct moec_output_folder *output, const char *path,
                                                          struct moec_error *err);
/* Syncs and renames; the files in it are complete (moec_output_commit). On failure the temporary is removed.
 */
MOEC_WARN_UNUSED enum moec_status moec_output_folder_commit(struct moec_output_folder *output,
                                                            struct moec_error *err);
/* Removes the temporary folder with the files in it. NULL-safe, idempotent, a no-op after commit. */
void moec_output_folder_abort(struct moec_output_folder *output);

/* Joins folder and name with one slash. Owned by the caller. */
MOEC_WARN_UNUSED enum moec_status moec_path_join(char **out, const char *folder, const char *name,
                                                 struct moec_error *err);
bool moec_path_is_folder(const char *path);
bool moec_path_exists(const char *path);
/* The message about a link whose target is not there: MOEC_ERR_NOT_FOUND. */
enum moec_status moec_path_fail_link(const char *path, struct moec_error *err);
/* Whether the folder has an entry of this name, whatever it is: a link to nothing, or to itself, is one, and
 * opening it says what is wrong. For files that may be absent. Errors: MOEC_ERR_IO when it cannot be told. */
MOEC_WARN_UNUSED enum moec_status moec_path_find(const char *path, bool *found, struct moec_error *err);

#endif
