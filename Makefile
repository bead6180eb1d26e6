# moec: `make help` lists the targets.
# User settings; all can be given on the command line.
CC       ?= gcc
PREFIX   ?= /usr/local
DESTDIR  ?=
SANITIZE ?=
DEV      ?= 1
JOBS     ?= $(shell nproc 2>/dev/null || echo 2)
CFLAGS   ?= -O2 -g
VERSION  := 0.1.0

ifeq ($(origin CC),default)
CC := gcc
endif

# Sanitized and clang builds live beside the plain one, so that switching rebuilds nothing.
BUILD := build$(if $(SANITIZE),/sanitize-$(SANITIZE))$(if $(findstring clang,$(CC)),/clang)

PACKAGES := gcc make pkg-config libhdf5-dev hdf5-tools libzstd-dev liblua5.4-dev libjansson-dev libpcre2-dev \
            libutf8proc-dev libcairo2-dev nettle-dev libcmocka-dev zstd
PACKAGES_TEST  := clang libclang-rt-14-dev libomp-14-dev libsimde-dev mandoc
PACKAGES_CHECK := clang-format clang-tidy shellcheck

# Without the development packages (before the first `make deps`) pkg-config answers nothing; the compiler then
# names the missing header and `make deps` installs it.
pc = $(shell pkg-config $(1) 2>/dev/null)
RUNTIME_PC := libzstd libpcre2-8 libutf8proc nettle
TOOL_PC    := hdf5 lua5.4 jansson cairo

WARNINGS := -Wall -Wextra -Wconversion -Wshadow -Wvla -Wmissing-prototypes -Wstrict-prototypes -Wundef
# -ffp-contract=off: a fused multiply-add appears where the source says fma and nowhere else (canonical arithmetic).
BASE_FLAGS := -std=gnu11 -I. -D_GNU_SOURCE -DMOEC_VERSION='"$(VERSION)"' -ffp-contract=off -fno-math-errno -fPIC \
              -fvisibility=hidden $(WARNINGS) $(if $(filter 1,$(DEV)),-Werror)
OPENMP := -fopenmp
ifneq ($(SANITIZE),)
SAN_FLAGS := -fsanitize=$(SANITIZE) -fno-omit-frame-pointer
ifeq ($(SANITIZE),undefined)
SAN_FLAGS += -fno-sanitize-recover=undefined
endif
ifeq ($(SANITIZE),thread)
OPENMP := -pthread -DMOEC_PTHREADS
endif
endif
ALL_CFLAGS := $(BASE_FLAGS) $(CFLAGS) $(OPENMP) $(SAN_FLAGS) $(call pc,--cflags $(RUNTIME_PC) $(TOOL_PC))
RUNTIME_LIBS := $(call pc,--libs $(RUNTIME_PC)) -lm -pthread
TOOL_LIBS    := $(call pc,--libs $(TOOL_PC)) $(RUNTIME_LIBS)

# What libmoert needs of formats/: no JSON, no HDF5.
MOERT_FORMATS := $(addprefix formats/,error.c memory.c file.c digest.c compress.c codec.c config.c dense.c record.c \
                 tokenizer_model.c path_table.c bundle.c)
RUNTIME_SRC := $(sort $(wildcard runtime/*.c))
MOERT_SRC   := $(MOERT_FORMATS) $(RUNTIME_SRC)
TOOL_SRC    := $(filter-out $(MOERT_SRC) cli/run_main.c cli/main.c,\
               $(sort $(wildcard formats/*.c profiler/*.c compiler/*.c cli/*.c)))
# moec-run is the run command alone, linked without HDF5, Lua, Cairo and jansson.
RUN_SRC     := cli/run_main.c cli/cmd_run.c cli/options.c cli/progress.c cli/terminal.c

obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
MOERT_OBJ := $(call obj,$(MOERT_SRC))
TOOL_OBJ  := $(call obj,$(TOOL_SRC))
UNIT_SRC  := $(sort $(wildcard tests/unit/test_*.c))
UNIT_BIN  := $(patsubst tests/unit/%.c,$(BUILD)/tests/%,$(UNIT_SRC))

Q := $(if $(V),,@)
.PHONY: all help deps demo test test-programs check format install uninstall clean fuzz
all: $(BUILD)/moec $(BUILD)/moec-run $(BUILD)/libmoert.a $(BUILD)/libmoert.so $(BUILD)/moert.pc

# One file per instruction set, each with its own flags; everything else is plain x86-64 (or any other machine).
ARCH := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine)))
ifeq ($(ARCH),x86_64)
$(BUILD)/obj/runtime/kernels_avx2.o:   ALL_CFLAGS += -mavx2 -mfma -mf16c -O3
$(BUILD)/obj/runtime/kernels_avx512.o: ALL_CFLAGS += -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c -O3
endif

$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) -MMD -MP -c $< -o $@

$(BUILD)/libmoert.a: $(MOERT_OBJ)
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(BUILD)/libmoert.so: $(MOERT_OBJ)
	$(Q)$(CC) -shared -Wl,-soname,libmoert.so.0 $(OPENMP) $(SAN_FLAGS) $^ -o $@ $(RUNTIME_LIBS)

# Lua modules, policies and tasks become part of the program.
LUA_FILES := $(sort $(wildcard lua/modules/*.lua lua/policies/*.lua datasets/tasks/*.lua))
$(BUILD)/obj/lua_library.c: compiler/embed_lua.sh $(LUA_FILES)
	@mkdir -p $(@D)
	$(Q)compiler/embed_lua.sh > $@.new && mv $@.new $@
$(BUILD)/obj/lua_library.o: $(BUILD)/obj/lua_library.c
	$(Q)$(CC) $(ALL_CFLAGS) -MMD -MP -c $< -o $@

# The rest of moec as one archive, so that the program and every test link the same objects.
$(BUILD)/libmoec.a: $(TOOL_OBJ) $(BUILD)/obj/lua_library.o
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(BUILD)/moec: $(BUILD)/obj/cli/main.o $(BUILD)/libmoec.a $(BUILD)/libmoert.a
	$(Q)$(CC) $(OPENMP) $(SAN_FLAGS) $^ -o $@ $(TOOL_LIBS)

$(BUILD)/moec-run: $(call obj,$(RUN_SRC)) $(BUILD)/libmoert.a
	$(Q)$(CC) $(OPENMP) $(SAN_FLAGS) $^ -o $@ $(RUNTIME_LIBS)

$(BUILD)/moert.pc: runtime/moert.pc.in Makefile
	@mkdir -p $(@D)
	$(Q)sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' $< > $@

$(BUILD)/tests/%: $(BUILD)/obj/tests/unit/%.o $(BUILD)/libmoec.a $(BUILD)/libmoert.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(OPENMP) $(SAN_FLAGS) $^ -o $@ -lcmocka $(TOOL_LIBS)

# Programs for measuring and comparing by hand; no test needs them.
$(BUILD)/tools/%: $(BUILD)/obj/tests/tools/%.o $(BUILD)/libmoec.a $(BUILD)/libmoert.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(OPENMP) $(SAN_FLAGS) $^ -o $@ $(TOOL_LIBS)

clean:
	rm -rf build

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
