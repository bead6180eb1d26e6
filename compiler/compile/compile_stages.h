/* What is going on, and how much is left. Thread rule: one thread, parallel inside. */
#ifndef MOEC_COMPILER_COMPILE_STAGES_H
#define MOEC_COMPILER_COMPILE_STAGES_H

#include "compiler/compile/compile_run.h"

/* From now on this is done; with what comes after it, that is what is expected. */
void moec_compile_begin(struct moec_compile_run *run, enum moec_compile_stage stage);
/* How far an evaluation of the stage's part is. */
void moec_compile_show_part(const struct moec_compile_run *run, double done, double total);
/* How far the stage is that counts by itself: experts, records. */
void moec_compile_show_whole(const struct moec_compile_run *run, double done, double total);

/* Of work in a stage that counts by itself: shows how far it is, and stops where the compile is to stop. */
struct moec_progress moec_compile_whole_progress(struct moec_compile_run *run);

#endif
