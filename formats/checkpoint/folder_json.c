#include "formats/checkpoint/folder_json.h"

#include "formats/base/file.h"

#include <stdio.h>
#include <stdlib.h>

enum moec_status moec_folder_has(const char *folder, const char *name, bool *has, struct moec_error *err)
{
    char *path = NULL;
    MOEC_TRY(moec_path_join(&path, folder, name, err));
    enum moec_status status = moec_path_find(path, has, err);
    free(path);
    return status;
}

enum moec_status moec_folder_load_json(const char *folder, const char *name, uint64_t limit_bytes,
                                       struct moec_json **root, char **where, struct moec_error *err)
{
    char *path = NULL, *bytes = NULL, *quoted = NULL;
    size_t n_bytes = 0;
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_path_join(&path, folder, name, err));
    MOEC_TRY_OUT(moec_file_load(path, limit_bytes, &bytes, &n_bytes, err));
    if (asprintf(&quoted, "'%s'", path) < 0) {
        quoted = NULL;
        status = moec_fail(err, MOEC_ERR_MEMORY, "out of memory: no room for the path of '%s'", path);
        goto out;
    }
    MOEC_TRY_OUT(moec_json_parse(bytes, n_bytes, (size_t)limit_bytes, path, root, err));
    *where = quoted;
    quoted = NULL;
out:
    free(path);
    free(bytes);
    free(quoted);
    return status;
}
